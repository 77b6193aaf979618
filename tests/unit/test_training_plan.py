"""Training plans, their memory and their flops: closed forms, published counts, refusals."""

from __future__ import annotations

import math

import pytest

from orrery.base.errors import SpecError
from orrery.models.specs import ModelSpec, spec, spec_names
from orrery.models.training import (
    TrainingPlan,
    checkpoint_B,
    hardware_flops,
    held,
    layer_activations,
    memory_of,
    model_flops,
    zero_bubble,
)
from orrery.models.training.plan import OPTIMISER_B
from orrery.models.training.work import backward, forward, params_of

GPT = {"dropout": True, "attention": "unfused", "sequence": 2048}


def gpt(**more):
    return TrainingPlan(**{**GPT, **more})


# -- refusals


@pytest.mark.parametrize("knobs, names", [
    ({"tp": 0}, "plan.tp"), ({"tp": 1.5}, "plan.tp"), ({"tp": True}, "plan.tp"),
    ({"pp": -1}, "plan.pp"), ({"dp": 1 << 20}, "plan.dp"), ({"micro_batch": 0}, "micro_batch"),
    ({"global_batch": math.nan}, "global_batch"), ({"sequence": -1}, "sequence"),
    ({"dp": 3, "global_batch": 4}, "plan.global_batch: 4 sequences do not split over 3"),
    ({"micro_batch": 3, "global_batch": 4}, "give a multiple of 3"),
    ({"chunks": 2}, "one stage"), ({"chunks": 2, "pp": 2, "schedule": "gpipe"}, "plan.chunks"),
    ({"chunks": 2, "pp": 4, "global_batch": 6}, "rounds of 4"),
    ({"chunks": 2, "pp": 2, "schedule": "zero_bubble", "global_batch": 2}, "plan.chunks"),
    ({"sequence_parallel": True}, "plan.sequence_parallel"),
    ({"ep": 3, "tp": 2}, "plan.ep"), ({"ep": 4, "tp": 2}, "plan.ep"),
    ({"tp": 4, "ep": 3}, "plan.ep"),
    ({"recompute": "some"}, "recompute"), ({"schedule": "2f2b"}, "schedule"),
    ({"dtype": "fp99"}, "plan.dtype"), ({"optimizer": "lion"}, "optimizer"),
])  # fmt: skip
def test_a_plan_that_does_not_add_up_is_refused_by_field(knobs, names):
    with pytest.raises(SpecError, match=names):
        TrainingPlan(**knobs)


@pytest.mark.parametrize("model, knobs, names", [
    ("Megatron-22B", {"tp": 7}, "tp"), ("Megatron-22B", {"pp": 64}, "pp"),
    ("Megatron-22B", {"pp": 4, "chunks": 5, "global_batch": 4}, "do not split into 4 x 5"),
    ("Megatron-22B", {"pp": 16, "chunks": 4, "global_batch": 16}, "at most 48"),
    ("Megatron-22B", {"tp": 2, "ep": 2}, "ep"), ("Mixtral-8x7B", {"dp": 16, "ep": 16,
     "global_batch": 16}, "ep"), ("Megatron-22B", {"cp": 3}, "plan.cp"),
    ("Megatron-22B", {"tp": 8, "sequence_parallel": True, "sequence": 2044}, "do not split over"),
    ("Megatron-22B", {"cp": 2, "attention": "unfused"}, "fused"),
])  # fmt: skip
def test_a_plan_that_does_not_suit_the_model_is_refused(model, knobs, names):
    with pytest.raises(SpecError, match=names):
        memory_of(spec(model), TrainingPlan(**knobs))


# -- parameters


@pytest.mark.parametrize("name", spec_names())
@pytest.mark.parametrize("knobs", [{}, {"pp": 2}, {"tp": 2, "pp": 3}])
def test_parameters_of_a_device_are_those_of_the_layout(name, knobs):
    model, plan = spec(name), TrainingPlan(**knobs)
    try:
        plan.of(model)
    except SpecError as error:
        pytest.skip(f"{name}: {error}")
    for stage in range(plan.pp):
        mine = sum(params_of(model, plan, stage).values())
        assert mine == model.params_on_device(plan.layout, stage)


