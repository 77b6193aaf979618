"""The queue baselines reproduce known figures: closed forms of single-server queues."""

from __future__ import annotations

import numpy as np
import pytest

from orrery.base.rand import Stream
from orrery.inputs.draws import exponentials, uniforms
from orrery.models.replica import Replica, drain
from orrery.systems.serve.baselines.estimated_shortest import EstimatedShortest
from orrery.systems.serve.baselines.oracle_shortest import OracleShortest
from orrery.systems.serve.baselines.priority_first import PriorityFirst
from orrery.systems.serve.baselines.vllm_v1 import VllmV1
from orrery.systems.serve.driftsched import DriftSched
from orrery.systems.serve.problems.tenant_desk import LinearSteps
from orrery.systems.serve.problems.tenant_loads import Offer

SHORT, LONG, STEP_S = 10, 100, 0.01
COUNT = 8000


def offers(rate_per_s, seed=3, right=True):
    """Half short answers, half long ones, Poisson; the estimates are right, or the wrong way."""
    arrival_s = np.cumsum(exponentials(Stream(seed, "mg1", "gaps"), COUNT)) / rate_per_s
    long = uniforms(Stream(seed, "mg1", "long"), COUNT) < 0.5
    found = []
    for at, (at_s, slow) in enumerate(zip(arrival_s.tolist(), long.tolist(), strict=True)):
        tokens = LONG if slow else SHORT
        estimate = tokens if right else LONG + SHORT - tokens
        found.append(Offer(at, at_s, 1, tokens, estimate=float(estimate),
                           kind="long" if slow else "short", priority=int(slow)))  # fmt: skip
    return found


def waits(part, requests):
    """Mean waiting time of the short and the long ones before a server of one slot."""
    one = part.with_knobs(max_seqs=1)
    replica = Replica(LinearSteps(STEP_S, 0.0, 0.0), one, blocks=40, caching=False, ahead=False)
    served = drain(replica, requests)
    return [
        np.mean([each.started_s - each.arrival_s for each in served if each.kind == kind])
        for kind in ("short", "long")
    ]


def theory(load):
    """Rate; wait by Pollaczek and Khinchine; waits by Cobham (1954) with the short ones first."""
    times = np.array([SHORT, LONG]) * STEP_S
    rates = np.full(2, load / times.sum())
    residual = float((rates * times**2).sum() / 2)
    short = float(rates[0] * times[0])
    fifo = residual / (1 - load)
    return float(rates.sum()), fifo, (residual / (1 - short), fifo / (1 - short))


@pytest.mark.parametrize("load", [0.5, 0.75])
def test_in_order_of_arrival_the_wait_is_that_of_pollaczek_and_khinchine(load):
    rate, fifo, _ = theory(load)
    for part in (VllmV1(), DriftSched(policy="fifo")):
        assert np.mean(waits(part, offers(rate))) == pytest.approx(fifo, rel=0.12)


@pytest.mark.parametrize("load", [0.5, 0.75])
def test_the_shortest_first_waits_as_cobham_says(load):
    rate, fifo, wanted = theory(load)
    parts = (EstimatedShortest(), OracleShortest(), PriorityFirst(), DriftSched(correct=False))
    for part in parts:
        found = waits(part, offers(rate))
        assert found == pytest.approx(wanted, rel=0.12), part
        assert np.mean(found) < fifo


def test_estimates_the_wrong_way_round_are_worse_than_none():
    rate, fifo, wanted = theory(0.75)
    given = waits(EstimatedShortest(), offers(rate, right=False))
    assert np.mean(given) > fifo, "the long ones go first"
    assert waits(OracleShortest(), offers(rate, right=False)) == pytest.approx(wanted, rel=0.12)
    learnt = waits(DriftSched(), offers(rate, right=False))
    assert learnt == pytest.approx(wanted, rel=0.15), "the correction turns them round"
