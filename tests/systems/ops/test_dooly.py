"""Dooly: labels are right, nothing is measured twice, and what follows foretells real engines."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.systems.ops.dooly_rules import named, wanted

import orrery.systems.ops as room
from orrery import run
from orrery.base.errors import KnobError, NotFitted, OrreryError, SpecError
from orrery.lab import validate
from orrery.models.replica import Replica, drain
from orrery.models.requests import Request
from orrery.models.specs import spec
from orrery.models.steps import Steps
from orrery.models.tables import find_tables
from orrery.systems.ops.dooly import operators
from orrery.systems.ops.dooly.backend import DoolySteps
from orrery.systems.ops.dooly.curves import Curve, Sum, rising
from orrery.systems.ops.dooly.database import Database, profile
from orrery.systems.ops.dooly.layer_meter import LayerMeter
from orrery.systems.ops.dooly.operators import DATA, PLAIN, STATE, structure, uses
from orrery.systems.ops.dooly.oracle import Oracle, OracleSteps, TableMeter
from orrery.systems.ops.dooly.origins import Book, Origin, Size, parse
from orrery.systems.ops.dooly.part import Dooly
from orrery.systems.ops.dooly.sweep import Sweep, batch, shape_of
from orrery.systems.ops.problems.profiling import FOUR, TWELVE, LatencyProfiling

SWEEP = Sweep(step_tokens=512, max_sequences=64, max_context=2048)
DEVICE = "H100-SXM"


def meter_of(device=DEVICE, **knobs):
    return TableMeter(Oracle(device), **{"noise": 0.0, **knobs})


# -- origins


def test_origins_add_multiply_divide_and_survive_text():
    h, d, t = (Origin.of(name) for name in ("heads", "head_dim", "tokens"))
    both = (h + h + d) * d
    assert both.value({"heads": 3, "head_dim": 5}) == 55
    assert parse(both.text) == both and parse((h / 2).text) == h / 2
    assert (h * d) / d == h and both / (h + h + d) == d and (h + d) / (h + t) is None
    assert [x.kind for x in (t * h, h, Origin.number(2), Origin.of("blocks"))] == [
        "request", "config", "constant", "capacity",
    ]  # fmt: skip
    with pytest.raises(SpecError, match="does not parse"):
        parse("heads*1/0")
    with pytest.raises(SpecError, match="no size"):
        h.value({})


def test_numbers_carry_their_origin_through_arithmetic():
    book = Book()
    heads, width = book.size("heads", 6), book.size("head_dim", 10)
    made = 2 * (heads + 1) * width - width
    assert (made, made.origin.value({"heads": 6, "head_dim": 10})) == (130, 130)
    assert (width // 2).origin == Origin.of("head_dim") / 2
    assert not isinstance(width // 3, Size) and not isinstance(heads * 0.5, Size)
    assert "head_dim*heads" in " ".join(book.origins)


# -- line 2: nothing is measured twice


def unlike_the_rules(names):
    """Models of which another set was measured or skipped than rules by hand say."""
    meter, database, seen, found = meter_of(), Database(DEVICE), {}, []
    for name in names:
        model = spec(name)
        report = profile(model, meter, database, SWEEP)
        by_hand = wanted(model, SWEEP)
        for side, want in (
            (report.measured, [each for each in by_hand if each not in seen]),
            (report.skipped, [each for each in by_hand if each in seen]),
        ):
            got = [(named(key), key.dims, key.window, point) for key, point in side]
            if len(got) != len(set(got)) or set(got) != set(want):
                found.append(name)
        seen |= by_hand
    assert found or len(database) == len({each[:3] for each in seen})
    return found


@pytest.mark.works_when("dooly", 2)
def test_what_is_skipped_is_what_rules_by_hand_say():
    assert unlike_the_rules(TWELVE) == []


@pytest.mark.works_when("dooly", 2)
@pytest.mark.parametrize("forgotten", ["the window", "the vocabulary", "the database"])
def test_rules_by_hand_notice_a_key_that_forgets(forgotten, monkeypatch):
    whole = operators.key_of

    def forgetful(*args):
        key = whole(*args)
        if forgotten == "the window":
            return msgspec.structs.replace(key, window=0)
        dims = [["32000" if d == "32768" else d for d in each] for each in key.dims]
        return msgspec.structs.replace(key, dims=tuple(map(tuple, dims)))

    if forgotten == "the database":
        monkeypatch.setattr(Database, "missing", lambda self, key, points: list(points))
    else:
        monkeypatch.setattr(operators, "key_of", forgetful)
    assert unlike_the_rules(("Mistral-7B-v0.1", "Mistral-7B-v0.3")) != []


@pytest.mark.works_when("dooly", 2)
def test_a_covered_model_adds_nothing_and_another_kernel_only_attention():
    meter, database = meter_of(), Database(DEVICE)
    for name in FOUR:
        profile(spec(name), meter, database, SWEEP)
    spent = meter.spent_s
    again = profile(spec("Llama-3.1-8B"), meter, database, SWEEP)
    assert again.measured == [] and again.device_s == 0 and meter.spent_s == spent
    other = profile(spec("Llama-3.1-8B"), meter_of(attention="flash"), database, SWEEP)
    assert {key.kind for key in other.new_keys} == {STATE}
    names = {"Plan.__init__", "PagedCache.write", "Plan.attend"}
    assert {key.op for key in other.new_keys} == names
    off = profile(spec("Llama-3.1-8B"), meter, database, SWEEP, reuse=False)
    assert len(off.measured) == len(again.skipped), "with the mechanism off all is measured anew"


def share_saved(tables):
    """Of the device time of profiling twelve models from scratch, the share that reuse saves."""
    oracle, spent = Oracle(DEVICE, tables), {}
    for reuse in (True, False):
        part, meter = Dooly(reuse=reuse), TableMeter(oracle, noise=0.0)
        for name in TWELVE:
            part.learn(spec(name), meter, SWEEP)
        spent[reuse] = meter.spent_s
    return 1 - spent[True] / spent[False], meter.table_s / meter.spent_s


@pytest.mark.works_when("dooly", 2)
def test_time_saved_over_twelve_shapes(capsys):
    tables = find_tables(DEVICE)
    by_roofline, _ = share_saved(None)
    by_tables, told = share_saved(tables) if tables is not None else (by_roofline, 0.0)
    with capsys.disabled():
        print(f"\n  saved {by_tables:.1%} of the device time summed from op tables (they tell"
              f" {told:.0%} of it), {by_roofline:.1%} by roofline; published 56.4% ")  # fmt: skip
    for saved in (by_tables, by_roofline):
        assert 0.1 < saved < 0.9
    data = tomllib.loads((Path(room.__file__).parent / "dooly.toml").read_text())
    for claim in data["claims"]:
        assert tuple(claim["problem_knobs"]["models"]) == TWELVE


# -- line 3: from the tables of a GPU to the TTFT and TPOT of a run that was recorded on it

DATA_HOME = Path(os.environ.get("ORRERY_DATA", "/nowhere"))
RUN = DATA_HOME / "vllm_runs" / "RTX4090" / "Llama-3.1-8B"
here = pytest.mark.skipif(not RUN.exists(), reason=f"ORRERY_DATA has no {RUN.name} on RTX4090")


def told_by_database(monkeypatch, blind=""):
    """Errors of the saved run when Dooly sweeps the GPU's tables and its database drives it."""
    model, limits = spec("Llama-3.1-8B"), Sweep(max_context=4096, contexts=5)

    def steps(folder, **engine):
        meter = LayerMeter(folder, "RTX4090")
        found = [each for each in meter.operators() if not blind or blind not in each.op]
        database = Database(meter.device)
        report = profile(model, meter, database, limits, found=found)
        assert len(report.measured) == meter.count and not report.skipped
        used = uses(model, meter.device, backends=meter.backends, found=found)
        return DoolySteps(model, database, used)

    monkeypatch.setattr(validate, "LayerTables", steps)
    return validate.validate_serving(RUN, DATA_HOME / "op_profiles")


