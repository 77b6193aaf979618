"""Dooly on the real engine: labels against fresh runs, attention alone and inside, forecasts."""

from __future__ import annotations

import functools

import msgspec
import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra torch")

import torch

from orrery.base.errors import SpecError, UsageError
from orrery.models.real.attend import Plan
from orrery.models.real.engine import RealReplica
from orrery.models.real.measure import plant
from orrery.models.real.schedule import Continuous
from orrery.models.real.transformer import Transformer
from orrery.models.specs import ModelSpec, spec
from orrery.systems.ops.dooly import taint
from orrery.systems.ops.dooly.database import Database, profile
from orrery.systems.ops.dooly.meter import TorchMeter
from orrery.systems.ops.dooly.operators import (
    DATA,
    STATE,
    operators,
    operators_of,
    structure,
    traced,
    uses,
)  # fmt: skip
from orrery.systems.ops.dooly.origins import Book
from orrery.systems.ops.dooly.record import recorder
from orrery.systems.ops.dooly.ship import structures
from orrery.systems.ops.dooly.sweep import Sweep, batch
from orrery.systems.ops.dooly.trial import (
    attention_alone,
    attention_in_engine,
    attention_key,
    compare,
    downscaled,
    foretelling,
    load_of,
    spent_here,
)  # fmt: skip
from orrery.systems.ops.dooly.twins import BATCH, ENGINE, derived, label, run_twin, twin
from orrery.systems.ops.problems.profiling import TWELVE

BASE = {"layers": 2, "hidden": 32, "heads": 4, "intermediate": 48, "vocab": 97, "max_context": 192}
MLA = {"kv_lora_rank": 12, "qk_nope_dim": 8, "qk_rope_dim": 4, "v_head_dim": 6}
MOE = {"experts": 5, "experts_active": 2, "expert_intermediate": 20}
TOYS = {
    "mha": {}, "gqa": {"kv_heads": 2}, "mla": MLA, "moe": {"kv_heads": 2, **MOE},
    "mla_moe": {**MLA, "q_lora_rank": 10, **MOE, "shared_experts": 1, "first_dense": 1},
    "window": {"kv_heads": 2, "window": 5, "window_layers": 1},
    "gpt2": {"gated": False, "norm": "layer", "qkv_bias": True, "out_bias": True,
             "mlp_bias": True, "rope": False, "positions": 192},
}  # fmt: skip
KINDS = ("mha", "gqa", "mla", "moe")


@pytest.fixture(autouse=True)
def one_thread():
    was = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(was)


@functools.cache
def labels_of(name):
    return label(toy(name))[0]


def toy(name):
    return ModelSpec(name=name, **{**BASE, **TOYS[name]})


def fresh(model, which=0, **changed):
    """A run that no label has seen: the sizes of a twin with some of them changed."""
    sizes = twin(model, which) | {name: each[which] for name, each in ENGINE.items()}
    request = {name: changed.pop(name, each[which]) for name, each in BATCH.items()}
    sizes |= changed
    return run_twin(model, sizes, derived(request, sizes["block_tokens"]), Book(), seed=5)


def faults(labelled, runs):
    """Dimensions whose label does not tell the truth in some run; and how many were looked at."""
    wrong, seen = [], 0
    for run in runs:
        calls = run.calls[run.began :]
        places = taint.aligned([each.call for each in labelled], calls)
        assert len(places) == len(labelled) or any(each.data for each in labelled)
        for place, at in places.items():
            each = labelled[place]
            for labels, tensor in zip(
                (*each.inputs, *each.outputs), (*calls[at].inputs, *calls[at].outputs), strict=False
            ):
                for one, size in zip(labels, tensor.shape, strict=True):
                    seen += 1
                    if one is not None and one.value(run.sizes) != size:
                        wrong.append((each.call.op, one.text, size))
    return wrong, seen


# -- line 1: labels


@pytest.mark.works_when("dooly", 1)
@pytest.mark.parametrize("name", KINDS)
def test_labels_foretell_every_dimension_of_runs_they_have_not_seen(name):
    model = toy(name)
    labelled = labels_of(name)
    assert len(labelled) > 100
    base = fresh(model)
    requests = fresh(model, decodes=14, context=77, new=41, past=90)
    config = fresh(model, hidden=58, vocab=151, intermediate=94)
    equal = fresh(model, hidden=76)  # nine decodes and a chunk of 67: as many tokens as features
    assert equal.sizes["tokens"] == equal.sizes["hidden"] == 76
    wrong, seen = faults(labelled, [base, requests, config, equal])
    assert wrong == [] and seen > 2000
    # What changes with the request alone is labelled so, and with the configuration likewise.
    for other, kind in ((requests, "request"), (config, "config")):
        a, b = base.calls[base.began :], other.calls[other.began :]
        first = taint.aligned([each.call for each in labelled], a)
        second = taint.aligned([each.call for each in labelled], b)
        for place, each in enumerate(labelled):
            if place not in first or place not in second or each.data:
                continue
            pair = a[first[place]].inputs, b[second[place]].inputs
            for labels, one, two in zip(each.inputs, *pair, strict=True):
                for origin, x, y in zip(labels, one.shape, two.shape, strict=True):
                    if x != y:
                        assert origin.kind == kind, (each.call.op, origin.text)
    # All is labelled but what data decides, which dense models have not.
    assert bool([each for each in labelled if each.data]) == (name == "moe")