def test_published_parameter_counts():
    gpt3 = spec("GPT-3-175B")
    assert gpt3.params / 1e9 == pytest.approx(175.0, rel=0.003)
    # Chinchilla (Hoffmann et al., 2022, table 4) and MT-NLG; the first has no entry of its own.
    chinchilla = ModelSpec(
        name="chinchilla", layers=80, hidden=8192, heads=64, intermediate=32768, vocab=32000,
        gated=False, tied=True,
    )  # fmt: skip
    assert chinchilla.params / 1e9 == pytest.approx(70.0, rel=0.08)
    shares = TrainingPlan(tp=8, pp=8)
    held_ = sum(sum(params_of(gpt3, shares, stage).values()) for stage in range(8)) * 8
    # Every device of a tensor group has the norms and the positions; the last stage has the
    # embedding once more, as its output matrix.
    assert held_ / gpt3.params == pytest.approx(1.0, abs=0.006)


# -- memory


@pytest.mark.parametrize("name", ["Megatron-22B", "Megatron-175B"])
def test_activations_are_the_formulas_of_the_paper(name):
    model = spec(name)
    s, h, a, t = 2048, model.hidden, model.heads, 8
    row = s * h
    scores = 5 * a * s / h
    for knobs, told in (
        ({}, 34 + scores), ({"tp": t}, 10 + 24 / t + scores / t),
        ({"tp": t, "sequence_parallel": True}, 34 / t + scores / t),
        ({"tp": t, "recompute": "selective"}, 10 + 24 / t),
        ({"tp": t, "recompute": "selective", "sequence_parallel": True}, 34 / t),
        ({"recompute": "full"}, 2.0),
    ):  # fmt: skip
        assert layer_activations(model, gpt(**knobs)) == pytest.approx(row * told, rel=1e-12)


def test_states_are_eighteen_bytes_a_parameter_and_shrink_with_sharding():
    model = spec("Megatron-22B")
    (one,) = memory_of(model, gpt(tp=8))
    params = params_of(model, gpt(tp=8), 0)
    assert one.states_B == pytest.approx(18 * params["layers"])
    assert one.ends_B == pytest.approx(18 * params["ends"])
    (shared,) = memory_of(model, gpt(tp=8, dp=4, global_batch=4, sharded_optimizer=True))
    assert shared.optimizer_B == pytest.approx(one.optimizer_B / 4)
    assert shared.weights_B + shared.gradients_B == one.weights_B + one.gradients_B
    (plain,) = memory_of(model, gpt(tp=8, optimizer="sgd"))
    assert one.optimizer_B - plain.optimizer_B == pytest.approx(OPTIMISER_B["adam"]
                                                                * params["layers"])  # fmt: skip
    assert checkpoint_B(model, gpt()) == 14 * model.params


def test_gpipe_holds_all_micro_batches_and_1f1b_no_more_than_stages():
    model, p, m = spec("Megatron-22B"), 4, 16
    base = {"pp": p, "global_batch": m}
    gpipe = memory_of(model, gpt(schedule="gpipe", **base))
    plain = memory_of(model, gpt(**base))
    assert [each.held for each in gpipe] == [m] * p
    assert [each.held for each in plain] == [4, 3, 2, 1]
    assert gpipe[0].activations_B / plain[0].activations_B == pytest.approx(m / p)
    zero = memory_of(model, gpt(schedule="zero_bubble", **base))
    assert [each.held for each in zero] == [p] * p
    # Interleaved: L (1 + (p - 1) / (p v)) layers on the first stage (Korthikanti et al., 2022).
    v = 3
    mixed = memory_of(model, gpt(chunks=v, **base))
    layers = model.layers * (1 + (p - 1) / (p * v))
    assert mixed[0].activations_B == pytest.approx(layers * layer_activations(model, gpt(**base)))
    assert held(zero_bubble(0, 4, 2)) == 2


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "DeepSeek-V3", "Mixtral-8x7B", "gpt-oss-120b"])
def test_other_shapes_keep_less_when_more_is_computed_again(name):
    model = spec(name)
    for attention in ("fused", "unfused"):
        kept = [
            memory_of(model, TrainingPlan(recompute=mode, attention=attention))[0].activations_B
            for mode in ("none", "selective", "full")
        ]
        assert kept[0] >= kept[1] > kept[2] > 0
        assert (kept[0] > kept[1]) == (attention == "unfused")
    whole, half = (memory_of(model, TrainingPlan(tp=tp))[0] for tp in (1, 2))
    assert half.states_B < whole.states_B and half.activations_B < whole.activations_B


