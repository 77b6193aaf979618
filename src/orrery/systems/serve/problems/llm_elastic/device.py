"""What the device of an instance takes for a step, and what a plain engine makes of it.

`DeviceWork` is the roofline of the device, with the parts that an engine can hide told apart:
messages between devices, operations of the vector units, and how many kernels a step launches.
`Synchronous` is the engine that hides nothing: the host plans a step, launches every kernel one by
one, waits for the device, and only then plans the next step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from orrery.base.errors import SpecError
from orrery.models.device import Efficiency
from orrery.models.ops import VECTOR, Batch, attention_ops, dense_ops, head_ops
from orrery.models.specs import ModelSpec, spec
from orrery.models.steps import RooflineSteps
from orrery.models.weights import Layout
from orrery.world.hardware import Accelerator

# Host time of a step in an engine that plans and gathers between two steps. vLLM's own profile of
# Llama-3-8B on one H100 (blog of 5 September 2024): 29 % of the time is scheduling, 38 % is the
# device; its blog on version 1 (January 2025) gives about 5 ms as the device time of a step of
# that model, so 29 / 38 x 5 ms.
HOST_S = 3.8e-3
# Host time of one kernel launch: the lower end of the 5 to 20 us that are commonly measured.
LAUNCH_S = 5e-6
# Kernels behind one operation of our lists: experts are sorted, multiplied twice, put back.
KERNELS = {"moe": 4}
_CURVE = 1 << 14

# The vision tower of Qwen2-VL (arXiv 2409.12191): 675M parameters, 32 layers of width 1280; four
# patches become one token of the language model.
TOWER_PARAMS, TOWER_LAYERS, TOWER_WIDTH, PATCHES = 675e6, 32, 1280, 4

Prefill = Sequence[tuple[int, int]]


class DeviceWork:
    """Seconds of the device for a step, alone, and the parts of it.

    `skew` is the busiest rank's expert load over the mean: 1 when experts are even.
    """

    def __init__(
        self, model: ModelSpec | str, accelerator: Accelerator, layout: Layout, skew: float = 1.0
    ) -> None:
        self.base = RooflineSteps(model, accelerator, layout=layout)
        self.model: ModelSpec = self.base.model
        self.layout, self.accelerator, self.skew = layout, accelerator, skew
        if not skew >= 1:
            raise SpecError("skew", f"{skew!r} is refused", "give 1 or more: busiest over mean")
        self._curves()

    def _curves(self) -> None:
        tokens = np.arange(_CURVE, dtype=np.float64)
        message, vector, more = (np.zeros(_CURVE) for _ in range(3))
        kernels = 0
        device = self.base.device
        for op in dense_ops(self.model, tokens, self.layout):
            kernels += op.times * KERNELS.get(op.kind, 1)
            if op.group > 1:
                message += device.cost(op)
            elif op.kind in VECTOR:
                vector += device.cost(op)
            elif op.kind == "moe":
                more += device.cost(op) * (self.skew - 1)
        one = Batch((), 1, 1)
        for op in (*attention_ops(self.model, one, self.layout), *head_ops(self.model, 1)):
            kernels += op.times
        self.kernels = kernels
        self._message, self._vector, self._more = (
            each.tolist() for each in (message, vector, more)
        )

    def _tokens(self, prefill: Prefill, decodes: int) -> int:
        return min(decodes + sum(new for new, _ in prefill), _CURVE - 1)

    def parts(self, prefill: Prefill, decodes: int) -> tuple[float, float]:
        """(seconds of messages, seconds of vector operations) of a step."""
        at = self._tokens(prefill, decodes)
        return self._message[at], self._vector[at]

    def seconds(self, prefill: Prefill, decodes: int, decode_kv: int) -> float:
        """The device's seconds for one step."""
        if not prefill and not decodes:
            return 0.0
        took_s = self.base.seconds(prefill, decodes, decode_kv)
        return took_s + self._more[self._tokens(prefill, decodes)]

    def decode_run(self, decodes: int, decode_kv: int, steps: int) -> float:
        """The device's seconds for so many decode steps in a row."""
        took_s = self.base.decode_run(decodes, decode_kv, steps)
        return took_s + steps * self._more[min(decodes, _CURVE - 1)]

    def encode_s(self, image_tokens: int) -> float:
        """Seconds to encode images of so many tokens: products, and attention within the image."""
        if image_tokens < 1:
            return 0.0
        patches = PATCHES * image_tokens
        reach, peak = Efficiency(), self.base.device.peak_flops(self.model.dtype) * self.layout.tp
        dense = 2 * TOWER_PARAMS * patches / (peak * reach.gemm)
        square = 4 * patches * patches * TOWER_WIDTH * TOWER_LAYERS / (peak * reach.attention)
        weights = 2 * TOWER_PARAMS / (self.accelerator.memory_Bps * reach.memory * self.layout.tp)
        return max(dense + square, weights) + TOWER_LAYERS * reach.attention_latency_s


