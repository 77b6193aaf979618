"""The requests of a run: bursts from a seed, each with a model, an arrival and a deadline."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from orrery.base.rand import Stream
from orrery.inputs import draws
from orrery.inputs.arrivals import MMPP, Poisson
from orrery.systems.serve.problems.dnn_edge_serving.profile import Profile

F64 = npt.NDArray[np.float64]


class Trace(NamedTuple):
    """Requests in order of arrival, and each model's usual time from arrival to deadline."""

    arrival_s: F64
    deadline_s: F64
    model: npt.NDArray[np.int64]
    slo_s: tuple[float, ...]
    rates_per_s: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.arrival_s)


def rates(profile: Profile, load: float, weights: tuple[float, ...] = ()) -> tuple[float, ...]:
    """Requests per second of each model, so that all together need `load` seconds a second.

    Work is counted at full depth and the best batch size. Each model brings an equal share of it,
    or one in proportion to its weight.
    """
    count = len(profile.models)
    shares = weights or (1.0,) * count
    return tuple(
        load * share / sum(shares) / profile.work_s(m) for m, share in zip(range(count), shares,
                                                                           strict=True)
    )  # fmt: skip


def deadline_factors(
    count: int, lo: float, hi: float, given: tuple[float, ...], seed: int
) -> tuple[float, ...]:
    """Each model's deadline, in full-depth times: evenly from lo to hi, dealt out by the seed."""
    if given:
        return given
    factors = [lo + (hi - lo) * (i + 0.5) / count for i in range(count)]
    Stream(seed, "dnn_edge_serving", "deadlines").shuffle(factors)
    return tuple(factors)


def make_trace(
    profile: Profile, *, load: float, seconds: float, seed: int, swing: float, dwell_s: float,
    factors: tuple[float, ...], weights: tuple[float, ...] = (), spread: float = 0.0,
    stale: float = 0.0,
) -> Trace:  # fmt: skip
    """Markov-modulated Poisson arrivals of every model, merged, with deadlines.

    A model's rate is its mean times 1 + `swing` or 1 - `swing`, changing after exponential times of
    mean `dwell_s`; with no swing it is Poisson. `spread` makes deadlines differ between the
    requests of a model (uniformly, by that share either way); a share `stale` of the requests comes
    with a deadline that is past.
    """
    found = rates(profile, load, weights)
    slo_s = tuple(factor * profile.full_s(m) for m, factor in enumerate(factors))
    times, models = [], []
    for m, rate in enumerate(found):
        both = (rate * (1 + swing), rate * (1 - swing))
        # Half of the models begin in their busy state, so that the mix is fair from the start.
        process = (
            MMPP(rates_per_s=both if m % 2 else both[::-1], dwell_s=(dwell_s, dwell_s))
            if swing
            else Poisson(rate_per_s=rate)
        )
        own = process.until(seconds, Stream(seed, m, "edge arrivals").getrandbits(32))
        times.append(own)
        models.append(np.full(len(own), m, np.int64))
    arrival_s, model = np.concatenate(times), np.concatenate(models)
    order = np.lexsort((model, arrival_s))
    arrival_s, model = arrival_s[order], model[order]
    stream = Stream(seed, "dnn_edge_serving", "requests")
    wide = 1.0 + spread * (2.0 * draws.uniforms(stream, len(model)) - 1.0)
    allowed_s = np.array(slo_s)[model] * wide
    past = draws.uniforms(stream, len(model)) < stale
    allowed_s = np.where(past, -0.1 * allowed_s, allowed_s)
    return Trace(arrival_s, np.round(arrival_s + allowed_s, 9), model, slo_s, found)
