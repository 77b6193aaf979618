"""DHT agent discovery: one directory of agents on three indexes, and what each costs."""

from orrery.systems.protocols.agent_discovery_dhts.directory import AgentDirectory
from orrery.systems.protocols.agent_discovery_dhts.overlays import (
    ChordDirectory,
    KademliaDirectory,
    PastryDirectory,
)

__all__ = ["AgentDirectory", "ChordDirectory", "KademliaDirectory", "PastryDirectory"]
