"""Requests to a language model, and what a replica knows of them while it serves them.

The number of tokens that a request will make is hidden from policies: an engine learns it only when
the model stops. It is kept under a name with an underscore, which policies must not read.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from orrery.base.errors import UsageError


class Target(msgspec.Struct, frozen=True):
    """What a user expects: the first token, then each further one, within so many seconds."""

    ttft_s: float
    tpot_s: float

    def met(self, ttft_s: float, tpot_s: float) -> bool:
        return ttft_s <= self.ttft_s and tpot_s <= self.tpot_s


class Request:
    """One question to a model.

    id             its place in the workload
    arrival_s      when it comes
    prompt_tokens  how long the question is
    max_tokens     the longest answer that the client takes
    blocks         keys of the prompt's full blocks: equal keys mean equal tokens up to there
    session, kind  which conversation (-1: none), which class of traffic
    priority       0 is served first
    target         what its user expects, or None
    """

    __slots__ = (
        "_output_tokens", "arrival_s", "blocks", "id", "kind", "max_tokens", "priority",
        "prompt_tokens", "session", "target",
    )  # fmt: skip

    def __init__(
        self, id: int, arrival_s: float, prompt_tokens: int, output_tokens: int, *,
        blocks: Sequence[int] = (), session: int = -1, kind: str = "default", priority: int = 0,
        target: Target | None = None, max_tokens: int | None = None,
    ) -> None:  # fmt: skip
        if prompt_tokens < 1 or output_tokens < 1:
            raise UsageError(
                f"request {id}: prompt_tokens={prompt_tokens}, output_tokens={output_tokens}; "
                "both must be at least 1"
            )
        self.id, self.arrival_s = id, arrival_s
        self.prompt_tokens, self._output_tokens = prompt_tokens, output_tokens
        self.max_tokens = output_tokens if max_tokens is None else max_tokens
        self.blocks = blocks
        self.session, self.kind, self.priority, self.target = session, kind, priority, target

    @property
    def own_key(self) -> int:
        """The key of all that this request alone has; no workload uses it."""
        return -(self.id + 2)

    def __repr__(self) -> str:
        return f"Request({self.id}, at {self.arrival_s:.3f} s, {self.prompt_tokens} tokens)"


class Running:
    """A request on a replica; policies read it, the engine alone changes it.

    computed       tokens whose keys and values are in the cache, or will be after planned steps
    generated      tokens made so far
    planned        tokens made once all planned steps are done
    arrived_s      when it came to this replica
    queued_s       when the engine saw it, which is between two steps
    preempted      how often it lost its blocks
    blocks_held    blocks that it has
    """

    __slots__ = (
        "_limit", "arrived_s", "blocks_held", "computed", "decoding", "first_s", "generated",
        "held", "hits", "last_s", "owed", "own", "planned", "preempted", "queued_s", "request",
        "room", "started_s",
    )  # fmt: skip

    def __init__(self, request: Request, arrived_s: float) -> None:
        self.request, self.arrived_s = request, arrived_s
        self.computed = self.generated = self.planned = self.preempted = self.hits = 0
        self.owed = 0
        self.held: list[int] = []  # keys of its shared blocks, BLANK for a copy of one
        self.own = 0  # blocks of its own, after those
        self.blocks_held = self.room = 0  # blocks, and the tokens that fit into them
        self.decoding = False  # whether it lacks exactly one token, and will then make another
        self._limit = request._output_tokens
        self.queued_s = arrived_s
        self.first_s = self.last_s = self.started_s = -1.0

    @property
    def length(self) -> int:
        """Tokens that are known or planned: the prompt, and what was made since."""
        return self.request.prompt_tokens + self.planned

    @property
    def ready(self) -> bool:
        """Whether it lacks one token, will make another then, and has a block for it."""
        return self.decoding and self.computed < self.room

    @property
    def missing(self) -> int:
        """Tokens still to compute before the next one can be made: 1 while it decodes.

        0 when its last token is being made: it needs no more, and leaves soon.
        """
        if self.planned >= self._limit:
            return 0
        return self.request.prompt_tokens + self.planned - self.computed

    def __repr__(self) -> str:
        return f"Running({self.request.id}, computed {self.computed}, made {self.generated})"


class Served(msgspec.Struct, frozen=True):
    """How a request fared: times in seconds of the run's clock."""

    id: int
    arrival_s: float
    queued_s: float
    started_s: float
    first_s: float
    last_s: float
    prompt_tokens: int
    output_tokens: int
    hit_tokens: int
    preempted: int
    replica: int = 0
    kind: str = "default"

    @property
    def ttft_s(self) -> float:
        return self.first_s - self.arrival_s

    @property
    def tpot_s(self) -> float:
        """Seconds of each token after the first; 0 for an answer of one token."""
        return (self.last_s - self.first_s) / max(self.output_tokens - 1, 1)

    @property
    def latency_s(self) -> float:
        return self.last_s - self.arrival_s


__all__ = ["Request", "Running", "Served", "Target"]
