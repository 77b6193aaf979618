"""How long one step of a serving engine takes: from rooflines, or from measured tables.

`steps_for("Llama-3.1-8B", "H100-SXM")` gives an object whose `seconds(prefill, decodes, decode_kv)`
costs about a microsecond: what depends on the number of tokens alone is a curve computed once, and
attention is a closed form (roofline) or a cut through a table. No host overhead of an engine is
added, because no public source gives one that holds for all engines; `overhead_s` adds your own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from orrery.base.errors import SpecError
from orrery.models.device import Device, Efficiency
from orrery.models.ops import Batch, attention_ops, attention_shape, dense_ops, head_ops
from orrery.models.runs import sum_of_max, sum_of_ramp
from orrery.models.specs import WEIGHT_B, ModelSpec, spec
from orrery.models.weights import Layout
from orrery.world.hardware import Accelerator

Prefill = Sequence[tuple[int, int]]
Spread = tuple[int, int] | None
_FIRST_CURVE = 1 << 12
_LAST_CURVE = 1 << 21


@runtime_checkable
class Steps(Protocol):
    """What a step of an engine takes; the replica asks nothing else of the hardware."""

    model: ModelSpec
    tp: int
    extrapolated: int
    spread: bool  # whether it wants to know the shortest and the longest context of the decodes

    def seconds(
        self, prefill: Prefill, decodes: int, decode_kv: int, spread: Spread = None
    ) -> float:
        """One step: prompt chunks (new tokens, cached tokens), decodes, their context in all."""

    def decode_run(self, decodes: int, decode_kv: int, steps: int, spread: Spread = None) -> float:
        """So many pure decode steps in a row; the context grows by `decodes` with each."""

    def joules(self, prefill: Prefill, decodes: int, decode_kv: int) -> float:
        """Energy of all devices in that step."""


class CurvedSteps:
    """What rooflines and tables share: curves over tokens and sequences, made when first needed.

    A subclass gives `_dense_curve`, `_head_curve` and the attention of a step. Contexts of unequal
    length cost here what equal ones of the same sum cost, so `spread` is taken and not used.
    """

    spread = False

    def __init__(self, model: ModelSpec, device: Device, layout: Layout, overhead_s: float) -> None:
        layout.check_fits(model)
        if not 0 <= overhead_s < 10:
            fix = "give the seconds of host time of a step, 0 or more"
            raise SpecError("overhead_s", f"{overhead_s!r} is refused", fix)
        self.model, self.device, self.layout = model, device, layout
        self.tp, self.overhead_s = layout.tp, float(overhead_s)
        self.devices = layout.tp * layout.pp * layout.cp
        self._cp = layout.cp
        self.extrapolated = self._out = 0
        # Which operations were asked for outside their measured grid, and how often.
        self.outside: dict[str, int] = {}
        self._dense: list[float] = []
        self._head: list[float] = []
        self._dense_effort: list[float] = []
        self._head_effort: list[float] = []
        self._dense_out: list[tuple[str, ...]] = []
        self._head_out: list[tuple[str, ...]] = []
        self._decode_shape = attention_shape(model, layout, decode=True)

    # -- curves

    def _dense_curve(self, tokens: np.ndarray) -> tuple[np.ndarray, list[tuple[str, ...]]]:
        raise TypeError("a subclass gives the curve")

    def _head_curve(self, rows: np.ndarray) -> tuple[np.ndarray, list[tuple[str, ...]]]:
        raise TypeError("a subclass gives the curve")

    def _grow(self, wanted: int, head: bool) -> None:
        """Make the curve reach `wanted`; it doubles, so that growing costs little in all."""
        if wanted >= _LAST_CURVE:
            what = "sequences" if head else "tokens"
            fix = f"give fewer than {_LAST_CURVE} in a step"
            raise SpecError(what, f"{wanted} is refused", fix)
        seconds, effort, out = (
            (self._head, self._head_effort, self._head_out)
            if head
            else (self._dense, self._dense_effort, self._dense_out)
        )
        size = len(seconds) or (_FIRST_CURVE // 4 if head else _FIRST_CURVE)
        while size <= wanted:
            size *= 2
        have = max(1, len(seconds))
        span = np.arange(have, size, dtype=np.float64)
        made, outside = (self._head_curve if head else self._dense_curve)(span)
        ops = (head_ops if head else dense_ops)(self.model, span, self.layout)
        spent = sum((self.device.effort(op) for op in ops), np.zeros_like(span))
        if not seconds:  # nothing to do takes no time
            seconds.append(0.0)
            effort.append(0.0)
            out.append(())
        seconds += made.tolist()
        effort += spent.tolist()
        out += outside

    def _note(self, names: Sequence[str], steps: int) -> None:
        """So many steps of the present call used times from outside the grids of these ops."""
        if steps > self._out:
            self._out = steps
        for name in names:
            self.outside[name] = self.outside.get(name, 0) + steps

    # -- one step

    def _prompts_s(self, prefill: Prefill, new: int, pairs: int, reach: int) -> float:
        raise TypeError("a subclass gives attention")

    def seconds(
        self, prefill: Prefill, decodes: int, decode_kv: int, spread: Spread = None
    ) -> float:
        """Seconds of one step; see `Steps`."""
        if not prefill:
            return self.decode_run(decodes, decode_kv, 1)
        new = pairs = reach = 0
        for chunk, past in prefill:
            if chunk < 1 or past < 0:
                raise _refuse_chunk(chunk, past)
            new += chunk
            reach += chunk + past
            pairs += chunk * past + chunk * (chunk + 1) // 2
        if decodes < 0 or decode_kv < 0 or (decode_kv and not decodes):
            raise _refuse_decodes(decodes, decode_kv)
        tokens = decodes + (new if self._cp == 1 else -(-new // self._cp))
        rows = decodes + len(prefill)
        if tokens >= len(self._dense):
            self._grow(tokens, head=False)
        if rows >= len(self._head):
            self._grow(rows, head=True)
        self._out = 0
        if self._dense_out[tokens] or self._head_out[rows]:
            self._note(self._dense_out[tokens] + self._head_out[rows], 1)
        took_s = self._dense[tokens] + self._head[rows] + self.overhead_s
        took_s += self._prompts_s(prefill, new, pairs, reach)
        if decodes:
            took_s += self._decodes_s(decodes, decode_kv, 1)
        self.extrapolated += self._out
        return took_s

    def _flat_s(self, decodes: int) -> float:
        """The part of a pure decode step that does not depend on the context."""
        if decodes >= len(self._dense):
            self._grow(decodes, head=False)
        if decodes >= len(self._head):
            self._grow(decodes, head=True)
        return self._dense[decodes] + self._head[decodes] + self.overhead_s

    def decode_run(self, decodes: int, decode_kv: int, steps: int, spread: Spread = None) -> float:
        """Seconds of pure decode steps in a row; see `Steps`."""
        if decodes < 0 or decode_kv < 0 or (decode_kv and not decodes):
            raise _refuse_decodes(decodes, decode_kv)
        if steps < 0:
            raise SpecError("steps", f"{steps} is refused", "give 0 or more")
        if not decodes or not steps:
            return 0.0
        took_s = self._flat_s(decodes) * steps
        self._out = 0
        if self._dense_out[decodes] or self._head_out[decodes]:
            self._note(self._dense_out[decodes] + self._head_out[decodes], steps)
        took_s += self._decodes_s(decodes, decode_kv, steps)
        self.extrapolated += self._out
        return took_s

    def _decodes_s(self, decodes: int, decode_kv: int, steps: int) -> float:
        raise TypeError("a subclass gives attention")

    def decode_steps_within(self, decodes: int, decode_kv: int, seconds: float, most: int) -> int:
        """How many whole steps of a decode run have ended after so many seconds, at most `most`.

        For a replica that is interrupted in the middle of a run.
        """
        low, high = 0, most
        before = self.extrapolated, dict(self.outside)
        while low < high:
            middle = (low + high + 1) // 2
            if self.decode_run(decodes, decode_kv, middle) <= seconds:
                low = middle
            else:
                high = middle - 1
        self.extrapolated, self.outside = before  # looking is not running
        return low

    # -- energy

    def joules(self, prefill: Prefill, decodes: int, decode_kv: int) -> float:
        """Energy of all devices in one step; see `device.PowerModel`."""
        before = self.extrapolated, dict(self.outside)
        took_s = self.seconds(prefill, decodes, decode_kv)
        self.extrapolated, self.outside = before  # the step itself has been counted by `seconds`
        if not took_s:
            return 0.0
        new = sum(chunk for chunk, _ in prefill)
        effort = self._dense_effort[decodes + -(-new // self.layout.cp)]
        effort += self._head_effort[decodes + len(prefill)]
        batch = Batch(tuple((int(n), int(p)) for n, p in prefill), decodes, decode_kv)
        for op in attention_ops(self.model, batch, self.layout):
            effort += self.device.effort(op)
        return self.devices * self._energy(took_s, effort, bool(prefill))

    def _energy(self, took_s: float, effort: float, prompts: bool) -> float:
        return self.device.joules(took_s, effort / self.layout.pp)

    def __repr__(self) -> str:
        split = f"tp={self.tp}, pp={self.layout.pp}, ep={self.layout.ep}, cp={self.layout.cp}"
        return f"{type(self).__name__}({self.model.name}, {self.device.name}, {split})"


class RooflineSteps(CurvedSteps):
    """Step times from the data sheet and the measured fractions of it that kernels reach.

    With pipeline stages, a step is the way of one batch through all of them.

    >>> steps = RooflineSteps("Llama-3.1-8B", "H100-SXM")
    >>> 0.005 < steps.seconds([], 1, 1000) < 0.012
    True
    """

    measured = False

    def __init__(
        self,
        model: ModelSpec | str,
        device: Device | Accelerator | str,
        tp: int = 1,
        *,
        layout: Layout | None = None,
        overhead_s: float = 0.0,
    ) -> None:
        super().__init__(
            _model(model), as_device(device), layout or Layout(tp=tp), overhead_s
        )  # fmt: skip
        self._coefficients()

    def _coefficients(self) -> None:
        """Seconds a layer for each pair, cached token and query, by the roofline."""
        model, layout, device = self.model, self.layout, self.device
        peak = device.peak_flops(model.dtype) * device.efficiency.attention * layout.cp
        rate = device.memory_Bps * device.efficiency.memory
        width = WEIGHT_B[model.dtype]
        self._latency_s = device.efficiency.attention_latency_s
        flops, kv_B, row = self._decode_shape
        self._pair_s, self._kv_s = flops / peak, kv_B / layout.cp / rate
        self._query_s = row * width / rate
        flops, kv_B, row = attention_shape(model, layout, decode=False)
        self._prompt_pair_s, self._prompt_kv_s = flops / peak, kv_B / rate
        self._prompt_query_s = row * width / rate / layout.cp
        self._window = model.window
        self._windowed, self._full = model.window_layers, model.layers - model.window_layers

    def _dense_curve(self, tokens: np.ndarray) -> tuple[np.ndarray, list[tuple[str, ...]]]:
        return self._sum(dense_ops(self.model, tokens, self.layout), tokens)

    def _head_curve(self, rows: np.ndarray) -> tuple[np.ndarray, list[tuple[str, ...]]]:
        return self._sum(head_ops(self.model, rows, self.layout), rows)

    def _sum(self, ops: list[Any], over: np.ndarray) -> tuple[np.ndarray, list[tuple[str, ...]]]:
        total = sum((self.device.cost(op) for op in ops), np.zeros_like(over))
        return total, [()] * len(over)

    def _prompts_s(self, prefill: Prefill, new: int, pairs: int, reach: int) -> float:
        memory_s = reach * self._prompt_kv_s + new * self._prompt_query_s
        took_s = self._full * (max(pairs * self._prompt_pair_s, memory_s) + self._latency_s)
        if self._windowed:
            took_s += self._windowed_prompts_s(prefill, new)
        if self._cp > 1:
            took_s += self._messages_s(prefill, 0, 0)
        return took_s

    def _windowed_prompts_s(self, prefill: Prefill, new: int) -> float:
        window, pairs, reach = self._window, 0, 0
        for chunk, past in prefill:
            rising = min(max(window - past, 0), chunk)
            pairs += rising * past + rising * (rising + 1) // 2 + (chunk - rising) * window
            reach += chunk + min(past, window)
        memory_s = reach * self._prompt_kv_s + new * self._prompt_query_s
        return self._windowed * (max(pairs * self._prompt_pair_s, memory_s) + self._latency_s)

    def _messages_s(self, prefill: Prefill, decodes: int, decode_kv: int) -> float:
        batch = Batch(tuple((int(n), int(p)) for n, p in prefill), decodes, decode_kv)
        ops = attention_ops(self.model, batch, self.layout)
        return float(sum(self.device.cost(op) for op in ops if op.group > 1))

    def _decodes_s(self, decodes: int, decode_kv: int, steps: int) -> float:
        rest_s = decodes * self._query_s
        pair_s, kv_s = self._pair_s, self._kv_s
        if steps == 1:
            total = self._full * max(decode_kv * pair_s, decode_kv * kv_s + rest_s)
        else:
            total = self._full * sum_of_max(pair_s, kv_s, rest_s, decode_kv, decodes, steps)
        if self._windowed:
            ceiling = decodes * self._window
            rising = min(max(-(-(ceiling - decode_kv) // decodes), 0), steps)
            inside = sum_of_max(pair_s, kv_s, rest_s, decode_kv, decodes, rising)
            flat = max(ceiling * pair_s, ceiling * kv_s + rest_s) * (steps - rising)
            total += self._windowed * (inside + flat)
        total += self.model.layers * self._latency_s * steps
        if self._cp > 1:
            total += self._messages_s((), decodes, decode_kv) * steps
        return total


def _refuse_chunk(chunk: int, past: int) -> SpecError:
    fix = "give (new tokens >= 1, cached tokens >= 0)"
    return SpecError("prefill", f"({chunk}, {past}) is refused", fix)


def _refuse_decodes(decodes: int, decode_kv: int) -> SpecError:
    fix = "give 0 or more of both, and no context without decodes"
    return SpecError("decodes, decode_kv", f"({decodes}, {decode_kv}) is refused", fix)


def _model(model: ModelSpec | str) -> ModelSpec:
    return spec(model) if isinstance(model, str) else model


def as_device(device: Device | Accelerator | str, efficiency: Efficiency | None = None) -> Device:
    """A device from its name in the catalogue, from an accelerator of a world, or itself."""
    if isinstance(device, Device):
        return device
    if isinstance(device, Accelerator):
        return Device(device, efficiency or Efficiency())
    return Device.named(device, efficiency)


def steps_for(
    model: ModelSpec | str,
    accelerator: Device | Accelerator | str,
    tp: int = 1,
    *,
    tables: str | os.PathLike[str] | None = None,
    layout: Layout | None = None,
    overhead_s: float = 0.0,
) -> Any:
    """Step times of a model on an accelerator, by names of the catalogues.

    tables   None: rooflines; a path: measured tables of any known format; "auto": those under
             $ORRERY_DATA or of the installed package aiconfigurator-core if they have this device,
             else rooflines

    >>> steps_for("Llama-3.1-70B", "H100-SXM", tp=8).tp
    8
    """
    if tables is not None:
        from orrery.models.tablesteps import table_steps

        found = table_steps(model, accelerator, tp, tables, layout, overhead_s)
        if found is not None:
            return found
    return RooflineSteps(model, accelerator, tp, layout=layout, overhead_s=overhead_s)


__all__ = ["CurvedSteps", "RooflineSteps", "Steps", "as_device", "steps_for", "sum_of_ramp"]
