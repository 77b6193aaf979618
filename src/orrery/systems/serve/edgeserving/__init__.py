"""EdgeServing: the model, the exit and the batch that harm all queues the least, turn by turn."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import numpy as np
import numpy.typing as npt

from orrery.parts import Count, Fraction, NonNegative, Positive
from orrery.systems.serve.edgeserving.score import (
    State,
    coming_cost,
    filled,
    late_share,
    make_plan,
    waiting_cost,
)
from orrery.systems.serve.problems.dnn_edge_serving.profile import Profile
from orrery.systems.serve.problems.dnn_edge_serving.turns import Drop, EdgePolicy, Late, Turn, View

__all__ = ["EdgeServing"]

F64 = npt.NDArray[np.float64]
# The share of the accuracy weight that is left when the load leaves no room for depth.
LEAST_WORTH = 0.2
# How much of an exit's own correction stays with every batch of it.
KEEP_EXTRA = 0.99
# How often the pace is worked out anew, as a share of the tightest usual time to a deadline.
PACE_EVERY = 0.25


class EdgeServing(EdgePolicy):
    """Choose model, exit and batch of every turn together, by a score over all queues.

    EdgeServing: Deadline-Aware Multi-DNN Serving at the Edge, 2026.

    How it works. A candidate (m, e, b) has a predicted time T. All queues are moved forward by T:
    the b requests leave; the others follow in batches, the queue with the earliest deadline first,
    at the candidate's depth; requests expected to arrive meanwhile join them. Each request then
    has a predicted lateness and costs nothing while its slack is above `margin`, 1 when it is just
    in time, and more in proportion after that. To this comes what it costs to go on at this depth:
    the share of newcomers that a steady round of all models would bring home late, and for every
    request the accuracy given away, weighted less as the load leaves less room for depth. The
    candidate with the least sum runs; the earliest deadline breaks ties. Times are the profile's,
    corrected online by a factor for each model, and a little more for each exit, that follow what
    batches really took, with a reserve for their spread. A request that no exit can save no longer
    counts: it fills free places in a batch, goes last, or is dropped, as `late` says. A decision
    costs O(C E B N) array steps for C models with work, E exits, B batch sizes and at most
    `horizon` requests N.

    Knobs: `late`; `margin`, the slack below which a request begins to cost, as a share of its
    model's usual time to the deadline; `accuracy_weight`, what an answer of the shallowest exit
    costs against one just in time, on an idle executor; `headroom`, how many usual times to the
    deadline a newcomer may take in the steady round before it is counted late; `horizon`;
    `memory`, over how many of the longest time to a deadline arrivals are averaged; `reserve`, how
    many mean deviations are added to a predicted time; `gain`, the weight of the newest batch in
    the online correction. Switches: `early_exit` (off: full depth only), `own_queue_only` (the
    score sees the queue of its own model alone, and models are chosen by their earliest deadline),
    `online` (off: the profile is believed).

    **Differs from the paper.** Only its abstract was at hand: the form of the score, the prediction
    of the remaining queues, the online update and what becomes of hopeless requests are our design.
    The paper's platforms and networks are not here; the tables are measured on small networks.

    >>> EdgeServing(early_exit=False).changed_knobs()
    {'early_exit': False}
    """

    late: Late = "last"
    margin: Positive = 0.3
    accuracy_weight: NonNegative = 0.8
    headroom: Positive = 2.0
    horizon: Count = 64
    memory: Positive = 4.0
    reserve: NonNegative = 1.0
    gain: Fraction = 0.1
    early_exit: bool = True
    own_queue_only: bool = False
    online: bool = True

    def start(self) -> None:
        self.known: Profile | None = None

    # -- what is learnt

    def _meet(self, profile: Profile) -> None:
        """Begin with a profile that was not seen before."""
        count = len(profile.models)
        self.known = profile
        self.factor, self.spread = np.ones(count), np.zeros(count)
        self.extra = np.zeros((count, max(map(len, profile.accuracy))))
        self.rate_per_s, self.counted = np.zeros(count), np.zeros(count)
        self.seen_s, self.paced_s = 0.0, -np.inf
        self.sizes = np.array(profile.batches)
        self.table, right = filled(*profile.arrays())
        self.work_s = np.array([profile.work_s(m) for m in range(count)])
        last = np.array([profile.exits(m) - 1 for m in range(count)])
        depth = np.arange(right.shape[1])
        # Which exits may be taken, and how much of the accuracy gap each gives away.
        self.there = depth <= last[:, None] if self.early_exit else depth == last[:, None]
        gap = np.maximum(right[:, -1:] - right[:, :1], 1e-9)
        self.lost = ((right[:, -1:] - right) / gap).T  # [E, M]
        self.first = np.zeros(count, int) if self.early_exit else last
        self.each = np.arange(count)

    def _learn(self, view: View) -> None:
        if self.known is not view.profile:
            self._meet(view.profile)
        if self.online:
            for done in view.finished:
                if done.alone:
                    self._correct(view.profile, done)
        passed_s = view.now_s - self.seen_s
        if passed_s > 0:
            arrived = np.array(view.arrived, float)
            keep = np.exp(-passed_s / (self.memory * max(view.slo_s)))
            now_per_s = (arrived - self.counted) / passed_s
            self.rate_per_s = keep * self.rate_per_s + (1 - keep) * now_per_s
            self.counted, self.seen_s = arrived, view.now_s

    def _correct(self, profile: Profile, done: Any) -> None:
        m, e = done.model, done.exit
        told_s = profile.seconds[m][e][profile.place(done.batch)]
        off = done.seconds / told_s - self.factor[m] - self.extra[m, e]
        self.factor[m] += self.gain * off
        # What an exit takes beyond its model's factor (a fixed overhead weighs more on a short
        # exit) is learnt too, and forgotten where the factor alone explains it.
        self.extra[m, e] = KEEP_EXTRA * self.extra[m, e] + 0.25 * self.gain * off
        self.spread[m] += self.gain * (abs(off) - self.spread[m])

    def predicted(self) -> F64:
        """The seconds T[m][e][b] that are believed now."""
        reserved = self.factor + self.reserve * self.spread
        believed: F64 = self.table * (reserved[:, None] + self.extra)[:, :, None]
        return believed

    # -- the decision

    def next_turn(self, view: View) -> Turn | Drop | None:
        """The candidate that does the least predicted harm."""
        self._learn(view)
        waiting = view.waiting()
        if not waiting:
            return None
        times_s = self.predicted()
        alone_s = times_s[self.each, self.first, 0]
        ends_s = (view.now_s + alone_s).tolist()
        lost = [
            bisect_left(queue, end_s)
            for queue, end_s in zip(view.deadlines_s, ends_s, strict=True)
        ]  # fmt: skip
        if self.late == "drop":
            for m in waiting:
                if lost[m]:
                    return Drop(m, lost[m])
        elif self.late == "serve":
            lost = [0] * len(lost)
        hopeful = [m for m in waiting if lost[m] < len(view.deadlines_s[m])]
        if not hopeful:
            return self._best_effort(view, waiting)
        return self._least(view, hopeful, lost, self._scores(view, hopeful, lost, times_s, alone_s))

    def _best_effort(self, view: View, waiting: list[int]) -> Turn:
        """Nothing can be saved: clear the longest queue through the fastest exit allowed."""
        model = min(waiting, key=lambda m: (-len(view.deadlines_s[m]), view.deadlines_s[m][0]))
        exit, waits = int(self.first[model]), len(view.deadlines_s[model])
        row = view.profile.seconds[model][exit]
        rates = [min(b, waits) / t for b, t in zip(view.profile.batches, row, strict=True)]
        return Turn(model, exit, view.profile.batches[rates.index(max(rates))])

    def _scores(
        self, view: View, models: list[int], lost: list[int], times_s: F64, alone_s: F64
    ) -> F64:
        """The sum of a candidate's costs, [C, E, B]; inf where it cannot be."""
        # A queue is looked at as far as the horizon; what is behind that changes no decision.
        queues = [
            queue[gone : gone + self.horizon]
            for queue, gone in zip(view.deadlines_s, lost, strict=True)
        ]
        slo_s = np.array(view.slo_s)
        pace = self._pace(view.now_s, times_s, slo_s)
        # Sizes beyond the first that holds the longest queue are nothing but slower.
        most = bisect_left(view.profile.batches, max(map(len, queues))) + 1
        state = State(
            view.now_s, queues, models, self.sizes[:most], times_s[:, :, :most], slo_s,
            self.rate_per_s, self.margin, self.own_queue_only,
        )  # fmt: skip
        plan = make_plan(state)
        total = waiting_cost(state, plan, self.horizon)
        total += coming_cost(state, plan, alone_s)
        expected = self.rate_per_s * slo_s.mean()
        worth = self.accuracy_weight * max(1.0 - float(self.rate_per_s @ self.work_s), LEAST_WORTH)
        onward = pace * expected + worth * self.lost * (plan.counts + expected)  # [E, M]
        whole = onward.T[models] if self.own_queue_only else onward.sum(axis=1)
        total += whole[..., None]
        smaller = np.concatenate([[0], state.sizes[:-1]])
        useful = smaller < plan.counts[models][:, None]  # [C, B]
        return np.where(self.there[models][:, :, None] & useful[:, None, :], total, np.inf)

    def _pace(self, now_s: float, times_s: F64, slo_s: F64) -> F64:
        """The share of newcomers late at each depth; worked out now and then, for it is slow."""
        if now_s - self.paced_s >= PACE_EVERY * float(slo_s.min()):
            self.pace = late_share(times_s, self.sizes, slo_s, self.rate_per_s, self.headroom)
            self.paced_s = now_s
        return self.pace

    def _least(self, view: View, models: list[int], lost: list[int], scores: F64) -> Turn:
        """The least score; among equals the earliest deadline, then the deeper exit."""
        firsts = [view.deadlines_s[m][lost[m]] for m in models]
        rivals = list(range(len(models)))
        if not self.own_queue_only:
            lowest = scores.min(axis=(1, 2))
            edge = lowest.min() * (1 + 1e-12) + 1e-12
            rivals = [i for i in rivals if lowest[i] <= edge]
        c = min(rivals, key=lambda i: (firsts[i], models[i]))
        exits, sizes = scores.shape[1:]
        # Turned round, so that among equals the deeper exit and the larger batch come first.
        flat = int(np.argmin(scores[c, ::-1, ::-1]))
        exit, k = exits - 1 - flat // sizes, sizes - 1 - flat % sizes
        batch, model = view.profile.batches[k], models[c]
        hopeful = len(view.deadlines_s[model]) - lost[model]
        # Hopeless requests fill what places are left.
        return Turn(model, exit, batch, max(lost[model] - max(batch - hopeful, 0), 0))
