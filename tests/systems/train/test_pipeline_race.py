"""PipeDream against LocalSGD in simulated time, both tuned by one budget (line 4)."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from tests.systems.train.pipeline_runs import trained, weights_of

from orrery.lab.stats import Interval, ratio_interval
from orrery.systems.train.baselines.one_worker_sgd import OneWorkerSGD
from orrery.systems.train.baselines.pipedream import PipeDream
from orrery.systems.train.baselines.pipelined_local_sgd import PipelinedLocalSGD

# Each small model stands for one of 6.4 billion weights, on servers with 10 Gb/s links. This, the
# noise and the rates were set before the first result. The periods of LocalSGD, 4 and 16, were
# kept after a look at 1, 2, 4, 8 and 16 on the tuning seed, of which 1 was the worst. A replica
# reads one batch in S, so the rates of LocalSGD are the upper half of PipeDream's; beyond 2 none is
# stable on the quadratic.
WORK = {
    "quadratic": {"scale": 1e8, "more": {"numbers": 64, "noise": 0.5}},
    "logistic": {"scale": 1e8, "more": {"numbers": 64}},
}
TOP = {"quadratic": 1.6, "logistic": 3.2}
PUBLISHED = {"quadratic": "PipeDream", "logistic": "LocalSGD"}
TUNING_SEED = 100


def raced(part, task, stages, seed, rate, **knobs):
    return trained(
        part, stages, seed, task=task, rate=rate, audit=False, **WORK[task], **knobs
    ).metrics  # fmt: skip


class Race:
    """One objective with so many stages: tuned on one seed, then run on others."""

    def __init__(self, task, stages, steps, trials):
        self.task, self.stages, self.steps = task, stages, steps
        rates = [TOP[task] / 2**i for i in range(trials)]
        found = [raced(PipeDream(), task, stages, TUNING_SEED, rate, steps=steps) for rate in rates]
        self.by_s = found[0]["time_s"]
        self.rate = rates[int(np.argmin([each["excess"] for each in found]))]
        # As many trials as for PipeDream, spread over rates and periods.
        grid = list(product(rates[: trials // 2], (4, 16)))
        assert len(grid) == trials
        losses = [self.local(TUNING_SEED, *setting) for setting in grid]
        self.local_rate, self.every = grid[int(np.argmin(losses))]

    def local(self, seed, rate, every):
        part = PipelinedLocalSGD(every=every)
        return raced(
            part, self.task, self.stages, seed, rate, steps=self.steps, look_every=1,
            by_s=self.by_s,
        )["excess_by"]  # fmt: skip

    def run(self, seeds):
        ours = [
            raced(PipeDream(), self.task, self.stages, seed, self.rate, steps=self.steps)["excess"]
            for seed in range(seeds)
        ]
        theirs = [self.local(seed, self.local_rate, self.every) for seed in range(seeds)]
        return ratio_interval(ours, theirs)


def winner(ratio):
    """Who has the lower loss by a time; ours / theirs is PipeDream's over LocalSGD's."""
    if ratio.hi < 1:
        return "PipeDream"
    return "LocalSGD" if ratio.lo > 1 else "nobody"


def row(task, stages, ratio):
    """A line of the table."""
    told = PUBLISHED[task]
    found = "reproduced" if winner(ratio) == told else "not reproduced"
    return (
        f"{task:9} S = {stages:2}: {winner(ratio):9} (PipeDream / LocalSGD "
        f"{ratio.mean:.3f} [{ratio.lo:.3g}, {ratio.hi:.3g}]); published: {told}; {found}"
    )


def table(stages, steps, trials, seeds):
    lines = []
    for task in WORK:
        for each in stages:
            race = Race(task, each, steps, trials)
            ratio = race.run(seeds)
            assert np.isfinite(ratio.mean)  # neither side diverged at its best setting
            setting = f"rates {race.rate:g}, {race.local_rate:g}; every {race.every}"
            lines.append(f"{row(task, each, ratio)}; {setting}")
    print("\n" + "\n".join(lines))
    return lines


@pytest.mark.works_when("randomized-pipedream", 4)
def test_who_wins_in_simulated_time(record_property):
    lines = table((2, 8), steps=64, trials=6, seeds=2)
    record_property("table", lines)
    assert len(lines) == 4
    assert all(("not reproduced" in line) != ("; reproduced" in line) for line in lines)


@pytest.mark.slow
@pytest.mark.works_when("randomized-pipedream", 4)
def test_who_wins_in_simulated_time_with_more_stages_and_seeds(record_property):
    lines = table((2, 8, 32), steps=256, trials=8, seeds=5)
    record_property("table", lines)
    assert len(lines) == 6


def test_a_direction_that_is_not_found_is_marked():
    better, worse = Interval(0.5, 0.4, 0.6, 5), Interval(2.0, 1.5, 2.5, 5)
    open_question = Interval(1.0, 0.8, 1.2, 5)
    assert row("quadratic", 8, better).endswith("published: PipeDream; reproduced")
    assert row("quadratic", 8, worse).endswith("published: PipeDream; not reproduced")
    assert row("logistic", 8, worse).endswith("published: LocalSGD; reproduced")
    assert row("logistic", 8, open_question).endswith("not reproduced")
    assert "nobody" in row("logistic", 8, open_question)


@pytest.mark.works_when("randomized-pipedream", 4)
@pytest.mark.parametrize(("task", "rate"), [("quadratic", 0.4), ("logistic", 1.6)])
def test_without_staleness_pipedream_loses_nothing_per_update(task, rate):
    stale, fresh, plain = (
        [trained(part, 8, seed, task=task, steps=64, rate=rate, **WORK[task]) for seed in (0, 1)]
        for part in (PipeDream(), PipeDream(in_flight=1), OneWorkerSGD())
    )
    for seed in (0, 1):
        assert plain[seed].metrics["updates"] == stale[seed].metrics["updates"]
        # As many updates with stale weights leave more than they do without.
        assert stale[seed].metrics["excess"] > 1.2 * plain[seed].metrics["excess"]
        assert np.array_equal(weights_of(fresh[seed]), weights_of(plain[seed]))
        assert fresh[seed].metrics["excess"] == plain[seed].metrics["excess"]
