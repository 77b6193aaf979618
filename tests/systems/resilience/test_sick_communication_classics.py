"""The classics of `sick_communication`: each first gives a figure that is known of it."""

from __future__ import annotations

import pytest

from orrery import run
from orrery.base.errors import PartError
from orrery.systems.resilience.baselines.iteration_threshold import IterationThreshold
from orrery.systems.resilience.baselines.pairwise_sweep import PairwiseSweep, judged, rounds
from orrery.systems.resilience.baselines.stack_vote import StackVote, voted
from orrery.systems.resilience.baselines.watchdog_timeout import WatchdogTimeout, compared
from orrery.systems.resilience.problems.flight import Dump, Op
from orrery.systems.resilience.problems.sick_communication import NIC_Bps, SickCommunication
from orrery.systems.resilience.problems.watcher import Report, Watcher

# One data-parallel group, in which every rank waits for every other.
FLAT = {"tp": 1, "pp": 1, "dp": 8, "step_s": 20.0, "after_s": 110.0, "within_s": 20.0,
        "batch_spread": 0.0}  # fmt: skip


def reports(made):
    return [(r.time_s, r.values["ailment"], tuple(r.values["blamed"])) for r in made.records
            if "ailment" in r.values]  # fmt: skip


def play(part, **knobs):
    problem = SickCommunication(**FLAT | knobs)
    return run(part, problem=problem), problem.cases()[0]


@pytest.mark.parametrize("timeout_s", [300.0, 600.0])
def test_a_watchdog_speaks_when_its_timeout_is_over_and_not_before(timeout_s):
    made, case = play(WatchdogTimeout(timeout_s=timeout_s), kind="stuck")
    ((time_s, ailment, blamed),) = reports(made)
    # The others enqueue within a step of the fault; the dog looks every 10 s, its root as often.
    assert timeout_s <= time_s - case.at_s <= timeout_s + 20.0 + 25.0
    assert (ailment, blamed) == ("unknown", case.ranks)


def test_a_watchdog_sees_no_slowness():
    made, _ = play(WatchdogTimeout(), kind="slow", limit_s=700.0)
    assert reports(made) == [] and made.metrics["located_s"] == 700.0


def test_a_vote_finds_the_one_that_stands_elsewhere_and_is_misled_by_a_pipe():
    made, case = play(StackVote(), kind="stuck")
    ((time_s, ailment, blamed),) = reports(made)
    assert (ailment, blamed) == ("stuck", case.ranks)
    # Silence counts from the last step, which ended up to 20 s before the fault.
    assert 100.0 <= time_s - case.at_s <= 120.0 + 10.0
    # Where a size does not fit all stand in the same call; there is nothing to vote about.
    made, _ = play(StackVote(), kind="size", limit_s=200.0)
    assert reports(made)[0][1:] == ("insufficient_data", ())
    wrong = [play(StackVote(), kind="skip", place=place, tp=2, pp=4, dp=2)[0].metrics["wrong"]
             for place in range(3)]  # fmt: skip
    assert sum(wrong) >= 1


@pytest.mark.parametrize(("factor", "fires"), [(2.0, True), (1.2, False)])
def test_a_threshold_fires_in_the_first_step_that_is_over_it(factor, fires):
    made, case = play(IterationThreshold(factor=1.5), kind="slow", factor=factor, limit_s=200.0)
    found = reports(made)
    assert bool(found) == fires
    if fires:
        # The step in which the fault began may be too short to count; the next one is not.
        assert found[0][0] - case.at_s <= 2 * 20.0 * factor + 10.0
        assert found[0][1] == "slow_compute"


def test_a_threshold_never_ends_a_hang():
    assert reports(play(IterationThreshold(), kind="stuck", limit_s=300.0)[0]) == []


@pytest.mark.parametrize("size", [2, 3, 8, 9])
def test_a_sweep_tries_each_pair_once_in_rounds_without_a_clash(size):
    found = rounds(range(size))
    pairs = [tuple(sorted(pair)) for each in found for pair in each]
    assert len(found) == size - 1 + size % 2
    assert sorted(pairs) == [(a, b) for a in range(size) for b in range(a + 1, size)]
    for each in found:
        busy = [rank for pair in each for rank in pair]
        assert len(busy) == len(set(busy))


def test_a_sweep_finds_a_nic_at_the_price_of_the_job():
    made, case = play(PairwiseSweep(factor=1.02), kind="nic")
    ((time_s, ailment, blamed),) = reports(made)
    assert (ailment, blamed) == ("slow_nic", case.ranks)
    assert sum(r.values["trials"] for r in made.records if "trials" in r.values) == 28
    # A trial takes its bytes there and back over the sick NIC: 2 x 3.3 GB / 2.5 GB/s, 7 times.
    sick_s = 7 * 2 * 512 * 4 * 1.6e6 / (0.05 * NIC_Bps)
    began_s = time_s - sick_s - 10.0
    assert case.at_s < began_s < case.at_s + 80.0
    made, _ = play(PairwiseSweep(), kind="slow", factor=3.0)
    assert reports(made)[0][1:] == ("insufficient_data", ())


def test_sweeps_are_judged_by_the_rank_that_slow_pairs_share():
    quick = {(a, b): 1.0 for a in range(4) for b in range(a + 1, 4)}
    assert judged(quick, 3.0).ailment == "insufficient_data"
    assert judged(quick | {(1, 2): 9.0}, 3.0) == Report("slow_link", (1, 2), "the only slow pair")


def test_recorders_are_compared_by_communicator_and_number():
    def dump(rank, kind="all_reduce", nbytes=64, enqueued=True):
        ops = [Op("dp", "dp.0", 4, kind, nbytes, 1.0, 0.0)] if enqueued else []
        return Dump(rank, 700.0, 0.0, ops, {}, {"dp.0": 4 + enqueued}, {"dp.0": [0, 1, 2]}, [])

    sound = {0: dump(0), 1: dump(1)}
    assert compared({**sound, 2: dump(2, enqueued=False)}).ranks == (2,)
    assert compared({**sound, 2: None}).ranks == (2,)
    assert compared({**sound, 2: dump(2, "all_gather")}).ailment == "op_mismatch"
    assert compared({**sound, 2: dump(2, nbytes=68)}).ailment == "size_mismatch"
    assert compared({**sound, 2: dump(2)}).ailment == "insufficient_data"
    assert compared({0: None}).ailment == "insufficient_data"
    assert voted({**sound, 2: dump(2)}).ailment == "insufficient_data"


def test_a_watcher_without_rules_says_what_it_lacks():
    with pytest.raises(PartError, match="has no watch"):
        run(Watcher(), problem=SickCommunication())
