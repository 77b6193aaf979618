"""NCCLZ: collectives on compressed chunks, with quantising and entropy coding kept apart."""

from __future__ import annotations

from orrery.systems.collectives.ncclz.collective import NCCLZ
from orrery.systems.collectives.ncclz.frame import Chunk, FrameError, open_frame, seal
from orrery.systems.collectives.ncclz.quantiser import Grid
from orrery.systems.collectives.ncclz.selector import Selector, Speeds

__all__ = ["NCCLZ", "Chunk", "FrameError", "Grid", "Selector", "Speeds", "open_frame", "seal"]