@pytest.mark.works_when("dooly", 1)
@pytest.mark.parametrize("name", ["mla_moe", "window", "gpt2"])
def test_labels_are_right_for_other_structures_too(name):
    labelled = labels_of(name)
    runs = [fresh(toy(name), decodes=14, context=77, new=41, past=90), fresh(toy(name), hidden=76)]
    assert faults(labelled, runs)[0] == []


@pytest.mark.works_when("dooly", 1)
def test_one_run_alone_takes_equal_numbers_for_equal_things():
    model = toy("gqa")
    equal = {"hidden": 76, "decodes": 9, "new": 67}
    alone, _ = label(model, runs=1, others=[equal])
    wrong, _ = faults(alone, [fresh(model, decodes=14, new=41)])
    unlabelled = [each for each in alone if each.data]
    assert wrong or unlabelled, "with the mechanism off the coincidence must show"
    both, _ = label(model, runs=2, others=[equal])
    assert faults(both, [fresh(model, decodes=14, new=41)])[0] == []
    with pytest.raises(SpecError, match="runs"):
        label(model, runs=0)


@pytest.mark.works_when("dooly", 1)
def test_a_wrong_rule_does_not_get_past_the_runs(monkeypatch):
    def swapped(step, inputs, values):
        return [inputs[1][-1], inputs[0][0]]

    monkeypatch.setitem(taint.RULES, "matmul", swapped)
    runs = [fresh(toy("gqa"), decodes=14, hidden=58)]
    assert faults(label(toy("gqa"))[0], runs)[0] == []
    # What stops it is that a label must tell the number in every run.
    monkeypatch.setattr(taint.Step, "fits", lambda self, origin, values: origin is not None)
    assert faults(label(toy("gqa"))[0], runs)[0] != []


# -- line 5: data


@pytest.mark.works_when("dooly", 5)
def test_rows_of_an_expert_have_no_label_and_their_operators_a_class_of_their_own():
    found = operators_of(labels_of("moe"))
    data = [each for each in found if each.kind == DATA]
    assert {each.op for each in data if each.looped} == {
        "aten.linear.default", "aten.silu.default", "aten.mul.Tensor",
    }  # fmt: skip
    assert all("?" in each.dims[0] for each in data)
    assert not [each for each in operators_of(labels_of("gqa")) if each.kind == DATA]


@pytest.mark.works_when("dooly", 5)
def test_a_meter_measures_data_as_rows_and_refuses_another_device():
    meter, sweep = TorchMeter(repeats=1, cache_B=1 << 16), Sweep(
        step_tokens=8, max_sequences=2, max_context=16, contexts=1
    )  # fmt: skip
    database = Database(meter.device)
    report = profile(toy("mla_moe"), meter, database, sweep, dtype="fp32",
                     found=operators_of(labels_of("mla_moe")))  # fmt: skip
    assert report.data and all(len(database.find(key).seconds) > 2 for key in report.data)
    assert meter.spent_s > 0
    key = uses(toy("gqa"), "another", dtype="fp32", found=operators_of(labels_of("gqa")))[1].key
    with pytest.raises(SpecError, match="is not here"):
        meter.measure(key, [(1,)])


@pytest.mark.works_when("dooly", 2)
def test_another_attention_kernel_is_measured_for_attention_alone():
    sweep = Sweep(step_tokens=8, max_sequences=2, max_context=16, contexts=1)
    meter, model = TorchMeter(repeats=1, cache_B=1 << 16), toy("gqa")
    found, database = operators_of(labels_of("gqa")), Database(meter.device)
    first = profile(model, meter, database, sweep, dtype="fp32", found=found)
    again = profile(model, meter, database, sweep, dtype="fp32", found=found)
    assert first.measured and again.measured == [] and again.device_s == 0
    other = TorchMeter(repeats=1, attention="math", cache_B=1 << 16)
    report = profile(model, other, database, sweep, dtype="fp32", found=found)
    assert {key.kind for key in report.new_keys} == {STATE}


@pytest.mark.slow
@pytest.mark.works_when("dooly", 2)
def test_time_saved_when_down_scaled_shapes_are_measured_here(capsys):
    models = [downscaled(spec(name), 32) for name in TWELVE]
    sweep = Sweep(step_tokens=24, max_sequences=4, max_context=64, contexts=2)
    spent = {
        reuse: spent_here(models, sweep, reuse=reuse, repeats=2, cache_B=1 << 20)
        for reuse in (True, False)
    }
    saved = 1 - spent[True] / spent[False]
    with capsys.disabled():
        print(f"\n  saved {saved:.1%} of {spent[False]:.1f} s on this CPU (published 56.4%) ")
    assert 0.1 < saved < 0.9


def test_a_meter_refuses_what_it_cannot_do():
    for wrong in ({"attention": "flush"}, {"repeats": 0}, {"least_s": 0.0}, {"dtype": "fp7"}):
        with pytest.raises(UsageError):
            TorchMeter(**wrong)