@here
@pytest.mark.works_when("dooly", 3)
def test_a_database_swept_from_the_tables_of_a_gpu_foretells_its_saved_run(monkeypatch, capsys):
    pytest.importorskip("yaml", reason="needs the extra serve")
    direct = validate.validate_serving(RUN, DATA_HOME / "op_profiles")
    found = told_by_database(monkeypatch)
    with capsys.disabled():
        for name, each in (("the tables", direct), ("the database", found)):
            print(f"\n  {name}: mean TTFT {each['ttft_mean_err']:+.1%}, "
                  f"TPOT {each['tpot_mean_err']:+.1%}", end="")  # fmt: skip
    for each in (direct, found):
        assert each["requests"] == 300 and each["faults"] == []
        assert abs(each["ttft_mean_err"]) < 0.10 and abs(each["tpot_mean_err"]) < 0.08


@here
@pytest.mark.works_when("dooly", 3)
@pytest.mark.parametrize("blind", ["attention", "down_proj"])
def test_a_forecast_that_misses_an_operator_is_out_of_bounds(monkeypatch, blind):
    pytest.importorskip("yaml", reason="needs the extra serve")
    found = told_by_database(monkeypatch, blind)
    assert abs(found["ttft_mean_err"]) > 0.10 or abs(found["tpot_mean_err"]) > 0.08


