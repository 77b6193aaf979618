"""The stability score: what each candidate (model, exit, batch) does to all queues, in arrays.

Axes are named by letters: C candidate models, E exits, B batch sizes, M models, N requests.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

# At which shares of a span the requests that are still to come are thought to arrive.
ARRIVES_AT = np.array([1 / 6, 1 / 2, 5 / 6])
# A round is predicted by iteration; where it grows without end, this many steps make it long.
ROUNDS = 5


class State(NamedTuple):
    """What is waiting and what is believed, when a decision is due."""

    now_s: float
    queues: list[tuple[float, ...]]  # [M] hopeful deadlines, ascending
    models: list[int]  # [C] models with hopeful requests
    sizes: I64  # [B]
    times_s: F64  # [M, E, B]
    slo_s: F64  # [M]
    rate_per_s: F64  # [M]
    margin: float
    own_only: bool


class Plan(NamedTuple):
    """What follows each candidate: one batch of every queue, the earliest deadline first."""

    ends_s: F64  # [C, E, B] when the candidate ends, from now
    waits_s: F64  # [C, E, B, M] from then to the end of each queue's next batch
    round_s: F64  # [E] one batch of every queue
    counts: I64  # [M]


def penalty(late: F64) -> F64:
    """What lateness costs, in margins: 0 up to -1, 1 at 0; a parabola, then its tangent.

    >>> penalty(np.array([-2.0, -1.0, -0.5, 0.0, 1.0])).tolist()
    [0.0, 0.0, 0.25, 1.0, 3.0]
    """
    near = late + 1.0
    np.minimum(near, 1.0, out=near)
    np.maximum(near, 0.0, out=near)
    near *= near
    late = np.maximum(late, 0.0)
    late *= 2.0
    near += late
    return near


def filled(seconds: F64, right: F64) -> tuple[F64, F64]:
    """The tables where a model with fewer exits repeats its last one."""
    seconds, right = seconds.copy(), right.copy()
    for e in range(1, right.shape[1]):
        short = np.isnan(right[:, e])
        seconds[short, e], right[short, e] = seconds[short, e - 1], right[short, e - 1]
    return seconds, right


def make_plan(state: State) -> Plan:
    """Predict what follows each candidate, with the remaining queues at the candidate's depth."""
    models, sizes = np.array(state.models), state.sizes
    counts = np.array([len(queue) for queue in state.queues])
    ends_s = state.times_s[models]
    last = len(sizes) - 1
    place = np.minimum(np.searchsorted(sizes, counts), last)
    batch_s = state.times_s[np.arange(len(counts)), :, place].T * (counts > 0)  # [E, M]
    left = np.maximum(counts[models][:, None] - sizes, 0)  # [C, B]
    place = np.minimum(np.searchsorted(sizes, left), last)
    rest_s = ends_s[np.arange(len(models))[:, None], :, place].swapaxes(1, 2)
    rest_s = rest_s * (left > 0)[:, None, :]  # [C, E, B]: a second batch of the candidate's queue
    round_s = batch_s.sum(axis=1)
    if state.own_only:
        return Plan(ends_s, np.repeat(rest_s[..., None], len(counts), axis=3), round_s, counts)
    heads = np.array([queue[0] if queue else np.inf for queue in state.queues])
    next_head = np.array([
        [queue[size] if size < len(queue) else np.inf for size in sizes.tolist()]
        for queue in (state.queues[m] for m in state.models)
    ])  # fmt: skip
    earlier = heads[:, None] <= heads  # [M', M]: M' is served no later than M
    waits_s = (batch_s @ earlier)[None] - batch_s.T[models][:, :, None] * earlier[models][:, None]
    again = (next_head[:, :, None] <= heads)[:, None]  # [C, 1, B, M]
    waits_s = waits_s[:, :, None, :] + rest_s[..., None] * again
    others = heads <= next_head[:, :, None]  # [C, B, M]
    others[np.arange(len(models)), :, models] = False
    mine_s = np.swapaxes(others @ batch_s.T, 1, 2) + rest_s  # [C, E, B]
    waits_s[np.arange(len(models)), :, :, models] = mine_s
    return Plan(ends_s, waits_s, round_s, counts)


