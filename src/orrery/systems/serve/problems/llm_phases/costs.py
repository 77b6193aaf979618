"""What a step takes on a share of a device's multiprocessors, and how phases share the memory.

Arithmetic is in proportion to the share. Bandwidth is not: a part of the multiprocessors reaches
more than its part. Both were measured on an H200 (`bench/semi_pd.py device`): bf16 products of
8,192 in green contexts gave 0.15, 0.29, 0.57, 0.86 of the full rate on 0.12, 0.24, 0.48, 0.73 of
the multiprocessors; reads gave the curve below. Reads beside arithmetic on the other
multiprocessors lost nothing; reads beside reads got bandwidth by their numbers of multiprocessors.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from orrery.base.errors import KnobError
from orrery.models.device import Device, Efficiency
from orrery.models.steps import RooflineSteps, steps_for
from orrery.world.hardware import Accelerator

# Share of the multiprocessors -> share of the read bandwidth, measured on one NVIDIA H200.
REACH = (
    (0.0, 0.0), (0.0606, 0.106), (0.0985, 0.176), (0.1515, 0.270), (0.197, 0.339), (0.25, 0.422),
    (0.303, 0.500), (0.3485, 0.567), (0.4015, 0.630), (0.447, 0.685), (0.5, 0.741), (0.5985, 0.828),
    (0.697, 0.885), (0.75, 0.925), (0.803, 0.952), (0.9015, 0.978), (1.0, 1.0),
)  # fmt: skip
_SHARES = [share for share, _ in REACH]
# Tokens in one call of the step model; a longer prompt is computed in pieces of this size.
PIECE = 16_384
_NO_LATENCY = {
    "gemm_latency_s": 0.0, "attention_latency_s": 0.0, "vector_latency_s": 0.0,
    "collective_latency_s": 0.0, "hop_latency_s": 0.0,
}  # fmt: skip
Work = Sequence[tuple[int, int]]


def reach(share: float) -> float:
    """The share of the bandwidth that a share of the multiprocessors can draw.

    >>> reach(0.5), reach(1.0)
    (0.741, 1.0)
    """
    if not 0 <= share <= 1:
        raise KnobError("share", f"{share!r} is refused", "give 0 to 1")
    at = min(bisect_right(_SHARES, share), len(REACH) - 1)
    (x0, y0), (x1, y1) = REACH[at - 1], REACH[at]
    return y0 + (y1 - y0) * (share - x0) / (x1 - x0)


class ShareCosts:
    """Seconds of a step on a share of an engine's devices.

    On the whole device a step takes what `steps_for` says (measured tables, or rooflines). On a
    share of it, that times the ratio of two rooflines: of a device with so much less arithmetic and
    bandwidth, and of the whole one. `saturates` off: bandwidth is in proportion to the share too.
    """

    def __init__(
        self, model: str, device: Accelerator, tp: int, tables: str, saturates: bool = True
    ) -> None:
        self.model, self.device, self.tp, self.saturates = model, device, tp, saturates
        self.steps: Any = steps_for(model, device, tp, tables=tables or None)
        self.layers: int = self.steps.model.layers
        self._whole = RooflineSteps(model, device, tp)
        self._parts: dict[float, RooflineSteps] = {1.0: self._whole}
        fast = {name: peak * 1e6 for name, peak in device.peak_flops.items()}
        # With arithmetic for nothing, what is left is the traffic with memory.
        quick = Device(device.replace(peak_flops=fast), Efficiency(**_NO_LATENCY))
        self._traffic = RooflineSteps(model, quick, tp)

    @property
    def measured(self) -> bool:
        """Whether step times come from measured tables."""
        return bool(getattr(self.steps, "measured", False))

    def _part(self, share: float) -> RooflineSteps:
        made = self._parts.get(share)
        if made is None:
            if not 0 < share <= 1:
                raise KnobError("share", f"{share!r} is refused", "give a share in (0, 1]")
            device = self.device
            rate = reach(share) if self.saturates else share
            peaks = {name: peak * share for name, peak in device.peak_flops.items()}
            small = device.replace(peak_flops=peaks, memory_Bps=device.memory_Bps * rate)
            made = self._parts[share] = RooflineSteps(self.model, small, self.tp)
        return made

    def prefill(self, work: Work, share: float = 1.0) -> tuple[float, float]:
        """(seconds, share of the device's bandwidth drawn) of prompts; (new, past) tokens each."""
        full_s = part_s = whole_s = traffic_s = 0.0
        for piece in pieces(work):
            full_s += self.steps.seconds(piece, 0, 0)
            if share < 1.0:
                part_s += self._part(share).seconds(piece, 0, 0)
                whole_s += self._whole.seconds(piece, 0, 0)
                traffic_s += self._traffic.seconds(piece, 0, 0)
        if share >= 1.0:
            return full_s, 1.0
        took_s = full_s * part_s / whole_s
        return took_s, min(traffic_s / took_s, 1.0)

    def decode(self, sequences: int, kv_tokens: int, share: float = 1.0) -> tuple[float, float]:
        """(seconds, share of the device's bandwidth drawn) of one decode step."""
        full_s = self.steps.seconds((), sequences, kv_tokens)
        if share >= 1.0:
            return full_s, 1.0
        part_s = self._part(share).seconds((), sequences, kv_tokens)
        took_s = full_s * part_s / self._whole.seconds((), sequences, kv_tokens)
        return took_s, min(self._traffic.seconds((), sequences, kv_tokens) / took_s, 1.0)

    def mixed_s(self, work: Work, sequences: int, kv_tokens: int) -> float:
        """Seconds of one step with prompts and decodes together, on the whole device."""
        if sum(new for new, _ in work) <= PIECE:
            return float(self.steps.seconds(work, sequences, kv_tokens))
        took_s = self.prefill(work)[0]
        return took_s + (self.decode(sequences, kv_tokens)[0] if sequences else 0.0)


def pieces(work: Work) -> list[list[tuple[int, int]]]:
    """Prompts in calls of at most `PIECE` tokens.

    >>> pieces([(20000, 0), (5, 7)])
    [[(16384, 0)], [(3616, 16384), (5, 7)]]
    """
    calls: list[list[tuple[int, int]]] = [[]]
    left = PIECE
    for new, past in work:
        while new:
            part = min(new, left)
            calls[-1].append((part, past))
            new, past, left = new - part, past + part, left - part
            if not left:
                calls.append([])
                left = PIECE
    return calls if calls[-1] else calls[:-1]


def slowdown(share: float, demand: float, other_share: float, other_demand: float) -> float:
    """By what a step takes longer beside another phase's step on the same device.

    Bandwidth: as long as both demands fit nobody waits; else each may have the part that its share
    of the multiprocessors stands for, and what the other leaves over. While a new partition comes
    into force the shares may be more than the device; then they take turns.

    >>> slowdown(0.5, 0.3, 0.5, 0.7), round(slowdown(0.5, 0.74, 0.5, 0.74), 2)
    (1.0, 1.48)
    """
    both = share + other_share
    turns = both if both > 1.0 + 1e-9 else 1.0
    if demand + other_demand <= 1.0:
        return turns
    mine = share / both
    if demand <= mine:
        return turns
    got = max(mine, 1.0 - other_demand)
    return turns * max(demand / got, 1.0)


__all__ = ["PIECE", "REACH", "ShareCosts", "pieces", "reach", "slowdown"]
