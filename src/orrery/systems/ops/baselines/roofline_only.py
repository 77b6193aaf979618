"""Measure nothing: step times from the data sheet alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from orrery.base.errors import NotFitted
from orrery.models.device import Device
from orrery.models.specs import ModelSpec
from orrery.models.steps import RooflineSteps
from orrery.systems.ops.problems.profiling import Profiler


class RooflineOnly(Profiler):
    """Foretells a step as the larger of its arithmetic and its memory traffic over the peaks.

    After Williams, Waterman and Patterson, "Roofline: An Insightful Visual Performance Model for
    Multicore Architectures" (CACM 2009), applied operator by operator with the fractions of the
    peaks that good kernels reach (`orrery.models.device.Efficiency`). No device time is spent.

    Knobs: `device`, an accelerator of the catalogue, for rows that name none.

    Differs from the paper: one ceiling for compute and one for memory, and a least time for each
    kernel.

    >>> RooflineOnly().knobs()
    {'device': 'H100-SXM'}
    """

    device: str = "H100-SXM"

    def learn(self, model: ModelSpec, meter: Any, sweep: Any) -> None:
        """Keep the device's name; nothing is measured."""
        self.__dict__.setdefault("_devices", {})[model.name] = meter.device

    def steps(self, model: ModelSpec) -> RooflineSteps:
        """Step times from the data sheet."""
        device = self.__dict__.get("_devices", {}).get(model.name)
        if device is None:
            raise NotFitted(f"{model.name} was not learnt; call learn(model, meter, sweep) first")
        return RooflineSteps(model, device)

    def fit(self, inputs: Any, targets: Any) -> RooflineOnly:
        """Nothing is learnt from data; that it was offered is remembered."""
        self._card = Device.named(self.device)
        return self

    def predict(self, inputs: Any) -> Any:
        """Seconds of rows (key, size, flops, bytes)."""
        card: Device = self.fitted("_card")
        rows = np.asarray(inputs, float)
        compute = rows[:, 2] / (card.peak_flops("bf16") * card.efficiency.gemm)
        memory = rows[:, 3] / (card.memory_Bps * card.efficiency.memory)
        return np.maximum(compute, memory) + card.efficiency.gemm_latency_s


__all__ = ["RooflineOnly"]
