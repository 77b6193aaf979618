"""HotStuff in four files: `messages` (data, chain), `voting`, `pacemaker` (node), `adversary`."""

from orrery.systems.protocols.baselines.hotstuff.pacemaker import HotStuff

__all__ = ["HotStuff"]