def waiting_cost(state: State, plan: Plan, horizon: int) -> F64:
    """The penalties of the requests that wait, the `horizon` earliest of them, [C, E, B]."""
    queues, sizes = state.queues, state.sizes
    due_s = np.concatenate([np.asarray(queue) for queue in queues])
    owner = np.repeat(np.arange(len(queues)), plan.counts)
    place = np.concatenate([np.arange(count) for count in plan.counts.tolist()])
    if len(due_s) > horizon:
        some = np.argsort(due_s, kind="stable")[:horizon]
        due_s, owner, place = due_s[some], owner[some], place[some]
    own = owner == np.array(state.models)[:, None]  # [C, N]
    # Those of the batch end with it, the others with the next batch of their queue.
    stays = ~(own[:, None, :] & (place < sizes[:, None]))  # [C, B, N]
    late = plan.waits_s[..., owner]
    if plan.counts.max() > sizes[-1]:  # a queue beyond one batch takes several rounds
        taken = np.where(own[:, None, :], sizes[:, None], 0)
        rounds = np.maximum(place - taken, 0) // sizes[-1]
        late += rounds[:, None] * plan.round_s[:, None, None]
    late *= stays[:, None]
    late += plan.ends_s[..., None]
    late -= due_s - state.now_s
    late /= state.margin * state.slo_s[owner]
    cost = penalty(late)
    if state.own_only:
        cost *= own[:, None, None, :]
    total: F64 = cost.sum(axis=3)
    return total


def coming_cost(state: State, plan: Plan, alone_s: F64) -> F64:
    """The penalties of the requests expected while a candidate runs, [C, E, B].

    A request that may come counts for no more than one that is just in time.
    """
    late = plan.ends_s[..., None, None] * (1.0 - ARRIVES_AT)
    late = late + (plan.waits_s + (alone_s - state.slo_s))[..., None]
    late /= (state.margin * state.slo_s)[:, None]
    mean = np.minimum(penalty(late), 1.0).mean(axis=-1)
    mean *= state.rate_per_s
    if state.own_only:
        mean *= (np.arange(len(state.slo_s)) == np.array(state.models)[:, None])[:, None, None]
    total: F64 = mean.sum(axis=-1) * plan.ends_s
    return total


def late_share(times_s: F64, sizes: I64, slo_s: F64, rate_per_s: F64, headroom: float) -> F64:
    """The share of newcomers that would be late if all went on at one depth, [E, M].

    The models take turns; a round is as long as the batches of what arrived during the last one. A
    newcomer waits for a part of a round, drawn evenly, and for its batch. A tight deadline
    overtakes a loose one, so its owner waits for less than a round.
    """
    seen = rate_per_s > 0
    round_s = np.where(seen, times_s[:, :, 0].T, 0.0).sum(axis=1)  # [E]
    for _ in range(ROUNDS):
        comes = rate_per_s * round_s[:, None]  # [E, M]
        batch_s = _between(times_s, sizes, comes) * np.maximum(comes / sizes[-1], 1.0)
        # A model that has less than one request a round sits some rounds out.
        part_s = np.where(seen, batch_s * np.minimum(comes, 1.0), 0.0)
        round_s = part_s.sum(axis=1)
    overtaken = np.minimum(1.0, slo_s[:, None] / slo_s)  # [M, M']
    turn_s = part_s @ overtaken.T  # [E, M]
    over_s = turn_s + batch_s - headroom * slo_s
    share: F64 = np.clip(over_s / np.maximum(turn_s, 1e-12), 0.0, 1.0)
    return share


def _between(times_s: F64, sizes: I64, counts: F64) -> F64:
    """Seconds of batches of fractional size, [E, M]: along the table, flat beyond its ends."""
    if len(sizes) == 1:
        return times_s[:, :, 0].T
    at = np.clip(counts, sizes[0], sizes[-1])
    high = np.clip(np.searchsorted(sizes, at), 1, len(sizes) - 1)
    low = high - 1
    share = (at - sizes[low]) / (sizes[high] - sizes[low])
    e, m = np.indices(counts.shape)
    found: F64 = times_s[m, e, low] * (1 - share) + times_s[m, e, high] * share
    return found
