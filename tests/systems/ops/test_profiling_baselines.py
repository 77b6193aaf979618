"""The rivals of Dooly: each first gives a figure that is known without it."""

from __future__ import annotations

import numpy as np
import pytest

from orrery import run
from orrery.base.errors import NotFitted, PartError, SpecError
from orrery.models.specs import spec
from orrery.parts import Estimator
from orrery.systems.ops.baselines.end_to_end_regression import EndToEndRegression
from orrery.systems.ops.baselines.profile_everything import ProfileEverything
from orrery.systems.ops.baselines.roofline_only import RooflineOnly
from orrery.systems.ops.dooly.operators import uses
from orrery.systems.ops.dooly.oracle import Oracle, OracleSteps, TableMeter
from orrery.systems.ops.dooly.sweep import Sweep
from orrery.systems.ops.problems.profiling import LatencyProfiling, Profiler
from orrery.world.hardware import accelerator

SWEEP = Sweep(step_tokens=512, max_sequences=32, max_context=2048)
MODEL = spec("Llama-3.1-8B")


def meter_of(**knobs):
    meter = TableMeter(Oracle("H100-SXM"), **{"noise": 0.0, **knobs})
    meter.truth = OracleSteps(MODEL, meter.oracle, uses(MODEL, "H100-SXM", backends=meter.backends))
    return meter


def test_one_decode_by_the_roofline_takes_the_time_to_read_the_weights():
    part, meter = RooflineOnly(), meter_of()
    with pytest.raises(NotFitted):
        part.steps(MODEL)
    part.learn(MODEL, meter, SWEEP)
    assert meter.spent_s == 0.0 and meter.count == 0
    card = accelerator("H100-SXM")
    # All weights but the embedding are read once; kernels reach four fifths of the bandwidth.
    read_B = MODEL.weight_bytes() - MODEL.vocab * MODEL.hidden * 2
    closed_s = read_B / (card.memory_Bps * 0.80)
    assert part.steps(MODEL).seconds((), 1, 1) == pytest.approx(closed_s, rel=0.30)
    assert part.steps(MODEL).seconds((), 1, 1) > closed_s
    rows = np.array([[0, 1, 2e12, 0.0], [0, 1, 0.0, 1e9]])
    told = RooflineOnly().fit(rows, [1.0, 1.0]).predict(rows)
    want = [2e12 / (card.peak_flops["bf16"] * 0.78), 1e9 / (card.memory_Bps * 0.80)]
    assert told == pytest.approx(np.array(want) + 3e-6)


def test_profiling_everything_gives_back_what_was_measured():
    part, meter = ProfileEverything(), meter_of()
    report = part.learn(MODEL, meter, SWEEP)
    assert report.skipped == [] and len(report.measured) == meter.count
    steps = part.steps(MODEL)
    # At points of the sweep, prompts without decodes, nothing but attention is fitted.
    for new in (64, 256, 512):
        shape = (((new, 0),), 0, 0)
        assert steps.seconds(*shape) == pytest.approx(meter.truth.seconds(*shape), rel=0.03)
    # The device time is that of all points, by hand: twenty timings and three before them.
    total = sum(meter.oracle.seconds(key, point) for key, point in report.measured)
    assert meter.spent_s == pytest.approx(23 * total)
    again = part.learn(MODEL, meter, SWEEP)
    assert len(again.measured) == len(report.measured), "nothing is remembered"


def test_a_regression_of_whole_steps_finds_the_law_of_a_known_machine():
    class Plain:
        device = "H100-SXM"

        def whole(self, steps, shapes):
            return [2e-3 + 1e-5 * (d + sum(n for n, _ in p)) + 1e-8 * kv for p, d, kv in shapes]

    part, meter = EndToEndRegression(), Plain()
    meter.truth = None
    with pytest.raises(NotFitted):
        part.steps(MODEL)
    part.learn(MODEL, meter, SWEEP)
    table = part.steps(MODEL)
    assert table.seconds((), 16, 8000) == pytest.approx(2e-3 + 16e-5 + 8e-5, rel=0.01)
    optimize = pytest.importorskip("scipy.optimize", reason="needs SciPy")
    rng = np.random.default_rng(1)
    rows = np.column_stack([np.zeros(40), np.arange(40), rng.uniform(1, 9, (40, 2))])
    took = 0.5 + rows[:, 2] + 0.1 * rows[:, 3]
    fitted = EndToEndRegression().fit(rows, took)
    want, _ = optimize.nnls(
        np.column_stack([np.ones(40), rows[:, 2:]]) / took[:, None], np.ones(40)
    )
    assert fitted._weights == pytest.approx(want, abs=1e-9)
    for bad in (np.zeros((0, 4)), np.zeros((3, 2))):
        with pytest.raises(SpecError, match="inputs"):
            EndToEndRegression().fit(bad, np.ones(len(bad)))
        with pytest.raises(SpecError, match="inputs"):
            ProfileEverything().fit(bad, np.ones(len(bad)))


def test_measuring_beats_the_data_sheet_where_tables_say_otherwise():
    problem = LatencyProfiling(models=("Llama-3.1-8B",), requests=8)
    errors = {
        type(part).__name__: run(part, problem=problem, seed=3).metrics["step_error"]
        for part in (ProfileEverything(), RooflineOnly(), EndToEndRegression())
    }
    assert errors["ProfileEverything"] < 0.04 and errors["EndToEndRegression"] < 0.06
    assert errors["RooflineOnly"] > 2 * errors["ProfileEverything"]


def test_the_port_names_what_is_missing():
    class Empty(Profiler):
        """Does nothing."""

    with pytest.raises(PartError, match="learn"):
        Empty().learn(MODEL, None, SWEEP)
    with pytest.raises(PartError, match="steps"):
        Empty().steps(MODEL)
    with pytest.raises(PartError, match="inherit from Profiler"):
        LatencyProfiling().accept(Estimator())
    rows = np.array([[1, 1, 0, 0], [1, 4, 0, 0]], float)
    fitted = Empty().fit(rows, [1.0, 2.0])
    assert fitted.predict([[1, 2.5, 0, 0]]).tolist() == [1.5]
    with pytest.raises(SpecError, match="was not measured"):
        fitted.predict([[2, 1, 0, 0]])
