"""`Worker`: a node that is one rank of a group, with collectives; and the `Task` that it may learn.

class LocalSGD(Worker):
    every: int = 8

    async def main(self):
        for step in self.steps():
            grad = await self.compute(self.task.grad, self.weights)
            self.weights = self.weights - self.rate * grad
            if step % self.every == 0:
                self.weights = await self.mean(self.weights)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from orrery.base.errors import DeadlineExceeded, PartError, Refused
from orrery.parts.collectives import Array, Collective, Ring
from orrery.parts.groups import Calls, Group, RankLost, compact
from orrery.parts.knobs import Count, Part, Positive
from orrery.parts.node import Node
from orrery.parts.rpc import rpc

if TYPE_CHECKING:
    from orrery.base.rand import Stream


class Share(Protocol):
    """One rank's share of a task: its own data, hence its own gradient."""

    def grad(self, weights: Array) -> Array:
        """The gradient of the next batch; `@cost(…)` on it gives it a modelled time."""
        ...

    def loss(self, weights: Array) -> float:
        """How wrong these weights are on this rank's data."""
        ...


class Task(Part):
    """What workers learn: where the weights begin, and which data each rank has.

    A subclass writes `start_weights` and `share`. Knobs: `steps`, how many a worker takes;
    `rate`, the step size; `scale`, how many times larger the model is that this one stands for: in
    virtual time each byte that ranks exchange, and each operation of a gradient, counts so often.
    """

    steps: Count = 100
    rate: Positive = 0.1
    scale: Positive = 1.0

    def start_weights(self) -> Array:
        """The weights before the first step, equal at all ranks."""
        raise PartError(f"{type(self).__name__} has no start_weights(); write where they begin")

    def share(self, rank: int, size: int, rng: Stream) -> Share:
        """The share of one of `size` ranks; `rng` is the stream of its node."""
        raise PartError(f"{type(self).__name__} has no share(rank, size, rng); write it")


class Worker(Calls, Node):
    """A node that is one rank of a group: `rank`, `size`, collectives, and perhaps a task.

    Its group are all nodes that run the same part. Which algorithm the collectives use is the knob
    `collective`. A rank that hears nothing from another for `patience_s` calls it lost: then with
    `on_lost = "raise"` the collective raises `RankLost`, and with "stop" the rank emits
    `lost=rank` and halts for good. Either way no rank goes on with a wrong value.

    `sent_B` counts the bytes that this rank has sent in its present life, and `widest` the ranks of
    the largest group in which it called a collective.
    """

    collective: Collective = Ring()
    patience_s: Positive = 60.0
    on_lost: Literal["raise", "stop"] = "raise"
    training: Task = Task()

    sent_B = 0  # no knobs; a rank has its own from its first byte on
    under_way = 0  # arrays; counted only where a monitor looks at them
    widest = 0

    # -- who and where

    def _ranks(self) -> Group:
        group: Group | None = self.__dict__.get("_all_ranks")
        if group is None:
            group = self._group_of(self.fellows(), "")
            self.__dict__["_all_ranks"] = group
        return group

    def _group_of(self, nodes: Sequence[int], name: str) -> Group:
        groups: dict[Any, Group] = self.__dict__.setdefault("_groups", {})
        key = (compact(nodes), name)
        made = groups.get(key)
        if made is None:
            made = groups[key] = Group(self, *key)
        return made

    @property
    def rank(self) -> int:
        """The place of this node in its group."""
        return self._ranks().rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._ranks().size

    def fellows(self) -> Sequence[int]:
        """The nodes of the group; a host that knows the cast gives all that run this part."""
        return self.members(self.role)

    def tap(self, phase: str, kind: str, tag: str, data: Any, group: Group | None = None) -> None:
        """Show monitors what goes in and out of a collective; the host of an engine does it."""

    def taps_arrays(self) -> bool:
        """Whether a monitor wants to know of single arrays; the host of an engine knows."""
        return False

    def tap_array(self, peer: int, nbytes: int, took_s: float, among: int) -> None:
        """Show monitors an array that has arrived at a node; the host of an engine does it."""

    # -- after a loss

    @rpc
    async def here(self) -> bool:
        """Answers whoever asks whether this rank is alive."""
        return True

    async def survivors(self, name: str) -> Group:
        """The group of the ranks that answer within `patience_s`, under a new name.

        For crashes that last: ranks that see different survivors form different groups, whose
        collectives then raise `RankLost` again.
        """
        found = self._ranks()
        return found.group(await self.answering(range(found.size), Worker.here), name)

    async def answering(self, ranks: Sequence[int], method: Callable[..., Any]) -> tuple[int, ...]:
        """Those of some ranks that say yes to `method` within `patience_s`; this rank always."""
        said = await self.all(*(self._says_yes(rank, method) for rank in ranks))
        return tuple(rank for rank, yes in zip(ranks, said, strict=True) if yes)

    async def _says_yes(self, rank: int, method: Callable[..., Any]) -> bool:
        if rank == self.rank:
            return True
        try:
            async with self.deadline(self.patience_s):
                return bool(await self.ask(self._ranks().nodes[rank], method))
        except (DeadlineExceeded, Refused):
            return False

    # -- learning

    @property
    def task(self) -> Share:
        """This rank's share of the task that the knob `training` names."""
        share: Share | None = self.__dict__.get("_share")
        if share is None:
            if type(self.training) is Task:
                raise PartError(
                    f"{type(self).__name__} has nothing to learn; give training=, a Task, or run "
                    "it on a problem that gives one"
                )
            share = self.__dict__["_share"] = self.training.share(self.rank, self.size, self.rng)
        return share

    @property
    def weights(self) -> Array:
        """The weights of this rank; they begin where the task says."""
        weights: Array | None = self.__dict__.get("_weights")
        if weights is None:
            weights = np.array(self.training.start_weights())
            self.__dict__["_weights"] = weights
        return weights

    @weights.setter
    def weights(self, value: Array) -> None:
        self.__dict__["_weights"] = value

    @property
    def rate(self) -> float:
        """The step size of the task."""
        return self.training.rate

    def steps(self) -> range:
        """The numbers of the steps to take: 1, 2, … as many as the task has."""
        return range(1, self.training.steps + 1)


__all__ = ["Group", "RankLost", "Share", "Task", "Worker"]
