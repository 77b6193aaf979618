"""Kademlia in two halves: `buckets` (what a node knows: arithmetic), `node` (what it does)."""

from orrery.systems.protocols.baselines.kademlia.node import Kademlia

__all__ = ["Kademlia"]
