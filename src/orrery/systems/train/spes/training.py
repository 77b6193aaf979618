"""`SPES`: nodes that each train a few experts of a common mixture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from orrery.models.learn import Optimiser, make, mixture
from orrery.parts import Count, Fraction
from orrery.parts.collectives import Array
from orrery.systems.train.problems.trainer import digest
from orrery.systems.train.spes import merging, owners
from orrery.systems.train.spes.meeting import LeftOut, Meeting

SHARED = -1  # the key of the shared weights among the pieces; experts have their numbers


class SPES(Meeting):
    """Pre-train a mixture of experts on scattered nodes, each of which trains a few experts.

    Zhang et al., "Pretraining a large language model using distributed GPUs: a memory-efficient
    decentralized paradigm", 2026. Every node holds the whole model for its forward pass. It has
    gradients and optimiser state for the shared weights and its own experts alone; the experts of
    others are frozen. After `every` steps the nodes synchronise: each hands in what it trained. The
    shared weights are averaged, an expert with one owner is copied, one with several is averaged
    over them; each node gets back what it does not have.

    In the first part of the training the experts also learn from each other: after a
    synchronisation each moves by the merge weight towards the mean of the `partners` experts of
    its layer whose first matrix is most like its own. The weight falls in a straight line to zero.
    Every node computes this for itself from the same model, so it costs no traffic.

    With S shared weights, E experts of X weights and e of them its own, a node keeps AdamW state
    for S + eX numbers instead of S + EX, hands in S + eX and gets S + (E - e)X. What the hub gives
    to itself is counted alike, though it does not travel. A copy of what a node trains, as it was
    at the last synchronisation, is kept besides: from it the others recover if a hub dies. With n
    nodes the hub sends about n (S + EX) numbers in a synchronisation and adds nS + EX, so it, and
    not the nodes, is what limits n.

    Whoever owns which expert follows from the token loads that the start weights give (see
    `owners`). When a node is lost, its experts stay as they were at the last synchronisation, and
    the others take them over at the end of the round in which it is missed (see `meeting`).

    Knobs: `every`, steps from one synchronisation to the next; `merge`, the merge weight at the
    start (0 switches the warm-up off); `warm_up`, the part of the steps in which it falls to zero;
    `partners`; `owners`, how many nodes train each expert (as many as there are nodes switches the
    sparse training off); `owned`, rows of experts for each rank, by hand; `ping_s` and `tries`,
    how long a silent node is waited for: one that is silent for longer is left out, comes back
    later, and loses the steps in between; `optimiser` of the local steps. A task without experts
    has shared weights only, and then this is local SGD.

    Differs from the paper: the hub is the first node and not a server of its own; there is no
    gradient clipping, no router z-loss and no schedule of the rate; owners by load, taking over,
    and the return of a node are ours, as the public code has fixed owners and no loss of nodes. The
    merge is that of the public code, but at each synchronisation of the warm-up, not at every
    second or fifth, and each node computes it for itself. Moments of the optimiser are neither
    averaged nor merged.

    >>> SPES(merge=0.0).merge, SPES().owners
    (0.0, 1)
    """

    every: Count = 20
    merge: Fraction = 0.05
    warm_up: Fraction = 0.2
    partners: Count = 4
    owners: Count = 1
    owned: list[list[int]] = []

    def start(self) -> None:
        super().start()
        pieces = getattr(self.training, "pieces", None)
        found = pieces() if pieces is not None else ((slice(0, self.weights.size),),)
        self.pieces = {SHARED: found[0], **dict(enumerate(found[1:]))}
        self.experts = len(found) - 1
        self.sizes = {
            key: sum(part.stop - part.start for part in where) for key, where in self.pieces.items()
        }
        self.inners: dict[int, Optimiser] = {}
        self.up_B: list[int] = []
        self.down_B: list[int] = []
        if self.owned:
            self.of = owners.given(self.owned, self.experts, self.size)
        else:
            self.of = owners.assign(self._loads(), self.agreed, self.owners)
        self._settle()

    def _loads(self) -> list[float]:
        """The tokens that each expert reads of the same text with the same weights at all nodes."""
        if not self.experts:
            return []
        task: Any = self.training
        return [float(load) for load in task.loads(self.weights)]

    async def train(self) -> None:
        steps = self.training.steps
        rounds = math.ceil(steps / self.every)
        inside = await self.join() if self.incarnation else True
        while inside:
            try:
                while self.round < rounds:
                    begin, end = (number * self.every for number in (self.round, self.round + 1))
                    for _ in range(begin, min(end, steps)):
                        await self._step()
                    await self.meet(self._packed(self.weights, self._trained()))
                await self.delivered()
                return
            except LeftOut:
                inside = await self.join()

    # -- local steps

    def _trained(self) -> list[int]:
        """The pieces that this node trains: the shared weights and its own experts."""
        return [SHARED, *self.of[self.rank]]

    async def _step(self) -> None:
        gradient = await self.gradient()
        for key, slope in self._cut(self._trained(), gradient).items():
            before = mixture.pack(self.weights, self.pieces[key])
            mixture.place(self.weights, self.pieces[key], self.inners[key].step(before, slope))

    def _settle(self) -> None:
        """Begin a round: gradients and optimisers for what this node trains, and for no more."""
        own = self._trained()
        rate = self.training.rate * self.rate_scale
        self.inners = {key: self.inners.get(key) or make(self.optimiser, rate) for key in own}
        if self.experts:
            self.task.own = self.of[self.rank]  # type: ignore[attr-defined]
        # Frozen experts are as they were; of the rest a copy shows how the round began.
        self.anchor = self._packed(self.weights, own)

    def optimisers(self) -> list[Optimiser]:
        return list(self.inners.values())

    def told(self) -> dict[str, float]:
        mean = {"up_B": self.up_B, "down_B": self.down_B}
        return super().told() | {name: float(np.mean(found or [0])) for name, found in mean.items()}

    # -- synchronising

    def _packed(self, flat: Array, keys: Sequence[int]) -> Array:
        return np.concatenate([mixture.pack(flat, self.pieces[key]) for key in keys])

    def _cut(self, keys: Sequence[int], numbers: Array) -> dict[int, Array]:
        """Pieces that lie side by side, apart; no copies."""
        ends = np.cumsum([self.sizes[key] for key in keys])
        return dict(zip(keys, np.split(numbers, ends[:-1]), strict=True))

    def _unpacked(self, flat: Array, keys: Sequence[int], numbers: Array) -> Array:
        """The weights with these pieces set."""
        out = flat.copy()
        for key, piece in self._cut(keys, numbers).items():
            mixture.place(out, self.pieces[key], piece)
        return out

    def _wanted(self, rank: int) -> list[int]:
        """What a member has to get: all but the experts that nobody else trains."""
        alone = [e for e in self.of[rank] if owners.owners_of(self.of, e) == [rank]]
        return [SHARED, *(expert for expert in range(self.experts) if expert not in alone)]

    def put_together(self, handed_in: dict[int, Array]) -> Array:
        parts = [
            self._cut([SHARED, *self.of[rank]], numbers)
            for rank, numbers in sorted(handed_in.items())
        ]
        whole = self.synchronised()  # experts whose owners are gone stay as they were
        for key, where in self.pieces.items():
            found = [part[key] for part in parts if key in part]
            if found:
                mixture.place(whole, where, _mean(found))
        return whole

    def part_for(self, rank: int, whole: Array) -> Array:
        return self._packed(whole, self._wanted(rank))

    def part_size(self, rank: int) -> int:
        return sum(self.sizes[key] for key in self._wanted(rank))

    def joined_with(self, part: Array) -> Array:
        return self._unpacked(self.weights, self._wanted(self.rank), part)

    def synchronised(self) -> Array:
        return self._unpacked(self.weights, self._trained(), self.anchor)

    def end_round(self, whole: Array, members: Sequence[int]) -> None:
        itemsize = whole.itemsize
        self.up_B.append(self.anchor.nbytes)
        self.down_B.append(self.part_size(self.rank) * itemsize)
        step = min((self.round + 1) * self.every, self.training.steps)
        alpha = merging.weight(self.merge, step, self.warm_up * self.training.steps)
        experts = [self.pieces[expert] for expert in range(self.experts)]
        self.weights = merging.merged(whole, experts, alpha, self.partners)
        gone = set(self.agreed) - set(members)
        if members != self.agreed:
            self.of = owners.take_over(self.of, members, self._loads())
        self._settle()
        self.emit(
            sync=self.round, mark=digest(self.weights), own=list(self.of[self.rank]),
            gone=sorted(gone), alpha=alpha, up_B=self.up_B[-1], down_B=self.down_B[-1],
        )  # fmt: skip

    # -- for those who come late

    def assignment(self) -> list[list[int]]:
        return [list(self.of.get(rank, ())) for rank in range(self.size)]

    def take_state(self, whole: Array, members: Sequence[int], rows: list[list[int]]) -> None:
        self.weights = np.array(whole)
        self.agreed = self.present = tuple(members)
        self.of = {rank: tuple(row) for rank, row in enumerate(rows) if rank in members}
        if self.rank in self.of:
            self._settle()


def _mean(found: list[Array]) -> Array:
    """The mean of arrays, added in the order of the ranks; of one array, the array itself."""
    total = found[0]
    for other in found[1:]:
        total = total + other
    return total / total.dtype.type(len(found)) if len(found) > 1 else total
