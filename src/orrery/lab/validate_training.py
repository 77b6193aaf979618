"""Published training steps beside the model: time and memory of every point of a folder.

Nothing is fitted here: the constants are those of `models/training/efficiency.toml`, of which one
was fitted, on the times of the 22B model alone. Memory is compared as it was published: that of the
transformer's layers; `predicted_device_bytes` has the embedding, the logits and the rest as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from orrery.base.errors import SpecError, UsageError
from orrery.models.training.memory import StageMemory
from orrery.models.training.points import Point, read_points
from orrery.models.training.step import Estimate, estimate

# What the mean error over points of time, and over those of memory, may be at most.
BAR = 0.06


def validate_training(
    folder: Path, on_point: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """The errors of the model over a folder of published points.

    `mean_err` and `max_err` are over the points with a published time, as fractions without sign;
    `memory_mean_err` and `memory_max_err` over those with published memory. A point's `err` has
    its sign: (predicted - published) / published.
    """
    try:
        points = read_points(folder)
        rows = _rows(points, on_point)
    except SpecError as error:
        raise UsageError(str(error)) from error
    times = [abs(row["err"]) for row in rows if row["err"] is not None]
    sizes = [abs(row["memory_err"]) for row in rows if row["memory_err"] is not None]
    return {
        "mean_err": _mean(times), "max_err": max(times, default=None),
        "memory_mean_err": _mean(sizes), "memory_max_err": max(sizes, default=None),
        "bar": BAR, "points": len(rows), "times": len(times), "memories": len(sizes),
        "models": {name: _of_model(rows, name) for name in sorted({r["model"] for r in rows})},
        "rows": rows,
    }  # fmt: skip


def _of_model(rows: Sequence[dict[str, Any]], name: str) -> dict[str, float | None]:
    mine = [row for row in rows if row["model"] == name]
    return {
        f"{kind}mean_err": _mean([abs(row[f"{kind}err"]) for row in mine
                                  if row[f"{kind}err"] is not None])
        for kind in ("", "memory_")
    }  # fmt: skip


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _rows(points: Sequence[Point], on_point: Callable[[str], None] | None) -> list[dict[str, Any]]:
    # The same step stands in several figures; it is run once.
    done: dict[Any, Estimate] = {}
    rows = []
    for point in points:
        key = (point.model, point.plan)
        if key not in done:
            if on_point is not None:
                on_point(point.name)
            done[key] = estimate(point.model, point.plan, point.world)
        rows.append(_row(point, done[key]))
    return rows


def _row(point: Point, found: Estimate) -> dict[str, Any]:
    size_B = counted(found, point.counts)
    return {
        "name": point.name, "model": point.model_name, "mode": point.mode,
        "predicted_s": found.seconds, "published_s": point.published_s,
        "err": _off(found.seconds, point.published_s),
        "predicted_bytes": round(size_B), "published_bytes": _whole(point.published_bytes),
        "memory_err": _off(size_B, point.published_bytes), "counts": point.counts,
        "predicted_device_bytes": round(found.memory_B), "fits": found.fits,
        "mfu": found.mfu, "hfu": found.hfu, "bubble": found.bubble,
    }  # fmt: skip


def counted(found: Estimate, counts: str) -> float:
    """The memory of the fullest stage, of what a published figure counts."""

    def of(stage: StageMemory) -> float:
        if counts == "activations":
            return stage.activations_B
        return stage.total_B if counts == "device" else stage.states_B + stage.activations_B

    return max(of(each) for each in found.memory)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _off(made: float, told: float | None) -> float | None:
    return None if told is None else made / told - 1.0


def misses(found: dict[str, Any]) -> list[str]:
    """The means that are off by more than the bar."""
    return [
        name for name in ("mean_err", "memory_mean_err")
        if found[name] is not None and not found[name] <= found["bar"]
    ]  # fmt: skip


__all__ = ["BAR", "counted", "misses", "validate_training"]
