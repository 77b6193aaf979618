"""How the constants of `efficiency.toml` come about: one is fitted, some are read off tables.

The two published steps of the 22B model cannot tell apart products, vector operations and links:
both steps change alike with each of the three. So one constant alone is fitted to them, the share
of the peak that products reach; the others come from tables and data sheets.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from orrery.base.errors import SpecError
from orrery.models.training.efficiency import TrainingEfficiency, default_efficiency
from orrery.models.training.points import Point
from orrery.models.training.step import estimate

FIT_MODEL = "megatron-22B"
A100_FLOPS, NVLINK_BPS, NVLINK_S = 312e12, 300e9, 2e-6
LEAST_TOKENS, LEAST_B, DEVICES = 512, 16e6, 8
LOWEST, HIGHEST = 0.05, 1.0
TURNS = 40


def predicted_s(point: Point, efficiency: TrainingEfficiency | None = None) -> float:
    """The seconds of a point's step in the model."""
    return estimate(point.model, point.plan, point.world, efficiency=efficiency).seconds


def fit_efficiency(
    points: Sequence[Point], start: TrainingEfficiency | None = None
) -> TrainingEfficiency:
    """The share of the peak at which the points' times are right in the geometric mean.

    Every other constant stays as it is in `start`. Time falls with the share, so halving finds it.
    """
    start = start or default_efficiency()
    if not points:
        raise SpecError("points", "there are none", "give points with a published time")
    for point in points:
        if point.published_s is None:
            raise SpecError(f"points.{point.name}", "has no published time", "leave it out")

    def off(share: float) -> float:
        made = start.replace(gemm=share)
        told = [math.log(predicted_s(each, made) / (each.published_s or 1.0)) for each in points]
        return sum(told) / len(told)

    low, high = LOWEST, HIGHEST
    if off(low) < 0 or off(high) > 0:
        fix = "check the published times and the world"
        raise SpecError("points", f"no share from {low} to {high} meets their times", fix)
    for _ in range(TURNS):
        middle = (low + high) / 2
        low, high = (middle, high) if off(middle) > 0 else (low, middle)
        if high - low < 1e-5:
            break
    return start.replace(gemm=(low + high) / 2)


def fit_tables(vidur: Path) -> dict[str, float]:
    """ramp_s, link and hop_s by least squares over relative errors of measured A100 tables.

    `vidur` is the folder of Vidur's profiles, with compute/a100 and network/a100_dgx. The share of
    the peak that these products reach is given as `table_gemm`; it is an independent account of
    what is fitted to the 22B steps.
    """
    products = _products(vidur)
    work_s = products[:, 0] / A100_FLOPS
    slope, ramp_s = _line(work_s, products[:, 1])
    sizes = _reduces(vidur)
    moved_s = 2 * (DEVICES - 1) / DEVICES * sizes[:, 0] / NVLINK_BPS
    link_slope, alpha_s = _line(moved_s, sizes[:, 1])
    steps = 2 * (DEVICES - 1)
    return {
        "table_gemm": 1 / slope, "ramp_s": ramp_s, "link": 1 / link_slope,
        "hop_s": alpha_s / steps - NVLINK_S,
    }  # fmt: skip


def _line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """(slope, constant) of y over x, with the least squares of relative errors."""
    found = np.linalg.lstsq(np.stack([x / y, 1 / y], axis=1), np.ones(len(y)), rcond=None)[0]
    return float(found[0]), float(found[1])


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(newline="") as file:
            return list(csv.DictReader(file))
    except OSError as error:
        fix = "give the folder of Vidur's profiles"
        raise SpecError(str(path), f"cannot be read: {error.strerror}", fix) from None


def _products(vidur: Path) -> np.ndarray:
    """(flops, seconds) of measured products of 512 rows and more."""
    found = []
    for name in ("Llama-2-7b-hf", "Llama-2-70b-hf"):
        for row in _rows(vidur / "compute" / "a100" / "meta-llama" / name / "mlp.csv"):
            tokens, tp = int(row["num_tokens"]), int(row["num_tensor_parallel_workers"])
            if tokens < LEAST_TOKENS:
                continue
            hidden, inner = int(row["n_embd"]), int(row["n_expanded_embd"])
            kv = 2 * int(row["n_kv_head"]) * (hidden // int(row["n_head"]))
            shapes = {
                "attn_pre_proj": hidden * (hidden + kv) // tp,
                "attn_post_proj": hidden * hidden // tp,
                "mlp_up_proj": hidden * 2 * inner // tp,
                "mlp_down_proj": hidden * inner // tp,
            }
            for op, size in shapes.items():
                seconds = float(row[f"time_stats.{op}.median"]) * 1e-3
                found.append((2.0 * tokens * size, seconds))
    return np.array(found)


def _reduces(vidur: Path) -> np.ndarray:
    """(bytes, seconds) of measured all-reduces of 16 MB and more over eight devices of a node."""
    rows = _rows(vidur / "network" / "a100_dgx" / "all_reduce.csv")
    return np.array([
        (float(row["size"]), float(row["time_stats.all_reduce.median"]) * 1e-3)
        for row in rows
        if int(row["num_workers"]) == int(row["devices_per_node"]) == DEVICES
        and float(row["size"]) >= LEAST_B
    ])  # fmt: skip


__all__ = ["FIT_MODEL", "fit_efficiency", "fit_tables", "predicted_s"]
