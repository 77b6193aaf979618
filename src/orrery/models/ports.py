"""What serving policies see and decide: schedulers of one replica, routers and autoscalers of many.

Policies are plain synchronous code over views that they must not change. The same objects drive the
modelled replica (`orrery.models.replica`) and the real one (`orrery.models.real`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from orrery.base.errors import PartError
from orrery.models.requests import Request, Running
from orrery.parts import Policy


class Hit(NamedTuple):
    """What a replica has of a waiting request: blocks there, and how many of them nobody holds."""

    blocks: int
    idle: int


class EngineView:
    """A replica between two steps, as its scheduler sees it.

    waiting and running are in queue order; `hit(seq)` tells what of a waiting request is cached,
    `would_free(seq)` how many blocks a running one would leave behind.
    """

    __slots__ = (
        "block_tokens", "free_blocks", "hit", "now_s", "running", "waiting", "would_free",
    )  # fmt: skip

    def __init__(
        self, now_s: float, waiting: Sequence[Running], running: Sequence[Running],
        free_blocks: int, block_tokens: int, hit: Callable[[Running], Hit],
        would_free: Callable[[Running], int],
    ) -> None:  # fmt: skip
        self.now_s, self.waiting, self.running = now_s, waiting, running
        self.free_blocks, self.block_tokens = free_blocks, block_tokens
        self.hit, self.would_free = hit, would_free

    def __len__(self) -> int:
        return len(self.waiting) + len(self.running)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that so many tokens fill."""
        return -(-tokens // self.block_tokens)


class Batch(NamedTuple):
    """What the next step computes: (request, tokens) each; and who loses its blocks first.

    Requests that make one more token and have the room for it (`Running.ready`) may be named in
    `decodes` instead: that says the same, and spares the engine a look at each.
    """

    pieces: list[tuple[Running, int]]
    preempt: list[Running] = []
    decodes: list[Running] = []

    @property
    def work(self) -> list[tuple[Running, int]]:
        """All of it, (request, tokens) each."""
        if not self.decodes:
            return self.pieces
        return [*((seq, 1) for seq in self.decodes), *self.pieces]


class Scheduler(Policy):
    """Decides what a replica computes in its next step.

    `next_batch` names running or waiting requests with a number of tokens each; a waiting one is
    admitted by it. The engine takes the blocks in that order, and leaves out a waiting request for
    which none are left.
    """

    def next_batch(self, view: EngineView) -> Batch:
        raise PartError(f"{type(self).__name__} has no next_batch(view); write what it decides")

    def steady(self, view: EngineView) -> bool:
        """Whether `next_batch` would give the same decodes again and again.

        Asked after a step in which every running request made one token. True lets the engine do
        many steps as one: until a request ends or comes, or blocks run out.
        """
        return False

    def finished(self, seq: Running, now_s: float) -> None:
        """Told of every request whose answer is complete: `seq.generated` tokens.

        One that was cancelled, or lost in a crash, is not finished.
        """


class ReplicaView:
    """A replica as a router sees it.

    waiting, running  requests in its queue, and in its batch
    prefill_tokens    prompt tokens that it has yet to compute
    kv_tokens         tokens in the cache of those in its batch
    free_blocks, total_blocks
    alive             False while it is down, as far as the router knows
    speed             what it was measured to do, as a share of a healthy one
    """

    __slots__ = (
        "_match", "alive", "block_tokens", "free_blocks", "index", "kv_tokens", "prefill_tokens",
        "running", "speed", "total_blocks", "waiting",
    )  # fmt: skip

    def __init__(
        self, index: int, total_blocks: int, block_tokens: int,
        match: Callable[[Request], int] | None = None,
    ) -> None:  # fmt: skip
        self.index, self.total_blocks, self.block_tokens = index, total_blocks, block_tokens
        self.waiting = self.running = self.prefill_tokens = self.kv_tokens = 0
        self.free_blocks = total_blocks
        self.alive, self.speed = True, 1.0
        self._match = match

    @property
    def outstanding(self) -> int:
        """Requests that it has and has not finished."""
        return self.waiting + self.running

    @property
    def kv_use(self) -> float:
        """The share of its blocks that are in use."""
        return 1.0 - self.free_blocks / self.total_blocks

    def cached_tokens(self, request: Request) -> int:
        """How many of the request's first tokens it has in its cache."""
        if not request.blocks or self._match is None:
            return 0
        return self._match(request) * self.block_tokens


class Snapshot(ReplicaView):
    """A replica as it told of itself some time ago."""

    __slots__ = ()

    def __init__(self, seen: ReplicaView) -> None:
        super().__init__(seen.index, seen.total_blocks, seen.block_tokens, seen._match)
        self.waiting, self.running = seen.waiting, seen.running
        self.prefill_tokens, self.kv_tokens = seen.prefill_tokens, seen.kv_tokens
        self.free_blocks, self.alive, self.speed = seen.free_blocks, seen.alive, seen.speed


class Router(Policy):
    """Decides which replica serves a request: `route` gives its index, or -1 if none is alive."""

    def route(self, request: Request, replicas: Sequence[ReplicaView]) -> int:
        raise PartError(f"{type(self).__name__} has no route(request, replicas); write it")


class FleetView(msgspec.Struct, frozen=True):
    """A cluster as its autoscaler sees it.

    on, starting    replicas that serve, and that load their weights
    least, most     bounds of what may be asked for
    outstanding     requests that are not finished; waiting: those of them in no batch
    arrivals_per_s  since the last look
    kv_use          of the replica with the fewest free blocks
    """

    now_s: float
    on: int
    starting: int
    least: int
    most: int
    outstanding: int
    waiting: int
    arrivals_per_s: float
    kv_use: float

    def __len__(self) -> int:
        return self.on + self.starting


class Autoscaler(Policy):
    """Decides how many replicas should be on: `replicas` gives a number, which is kept in bounds.

    A replica that is switched on loads its weights first; one that is switched off answers what it
    has before it goes.
    """

    def replicas(self, view: FleetView) -> int:
        raise PartError(f"{type(self).__name__} has no replicas(view); write what it decides")


__all__ = [
    "Autoscaler",
    "Batch",
    "EngineView",
    "FleetView",
    "Hit",
    "ReplicaView",
    "Router",
    "Scheduler",
    "Snapshot",
]