def test_tables_that_are_not_there_or_of_another_device_are_named(tmp_path):
    with pytest.raises(SpecError, match=r"dense\.csv"):
        LayerMeter(tmp_path, "RTX4090")
    (tmp_path / "tp1").mkdir()
    (tmp_path / "tp1" / "dense.csv").write_text("layer,tokens\nqkv_proj,1\n")
    with pytest.raises(SpecError, match="layer, tokens, time_us"):
        LayerMeter(tmp_path, "RTX4090")


# -- line 5: a class of its own, no silent reuse, no other device


@pytest.mark.works_when("dooly", 5)
def test_what_depends_on_data_is_reported_and_has_its_own_keys():
    database = Database(DEVICE)
    report = profile(spec("Mixtral-8x7B"), meter_of(), database, SWEEP)
    rows = {key.op: key for key in report.data}
    assert set(rows) == {
        "aten.linear.default", "aten.silu.default", "aten.mul.Tensor", "aten.cat.default",
    }  # fmt: skip
    assert all(key.kind == DATA and key.dims[0][0] == "?" for key in report.data)
    dense = profile(spec("Llama-3.1-8B"), meter_of(), database, SWEEP)
    assert dense.data == []
    # The same sizes as an expert's, but set by the request: another key, so it is measured.
    silu = [key for key in dense.new_keys if key.op == "aten.silu.default"]
    assert [key.dims for key in silu] == [(("*0", "14336"),)]
    assert rows["aten.silu.default"].dims == (("?", "14336"),)


@pytest.mark.works_when("dooly", 5)
def test_a_key_that_takes_data_for_a_request_size_would_be_noticed(monkeypatch):
    """The planted fault: rows of an expert count as tokens, so its times serve a dense layer."""
    whole = operators.fill

    def blind(text, sizes, stars):
        return "*0" if text == "?" else whole(text, sizes, stars)

    monkeypatch.setattr(operators, "fill", blind)
    keys = operators.key_of
    monkeypatch.setattr(operators, "key_of", lambda each, *rest: msgspec.structs.replace(
        keys(each, *rest), kind=PLAIN if each.kind == DATA else each.kind))  # fmt: skip
    database = Database(DEVICE)
    assert profile(spec("Mixtral-8x7B"), meter_of(), database, SWEEP).data == []
    dense = profile(spec("Llama-3.1-8B"), meter_of(), database, SWEEP)
    assert "aten.silu.default" not in {key.op for key in dense.new_keys}, "reused in silence"


@pytest.mark.works_when("dooly", 5)
def test_nothing_is_taken_from_a_key_that_is_merely_alike():
    database, model = Database(DEVICE), spec("Llama-3.1-8B")
    profile(model, meter_of(), database, SWEEP)
    used = uses(model, DEVICE, backends=meter_of().backends)
    DoolySteps(model, database, used)
    for other in (
        uses(model, DEVICE, backends=meter_of().backends, dtype="fp8"),
        uses(model, DEVICE, backends={STATE: "flash"}),
        uses(spec("Llama-3.2-3B"), DEVICE, backends=meter_of().backends),
    ):
        with pytest.raises(SpecError, match="was not measured"):
            DoolySteps(model, database, other)


