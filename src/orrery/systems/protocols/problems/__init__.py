"""The questions of this room: broadcast, lookup, atomic commit, a replicated store."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOMES = {
    "AtomicCommit": "atomic_commit",
    "Broadcast": "broadcast",
    "Broadcaster": "broadcast",
    "CommitProtocol": "atomic_commit",
    "Coordinator": "atomic_commit",
    "Lookup": "lookup",
    "Overlay": "lookup",
    "Participant": "atomic_commit",
    "ReplicatedStore": "replicated_store",
    "StoreNode": "replicated_store",
}

__all__ = [
    "AtomicCommit",
    "Broadcast",
    "Broadcaster",
    "CommitProtocol",
    "Coordinator",
    "Lookup",
    "Overlay",
    "Participant",
    "ReplicatedStore",
    "StoreNode",
]

if TYPE_CHECKING:
    from orrery.systems.protocols.problems.atomic_commit import (
        AtomicCommit,
        CommitProtocol,
        Coordinator,
        Participant,
    )
    from orrery.systems.protocols.problems.broadcast import Broadcast, Broadcaster
    from orrery.systems.protocols.problems.lookup import Lookup, Overlay
    from orrery.systems.protocols.problems.replicated_store import ReplicatedStore, StoreNode


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
