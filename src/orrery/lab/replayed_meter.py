"""Operators as they run inside a recorded step: measured in CUDA graphs of their own.

An operator launched alone takes the host longer than it takes the GPU. In a replayed step nobody
launches it, so what counts is its time among others in a recording. Attention is the kernel that
recorded steps use, over the engine's own cache and desk; planning a batch is the host's work, which
`measure_host` finds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from orrery.models.real.frames import Desk, Frame, Size
from orrery.models.real.graphs import CudaCapture, decode_sizes, mixed_sizes
from orrery.models.real.kernels import attend
from orrery.models.real.paged import PagedCache
from orrery.models.real.steptable import padded
from orrery.systems.ops.dooly import TorchMeter
from orrery.systems.ops.dooly.operators import Key
from orrery.systems.ops.dooly.sweep import Point, shape_of

# How often an operator follows itself in a recording, each time with other weights.
TURNS = 12
# What an operator that no recording contains is given, since a time must be positive.
NOTHING_S = 1e-9


class ReplayedMeter(TorchMeter):
    """Times operators inside recordings. `capture` records; CUDA graphs by default."""

    def __init__(self, *args: Any, capture: Any = None, **knobs: Any) -> None:
        super().__init__(*args, **knobs)
        self._capture = capture

    def measure(self, key: Key, points: Sequence[Point]) -> list[float]:
        """Seconds of one call at each point."""
        if key.op.endswith("__init__"):
            return [NOTHING_S] * len(points)
        return super().measure(key, points)

    def time(self, call: Callable[[int], Any]) -> float:
        """The median seconds of a call, among calls of its kind."""

        def several() -> None:
            for turn in range(TURNS):
                call(turn)

        # Each recording has its own pool of memory, which goes with it.
        replay = (self._capture or CudaCapture())(several)
        times: list[float] = []
        for _ in range(self.repeats + 1):
            self._wait()
            began = self.clock()
            replay()
            self._wait()
            times.append(max(self.clock() - began - self._look_s, TURNS * NOTHING_S))
        self.spent_s += sum(times)
        self.calls += len(times) * TURNS
        # What launching a recording and waiting for it takes is counted once, by the host.
        return float(np.median(times[1:])) / TURNS

    def _tensor(
        self, shape: Any, kind: str, order: Sequence[int], domain: int, fill: float = 0.0
    ) -> Any:
        # Equal numbers switch fewer transistors: a GPU at its limit of power multiplies them faster
        # by a tenth. So weights are random here.
        return super()._tensor(shape, kind, order, domain)

    def _state_call(self, key: Key, point: Point) -> Callable[[int], Any]:
        if not key.op.endswith("attend"):
            return super()._state_call(key, point)
        shape = shape_of(point)
        plain, spec = self._cache(key, shape)
        cache = self._caches.get("spare")
        if cache is None or (cache.blocks, len(cache.keys)) != (plain.blocks, spec.layers):
            cache = PagedCache(
                spec, plain.blocks, plain.block_tokens, device=self.place, dtype=self.dtype,
                spare=True,
            )  # fmt: skip
            self._caches["spare"] = cache
        pieces = self._pieces(shape, cache.block_tokens)
        tokens, many = sum(len(piece.tokens) for piece in pieces), len(pieces)
        decodes = tokens == many
        sizes = decode_sizes(many) if decodes else mixed_sizes(tokens, above=many)
        size = Size(next(n for n in sizes if n >= tokens), many, decodes)
        if decodes:
            size = Size(size.tokens, size.tokens, True)
        desk = Desk(
            cache, tokens=max(size.tokens, tokens), sequences=size.sequences,
            group=spec.heads // spec.kv_heads,
        )  # fmt: skip
        desk.fill(pieces, size)
        frame = Frame(desk, size, attend, window=key.window)
        width, layers = cache.keys.shape[-1], spec.layers
        q = self._tensor((size.tokens, spec.heads, width), "f", (0, 1, 2), 1)
        scale = float(width) ** -0.5
        return lambda turn: frame.attend(
            q, cache.keys[turn % layers], cache.values[turn % layers], scale
        )


class PaddedSteps:
    """Step times of an engine that pads its steps, from those of exact sizes."""

    spread = False
    measured = True

    def __init__(self, steps: Any, pads: dict[str, list[int]]) -> None:
        self.model, self.tp, self.steps, self.pads = steps.model, 1, steps, pads

    @property
    def extrapolated(self) -> int:
        """Steps beyond what was measured."""
        return int(self.steps.extrapolated)

    def seconds(
        self, prefill: Sequence[tuple[int, int]], decodes: int, decode_kv: int, spread: Any = None
    ) -> float:
        """One step; what is added to it counts as part of its longest chunk."""
        chunks = [chunk for chunk in prefill if chunk[0] > 1]
        if chunks:
            tokens = decodes + sum(new for new, _ in prefill)
            more = padded(self.pads, tokens, True) - tokens
            longest = max(range(len(prefill)), key=lambda n: prefill[n][0])
            prefill = [(new + more * (n == longest), past) for n, (new, past) in enumerate(prefill)]
        return float(self.steps.seconds(prefill, decodes, decode_kv))

    def decode_run(self, decodes: int, decode_kv: int, steps: int, spread: Any = None) -> float:
        """So many pure decode steps in a row: a few more rows cost nothing beside the weights."""
        return float(self.steps.decode_run(decodes, decode_kv, steps))

    def joules(self, *step: Any) -> float:
        """Energy of the step."""
        return float(self.steps.joules(*step))


__all__ = ["PaddedSteps", "ReplayedMeter"]
