"""`LayerMeter`: the per-layer tables of a real GPU as a device to measure.

The tables (`orrery.models.tables.llmservingsim`) hold what the layers of one model took in vLLM.
Sweeping them as if they were the device, and driving a replica with what was learnt, tests the
chain from measurements to TTFT and TPOT against a run that was recorded on that GPU.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from orrery.base.errors import SpecError
from orrery.models.tables.llmservingsim import BLOCK, HEAD, ONCE, Attention, Curve
from orrery.systems.ops.dooly.operators import STATE, Key, Operator, merged
from orrery.systems.ops.dooly.sweep import Point, shape_of

EVERY_LAYER = "full dense"


class LayerMeter:
    """Measures on the tables of one dense model on one GPU.

    folder      `<hardware>/<model>/<dtype>`, as LLMServingSim's profiler files it
    device      the name of the GPU
    attention   the name of the attention kernel
    """

    def __init__(self, folder: Path, device: str, *, attention: str = "flash") -> None:
        place = folder / "tp1"
        self.device, self.backends = device, {"": "vllm", STATE: attention}
        self.spent_s, self.count = 0.0, 0
        self._layers = {
            **_curves(place / "dense.csv", "tokens"),
            **_curves(place / "per_sequence.csv", "sequences"),
        }
        self._attention = Attention(place / "attention.csv")

    def operators(self) -> list[Operator]:
        """What the tables know of a model: its layers, what runs once, and attention."""
        sizes = (("tokens", EVERY_LAYER, BLOCK), ("tokens", "", ONCE), ("rows", "", HEAD))
        found = [
            Operator(op=f"vllm.{name}", dims=((at, "hidden"),), at=at, where=where)
            for at, where, names in sizes
            for name in names
            if name in self._layers
        ]
        heads = (("heads", "head_dim"), ("block_tokens", "kv_heads", "head_dim"))
        found.append(
            Operator(op="vllm.attention", kind=STATE, dims=heads, at="tokens", where=EVERY_LAYER)
        )
        return merged(found)

    def measure(self, key: Key, points: Sequence[Point]) -> list[float]:
        """Seconds at each point, as the tables have it."""
        if key.device != self.device:
            raise SpecError("key.device", f"{key.device} is not here", f"this is {self.device}")
        name = key.op.removeprefix("vllm.")
        if key.kind != STATE and name not in self._layers:
            raise SpecError("key.op", f"{key.op} has no table", f"give one of {[*self._layers]}")
        if key.kind == STATE:
            made = [self._batch(point) for point in points]
        else:
            made = [float(self._layers[name](point[0])) for point in points]
        self.spent_s += sum(made)
        self.count += len(made)
        return made

    def _batch(self, point: Point) -> float:
        """One layer's attention; the tables have one chunk at most, so several become one."""
        prefill, decodes, kv = shape_of(point)
        new = sum(tokens for tokens, _ in prefill)
        pairs = sum(tokens * (past + tokens / 2) for tokens, past in prefill)
        past = pairs / new - new / 2 if new else 0.0
        # Short prompts compare fewer pairs than one that is as long as they are together.
        chunk = (float(new), past) if past >= 0 else ((2 * pairs) ** 0.5, 0.0)
        return self._attention(*chunk, decodes, kv / decodes if decodes else 0.0)


def _curves(path: Path, size: str) -> dict[str, Curve]:
    points: dict[str, dict[int, float]] = defaultdict(dict)
    try:
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                points[row["layer"]][int(row[size])] = float(row["time_us"]) * 1e-6
    except (OSError, KeyError, TypeError, ValueError) as failure:
        fix = f"give a profile with columns layer, {size}, time_us"
        raise SpecError(str(path), f"cannot be read: {failure}", fix) from None
    return {layer: Curve(found) for layer, found in points.items()}


__all__ = ["LayerMeter"]
