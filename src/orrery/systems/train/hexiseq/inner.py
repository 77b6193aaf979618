"""The inner level: head counts and shard lengths for given groups, by bisection on the step time.

Each group has a curve: what its step takes by the rows that it gets, when its members share the
heads and the rows as their rates and memories allow. For a step time T a group can take so many
rows; the least T at which all groups together take the whole sequence is found by bisection. Rows
are then rounded to units and heads are whole by construction, and single units and heads move
while that makes the slowest group faster.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from orrery.systems.train.problems.split_costs import Cluster, Floats, Parts, StepModel, combine
from orrery.systems.train.problems.splits import Groups, Split

# Points of a curve between no rows and all rows; linear between them, as the model nearly is.
POINTS = 65
BISECTIONS = 60
# Up to so many ranks, rounding and polishing look at every move, and beyond at the slowest group's.
FEW = 6
# Units that move at once, as shares of a rank's mean, from coarse to fine.
STRIDES = (4, 16, 64, 256, 1024)
SAME = 1e-9
# What heads may be dealt by: how fast members are, their memory, their links to the others.
DEALS = ("rate", "room", "link")
# Seconds for each byte beyond the memory: more than any step takes.
OVERFULL = 1e3
# With so much more time after a head has moved, no moving of rows makes up for it.
HOPELESS = 1.25


class Curve(NamedTuple):
    """One group by the rows that it gets: the rows of its members, and what they take."""

    heads: tuple[int, ...]  # of the members, in order
    rows: Floats  # the points
    shares: Floats  # (points, members)
    parts: Parts  # (points, 1)
    most: float  # rows that fit


def deal_heads(heads: int, rates: Sequence[float], caps: Sequence[int]) -> list[int] | None:
    """Whole heads so that the slowest member is as fast as it can be; None where caps are short.

    Each next head goes to the member that would be through with it first.

    >>> deal_heads(8, [3.0, 1.0], [8, 8]), deal_heads(4, [1.0, 1.0], [1, 2])
    ([6, 2], None)
    """
    counts = [0] * len(rates)
    queue = [(1 / rate, i) for i, rate in enumerate(rates) if caps[i] > 0]
    heapq.heapify(queue)
    for _ in range(heads):
        if not queue:
            return None
        _, i = heapq.heappop(queue)
        counts[i] += 1
        if counts[i] < caps[i]:
            heapq.heappush(queue, ((counts[i] + 1) / rates[i], i))
    return counts


def fill(total: Floats, weights: Floats, caps: Floats) -> Floats:
    """Shares of each total in proportion to the weights, none above its cap.

    What exceeds a cap goes to the others. Where all caps together are too small, all are full.

    >>> fill(np.array([10.0]), np.array([1.0, 1.0]), np.array([[3.0, 9.0]])).tolist()
    [[3.0, 7.0]]
    """
    found = np.zeros(caps.shape)
    open_ = np.ones(caps.shape, bool)
    for _ in range(caps.shape[1]):
        left = total - np.where(open_, 0.0, found).sum(axis=1)
        weight = np.where(open_, weights, 0.0)
        whole = weight.sum(axis=1)
        share = np.maximum(left, 0)[:, None] * weight / np.where(whole > 0, whole, 1)[:, None]
        found = np.where(open_, np.minimum(share, caps), found)
        over = open_ & (share > caps)
        if not over.any():
            break
        open_ &= ~over
    return found


class Inner:
    """Solves groupings of one cluster; curves are kept, since groupings share their groups."""

    def __init__(self, cluster: Cluster, unit: int) -> None:
        self.cluster, self.unit = cluster, unit
        self.job = cluster.job
        self.units = self.job.tokens // unit
        self._curves: dict[tuple[tuple[int, ...], str], Curve] = {}
        self._moved: dict[tuple[Groups, tuple[int, ...], bool], tuple[float, Split]] = {}

    # -- curves

    def curve(self, group: tuple[int, ...], by: str) -> Curve:
        """The curve of a group whose heads go by "rate", "room" or "link"."""
        key = (group, by)
        if key not in self._curves:
            self._curves[key] = self._curve(group, by)
        return self._curves[key]

    def _curve(self, group: tuple[int, ...], by: str) -> Curve:
        cluster, job, here = self.cluster, self.job, list(group)
        rate, room_B = cluster.rate[here], np.maximum(cluster.room_B[here], 0.0)
        expected = job.tokens * rate.sum() / cluster.rate.sum()
        a_head_B = 4.0 * job.head_dim * job.item_B * (1 + job.groups / job.heads)
        caps = np.minimum(room_B / max(a_head_B * expected, 1e-9), job.heads).astype(int)
        weights = {"rate": rate, "room": room_B + 1.0, "link": self._reach(here)}[by]
        heads = deal_heads(job.heads, weights.tolist(), caps.tolist())
        if heads is None:  # too little memory for the rows that are expected: it gets fewer
            heads = deal_heads(job.heads, weights.tolist(), [job.heads] * len(here))
        assert heads is not None
        every = np.zeros(cluster.size, int)
        every[here] = heads
        model = cluster.model((group,), tuple(every.tolist()))
        points = np.linspace(0, job.tokens, POINTS)
        # Two blocks of the ring lie beside the own rows; none is expected to be longer than those.
        held_B = model.head_B()[here] + 4.0 * job.head_dim * job.item_B * model.kv_heads[here]
        caps_rows = np.maximum(room_B - points[:, None] * held_B, 0) / max(job.row_B, 1e-9)
        shares = fill(points, rate, caps_rows)
        fits = (shares.sum(axis=1) >= points * (1 - 1e-12)) & (
            points[:, None] * held_B <= room_B).all(axis=1)  # fmt: skip
        most = float(points[fits].max()) if fits.any() else 0.0
        rows = np.zeros((POINTS, cluster.size))
        rows[:, here] = shares
        return Curve(tuple(heads), points, shares, model.parts(rows), most)

    def _reach(self, here: list[int]) -> Floats:
        """How well each member is joined to the others of its group."""
        if len(here) == 1:
            return np.ones(1)
        width = self.cluster.bandwidth_Bps[np.ix_(here, here)]
        return np.asarray(np.where(np.isfinite(width), width, 0.0).sum(axis=1))

    # -- one grouping

    def solve(self, groups: Groups) -> tuple[float, Split] | None:
        """The best heads and rows found for a grouping, and the time; None where none fits."""
        found, seen = None, set[tuple[int, ...]]()
        few = self.cluster.size <= FEW
        for by in DEALS if few else DEALS[:2]:
            if by == "room" and found is not None and not few:
                break
            curves = [self.curve(group, by) for group in groups]
            dealt = tuple(count for curve in curves for count in curve.heads)
            if dealt in seen:
                continue
            seen.add(dealt)
            split = self._start(groups, curves)
            if split is not None and few:
                split = self.polish(split)[1]
            if split is None or not self.cluster.fits(split):
                continue
            took = self.time(split)
            if found is None or took < found[0]:
                found = (took, split)
        return found

    def _start(self, groups: Groups, curves: Sequence[Curve]) -> Split | None:
        """Heads as the curves deal them, and rows by bisection."""
        heads = [0] * self.cluster.size
        for group, curve in zip(groups, curves, strict=True):
            for rank, count in zip(group, curve.heads, strict=True):
                heads[rank] = count
        exact = self._bisect(groups, tuple(heads), curves)
        if exact is None:
            if self.cluster.size > FEW:
                return None
            # Where bisection finds no room, polishing may: begin with rows by memory.
            room = np.maximum(self.cluster.room_B, 1.0)
            exact = self.job.tokens * room / room.sum()
        return self._round(groups, tuple(heads), exact)

    def _bisect(
        self, groups: Groups, heads: tuple[int, ...], curves: Sequence[Curve]
    ) -> Floats | None:
        """Rows of every rank, not yet whole, at the least time that takes them all."""
        job, cluster = self.job, self.cluster
        most = np.array([curve.most for curve in curves])
        if most.sum() < job.tokens:
            return None
        model = cluster.model(groups, heads)
        rows = (job.tokens * cluster.rate / cluster.rate.sum())[None]
        tables = self._tables(model.parts(rows), model.again, curves)
        low, high = 0.0, float(tables[:, -1].max())
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            taken = float(np.minimum(_rows_at(middle, tables, job.tokens), most).sum())
            low, high = (low, middle) if taken >= job.tokens else (middle, high)
        counts = np.minimum(_rows_at(high, tables, job.tokens), most).tolist()
        exact = np.zeros(cluster.size)
        for group, count, curve in zip(groups, counts, curves, strict=True):
            for place, rank in enumerate(group):
                exact[rank] = np.interp(count, curve.rows, curve.shares[:, place])
        whole = exact.sum()
        return exact * (job.tokens / whole) if whole > 0 else None

    def _tables(self, whole: Parts, again: float, curves: Sequence[Curve]) -> Floats:
        """The time of each group at the points of its curve, with the ring of this grouping."""
        tables = []
        for place, curve in enumerate(curves):
            parts = curve.parts._replace(
                ring_forward=whole.ring_forward[:, place : place + 1],
                ring_backward=whole.ring_backward[:, place : place + 1],
            )
            tables.append(combine(parts, again)[:, 0])
        return np.maximum.accumulate(np.array(tables), axis=1)

    # -- whole units

    def _round(self, groups: Groups, heads: tuple[int, ...], exact: Floats) -> Split | None:
        """Whole units near the exact rows; what is left goes where it costs least."""
        model = self.cluster.model(groups, heads)
        units = np.floor(exact / self.unit + 1e-9)
        left = int(self.units - units.sum())
        if left > 0 and self.cluster.size > FEW:
            order = np.argsort(units - exact / self.unit, kind="stable")
            units[order[:left]] += 1
            left = 0
        for _ in range(left):
            cases = units + np.eye(len(units))
            units = cases[self._best(model, cases * self.unit)]
        rows = units * self.unit
        rest = self.job.tokens - int(rows.sum())
        if rest:
            cases = rows + rest * np.eye(len(rows))
            rows = cases[self._best(model, cases)]
        split = Split(groups, tuple(int(count) for count in rows), heads)
        if self.cluster.size <= FEW or self.cluster.fits(split):
            return split
        return self._squeeze(split)

    def _squeeze(self, split: Split) -> Split | None:
        """Rounding may overfill a device by a unit: move such units to where there is room."""
        for _ in range(4 * self.cluster.size):
            short_B = self.cluster.shortfall_B(split)
            if (short_B <= 0).all():
                return split
            source, target = int(short_B.argmax()), int(short_B.argmin())
            rows = list(split.rows)
            moved = min(self.unit, rows[source])
            if not moved or short_B[target] >= 0:
                return None
            rows[source] -= moved
            rows[target] += moved
            split = split._replace(rows=tuple(rows))
        return None

    def _best(self, model: StepModel, cases: Floats) -> int:
        """The case with the fastest slowest group; of equals, that with the least in all."""
        worst, total = self._judge(model, cases)
        near = worst <= worst.min() * (1 + SAME)
        return int(np.where(near, total, np.inf).argmin())

    def _judge(self, model: StepModel, cases: Floats) -> tuple[Floats, Floats]:
        """The time of the slowest group, and the squares of all; worse by far without memory."""
        times = model.times(cases)
        over_B = np.maximum(model.memory(cases) - self.cluster.room_B, 0).sum(axis=1)
        return times.max(axis=1) + OVERFULL * over_B, (times**2).sum(axis=1)

    def time(self, split: Split) -> float:
        """The step time of a split by the model, for one layer."""
        rows = np.array([split.rows], float)
        return float(self.cluster.model(split.groups, split.heads).times(rows).max())

    # -- polishing

    def polish(self, split: Split, thorough: bool = False) -> tuple[float, Split]:
        """Move rows between ranks and heads between members while the step gets faster.

        To be `thorough`, rows of few ranks move two at a time too, where one alone does not help.
        """
        best = self._cost(split)
        while True:
            now, moved = self._move_heads(*self._move_rows(split, thorough))
            if now >= best * (1 - 1e-6):
                return (now, moved) if now < best else (best, split)
            best, split = now, moved

    def best_order(self, split: Split) -> Split:
        """The split with the ring in its best order, where there are few orders."""
        first, *others = split.groups
        if len(others) > FEW - 1:
            return split
        every = (split._replace(groups=(first, *order)) for order in itertools.permutations(others))
        return min(every, key=lambda one: (self._cost(one), one.groups))

    def _cost(self, split: Split) -> float:
        model = self.cluster.model(split.groups, split.heads)
        return float(self._judge(model, np.array([split.rows], float))[0][0])

    def _move_rows(self, split: Split, thorough: bool = False) -> tuple[float, Split]:
        """Units of rows from rank to rank, the best move first; with what it then costs.

        What was found for some heads is kept, since polishing comes by the same heads often.
        """
        key = (split.groups, split.heads, thorough)
        found = self._moved.get(key)
        if found is None or self.cluster.size > FEW:
            found = self._moved[key] = self._moving(split, thorough)
        return found

    def _moving(self, split: Split, thorough: bool) -> tuple[float, Split]:
        model = self.cluster.model(split.groups, split.heads)
        rows, size = np.array(split.rows, float), self.cluster.size
        mean = max(self.job.tokens / size, 1.0)
        strides = sorted({max(round(mean / s / self.unit), 1) * self.unit for s in STRIDES})
        cost = math.inf
        for stride in reversed(strides):
            for _ in range(4 * size if size <= FEW else 12):
                ends = self._ends(model, split, rows)
                found = self._step(model, rows, _moves(size, *ends) * stride)
                if found is None and thorough and size <= FEW:
                    # One move alone may make another group the slowest.
                    found = self._step(model, rows, _twice(_moves(size, *ends)) * stride)
                if found is None:
                    break
                cost, rows = found
        if cost == math.inf:
            cost = float(self._judge(model, rows[None])[0][0])
        return cost, split._replace(rows=tuple(int(count) for count in rows))

    def _step(self, model: StepModel, rows: Floats, moves: Floats) -> tuple[float, Floats] | None:
        """The best of some moves of rows and its cost; None where none gains."""
        cases = np.concatenate([rows[None], rows + moves])
        cases = cases[(cases >= 0).all(axis=1)]
        worst, total = self._judge(model, cases)
        near = worst <= worst.min() * (1 + SAME)
        at = int(np.where(near, total, np.inf).argmin())
        gains = worst[at] < worst[0] * (1 - SAME) or total[at] < total[0] * (1 - SAME)
        return (float(worst[at]), cases[at]) if at and gains else None

    def _ends(self, model: StepModel, split: Split, rows: Floats) -> tuple[Any, Any]:
        """From whom and to whom rows may move: all, or of many those where it may matter."""
        every = np.arange(self.cluster.size)
        if self.cluster.size <= FEW:
            return every, every
        load = rows / self.cluster.rate
        worst = split.groups[int(model.times(rows[None])[0].argmax())]
        givers = sorted(worst, key=lambda rank: (-load[rank], rank))
        takers = [min(group, key=lambda rank: (load[rank], rank)) for group in split.groups]
        return np.array(givers[:2]), np.array(takers)

    def _move_heads(self, now: float, split: Split) -> tuple[float, Split]:
        """One head, or all, from one member to another, where it helps."""
        for trial in self._head_moves(split):
            # A device that is overfull before rows have moved need not be after.
            if self.cluster.size <= FEW and self.time(trial) < HOPELESS * now:
                took, trial = self._move_rows(trial)
            else:
                took = self._cost(trial)
            if took < now * (1 - 1e-6):
                return took, trial
        return now, split

    def _head_moves(self, split: Split) -> Iterator[Split]:
        """The slowest member of a group gives to its fastest first; of many, four to four."""
        few, groups = self.cluster.size <= FEW, split.groups
        if not few:
            model = self.cluster.model(groups, split.heads)
            groups = (groups[int(model.times(np.array([split.rows], float))[0].argmax())],)
        most = FEW if few else 4
        for group in groups:
            load = {rank: split.heads[rank] / self.cluster.rate[rank] for rank in group}
            givers = sorted((r for r in group if split.heads[r]), key=lambda r: (-load[r], r))
            takers = sorted(group, key=lambda r: (load[r], r))
            for giver, taker in itertools.product(givers[:most], takers[:most]):
                for count in sorted({1, split.heads[giver]}) if giver != taker else ():
                    heads = list(split.heads)
                    heads[giver] -= count
                    heads[taker] += count
                    yield split._replace(heads=tuple(heads))


def _moves(size: int, sources: Any, targets: Any) -> Floats:
    """A unit from each source to each target, as what it changes at each rank."""
    giver, taker = np.repeat(sources, len(targets)), np.tile(targets, len(sources))
    apart = giver != taker
    moves = np.zeros((int(apart.sum()), size))
    case = np.arange(len(moves))
    moves[case, giver[apart]] -= 1
    moves[case, taker[apart]] += 1
    return moves


def _twice(moves: Floats) -> Floats:
    """Two moves at once, in all ways."""
    one, other = np.triu_indices(len(moves))
    return np.asarray(moves[one] + moves[other])


def _rows_at(time: float, tables: Floats, tokens: int) -> Floats:
    """How many rows each group gets through in a time, by the line between two points."""
    below = np.clip((tables <= time).sum(axis=1) - 1, 0, POINTS - 2)
    here = np.arange(len(tables))
    low, high = tables[here, below], tables[here, below + 1]
    part = np.clip((time - low) / np.where(high > low, high - low, 1.0), 0.0, 1.0)
    return np.asarray((below + part) * (tokens / (POINTS - 1)))


__all__ = ["Curve", "Inner", "deal_heads", "fill"]
