"""Calibration: from samples to a world, and whether the world gives the samples back."""

from __future__ import annotations

import math
from typing import ClassVar

import pytest

from orrery import Node, Problem, World, rpc
from orrery.base.errors import UsageError
from orrery.lab import prediction
from orrery.lab.calibrate import at_size, calibrate, figure, own_work, processors_of, solve
from orrery.lab.prediction import KB, Point, Sample, judge_row, predict, quietest, table, tally
from orrery.lab.probe import (
    HUGE_B,
    REPORT_SIZES,
    SIZES,
    SMALL_B,
    Effort,
    others_cores,
    quiet_part,
)

US = 1e-6


class Reader(Node):
    """Sums what it gets, some times over."""

    times: int = 1

    @rpc
    async def read(self, data: bytes) -> int:
        return sum(sum(data) for _ in range(self.times))


class Sending(Problem):
    """Bytes to every node, a few times."""

    port: ClassVar[type] = Reader
    size_B: int = 1024

    async def drive(self, driver):
        for node in [*driver.nodes] * 3:
            await driver.ask(node, Reader.read, bytes(self.size_B // 16))


def made_up(cross=400 * US, sync=2e-3):
    """Samples of a machine on which sending costs 30 us and 1 ns/B, receiving 60 us and 2 ns/B."""
    found = {
        "idle": 0.0,
        "receive_awake": 20 * US + 2e-9 * SMALL_B,
        "cross": cross,
        "core_flops": 1e10,
        "memory_Bps": 1e10,
    }
    for size_B in SIZES:
        found[f"receive_{size_B}"] = 60 * US + 2e-9 * size_B
        found[f"ping_cpu_{size_B}"] = 30 * US + 1e-9 * size_B + 60 * US
        found[f"ping_{size_B}"], found[f"ping_low_{size_B}"] = 180 * US, 170 * US
        found[f"pass_cpu_{size_B}"] = 2 * (50 * US + 1e-9 * size_B) + 90 * US
        found[f"move_{size_B}"] = 300 * US + 2e-9 * size_B
        found[f"write_{size_B}"] = 40 * US
        found[f"sync_cpu_{size_B}"] = 140 * US
        found[f"sync_{size_B}"] = sync + size_B * 3e-9
    for size_B in REPORT_SIZES:
        found[f"report_{size_B}"], found[f"hear_{size_B}"] = 50 * US, 80 * US + 1e-9 * size_B
    return {name: [value, value] for name, value in found.items()} | {"others_cores": [0.0, 0.0]}


def test_costs_are_found_again():
    spec = processors_of(made_up(), cores=2)
    assert spec.receive.fixed_s == pytest.approx(20 * US)
    assert spec.receive.per_B_s == pytest.approx(2e-9)
    assert spec.send.fixed_s == pytest.approx(30 * US)
    assert [each.per_B_s for each in spec.send.bends] == pytest.approx([1e-9] * (len(SIZES) - 2))
    assert spec.wake_s == pytest.approx(40 * US)
    assert spec.transfer_in.fixed_s == pytest.approx(50 * US)
    assert spec.sync.fixed_s == pytest.approx(100 * US)
    assert spec.hear.fixed_s == pytest.approx(80 * US)


@pytest.mark.slow
def test_the_solved_world_gives_the_measured_times_back():
    from orrery.lab.calibrate import _virtual

    samples = made_up()
    world = solve(samples, cores=2)
    assert _virtual(world, "messages")["cross"] == pytest.approx(400 * US, rel=0.02)
    again = _virtual(world, "disk")
    assert again[f"sync_{SMALL_B}"] == pytest.approx(samples[f"sync_{SMALL_B}"][0], rel=0.05)
    assert again[f"sync_{HUGE_B}"] == pytest.approx(samples[f"sync_{HUGE_B}"][0], rel=0.05)
    slower = solve(made_up(sync=4e-3), cores=2)
    assert slower.machine_of(0).disk.fsync_s > world.machine_of(0).disk.fsync_s + 1.5e-3


@pytest.mark.slow
def test_noise_below_the_processor_time_gives_no_negative_latency():
    world = solve(made_up(cross=1 * US, sync=1 * US), cores=2)
    assert world.network.latency_s < 1 * US and world.machine_of(0).disk.fsync_s == 0.0


@pytest.mark.slow
def test_another_size_is_the_same_machine():
    world = solve(made_up(), cores=2)
    assert at_size(world, 7).size == 7 and at_size(world, 7).processors == world.processors


def test_figures_have_error_bars_that_hold_the_value():
    found = figure("x", "s", "by hand", [1.0, 2.0, 9.0])
    assert found.value == 2.0 and 0 < found.lo < found.value < found.hi
    assert "±" in found.text()
    with pytest.raises(UsageError, match="no samples"):
        figure("x", "s", "by hand", [])


def test_quiet_repeats_are_chosen_by_the_load_alone():
    samples = {"others_cores": [1.0, 0.0, 0.5], "x": [1.0, 9.0, 5.0]}
    assert quiet_part(samples, 2) == {"others_cores": [0.0, 0.5], "x": [9.0, 5.0]}
    runs = [Sample(1.0, 0.9), Sample(5.0, 0.1), Sample(3.0, 0.5)]
    assert [each.value for each in quietest(runs, 2)] == [5.0, 3.0]
    assert others_cores((0.0, 10.0, 1.0), (2.0, 13.0, 2.0)) == pytest.approx(1.0)
    assert others_cores((0.0, 10.0, 1.0), (2.0, 11.0, 3.0)) == 0.0


POINT = Point("raft_latency", 5, KB)


@pytest.mark.parametrize(
    ("predicted", "values", "verdict"),
    [
        (1.2, [1.0, 1.0, 1.01], "within"),
        (1.3, [1.0, 1.0, 1.01], "outside"),
        (0.7, [1.0, 1.0, 1.01], "outside"),
        (1.0, [0.5, 1.0, 1.5], "inconclusive"),
        (9.0, [0.5, 1.0, 1.5], "inconclusive"),
    ],
)
def test_noise_is_judged_before_the_error(predicted, values, verdict):
    row = judge_row(POINT, predicted, [Sample(value, 0.0) for value in values])
    assert row.verdict == verdict
    assert row.error == pytest.approx(predicted / row.measured - 1)
    assert verdict in table([row]) and tally([row])[verdict] == 1


def test_other_work_on_the_machine_decides_nothing_either_way():
    busy = [Sample(value, 64.0) for value in (1.0, 1.0, 1.01)]
    assert judge_row(POINT, 1.0, busy).verdict == "inconclusive"
    assert judge_row(POINT, 9.0, busy).verdict == "inconclusive"


def test_one_repeat_tells_no_noise():
    with pytest.raises(UsageError, match="at least 2"):
        judge_row(POINT, 1.0, [Sample(1.0, 0.0)])
    with pytest.raises(UsageError, match="repeats"):
        prediction.compare_points(World.lan(3), [], repeats=1)


@pytest.mark.slow
def test_predictions_are_repeatable_and_grow_with_the_work():
    world = solve(made_up(), cores=2)
    small = predict(Point("ring", 3, 64 * KB), world)
    assert small == predict(Point("ring", 3, 64 * KB), world)
    assert small < predict(Point("ring", 7, 64 * KB), world)
    assert Point("ring", 3, KB).work(times=7)[1].rounds == 7
    assert predict(POINT, world) < predict(Point("raft_latency", 5, 1 << 20), world)


@pytest.mark.slow
def test_own_work_is_measured_where_the_code_runs():
    """A part that computes a thousand times more has more work of its own, and bytes count."""
    world = solve(made_up(), cores=2)
    light = own_work(world, lambda size_B: (Reader(), Sending(size_B=size_B)))
    heavy = own_work(world, lambda size_B: (Reader(times=50), Sending(size_B=size_B)))
    assert light.fixed_s > 0 and light.per_B_s < heavy.per_B_s


def test_own_work_needs_shared_processors():
    with pytest.raises(UsageError, match="shares no processors"):
        prediction.calibrated_for(World.lan(3), "ring")


def test_this_machine_becomes_a_world(tmp_path):
    effort = Effort(repeats=2, calls=10, large_calls=2, syncs=2)
    world, figures = calibrate(4, effort=effort, folder=tmp_path)
    assert world.size == 4 and world.processors is not None
    assert all(math.isfinite(each.value) and each.lo <= each.value <= each.hi for each in figures)
    assert World.load(world.save(tmp_path / "here.toml")).hash == world.hash
    assert "measured 20" in world.processors.source and "±" in world.processors.source
    assert [path.name for path in tmp_path.iterdir()] == ["here.toml"]
