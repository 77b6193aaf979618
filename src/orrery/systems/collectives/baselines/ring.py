"""The ring, which is also what a `Worker` uses when nothing else is said."""

from __future__ import annotations

from orrery.parts.collectives import Ring

__all__ = ["Ring"]
