"""`Trainer`: the port of training with many replicas: one rank, its task, its optimiser."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import numpy as np

from orrery.base.errors import PartError
from orrery.models.learn import LearningTask, Optimiser, make
from orrery.models.learn.optim import Name
from orrery.parts import NonNegative, Worker, cost, rpc
from orrery.parts.collectives import Array
from orrery.parts.shapes import work_of
from orrery.parts.worker import RankLost

# Of the arithmetic of a step, a third is the forward pass and two thirds are the backward pass.
FORWARD = 1.0 / 3.0

Ready = Callable[[str, slice], Awaitable[None]]
Done = Callable[[str, slice, Array], None]


@cost(flops=lambda flops: flops)
def spend(flops: float) -> None:
    """Arithmetic whose value is had elsewhere: only its time counts."""


async def _caught(call: Awaitable[Any]) -> tuple[Any, RankLost | None]:
    try:
        return await call, None
    except RankLost as lost:
        # Nobody waits for it yet, so the loss is kept for whoever will.
        return None, lost


class Behind:
    """What runs in the background: `await` it for its value, or for the rank that it lost."""

    def __init__(self, task: Any) -> None:
        self._task = task

    def __await__(self) -> Any:
        value, lost = yield from self._task.__await__()
        if lost is not None:
            raise lost
        return value


class Trainer(Worker):
    """One replica of a model in training. A subclass writes `train`.

    `await self.gradient()` gives the gradient of the next batch at `self.weights` and takes the
    time of a step; `self.inner` is the optimiser; the collectives of a `Worker` do the talking.
    The problem judges what `self.weights` are when `train` returns.

    Knobs: `optimiser` of the local steps, and `rate_scale`, by which the task's own rate is
    multiplied.
    """

    optimiser: Name = "adamw"
    rate_scale: NonNegative = 1.0

    # Whether all replicas hold the same weights at the end; the problem checks it.
    agrees: ClassVar[bool] = True
    # Whether each replica takes as many steps as the task has; not so for those that go by time.
    counts_steps: ClassVar[bool] = True

    def start(self) -> None:
        self.over = self.event()
        self.inner: Optimiser = make(self.optimiser, self.training.rate * self.rate_scale)
        self.taken = 0
        self.busy_s = 0.0

    async def train(self) -> None:
        """Train `self.weights`; every step asks for one `gradient`."""
        raise PartError(f"{type(self).__name__} has no train(); write the loop of one replica")

    async def main(self) -> None:
        began_s = self.now
        try:
            await self.train()
        except RankLost as lost:
            self.emit(lost=lost.rank)
            self.over.set()
            return
        self.emit(
            rank=self.rank, weights=self.weights, digest=digest(self.weights), taken=self.taken,
            took_s=self.now - began_s, busy_s=self.busy_s, sent_B=self.sent_B,
            lives=self.incarnation + 1, widest=self.widest, **self.told(),
        )  # fmt: skip
        self.over.set()

    def told(self) -> dict[str, float]:
        """What a replica reports of itself besides; the problem has the mean as metrics."""
        kept = [value for each in self.optimisers() for value in each.state().values()]
        held = sum(value.nbytes for value in kept if isinstance(value, np.ndarray))
        return {"optimiser_B": held}

    def optimisers(self) -> list[Optimiser]:
        """The optimisers that this replica steps with."""
        return [self.inner]

    @rpc
    async def ended(self) -> bool:
        """Answers when this replica has trained, or given up."""
        await self.over.wait()
        return True

    # -- what a subclass uses

    @property
    def learning(self) -> LearningTask:
        """The task, with its held-out data and layers."""
        if not isinstance(self.training, LearningTask):
            raise PartError(
                f"{type(self.training).__name__} cannot be judged; give training=, a LearningTask"
            )
        return self.training

    async def gradient(self) -> Array:
        """The gradient of the next batch at `self.weights`; takes the time of a step."""
        self._look()
        began_s = self.now
        factor = self._drawn()
        if factor != 1.0:
            work = work_of(self.task.grad, (self.weights,))
            found = np.asarray(self.task.grad(self.weights))
            await self.compute(spend, factor * (work.flops if work else 0.0))
        else:
            found = await self.compute(self.task.grad, self.weights)
        self._count(began_s)
        self._tell_loss()
        return found

    def behind(self, call: Awaitable[Any]) -> Behind:
        """Run a collective in the background; awaiting the result raises what it raised."""
        return Behind(self.spawn(_caught(call)))

    async def local_step(self) -> None:
        """A step of this replica's own optimiser along its own gradient."""
        gradient = await self.gradient()
        self.weights = self.inner.step(self.weights, gradient)

    async def gradient_by_layer(
        self, ready: Ready | None = None, done: Done | None = None
    ) -> Array:
        """The same as `gradient`, with a word before and after each layer.

        `ready(layer, where)` is awaited before the forward pass enters a layer, and may change
        that layer's weights, `self.weights[where]`; `done(layer, where, gradient)` is called when
        the backward pass has left it. In between, time passes as each layer's part of the
        arithmetic takes, by its number of weights.
        """
        self._look()
        layers = self.learning.layers()
        work = work_of(self.task.grad, (self.weights,))
        flops = self._drawn() * (work.flops if work else 0.0) / max(self.weights.size, 1)
        waited_s, began_s = 0.0, self.now
        for name, where in layers.items():
            if ready is not None:
                asked_s = self.now
                await ready(name, where)
                waited_s += self.now - asked_s
            await self.compute(spend, FORWARD * flops * (where.stop - where.start))
        found = np.asarray(self.task.grad(self.weights))
        self._tell_loss()
        for name, where in reversed(layers.items()):
            await self.compute(spend, (1 - FORWARD) * flops * (where.stop - where.start))
            if done is not None:
                done(name, where, found[where])
        self._count(began_s + waited_s)
        return found

    def _drawn(self) -> float:
        """By how much the time of this step differs from the usual: one draw for each step."""
        sigma = getattr(self.training, "jitter", 0.0)
        return self.rng.lognormvariate(0.0, sigma) if sigma else 1.0

    def _count(self, began_s: float) -> None:
        self.taken += 1
        self.busy_s += self.now - began_s

    def _tell_loss(self) -> None:
        """Show monitors the loss of the batch just read, where the task keeps it: one a step."""
        self.tap("after", "loss", "", float(getattr(self.task, "last_loss", float("nan"))))

    def _look(self) -> None:
        """Now and then rank 0 tells how good its weights are; this takes no time of the model."""
        every = getattr(self.training, "look_every", 0)
        if every and self.rank == 0 and self.taken % every == 0:
            self.emit(step=self.taken, loss=self.learning.judge(self.weights))


def digest(weights: Array) -> str:
    """A mark of these weights, bit for bit."""
    return hashlib.blake2b(np.ascontiguousarray(weights).tobytes(), digest_size=8).hexdigest()


def spread(vectors: list[Array]) -> float:
    """How far replicas lie apart: root mean square distance from their mean."""
    stack: Any = np.stack(vectors)
    if not np.all(np.isfinite(stack)):
        return float("inf")
    return float(np.sqrt(np.mean(np.sum((stack - stack.mean(axis=0)) ** 2, axis=-1))))
