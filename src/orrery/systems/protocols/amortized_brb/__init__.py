"""Amortised reliable broadcast: `chain` (hashes and who said what), `node`, `adversary` (liars)."""

from orrery.systems.protocols.amortized_brb.node import AmortizedBRB

__all__ = ["AmortizedBRB"]