@pytest.mark.works_when("dooly", 5)
def test_a_database_of_another_device_is_refused(tmp_path):
    database, model = Database(DEVICE), spec("Llama-3.2-3B")
    profile(model, meter_of(), database, SWEEP)
    path = database.save(tmp_path / "db.json")
    assert len(Database.load(path, DEVICE)) == len(database)
    with pytest.raises(SpecError, match="measured on H100-SXM, not H200"):
        Database.load(path, "H200")
    with pytest.raises(SpecError, match="measured on H100-SXM"):
        profile(model, meter_of("H200"), database, SWEEP)
    with pytest.raises(SpecError, match="measured on H100-SXM"):
        DoolySteps(model, database, uses(model, "H200", backends=meter_of().backends))


# -- the database and its regressions


def test_a_database_survives_a_file_and_a_damaged_one_is_refused(tmp_path):
    database, model = Database(DEVICE, "a test"), spec("Llama-3.2-3B")
    profile(model, meter_of(noise=0.05), database, SWEEP)
    path = database.save(tmp_path / "db.json")
    again = Database.load(path, DEVICE)
    used = uses(model, DEVICE, backends=meter_of().backends)
    a, b = DoolySteps(model, database, used), DoolySteps(model, again, used)
    for shape in (((), 7, 900), (((300, 20), (9, 0)), 30, 4000)):
        assert a.seconds(*shape) == b.seconds(*shape)
    text = path.read_text()
    for wrong in (text[:-50], "[]", '{"schema": "x"}', text.replace('"points"', '"pints"', 1)):
        path.write_text(wrong)
        with pytest.raises(SpecError):
            Database.load(path, DEVICE)
    with pytest.raises(SpecError, match="cannot be read"):
        Database.load(tmp_path / "none.json", DEVICE)
    with pytest.raises(SpecError, match="is empty"):
        Database("")


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf"), "x"])
def test_times_that_cannot_be_are_refused(bad):
    database = Database(DEVICE)
    key = uses(spec("Llama-3.2-3B"), DEVICE)[1].key
    with pytest.raises(SpecError, match="is refused"):
        database.add(key, [(1,)], [bad])
    assert len(database) == 0, "nothing is filed by halves"
    if isinstance(bad, float):
        with pytest.raises(SpecError):
            Curve([1], [bad])
        with pytest.raises(SpecError):
            Sum([((), 1, 2)], [bad])


def test_curves_are_the_nearest_that_never_fall():
    optimize = pytest.importorskip("scipy.optimize", reason="needs SciPy")
    rng = np.random.default_rng(3)
    for _ in range(30):
        values = np.cumsum(rng.normal(0.2, 1.0, size=17)) + 20
        assert rising(values) == pytest.approx(optimize.isotonic_regression(values).x)
    for bad in ([], [2, 1], [1, 1]):
        with pytest.raises(SpecError):
            Curve(bad, [1.0] * len(bad))


def test_attention_is_fitted_by_non_negative_least_squares():
    optimize = pytest.importorskip("scipy.optimize", reason="needs SciPy")
    shapes = [shape_of(point) for point in SWEEP.batches()]
    law = [1e-5 + 2e-9 * kv + 3e-12 * sum(n * (n + p) for n, p in pre) for pre, _, kv in shapes]
    fit = Sum(shapes, law)
    assert fit.error < 1e-6 and fit((((77, 5),), 9, 800)) == pytest.approx(
        1e-5 + 2e-9 * 800 + 3e-12 * 77 * 82, rel=1e-4
    )
    from orrery.systems.ops.dooly.curves import causes

    columns = np.array([causes(shape) for shape in shapes]) / np.array(law)[:, None]
    size = np.linalg.norm(columns, axis=0)
    want, _ = optimize.nnls(columns / size, np.ones(len(law)))
    assert columns @ fit.weights == pytest.approx(columns @ (want / size), abs=1e-6)


