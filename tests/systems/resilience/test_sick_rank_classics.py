"""The classics of `sick_rank`: each first gives a figure that is known of it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from orrery.base.errors import PartError
from orrery.systems.resilience.baselines.averaged_loss import AveragedLoss
from orrery.systems.resilience.baselines.global_norm import GlobalNorm
from orrery.systems.resilience.baselines.noise_scale import NoiseScale
from orrery.systems.resilience.baselines.rank_losses import RankLosses
from orrery.systems.resilience.problems.detector import Detector, Step, Tap, row_of, step_of
from orrery.systems.resilience.problems.scores import Chart, RankScores

RANKS = (0, 1, 2, 3)


def step(number=0, losses=(2.0,) * 4, norms=(1.0,) * 4, sum_norm=2.0):
    return Step(number, RANKS, np.array(losses), np.array(norms), None, sum_norm)


@pytest.mark.parametrize(("weight", "limit"), [(0.25, 2.998), (0.1, 2.814)])
def test_a_chart_with_known_mean_has_the_published_run_length(weight, limit):
    rng = np.random.default_rng(1)
    lengths = []
    for _ in range(400):
        chart = Chart(weight, limit, 0, 0.1, known=(0.0, 1.0))
        count = 1
        while not chart.add(rng.standard_normal()):
            count += 1
        lengths.append(count)
    # Lucas and Saccucci (1990): 500 on average; run lengths are nearly geometric. Limits that are
    # narrower in the first steps, as here, make it a little shorter.
    error = 500 / math.sqrt(len(lengths))
    assert 500 - 0.08 * 500 - 3 * error < np.mean(lengths) < 500 + 3 * error


def test_the_averaged_loss_and_the_norm_chart_what_they_say():
    rng = np.random.default_rng(2)
    sound = np.array([row_of(step(n, 2 + 0.1 * rng.standard_normal(4))) for n in range(200)])
    fitted = AveragedLoss(limit=2.998, weight=0.25).fit(sound, [-1] * 200)
    # The mean of four has half the spread of one.
    assert fitted._learnt == pytest.approx((2.0, 0.05), rel=0.1)
    raised = np.array([row_of(step(n, (2.2,) * 4)) for n in range(5)])
    fitted.predict(raised)
    assert [alarm.kind for alarm in fitted.alarms] == ["loss_rose"] and fitted.in_alarm[0] <= 1
    norm = GlobalNorm()
    norm.start()
    assert norm.value(step(sum_norm=4 * math.e)) == pytest.approx(1.0)
    assert math.isnan(norm.value(step(sum_norm=0.0)))


def test_a_chart_follows_a_trend_and_notices_a_jump():
    rng = np.random.default_rng(3)
    chart = Chart(0.25, 3.5, 20, 0.15, rises=True)
    falling = [3 * math.exp(-n / 60) + 0.05 * rng.standard_normal() for n in range(200)]
    assert sum(chart.add(value) for value in falling) <= 2
    assert any(chart.add(falling[-1] + 0.3) for _ in range(5))


def test_the_noise_scale_of_gaussian_gradients_is_the_true_one():
    rng = np.random.default_rng(4)
    size, sigma = 200, 0.3
    slope = rng.standard_normal(size)
    detector = NoiseScale(smooth=0.02)
    detector.start()
    for number in range(400):
        found = slope + sigma * rng.standard_normal((4, size))
        norms = np.linalg.norm(found, axis=1)
        detector.see(step(number, norms=norms, sum_norm=float(np.linalg.norm(found.sum(axis=0)))))
    # tr(Sigma) / |G|^2, in batches of one rank.
    assert detector.estimate == pytest.approx(size * sigma**2 / (slope @ slope), rel=0.05)


@pytest.mark.parametrize("shift", [2.0, 3.0, 5.0])
def test_per_rank_losses_blame_after_as_many_steps_as_the_closed_form_says(shift):
    rng = np.random.default_rng(5)
    weight, threshold = 0.1, 6.0
    waits = []
    for _ in range(60):
        scores, n = RankScores(weight, 10), 0
        for _ in range(100):
            scores.add(RANKS, rng.standard_normal(4))
        while scores.add(RANKS, rng.standard_normal(4) + np.array([0, 0, shift, 0]))[2] < threshold:
            n += 1
        waits.append(n + 1)
    # shift (1 - (1 - w)^t) = threshold sigma sqrt(4/3) sqrt(w / (2 - w)); the noise of the average
    # lets some cross earlier, so the closed form is the upper end.
    level = threshold * math.sqrt(4 / 3) * math.sqrt(weight / (2 - weight))
    ideal = math.log(1 - level / shift) / math.log(1 - weight)
    assert 0.5 * ideal <= np.mean(waits) <= ideal + 1


def test_sound_ranks_are_hardly_ever_blamed_and_scores_are_standard():
    rng = np.random.default_rng(6)
    scores = RankScores(0.1, 10)
    seen = np.array([scores.add(RANKS, rng.standard_normal(4)) for _ in range(8_000)])[50:]
    assert np.std(seen) == pytest.approx(1.0, abs=0.1)
    assert (np.abs(seen) > 6).mean() < 1e-4
    detector = RankLosses()
    detector.start()
    for number in range(2000):
        detector.see(step(number, 2 + 0.1 * rng.standard_normal(4)))
    assert detector.alarms == []


def test_two_ranks_cannot_blame_one_another():
    scores = RankScores(0.1, 1)
    assert all((scores.add((0, 1), np.array([1.0, 9.0])) == 0).all() for _ in range(50))


def test_taps_add_up_parts_and_tell_each_step_once():
    tap, told = Tap(), []
    for number in range(3):
        tap.counted = True
        tap.begin(float(number))
        for tag in ("a", "b"):
            told += tap.part(tag, 1.0 if tag == "a" else 2.0, np.ones(2), np.add)
    assert [(record[0], record[1], record[2]) for record in told] == [
        (0, 3.0, 0.0), (1, 3.0, 1.0), (2, 3.0, 2.0),
    ]  # fmt: skip
    # Without losses a tag that comes again begins the next step.
    tap, told = Tap(), []
    for _ in range(4):
        told += tap.part("", 1.0, np.ones(2), np.add)
    assert [record[0] for record in told] == [0, 1, 2, 3]
    # One part that is not finite spoils its step and no other.
    tap.begin(None)
    assert tap.part("", -1.0, np.zeros(2), np.add)[0][1] == -1.0


def test_rows_come_back_as_steps_and_others_are_refused():
    made = step(3, (1.0, 2.0, 3.0, 4.0))
    made.cosines = np.full((4, 4), 0.5) + 0.5 * np.eye(4)
    back = step_of(row_of(made), 3)
    assert np.array_equal(back.cosines, made.cosines) and np.array_equal(back.losses, made.losses)
    with pytest.raises(PartError, match="row_of"):
        step_of(np.zeros(7), 0)
    with pytest.raises(PartError, match="table"):
        AveragedLoss().fit(np.zeros(6), [-1])
    with pytest.raises(PartError, match="look"):
        detector = Detector()
        detector.start()
        detector.see(made)
    with pytest.raises(PartError, match="slow"):
        AveragedLoss(slow=1.0).start()
