"""Collectives: how the ranks of a group sum, spread and exchange arrays, fast and exactly.

The room's problems with their ports, the classics that answer them, and the published systems. The
names load when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orrery.base.doors import door

_HOMES = {
    "AllReduce": "orrery.systems.collectives.problems.all_reduce",
    "AttentionJob": "orrery.systems.collectives.problems.long_attention",
    "BidirectionalRing": "orrery.systems.collectives.baselines.bidirectional_ring",
    "CastRing": "orrery.systems.collectives.baselines.cast_ring",
    "CheckpointRestart": "orrery.systems.collectives.baselines.checkpoint_restart",
    "ChurnedAllReduce": "orrery.systems.collectives.problems.churned_all_reduce",
    "Collective": "orrery.parts.collectives",
    "CompressedAllReduce": "orrery.systems.collectives.problems.compressed_all_reduce",
    "CoupledRing": "orrery.systems.collectives.baselines.coupled_ring",
    "Direct": "orrery.systems.collectives.baselines.direct",
    "Elastic": "orrery.systems.collectives.problems.elastic_peer",
    "ElasticServer": "orrery.systems.collectives.baselines.elastic_server",
    "LASP": "orrery.systems.collectives.baselines.lasp",
    "LASP2": "orrery.systems.collectives.baselines.lasp2",
    "LinearRing": "orrery.systems.collectives.baselines.linear_ring",
    "LinearSingle": "orrery.systems.collectives.baselines.linear_single",
    "LinearUlysses": "orrery.systems.collectives.baselines.linear_ulysses",
    "LongAttention": "orrery.systems.collectives.problems.long_attention",
    "LongLinearAttention": "orrery.systems.collectives.problems.long_linear_attention",
    "NCCLZ": "orrery.systems.collectives.ncclz",
    "OuterTraining": "orrery.systems.collectives.problems.outer_training",
    "PCCL": "orrery.systems.collectives.pccl",
    "QuantisedRing": "orrery.systems.collectives.baselines.quantised_ring",
    "RecursiveDoubling": "orrery.systems.collectives.baselines.recursive_doubling",
    "RecursiveHalving": "orrery.systems.collectives.baselines.recursive_halving",
    "Ring": "orrery.systems.collectives.baselines.ring",
    "RingAttention": "orrery.systems.collectives.baselines.ring_attention",
    "SequenceAttention": "orrery.systems.collectives.problems.long_attention",
    "SequenceLinearAttention": "orrery.systems.collectives.problems.long_linear_attention",
    "SingleDevice": "orrery.systems.collectives.baselines.single_device",
    "Star": "orrery.systems.collectives.baselines.star",
    "StaticGroup": "orrery.systems.collectives.baselines.static_group",
    "TokenRing": "orrery.systems.collectives.tokenring",
    "Tree": "orrery.systems.collectives.baselines.tree",
    "Ulysses": "orrery.systems.collectives.baselines.ulysses",
    "ZeCO": "orrery.systems.collectives.zeco",
    "ZigzagRing": "orrery.systems.collectives.baselines.zigzag_ring",
}

__all__ = [
    "LASP",
    "LASP2",
    "NCCLZ",
    "PCCL",
    "AllReduce",
    "AttentionJob",
    "BidirectionalRing",
    "CastRing",
    "CheckpointRestart",
    "ChurnedAllReduce",
    "Collective",
    "CompressedAllReduce",
    "CoupledRing",
    "Direct",
    "Elastic",
    "ElasticServer",
    "LinearRing",
    "LinearSingle",
    "LinearUlysses",
    "LongAttention",
    "LongLinearAttention",
    "OuterTraining",
    "QuantisedRing",
    "RecursiveDoubling",
    "RecursiveHalving",
    "Ring",
    "RingAttention",
    "SequenceAttention",
    "SequenceLinearAttention",
    "SingleDevice",
    "Star",
    "StaticGroup",
    "TokenRing",
    "Tree",
    "Ulysses",
    "ZeCO",
    "ZigzagRing",
]

if TYPE_CHECKING:
    from orrery.parts.collectives import Collective
    from orrery.systems.collectives.baselines.bidirectional_ring import BidirectionalRing
    from orrery.systems.collectives.baselines.cast_ring import CastRing
    from orrery.systems.collectives.baselines.checkpoint_restart import CheckpointRestart
    from orrery.systems.collectives.baselines.coupled_ring import CoupledRing
    from orrery.systems.collectives.baselines.direct import Direct
    from orrery.systems.collectives.baselines.elastic_server import ElasticServer
    from orrery.systems.collectives.baselines.lasp import LASP
    from orrery.systems.collectives.baselines.lasp2 import LASP2
    from orrery.systems.collectives.baselines.linear_ring import LinearRing
    from orrery.systems.collectives.baselines.linear_single import LinearSingle
    from orrery.systems.collectives.baselines.linear_ulysses import LinearUlysses
    from orrery.systems.collectives.baselines.quantised_ring import QuantisedRing
    from orrery.systems.collectives.baselines.recursive_doubling import RecursiveDoubling
    from orrery.systems.collectives.baselines.recursive_halving import RecursiveHalving
    from orrery.systems.collectives.baselines.ring import Ring
    from orrery.systems.collectives.baselines.ring_attention import RingAttention
    from orrery.systems.collectives.baselines.single_device import SingleDevice
    from orrery.systems.collectives.baselines.star import Star
    from orrery.systems.collectives.baselines.static_group import StaticGroup
    from orrery.systems.collectives.baselines.tree import Tree
    from orrery.systems.collectives.baselines.ulysses import Ulysses
    from orrery.systems.collectives.baselines.zigzag_ring import ZigzagRing
    from orrery.systems.collectives.ncclz import NCCLZ
    from orrery.systems.collectives.pccl import PCCL
    from orrery.systems.collectives.problems.all_reduce import AllReduce
    from orrery.systems.collectives.problems.churned_all_reduce import ChurnedAllReduce
    from orrery.systems.collectives.problems.compressed_all_reduce import CompressedAllReduce
    from orrery.systems.collectives.problems.elastic_peer import Elastic
    from orrery.systems.collectives.problems.long_attention import (
        AttentionJob,
        LongAttention,
        SequenceAttention,
    )
    from orrery.systems.collectives.problems.long_linear_attention import (
        LongLinearAttention,
        SequenceLinearAttention,
    )
    from orrery.systems.collectives.problems.outer_training import OuterTraining
    from orrery.systems.collectives.tokenring import TokenRing
    from orrery.systems.collectives.zeco import ZeCO


__getattr__, __dir__ = door(__name__, _HOMES)
