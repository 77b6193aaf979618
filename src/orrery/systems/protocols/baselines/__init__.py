"""The classics of this room, one file each: the rivals that newer systems are compared with."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOMES = {
    "Chord": "chord",
    "Flood": "flood",
    "PushGossip": "push_gossip",
    "Raft": "raft",
    "TwoPhaseCommit": "two_phase_commit",
    "TwoPhaseCoordinator": "two_phase_commit",
    "TwoPhaseParticipant": "two_phase_commit",
}

__all__ = [
    "Chord",
    "Flood",
    "PushGossip",
    "Raft",
    "TwoPhaseCommit",
    "TwoPhaseCoordinator",
    "TwoPhaseParticipant",
]

if TYPE_CHECKING:
    from orrery.systems.protocols.baselines.chord import Chord
    from orrery.systems.protocols.baselines.flood import Flood
    from orrery.systems.protocols.baselines.push_gossip import PushGossip
    from orrery.systems.protocols.baselines.raft import Raft
    from orrery.systems.protocols.baselines.two_phase_commit import (
        TwoPhaseCommit,
        TwoPhaseCoordinator,
        TwoPhaseParticipant,
    )


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
