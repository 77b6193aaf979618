"""What the tests of compressed collectives share: runs, worlds, fields on a grid."""

from __future__ import annotations

import functools

import numpy as np

from orrery import World, run
from orrery.base.rand import Stream
from orrery.systems.collectives.ncclz import Speeds
from orrery.systems.collectives.ncclz.selector import CPU
from orrery.systems.collectives.problems.compressed_all_reduce import CompressedAllReduce
from orrery.systems.collectives.problems.compressible import content, field

# Coding that takes no time; what remains is the wire.
FREE = Speeds(of="own", **{name: 1e18 for name in CPU.knobs() if name.endswith("_Bps")})


def lan(n, link_Bps=1.25e7, latency_s=1e-4):
    return World.lan(n, latency_s=latency_s, bandwidth_Bps=link_Bps, jitter=0.0)


def play(part, world, **knobs):
    """A run without violations."""
    made = run(part, problem=CompressedAllReduce(**knobs), world=world)
    assert made.violations == []
    return made


@functools.lru_cache(maxsize=4)
def smooth(items):
    """A smooth 3-D field of so many values."""
    return field(Stream(1, "field", "ncclz").numpy(), items)


def eb_for(values, deviation):
    """The error bound with which differences of neighbouring codes have this deviation.

    Rounding to a grid adds a twelfth of a step squared for each of the two codes.
    """
    spread = float(np.diff(values).std())
    return spread / (deviation**2 - 1 / 6) ** 0.5 / 2


def field_eb(items, deviation, slope=11 / 3):
    """The same for the field of rank 0 in the problem."""
    return eb_for(content("field", 0, 0, 0, items, slope), deviation)
