"""`NCCLZ` on real processes: beside its prediction on throttled links, and under SIGKILL."""

from __future__ import annotations

import statistics
import time

import numpy as np
import pytest

from orrery import Worker, World, run
from orrery.lab.calibrate import calibrate
from orrery.systems.collectives import Ring
from orrery.systems.collectives.ncclz import NCCLZ, Speeds
from orrery.systems.collectives.ncclz.calibrate import measure
from orrery.systems.collectives.problems.compressed_all_reduce import CompressedAllReduce
from orrery.world import Crash

from .compressed_runs import field_eb

MINE = "ncclz"
# 200 Mb/s at each rank, held back by the engine's own shim on loopback sockets.
THROTTLED = World.lan(4, latency_s=2e-4, bandwidth_Bps=2.5e7, jitter=0.0)
REAL = {"engine": "processes", "nodes_per_process": 1}


class Calibrating(Worker):
    """Measures the coders at all ranks at once, so that they share the cores as the ranks do."""

    async def main(self):
        await self.barrier()
        # In processor time: what it takes to wait for a core is a matter of the world.
        speeds = measure(time.process_time, least_s=0.3, chunk_items=NCCLZ().chunk_items)
        self.emit(speeds={k: v for k, v in speeds.knobs().items() if k != "of"})


def calibrated():
    """The median of what four processes measured on the cores that they share."""
    made = run(Calibrating(), world=THROTTLED, **REAL, until_s=60.0)
    rows = [record.values["speeds"] for record in made.records]
    assert len(rows) == 4
    return Speeds(of="own", **{k: statistics.median(row[k] for row in rows) for k in rows[0]})


def this_machine():
    """The throttled world on this machine: what a message costs here, and its shared cores."""
    world, _ = calibrate(4)
    links = THROTTLED.network
    latency_s = world.network.latency_s + links.latency_s
    return world.with_(network={"latency_s": latency_s, "bandwidth_Bps": links.bandwidth_Bps})


def round_s(part, world, engine, **knobs):
    """The median time of a round."""
    made = run(part, problem=CompressedAllReduce(**knobs), world=world, **engine)
    assert made.violations == []
    times = []
    for number in range(knobs["rounds"]):
        told = [r.values for r in made.records if r.values.get("round") == number]
        times.append(max(v["ended_s"] for v in told) - min(v["began_s"] for v in told))
    return statistics.median(times)


@pytest.mark.slow
@pytest.mark.works_when(MINE, 6)
def test_on_throttled_links_the_gain_is_the_predicted_one(capsys, record_property):
    record_property("engine", ("ncclz", "processes"))
    items = 1 << 21
    knobs = {"items": items, "eb": field_eb(items, 1.0), "rounds": 5}
    # Left alone it sends raw where the cores are busy, and both figures are 1: so it must code.
    part, here = NCCLZ(coder="pack", speeds=calibrated()), this_machine()

    def gain(*where):
        return round_s(Ring(), *where, **knobs) / round_s(part, *where, **knobs)

    predicted, measured, endless = gain(here, {}), gain(THROTTLED, REAL), gain(THROTTLED, {})
    with capsys.disabled():
        print(f"\n4 processes at 200 Mb/s, 8 MB a rank: predicted {predicted:.2f}x, measured "
              f"{measured:.2f}x; with a core for each rank and messages that cost none it would "
              f"be {endless:.2f}x")  # fmt: skip
    assert measured == pytest.approx(predicted, rel=0.3)


@pytest.mark.slow
@pytest.mark.works_when(MINE, 6)
def test_four_processes_notice_a_kill_within_the_timeout(record_property):
    record_property("engine", ("ncclz", "processes"))
    patience_s = 2.0
    problem = CompressedAllReduce(items=1 << 20, rounds=200, patience_s=patience_s)
    made = run(NCCLZ(), problem=problem, world=THROTTLED.with_faults(Crash(node=2, at_s=1.5)),
               **REAL, until_s=60.0)  # fmt: skip
    assert made.ended == "driven"
    lost = {v.node: v.time_s for v in made.violations if v.kind == "rank_lost"}
    assert set(lost) == {0, 1, 3}
    # A rank that waits for one that waits itself: each adds its patience at most.
    assert max(lost.values()) <= 1.5 + 3 * patience_s + 1.0
    assert not {"over_bound", "ranks_differ"} & {v.kind for v in made.violations}


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["all_reduce", "reduce_scatter", "all_gather"])
def test_real_ranks_end_with_the_bits_of_virtual_ones(operation):
    problem = CompressedAllReduce(items=30_000, operation=operation, rounds=2)
    world = World.lan(3, bandwidth_Bps=1e7)
    virtual, real = (run(NCCLZ(coder="table"), problem=problem, world=world, **engine)
                     for engine in ({}, {**REAL, "until_s": 60.0}))  # fmt: skip
    assert virtual.violations == real.violations == []
    assert virtual.decisions == real.decisions
    assert np.isclose(virtual.metrics["ratio"], real.metrics["ratio"])