def test_step_times_are_the_sum_of_operators_and_runs_the_sum_of_steps():
    model, database = spec("Mixtral-8x7B"), Database(DEVICE)
    meter = meter_of()
    profile(model, meter, database, SWEEP)
    used = uses(model, DEVICE, backends=meter.backends)
    steps = DoolySteps(model, database, used)
    truth = OracleSteps(model, meter.oracle, used)
    assert isinstance(steps, Steps)
    shapes = [((), 16, 16 * 500), (((256, 0),), 0, 0), (((100, 100),), 32, 9000)]
    for shape in shapes:
        assert steps.seconds(*shape) == pytest.approx(truth.seconds(*shape), rel=0.05)
    one_by_one = sum(steps.seconds((), 5, 600 + 5 * i) for i in range(40))
    assert steps.decode_run(5, 600, 40) == pytest.approx(one_by_one, rel=1e-9)
    assert steps.seconds((), 0, 0) == steps.decode_run(3, 10, 0) == 0.0
    assert steps.extrapolated == 0
    steps.seconds(((5000, 0),), 0, 0)
    assert steps.extrapolated > 0 and "aten.matmul.default" in steps.outside
    host = [1e-3, *[0.0] * 6, 1e-4]
    slower = DoolySteps(model, database, used, host=host, watts=2.0)
    extra = slower.seconds((), 4, 400) - steps.seconds((), 4, 400)
    assert extra == pytest.approx(1e-3 + 1e-4 * model.layers)
    assert slower.joules((), 4, 400) == 2.0 * slower.seconds((), 4, 400)
    for wrong in ((((0, 0),), 0, 0), ((), -1, 0)):
        with pytest.raises(SpecError):
            steps.seconds(*wrong)
    with pytest.raises(SpecError, match="weights"):
        DoolySteps(model, database, used, host=[1.0])


def test_the_steps_drive_a_modelled_replica():
    from orrery.models.real.schedule import Continuous

    part, meter, model = Dooly(), meter_of(), spec("Llama-3.1-8B")
    with pytest.raises(NotFitted, match="learn"):
        part.steps(model)
    part.learn(model, meter, SWEEP)
    scheduler = Continuous(step_tokens=512, max_sequences=64)
    replica = Replica(part.steps(model), scheduler, blocks=4000, ahead=False)
    served = drain(replica, [Request(i, i * 0.01, 200 + i, 20) for i in range(12)])
    assert len(served) == 12 and all(each.first_s > each.queued_s for each in served)


def test_points_of_a_sweep_stay_within_the_engines_limits():
    for sweep in (SWEEP, Sweep(step_tokens=1, max_sequences=1, max_context=2, contexts=1)):
        for point in sweep.batches():
            prefill, decodes, kv = shape_of(point)
            assert batch(prefill, decodes, kv) == point
            assert decodes <= sweep.max_sequences and kv <= decodes * sweep.max_context
            assert decodes + sum(new for new, _ in prefill) <= max(2, sweep.step_tokens)
            assert decodes or prefill


# -- the problem


def test_bad_questions_are_named():
    for knobs, words in (
        ({"models": ()}, "is empty"),
        ({"tables": "x"}, "auto"),
        ({"models": ("Llama-9",)}, "unknown model"),
        ({"device": "H1000"}, "H1000"),
    ):
        with pytest.raises(OrreryError, match=words):
            run(Dooly(), problem=LatencyProfiling(**knobs))
    for knobs in ({"noise": -1.0}, {"requests": 0}, {"load": float("nan")}, {"step_tokens": "x"}):
        with pytest.raises(KnobError):
            LatencyProfiling(**knobs)


def test_ours_measures_less_and_foretells_as_well():
    problem = LatencyProfiling()
    ours, off = (run(Dooly(reuse=reuse), problem=problem, seed=2) for reuse in (True, False))
    assert ours.violations == off.violations == []
    assert ours.metrics["device_s"] < 0.95 * off.metrics["device_s"]
    assert ours.metrics["skipped"] > 0 == off.metrics["skipped"]
    assert ours.metrics["step_error"] == pytest.approx(off.metrics["step_error"], abs=0.02)
    assert ours.metrics["step_error"] < 0.05 and ours.metrics["data_keys"] == 10


def test_a_profiler_without_a_forecast_is_noticed():
    class Blind(Dooly):
        """Foretells nothing."""

        def steps(self, model):
            made = super().steps(model)
            made._weights = [float("nan")] * 7
            return made

    found = run(Blind(), problem=LatencyProfiling(models=("Llama-3.2-3B",)), seed=1)
    assert {each.kind for each in found.violations} == {"no_forecast"}


def test_structures_differ_where_operators_do():
    names = ("Llama-3.1-8B", "Qwen3-8B", "Qwen2.5-7B", "Mixtral-8x7B", "DeepSeek-V2-Lite")
    assert len({structure(spec(name)) for name in names}) == 5
    assert structure(spec("Llama-3.1-8B")) == structure(spec("Llama-3.1-70B"))
