"""PCCL: all-reduce and shared state for peers that join, leave and die (Prime Intellect, 2025)."""

from __future__ import annotations

from orrery.systems.collectives.pccl.coding import error_bound
from orrery.systems.collectives.pccl.coordinator import Coordinator
from orrery.systems.collectives.pccl.order import ring_cost, ring_order
from orrery.systems.collectives.pccl.peer import PCCL

__all__ = ["PCCL", "Coordinator", "error_bound", "ring_cost", "ring_order"]
