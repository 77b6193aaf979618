"""Which coder for a chunk: the one whose coding and transfer together take least.

A sample of the chunk gives a histogram, that an entropy, and that the bytes each coder would make.
With what the coders and the link do in a second, each has a time: encode + send + decode.
"""

from __future__ import annotations

import functools
from typing import Any, Literal, NamedTuple

import numpy as np

from orrery.parts.collectives import Array
from orrery.parts.knobs import Part, Positive
from orrery.systems.collectives.ncclz import rans
from orrery.systems.collectives.ncclz.bits import width_of
from orrery.systems.collectives.ncclz.coders import NAMES, PACK, RAW, TABLE, ZERO, shift_for

# The sample: so many runs of neighbours, so that differences can be seen too.
RUNS, RUN = 16, 64


class Rate(NamedTuple):
    """What one coder does: bytes of codes in and out for each second."""

    encode_Bps: float
    decode_Bps: float


class Speeds(Part):
    """What coding costs, in bytes of uncoded numbers for each second.

    `of`: "own" takes the knobs; "cpu", "gpu" (kernels on the whole device) and "blocks" (inside the
    blocks that NCCL takes for a collective) are measured, see `CPU`, `GPU`, `BLOCKS`; "auto" takes
    what fits the machine and the system.

    >>> Speeds(of="own", table_encode_Bps=1e9).table_encode_Bps
    1000000000.0
    """

    of: Literal["auto", "cpu", "gpu", "blocks", "own"] = "auto"
    quantise_Bps: Positive = 1e9
    dequantise_Bps: Positive = 1e9
    raw_encode_Bps: Positive = 1e9
    raw_decode_Bps: Positive = 1e9
    pack_encode_Bps: Positive = 1e9
    pack_decode_Bps: Positive = 1e9
    zero_encode_Bps: Positive = 1e9
    zero_decode_Bps: Positive = 1e9
    table_encode_Bps: Positive = 1e9
    table_decode_Bps: Positive = 1e9

    def on(self, machine: Any, inside: bool) -> Speeds:
        """The figures for a machine; `inside` says that a GPU codes within its collective."""
        of = self.of
        if of == "auto":
            of = ("blocks" if inside else "gpu") if machine.accelerators else "cpu"
        return {"cpu": CPU, "gpu": GPU, "blocks": BLOCKS, "own": self}[of]

    def rate(self, coder: int) -> Rate:
        """The two directions of a coder."""
        name = NAMES[coder]
        return Rate(getattr(self, f"{name}_encode_Bps"), getattr(self, f"{name}_decode_Bps"))

    def hopeless(self, link_Bps: float) -> bool:
        """Whether coding takes longer than sending, even if nothing were left to send."""
        rates = [self.rate(coder) for coder in (PACK, ZERO, TABLE)]
        return min(1 / rate.encode_Bps + 1 / rate.decode_Bps for rate in rates) >= 1 / link_Bps

    def encode_s(self, coder: int, raw_B: float) -> float:
        """The seconds that encoding so many bytes takes."""
        return raw_B / self.rate(coder).encode_Bps

    def decode_s(self, coder: int, raw_B: float) -> float:
        """The seconds that decoding to so many bytes takes."""
        return raw_B / self.rate(coder).decode_Bps


# This package's NumPy on one core of an Arm Neoverse-N1, differences of deviation 4 in chunks of
# 32,768, by `python -m bench.ncclz`, 2026-11-15; encoding includes the choice of the coder.
CPU = Speeds(
    of="own", quantise_Bps=5.1e8, dequantise_Bps=2.9e9, raw_encode_Bps=4.2e9, raw_decode_Bps=5.9e9,
    pack_encode_Bps=1.6e8, pack_decode_Bps=3.7e8, zero_encode_Bps=5.0e7, zero_decode_Bps=1.1e8,
    table_encode_Bps=3.9e7, table_decode_Bps=4.3e7,
)  # fmt: skip
# CUDA kernels of the same coders on an NVIDIA H200, codes of deviation 4, by
# `bench/_ncclz_gpu.py`, 2026-11-15, without the choice of a coder; zero runs were not measured and
# count as the table coder.
GPU = Speeds(
    of="own", quantise_Bps=8.4e11, dequantise_Bps=8.4e11, raw_encode_Bps=2.1e12,
    raw_decode_Bps=2.1e12, pack_encode_Bps=1.44e12, pack_decode_Bps=2.63e12,
    zero_encode_Bps=8.7e11, zero_decode_Bps=2.07e12, table_encode_Bps=8.7e11,
    table_decode_Bps=2.07e12,
)  # fmt: skip
# The same kernels in no more than 32 blocks of 512 threads, which NCCL takes by default. Quantising
# is before and after the collective, and raw frames only add a checksum to NCCL's own copying: both
# as on the whole device.
BLOCKS = GPU.with_knobs(
    pack_encode_Bps=2.76e11, pack_decode_Bps=5.72e11, zero_encode_Bps=1.35e11,
    zero_decode_Bps=2.29e11, table_encode_Bps=1.35e11, table_decode_Bps=2.29e11,
)  # fmt: skip


