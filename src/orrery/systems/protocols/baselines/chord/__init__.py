"""Chord in two halves: `pointers` (what a node knows: plain arithmetic), `node` (what it does)."""

from orrery.systems.protocols.baselines.chord.node import Chord

__all__ = ["Chord"]
