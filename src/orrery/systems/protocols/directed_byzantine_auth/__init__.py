"""Signed consensus in directed graphs: conditions, two machines, the node, its liars, attacks."""

from orrery.systems.protocols.directed_byzantine_auth.node import DirectedAuth

__all__ = ["DirectedAuth"]
