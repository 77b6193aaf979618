"""The problem `pipeline_training` and its classics: each first meets a known figure of its own."""

from __future__ import annotations

import numpy as np
import pytest
from tests.systems.train.pipeline_runs import (
    TICKS,
    cut_of,
    stages_of,
    ticks,
    trained,
    weights_of,
)

from orrery import World
from orrery.base.errors import KnobError, OrreryError, PartError
from orrery.models.learn import Digits, Language, Logistic, Quadratic
from orrery.systems.train.baselines.gpipe import GPipe
from orrery.systems.train.baselines.one_f_one_b import OneFOneB
from orrery.systems.train.baselines.one_worker_sgd import OneWorkerSGD
from orrery.systems.train.baselines.pipedream import PipeDream
from orrery.systems.train.baselines.pipedream_unstashed import PipeDreamUnstashed
from orrery.systems.train.baselines.pipelined_local_sgd import PipelinedLocalSGD
from orrery.systems.train.problems.cuts import Turned, cut, even_cuts
from orrery.systems.train.problems.pipeline_training import PipelineTraining

CLASSICS = [GPipe, OneFOneB, PipeDream, PipeDreamUnstashed, OneWorkerSGD, PipelinedLocalSGD]
TASKS = {"quadratic": Turned(), "logistic": Logistic(), "language": Language()}


@pytest.mark.parametrize("part", CLASSICS, ids=lambda part: part.__name__)
@pytest.mark.parametrize("stages", [1, 3, 4])
def test_every_classic_trains_and_obeys_the_referee(part, stages):
    for task in ("quadratic", "logistic"):
        made = trained(part(), stages, task=task, steps=13)
        assert made.violations == []
        assert made.metrics["loss"] < TASKS[task].judge(TASKS[task].start_weights())
    made = trained(part(), stages, task="language", steps=8)
    assert made.violations == []


# -- stages


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_passes_through_stages_give_the_gradient_of_the_whole(task, stages):
    parts = cut(TASKS[task], stages, key=5)
    for batch in (0, 3):
        x, kept, found = None, [], {}
        for stage in range(stages):
            x, inside = parts.forward(stage, parts.block(stage), x, batch)
            kept.append(inside)
        up = None
        for stage in reversed(range(stages)):
            found[stage], up = parts.backward(stage, parts.block(stage), kept[stage], up, batch)
        whole = parts.gradient(parts.whole, batch)
        pieces = np.concatenate([found[stage] for stage in range(stages)])
        if task == "language":  # layer by layer it is the very same arithmetic
            assert np.array_equal(pieces, whole)
        np.testing.assert_allclose(pieces, whole, rtol=1e-9, atol=1e-12)


def test_layers_are_dealt_so_that_the_largest_stage_is_least():
    assert even_cuts([3, 1, 1, 1, 3], 3) == [(0, 1), (1, 4), (4, 5)]
    names = cut(Language(layer_count=6), 4).names
    assert [name for group in names for name in group] == [
        "embed",
        "0",
        "1",
        "2",
        "3",
        "4",
        "5",
        "head",
    ]
    assert all(names) and max(len(group) for group in names) <= 3


def test_turned_axes_tie_the_blocks_together():
    parts = cut(Turned(noise=0.0), 2, key=1)
    moved = parts.whole.copy()
    moved[parts.slices[0]] += 1.0
    change = parts.gradient(moved, 0) - parts.gradient(parts.whole, 0)
    assert np.linalg.norm(change[parts.slices[1]]) > 0.1
    # The untied quadratic would not notice.
    plain = Quadratic().share(0, 1, None)
    change = plain.grad(Quadratic().start_weights() + np.eye(20)[0]) - plain.grad(
        Quadratic().start_weights()
    )
    assert np.count_nonzero(change) == 1


# -- the classics' own figures


