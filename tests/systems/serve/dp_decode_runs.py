"""What the tests of data-parallel decoding share: parts, a full cluster, and its figures."""

from __future__ import annotations

import functools

from orrery.systems.serve.baselines.dp_least_kv import DPLeastKV
from orrery.systems.serve.baselines.dp_least_outstanding import DPLeastOutstanding
from orrery.systems.serve.baselines.dp_power_of_two import DPPowerOfTwo
from orrery.systems.serve.baselines.dp_random import DPRandom
from orrery.systems.serve.baselines.dp_round_robin import DPRoundRobin
from orrery.systems.serve.problems.dp_decode import DPDecode, faults_of, figures

PLAIN = [DPRoundRobin(), DPLeastOutstanding(), DPLeastKV(), DPRandom(), DPPowerOfTwo()]
EARLY = [part.with_knobs(late=False) for part in PLAIN]
# 36 workers of 32 slots; more wait at the start than the slots take, and they come faster than they
# are served, so that hundreds always wait.
FULL = DPDecode(requests=11000, ahead=2400, load=1.2, steps=400, warm_up=300)


@functools.lru_cache(maxsize=256)  # several tests look at the same runs
def played(part, problem=FULL, seed=0, workers=36):
    """The figures of a run without an engine, which must be clean."""
    log = problem.play(part, seed, workers)
    assert list(faults_of(log, part.most_overtaken())) == []
    return figures(log, problem.time())


def small(**knobs):
    """A problem that ends when all is answered."""
    return DPDecode(**{"steps": 0, "warm_up": 0, "most_output": 60, "slots": 4, **knobs})
