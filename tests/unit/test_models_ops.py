"""Operations of a step: closed forms of flops, bytes and messages; forward and backward."""

from __future__ import annotations

import numpy as np
import pytest

from orrery.base.errors import SpecError
from orrery.models.ops import (
    Batch,
    attention_ops,
    causal_pairs,
    dense_ops,
    experts_touched,
    forward_ops,
    head_ops,
    totals,
)
from orrery.models.specs import spec, spec_names
from orrery.models.training import Micro, gradient_ops, training_backward, training_forward
from orrery.models.weights import Layout

PRODUCTS = ("gemm", "moe")


def product_flops(ops) -> float:
    return float(sum(op.flops * op.times for op in ops if op.kind in PRODUCTS))


@pytest.mark.parametrize("name", spec_names())
def test_products_do_two_flops_a_parameter_and_token(name: str) -> None:
    model = spec(name)
    ops = [*dense_ops(model, 64), *head_ops(model, 64)]
    assert product_flops(ops) == pytest.approx(2 * model.matmul_params * 64, rel=1e-12)


@pytest.mark.parametrize("name", ["Llama-2-7B", "Qwen3-32B", "BLOOM-176B"])
def test_one_token_reads_every_matrix_once(name: str) -> None:
    model = spec(name)
    ops = [*dense_ops(model, 1), *head_ops(model, 1)]
    read = sum(op.dims["n"] * op.dims["k"] * 2 * op.times for op in ops if op.kind == "gemm")
    assert read == 2 * model.matmul_params


@pytest.mark.parametrize("name", ["Llama-3.1-70B", "Mixtral-8x7B", "DeepSeek-V3"])
@pytest.mark.parametrize("layout", [Layout(tp=8), Layout(tp=8, ep=8), Layout(tp=4, pp=2)])
def test_devices_share_the_flops(name: str, layout: Layout) -> None:
    model = spec(name)
    if not model.experts and layout.ep > 1:
        pytest.skip("a dense model has no experts")
    whole, part = (product_flops(dense_ops(model, 256, each)) for each in (Layout(), layout))
    # The router and the down-projections of latent attention are done by every device.
    both = sum(
        2 * 256 * w.rows * w.columns * w.layers
        for w in model.weights()
        if w.matrix and w.split == "none" and w.part in ("attention", "mlp")
    )
    assert part * layout.tp == pytest.approx(whole + both * (layout.tp - 1), rel=1e-12)


def test_attention_of_a_prompt_and_of_decodes() -> None:
    model = spec("Llama-3.1-8B")
    (prompt,) = attention_ops(model, Batch(((1000, 0),)))
    assert prompt.flops == 4 * 32 * 128 * 1000 * 1001 // 2
    assert prompt.times == 32
    (decode,) = attention_ops(model, Batch((), 10, 5000))
    assert decode.flops == 4 * 32 * 128 * 5000
    assert decode.read_B == 5000 * 2 * 8 * 128 * 2 + 10 * 32 * 128 * 2
    # A prompt in chunks looks at the same pairs as the whole.
    chunks = attention_ops(model, Batch(((400, 0), (600, 400))))
    assert chunks[0].flops == prompt.flops


def test_windows_hide_far_tokens() -> None:
    for new, past, window in [(5, 0, 3), (4, 10, 3), (7, 2, 4), (3, 0, 100)]:
        brute = sum(min(past + i, window) for i in range(1, new + 1))
        assert causal_pairs(new, past, window) == brute
    model = spec("Gemma-2-9B")
    full, window = attention_ops(model, Batch((), 2, 20000))
    assert (full.times, window.times) == (21, 21)
    assert window.flops / full.flops == 2 * 4096 / 20000


def test_latent_attention_reads_the_latent_only() -> None:
    model = spec("DeepSeek-V3")
    (decode,) = attention_ops(model, Batch((), 1, 1000))
    assert decode.flops == 2 * 128 * (2 * 512 + 64) * 1000
    assert decode.read_B >= 1000 * 576 * 2


def test_experts_touched_by_even_routing() -> None:
    model = spec("Qwen3-30B-A3B")
    assert experts_touched(model, 1) == pytest.approx(8)
    assert experts_touched(model, 100000) == pytest.approx(128)
    rng = np.random.default_rng(1)
    seen = [
        len(set(np.concatenate([rng.choice(128, 8, replace=False) for _ in range(16)])))
        for _ in range(300)
    ]
    assert experts_touched(model, 16) == pytest.approx(np.mean(seen), rel=0.02)


def test_messages_of_tensor_parallelism() -> None:
    model, tokens = spec("Llama-3.1-70B"), 100
    ops = dense_ops(model, tokens, Layout(tp=8))
    sent = sum(op.times for op in ops if op.name == "layer_reduce")
    assert sent == 2 * model.layers
    assert {op.dims["bytes"] for op in ops if op.kind == "all_reduce"} == {tokens * 8192 * 2}
    split = dense_ops(model, tokens, Layout(tp=8, sequence_parallel=True))
    assert {op.kind for op in split if op.group > 1} == {"reduce_scatter", "all_gather"}
    assert not [op for op in dense_ops(model, tokens) if op.group > 1]


