"""Sequential gradient coding: its acceptance lines, and the classics with a known figure each."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from orrery import World, run
from orrery.base.errors import KnobError, PartError
from orrery.base.rand import Stream
from orrery.systems.resilience import (
    DropLate,
    GradientCoding,
    Repetition,
    SequentialGradientCoding,
    StragglingGradients,
    WaitForAll,
)
from orrery.systems.resilience.problems.coding import Bursty, Code, GradientScheme
from orrery.systems.resilience.problems.rounds import profile, replay, settings, tune
from orrery.systems.resilience.problems.straggling_gradients import Regression
from orrery.world import Crash, Pause

SCHEMES = ("multiplexed", "selective")
MODELS = [(1, 2, 1), (1, 3, 1), (2, 3, 1), (1, 2, 2), (1, 3, 2), (2, 3, 2), (1, 2, 3)]


def formula(scheme, workers, burst, window, most):
    """The load of a round as the paper gives it."""
    if scheme == "multiplexed":
        part = burst + (window - 1) * (most + 1)
        return (most + 1) * (window - 1 + burst) / (workers * part)
    return (-(-burst * most // (window - 1 + burst)) + 1) / workers


def allowed(workers, model, rounds, before=()):
    """All patterns of stragglers that the model allows."""
    if len(before) == rounds:
        yield before
        return
    for count in range(model.most + 1):
        for missed in combinations(range(workers), count):
            longer = (*before, missed)
            if model.holds(longer):
                yield from allowed(workers, model, rounds, longer)


def played(part, workers, pattern, gradients=None):
    """Go through a pattern without waiting; the errors of the jobs that are due by its end."""
    course, vectors, errors = part.course(workers), {}, []
    for number, missed in enumerate(pattern):
        plans = course.assign(number)
        if number >= course.delay:
            assert max(course.load_of(plan) for plan in plans) == pytest.approx(course.load)
        heard = [worker for worker in range(workers) if worker not in missed]
        if not course.fits(number, heard):
            return None
        course.finish(number, heard)
        if gradients is not None:
            for worker in heard:
                for mini in plans[worker]:
                    parts = zip(mini.chunks, mini.factors, strict=True)
                    vectors[worker, mini] = sum(f * gradients[mini.job][c] for c, f in parts)
        due = number - course.delay
        if due >= 0:
            recipe = course.recipe(due)
            assert recipe is not None, f"job {due} is lost after {pattern}"
            if gradients is not None:
                found = sum(factor * vectors[key] for key, factor in recipe.items())
                truth = gradients[due].sum(axis=0)
                errors.append(np.linalg.norm(found - truth) / np.linalg.norm(truth))
            course.forget(due)
    return errors


def chunk_gradients(part, workers, jobs):
    sizes = part.course(workers).sizes
    return np.random.default_rng(4).standard_normal((jobs, len(sizes), 3))


def exhaustive(workers, scheme, burst, window, most, rounds):
    part = SequentialGradientCoding(scheme=scheme, burst=burst, window=window, most=most)
    model = Bursty(burst=burst, window=window, most=most)
    gradients = chunk_gradients(part, workers, rounds)
    seen = 0
    for pattern in allowed(workers, model, rounds):
        # The arithmetic is done for some of them; that a recipe exists is asked of all.
        errors = played(part, workers, pattern, gradients if seen % 50 == 0 else None)
        assert errors is not None and max(errors, default=0.0) < 1e-8
        seen += 1
    return seen


# -- line 1


@pytest.mark.works_when("sequential-gradient-coding", 1)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    ("workers", "burst", "window", "most"),
    [(workers, *model) for workers in (2, 3, 4) for model in MODELS if model[2] < workers],
)
def test_every_allowed_pattern_is_decoded_in_time(scheme, workers, burst, window, most):
    part = SequentialGradientCoding(scheme=scheme, burst=burst, window=window, most=most)
    told = formula(scheme, workers, burst, window, most)
    assert part.course(workers).load == pytest.approx(told, rel=1e-12)
    rounds = 2 * window if (workers, most) != (4, 2) else 2 * window - 1
    assert exhaustive(workers, scheme, burst, window, most, min(rounds, 5)) > 20


@pytest.mark.slow
@pytest.mark.works_when("sequential-gradient-coding", 1)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("burst", "window", "most"), MODELS[:5])
@pytest.mark.parametrize("workers", [4, 5])
def test_every_allowed_pattern_over_twice_the_window(scheme, workers, burst, window, most):
    assert exhaustive(workers, scheme, burst, window, most, 2 * window) > 50


def random_pattern(rng, workers, model, rounds):
    pattern = []
    for _ in range(rounds):
        missed = rng.permutation(workers)[: rng.integers(0, model.most + 1)].tolist()
        while not model.holds([*pattern, missed]):
            missed = missed[:-1]
        pattern.append(missed)
    return pattern


@pytest.mark.works_when("sequential-gradient-coding", 1)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    ("workers", "burst", "window", "most", "bound"),
    [(16, 1, 2, 3, 1e-8), (16, 1, 3, 5, 1e-8), (16, 2, 5, 4, 1e-8), (256, 1, 2, 15, 1e-6),
     (256, 1, 2, 21, 1e-6)],
)  # fmt: skip
def test_random_patterns_of_many_workers(scheme, workers, burst, window, most, bound):
    part = SequentialGradientCoding(scheme=scheme, burst=burst, window=window, most=most)
    model = Bursty(burst=burst, window=window, most=most)
    rng, rounds = Stream(5, workers, scheme).numpy(), 12 if workers < 100 else 6
    gradients = chunk_gradients(part, workers, rounds)
    for _ in range(3 if workers < 100 else 1):
        errors = played(part, workers, random_pattern(rng, workers, model, rounds), gradients)
        assert errors is not None and max(errors) < bound


# -- line 2


@pytest.mark.works_when("sequential-gradient-coding", 2)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_pattern_beyond_the_model_is_noticed_or_harmless(scheme):
    part = SequentialGradientCoding(scheme=scheme, burst=1, window=2, most=1)
    model, workers, rounds = Bursty(burst=1, window=2, most=1), 4, 5
    noticed = 0
    gradients = chunk_gradients(part, workers, rounds + 1)
    for inside in allowed(workers, model, rounds - 1):
        for missed in combinations(range(workers), 2):
            pattern = (*inside, missed, missed)
            errors = played(part, workers, pattern, gradients)
            noticed += errors is None
            assert errors is None or max(errors) < 1e-8
    assert noticed > 0


class Careless(SequentialGradientCoding):
    """Ends every round at once, whatever the answers are worth."""

    def course(self, workers):
        made = super().course(workers)
        made.fits = lambda number, heard: True
        return made


@pytest.mark.works_when("sequential-gradient-coding", 2)
def test_a_master_that_never_waits_loses_gradients_and_is_found_out():
    problem = StragglingGradients(share=0.4, slow=8.0, jobs=16)
    made = run(Careless(), problem=problem, seed=1)
    assert {violation.kind for violation in made.violations} == {"lost_gradient"}
    made = run(SequentialGradientCoding(), problem=problem, seed=1)
    assert made.violations == [] and made.metrics["waited_rounds"] > 0


# -- line 3


def candidates(scheme, workers=256):
    return [
        SequentialGradientCoding(scheme=scheme, burst=burst, window=window, most=most)
        for burst, window, most in settings(workers) if most in (3, 15)
    ]  # fmt: skip


def tuned_times(slow=5.0, **more):
    """Seconds of each kind on a profile, with knobs that another profile chose."""
    first = profile(256, 40, 1, slow=slow, **more)
    second = profile(256, 100, 2, slow=slow, **more)
    kinds = {
        "multiplexed": candidates("multiplexed"),
        "selective": candidates("selective"),
        "coded": [GradientCoding(missing=m) for m in (0, 1, 3, 7, 15, 31)],
        "plain": [WaitForAll()],
    }
    # A worker's own part of the data takes it as long as the start of a round.
    return {
        kind: replay(tune(parts, first, unit_s=256.0)[0], second, unit_s=256.0)
        for kind, parts in kinds.items()
    }


@pytest.mark.works_when("sequential-gradient-coding", 3)
def test_bursts_favour_the_sequence_and_steady_stragglers_do_not(record_property):
    bursts, steady = tuned_times(), tuned_times(steady=True)
    ours, coded = bursts["multiplexed"], bursts["coded"]
    record_property("runtime_ratio", ours.seconds / coded.seconds)  # published: 0.84
    assert ours.load < coded.load and ours.seconds < coded.seconds
    for slow in (3.0, 5.0):
        times = bursts if slow == 5.0 else tuned_times(slow=slow)
        assert all(times[kind].seconds < times["plain"].seconds
                   for kind in ("multiplexed", "selective", "coded"))  # fmt: skip
    assert steady["multiplexed"].seconds >= steady["coded"].seconds


# -- line 4


def models_after(made, count):
    """The last weights of each model."""
    last = {}
    for record in made.records:
        if "gradient" in record.values:
            last[record.values["job"] % count] = record.values["model"]
    return last


def sequential(problem, count):
    """Each model trained on its own, one gradient after the other."""
    data = Regression(problem.rows, problem.numbers, problem.data_seed, count)
    weights = [start.copy() for start in data.starts]
    for job in range(problem.jobs):
        weights[job % count] = weights[job % count] - data.rate * data.whole(weights[job % count])
    return weights


@pytest.mark.works_when("sequential-gradient-coding", 4)
@pytest.mark.parametrize("engine", ["virtual", "processes"])
def test_models_in_turn_end_as_if_trained_alone(engine):
    problem = StragglingGradients(jobs=12, models=3, slow=1.0, startup_flops=3e6, flops=6e7)
    late = [Pause(node=2, at_s=0.05, until_s=0.25), Pause(node=4, at_s=0.5, until_s=0.6)]
    world = World.lan({"master": 1, "worker": 4}).with_faults(*late)
    made = run(SequentialGradientCoding(), problem=problem, world=world, engine=engine, seed=2)
    assert made.violations == []
    found, expected = models_after(made, 3), sequential(problem, 3)
    for model in range(3):
        np.testing.assert_allclose(found[model], expected[model], rtol=1e-8)


@pytest.mark.slow
@pytest.mark.works_when("sequential-gradient-coding", 4)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_four_models_on_eight_processes(scheme):
    problem = StragglingGradients(jobs=40, models=4, slow=1.0, startup_flops=3e6, flops=6e7)
    late = [Pause(node=n, at_s=0.2 * n, until_s=0.2 * n + 0.3) for n in range(1, 9)]
    world = World.lan({"master": 1, "worker": 8}).with_faults(*late)
    part = SequentialGradientCoding(scheme=scheme, burst=1, window=3, most=2)
    made = run(part, problem=problem, world=world, engine="processes", seed=2)
    assert made.violations == []
    found, expected = models_after(made, 4), sequential(problem, 4)
    for model in range(4):
        np.testing.assert_allclose(found[model], expected[model], rtol=1e-8)


# -- line 5


@pytest.mark.works_when("sequential-gradient-coding", 5)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("dead", [1, 2])
def test_the_work_of_dead_workers_goes_to_others(scheme, dead):
    faults = [Crash(node=1 + n, at_s=0.02) for n in range(dead)]
    world = World.lan({"master": 1, "worker": 6}).with_faults(*faults)
    part = SequentialGradientCoding(scheme=scheme, burst=1, window=2, most=1)
    made = run(part, problem=StragglingGradients(wait_s=1.0, slow=1.0), world=world, seed=1)
    assert made.violations == []
    # The selective scheme's code forgives one in each round, and needs nobody in its place.
    assert (made.metrics["stood_in"] > 0) == (scheme == "multiplexed" or dead > 1)


@pytest.mark.works_when("sequential-gradient-coding", 5)
def test_when_nobody_is_left_the_run_says_so():
    faults = [Crash(node=n, at_s=0.02) for n in range(1, 5)]
    world = World.lan({"master": 1, "worker": 4}).with_faults(*faults)
    problem = StragglingGradients(wait_s=1.0, slow=1.0)
    made = run(SequentialGradientCoding(), problem=problem, world=world, seed=1)
    assert "gave_up" in {violation.kind for violation in made.violations}


@pytest.mark.slow
@pytest.mark.works_when("sequential-gradient-coding", 5)
def test_a_killed_process_is_replaced_too():
    world = World.lan({"master": 1, "worker": 4}).with_faults(Crash(node=2, at_s=0.1))
    problem = StragglingGradients(
        jobs=120, wait_s=0.1, slow=1.0, startup_flops=3e6, flops=6e7, rows=24000
    )
    made = run(SequentialGradientCoding(), problem=problem, world=world, engine="processes")
    assert made.violations == [] and made.metrics["stood_in"] > 0


# -- the classics and the checker


@pytest.mark.parametrize(("workers", "missing"), [(4, 0), (4, 1), (5, 2), (6, 3), (9, 2), (8, 4)])
def test_gradient_coding_forgives_any_of_that_many(workers, missing):
    code = Code(workers, missing)
    chunks = np.random.default_rng(1).standard_normal((workers, 4))
    assert all(len(row) == missing + 1 for row in code.rows)
    sent = [sum(f * chunks[c] for c, f in row) for row in code.rows]
    for lost in combinations(range(workers), missing):
        factors = code.factors([w for w in range(workers) if w not in lost])
        found = sum(f * sent[w] for w, f in factors.items())
        np.testing.assert_allclose(found, chunks.sum(axis=0), rtol=1e-9, atol=1e-9)
    if missing + 1 < workers and not code.repeats:
        assert code.factors(range(workers - missing - 1)) is None


def test_loads_and_times_of_the_classics():
    steady = np.ones((10, 8))
    # Nobody straggles: a round takes start-up plus load.
    for part, load in ((WaitForAll(), 1 / 8), (GradientCoding(missing=1), 2 / 8),
                       (Repetition(copies=4), 4 / 8)):  # fmt: skip
        seen = replay(part, steady, startup_s=1.0, unit_s=16.0)
        assert seen.seconds == pytest.approx(10 * (1 + 16 * load)) and seen.load == load
    slow = steady.copy()
    slow[:, 3] = 7.0
    assert replay(WaitForAll(), slow).seconds == pytest.approx(7 * replay(WaitForAll(), steady)[0])
    forgiven = replay(GradientCoding(missing=1), slow, mu=0.5).seconds
    assert forgiven == pytest.approx(1.5 * replay(GradientCoding(missing=1), steady)[0])


@pytest.mark.parametrize("part", [WaitForAll(), GradientCoding(), Repetition(), DropLate(),
                                  SequentialGradientCoding(burst=0)], ids=str)  # fmt: skip
def test_every_classic_trains(part):
    made = run(part, problem=StragglingGradients(), seed=3)
    assert made.violations == []
    exact = made.metrics["error"] < 1e-9
    assert exact == part.exact


class Wrong(GradientCoding):
    """Decodes with factors that are a little off."""

    def course(self, workers):
        made = super().course(workers)
        right = made.recipe
        made.recipe = lambda job: (
            None if right(job) is None else {key: 1.001 * f for key, f in right(job).items()}
        )
        return made


def test_a_wrong_gradient_is_found():
    made = run(Wrong(), problem=StragglingGradients(), seed=3)
    assert {violation.kind for violation in made.violations} == {"wrong_gradient"}


def test_profiles_have_the_share_and_bursts_that_were_asked_for():
    factors = profile(400, 600, 3, slow=5.0, share=0.1, burst=3.0, noise=0.0)
    slow = factors > 2
    assert slow.mean() == pytest.approx(0.1, rel=0.15)
    starts = (slow[1:] & ~slow[:-1]).sum()
    assert slow[1:].sum() / starts == pytest.approx(3.0, rel=0.15)
    assert np.array_equal(factors, profile(400, 600, 3, slow=5.0, share=0.1, burst=3.0, noise=0.0))


def test_bad_input_is_named():
    with pytest.raises(PartError, match="allow fewer"):
        SequentialGradientCoding(most=4).course(4)
    with pytest.raises(PartError, match="must be above burst"):
        SequentialGradientCoding(burst=2, window=2).course(4)
    with pytest.raises(PartError, match="multiple of burst"):
        SequentialGradientCoding(scheme="selective", burst=2, window=4).course(4)
    with pytest.raises(PartError, match="does not divide"):
        Repetition(copies=3).course(4)
    with pytest.raises(PartError, match="cannot miss 4"):
        GradientCoding(missing=4).course(4)
    with pytest.raises(PartError, match="no course"):
        GradientScheme().course(4)
    with pytest.raises(PartError, match="train more in turn"):
        run(SequentialGradientCoding(), problem=StragglingGradients(models=1))
    with pytest.raises(PartError, match="at least 1"):
        profile(0, 1, 1)
    with pytest.raises(PartError, match="none of the schemes fits"):
        tune([SequentialGradientCoding(most=9)], np.ones((2, 4)))
    for knobs in ({"burst": -1}, {"scheme": "other"}, {"window": 0}, {"lambda_": 2}):
        with pytest.raises(KnobError):
            SequentialGradientCoding(**knobs)