@pytest.mark.parametrize("part", [GPipe, OneFOneB])
@pytest.mark.parametrize(("stages", "micro"), [(2, 4), (4, 8), (5, 3), (8, 16)])
def test_the_bubble_of_a_flush_is_the_published_one(part, stages, micro):
    even = {"more": {"numbers": 4 * stages}}
    made = trained(
        part(micro_batches=micro), world=ticks(stages), steps=3 * micro, **TICKS, **even
    )  # fmt: skip
    assert made.metrics["bubble"] == pytest.approx((stages - 1) / (micro + stages - 1), abs=1e-6)
    kept = [each["most_kept"] for each in stages_of(made)]
    if part is GPipe:
        assert kept == [micro] * stages
    else:
        assert kept == [min(micro, stages - stage) for stage in range(stages)]


def test_a_flush_is_a_large_batch():
    for part in (GPipe(micro_batches=4), OneFOneB(micro_batches=4)):
        made = trained(part, 3, task="logistic", steps=12)
        whole = cut_of(made, task="logistic", steps=12)
        weights = whole.whole
        for first in range(0, 12, 4):
            slope = np.mean([whole.gradient(weights, first + m) for m in range(4)], axis=0)
            weights = weights - 0.5 * slope
        np.testing.assert_allclose(weights_of(made), weights, rtol=1e-9, atol=1e-12)
        assert made.metrics["staleness"] == 0 and made.metrics["updates"] == 3 * 3


def test_the_last_flush_may_be_smaller():
    made = trained(GPipe(micro_batches=8), 3, steps=11)
    assert made.violations == [] and made.metrics["updates"] == 2 * 3


@pytest.mark.parametrize("stages", [2, 4, 7])
def test_pipedream_fills_the_pipeline_and_stashes_what_it_must(stages):
    steps = 4 * stages
    even = {"more": {"numbers": 4 * stages}}
    made = trained(PipeDream(), world=ticks(stages), steps=steps, **TICKS, **even)
    assert made.metrics["bubble"] == pytest.approx((stages - 1) / (steps + stages - 1), abs=1e-6)
    assert made.metrics["delay_first"] == (2 * stages * stages - stages) // 2
    for stage, each in enumerate(stages_of(made)):
        assert each["stash_B"] == (stages - 1 - stage) * 4 * 8
        assert each["most_kept"] == stages - stage


def test_without_a_stash_nothing_is_kept_and_gradients_are_of_no_point():
    kept, bare = (trained(part, 4, task="language", steps=24, rate=0.3) for part in
                  (PipeDream(), PipeDreamUnstashed()))  # fmt: skip
    assert kept.metrics["stash_B"] > 0 and bare.metrics["stash_B"] == 0
    assert not np.array_equal(weights_of(kept), weights_of(bare))
    # Where the way back does not depend on the weights, a stash changes nothing.
    kept, bare = (trained(part, 4, steps=24, rate=0.1) for part in
                  (PipeDream(), PipeDreamUnstashed()))  # fmt: skip
    assert np.array_equal(weights_of(kept), weights_of(bare))


def test_sgd_is_the_closed_form_on_a_quadratic():
    task = Turned(condition=10.0, noise=0.0)
    made = trained(OneWorkerSGD(), 4, own=task, steps=30)
    start, centre = Quadratic().start_weights(), Quadratic().centre(0)
    along = centre + (1 - task.rate * task.curvature()) ** 30 * (start - centre)
    np.testing.assert_allclose(weights_of(made), task.turn() @ along, rtol=1e-9)
    assert made.metrics["delay_max"] == made.metrics["staleness"] == 0
    # One worker of four is busy.
    assert made.metrics["bubble"] == pytest.approx(0.75)


@pytest.mark.parametrize(("stages", "replicas", "every"), [(4, 4, 3), (3, 3, 5), (4, 2, 4)])
def test_local_sgd_in_a_pipeline_is_local_sgd(stages, replicas, every):
    knobs = {"task": "logistic", "steps": 2 * replicas * every + 3}
    part = PipelinedLocalSGD(every=every, replicas=0 if replicas == stages else replicas)
    made = trained(part, stages, **knobs)
    whole = cut_of(made, **knobs)
    models = [whole.whole] * replicas
    for first in range(0, knobs["steps"], replicas * every):
        for batch in range(first, min(first + replicas * every, knobs["steps"])):
            mine = (batch - first) % replicas
            models[mine] = models[mine] - 0.5 * whole.gradient(models[mine], batch)
        models = [np.mean(models, axis=0)] * replicas
    np.testing.assert_allclose(weights_of(made), models[0], rtol=1e-9, atol=1e-12)
    assert made.metrics["staleness"] == 0 and made.violations == []


