"""What an operation costs on an accelerator: a roofline, with measured fractions of its peaks.

A `Device` is an accelerator of the world and an `Efficiency`. The data sheet says what the device
could do; the efficiency says which part of it good kernels reach, and what a kernel costs at least.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from msgspec import Meta

from orrery.base.errors import SpecError, did_you_mean
from orrery.models.ops import COLLECTIVES, VECTOR, Op
from orrery.models.specs import WEIGHT_B
from orrery.world.hardware import DTYPE_B, Accelerator, accelerator
from orrery.world.spec import NonNegative, Spec, Text

Part = Annotated[float, Meta(gt=0, le=1)]


class Efficiency(Spec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which fraction of the data sheet kernels reach, and the least time of a kernel.

    The defaults are medians of NVIDIA's measured H100 tables (aiconfigurator 0.12.0, vLLM 0.24.0
    kernels, bf16; H200 differs by less than 0.06), computed by the tests where the files are:

    gemm        matrix products with m, n, k of 4,096 and more
    narrow      the same in fp8
    attention   prefill of 4,096 tokens and more, heads of 128
    memory      the scaling factor of the system files; GEMMs with few rows reach 0.85, decode
                attention 0.83
    link        all-reduce of 1 GiB over 4 devices, as a fraction of one direction of NVLink
    *_latency_s the least time of such a kernel; collective + hop for each step of a ring
    """

    label: ClassVar[str] = "efficiency"
    error: ClassVar[type[SpecError]] = SpecError
    gemm: Part = 0.78
    narrow: Part = 0.53
    attention: Part = 0.58
    memory: Part = 0.80
    link: Part = 0.78
    gemm_latency_s: NonNegative = 3e-6
    attention_latency_s: NonNegative = 11e-6
    vector_latency_s: NonNegative = 3e-6
    collective_latency_s: NonNegative = 4.6e-6
    hop_latency_s: NonNegative = 0.8e-6
    source: Text = (
        "medians of the H100 tables of NVIDIA aiconfigurator 0.12.0 (Apache-2.0); memory and "
        "vector latency from its h100_sxm system file; other devices: our assumption"
    )


IDEAL = Efficiency(
    gemm=1, narrow=1, attention=1, memory=1, link=1, gemm_latency_s=0, attention_latency_s=0,
    vector_latency_s=0, collective_latency_s=0, hop_latency_s=0, source="the data sheet alone",
)  # fmt: skip


