"""Measured op tables of a device as a stand-in for the device: what an operator takes there.

Matrix products and attention come from tables where a device has some (NVIDIA's, read by
`orrery.models.tables`), all else from its roofline. `TableMeter` measures on it with noise and
counts device time, `OracleSteps` is the truth that a forecast is held against.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from orrery.base.rand import Stream
from orrery.models.device import Device
from orrery.models.ops import Batch, Op, attention_ops, causal_pairs, experts_touched
from orrery.models.optable import Lookup, Tables
from orrery.models.specs import WEIGHT_B, ModelSpec
from orrery.systems.ops.dooly.meter_spec import attention_spec
from orrery.systems.ops.dooly.operators import STATE, Key, Use, sizes_of
from orrery.systems.ops.dooly.origins import parse
from orrery.systems.ops.dooly.sweep import Point, shape_of

PRODUCTS = ("aten.matmul.default", "aten.linear.default", "aten.addmm.default")
# Building a batch's metadata is some ten small kernels.
PLAN_KERNELS = 10


class Oracle:
    """Seconds of keys on a device of the catalogue, from tables and its roofline."""

    def __init__(self, device: str, tables: Tables | None = None) -> None:
        self.card, self.tables = Device.named(device), tables
        self.device = device
        self._known: dict[tuple[str, Point], tuple[float, bool]] = {}
        self._gemm: dict[str, Lookup | None] = {}
        self._heads: dict[Any, Lookup | None] = {}

    def seconds(self, key: Key, point: Point) -> float:
        """What one call takes; nothing but the point and the key decides it."""
        return self.told(key, point)[0]

    def told(self, key: Key, point: Point) -> tuple[float, bool]:
        """(seconds, whether a measured table says so)."""
        place = (key.code, point)
        found = self._known.get(place)
        if found is None:
            if key.kind == STATE:
                found = self._state(key, point)
            elif key.op in PRODUCTS:
                found = self._product(key, point[0])
            else:
                found = self._vector(key, point[0]), False
            self._known[place] = found
        return found

    # -- plain operators

    def _product(self, key: Key, rows: int) -> tuple[float, bool]:
        a, b = key.dims[-2:] if "addmm" in key.op else key.dims[:2]
        k = int(a[-1])
        n = int(b[0] if "linear" in key.op else b[-1])
        lookup = self._table(key.dtype)
        if lookup is None:
            return float(self._gemm_s(rows, n, k, key.dtype)), False
        widths = lookup.table.grid[lookup.table.axes.index("n")]
        blocks = max(1, math.ceil(n / widths[-1]))
        seconds, outside = lookup.one(float(rows), max(n / blocks, float(widths[0])), float(k))
        return seconds * blocks, not outside

    def _gemm_s(self, m: Any, n: Any, k: Any, dtype: str) -> Any:
        wide = WEIGHT_B[dtype]
        op = Op("gemm", "gemm", flops=2.0 * m * n * k, read_B=(m * k + n * k) * wide,
                write_B=m * n * wide, dtype=dtype)  # fmt: skip
        return self.card.once(op)

    def _table(self, dtype: str) -> Lookup | None:
        if dtype not in self._gemm:
            found = None if self.tables is None else self.tables.find("gemm", dtype)
            self._gemm[dtype] = None if found is None else Lookup(
                found, lambda dims: self._gemm_s(dims["m"], dims["n"], dims["k"], dtype)
            )  # fmt: skip
        return self._gemm[dtype]

    def _vector(self, key: Key, size: int) -> float:
        """Traffic with memory of all inputs and of one output as large as the largest."""
        wide = WEIGHT_B[key.dtype]
        parts = []
        for dims, kind in zip(key.dims, key.dtypes, strict=True):
            # Of a table that is looked into, only the rows that are asked for are read.
            numbers = [size if d[0] in "*?~" else int(d) for d in dims]
            if "embedding" in key.op and len(numbers) == 2:
                numbers[0] = size
            parts.append(math.prod(numbers) * (wide if kind == "f" else 8))
        flops = 0.0
        if "einsum" in key.op:
            flops = 2.0 * size * math.prod(int(d) for d in key.dims[1])
        op = Op("norm", key.op, flops=flops, read_B=sum(parts), write_B=max(parts, default=0),
                dtype=key.dtype)  # fmt: skip
        return float(self.card.once(op))

    # -- attention

    def _state(self, key: Key, point: Point) -> tuple[float, bool]:
        prefill, decodes, kv = shape_of(point)
        if not key.dims:
            return PLAN_KERNELS * self.card.efficiency.vector_latency_s, False
        tokens = decodes + sum(new for new, _ in prefill)
        if key.op.endswith("write"):
            width = math.prod(int(d) for d in key.dims[0][1:])
            size_B = 2.0 * tokens * width * WEIGHT_B[key.dtype]
            op = Op("rope", "write", read_B=size_B, write_B=size_B, dtype=key.dtype)
            return float(self.card.once(op)), False
        spec = attention_spec(key)
        total, certain = 0.0, True
        for op in attention_ops(spec, Batch(tuple(prefill), decodes, kv)):
            alone = float(self.card.once(op))
            decode = op.kind == "attention_decode"
            lookup = self._attention(op.kind, key, spec)
            if lookup is None:
                total, certain = total + alone, False
            elif decode:
                seen = min(kv / decodes, spec.window) if spec.window else kv / decodes
                total += lookup.one(float(decodes), seen)[0]
            else:
                total += alone * self._reach(lookup, prefill)
        return total, certain

    @staticmethod
    def _reach(lookup: Lookup, prefill: Sequence[tuple[int, int]]) -> float:
        """Measured over roofline time of prompts as long as these, weighted by their pairs."""
        pairs = [causal_pairs(new, past) for new, past in prefill]
        found = 0.0
        for (new, past), share in zip(prefill, pairs, strict=True):
            length = float(new + past)
            seconds, _ = lookup.one(1.0, length)
            base = lookup.reference({"batch": 1.0, "length": length})
            found += share * seconds / float(base)
        return found / sum(pairs)

    def _attention(self, kind: str, key: Key, spec: ModelSpec) -> Lookup | None:
        place = (kind, key.code)
        if place not in self._heads:
            found = None
            if self.tables is not None and not spec.kv_lora_rank:
                found = self.tables.find(
                    kind, key.dtype, heads=spec.heads, kv_heads=spec.kv_heads,
                    head_dim=spec.head_dim, window=0,
                )  # fmt: skip
            plain = spec.replace(window=0, window_layers=0) if spec.window else spec
            card = self.card

            def roofline(dims: dict[str, Any]) -> Any:
                if kind == "attention_decode":
                    pairs = np.broadcast_arrays(dims["batch"], dims["context"])
                    shapes = [Batch((), int(b), int(b * c)) for b, c in zip(
                        np.ravel(pairs[0]), np.ravel(pairs[1]), strict=True)]  # fmt: skip
                else:
                    pairs = np.broadcast_arrays(dims["batch"], dims["length"])
                    shapes = [Batch(((max(1, int(n)), 0),) * max(1, int(b))) for b, n in zip(
                        np.ravel(pairs[0]), np.ravel(pairs[1]), strict=True)]  # fmt: skip
                made = [float(card.once(attention_ops(plain, each)[0])) for each in shapes]
                return np.array(made).reshape(pairs[0].shape)

            self._heads[place] = None if found is None else Lookup(
                found, roofline, by_ratio=kind != "attention_decode"
            )  # fmt: skip
        return self._heads[place]


class TableMeter:
    """Measures on an oracle: with noise, and with the device time that it would have taken.

    noise     the spread of one timing, as a share of it; the mean of `repeats` is kept
    truth     step times of the model at hand, for those who time whole steps
    """

    def __init__(
        self, oracle: Oracle, *, attention: str = "paged", noise: float = 0.03, repeats: int = 20,
        warmup: int = 3, seed: int = 0,
    ) -> None:  # fmt: skip
        self.oracle, self.device = oracle, oracle.device
        self.backends = {"": "torch", STATE: attention}
        self.noise, self.repeats, self.warmup, self.seed = noise, repeats, warmup, seed
        self.spent_s = self.table_s = 0.0
        self.count = 0
        self.truth: OracleSteps | None = None

    def measure(self, key: Key, points: Sequence[Point]) -> list[float]:
        """Seconds at each point."""
        made = []
        for point in points:
            seconds, certain = self.oracle.told(key, point)
            made.append(self._timed(seconds, f"{key.code} {point}"))
            self.table_s += certain * seconds * (self.repeats + self.warmup)
        return made

    def whole(self, steps: Any, shapes: Sequence[Any]) -> list[float]:
        """Seconds of whole steps of a model, for those who measure end to end."""
        return [self._timed(steps.seconds(*shape), f"step {shape}") for shape in shapes]

    def _timed(self, seconds: float, name: str) -> float:
        self.spent_s += seconds * (self.repeats + self.warmup)
        self.count += 1
        rng = Stream(self.seed, name, "timing")
        return seconds * math.exp(self.noise / math.sqrt(self.repeats) * rng.gauss())


class OracleSteps:
    """The true step times of a model on the oracle's device, operator by operator."""

    spread = False
    measured = True

    def __init__(self, model: ModelSpec, oracle: Oracle, used: Sequence[Use]) -> None:
        self.model, self.oracle, self.tp, self.extrapolated = model, oracle, 1, 0
        self._state = [use for use in used if use.key.kind == STATE]
        base = sizes_of(model)
        self._by: dict[str, list[tuple[Use, float]]] = {"tokens": [], "rows": []}
        for use in used:
            if use.key.kind == STATE:
                continue
            origin = None if use.at in ("", "?") else parse(use.at)
            name = "rows" if origin is not None and "rows" in origin.symbols else "tokens"
            slope = 1.0 if origin is None else float(origin.value({**base, name: 1}))
            self._by[name].append((use, slope))
        self._flat: dict[tuple[str, int], float] = {}
        self._seen: dict[Point, float] = {}

    def _sum(self, name: str, size: int) -> float:
        found = self._flat.get((name, size))
        if found is None:
            found = 0.0
            for use, slope in self._by[name]:
                rows, times = size * slope, float(use.times)
                if use.looped:
                    touched = max(1.0, float(experts_touched(self.model, size)))
                    rows, times = size * self.model.experts_active / touched, times * touched
                found += times * self.oracle.seconds(use.key, (max(1, round(rows)),))
            self._flat[name, size] = found
        return found

    def seconds(
        self, prefill: Sequence[tuple[int, int]], decodes: int, decode_kv: int, spread: Any = None
    ) -> float:
        """One step; see `orrery.models.steps.Steps`."""
        tokens = decodes + sum(new for new, _ in prefill)
        if not tokens:
            return 0.0
        point = (decodes, decode_kv, *(int(n) for chunk in prefill for n in chunk))
        held = self._seen.get(point)
        if held is None:
            held = sum(use.times * self.oracle.seconds(use.key, point) for use in self._state)
            self._seen[point] = held
        return held + self._sum("tokens", tokens) + self._sum("rows", decodes + len(prefill))

    def decode_run(self, decodes: int, decode_kv: int, steps: int, spread: Any = None) -> float:
        """So many pure decode steps in a row: some are looked up, the rest lie between them."""
        if not decodes or steps <= 0:
            return 0.0
        marks = sorted({round(i * (steps - 1) / 8) for i in range(9)})
        at = [self.seconds((), decodes, decode_kv + decodes * n) for n in marks]
        total = at[0]
        for n in range(1, len(marks)):
            gap = marks[n] - marks[n - 1]
            total += gap * (at[n] + at[n - 1]) / 2 + (at[n] - at[n - 1]) / 2
        return total

    def joules(self, prefill: Any, decodes: int, decode_kv: int) -> float:
        """Energy of the step, all of it at the device's active power."""
        watts = self.oracle.card.accelerator.active_W or 0.0
        return self.seconds(prefill, decodes, decode_kv) * watts


__all__ = ["Oracle", "OracleSteps", "TableMeter"]
