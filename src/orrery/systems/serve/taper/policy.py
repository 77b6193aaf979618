"""TAPER: as many branches in a step as the slack of the others can bear."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import numpy as np

from orrery.parts import Count, Fraction, Positive
from orrery.systems.serve.problems.branch_requests import BranchPolicy, BranchView
from orrery.systems.serve.taper.fit import StepFit

# An error that leaves a prediction above nothing.
Share = Annotated[float, msgspec.Meta(gt=-1, le=100)]
# What rounding may make of a pace that is just met.
EPSILON_S = 1e-9
# Steps over which the share of prompts is averaged.
MEMORY = 200.0
# Where nobody can meet a target, every so many steps one is made without branches.
PROBE = 16
# Steps over which a prediction is adjusted to what steps really take.
ADJUST = 32.0


class Taper(BranchPolicy):
    """Lets in branches of forked answers as long as they make nobody else late.

    "Regulating Branch Parallelism in LLM Serving" (TAPER), 2026. The first branch of every request
    is served in every step. More are opportunistic: the branch externality is the predicted time of
    the step with them minus that without, and it must fit into the budget of the batch, a safety
    fraction of the least slack of those who can still meet their target. Widths are set anew at
    each step, which is cheap: branches share their prefix's blocks, and one on pause keeps its own.

    safety        the fraction of the slack that branches may use; 0: no further branch ever enters
    spend         tokens over which a request may use up what it is ahead
    recover       tokens within which a late request is expected to be able to catch up; one that
                  cannot is lost, and no longer limits the others
    age_steps     steps after its fork at which what is left of a request counts half in the ranking
    regulate      off, every branch enters (IRP-Eager): the mechanism switched off
    predictor     fitted: learnt online, a + b x sequences + c x KV tokens + d x prompt tokens;
                  profile: the operator's table of step times
    adjust        scale the prediction by what steps took of late over what it said
    error         what the predictor is off by, as a share, to see what that costs
    first_length  tokens of a branch, before any of its siblings has ended

    Forks rank by the device time that is left of their parallel stage, tokens left x what a token
    of a branch costs, the least first. All branches of the first one enter, then those of the next,
    as long as they fit. So forks end one after the other and not all late together, and each gives
    back early the blocks that it holds, for which requests wait when the cache is full. A share for
    each fork, or just the width that brings it to its end in time, keeps all of them open and the
    cache full. Ageing keeps a long fork from being passed by for ever. O(m log m) for m open
    branches, in NumPy.

    **Differs from the paper**: only its abstract was at hand; slack, predictor, ranking and ageing
    are our design. A serial request's pace counts from its own first token, as it is judged, not
    from its target for that. What is left of a stage is estimated by the mean length of the
    branches that have ended so far. Prompts that wait limit nobody: what they take of a step is
    set aside on average, and their first tokens are left to the engine. When nobody in the batch
    can meet a target any more, all branches enter, but for a step in 16 without any, which shows
    what such a step takes. A branch reads its prefix by itself: no kernel that reads a shared
    prefix once is assumed, as the measured tables have none.

    >>> from orrery.systems.serve.problems.llm_branches import LLMBranches
    >>> log = LLMBranches(tables="", requests=10).play(Taper(), seed=1)
    >>> len(log.answered), log.faults
    (10, [])
    """

    safety: Fraction = 0.9
    spend: Positive = 16.0
    recover: Positive = 64.0
    age_steps: Positive = 100.0
    regulate: bool = True
    predictor: Literal["fitted", "profile"] = "fitted"
    adjust: bool = True
    error: Share = 0.0
    first_length: Count = 100

    def start(self) -> None:
        self.fit = StepFit()
        self.prompts_s = 0.0  # what prompts add to a step, on average
        self.told_s, self.scale = 0.0, 1.0  # the last prediction; what such were off by of late
        self.lost = 0  # steps in a row in which nobody could meet a target

    def observe(self, prefill: int, sequences: int, kv_tokens: int, seconds: float) -> None:
        self.fit.learn(prefill, sequences, kv_tokens, seconds)
        if self.told_s and self.adjust:
            off = seconds / self.told_s * self.scale
            self.scale += (min(max(off, 0.5), 2.0) - self.scale) / ADJUST
        self.told_s = 0.0
        if sequences:
            added_s = prefill * self.fit.terms()[3]
            self.prompts_s += (added_s - self.prompts_s) / MEMORY

    # -- prediction

    def step_s(
        self, view: BranchView, sequences: int, kv_tokens: float, prompts: bool = True
    ) -> float:
        """The predicted time of the step, with or without its prompt chunk."""
        off = (1.0 + self.error) * self.scale
        if self.predictor == "profile":
            return view.profile(sequences, int(kv_tokens), prompts) * off
        prefill = sum(new for new, _ in view.prefill) if prompts else 0
        return self.fit.seconds(prefill, sequences, kv_tokens) * off

    def budget_s(
        self, view: BranchView, serial: np.ndarray, base_s: float, decode_s: float
    ) -> float:
        """Seconds by which branches may make the step longer."""
        if not serial.any():
            return np.inf
        pace_s = view.pace_s[serial]
        ahead_s = view.lead_s[serial] - pace_s
        # Whoever could not catch up even without any branch is lost, and limits nobody.
        able = ahead_s + self.recover * (pace_s - decode_s) >= -EPSILON_S
        if not able.any():
            # Where all seem lost, that may be the predictor's fault: look, from time to time.
            self.lost += 1
            return 0.0 if self.lost % PROBE == 0 else np.inf
        self.lost = 0
        # A step may take the pace, less what prompts will take of it, and a part of what the
        # request is ahead; one that is late must gain on its pace by enough to catch up.
        over = np.where(ahead_s >= 0, self.spend, self.recover)
        slack_s = (pace_s - self.prompts_s + ahead_s / over - base_s)[able]
        return self.safety * max(float(slack_s.min()), 0.0)

    # -- the decision

    def widths(self, view: BranchView) -> np.ndarray:
        widths, is_forked = np.ones(len(view), np.int64), view.forked
        forked = np.flatnonzero(is_forked)
        if not len(forked) or not self.safety:
            return widths
        if not self.regulate:
            return view.open
        context, own, opened = view.context[forked], view.own[forked], view.open[forked]
        sequences, kv = len(view), float(view.context.sum() + len(view) + own.sum())
        base_s = self.step_s(view, sequences, kv)
        decode_s = self.step_s(view, sequences, kv, prompts=False) if view.prefill else base_s
        limit_s = base_s + self.budget_s(view, ~is_forked, base_s, decode_s)
        branch_kv, extra = context + own + 1.0, opened - 1
        fits, reads = int(extra.sum()), float((branch_kv * extra).sum())
        whole_s = self.step_s(view, sequences + fits, kv + reads)
        if whole_s <= limit_s:  # all of them, so nothing is to be ranked
            self.told_s = whole_s
            widths[forked] = opened
            return widths
        first = np.argsort(self._left_s(view, forked, opened, own, branch_kv), kind="stable")
        order = np.repeat(first, extra[first])
        more_kv = np.cumsum(branch_kv[order])
        fits = self._most(view, sequences, kv, more_kv, limit_s)
        reads = float(more_kv[fits - 1]) if fits else 0.0
        self.told_s = self.step_s(view, sequences + fits, kv + reads)
        widths[forked] += np.bincount(order[:fits], minlength=len(forked))
        return widths

    def _left_s(
        self, view: BranchView, forked: np.ndarray, opened: np.ndarray, own: np.ndarray,
        branch_kv: np.ndarray,
    ) -> np.ndarray:  # fmt: skip
        """The device time that is left of each parallel stage; less for one that is old."""
        made, ended = (each[forked] for each in view.phase)
        running = own * opened
        mean = np.where(ended > 0, (made - running) / np.maximum(ended, 1), self.first_length)
        left = np.maximum(opened * mean - running, opened.astype(float))
        _, per_sequence_s, per_token_s, _ = self.fit.terms()
        cost_s = per_sequence_s + per_token_s * branch_kv + 1e-12
        return left * cost_s / (1.0 + view.waited[forked] / self.age_steps)

    def _most(
        self, view: BranchView, sequences: int, kv: float, more_kv: np.ndarray, limit_s: float
    ) -> int:
        """How many branches, in order, fit: the step only becomes longer with each."""
        low, high = 0, len(more_kv)  # all of them are known not to fit
        while high - low > 1:
            middle = (low + high) // 2
            if self.step_s(view, sequences + middle, kv + more_kv[middle - 1]) <= limit_s:
                low = middle
            else:
                high = middle
        return low


__all__ = ["Taper"]