def floored_run(device: Any, decodes: int, decode_kv: int, steps: int, floor_s: float) -> float:
    """The sum over a decode run of max(floor, the step's seconds), which only grow. O(log steps).

    >>> from orrery.systems.serve.problems.tenant_desk import LinearSteps
    >>> floored_run(LinearSteps(1.0, 0.0, 1.0), 1, 0, 3, 2.5) == 2.5 + 2.5 + 3
    True
    """
    if not decodes or not steps:
        return 0.0
    if device.seconds((), decodes, decode_kv) >= floor_s:
        return device.decode_run(decodes, decode_kv, steps)
    low, high = 1, steps  # the first `low` steps lie under the floor
    while low < high:
        middle = (low + high + 1) // 2
        if device.seconds((), decodes, decode_kv + decodes * (middle - 1)) < floor_s:
            low = middle
        else:
            high = middle - 1
    whole = device.decode_run(decodes, decode_kv, steps)
    return floor_s * low + whole - device.decode_run(decodes, decode_kv, low)


class Synchronous:
    """Step times of an engine in which host and device wait for each other.

    A step is host_s + max(device, kernels x launch_s): the launches of a step go ahead of the
    device, so they cost only what they take beyond it. `graphs` replays a captured graph for a
    pure decode step, whose batch is padded to the next captured size.
    """

    spread, extrapolated = False, 0

    def __init__(
        self, device: DeviceWork, *, host_s: float = HOST_S, launch_s: float = LAUNCH_S,
        graphs: bool = False,
    ) -> None:  # fmt: skip
        self.device, self.model, self.tp = device, device.model, device.layout.tp
        self.host_s, self.launch_s, self.graphs = host_s, launch_s, graphs
        self._launches_s = device.kernels * launch_s

    def seconds(
        self, prefill: Prefill, decodes: int, decode_kv: int, spread: Any = None
    ) -> float:  # fmt: skip
        """One step."""
        if not prefill:
            return self.decode_run(decodes, decode_kv, 1)
        return self.host_s + max(
            self.device.seconds(prefill, decodes, decode_kv), self._launches_s
        )  # fmt: skip

    def decode_run(self, decodes: int, decode_kv: int, steps: int, spread: Any = None) -> float:
        """So many decode steps in a row."""
        if not decodes or not steps:
            return 0.0
        if self.graphs:
            # Rows of padding have no context; they are computed like any other row.
            padded = captured(decodes)
            gap_s = self.device.seconds((), padded, 0) - self.device.seconds((), decodes, 0)
            run_s = self.device.decode_run(decodes, decode_kv, steps)
            return steps * (self.host_s + self.launch_s + gap_s) + run_s
        run_s = floored_run(self.device, decodes, decode_kv, steps, self._launches_s)
        return steps * self.host_s + run_s


def captured(decodes: int) -> int:
    """The batch size to which a step is padded: 1, 2, 4, then multiples of 8, as vLLM captures.

    >>> [captured(n) for n in (1, 3, 5, 8, 9, 100)]
    [1, 4, 8, 8, 16, 104]
    """
    return decodes if decodes <= 2 else 4 if decodes <= 4 else -(-decodes // 8) * 8


def device_of(
    model: str, accelerator: Accelerator, tp: int, ep: int = 1, skew: float = 1.0
) -> DeviceWork:
    """The device work of one instance."""
    return DeviceWork(spec(model), accelerator, Layout(tp=tp, ep=ep), skew)


__all__ = [
    "HOST_S", "LAUNCH_S", "DeviceWork", "Synchronous", "captured", "device_of", "floored_run",
]  # fmt: skip