def test_experts_are_spread_over_their_group():
    model = spec("Mixtral-8x7B")
    base = {"dp": 8, "global_batch": 8, "sharded_optimizer": True}
    alone, spread = (memory_of(model, TrainingPlan(ep=ep, **base))[0] for ep in (1, 8))
    experts = params_of(model, TrainingPlan(), 0)["experts"]
    assert alone.weights_B - spread.weights_B == pytest.approx(2 * experts * 7 / 8)
    # A share of the experts has no replica left to share its states with.
    dense = params_of(model, TrainingPlan(), 0)["layers"]
    assert spread.optimizer_B == pytest.approx(12 * (dense / 8 + experts / 8))


# -- flops


def test_a_token_needs_six_flops_a_parameter_and_attention():
    model, plan = spec("Megatron-175B"), gpt(global_batch=64)
    tokens = 64 * 2048
    attention = 12 * model.layers * model.hidden * 2048 * tokens
    assert model_flops(model, plan) == pytest.approx(6 * model.matmul_params * tokens + attention)
    # The formula of the paper: 72 B s L h^2 (1 + s / 6h + V / 12 L h).
    h, layers, s = model.hidden, model.layers, 2048
    told = 72 * 64 * s * layers * h * h * (1 + s / (6 * h) + model.vocab / (12 * layers * h))
    assert model_flops(model, plan) == pytest.approx(told)
    assert model_flops(model, plan, causal=True) == pytest.approx(
        told - attention / 2, rel=1e-4)  # fmt: skip


def test_recomputing_all_layers_does_four_thirds_of_them():
    model = spec("Megatron-175B")
    none, some, full = (
        hardware_flops(model, gpt(recompute=mode)) for mode in ("none", "selective", "full")
    )
    assert none == pytest.approx(model_flops(model, gpt()))
    head = 3 * 2 * 2048 * model.vocab * model.hidden
    assert (full - head) / (none - head) == pytest.approx(4 / 3)
    assert some - none == pytest.approx(4 * 2048 * 2048 * model.hidden * model.layers)


@pytest.mark.parametrize("knobs", [
    {"tp": 8}, {"pp": 8, "global_batch": 8}, {"dp": 4, "global_batch": 4},
    {"tp": 2, "pp": 2, "chunks": 2, "global_batch": 4},
])  # fmt: skip
def test_devices_share_the_flops(knobs):
    model, plan = spec("Megatron-22B"), gpt(**knobs)
    assert hardware_flops(model, plan) == pytest.approx(model_flops(model, plan))


def test_the_backward_pass_splits_into_input_and_weight_gradients():
    for name, attention in (("Megatron-22B", "unfused"), ("DeepSeek-V3", "fused")):
        model, plan = spec(name), TrainingPlan(recompute="selective", attention=attention)
        whole, inputs, weights = (backward(model, plan, 0, 0, p) for p in ("B", "input", "weight"))
        assert inputs.flops + weights.flops == pytest.approx(whole.flops)
        products = 2 * model.matmul_params * plan.tokens(model)
        assert weights.flops == pytest.approx(products)
        assert forward(model, plan, 0).flops > products
