"""Raft with a key-value store: `log`, `storage`, `machine`, then the node in four layers.

Read them in this order: `log` (entries in memory), `storage` (what survives a crash), `machine`
(the store and its client sessions), `core` (terms, roles, applying), `elections`, `replication`,
`node` (what clients call).
"""

from orrery.systems.protocols.baselines.raft.node import Raft

__all__ = ["Raft"]
