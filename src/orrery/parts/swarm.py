"""`Swarm`: a population of agents as arrays, for a million of them.

The third tier. A coroutine node is one object with one stack; where the state is flat and the rule
is the same for all, a swarm holds each field of all agents in one array and steps them together,
one window at a time. A window is the smallest latency of the world, so nothing that is sent in a
window can arrive in it, and the order of events stays that of the other tiers: by time, then by
sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from orrery.base.errors import PartError
from orrery.parts.knobs import Part

if TYPE_CHECKING:
    from orrery.world import World

Ints = npt.NDArray[np.int64]


class Mail:
    """Messages as columns: `src`, `dst`, and one array for each field of the payload."""

    __slots__ = ("columns", "dst", "src")

    def __init__(self, src: Any, dst: Any, **columns: Any) -> None:
        self.src: Ints = np.atleast_1d(np.asarray(src, dtype=np.int64))
        self.dst: Ints = np.atleast_1d(np.asarray(dst, dtype=np.int64))
        if self.src.shape != self.dst.shape or self.src.ndim != 1:
            raise PartError(
                f"Mail: src has shape {self.src.shape} and dst {self.dst.shape}; "
                "give one sender and one receiver for each message"
            )
        self.columns: dict[str, npt.NDArray[Any]] = {}
        for name, values in columns.items():
            column = np.broadcast_to(np.asarray(values), self.src.shape)
            self.columns[name] = column

    def __len__(self) -> int:
        return len(self.src)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        try:
            return self.columns[name]
        except KeyError:
            known = ", ".join(self.columns) or "none"
            raise PartError(f"Mail has no column {name!r}; it has: {known}") from None

    def take(self, which: Any) -> Mail:
        """Some of the messages, by index or mask, in that order."""
        picked = Mail(self.src[which], self.dst[which])
        picked.columns = {name: column[which] for name, column in self.columns.items()}
        return picked

    @staticmethod
    def join(parts: list[Mail]) -> Mail:
        """Several lots of mail as one, in order; they must have the same columns."""
        lots = [part for part in parts if len(part)]
        if not lots:
            return parts[0] if parts else Mail([], [])
        names = list(lots[0].columns)
        if any(list(lot.columns) != names for lot in lots):
            raise PartError("Mail: all messages of a swarm carry the same columns, in one order")
        joined = Mail(
            np.concatenate([lot.src for lot in lots]), np.concatenate([lot.dst for lot in lots])
        )
        for name in names:
            joined.columns[name] = np.concatenate([lot.columns[name] for lot in lots])
        return joined


class Swarm(Part):
    """A population of agents: `start()` makes the arrays, `step(mail)` moves all by one window.

    While it runs it has `n` (agents), `now` (seconds), `rng` (a NumPy generator of the seed),
    `alive` (a mask that faults change) and `emit(**values)`. `mail` holds what arrived in this
    window, ordered by receiver, then time, then sequence. What `step` returns is sent. The run
    ends when `step` returns nothing, no mail is under way and `idle()` says so.
    """

    # Agents act at most once per window; a coarser clock can be set where the rule allows it.
    window_s: ClassVar[float | None] = None

    n: ClassVar[int]
    now: ClassVar[float]
    rng: ClassVar[np.random.Generator]
    alive: ClassVar[npt.NDArray[np.bool_]]
    world: ClassVar[World]

    def start(self) -> None:
        """Make the arrays."""

    def step(self, mail: Mail) -> Mail | None:
        """Handle what arrived, act, and give what is sent."""
        raise PartError(f"{type(self).__name__} has no step(mail); write what the agents do there")

    def idle(self) -> bool:
        """Whether the agents would stay silent if no more mail came."""
        return True

    def revived(self, agents: Ints) -> None:
        """Agents that come back after a crash: reset their rows here."""

    def emit(self, **values: Any) -> None:
        raise PartError("emit() exists only while the swarm runs; start it with orrery.run(…)")

    def outcome(self) -> Mapping[str, Any]:
        """What the problem is given when the run has ended, besides the emitted records."""
        return {}