@pytest.mark.parametrize(("stages", "every"), [(2, 4), (4, 4), (5, 2)])
def test_the_bubble_of_local_sgd_is_one_flush_a_round(stages, every):
    made = trained(
        PipelinedLocalSGD(every=every), world=ticks(stages), steps=3 * stages * every, **TICKS
    )  # fmt: skip
    expected = (stages - 1) / (stages * every + stages - 1)
    assert made.metrics["bubble"] == pytest.approx(expected, abs=1e-6)


def test_bytes_are_those_of_activations_and_gradients():
    # A batch crosses each of S - 1 links twice, with 20 numbers of 8 bytes; the key is 8 bytes.
    made = trained(PipeDream(), 4, steps=10, scale=1.0)
    assert made.metrics["sent_B"] * 4 * 10 == 10 * 2 * 3 * 20 * 8 + 3 * 8
    assert made.extra["transfer_bytes"] == 10 * 2 * 3 * 20 * 8 + 3 * 8
    assert trained(PipeDream(), 1, steps=10).extra["transfer_bytes"] == 0


def test_links_take_their_time():
    # With one batch under way there is nothing to hide a message behind: 2 (S - 1) latencies.
    world = World.lan(4, latency_s=0.25, jitter=0.0, bandwidth_Bps=1e18)
    made = trained(PipeDream(in_flight=1), world=world, steps=5)
    assert made.metrics["time_s"] == pytest.approx(5 * 6 * 0.25, rel=1e-3)
    full = trained(PipeDream(), world=world, steps=40)
    assert full.metrics["time_s"] < 0.4 * 40 * 6 * 0.25


def test_the_weights_by_a_time_are_those_of_the_updates_so_far():
    knobs = {"steps": 20, "look_every": 1}
    made = trained(PipeDream(), 3, **knobs)
    problem = PipelineTraining(task="quadratic", **knobs)
    start = TASKS["quadratic"].start_weights()
    assert np.array_equal(problem.weights_by(made, 0.0), start)
    assert np.array_equal(problem.weights_by(made, made.metrics["time_s"]), weights_of(made))
    half = trained(PipeDream(), 3, by_s=made.metrics["time_s"] / 2, **knobs)
    assert made.metrics["excess"] < half.metrics["excess_by"]


# -- bad input


@pytest.mark.parametrize(
    "knobs",
    [{"steps": 0}, {"rate": -1.0}, {"scale": float("nan")}, {"forward_share": 1.5},
     {"task": "digits"}, {"stages": 4}, {"batch": "many"}],
    ids=str,
)  # fmt: skip
def test_bad_knobs_of_the_problem_are_named(knobs):
    with pytest.raises(KnobError):
        PipelineTraining(**knobs)


def test_what_cannot_be_cut_is_refused_with_the_fix():
    for knobs, stages, says in (
        ({"task": "language"}, 5, "layer_count"),
        ({"task": "quadratic"}, 21, "numbers"),
        ({"own": Digits()}, 2, "cannot be cut"),
        ({"task": "language", "more": {"dropout": 0.5}}, 2, "dropout"),
        ({"task": "logistic", "more": {"numbers": 0}}, 2, "numbers"),
        ({"task": "logistic", "more": {"colour": 1}}, 2, "colour"),
    ):
        with pytest.raises(OrreryError, match=says):
            trained(PipeDream(), stages, **knobs)


@pytest.mark.parametrize(
    ("part", "knobs"),
    [(GPipe, {"micro_batches": 0}), (PipeDream, {"in_flight": -1}),
     (PipelinedLocalSGD, {"every": 0}), (PipelinedLocalSGD, {"replicas": 1.5}),
     (OneWorkerSGD, {"update": "some"}), (PipeDream, {"optimiser": "lion"})],
    ids=str,
)  # fmt: skip
def test_bad_knobs_of_the_classics_are_named(part, knobs):
    with pytest.raises((KnobError, PartError)):
        part(**knobs)
