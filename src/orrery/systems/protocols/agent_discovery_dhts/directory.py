"""`AgentDirectory`: the study's part: one control plane, the overlay below it is a knob."""

from __future__ import annotations

from typing import Literal

from orrery.parts import Count, Node, Positive
from orrery.parts.knobs import Part
from orrery.systems.protocols.agent_discovery_dhts.overlays import (
    ChordDirectory,
    KademliaDirectory,
    PastryDirectory,
)
from orrery.systems.protocols.problems.capability_records import Scheme
from orrery.systems.protocols.problems.lookup import Bits

# A period that no run outlives: the upkeep is off.
NEVER_S = 1e8


class AgentDirectory(Part):
    """A directory of agents on Chord, Pastry or Kademlia, with one interface and one set of timers.

    From "Trade-offs in Decentralized Agentic AI Discovery Across the Compute Continuum" (2026),
    which compares the three as the index behind a directory of AI agents.

    How it works: an agent publishes a signed record of what it can do, with a time to live, on
    `replicas` nodes that the overlay finds by the hash of the capability; it publishes it anew
    every `refresh_s`. Who looks for a capability gets the records from the first of these nodes
    that has a good one, and checks key, token and end of each. `join`, `leave`, `publish`,
    `refresh` and `discover` are the same methods for all three overlays, and so are the timers: the
    period of upkeep is Chord's of stabilisation and of one finger, Pastry's of one exchange of
    leaves and of one row, Kademlia's of one search.

    Knobs: `overlay`; `period_s`, the period of upkeep; `maintain`, the upkeep as a whole (off: only
    what lookups themselves find out is mended); `refresh_s`; `replicas` (Kademlia's k and Chord's
    list of successors have at least this length); `timeout_s`, the least wait for an answer;
    `find_s`, the least wait for a whole lookup; `signature`, "keyed" or "ed25519" (the extra
    `cryptography`); `verify`, the check of records; `warm`, to begin with the tables of a network
    at rest, which each node cuts from the sorted list of all places, so that 100,000 nodes stand at
    once (off: every node joins by messages); `bits` of an identifier.

    Differs from the paper: only its abstract was at hand, so the timers, the sizes of the tables,
    the world and the workload are ours. Records are re-published by their agents alone; holders do
    not hand them on when the network shifts. A node now and then compares notes with a random
    peer, every four periods, so that a network that was cut in two becomes one again; the classics
    do not. The keyed token stands for a public-key signature: everybody could compute it, and the
    liars of the tests do not.

    >>> AgentDirectory(overlay="chord", period_s=30.0).node().stabilise_s
    30.0
    """

    overlay: Literal["chord", "pastry", "kademlia"] = "kademlia"
    period_s: Positive = 0.5
    maintain: bool = True
    refresh_s: Positive = 2.0
    replicas: Count = 8
    timeout_s: Positive = 0.05
    find_s: Positive = 0.5
    signature: Scheme = "keyed"
    verify: bool = True
    warm: bool = True
    bits: Bits = 48

    @property
    def tolerates(self) -> tuple[str, ...]:
        """What the nodes survive."""
        return self.node().tolerates

    def roles(self) -> dict[str, Node]:
        """The one role that every machine plays."""
        return {"node": self.node()}

    def node(self) -> Node:
        """The node of this directory: the overlay's class with the timers set."""
        period_s = self.period_s if self.maintain else NEVER_S
        shared = {
            "refresh_s": self.refresh_s, "replicas": self.replicas, "timeout_s": self.timeout_s,
            "signature": self.signature, "verify": self.verify, "warm": self.warm,
            "bits": self.bits, "meet_s": 4 * period_s,
        }  # fmt: skip
        if self.overlay == "chord":
            return ChordDirectory(**shared, stabilise_s=period_s, fix_s=period_s,
                                  find_s=self.find_s, successors=max(8, self.replicas))  # fmt: skip
        if self.overlay == "pastry":
            leaves = max(16, 2 * self.replicas)
            return PastryDirectory(**shared, probe_s=period_s, find_s=self.find_s, leaves=leaves)
        # The refresh of buckets and of records are two timers, though both are called refresh_s.
        return KademliaDirectory(**shared, upkeep_s=period_s, k=max(8, self.replicas))
