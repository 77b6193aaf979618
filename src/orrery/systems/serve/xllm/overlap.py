"""The engine's pipelines: host under device, one micro-batch under the other, few graphs.

Step times of an engine that hides what can be hidden; `Pipelined` is to be compared with
`problems.llm_elastic.device.Synchronous`.
"""

from __future__ import annotations

from typing import Any, Literal

from orrery.systems.serve.problems.llm_elastic.device import (
    HOST_S,
    LAUNCH_S,
    DeviceWork,
    Prefill,
    captured,
    floored_run,
)

Graph = Literal["adaptive", "buckets", "eager"]
# A parametrised graph is launched in a few pieces, between which shapes are patched in.
PIECES = 3


def two_batches(chain_s: float, message_s: float, vector_s: float, layers: int) -> float:
    """Seconds of two equal micro-batches that pass the same three units by turns.

    Each needs the matrix units, the vector units and the links one after the other, `chain_s` in
    all over `layers` layers. In a steady state a layer of both takes as long as the busiest unit is
    busy with both, or as one of them takes from end to end, whichever is longer; the second one
    starts one unit behind.

    >>> two_batches(10.0, 5.0, 0.0, 1000)    # a perfect fit: what one alone takes, and the start
    10.005
    """
    matrix_s = chain_s - message_s - vector_s
    busiest_s = max(matrix_s, vector_s, message_s)
    return max(chain_s, 2 * busiest_s) + busiest_s / layers


class Pipelined:
    """Step times of an engine with multi-layer pipelines and graphs.

    host      plan step t + 1 while the device computes step t: a step takes the longer of the two
    micro     split a batch in two where messages of one then hide under the other's arithmetic and
              that is faster; halves read the weights twice, so for small batches it is not
    graph     adaptive: a few parametrised graphs fit every shape; buckets: one graph a captured
              batch size, padded, and eager steps with prompts; eager: every kernel is launched
    """

    spread, extrapolated = False, 0

    def __init__(
        self, device: DeviceWork, *, host: bool = True, micro: bool = True,
        graph: Graph = "adaptive", host_s: float = HOST_S, launch_s: float = LAUNCH_S,
    ) -> None:  # fmt: skip
        self.device, self.model, self.tp = device, device.model, device.layout.tp
        self.host, self.micro, self.graph = host, micro, graph
        self.host_s, self.launch_s = host_s, launch_s
        self._launches_s = device.kernels * launch_s
        self._splits = micro and (device.layout.tp > 1 or device.layout.ep > 1)

    # -- the device

    def split_s(self, prefill: Prefill, decodes: int, decode_kv: int) -> float:
        """Seconds of the step as two micro-batches."""
        halves = tuple((max(new // 2, 1), past) for new, past in prefill)
        half, kv = -(-decodes // 2), -(-decode_kv // 2)
        chain_s = self.device.seconds(halves, half, kv)
        message_s, vector_s = self.device.parts(halves, half)
        return two_batches(chain_s, message_s, vector_s, self.model.layers)

    def _device_s(self, prefill: Prefill, decodes: int, decode_kv: int) -> float:
        rows = captured(decodes) if self.graph == "buckets" and not prefill else decodes
        whole_s = self.device.seconds(prefill, rows, decode_kv)
        if self._splits and rows + sum(new for new, _ in prefill) > 1:
            whole_s = min(whole_s, self.split_s(prefill, rows, decode_kv))
        if self.graph == "eager" or (self.graph == "buckets" and prefill):
            return max(whole_s, self._launches_s)
        return whole_s + self.launch_s * (PIECES if self.graph == "adaptive" else 1)

    def seconds(
        self, prefill: Prefill, decodes: int, decode_kv: int, spread: Any = None
    ) -> float:  # fmt: skip
        """One step."""
        if not prefill and not decodes:
            return 0.0
        device_s = self._device_s(prefill, decodes, decode_kv)
        return max(self.host_s, device_s) if self.host else self.host_s + device_s

    def decode_run(self, decodes: int, decode_kv: int, steps: int, spread: Any = None) -> float:
        """So many decode steps in a row; the context grows by `decodes` with each."""
        if not decodes or not steps:
            return 0.0
        if steps == 1:
            return self.seconds((), decodes, decode_kv)
        if self._splits or self.graph == "buckets":
            return self._sampled(decodes, decode_kv, steps)
        eager = self.graph == "eager"
        more_s = 0.0 if eager else self.launch_s * PIECES
        floor_s = self._launches_s if eager else 0.0
        if self.host:
            floor_s = max(floor_s, self.host_s - more_s)
        run_s = floored_run(self.device, decodes, decode_kv, steps, floor_s)
        return run_s + steps * (more_s + (0.0 if self.host else self.host_s))

    def _sampled(self, decodes: int, decode_kv: int, steps: int) -> float:
        """The trapezoid over the run: a step's time is all but linear in its context."""
        first = self.seconds((), decodes, decode_kv)
        last = self.seconds((), decodes, decode_kv + decodes * (steps - 1))
        return (first + last) / 2 * steps


__all__ = ["Graph", "Pipelined", "two_batches"]
