"""Protocols: how machines that fail and links that lose agree, spread news and find things.

The room's problems with their ports, the classics that answer them, and the published systems. The
names load when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orrery.base.doors import door

_ROOM = "orrery.systems.protocols"
_HOMES = {
    # the questions
    "AgentDiscovery": f"{_ROOM}.problems.agent_discovery",
    "AtomicCommit": f"{_ROOM}.problems.atomic_commit",
    "CommitProtocol": f"{_ROOM}.problems.atomic_commit",
    "Coordinator": f"{_ROOM}.problems.atomic_commit",
    "Participant": f"{_ROOM}.problems.atomic_commit",
    "Blockchain": f"{_ROOM}.problems.blockchain",
    "ChainNode": f"{_ROOM}.problems.blockchain",
    "Broadcast": f"{_ROOM}.problems.broadcast",
    "Broadcaster": f"{_ROOM}.problems.broadcast",
    "DataLink": f"{_ROOM}.problems.data_link",
    "LinkEnd": f"{_ROOM}.problems.data_link",
    "DirectoryNode": f"{_ROOM}.problems.directory_node",
    "HistoryJudge": f"{_ROOM}.problems.history_model",
    "HistoryModel": f"{_ROOM}.problems.history_model",
    "LocalAlgorithm": f"{_ROOM}.problems.local_rounds",
    "LocalRounds": f"{_ROOM}.problems.local_rounds",
    "Lookup": f"{_ROOM}.problems.lookup",
    "Overlay": f"{_ROOM}.problems.lookup",
    "MeetingAgent": f"{_ROOM}.problems.population_agent",
    "PopulationAgent": f"{_ROOM}.problems.population_agent",
    "PropertyVerification": f"{_ROOM}.problems.property_verification",
    "Verifier": f"{_ROOM}.problems.property_verification",
    "ReliableBroadcast": f"{_ROOM}.problems.reliable_broadcast",
    "ReliableBroadcaster": f"{_ROOM}.problems.reliable_broadcast",
    "ReplicatedStore": f"{_ROOM}.problems.replicated_store",
    "StoreNode": f"{_ROOM}.problems.replicated_store",
    "ReplicatedViews": f"{_ROOM}.problems.replicated_views",
    "ViewStore": f"{_ROOM}.problems.replicated_views",
    "Stabilisation": f"{_ROOM}.problems.stabilisation",
    "OrderNode": f"{_ROOM}.problems.total_order",
    "TotalOrder": f"{_ROOM}.problems.total_order",
    # the classics
    "AlternatingBit": f"{_ROOM}.baselines.alternating_bit",
    "Bracha": f"{_ROOM}.baselines.bracha",
    "BrachaHashes": f"{_ROOM}.baselines.bracha_hashes",
    "CausalStore": f"{_ROOM}.baselines.causal_store",
    "CentralRegistry": f"{_ROOM}.baselines.central_registry",
    "Chord": f"{_ROOM}.baselines.chord",
    "ClassicalCheckers": f"{_ROOM}.baselines.classical_checkers",
    "CodedBroadcast": f"{_ROOM}.baselines.coded_broadcast",
    "ColeVishkin": f"{_ROOM}.baselines.cole_vishkin",
    "CountingPopulation": f"{_ROOM}.baselines.counting_population",
    "DolevStrong": f"{_ROOM}.baselines.dolev_strong",
    "ExplicitState": f"{_ROOM}.baselines.explicit_state",
    "Flood": f"{_ROOM}.baselines.flood",
    "FloodSearch": f"{_ROOM}.baselines.flood_search",
    "FullViewElection": f"{_ROOM}.baselines.full_view_election",
    "GreedyById": f"{_ROOM}.baselines.greedy_by_id",
    "GreedyMis": f"{_ROOM}.baselines.greedy_mis",
    "Kademlia": f"{_ROOM}.baselines.kademlia",
    "LeaderAutomaton": f"{_ROOM}.baselines.leader_automaton",
    "LubyMis": f"{_ROOM}.baselines.luby_mis",
    "LWWStore": f"{_ROOM}.baselines.lww_store",
    "OneHopGossip": f"{_ROOM}.baselines.one_hop_gossip",
    "Pastry": f"{_ROOM}.baselines.pastry",
    "Pbft": f"{_ROOM}.baselines.pbft",
    "PresburgerPopulation": f"{_ROOM}.baselines.presburger_population",
    "ProofOfWork": f"{_ROOM}.baselines.proof_of_work",
    "PushGossip": f"{_ROOM}.baselines.push_gossip",
    "Raft": f"{_ROOM}.baselines.raft",
    "RandomWalks": f"{_ROOM}.baselines.random_walks",
    "SampledBroadcast": f"{_ROOM}.baselines.sampled_broadcast",
    "TwoPhaseCommit": f"{_ROOM}.baselines.two_phase_commit",
    "TwoPhaseCoordinator": f"{_ROOM}.baselines.two_phase_commit",
    "TwoPhaseParticipant": f"{_ROOM}.baselines.two_phase_commit",
    # the published systems
    "AgentDirectory": f"{_ROOM}.agent_discovery_dhts",
    "AmortizedBRB": f"{_ROOM}.amortized_brb",
    "LightCone": f"{_ROOM}.light_cone_consistency",
    "OrderedPopulation": f"{_ROOM}.ordered_population_protocols",
    "LargestId": f"{_ROOM}.ordinary_node",
    "OrdinaryNode": f"{_ROOM}.ordinary_node",
    "Quantas2": f"{_ROOM}.quantas2",
    "Taco": f"{_ROOM}.taco",
    "BinaryConsensus": f"{_ROOM}.problems.binary_consensus",
    "BinaryNode": f"{_ROOM}.problems.binary_consensus",
    "DirectedConsensus": f"{_ROOM}.problems.directed_consensus",
    "DirectedNode": f"{_ROOM}.problems.directed_node",
    "HotStuff": f"{_ROOM}.baselines.hotstuff",
    "BenOr": f"{_ROOM}.baselines.ben_or",
    "DolevStrongConsensus": f"{_ROOM}.baselines.dolev_strong_consensus",
    "UnsignedDirected": f"{_ROOM}.baselines.unsigned_directed",
    "MinMaxCrash": f"{_ROOM}.baselines.min_max_crash",
    "TrimmedMean": f"{_ROOM}.baselines.trimmed_mean",
    "DirectedAuth": f"{_ROOM}.directed_byzantine_auth",
}

__all__ = [
    "AgentDirectory", "AgentDiscovery", "AlternatingBit", "AmortizedBRB", "AtomicCommit", "BenOr",
    "BinaryConsensus", "BinaryNode", "Blockchain", "Bracha", "BrachaHashes", "Broadcast",
    "Broadcaster", "CausalStore", "CentralRegistry", "ChainNode", "Chord", "ClassicalCheckers",
    "CodedBroadcast", "ColeVishkin", "CommitProtocol", "Coordinator", "CountingPopulation",
    "DataLink", "DirectedAuth", "DirectedConsensus", "DirectedNode", "DirectoryNode",
    "DolevStrong", "DolevStrongConsensus", "ExplicitState", "Flood", "FloodSearch",
    "FullViewElection", "GreedyById", "GreedyMis", "HistoryJudge", "HistoryModel", "HotStuff",
    "Kademlia", "LWWStore", "LargestId", "LeaderAutomaton", "LightCone", "LinkEnd",
    "LocalAlgorithm", "LocalRounds", "Lookup", "LubyMis", "MeetingAgent", "MinMaxCrash",
    "OneHopGossip", "OrderNode", "OrderedPopulation", "OrdinaryNode", "Overlay", "Participant",
    "Pastry", "Pbft", "PopulationAgent", "PresburgerPopulation", "ProofOfWork",
    "PropertyVerification", "PushGossip", "Quantas2", "Raft", "RandomWalks", "ReliableBroadcast",
    "ReliableBroadcaster", "ReplicatedStore", "ReplicatedViews", "SampledBroadcast",
    "Stabilisation", "StoreNode", "Taco", "TotalOrder", "TrimmedMean", "TwoPhaseCommit",
    "TwoPhaseCoordinator", "TwoPhaseParticipant", "UnsignedDirected", "Verifier", "ViewStore",
]  # fmt: skip

if TYPE_CHECKING:
    from orrery.systems.protocols.agent_discovery_dhts import AgentDirectory
    from orrery.systems.protocols.amortized_brb import AmortizedBRB
    from orrery.systems.protocols.baselines.alternating_bit import AlternatingBit
    from orrery.systems.protocols.baselines.ben_or import BenOr
    from orrery.systems.protocols.baselines.bracha import Bracha
    from orrery.systems.protocols.baselines.bracha_hashes import BrachaHashes
    from orrery.systems.protocols.baselines.causal_store import CausalStore
    from orrery.systems.protocols.baselines.central_registry import CentralRegistry
    from orrery.systems.protocols.baselines.chord import Chord
    from orrery.systems.protocols.baselines.classical_checkers import ClassicalCheckers
    from orrery.systems.protocols.baselines.coded_broadcast import CodedBroadcast
    from orrery.systems.protocols.baselines.cole_vishkin import ColeVishkin
    from orrery.systems.protocols.baselines.counting_population import CountingPopulation
    from orrery.systems.protocols.baselines.dolev_strong import DolevStrong
    from orrery.systems.protocols.baselines.dolev_strong_consensus import DolevStrongConsensus
    from orrery.systems.protocols.baselines.explicit_state import ExplicitState
    from orrery.systems.protocols.baselines.flood import Flood
    from orrery.systems.protocols.baselines.flood_search import FloodSearch
    from orrery.systems.protocols.baselines.full_view_election import FullViewElection
    from orrery.systems.protocols.baselines.greedy_by_id import GreedyById
    from orrery.systems.protocols.baselines.greedy_mis import GreedyMis
    from orrery.systems.protocols.baselines.hotstuff import HotStuff
    from orrery.systems.protocols.baselines.kademlia import Kademlia
    from orrery.systems.protocols.baselines.leader_automaton import LeaderAutomaton
    from orrery.systems.protocols.baselines.luby_mis import LubyMis
    from orrery.systems.protocols.baselines.lww_store import LWWStore
    from orrery.systems.protocols.baselines.min_max_crash import MinMaxCrash
    from orrery.systems.protocols.baselines.one_hop_gossip import OneHopGossip
    from orrery.systems.protocols.baselines.pastry import Pastry
    from orrery.systems.protocols.baselines.pbft import Pbft
    from orrery.systems.protocols.baselines.presburger_population import PresburgerPopulation
    from orrery.systems.protocols.baselines.proof_of_work import ProofOfWork
    from orrery.systems.protocols.baselines.push_gossip import PushGossip
    from orrery.systems.protocols.baselines.raft import Raft
    from orrery.systems.protocols.baselines.random_walks import RandomWalks
    from orrery.systems.protocols.baselines.sampled_broadcast import SampledBroadcast
    from orrery.systems.protocols.baselines.trimmed_mean import TrimmedMean
    from orrery.systems.protocols.baselines.two_phase_commit import (
        TwoPhaseCommit,
        TwoPhaseCoordinator,
        TwoPhaseParticipant,
    )
    from orrery.systems.protocols.baselines.unsigned_directed import UnsignedDirected
    from orrery.systems.protocols.directed_byzantine_auth import DirectedAuth
    from orrery.systems.protocols.light_cone_consistency import LightCone
    from orrery.systems.protocols.ordered_population_protocols import OrderedPopulation
    from orrery.systems.protocols.ordinary_node import LargestId, OrdinaryNode
    from orrery.systems.protocols.problems.agent_discovery import AgentDiscovery
    from orrery.systems.protocols.problems.atomic_commit import (
        AtomicCommit,
        CommitProtocol,
        Coordinator,
        Participant,
    )
    from orrery.systems.protocols.problems.binary_consensus import BinaryConsensus, BinaryNode
    from orrery.systems.protocols.problems.blockchain import Blockchain, ChainNode
    from orrery.systems.protocols.problems.broadcast import Broadcast, Broadcaster
    from orrery.systems.protocols.problems.data_link import DataLink, LinkEnd
    from orrery.systems.protocols.problems.directed_consensus import DirectedConsensus
    from orrery.systems.protocols.problems.directed_node import DirectedNode
    from orrery.systems.protocols.problems.directory_node import DirectoryNode
    from orrery.systems.protocols.problems.history_model import HistoryJudge, HistoryModel
    from orrery.systems.protocols.problems.local_rounds import LocalAlgorithm, LocalRounds
    from orrery.systems.protocols.problems.lookup import Lookup, Overlay
    from orrery.systems.protocols.problems.population_agent import MeetingAgent, PopulationAgent
    from orrery.systems.protocols.problems.property_verification import (
        PropertyVerification,
        Verifier,
    )
    from orrery.systems.protocols.problems.reliable_broadcast import (
        ReliableBroadcast,
        ReliableBroadcaster,
    )
    from orrery.systems.protocols.problems.replicated_store import ReplicatedStore, StoreNode
    from orrery.systems.protocols.problems.replicated_views import ReplicatedViews, ViewStore
    from orrery.systems.protocols.problems.stabilisation import Stabilisation
    from orrery.systems.protocols.problems.total_order import OrderNode, TotalOrder
    from orrery.systems.protocols.quantas2 import Quantas2
    from orrery.systems.protocols.taco import Taco


__getattr__, __dir__ = door(__name__, _HOMES)
