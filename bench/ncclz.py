"""Compressed collectives: what the coders do here, how well they compress, and who wins where.

Prints JSON. `speeds` are bytes of int32 a CPU-second of the coders on this machine (the figures of
`Speeds` for a CPU). `sizes` are bits a value on a smooth field by each coder, and by constriction's
ANS coder where that is installed. `links` is modelled: the time of an all-reduce of 1 MB over 8
ranks in milliseconds, for every part on links of several speeds. For a GPU:
`python bench/_ncclz_gpu.py`.
"""

from __future__ import annotations

import json
import time

import numpy as np

from orrery import World, run
from orrery.systems.collectives.baselines.cast_ring import CastRing
from orrery.systems.collectives.baselines.coupled_ring import CoupledRing
from orrery.systems.collectives.baselines.quantised_ring import QuantisedRing
from orrery.systems.collectives.baselines.ring import Ring
from orrery.systems.collectives.ncclz import NCCLZ, Chunk, Grid, seal
from orrery.systems.collectives.ncclz.calibrate import measure
from orrery.systems.collectives.ncclz.coders import NAMES
from orrery.systems.collectives.problems.compressed_all_reduce import CompressedAllReduce
from orrery.systems.collectives.problems.compressible import field

PARTS = {
    "NCCLZ": NCCLZ(), "table coder": NCCLZ(coder="table"), "no overlap": NCCLZ(overlap=False),
    "quantised ring": QuantisedRing(), "coupled ring": CoupledRing(), "float16": CastRing(),
    "int8": CastRing(cast="int8"), "ring": Ring(),
}  # fmt: skip
CHUNK = 32768


def sizes(deviation: float) -> dict[str, float]:
    """Bits a value of a field whose differences have this deviation, by coder."""
    values = field(np.random.default_rng(0), 1 << 19)
    codes = Grid(float(np.diff(values).std()) / deviation / 2).quantise(values)
    cut = [codes[at : at + CHUNK] for at in range(0, codes.size, CHUNK)]
    found = {
        name: 8 * sum(seal(Chunk(chunk), number, delta=True).size for chunk in cut) / codes.size
        for number, name in enumerate(NAMES)
    }
    difference = np.diff(codes)
    part = np.bincount(difference - difference.min()) / difference.size
    part = part[part > 0]
    found["entropy"] = float(-(part * np.log2(part)).sum())
    library = constriction_bits(difference)
    if library is not None:
        found["constriction"] = library
    return {name: round(bits, 3) for name, bits in found.items()}


def constriction_bits(values: np.ndarray) -> float | None:
    """The same by constriction's ANS coder, with one table for all; None where it is missing."""
    try:
        import constriction
    except ImportError:
        return None
    symbols = (values - values.min()).astype(np.int32)
    share = np.bincount(symbols) / symbols.size
    model = constriction.stream.model.Categorical(share, perfect=False)
    coder = constriction.stream.stack.AnsCoder()
    coder.encode_reverse(symbols, model)
    return 32 * len(coder.get_compressed()) / symbols.size


def links(link_Bps: float) -> dict[str, float]:
    """The milliseconds of one all-reduce, by part."""
    world = World.lan(8, latency_s=1e-5, bandwidth_Bps=link_Bps, jitter=0.0)
    problem = CompressedAllReduce(items=1 << 18)
    return {
        name: round(1e3 * run(part, problem=problem, world=world).metrics["time_s"], 3)
        for name, part in PARTS.items()
    }


def main() -> None:
    """Print all of it."""
    speeds = {k: float(f"{v:.3g}") for k, v in measure(time.process_time).knobs().items()
              if k != "of"}  # fmt: skip
    answer = {
        "speeds": speeds,
        "sizes": {str(deviation): sizes(deviation) for deviation in (0.5, 1.0, 4.0)},
        "links": {f"{link:g}": links(link) for link in (1e6, 1e7, 1e8, 1e9)},
    }
    print(json.dumps(answer, indent=1))


if __name__ == "__main__":
    main()
