"""What a split costs: the time model and the memory of a step, for many splits at once.

A group's step is the sum of what its members do one after the other: the matrices of their rows, an
all-to-all from rows to heads, attention of their heads while K and V go round the ring, and an
all-to-all back; forwards, again forwards where layers are recomputed, and backwards. Members wait
for each other at every all-to-all, so of each part the slowest member counts; the ring couples
groups but loosely, so the slowest group gives the step. Transfers take the load of the fullest link
on their way. The planner, the enumeration of all splits and the rivals all ask this one function.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from orrery.models.attention import BACKWARD_FLOPS, FORWARD_FLOPS
from orrery.systems.train.problems.layer_attention import LayerJob
from orrery.systems.train.problems.splits import (
    Groups,
    Split,
    head_ranges,
    kv_range,
    returns,
    routes,
)
from orrery.world import World

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
# Gradients travel in fp32.
GRAD_B = 4
# Models that are kept; one of 128 devices takes some 100 kB.
MOST_MODELS = 256


class Cluster:
    """The devices of a world as a step sees them: rates, memory, links; and the job."""

    def __init__(self, world: World, job: LayerJob) -> None:
        self.job, self.size, self.wiring = job, world.size, world.wiring()
        rate, memory, stream = np.zeros(self.size), np.zeros(self.size), np.zeros(self.size)
        for rank in range(self.size):
            machine = world.machine_of(rank)
            device = machine.accelerators[0] if machine.accelerators else None
            peaks = device.peak_flops if device else {}
            peak = peaks.get(job.dtype) or max(peaks.values(), default=machine.cpu_flops)
            rate[rank] = peak * job.efficiency
            memory[rank] = device.memory_B if device else machine.memory_B
            stream[rank] = device.memory_Bps if device else machine.memory_Bps
        self.rate, self.memory_Bps = rate, stream
        # What is left for rows and heads once weights and the optimiser's state are in.
        self.room_B = job.memory_share * memory - job.state_B(self.size)
        self.capacity_Bps = self.wiring.capacity_Bps
        self._models: dict[Any, StepModel] = {}

    @functools.cached_property
    def ways(self) -> Ints:
        """The links from each rank to each other, -1 where a way has no more."""
        every = [[self.wiring.bulk_path(a, b) for b in range(self.size)] for a in range(self.size)]
        most = max(len(way) for row in every for way in row) or 1
        found = np.full((self.size, self.size, most), -1, np.int64)
        for a, row in enumerate(every):
            for b, way in enumerate(row):
                found[a, b, : len(way)] = way
        return found

    @functools.cached_property
    def latency_s(self) -> Floats:
        """One way, from each rank to each other."""
        size = range(self.size)
        return np.array([[self.wiring.latency(a, b) for b in size] for a in size])

    @functools.cached_property
    def bandwidth_Bps(self) -> Floats:
        """The narrowest link on the way from each rank to each other; infinite to itself."""
        width = np.where(self.ways >= 0, self.capacity_Bps[self.ways], np.inf)
        return np.asarray(width.min(axis=2))

    def model(self, groups: Groups, heads: tuple[int, ...]) -> StepModel:
        """The model of a grouping with its heads; kept, since the search asks again."""
        key = (groups, heads)
        found = self._models.get(key)
        if found is None:
            if len(self._models) >= MOST_MODELS:
                self._models.clear()
            found = self._models[key] = StepModel(self, groups, heads)
        return found

    def step_s(self, split: Split) -> float:
        """The time of a step of one layer, or of the model where the job names one."""
        times = self.model(split.groups, split.heads).times(np.array([split.rows], float))
        return float(times.max()) * self.job.layers

    def shortfall_B(self, split: Split) -> Floats:
        """How much more memory each device would need; at most 0 where it fits."""
        use = self.model(split.groups, split.heads).memory(np.array([split.rows], float))[0]
        return np.asarray(use - self.room_B)

    def fits(self, split: Split) -> bool:
        """Whether every device holds its share."""
        return bool((self.shortfall_B(split) <= 0).all())


class Traffic:
    """Transfers that go on at the same time: what the fullest link on each way makes of them."""

    def __init__(self, cluster: Cluster, pairs: Sequence[tuple[int, int]], owner: Sequence[int],
                 groups: int) -> None:  # fmt: skip
        self.groups = groups
        ends = np.array(pairs, np.int64).reshape(-1, 2)
        of = np.asarray(owner, np.int64)
        links = cluster.ways[ends[:, 0], ends[:, 1]]
        used = links >= 0
        entry, link = np.nonzero(used)[0], links[used]
        order = np.argsort(link, kind="stable")
        self.by_link = entry[order]
        names, self.first, inverse = np.unique(link[order], return_index=True, return_inverse=True)
        self.capacity = cluster.capacity_Bps[names]
        # The same entries by owner: the slowest of a group's transfers is what it waits for.
        owners = of[self.by_link]
        by_owner = np.argsort(owners, kind="stable")
        self.links_of = inverse[by_owner]
        self.owners, self.owner_first = np.unique(owners[by_owner], return_index=True)
        self.latency_s = np.zeros(groups)
        np.maximum.at(self.latency_s, of, cluster.latency_s[ends[:, 0], ends[:, 1]])

    def seconds(self, sizes_B: Floats) -> Floats:
        """For each case and group: until the last of its transfers is through."""
        made = np.zeros((len(sizes_B), self.groups))
        if len(self.by_link):
            load_s = np.add.reduceat(sizes_B[:, self.by_link], self.first, axis=1) / self.capacity
            slowest = np.maximum.reduceat(load_s[:, self.links_of], self.owner_first, axis=1)
            made[:, self.owners] = slowest
        return made


class Parts(NamedTuple):
    """What a group's step is made of, each as (cases, groups) in seconds."""

    around: Floats  # matrices and all-to-all, in all passes
    forward: Floats  # attention of the own heads, forwards
    backward: Floats
    ring_forward: Floats
    ring_backward: Floats


