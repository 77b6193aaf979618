"""Step times from measured tables, with the roofline under what was not measured.

An operation is looked up by its shape (matrix products by m, n, k) or by its name in tables of one
model (times by tokens). `extrapolated` counts the steps that used a time from outside a measured
grid and `outside` says of which operation; `unmeasured` names what no table has at all.
"""

from __future__ import annotations

import itertools
import math
import os
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orrery.base.errors import SpecError
from orrery.models.device import Device
from orrery.models.ops import COLLECTIVES, Op
from orrery.models.optable import Lookup, Tables
from orrery.models.specs import ModelSpec, spec
from orrery.models.steps import Prefill, RooflineSteps, as_device
from orrery.models.weights import Layout, split_matrix
from orrery.world.hardware import Accelerator

# A decode curve ends far beyond any context; the last stretch is the roofline's slope.
_FAR = float(1 << 24)


class TableSteps(RooflineSteps):
    """Step times of a model from the tables of one device.

    dtypes   which table dtype stands for one of the model's, such as {"fp8": "fp8_block"}
    """

    measured = True

    def __init__(
        self,
        model: ModelSpec | str,
        tables: Tables,
        device: Device | Accelerator | str | None = None,
        tp: int = 1,
        *,
        layout: Layout | None = None,
        overhead_s: float = 0.0,
        dtypes: dict[str, str] | None = None,
    ) -> None:
        super().__init__(
            model, tables.device if device is None else device, tp,
            layout=layout, overhead_s=overhead_s,
        )  # fmt: skip
        if tables.device != self.device.name:
            fix = f"give tables of {self.device.name}, or rooflines"
            raise SpecError("tables.device", f"measured on {tables.device}", fix)
        self.tables, self.dtypes = tables, dict(dtypes or {})
        self._lookups: dict[Any, Lookup | None] = {}
        self._without: dict[str, None] = {}
        self._rows: dict[tuple[int, int], tuple[Any, ...]] = {}
        self._lengths: dict[int, tuple[list[float], list[float]]] = {}
        self._prompt = self._attention_table("attention_prefill", 0)
        self._decode = self._attention_table("attention_decode", 0)
        window = self.model.window
        self._prompt_window = self._attention_table("attention_prefill", window) if window else None
        self._decode_window = self._attention_table("attention_decode", window) if window else None
        if not any((self._prompt, self._decode)) and not self._any_dense():
            fix = f"it has {', '.join(tables.operations) or 'nothing'}"
            raise SpecError("tables", f"nothing of {self.model.name} is measured in them", fix)

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """Operations for which no table was found; the roofline stands for them."""
        self._flat_s(1)
        missing = dict(self._without)
        for name, found in (("prefill", self._prompt), ("decode", self._decode)):
            if found is None:
                missing[f"attention_{name}"] = None
        return tuple(missing)

    # -- what depends on tokens alone

    def _any_dense(self) -> bool:
        weight = next(each for each in self.model.weights() if each.name in ("qkv", "out"))
        k, n = split_matrix(weight, self.model, self.layout)
        op = Op("gemm", weight.name, dims={"m": 1, "n": n, "k": k}, dtype=self.model.dtype)
        return self._find(op) is not None

    def _sum(self, ops: list[Op], over: np.ndarray) -> tuple[np.ndarray, list[tuple[str, ...]]]:
        total = np.zeros_like(over)
        outside: list[set[str]] = [set()] * len(over)
        for op in ops:
            lookup = self._find(op)
            if lookup is None:
                self._without[op.name] = None
                total += self.device.cost(op)
                continue
            seconds, out = self._measured_s(lookup, op, over)
            total += seconds * op.times
            if out.any():
                outside = [
                    have | {op.name} if o else have for have, o in zip(outside, out, strict=True)
                ]
        shared: dict[frozenset[str], tuple[str, ...]] = {}
        flags = [shared.setdefault(frozenset(have), tuple(sorted(have))) for have in outside]
        return total, flags

    @staticmethod
    def _measured_s(lookup: Lookup, op: Op, over: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        axes = lookup.table.axes
        point = {axis: op.dims.get(axis, over) for axis in axes}
        if op.kind != "gemm" or "n" not in axes:
            return lookup.many(**point)
        # A matrix wider than the grid runs as equal blocks of columns, one after the other, and one
        # narrower than a tile takes the time of a tile: both are made of measured products.
        widths = lookup.table.grid[axes.index("n")]
        blocks = max(1, math.ceil(point["n"] / widths[-1]))
        point["n"] = max(point["n"] / blocks, widths[0])
        seconds, out = lookup.many(**point)
        return seconds * blocks, out

    def _find(self, op: Op) -> Lookup | None:
        """The measured table of an operation: by the model's own name for it, else by shape."""
        key = (op.kind, op.name, op.group)
        if key not in self._lookups:
            table = self._by_name(op) or self._by_shape(op)
            self._lookups[key] = None if table is None else Lookup(table, self._reference(op))
        return self._lookups[key]

    def _by_name(self, op: Op) -> Any:
        for dtype in self._names(op.dtype):
            found = self.tables.find(op.name, dtype, model=self.model.name, tp=self.tp)
            if found is not None:
                return found
        return None

    def _by_shape(self, op: Op) -> Any:
        fixed: dict[str, Any] = {}
        dtype = op.dtype
        if op.kind == "moe":
            fixed = {
                "hidden": self.model.hidden, "intermediate": self.model.expert_intermediate,
                "active": self.model.experts_active, "experts": self.model.experts,
                "tp": self.layout.expert_tp, "ep": self.layout.ep,
            }  # fmt: skip
            weights = {weight.name: weight for weight in self.model.weights()}
            dtype = self.model.dtype_of(weights["expert_up"])
        elif op.kind in COLLECTIVES:
            fixed = {"group": op.group}
        elif op.kind != "gemm":
            return None
        for each in self._names(dtype):
            found = self.tables.find(op.kind, each, **fixed)
            if found is not None:
                return found
        return None

    def _names(self, dtype: str) -> list[str]:
        # Where a plain fp8 kernel was not timed, one with a scale for each block stands for it.
        twin = {"fp16": ["bf16"], "bf16": ["fp16"], "fp8": ["fp8_block"]}.get(dtype, [])
        return [self.dtypes.get(dtype, dtype), *twin]

    def _reference(self, op: Op) -> Any:
        """The roofline of the same operation with other dimensions."""
        device = self.device

        def gemm_s(dims: dict[str, np.ndarray]) -> np.ndarray:
            m = dims["m"] if "m" in dims else dims["tokens"]
            n, k = dims.get("n", op.dims["n"]), dims.get("k", op.dims["k"])
            wide = 1.0 if op.dtype in ("fp8", "int8") else 2.0
            made = Op("gemm", op.name, flops=2.0 * m * n * k, read_B=(m * k + n * k) * wide,
                      write_B=2.0 * m * n, dtype=op.dtype)  # fmt: skip
            return device.once(made)

        def line_s(dims: dict[str, np.ndarray]) -> np.ndarray:
            # In tables over one size, the roofline of this very op is drawn over that size.
            (size,) = dims.values()
            share = np.maximum(size, 1.0)
            rate = device.memory_Bps * device.efficiency.memory
            first = np.ravel(np.asarray(op.bytes, float))[0]
            return device.latency_s(op) + share * max(first, 1.0) / rate

        def message_s(dims: dict[str, np.ndarray]) -> np.ndarray:
            return device.message_s(op.kind, dims["bytes"], op.group)

        if op.kind in COLLECTIVES:
            return message_s
        return gemm_s if op.kind == "gemm" else line_s

    # -- attention

    def _attention_table(self, kind: str, window: int) -> Lookup | None:
        model, layout = self.model, self.layout
        decode = kind == "attention_decode"
        fixed = {"heads": model.heads // layout.tp, "window": window}
        if model.kv_lora_rank:
            return None
        fixed |= {"kv_heads": max(1, model.kv_heads // layout.tp), "head_dim": model.head_dim}
        for dtype in self._names(model.kv_dtype or model.dtype):
            found = self.tables.find(kind, dtype, **fixed)
            if found is not None:
                reference = self._decode_reference if decode else self._prompt_reference
                return Lookup(found, reference(window), by_ratio=not decode)
        return None

    def _prompt_reference(self, window: int) -> Any:
        def seconds(dims: dict[str, np.ndarray]) -> np.ndarray:
            past = dims.get("past", 0.0)
            new = dims.get("length", dims.get("new"))
            return self._prompt_s(new, past, window, dims.get("batch", 1.0))

        return seconds

    def _prompt_s(self, new: Any, past: Any, window: int, batch: Any = 1.0) -> Any:
        """The roofline of chunks of one size in one layer; also for arrays."""
        if window:
            rising = np.clip(window - past, 0, new)
            pairs = rising * past + rising * (rising + 1) / 2 + (new - rising) * window
            reach = new + np.minimum(past, window)
        else:
            pairs, reach = new * past + new * (new + 1) / 2, new + past
        memory_s = reach * self._prompt_kv_s + new * self._prompt_query_s
        return np.maximum(pairs * self._prompt_pair_s, memory_s) * batch + self._latency_s

    def _decode_reference(self, window: int) -> Any:
        def seconds(dims: dict[str, np.ndarray]) -> np.ndarray:
            seen = np.minimum(dims["context"], window) if window else dims["context"]
            kv = seen * dims["batch"]
            memory_s = kv * self._kv_s + dims["batch"] * self._query_s
            return np.maximum(kv * self._pair_s, memory_s) + self._latency_s

        return seconds

    def _prompts_s(self, prefill: Prefill, new: int, pairs: int, reach: int) -> float:
        took_s = self._full * self._chunks_s(self._prompt, 0, prefill) if self._full else 0.0
        if self._windowed:
            took_s += self._windowed * self._chunks_s(self._prompt_window, 1, prefill)
        if self._cp > 1:
            took_s += self._messages_s(prefill, 0, 0)
        return took_s

    def _chunks_s(self, lookup: Lookup | None, windowed: int, prefill: Prefill) -> float:
        """One kernel for all chunks: each one's time above the least time, and that once.

        A table over whole prompts says which part of the roofline a prompt of this length reaches;
        a chunk with a history reaches the same part of its own roofline.
        """
        window = self._window if windowed else 0
        pair_s, kv_s, query_s = self._prompt_pair_s, self._prompt_kv_s, self._prompt_query_s
        above_s, most = 0.0, 0.0
        for new, past in prefill:
            if window:
                rising = min(max(window - past, 0), new)
                pairs = rising * past + rising * (rising + 1) // 2 + (new - rising) * window
                reach = new + min(past, window)
            else:
                pairs, reach = new * past + new * (new + 1) // 2, new + past
            ratio = 1.0 if lookup is None else self._ratio(lookup, windowed, new, past)
            above_s += ratio * max(pairs * pair_s, reach * kv_s + new * query_s)
            if ratio > most:
                most = ratio
        return above_s + most * self._latency_s

    def _ratio(self, lookup: Lookup, windowed: int, new: int, past: int) -> float:
        if "past" in lookup.table.axes:
            seconds, out = lookup.one(float(new), float(past))
            if out:
                self._note((lookup.table.op,), 1)
            return seconds / float(self._prompt_s(new, past, self._window if windowed else 0))
        lengths, ratios = self._lengths.get(windowed) or self._length_row(lookup, windowed)
        length = new + past
        if length > lengths[-1] or length < lengths[0]:
            self._note((lookup.table.op,), 1)
            return ratios[-1] if length > lengths[-1] else ratios[0]
        i = bisect_right(lengths, length, 1, len(lengths) - 1) - 1
        slope = (ratios[i + 1] - ratios[i]) / (lengths[i + 1] - lengths[i])
        return ratios[i] + slope * (length - lengths[i])

    def _length_row(self, lookup: Lookup, windowed: int) -> tuple[list[float], list[float]]:
        """Measured time over roofline, of one prompt, by its length."""
        lengths = lookup.table.grid[lookup.table.axes.index("length")]
        seconds, out = lookup.many(batch=1.0, length=lengths)
        base = self._prompt_s(lengths, 0.0, self._window if windowed else 0)
        ratios = seconds / base
        row = (lengths[~out].tolist(), ratios[~out].tolist())
        self._lengths[windowed] = row
        return row

    def _decodes_s(self, decodes: int, decode_kv: int, steps: int) -> float:
        if self._decode is None:
            return super()._decodes_s(decodes, decode_kv, steps)
        first = decode_kv / decodes
        total = self._full * self._along(0, self._decode, decodes, first, steps)
        if self._windowed:
            lookup = self._decode_window or self._decode
            total += self._windowed * self._along(1, lookup, decodes, first, steps)
        if self._cp > 1:
            total += self._messages_s((), decodes, decode_kv) * steps
        return total

    def _along(self, which: int, lookup: Lookup, decodes: int, first: float, steps: int) -> float:
        """The sum of one layer's decode attention over steps, from a mean context on."""
        row = self._rows.get((which, decodes)) or self._row(which, lookup, decodes)
        contexts, times, sums, limit = row
        last = first + steps - 1
        if last > limit or first < contexts[0]:
            beyond = last - max(limit, first - 1) if first >= contexts[0] else steps
            self._note((lookup.table.op,), min(math.ceil(beyond), steps))
        i = bisect_right(contexts, first, 1, len(contexts) - 1) - 1
        slope = (times[i + 1] - times[i]) / (contexts[i + 1] - contexts[i])
        first_s = times[i] + slope * (first - contexts[i])
        if steps == 1:
            return first_s
        if last <= contexts[i + 1]:
            return steps * (first_s + slope * (steps - 1) / 2)
        j = bisect_right(contexts, last, 1, len(contexts) - 1) - 1
        slope = (times[j + 1] - times[j]) / (contexts[j + 1] - contexts[j])
        last_s = times[j] + slope * (last - contexts[j])
        # The integral and half of both ends: exact on a line, as between any two grid points.
        area = sums[j] + (times[j] + last_s) / 2 * (last - contexts[j])
        area -= sums[i] + (times[i] + first_s) / 2 * (first - contexts[i])
        return area + (first_s + last_s) / 2

    def _row(self, which: int, lookup: Lookup, decodes: int) -> tuple[Any, ...]:
        """The cut through the table at one batch size: contexts, times, their integral, the end."""
        grid = lookup.table.grid[lookup.table.axes.index("context")]
        if which and lookup.table.fixed.get("window", 0) == 0:
            # No windowed table: the full one, which stays flat when the window is full.
            inner = grid[grid < self._window]
            contexts = np.array([*inner, float(self._window), _FAR])
            asked = np.minimum(contexts, self._window)
        else:
            contexts = asked = np.array([*grid, _FAR])
        times, out = lookup.many(batch=float(decodes), context=asked)
        measured = contexts[~out]
        limit = float(measured[-1]) if len(measured) else -1.0
        areas = np.diff(contexts) * (times[1:] + times[:-1]) / 2
        sums = [0.0, *itertools.accumulate(areas.tolist())]
        row = (contexts.tolist(), times.tolist(), sums, limit)
        self._rows[which, decodes] = row
        return row


def table_steps(
    model: ModelSpec | str,
    accelerator: Device | Accelerator | str,
    tp: int,
    tables: str | os.PathLike[str] | Tables,
    layout: Layout | None,
    overhead_s: float,
) -> RooflineSteps | None:
    """Steps from tables given by path; with "auto", None when there are none of this device."""
    from orrery.models.tables import find_tables, open_tables

    device = as_device(accelerator)
    place = None if isinstance(tables, Tables) or tables == "auto" else Path(tables)
    if place is not None and place.suffix == ".csv":
        from orrery.models.tables.splitwise import PhaseSteps

        return PhaseSteps(model, device, tp, place, overhead_s)
    if place is not None and (place / "mlp.csv").is_file():
        from orrery.models.tables.vidur import read_vidur

        known = spec(model) if isinstance(model, str) else model
        tables = read_vidur(place, known, device.name, tp)
    if isinstance(tables, Tables):
        found: Tables | None = tables
    elif tables == "auto":
        found = find_tables(device.name)
    else:
        found = open_tables(tables, device.name)
    if found is None:
        return None
    return TableSteps(model, found, device, tp, layout=layout, overhead_s=overhead_s)


def flagged(steps: Sequence[Any]) -> dict[str, int]:
    """Over several replicas: how many steps left the measured grid, by operation."""
    total: dict[str, int] = {}
    for each in steps:
        for name, count in getattr(each, "outside", {}).items():
            total[name] = total.get(name, 0) + count
    return total


__all__ = ["TableSteps", "flagged", "table_steps"]
