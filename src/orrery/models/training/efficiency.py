"""Which part of the data sheet a training step reaches, and what its kernels take with that.

A product takes its flops at a share of the peak, and a ramp besides: that is how its efficiency
grows with its size. Vector operations take their traffic at a share of the memory's bandwidth. The
constants stand in `efficiency.toml`, each with what it means and where it comes from.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterable
from importlib import resources
from typing import Annotated, ClassVar

from msgspec import Meta

from orrery.base.errors import SpecError
from orrery.models.device import Device
from orrery.models.ops import VECTOR, Op
from orrery.models.specs import WEIGHT_B
from orrery.models.training.work import Times
from orrery.world.spec import NonNegative, Spec, Text, build

Part = Annotated[float, Meta(gt=0, le=1)]


class TrainingEfficiency(Spec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Shares of the data sheet, and times that do not shrink with the work.

    gemm        of the peak, by large matrix products
    narrow      the same for products in dtypes of less than two bytes
    attention   of the peak, by fused attention
    memory      of the memory's bandwidth, by vector operations and the optimiser
    link        of the bandwidth inside an island (NVLink), by ring collectives
    network     of a NIC's bandwidth
    ramp_s      of each product: launch, first loads, the last partly filled wave
    launch_s    of each other kernel
    hop_s       of each step of a ring, besides the latency of the link
    """

    label: ClassVar[str] = "efficiency"
    error: ClassVar[type[SpecError]] = SpecError
    gemm: Part
    narrow: Part
    attention: Part
    memory: Part
    link: Part
    network: Part
    ramp_s: NonNegative
    launch_s: NonNegative
    hop_s: NonNegative
    device: Text = ""

    def seconds(self, op: Op, device: Device) -> float:
        """How long a kernel takes on a device."""
        memory_s = op.bytes / (device.memory_Bps * self.memory)
        if op.kind in VECTOR or not op.flops:
            return float(memory_s + self.launch_s)
        if op.kind.startswith("attention"):
            reach, least_s = self.attention, self.launch_s
        else:
            narrow = WEIGHT_B[op.dtype] < 2
            # A mixture of experts is two products with a permutation on either side.
            ramps = 2 if op.kind == "moe" else 1
            reach, least_s = self.narrow if narrow else self.gemm, self.ramp_s * ramps
        compute_s = op.flops / (device.peak_flops(op.dtype) * reach)
        return float(max(compute_s, memory_s) + least_s)

    def total_s(self, kernels: Iterable[Times], device: Device) -> float:
        """How long the kernels of a pass take, one after the other."""
        return sum(self.seconds(op, device) * count for op, count in kernels)


IDEAL_TRAINING = TrainingEfficiency(
    gemm=1, narrow=1, attention=1, memory=1, link=1, network=1, ramp_s=0, launch_s=0, hop_s=0
)


@functools.cache
def constants() -> dict[str, dict[str, object]]:
    """The file of constants: value, kind, meaning and source of each."""
    place = resources.files("orrery.models.training").joinpath("efficiency.toml")
    return tomllib.loads(place.read_text(encoding="utf-8"))


@functools.cache
def default_efficiency() -> TrainingEfficiency:
    """The constants as they are kept, from A100s."""
    found = {name: row["value"] for name, row in constants().items()}
    return build(TrainingEfficiency, {**found, "device": "A100-80-SXM"}, "efficiency")


__all__ = ["IDEAL_TRAINING", "TrainingEfficiency", "constants", "default_efficiency"]
