"""What the coders do in a second on this machine, measured by a clock that the caller gives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from orrery.base.rand import Stream
from orrery.parts.collectives import Array
from orrery.systems.collectives.ncclz.coders import NAMES, RAW
from orrery.systems.collectives.ncclz.frame import Chunk, open_frame, seal
from orrery.systems.collectives.ncclz.quantiser import Grid
from orrery.systems.collectives.ncclz.selector import CPU, Selector, Speeds


def measure(
    clock: Callable[[], float], *, chunk_items: int = 32768, deviation: float = 4.0,
    least_s: float = 0.05, shared: bool = False,
) -> Speeds:  # fmt: skip
    """Time each coder on chunks of normal codes, each for at least `least_s` seconds.

    Coders get differences to code, as they mostly do, and encoding includes the choice of the
    coder. The median of the calls counts, so that a pause of the machine does not; with `shared`
    the mean, as pauses are what sharing a core is.
    """
    rng = Stream(0, 0, "calibrate").numpy()
    codes = np.cumsum(np.rint(rng.standard_normal(chunk_items) * deviation)).astype(np.int32)
    found: dict[str, float] = {}

    def rate_Bps(call: Callable[[], object]) -> float:
        call()
        times: list[float] = []
        while sum(times) < least_s or len(times) < 5:
            began = clock()
            call()
            times.append(clock() - began)
        typical = np.mean(times) if shared else np.median(times)
        return codes.nbytes / max(float(typical), 1e-9)

    grid = Grid(0.5)
    values = codes.astype(np.float32)
    found["quantise_Bps"] = rate_Bps(lambda: grid.quantise(values))
    found["dequantise_Bps"] = rate_Bps(lambda: grid.dequantise(codes, values.dtype))
    for number, name in enumerate(NAMES):
        delta = number != RAW
        frame = seal(Chunk(codes), number, delta)
        found[f"{name}_encode_Bps"] = rate_Bps(lambda n=number, d=delta: _encode(codes, n, d))
        found[f"{name}_decode_Bps"] = rate_Bps(lambda f=frame: open_frame(f))
    return Speeds(of="own", **found)


def _encode(codes: Array, coder: int, delta: bool) -> Array:
    if coder != RAW:
        Selector(CPU, 1e7).choose(codes)
    return seal(Chunk(codes), coder, delta)


__all__ = ["measure"]
