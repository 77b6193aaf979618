"""HexiSeq: rows and heads of a long sequence cut unevenly over devices that differ."""

from __future__ import annotations

from orrery.systems.train.hexiseq.enumeration import optimum
from orrery.systems.train.hexiseq.execution import SplitAttention
from orrery.systems.train.hexiseq.planner import DoesNotFit, best_mesh, by_rate, plan
from orrery.systems.train.hexiseq.worker import HexiSeq

__all__ = [
    "DoesNotFit", "HexiSeq", "SplitAttention", "best_mesh", "by_rate", "optimum", "plan",
]  # fmt: skip
