"""What a policy of phases decides, and what it sees."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from orrery.base.errors import PartError
from orrery.parts import Policy

Role = Literal["mixed", "split", "prefill", "decode"]
ROLES = ("mixed", "split", "prefill", "decode")


class Site(NamedTuple):
    """What there is to be shared out.

    devices     accelerators in all
    tp          devices of one engine, as the problem sets it
    room        KV tokens of an engine by its number of devices; one that cannot hold the weights,
                or that the model's heads do not divide by, is not in it
    """

    devices: int
    tp: int
    room: dict[int, int]

    @property
    def least(self) -> int:
        """The fewest devices that hold the weights and some cache."""
        return min(self.room)


class Place(NamedTuple):
    """One engine: so many devices, and what it does.

    role    mixed: both phases take turns; split: both run at once, each on its share of the
            multiprocessors, over one cache; prefill, decode: one phase alone, with its own weights
    share   of the multiprocessors that prefill has (split)
    chunk   tokens of a step, decodes among them (mixed); 0: whole prompts, before all decodes
    """

    role: Role
    devices: int
    share: float = 0.5
    chunk: int = 0


class Asked(NamedTuple):
    """A request as policies see it; the length of its answer is not known."""

    id: int
    arrival_s: float
    prompt_tokens: int
    ttft_s: float
    gap_s: float


class EngineView(NamedTuple):
    """An engine as seen from outside.

    waiting         requests whose prompt is not computed; `waiting_tokens` their prompts
    running         requests that decode; `kv_tokens` their contexts
    free_tokens     room of the cache that nobody has
    """

    index: int
    role: str
    devices: int
    waiting: int
    waiting_tokens: int
    running: int
    kv_tokens: int
    free_tokens: int
    total_tokens: int


class Prefilled(NamedTuple):
    """A prefill step that ended: its share, how many tokens it had, how long it took alone."""

    share: float
    prompts: int
    tokens: int
    seconds: float


class Decoded(NamedTuple):
    """A decode step that ended: its share, sequences, their contexts, and how long it took."""

    share: float
    sequences: int
    kv_tokens: int
    seconds: float


class SplitView:
    """A split engine between two iterations, and what happened since the last look.

    share           the prefill share that was decided last; grid, those that it may have
    arrived         prompt tokens of each request that came; ended, answer tokens of each that left
    firsts          (seconds to the first token, its target) of each first token
    gap_s           the target of the time between two tokens
    prefills, decodes   the steps that ended
    slots, room_tokens  requests that may decode at once, and tokens that the cache holds
    """

    __slots__ = (
        "arrived", "decodes", "ended", "firsts", "gap_s", "grid", "kv_tokens", "now_s", "prefills",
        "room_tokens", "running", "share", "since_s", "slots", "targets", "waiting",
        "waiting_tokens",
    )  # fmt: skip

    def __init__(
        self, now_s: float, since_s: float, share: float, grid: Sequence[float], gap_s: float,
        slots: int = 256, room_tokens: int = 1 << 40,
    ) -> None:  # fmt: skip
        self.now_s, self.since_s, self.share, self.grid, self.gap_s = (
            now_s, since_s, share, tuple(grid), gap_s
        )  # fmt: skip
        self.slots, self.room_tokens = slots, room_tokens
        self.arrived: list[int] = []
        self.targets: list[float] = []  # seconds to the first token that each arrival expects
        self.ended: list[int] = []
        self.firsts: list[tuple[float, float]] = []
        self.prefills: list[Prefilled] = []
        self.decodes: list[Decoded] = []
        self.waiting = self.waiting_tokens = self.running = self.kv_tokens = 0

    def __len__(self) -> int:
        return self.waiting + self.running


class PhasePolicy(Policy):
    """Shares a number of accelerators among the phases of requests.

    `places` says which engines there are; the others have sensible answers already. `route` names
    the engine that computes a prompt, `hand_over` the one that decodes after a prefill engine (-1:
    nobody has room yet). `share` is asked every `ask_s` of a split engine, in each of the engines
    by itself, and gives one of the view's grid.
    """

    def places(self, site: Site) -> list[Place]:
        raise PartError(f"{type(self).__name__} has no places(site); say which engines there are")

    def route(self, request: Asked, engines: Sequence[EngineView]) -> int:
        """Where the fewest prompt tokens wait, then where the fewest requests decode."""
        takers = [each for each in engines if each.role != "decode"]
        if not takers:
            return -1
        return min(takers, key=lambda e: (e.waiting_tokens, e.running, e.index)).index

    def hand_over(self, request: Asked, engines: Sequence[EngineView]) -> int:
        """The decode engine with the most room, if the request fits into it."""
        takers = [each for each in engines if each.role == "decode"]
        if not takers:
            return -1
        best = max(takers, key=lambda e: (e.free_tokens, -e.index))
        return best.index if best.free_tokens > request.prompt_tokens else -1

    def ask_s(self) -> float:
        """How often `share` wants to be asked; never, unless told."""
        return math.inf

    def share(self, view: SplitView) -> float:
        """The prefill share from now on."""
        return view.share

    def watcher(self) -> PhasePolicy:
        """The policy that one more split engine asks: its books are its own."""
        made = self.with_knobs()
        made.start()
        return made


def why_illegal(places: Sequence[Place], site: Site) -> str:
    """What is wrong with a choice of engines; empty when nothing is."""
    if not places:
        return "no engine at all"
    for number, place in enumerate(places):
        name = f"places[{number}]"
        if place.role not in ROLES:
            return f"{name}: role {place.role!r} is none of {', '.join(ROLES)}"
        if place.devices not in site.room:
            return (f"{name}: {place.devices} devices do not hold the model; give one of "
                    f"{sorted(site.room)}")  # fmt: skip
        if place.role == "split" and not 0 < place.share < 1:
            return f"{name}: share {place.share!r} is not between 0 and 1"
        if place.chunk < 0:
            return f"{name}: chunk {place.chunk} is negative"
    used = sum(place.devices for place in places)
    if used > site.devices:
        return f"{used} devices used of {site.devices}"
    roles = {place.role for place in places}
    if ("prefill" in roles) != ("decode" in roles):
        return "prefill engines need decode engines, and the other way round"
    return ""


__all__ = [
    "ROLES", "Asked", "Decoded", "EngineView", "PhasePolicy", "Place", "Prefilled", "Role", "Site",
    "SplitView", "why_illegal",
]  # fmt: skip