class StepModel:
    """The time and memory of a step for one grouping and its heads, by the rows of the ranks."""

    def __init__(self, cluster: Cluster, groups: Groups, heads: tuple[int, ...]) -> None:
        job = cluster.job
        self.cluster, self.groups, count = cluster, groups, len(groups)
        self.again = 2.0 if job.recompute else 1.0
        share = job.heads // job.groups
        ranges = head_ranges(groups, heads)
        self.heads = np.array(heads, float)
        kv = [kv_range(one, share) for one in ranges]
        self.kv_heads = np.array([one.stop - one.start for one in kv], float)
        self.order = np.array([rank for group in groups for rank in group], np.int64)
        sizes = [len(group) for group in groups]
        self.first = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
        self.place = np.zeros(cluster.size, np.int64)
        self.place[self.order] = np.repeat(np.arange(count), sizes)
        self._swaps(job)
        self._ring(job, share)

    def _swaps(self, job: LayerJob) -> None:
        """The all-to-alls: bytes for each row of the one that has the rows."""
        pairs = [(a, b) for group in self.groups for a in group for b in group if a != b]
        owner = [int(self.place[a]) for a, _ in pairs]
        self.swap = Traffic(self.cluster, pairs, owner, len(self.groups))
        self.source = np.array([a for a, _ in pairs], np.int64)
        self.target = np.array([b for _, b in pairs], np.int64)
        both = self.heads + 2 * self.kv_heads
        # From rows to heads the taker's heads count, and back the giver's.
        dim, item = job.head_dim, job.item_B
        self.in_B = [dim * item * both[self.target], dim * item * self.heads[self.target]]
        self.out_B = [dim * item * self.heads[self.source], dim * GRAD_B * both[self.source]]

    def _ring(self, job: LayerJob, share: int) -> None:
        heads = tuple(int(count) for count in self.heads)
        ways, back = routes(self.groups, heads, share), returns(self.groups, heads, share)
        every = [*ways, *back]
        self.ring = Traffic(self.cluster, [route[:2] for route in every],
                            [int(self.place[route.target]) for route in every],
                            len(self.groups))  # fmt: skip
        self.onward = len(ways)
        self.takers = np.array([self.place[route.target] for route in every], np.int64)
        pair_B = 2.0 * job.head_dim * np.array([route.heads for route in every])
        self.ring_B = np.where(np.arange(len(every)) < len(ways), job.item_B, GRAD_B) * pair_B
        # What a row takes to come from one group to the next, forwards and backwards.
        onward = np.arange(len(every)) < len(ways)
        self.hop_s = [self.ring.seconds((self.ring_B * sent)[None])[0] for sent in (onward, 1.0)]

    # -- time

    def parts(self, rows: Floats) -> Parts:
        """The parts of each group's step, for each case of rows (cases, ranks)."""
        job, cluster, groups = self.cluster.job, self.cluster, len(self.groups)
        around = (self.again + 2) * self._slowest(rows * (job.linear_flops / cluster.rate))
        if len(self.source):
            there, back = rows[:, self.source], rows[:, self.target]
            sizes_B = [there * self.in_B[0], back * self.out_B[0], there * self.in_B[1],
                       back * self.out_B[1]]  # fmt: skip
            swaps = self.swap.seconds(np.concatenate(sizes_B)).reshape(4, len(rows), groups)
            around += self.again * (swaps[0] + swaps[1]) + swaps[2] + swaps[3]
            around += 2 * (self.again + 1) * self.swap.latency_s
        held = self.group_rows(rows)[:, self.place]
        seen = (job.tokens + 1) / 2 if job.causal else job.tokens
        pairs = held * seen * self.heads * job.head_dim / cluster.rate
        # Merging reads two partial results and writes one, in fp32, once a step of the ring.
        touched_s = 4 * held * self.heads * job.head_dim / cluster.memory_Bps
        forward = self._slowest(FORWARD_FLOPS * pairs + 3 * (groups - 1) * touched_s)
        backward = self._slowest(BACKWARD_FLOPS * pairs + 2 * touched_s)
        return Parts(around, forward, backward, *self._ring_s(rows, (forward, backward)))

    def _ring_s(self, rows: Floats, busy: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
        """K and V make all hops but the one home; gradients make all, beside K and V again."""
        groups = len(self.groups)
        if groups < 2:
            none = np.zeros((len(rows), groups))
            return none, none
        tokens = float(self.cluster.job.tokens)
        moved = tokens - self.group_rows(rows)[:, self.takers]
        onward = np.arange(len(self.takers)) < self.onward
        sizes_B = [np.where(onward, moved, 0.0), np.where(onward, moved, tokens)]
        links = self.ring.seconds(np.concatenate(sizes_B) * self.ring_B)
        hops_s = (groups - 1) * self.ring.latency_s
        forward, backward = links.reshape(2, len(rows), groups)
        return (
            np.maximum(forward, self._longest_way(rows, busy[0], 0)) + hops_s,
            np.maximum(backward, self._longest_way(rows, busy[1], 1)) + hops_s,
        )

    def _longest_way(self, rows: Floats, busy: Floats, back: int) -> Floats:
        """Until the longest block has been with every group.

        It is handed on whole, so each hop takes its full transfer; but never less than the group
        there needs for its own block, by which it is behind the group before.
        """
        held = self.group_rows(rows)
        own = busy * held / max(self.cluster.job.tokens, 1)
        case, home = np.arange(len(rows)), held.argmax(axis=1)
        hops = np.maximum(self.hop_s[back] * held[case, home][:, None], own)
        at_home = hops[case, home] - own[case, home]
        return np.asarray((hops.sum(axis=1) - at_home)[:, None])

    def times(self, rows: Floats) -> Floats:
        """The time of a layer's step for each case and group."""
        return combine(self.parts(rows), self.again)

    def group_rows(self, rows: Floats) -> Floats:
        """The rows of each group."""
        return np.add.reduceat(rows[:, self.order], self.first, axis=1)

    def _slowest(self, seconds: Floats) -> Floats:
        return np.maximum.reduceat(seconds[:, self.order], self.first, axis=1)

    # -- memory

    def head_B(self) -> Floats:
        """What a rank holds for each row of its group: Q, K, V, the output, and gradients."""
        job = self.cluster.job
        return 4.0 * job.head_dim * job.item_B * (self.heads + self.kv_heads)

    def memory(self, rows: Floats) -> Floats:
        """Bytes that each rank needs for its rows, its heads, and two blocks of the ring."""
        job = self.cluster.job
        held = self.group_rows(rows)
        use = rows * job.row_B + held[:, self.place] * self.head_B()
        if len(self.groups) > 1:
            block_B = 4.0 * job.head_dim * job.item_B * self.kv_heads
            use = use + held.max(axis=1)[:, None] * block_B
        return use


def combine(parts: Parts, again: float) -> Floats:
    """The time of a layer's step: the ring is hidden behind attention, or attention behind it."""
    return np.asarray(
        parts.around + again * np.maximum(parts.forward, parts.ring_forward)
        + np.maximum(parts.backward, parts.ring_backward)
    )  # fmt: skip


__all__ = ["Cluster", "Parts", "StepModel", "combine"]
