"""The algorithms and problems that an experiment file may name, loaded when they are used.

Beside these, `module:Class` names any part or problem that can be imported.
"""

from __future__ import annotations

import importlib
from typing import Any

from orrery.base.errors import OrreryError, SpecError, did_you_mean
from orrery.parts import Node, Problem

_ROOM = "orrery.systems.protocols"
ALGORITHMS = {
    "alternating_bit": ("baselines.alternating_bit", "AlternatingBit"),
    "chord": ("baselines.chord", "Chord"),
    "flood": ("baselines.flood", "Flood"),
    "kademlia": ("baselines.kademlia", "Kademlia"),
    "pastry": ("baselines.pastry", "Pastry"),
    "pbft": ("baselines.pbft", "Pbft"),
    "proof_of_work": ("baselines.proof_of_work", "ProofOfWork"),
    "push_gossip": ("baselines.push_gossip", "PushGossip"),
    "raft": ("baselines.raft", "Raft"),
}
PROBLEMS = {
    "blockchain": ("problems.blockchain", "Blockchain"),
    "broadcast": ("problems.broadcast", "Broadcast"),
    "data_link": ("problems.data_link", "DataLink"),
    "lookup": ("problems.lookup", "Lookup"),
    "replicated_store": ("problems.replicated_store", "ReplicatedStore"),
    "total_order": ("problems.total_order", "TotalOrder"),
}


def algorithm(name: str, path: str) -> type[Node]:
    """The class of an algorithm; `path` is the field that names it."""
    found: type[Node] = _find(name, ALGORITHMS, Node, path)
    return found


def problem(name: str, path: str) -> type[Problem]:
    """The class of a problem; `path` is the field that names it."""
    found: type[Problem] = _find(name, PROBLEMS, Problem, path)
    return found


def _find(name: str, table: dict[str, tuple[str, str]], kind: type, path: str) -> Any:
    if ":" in name:
        module, _, cls = name.rpartition(":")
    elif name in table:
        home, cls = table[name]
        module = f"{_ROOM}.{home}"
    else:
        raise SpecError(path, f"unknown name {name!r:.60}", did_you_mean(name, table))
    try:
        found = getattr(importlib.import_module(module), cls, None)
    except OrreryError:
        raise
    except Exception as failure:
        why = f"{type(failure).__name__}: {failure}"
        raise SpecError(path, f"{module} cannot be imported: {why}", "check the name") from None
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise SpecError(path, f"{name!r:.60} is no {kind.__name__}", f"name a {kind.__name__}")
    return found
