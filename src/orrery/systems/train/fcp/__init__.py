"""FCP: context parallelism by blocks that may stand anywhere."""

from __future__ import annotations

from orrery.systems.train.fcp.packing import Limits, balance, cap_tokens, pack
from orrery.systems.train.fcp.rounds import Parcel, Plan, faults, plan, stuck
from orrery.systems.train.fcp.worker import FCP

__all__ = [
    "FCP", "Limits", "Parcel", "Plan", "balance", "cap_tokens", "faults", "pack", "plan", "stuck",
]  # fmt: skip
