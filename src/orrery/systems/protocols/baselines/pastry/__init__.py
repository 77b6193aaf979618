"""Pastry in two halves: `tables` (what a node knows: plain arithmetic), `node` (what it does)."""

from orrery.systems.protocols.baselines.pastry.node import Pastry

__all__ = ["Pastry"]