class Choice(NamedTuple):
    """What the selector says: which coder, on differences or not, and what it expects."""

    coder: int
    delta: bool
    expected_B: float
    expected_s: float


class Guess(NamedTuple):
    """What is known of a chunk: bits of entropy, least and most, the share of zeros.

    Only the range is of all numbers, as one rare value decides the width of bit packing.
    """

    bits: float
    least: int
    most: int
    zeros: float
    kinds: int

    def size_B(self, coder: int, items: int, item_B: int) -> float:
        """The bytes that a coder would make of `items` such numbers."""
        span = self.most - self.least
        if coder == RAW:
            return float(items * item_B)
        if coder == PACK:
            return items * width_of(span) / 8 + 9
        if coder == ZERO:
            share = 1.0 - self.zeros
            gap_bits = width_of(round(4 / max(share, 1 / items)))
            return items * share * (gap_bits + width_of(span)) / 8 + 26
        lanes_B = 2.0 * rans.lanes_for(items)
        return items * self.bits / 8 + lanes_B + 2 * self.kinds + 24


def guess(values: Array, sample: Array) -> Guess:
    """What a sample says of values; the entropy with Miller and Madow's correction for its size."""
    if not sample.size:
        return Guess(0.0, 0, 0, 1.0, 0)
    # As the table coder does it: the lowest bits of widely spread numbers count in full.
    low_bits = shift_for(sample)
    ordered = np.sort(sample >> low_bits)
    edges = np.flatnonzero(ordered[1:] != ordered[:-1])
    counts = np.diff(np.concatenate([[-1], edges, [ordered.size - 1]]))
    part = counts / ordered.size
    bits = float(-(part * np.log2(part)).sum()) + (counts.size - 1) / (2 * np.log(2) * ordered.size)
    zeros = float(np.count_nonzero(sample == 0)) / sample.size
    return Guess(bits + low_bits, int(values.min()), int(values.max()), zeros, counts.size)


@functools.lru_cache(maxsize=64)
def _places(items: int) -> Array:
    """Where the sample of a chunk lies: evenly spread runs of neighbours."""
    if items <= RUNS * RUN:
        return np.arange(items).reshape(1, items)
    begins = np.linspace(0, items - RUN, RUNS).astype(np.int64)
    return begins[:, None] + np.arange(RUN)


class Selector(NamedTuple):
    """Chooses among `coders` for one link, by the speeds of this machine."""

    speeds: Speeds
    link_Bps: float
    coders: tuple[int, ...] = (RAW, PACK, ZERO, TABLE)
    deltas: tuple[bool, ...] = (False, True)

    def choose(self, values: Array) -> Choice:
        """The coder for a chunk of codes; ties go to the simpler one."""
        sample = values[_places(values.size)]
        guesses = {False: guess(values, sample.reshape(-1))}
        if True in self.deltas:
            # They wrap as the coder's own differences do.
            guesses[True] = guess(np.diff(values), np.diff(sample, axis=1).reshape(-1))
        best: Choice | None = None
        for coder in self.coders:
            for delta in self.deltas if coder != RAW else (False,):
                size_B = guesses[delta].size_B(coder, values.size, values.itemsize)
                took_s = self.seconds(coder, values.nbytes, size_B)
                if best is None or took_s < best.expected_s:
                    best = Choice(coder, delta, size_B, took_s)
        assert best is not None
        return best

    def seconds(self, coder: int, raw_B: float, size_B: float) -> float:
        """Encode, send, decode: what this coder costs for a chunk."""
        rate = self.speeds.rate(coder)
        return raw_B / rate.encode_Bps + size_B / self.link_Bps + raw_B / rate.decode_Bps

    def pays(self, values: Array, crossings: float) -> bool:
        """Whether coding beats sending values as they are, over so many crossings of a link.

        Quantising and its inverse are paid once for the call, coding at each crossing.
        """
        if not values.size:
            return False
        chosen = self.choose(values)
        plain_s = self.seconds(RAW, values.nbytes, values.nbytes)
        once_s = values.nbytes * (1 / self.speeds.quantise_Bps + 1 / self.speeds.dequantise_Bps)
        return once_s + crossings * chosen.expected_s < crossings * plain_s


__all__ = ["BLOCKS", "CPU", "GPU", "Choice", "Guess", "Rate", "Selector", "Speeds", "guess"]
