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
        """By group and case: until the last transfer of the group is through.

        `sizes_B` are by transfer and case: sums over the first axis go along the memory.
        """
        made = np.zeros((self.groups, sizes_B.shape[1]))
        if len(self.by_link):
            load_s = np.add.reduceat(sizes_B[self.by_link], self.first)
            load_s /= self.capacity[:, None]
            made[self.owners] = np.maximum.reduceat(load_s[self.links_of], self.owner_first)
        return made


class Parts(NamedTuple):
    """What a group's step is made of, each as (cases, groups) in seconds."""

    around: Floats  # matrices and all-to-all, in all passes
    forward: Floats  # attention of the own heads, forwards
    backward: Floats
    ring_forward: Floats
    ring_backward: Floats


class Swaps(NamedTuple):
    """All-to-alls: who sends to whom, and the bytes for a row, forwards and backwards.

    From rows to heads (`in_B`) it is the source's row, back again (`out_B`) the target's.
    """

    traffic: Traffic
    source: Ints
    target: Ints
    in_B: tuple[Floats, Floats]
    out_B: tuple[Floats, Floats]


class Passes(NamedTuple):
    """A ring: its transfers (the first `onward` of K and V, the rest of their gradients)."""

    traffic: Traffic
    onward: int
    takers: Ints  # the group that each goes to
    row_B: Floats  # the bytes of each, for a row
    hop_s: tuple[Floats, ...]  # from one group to the next for a row, forwards and backwards


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

    # A search asks most models for their memory alone, so traffic is worked out when asked for.

    @functools.cached_property
    def swaps(self) -> Swaps:
        """The all-to-alls within the groups."""
        job = self.cluster.job
        pairs = [(a, b) for group in self.groups for a in group for b in group if a != b]
        owner = [int(self.place[a]) for a, _ in pairs]
        source, target = np.array(pairs, np.int64).reshape(-1, 2).T
        both = self.heads + 2 * self.kv_heads
        # From rows to heads the taker's heads count, and back the giver's.
        dim, item = job.head_dim, job.item_B
        return Swaps(
            Traffic(self.cluster, pairs, owner, len(self.groups)), source, target,
            (dim * item * both[target], dim * item * self.heads[target]),
            (dim * item * self.heads[source], dim * GRAD_B * both[source]),
        )  # fmt: skip

    @functools.cached_property
    def ring(self) -> Passes:
        """What goes from group to group."""
        job = self.cluster.job
        heads, share = tuple(int(count) for count in self.heads), job.heads // job.groups
        ways, back = routes(self.groups, heads, share), returns(self.groups, heads, share)
        every = [*ways, *back]
        takers = np.array([self.place[route.target] for route in every], np.int64)
        traffic = Traffic(self.cluster, [route[:2] for route in every], takers.tolist(),
                          len(self.groups))  # fmt: skip
        onward = np.arange(len(every)) < len(ways)
        pair_B = 2.0 * job.head_dim * np.array([route.heads for route in every])
        row_B = np.where(onward, job.item_B, GRAD_B) * pair_B
        hop_s = tuple(traffic.seconds((row_B * sent)[:, None]) for sent in (onward, 1.0))
        return Passes(traffic, len(ways), takers, row_B, hop_s)

    # -- time

    def parts(self, rows: Floats, ring: bool = True) -> Parts:
        """The parts of each group's step, for each case of rows (cases, ranks).

        Without `ring`, as if K and V were everywhere.
        """
        job, cluster, groups = self.cluster.job, self.cluster, len(self.groups)
        rows = np.ascontiguousarray(rows.T)
        rate = cluster.rate[:, None]
        around = (self.again + 2) * self._slowest(rows * (job.linear_flops / rate))
        swaps = self.swaps
        if len(swaps.source):
            there, back = rows[swaps.source], rows[swaps.target]
            into_s, onto_s, into_back_s, onto_back_s = (
                swaps.traffic.seconds(moved * row_B[:, None])
                for moved, row_B in ((there, swaps.in_B[0]), (back, swaps.out_B[0]),
                                     (there, swaps.in_B[1]), (back, swaps.out_B[1]))
            )  # fmt: skip
            around += self.again * (into_s + onto_s) + into_back_s + onto_back_s
            around += 2 * (self.again + 1) * swaps.traffic.latency_s[:, None]
        held = self._held(rows)
        seen = (job.tokens + 1) / 2 if job.causal else job.tokens
        work = held[self.place] * (self.heads * job.head_dim)[:, None]
        pairs = work * (seen / rate)
        # Merging reads two partial results and writes one, in fp32, once a step of the ring.
        touched_s = work * (4 / cluster.memory_Bps[:, None])
        forward = self._slowest(FORWARD_FLOPS * pairs + 3 * (groups - 1) * touched_s)
        backward = self._slowest(BACKWARD_FLOPS * pairs + 2 * touched_s)
        passes = self._ring_s(held, (forward, backward)) if ring else (np.zeros_like(held),) * 2
        return Parts(*(part.T for part in (around, forward, backward, *passes)))

    def _ring_s(self, held: Floats, busy: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
        """K and V make all hops but the one home; gradients make all, beside K and V again."""
        groups = len(self.groups)
        if groups < 2:
            return np.zeros_like(held), np.zeros_like(held)
        tokens, ring = float(self.cluster.job.tokens), self.ring
        row_B = ring.row_B[:, None]
        moved_B = (tokens - held[ring.takers]) * row_B
        hops_s = (groups - 1) * ring.traffic.latency_s[:, None]
        found = []
        for back in (0, 1):
            moved_B[ring.onward :] = back * tokens * row_B[ring.onward :]
            links_s = ring.traffic.seconds(moved_B)
            found.append(np.maximum(links_s, self._longest_way(held, busy[back], back)) + hops_s)
        return found[0], found[1]

    def _longest_way(self, held: Floats, busy: Floats, back: int) -> Floats:
        """Until the longest block has been with every group.

        It is handed on whole, so each hop takes its full transfer; but never less than the group
        there needs for its own block, by which it is behind the group before.
        """
        own = busy * held / max(self.cluster.job.tokens, 1)
        home, case = held.argmax(axis=0), np.arange(held.shape[1])
        hops = np.maximum(self.ring.hop_s[back] * held.max(axis=0), own)
        at_home = hops[home, case] - own[home, case]
        return np.asarray(hops.sum(axis=0) - at_home)

    def times(self, rows: Floats) -> Floats:
        """The time of a layer's step for each case and group."""
        return combine(self.parts(rows), self.again)

    def _held(self, rows: Floats) -> Floats:
        """The rows of each group, by group and case."""
        return np.add.reduceat(rows[self.order], self.first)

    def _slowest(self, seconds: Floats) -> Floats:
        return np.maximum.reduceat(seconds[self.order], self.first)

    # -- memory

    def head_B(self) -> Floats:
        """What a rank holds for each row of its group: Q, K, V, the output, and gradients."""
        job = self.cluster.job
        return 4.0 * job.head_dim * job.item_B * (self.heads + self.kv_heads)

    def memory(self, rows: Floats) -> Floats:
        """Bytes that each rank needs for its rows, its heads, and two blocks of the ring."""
        job = self.cluster.job
        held = self._held(rows.T).T
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
