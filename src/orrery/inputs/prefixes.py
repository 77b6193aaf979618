"""Sessions and shared prefixes for generated requests: who comes back, and what they bring again.

Requests come at given times. Each either opens a session or follows up on an earlier request, which
is found by its age: a gap is drawn from the measured ones, and of the sessions that may go on, the
one last heard of nearest to that long ago does. Who has come back is likelier to come again, as
measured turn by turn (`again`). A follow-up either continues (its prompt is the earlier prompt, the
earlier answer and something new) or branches (it keeps a part of the earlier prompt). So the share
of follow-ups, their gaps, their growth and what they share are as measured at any rate of arrivals.
"""

from __future__ import annotations

import bisect
from typing import Any, NamedTuple

import numpy as np

from orrery.base.rand import Stream
from orrery.inputs import draws
from orrery.inputs.tables import Lengths, drawn
from orrery.inputs.workload import F64, I64

# So many more sessions are open than will go on, so that one of about the right age is found.
SLACK = 1.3


class Sharing(NamedTuple):
    """Measured facts of sessions; tables are quantiles at `tables.LEVELS`.

    `follow_up` is the share of requests that follow up on others, `again[k]` the share of sessions
    with k + 1 turns that go on. Lengths are told apart at `length_edges`: `length_again` has two
    rows, for first and for later turns, with the share of each length that is followed up, next to
    the mean of the row; `continues` is, by length, the share of follow-ups that keep the whole
    prompt. The others branch: they keep `kept_share` of the earlier prompt's blocks, at least
    `strict` less than all, and add `branch_tokens`. `growth_tokens` are two tables: for the second
    turn of a session, and for later ones.
    """

    block_tokens: int
    common_blocks: int
    follow_up: float
    again: Any
    length_edges: Any
    length_again: Any
    continues: Any
    gap_s: Any
    growth_tokens: Any
    kept_share: Any
    branch_tokens: Any
    strict: int
    max_tokens: int


def weave(
    arrival_s: F64, fresh: Lengths, follow: Lengths, facts: Sharing, seed: int, owner: str
) -> dict[str, Any]:
    """Columns of requests at these times: lengths, block ids and sessions."""
    count = len(arrival_s)
    stream = Stream(seed, owner, "sessions")
    comes_back = draws.uniforms(stream, count) < facts.follow_up
    way = draws.uniforms(stream, count).tolist()
    gaps = drawn(facts.gap_s, stream, count)
    grows = [drawn(table, stream, count) for table in facts.growth_tokens]
    kept = drawn(facts.kept_share, stream, count)
    branch = drawn(facts.branch_tokens, stream, count)
    made, out = fresh.draw(Stream(seed, owner, "fresh lengths"), count)
    second = draws.uniforms(stream, count)
    size = facts.block_tokens
    session = np.arange(count)
    shared = np.zeros(count, np.int64)
    source = np.full(count, -1)
    mood = draws.uniforms(stream, count).tolist()
    likely = _Likely(facts)
    turn = [0] * count
    # Whether a session may still go on from a request.
    open_ = [mood[i] < likely.after(0, int(made[i])) for i in range(count)]
    wanted = np.searchsorted(arrival_s, arrival_s - gaps).tolist()
    for i in np.flatnonzero(comes_back).tolist():
        before = _nearest(wanted[i], i, open_)
        if before < 0:
            continue
        full = int(made[before]) // size
        # A prompt of one block has nothing to branch from.
        if way[i] < likely.continues(int(made[before])) or full <= facts.common_blocks + 1:
            total = int(made[before]) + int(out[before]) + int(grows[min(turn[before], 1)][i])
            # A prompt that has outgrown the model's context ends its session.
            if total > facts.max_tokens:
                continue
            made[i] = max(total, full * size + 1)
            shared[i] = full
        else:
            least = facts.common_blocks + 1
            shared[i] = min(full - facts.strict, max(least, round(float(kept[i]) * full)))
            made[i] = min(facts.max_tokens, shared[i] * size + max(1, int(branch[i])))
        open_[before] = False
        turn[i] = turn[before] + 1
        open_[i] = mood[i] < likely.after(turn[i], int(made[i]))
        source[i], session[i] = before, session[before]
        out[i] = follow.answer(int(made[i]), float(second[i]))
    ids, starts = _blocks(made, shared, source, size, facts.common_blocks)
    return {
        "input_tokens": made,
        "output_tokens": out,
        "block_ids": ids,
        "block_starts": starts,
        "block_tokens": size,
        "session": np.unique(session, return_inverse=True)[1],
    }


class _Likely:
    """How likely a session is open to go on, by its turns and its length."""

    def __init__(self, facts: Sharing) -> None:
        self.by_turn = [SLACK * each for each in facts.again]
        self.edges = list(facts.length_edges)
        self.by_length = facts.length_again
        self.whole = facts.continues

    def after(self, turn: int, tokens: int) -> float:
        by_length = self.by_length[min(turn, 1)][bisect.bisect_right(self.edges, tokens)]
        return float(self.by_turn[min(turn, len(self.by_turn) - 1)] * by_length)

    def continues(self, tokens: int) -> float:
        return float(self.whole[bisect.bisect_right(self.edges, tokens)])


def _nearest(place: int, end: int, open_: list[bool]) -> int:
    """The request before `end` nearest to `place` whose session may go on; -1: none."""
    below = min(place, end - 1)
    above = below + 1
    while below >= 0 or above < end:
        if above < end:
            if open_[above]:
                return above
            above += 1
        if below >= 0:
            if open_[below]:
                return below
            below -= 1
    return -1


def _blocks(made: I64, shared: I64, source: Any, size: int, common: int) -> tuple[I64, I64]:
    """Block ids: what is shared is copied from its source, the rest is new."""
    held = -(-made // size)
    starts = np.concatenate([[0], np.cumsum(held)])
    ids = np.empty(int(starts[-1]), np.int64)
    fresh = common
    for i, (begin, end) in enumerate(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)):
        known = min(int(shared[i]), end - begin)
        if source[i] >= 0 and known:
            where = starts[source[i]]
            ids[begin : begin + known] = ids[where : where + known]
        else:
            known = min(common, end - begin - 1)  # a partial block is never common ground
            ids[begin : begin + known] = np.arange(known)
        new = end - begin - known
        ids[begin + known : end] = np.arange(fresh, fresh + new)
        fresh += new
    return ids, starts
