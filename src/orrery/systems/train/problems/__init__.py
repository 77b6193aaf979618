"""The questions of this room: how many machines train one model."""

from __future__ import annotations

from orrery.systems.train.problems.data_parallel import DataParallel
from orrery.systems.train.problems.trainer import Trainer

__all__ = ["DataParallel", "Trainer"]
