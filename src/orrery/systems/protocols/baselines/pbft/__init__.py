"""PBFT in four files: `messages` and `deciding` (data, pure rules), `ordering`, `views` (node)."""

from orrery.systems.protocols.baselines.pbft.views import Pbft

__all__ = ["Pbft"]