def test_messages_of_expert_parallelism() -> None:
    model, tokens = spec("Qwen3-30B-A3B"), 64
    ops = dense_ops(model, tokens, Layout(ep=16))
    sent = [op for op in ops if op.kind == "all_to_all"]
    assert [op.name for op in sent] == ["dispatch", "combine"]
    assert sent[0].dims["bytes"] == tokens * 8 * 2048 * 2
    assert sent[0].times == 48
    # All groups together do all the work: a device gets as many rows as it sends.
    (moe,) = [op for op in ops if op.kind == "moe"]
    assert moe.flops == pytest.approx(2 * tokens * 8 * 3 * 2048 * 768)


def test_arrays_give_the_same_as_numbers() -> None:
    model, layout = spec("Mixtral-8x7B"), Layout(tp=2)
    many = dense_ops(model, np.array([1.0, 7.0, 300.0]), layout)
    for place, tokens in enumerate((1, 7, 300)):
        for one, curve in zip(dense_ops(model, tokens, layout), many, strict=True):
            assert np.ravel(curve.flops * np.ones(3))[place] == pytest.approx(one.flops)
            assert np.ravel(curve.bytes * np.ones(3))[place] == pytest.approx(one.bytes)


def test_context_parallelism_shares_a_prompt() -> None:
    model = spec("Llama-3.1-8B")
    whole = totals(forward_ops(model, [(4096, 0)]))
    part = totals(forward_ops(model, [(4096, 0)], layout=Layout(cp=4)))
    head = totals(head_ops(model, 1))["flops"]
    assert (part["flops"] - head) * 4 == pytest.approx(whole["flops"] - head)
    assert part["message_B"] == 4096 * 131072


def test_nothing_to_do_is_no_operation() -> None:
    assert forward_ops(spec("Llama-2-7B")) == []


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        ({"prefill": [(0, 0)]}, "prefill.0"),
        ({"prefill": [(4, 0), (4, -1)]}, "prefill.1"),
        ({"decodes": -1}, "decodes"),
        ({"decodes": 1, "decode_kv": -5}, "decode_kv"),
        ({"decode_kv": 5}, "decode_kv"),
    ],
)
def test_bad_batches_are_refused(bad: dict[str, object], match: str) -> None:
    with pytest.raises(SpecError, match=match):
        forward_ops(spec("Llama-2-7B"), **bad)  # type: ignore[arg-type]


# -- training


def test_training_does_six_flops_a_parameter_and_token() -> None:
    model, micro = spec("GPT-3-175B"), Micro(sequences=1, length=2048)
    forward = training_forward(model, micro)
    backward = training_backward(model, micro)
    products = product_flops(forward) + product_flops(backward)
    assert products == pytest.approx(6 * model.matmul_params * 2048, rel=1e-12)
    attention = 4 * 96 * 128 * 2048 * 2049 // 2 * 96
    assert totals(forward)["flops"] - product_flops(forward) == attention
    assert totals(backward)["flops"] - product_flops(backward) == 2.5 * attention


def test_recomputing_does_the_forward_pass_again() -> None:
    model = spec("Megatron-22B")
    kinds = {
        name: totals(training_backward(model, Micro(sequences=4, length=2048, recompute=name)))
        for name in ("none", "selective", "full")
    }
    forward = training_forward(model, Micro(sequences=4, length=2048))
    head = 2 * 4 * 2048 * model.vocab * model.hidden
    attention = sum(op.flops * op.times for op in forward if op.kind.startswith("attention"))
    again = {name: each["flops"] - kinds["none"]["flops"] for name, each in kinds.items()}
    assert again["selective"] == pytest.approx(attention)
    assert again["full"] == pytest.approx(totals(forward)["flops"] - head)


def test_backward_turns_messages_round() -> None:
    layout = Layout(tp=8, sequence_parallel=True)
    micro = Micro(sequences=1, length=1024)
    forward, backward = (
        sorted(op.kind for op in make(spec("Megatron-22B"), micro, layout) if op.group > 1)
        for make in (training_forward, training_backward)
    )
    assert forward == backward
    assert len(forward) == 5


def test_gradients_of_replicas() -> None:
    model, layout = spec("Megatron-22B"), Layout(tp=8)
    params = model.params_on_device(layout)
    reduce, adam = gradient_ops(model, layout, replicas=4)
    assert reduce.dims["bytes"] == 4 * params
    assert adam.bytes == params * (4 + 12 + 12 + 2)
    scatter, gather, share = gradient_ops(model, layout, replicas=4, sharded=True)
    assert (scatter.kind, gather.kind) == ("reduce_scatter", "all_gather")
    assert share.bytes == adam.bytes / 4
    assert len(gradient_ops(model, layout, replicas=1)) == 1
    with pytest.raises(SpecError, match="replicas"):
        gradient_ops(model, layout, replicas=0)
    for bad in ({"sequences": 0, "length": 8}, {"sequences": 1, "length": -8}):
        with pytest.raises(SpecError, match="micro"):
            Micro(**bad)