class PowerModel(Spec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Power of a busy device as a fraction of its active power: base + memory + compute, at most 1.

    base      a step runs, whatever it does
    memory    added at full memory bandwidth
    compute   added at the full peak of the dtype (prompts reach the power limit below the peak)

    Read off the A100 rows of the Splitwise profiles (llama2-70b on 2 and 8, bloom-176b on 8
    devices): decodes at 0.19, 0.44, 0.62 of the bandwidth draw 0.43, 0.63, 0.74; long prompts at
    0.42 of the peak draw all of it. For other devices the same is our assumption.
    """

    label: ClassVar[str] = "power_model"
    error: ClassVar[type[SpecError]] = SpecError
    base: NonNegative = 0.3
    memory: NonNegative = 0.7
    compute: NonNegative = 1.67
    source: Text = "A100 rows of splitwise_perf_power_a100_h100.csv (Splitwise, ISCA 2024; MIT)"


# fp16 and bf16 run alike everywhere; a dtype without a published peak runs as the next wider one.
_TWIN = {"fp16": "bf16", "bf16": "fp16"}
_WIDER = {
    "fp4": "fp8", "mxfp4": "bf16", "int4": "int8", "fp6": "fp8", "fp8": "bf16", "int8": "bf16",
    "fp16": "fp32", "bf16": "fp32", "tf32": "fp32",
}  # fmt: skip


class Device(msgspec.Struct, frozen=True):
    """One accelerator with its efficiency; `cost(op)` gives the seconds of an operation.

    >>> Device.named("H100-SXM").memory_Bps / 1e12
    3.35
    """

    accelerator: Accelerator
    efficiency: Efficiency = Efficiency()
    power: PowerModel = PowerModel()

    @classmethod
    def named(cls, name: str, efficiency: Efficiency | None = None) -> Device:
        """The device of the world's catalogue with this name."""
        return cls(accelerator(name), efficiency or Efficiency())

    @property
    def name(self) -> str:
        """The name in the catalogue."""
        return self.accelerator.name

    @property
    def memory_Bps(self) -> float:
        """Peak memory bandwidth."""
        return self.accelerator.memory_Bps

    @property
    def memory_B(self) -> int:
        """Memory."""
        return self.accelerator.memory_B

    @property
    def price_per_h(self) -> float | None:
        """Price of one device for an hour, or None when the catalogue has none."""
        return self.accelerator.price_per_h

    def peak_flops(self, dtype: str) -> float:
        """Peak of a dtype; one without a published figure runs as its twin or the next wider."""
        if dtype not in WEIGHT_B:
            raise SpecError("dtype", f"unknown dtype {dtype!r}", did_you_mean(dtype, WEIGHT_B))
        peaks, wanted = self.accelerator.peak_flops, dtype
        while wanted is not None:
            for each in (wanted, _TWIN.get(wanted)):
                if each in peaks:
                    return peaks[each]
            wanted = _WIDER.get(wanted)
        widest = max(peaks, key=lambda each: (DTYPE_B[each], -peaks[each]))
        return peaks[widest] * min(1.0, DTYPE_B[widest] / DTYPE_B[dtype])

    def _reach(self, op: Op) -> float:
        if op.kind.startswith("attention"):
            return self.efficiency.attention
        narrow = WEIGHT_B[op.dtype] < 2
        return self.efficiency.narrow if narrow else self.efficiency.gemm

    def latency_s(self, op: Op) -> float:
        """The least time of an operation of this kind."""
        if op.kind in VECTOR:
            return self.efficiency.vector_latency_s
        if op.kind.startswith("attention"):
            return self.efficiency.attention_latency_s
        # A mixture of experts is two products with a permutation on either side.
        return self.efficiency.gemm_latency_s * (4 if op.kind == "moe" else 1)

    def once(self, op: Op) -> Any:
        """Seconds of an operation done once; an array when its counts are arrays."""
        if op.kind in COLLECTIVES:
            return self.message_s(op.kind, op.dims["bytes"], op.group)
        compute = op.flops / (self.peak_flops(op.dtype) * self._reach(op))
        memory = op.bytes / (self.accelerator.memory_Bps * self.efficiency.memory)
        if isinstance(compute, np.ndarray) or isinstance(memory, np.ndarray):
            return np.maximum(compute, memory) + self.latency_s(op)
        return max(compute, memory) + self.latency_s(op)

    def cost(self, op: Op) -> Any:
        """Seconds of an operation, with all its repetitions."""
        return self.once(op) * op.times

    def message_s(self, kind: str, size_B: Any, group: int, link_Bps: float | None = None) -> Any:
        """Seconds of a collective alone on its links: latency and bandwidth of a ring.

        All-reduce: 2 (n - 1) hops and 2 (n - 1) / n of the message through each link; all-gather
        and reduce-scatter half of both; all-to-all one hop, (n - 1) / n; a send all of it.
        """
        if group <= 1:
            return size_B * 0.0
        rate = link_Bps or self.accelerator.link_Bps
        if rate is None:
            fix = "give link_Bps, or use one device"
            raise SpecError(f"{self.name}.link_Bps", "no link is published", fix)
        share = (group - 1) / group
        hops, share = {
            "all_reduce": (2 * (group - 1), 2 * share),
            "all_gather": (group - 1, share),
            "reduce_scatter": (group - 1, share),
            "all_to_all": (1, share),
            "send": (1, 1.0),
        }[kind]
        latency_s = self.efficiency.collective_latency_s + hops * self.efficiency.hop_latency_s
        return latency_s + share * size_B / (rate * self.efficiency.link)

    def effort(self, op: Op) -> Any:
        """Seconds at full active power above the base that an operation stands for; see power."""
        if op.kind in COLLECTIVES:
            return op.dims["bytes"] * 0.0
        memory = self.power.memory * op.bytes / self.accelerator.memory_Bps
        compute = self.power.compute * op.flops / self.peak_flops(op.dtype)
        return (memory + compute) * op.times

    def joules(self, seconds: float, effort: float) -> float:
        """Energy of one device that is busy for so long with so much effort.

        A device whose power is not published counts 0, as everywhere in the world.
        """
        watts = self.accelerator.active_W or 0.0
        return watts * min(seconds, self.power.base * seconds + effort)


__all__ = ["IDEAL", "Device", "Efficiency", "PowerModel"]
