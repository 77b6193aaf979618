"""Protocols: how machines that fail and links that lose agree, spread news and find things.

The room's problems, each with its port, and the classics that answer them. The names load when
they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orrery.base.doors import door

_PROBLEMS = "orrery.systems.protocols.problems"
_BASELINES = "orrery.systems.protocols.baselines"
_HOMES = {
    "AtomicCommit": _PROBLEMS,
    "Broadcast": _PROBLEMS,
    "Broadcaster": _PROBLEMS,
    "CommitProtocol": _PROBLEMS,
    "Coordinator": _PROBLEMS,
    "Lookup": _PROBLEMS,
    "Overlay": _PROBLEMS,
    "Participant": _PROBLEMS,
    "ReplicatedStore": _PROBLEMS,
    "StoreNode": _PROBLEMS,
    "Chord": _BASELINES,
    "Flood": _BASELINES,
    "PushGossip": _BASELINES,
    "Raft": _BASELINES,
    "TwoPhaseCommit": _BASELINES,
    "TwoPhaseCoordinator": _BASELINES,
    "TwoPhaseParticipant": _BASELINES,
}

__all__ = [
    "AtomicCommit",
    "Broadcast",
    "Broadcaster",
    "Chord",
    "CommitProtocol",
    "Coordinator",
    "Flood",
    "Lookup",
    "Overlay",
    "Participant",
    "PushGossip",
    "Raft",
    "ReplicatedStore",
    "StoreNode",
    "TwoPhaseCommit",
    "TwoPhaseCoordinator",
    "TwoPhaseParticipant",
]

if TYPE_CHECKING:
    from orrery.systems.protocols.baselines import (
        Chord,
        Flood,
        PushGossip,
        Raft,
        TwoPhaseCommit,
        TwoPhaseCoordinator,
        TwoPhaseParticipant,
    )
    from orrery.systems.protocols.problems import (
        AtomicCommit,
        Broadcast,
        Broadcaster,
        CommitProtocol,
        Coordinator,
        Lookup,
        Overlay,
        Participant,
        ReplicatedStore,
        StoreNode,
    )


__getattr__, __dir__ = door(__name__, _HOMES)