# -- line 4: attention


def attention_calls(calls):
    """The kernels of attention with the shapes and strides they saw, the cache's size aside."""
    found = []
    for each in calls:
        if each.state != "Plan.attend" or each.view:
            continue
        cut = int("index_select" in each.op and len(each.inputs[0].shape) == 4)
        seen = [
            (t.shape[cut if n == 0 else 0 :], [n for n in t.order if t.shape[n] > 1])
            for n, t in enumerate(each.inputs)
        ]
        found.append((each.op, seen))
    return found


@pytest.mark.works_when("dooly", 4)
@pytest.mark.parametrize("name", ["mha", "gqa", "mla", "window"])
def test_attention_alone_calls_what_the_running_engine_calls(name):
    model = toy(name)
    real = Transformer.random(model, device="cpu", dtype="fp32")
    replica = RealReplica(real, Continuous(step_tokens=64), blocks=60, caching=False)
    for number in range(3):
        plant(replica, number, 20, 1, decoding=True)
    plant(replica, 9, 5, 17, decoding=False)
    with recorder() as tape:
        replica.step()
    inside = [c for c in tape.calls if c.layer == 0]
    meter = TorchMeter()
    key = next(
        use.key for use in uses(model, meter.device, dtype="fp32", backends=meter.backends,
                                found=operators_of(labels_of(name)))
        if use.key.op == "Plan.attend" and bool(use.key.window) == bool(inside[-1].window)
    )  # fmt: skip
    made = meter._state_call(key, batch(((17, 5),), 3, 63))
    with recorder() as tape, torch.inference_mode():
        made(0)
    alone = attention_calls(tape.calls)
    want = attention_calls(inside)
    # In the engine the three contexts are equal; alone they are as unlike as those of a load. The
    # chunk's kernels must see the same shapes in the same layout.
    chunk = want[[op for op, _ in want].index("aten.index_copy_.default") + 1 :]
    assert len(chunk) >= 3 and all(each in alone for each in chunk)
    assert {op for op, _ in alone} == {op for op, _ in want}
    # A cache in another layout is another kernel, and shows.
    wide = msgspec.structs.replace(
        key, dims=(*key.dims[:1], *(("4", *d[1:]) for d in key.dims[1:]))
    )
    other = meter._state_call(wide, batch(((17, 5),), 3, 63))
    with recorder() as tape, torch.inference_mode():
        other(0)
    assert not all(each in attention_calls(tape.calls) for each in chunk)


@pytest.mark.slow
@pytest.mark.works_when("dooly", 4)
def test_attention_alone_takes_what_it_takes_inside(capsys):
    model = spec("SmolLM2-135M").replace(layers=4, vocab=512, dtype="fp32")
    sweep = Sweep(step_tokens=64, max_sequences=32, max_context=1100)
    meter = TorchMeter(repeats=9)
    real = Transformer.random(model, device="cpu", dtype="fp32")
    shapes = [(n, length) for n in (8, 16, 32) for length in (512, 1024)]
    inside = np.array(attention_in_engine(real, shapes, meter, sweep, repeats=5))
    alone = np.array(attention_alone(model, shapes, meter, sweep))
    apart = alone / inside - 1
    with capsys.disabled():
        print(dict(zip(shapes, apart.round(3).tolist(), strict=True)))
    assert inside.min() >= 1e-3, "calls of at least a millisecond"
    assert np.abs(apart).max() < 0.15
    assert Plan.attend.__qualname__ == "Plan.attend", "the engine is as it was"
    assert attention_key(model, meter, sweep).kind == STATE


# -- what is shipped


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "DeepSeek-V2-Lite"])
def test_shipped_operators_are_those_that_a_trace_finds(name):
    assert operators(spec(name)) == traced(spec(name))


@pytest.mark.slow
def test_all_shipped_operators_are_those_that_a_trace_finds():
    done = structures()
    for name, model in done.items():
        assert operators(model) == traced(model), name
    assert len(done) > 12 and {structure(spec(name)) for name in TWELVE} <= set(done)


# -- line 3: from a database to TTFT and TPOT


@pytest.mark.slow
@pytest.mark.works_when("dooly", 3)
def test_a_database_measured_here_foretells_the_real_engine_here(capsys):
    # Large enough that its weights do not stay in the processor's cache from step to step.
    model = spec("SmolLM2-135M").replace(name="short", layers=6, dtype="fp32")
    sweep = Sweep(step_tokens=256, max_sequences=24, max_context=512, contexts=3)
    meter = TorchMeter()
    steps, _, _ = foretelling(model, meter, sweep)
    real = Transformer.random(model, seed=1, device="cpu", dtype="fp32")
    scheduler = Continuous(step_tokens=256, max_sequences=24)
    requests = load_of(steps, 0.15, count=25, seed=11)
    found = compare("held out", real, steps, requests, scheduler, meter=meter, blocks=900)
    with capsys.disabled():
        print(found)
    assert found.busy <= 0.7 and found.extrapolated == 0
    assert found.tpot < 0.15 and found.ttft < 0.20
