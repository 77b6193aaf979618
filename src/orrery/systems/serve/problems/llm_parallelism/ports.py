"""What a policy of tensor parallelism sees and decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal
from weakref import WeakKeyDictionary

import msgspec

from orrery.base.errors import PartError
from orrery.models.requests import Request
from orrery.parts import Policy
from orrery.systems.serve.problems.llm_parallelism.plans import Placed, Plan


class Tier(msgspec.Struct, frozen=True):
    """A class of requests: its name, its targets, and where it stands (0 is served first)."""

    name: str
    ttft_s: float
    tpot_s: float
    priority: int = 0


class Moves(msgspec.Struct, frozen=True):
    """How an instance becomes another one.

    weights   peers: a GPU keeps what it has and fetches what it lacks from other GPUs, while the
              old instances serve on; disk: it stops and reads its whole shard
    kv        migrate: requests take their keys and values along; drain: instances first finish
              what they have begun, and take nothing new
    free      nothing costs time or bytes (only for an oracle that says so)
    """

    weights: Literal["peers", "disk"] = "peers"
    kv: Literal["migrate", "drain"] = "migrate"
    free: bool = False


class InstanceView:
    """One instance, as policies see it.

    index                   its number; numbers are never used again
    role, tp, first         M, P or D; GPUs; the first of their positions
    waiting, waiting_tokens requests in its queue, and their prompt tokens
    queued                  prompt tokens in its queue or half computed, by band of the rank
    decodes, decode_kv      requests that make tokens, and their context in all
    running                 requests whose answers are being made, by band
    kv_tokens, capacity     tokens reserved in its cache, and how many fit
    chunk_tokens            tokens of one step at most
    now_s                   when the view was brought up to date
    cost                    step times of its kind: `cost.seconds(prefill, decodes, decode_kv)`
    """

    __slots__ = (
        "capacity", "chunk_tokens", "cost", "decode_kv", "decodes", "first", "index", "kv_tokens",
        "now_s", "queued", "role", "running", "tp", "waiting", "waiting_tokens",
    )  # fmt: skip

    def __init__(
        self, index: int, placed: Placed, capacity: int, cost: Any, chunk_tokens: int
    ) -> None:
        self.index, self.role, self.tp, self.first = index, *placed
        self.capacity, self.chunk_tokens, self.cost = capacity, chunk_tokens, cost
        self.waiting = self.waiting_tokens = self.decodes = self.decode_kv = self.kv_tokens = 0
        self.queued: dict[int, int] = {}
        self.running: dict[int, int] = {}
        self.now_s = 0.0

    def ahead(self, band: float) -> int:
        """Prompt tokens that are computed before those of a request of this band."""
        return sum(tokens for each, tokens in self.queued.items() if each <= band)

    def __repr__(self) -> str:
        return f"InstanceView({self.index}, {self.role}{self.tp}, {self.decodes} decoding)"


class ClusterView(msgspec.Struct, frozen=True):
    """The GPUs at one moment, as a controller sees them.

    plan         what runs now; None at the beginning
    blocks       sizes of the largest blocks of working GPUs
    plans        every plan that fits them
    tiers        the tiers
    costs        step times by degree
    capacity     tokens of KV cache by degree
    backlog      of each tier: requests that wait, wherever they do
    instances    what runs now, in detail
    downtime_s   downtime_s(plan) predicts GPU-seconds lost by a move to that plan
    """

    now_s: float
    plan: Plan | None
    blocks: tuple[int, ...]
    plans: tuple[Plan, ...]
    tiers: tuple[Tier, ...]
    costs: Mapping[int, Any]
    capacity: Mapping[int, int]
    backlog: tuple[int, ...]
    instances: tuple[InstanceView, ...]
    downtime_s: Any
    chunk_tokens: int = 2048
    most_seqs: int = 256

    def __len__(self) -> int:
        return len(self.plans)


class Parallelism(Policy):
    """Decides how GPUs are divided into instances, and which request goes where and when.

    A subclass writes `plan`; the rest has defaults: the least loaded instance, in order of
    arrival, whole chunks. `moves` says how instances change.
    """

    moves: ClassVar[Moves] = Moves()
    # Hidden knowledge: what a part that says so is given before the run. Only oracles say so.
    foresees: ClassVar[bool] = False

    def how(self) -> Moves:
        """How instances change; the same throughout a run."""
        return self.moves

    def plan(self, view: ClusterView) -> Plan | None:
        """The plan from now on; None keeps what runs. Asked at the start and then regularly."""
        raise PartError(f"{type(self).__name__} has no plan(view); write what it decides")

    def route(self, request: Request, instances: Sequence[InstanceView]) -> int:
        """Which instance computes the prompt: its index, or -1 when there is none."""
        return least_loaded(instances)

    def hand_over(self, request: Request, instances: Sequence[InstanceView]) -> int:
        """Which instance makes the answer of a request whose prompt was computed elsewhere."""
        return min(
            instances, key=lambda i: (i.kv_tokens / max(i.capacity, 1), i.index), default=_NOBODY
        ).index

    def rank(self, request: Request, instance: InstanceView) -> tuple[float, ...]:
        """The place in queues: smaller goes first. Asked once, at the first instance it gets to.

        The first number is a band, a small whole number, by which `InstanceView.queued` is kept.
        """
        return (0.0, request.arrival_s)

    def chunk(self, request: Request, instance: InstanceView, chosen: int) -> int:
        """How many prompt tokens of this request the next step may compute; 0: not now.

        `chosen` are prompt tokens of other requests that the step computes already.
        """
        return instance.chunk_tokens

    def takes(self, request: Request, instance: InstanceView) -> bool:
        """Whether an instance takes in one more computed prompt now, or lets it wait."""
        return True

    def yields(self, request: Request, instance: InstanceView) -> bool:
        """Whether requests of lower tiers lose their cache when this one finds no room."""
        return False

    def arrived(self, request: Request, now_s: float) -> None:
        """Told of every request that comes."""

    def finished(self, request: Request, tokens: int, met: bool, now_s: float) -> None:
        """Told of every answer: its length, and whether the targets were met."""


class _Nobody:
    index = -1


_NOBODY: Any = _Nobody()


def least_loaded(instances: Sequence[InstanceView]) -> int:
    """The instance that would begin with a new prompt soonest, by its step times; else -1.

    What waits is prompt tokens at the speed of its degree, and requests that decode.
    """
    best, least = -1, float("inf")
    for each in instances:
        per_token_s = prompt_token_s(each.cost)
        load = each.waiting_tokens * per_token_s + each.decodes * per_token_s * 16
        load += max(each.kv_tokens / max(each.capacity, 1) - 0.9, 0.0) * 100.0
        if load < least:
            best, least = each.index, load
    return best


_RATES: WeakKeyDictionary[Any, float] = WeakKeyDictionary()


def prompt_token_s(cost: Any) -> float:
    """Seconds of one prompt token in chunks of 1024, looked up once for each table."""
    known = _RATES.get(cost)
    if known is None:
        known = _RATES[cost] = cost.seconds([(1024, 0)], 0, 0) / 1024
    return known


__all__ = [
    "ClusterView", "InstanceView", "Moves", "Parallelism", "Tier", "least_loaded",
    "prompt_token_s",
]  # fmt: skip
