"""The width of each step by an oracle."""

from __future__ import annotations

import numpy as np

from orrery.parts import Fraction
from orrery.systems.serve.problems.branch_requests import BranchPolicy, BranchView

# Steps over which the time that prompts take of a step is averaged.
MEMORY = 200.0
# What rounding may make of a pace that is just met.
EPSILON_S = 1e-9


class OracleWidth(BranchPolicy):
    """Fills each step up to what the batch can bear, and knows every length and every step time.

    It reads what is hidden from policies. What a serial request has to spare until its last token
    is spent over the first half of its tokens; forks with the fewest tokens really left come first,
    with all of their branches. It is greedy from step to step and does not know who
    will come, so it shows what knowledge adds to a policy of this kind, not the best of all
    schedules. Alone with one chat, and spending at once, it finds what a search of all schedules
    finds, wherever there is enough to spare for that.

    safety   the fraction of the slack that branches may use
    over     the share of a request's tokens over which its slack is spent; 0: all in the next step

    >>> OracleWidth().widths(BranchView(0.0, [], (), lambda *step: 0.0)).tolist()
    []
    """

    safety: Fraction = 0.9
    over: Fraction = 0.5

    def start(self) -> None:
        self.prompts_s = 0.0

    def widths(self, view: BranchView) -> np.ndarray:
        widths = np.ones(len(view), np.int64)
        if not len(view):
            return widths
        is_forked, kv = view.forked, _serial_kv(view)
        bare_s = view.profile(len(view), kv)
        decode_s = view.profile(len(view), kv, prompts=False) if view.prefill else bare_s
        self.prompts_s += (bare_s - decode_s - self.prompts_s) / MEMORY
        forked = np.flatnonzero(is_forked)
        if not len(forked):
            return widths
        limit_s = bare_s + self._budget_s(view, is_forked, bare_s, decode_s)
        owner, left, reads = self._candidates(view, forked)
        order = np.argsort(left, kind="stable")
        who, more_kv = owner[order], np.cumsum(reads[order])
        low, high = 0, len(who)
        while low < high:
            middle = (low + high + 1) // 2
            if view.profile(len(view) + middle, kv + int(more_kv[middle - 1])) <= limit_s:
                low = middle
            else:
                high = middle - 1
        widths[forked] += np.bincount(who[:low], minlength=len(forked))
        return widths

    @staticmethod
    def _candidates(
        view: BranchView, forked: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(whose each further branch is, what is left of that fork, the tokens that it reads)."""
        owner: list[int] = []
        lefts: list[int] = []
        reads: list[int] = []
        for place, at in enumerate(forked.tolist()):
            row = view._rows[at]
            lengths = row.request._stages[row.stage].branches
            left = sum(lengths[each] - row.made[each] for each in row.open)
            for branch in row.open[1:]:
                owner.append(place)
                lefts.append(left)
                reads.append(row.context + row.made[branch] + 1)
        return np.array(owner, np.int64), np.array(lefts), np.array(reads, np.int64)

    def _budget_s(
        self, view: BranchView, is_forked: np.ndarray, bare_s: float, decode_s: float
    ) -> float:
        slack, lead_s = [], view.lead_s
        for at, row in enumerate(view._rows):
            if is_forked[at]:
                continue
            pace_s, left = row.request.tpot_s, row.serial_left
            ahead_s = lead_s[at] - pace_s
            # Whoever would be late even if no branch entered from now on limits nobody.
            if ahead_s + left * (pace_s - decode_s) < -EPSILON_S:
                continue
            spare_s = ahead_s + left * (pace_s - self.prompts_s - decode_s)
            slack.append(spare_s / max(left * self.over, 1.0) - (bare_s - decode_s))
        return self.safety * max(min(slack), 0.0) if slack else float("inf")


def _serial_kv(view: BranchView) -> int:
    """Tokens that the step reads if nothing but first branches are in it."""
    return sum(row.context + 1 + (row.made[row.open[0]] if row.open else 0) for row in view._rows)


__all__ = ["OracleWidth"]
