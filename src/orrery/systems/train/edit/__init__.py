"""EDiT and A-EDiT: local steps on a mesh, layers synchronised one by one in the forward pass."""

from __future__ import annotations

from orrery.systems.train.edit.penalty import Watch, shares, within
from orrery.systems.train.edit.training import EDiT

__all__ = ["EDiT", "Watch", "shares", "within"]
