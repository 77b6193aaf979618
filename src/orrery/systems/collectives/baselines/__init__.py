"""The classics of this room, one file each: the rivals that newer systems are compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orrery.base.doors import door

_HOMES = {
    "BidirectionalRing": "orrery.systems.collectives.baselines.bidirectional_ring",
    "CastRing": "orrery.systems.collectives.baselines.cast_ring",
    "CheckpointRestart": "orrery.systems.collectives.baselines.checkpoint_restart",
    "CoupledRing": "orrery.systems.collectives.baselines.coupled_ring",
    "Direct": "orrery.systems.collectives.baselines.direct",
    "ElasticServer": "orrery.systems.collectives.baselines.elastic_server",
    "LASP": "orrery.systems.collectives.baselines.lasp",
    "LASP2": "orrery.systems.collectives.baselines.lasp2",
    "LinearRing": "orrery.systems.collectives.baselines.linear_ring",
    "LinearSingle": "orrery.systems.collectives.baselines.linear_single",
    "LinearUlysses": "orrery.systems.collectives.baselines.linear_ulysses",
    "QuantisedRing": "orrery.systems.collectives.baselines.quantised_ring",
    "RecursiveDoubling": "orrery.systems.collectives.baselines.recursive_doubling",
    "RecursiveHalving": "orrery.systems.collectives.baselines.recursive_halving",
    "Ring": "orrery.systems.collectives.baselines.ring",
    "RingAttention": "orrery.systems.collectives.baselines.ring_attention",
    "SingleDevice": "orrery.systems.collectives.baselines.single_device",
    "Star": "orrery.systems.collectives.baselines.star",
    "StaticGroup": "orrery.systems.collectives.baselines.static_group",
    "Tree": "orrery.systems.collectives.baselines.tree",
    "Ulysses": "orrery.systems.collectives.baselines.ulysses",
    "ZigzagRing": "orrery.systems.collectives.baselines.zigzag_ring",
}

__all__ = [
    "LASP",
    "LASP2",
    "BidirectionalRing",
    "CastRing",
    "CheckpointRestart",
    "CoupledRing",
    "Direct",
    "ElasticServer",
    "LinearRing",
    "LinearSingle",
    "LinearUlysses",
    "QuantisedRing",
    "RecursiveDoubling",
    "RecursiveHalving",
    "Ring",
    "RingAttention",
    "SingleDevice",
    "Star",
    "StaticGroup",
    "Tree",
    "Ulysses",
    "ZigzagRing",
]

if TYPE_CHECKING:
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


__getattr__, __dir__ = door(__name__, _HOMES)
