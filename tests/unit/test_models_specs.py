"""Model shapes: published parameter counts, KV bytes, parallel layouts, refusals."""

from __future__ import annotations

import json

import pytest

from orrery.base.errors import SpecError
from orrery.models.huggingface import from_huggingface
from orrery.models.specs import ModelSpec, published_params, spec, spec_names
from orrery.models.weights import Layout, on_device, stage_layers

ROUNDED = {
    "GPT-3-175B": 175e9,
    "OPT-66B": 66e9,
    "Megatron-22B": 22e9,
    "Megatron-175B": 175e9,
    "Megatron-530B": 530e9,
    "Megatron-1T": 1.008e12,
}


@pytest.mark.parametrize("name", spec_names())
def test_parameters_are_those_published(name: str) -> None:
    model, published = spec(name), published_params(name)
    assert model.source
    if published is not None:
        assert model.params == published
    else:
        assert model.params == pytest.approx(ROUNDED[name], rel=0.005)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Mixtral-8x7B", 12.9),
        ("Qwen3-30B-A3B", 3.3),
        ("Qwen3-235B-A22B", 22.2),
        ("DeepSeek-V2", 21.4),
        ("DeepSeek-V3", 37.6),
        ("Kimi-K2", 32.9),
    ],
)
def test_active_parameters_of_mixtures(name: str, billions: float) -> None:
    assert spec(name).active_params / 1e9 == pytest.approx(billions, abs=0.06)


@pytest.mark.parametrize(
    ("name", "per_token_B", "kind"),
    [
        ("Llama-2-7B", 2 * 32 * 4096 * 2, "MHA"),
        ("Llama-2-70B", 2 * 80 * 1024 * 2, "GQA"),
        ("Llama-3.1-8B", 131072, "GQA"),
        ("DeepSeek-V3", 61 * 576 * 2, "MLA"),
        ("Qwen3-30B-A3B", 48 * 2 * 4 * 128 * 2, "GQA"),
    ],
)
def test_kv_bytes_of_a_token(name: str, per_token_B: int, kind: str) -> None:
    assert spec(name).kv_bytes_per_token() == per_token_B
    assert spec(name).attention == kind


def test_names_are_found_as_people_write_them() -> None:
    for name in ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b", "Meta-Llama-3-8B"):
        assert spec(name).name == "Llama-3.1-8B"
    assert spec("deepseek-ai/DeepSeek-R1").name == "DeepSeek-V3"
    assert spec("Qwen/Qwen3-30B-A3B-Instruct-2507").name == "Qwen3-30B-A3B"
    with pytest.raises(SpecError, match='did you mean "Llama-3.1-8B"'):
        spec("Llama-3.1-8C")
    for bad in ("", "  ", None, 7):
        with pytest.raises(SpecError, match="model"):
            spec(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["Llama-3.1-70B", "DeepSeek-V3", "Gemma-2-9B", "gpt-oss-120b"])
def test_stages_hold_the_whole_model(name: str) -> None:
    model = spec(name)
    shared = model.vocab * model.hidden if model.tied else 0  # the last stage has its own copy
    held = sum(model.params_on_device(Layout(pp=4), stage) for stage in range(4))
    assert held == model.params + shared


def test_tensor_parallel_slices_add_up() -> None:
    model = spec("Llama-2-13B")
    whole = {weight.name: n for weight, n in on_device(model, Layout())}
    part = {weight.name: n for weight, n in on_device(model, Layout(tp=8))}
    for name, count in whole.items():
        assert part[name] == (count if "norm" in name else count / 8)
    # Eight KV heads over 16 devices: each keeps a whole one.
    big = spec("Llama-3.1-70B")
    assert big.kv_bytes_per_token(Layout(tp=16)) == big.kv_bytes_per_token(Layout(tp=8))
    assert big.kv_bytes_per_token(Layout(tp=8)) * 8 == big.kv_bytes_per_token()
    mla = spec("DeepSeek-V3")
    assert mla.kv_bytes_per_token(Layout(tp=8)) == mla.kv_bytes_per_token()


def test_expert_parallel_memory() -> None:
    model = spec("Mixtral-8x7B")
    experts = sum(w.total for w in model.weights() if w.split == "expert")
    for layout in (Layout(ep=8), Layout(tp=2, ep=8)):
        held = sum(n for w, n in on_device(model, layout) if w.split == "expert")
        assert held == experts / 8
    inside = sum(n for w, n in on_device(model, Layout(tp=8, ep=2)) if w.split == "expert")
    assert inside == experts / 8


def test_weight_bytes_follow_the_dtypes() -> None:
    assert spec("Llama-2-7B").weight_bytes() == 2 * spec("Llama-2-7B").params
    # gpt-oss-20b with mxfp4 experts fits a 16 GB device, as its publisher says.
    assert 11e9 < spec("gpt-oss-20b").weight_bytes() < 16e9
    deepseek = spec("DeepSeek-V3")
    assert deepseek.params < deepseek.weight_bytes() < 1.01 * deepseek.params


def test_kv_tokens_that_fit() -> None:
    model = spec("Llama-3.1-8B")
    fit = model.kv_tokens_that_fit(85899345920)
    assert fit == int((0.9 * 85899345920 - 2 * model.params) // 131072)
    assert model.kv_tokens_that_fit(10e9) == 0
    for share in (0, 1.5, -1):
        with pytest.raises(SpecError, match="share"):
            model.kv_tokens_that_fit(85e9, share=share)


def test_stage_layers_cover_all_once() -> None:
    for layers, pp in ((61, 8), (32, 4), (5, 5)):
        seen = [i for s in range(pp) for i in range(*stage_layers(layers, pp, s))]
        assert seen == list(range(layers))


@pytest.mark.parametrize(
    ("layout", "field"),
    [
        ({"tp": 3}, "tp"),
        ({"tp": 64}, "tp"),
        ({"pp": 33}, "pp"),
        ({"ep": 2}, "ep"),
    ],
)
def test_layouts_that_do_not_fit_are_refused(layout: dict[str, int], field: str) -> None:
    with pytest.raises(SpecError, match=f"layout.{field}"):
        spec("Llama-3.1-8B").weight_bytes(Layout(**layout))


@pytest.mark.parametrize("bad", [{"tp": 0}, {"tp": -1}, {"pp": 1.5}, {"tp": 2, "ep": 3}])
def test_bad_degrees_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(SpecError, match="layout"):
        Layout(**bad)  # type: ignore[arg-type]


SMALL = {"name": "s", "layers": 2, "hidden": 64, "heads": 4, "intermediate": 128, "vocab": 100}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"layers": 0}, "layers"),
        ({"hidden": -4}, "hidden"),
        ({"hidden": 65}, "head_dim"),
        ({"kv_heads": 3}, "kv_heads"),
        ({"dtype": "bf61"}, "dtype"),
        ({"window": 8}, "window_layers"),
        ({"experts": 4, "experts_active": 5, "expert_intermediate": 8}, "experts_active"),
        ({"experts": 4, "experts_active": 2}, "expert_intermediate"),
        ({"experts_active": 2}, "experts"),
        ({"kv_lora_rank": 8}, "qk_nope_dim"),
        ({"layers": float("nan")}, "layers"),
        ({"layers": "two"}, "layers"),
    ],
)
def test_bad_shapes_are_refused_by_name(change: dict[str, object], field: str) -> None:
    assert ModelSpec(**SMALL).params
    with pytest.raises(SpecError, match=f"model.{field}"):
        ModelSpec(**{**SMALL, **change})


def test_huggingface_configurations(tmp_path) -> None:
    llama = {
        "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
        "vocab_size": 128256, "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
    }  # fmt: skip
    assert from_huggingface(llama).params == spec("Llama-3.1-8B").params
    path = tmp_path / "config.json"
    path.write_text(json.dumps(llama))
    assert from_huggingface(path).kv_bytes_per_token() == 131072
    v3 = {
        "model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168,
        "num_attention_heads": 128, "num_key_value_heads": 128, "intermediate_size": 18432,
        "vocab_size": 129280, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256,
        "num_experts_per_tok": 8, "n_shared_experts": 1, "moe_intermediate_size": 2048,
        "first_k_dense_replace": 3, "quantization_config": {"quant_method": "fp8"},
    }  # fmt: skip
    assert from_huggingface(v3).params == spec("DeepSeek-V3").params
    assert from_huggingface(v3).weight_bytes() == spec("DeepSeek-V3").weight_bytes()
    oss = {
        "model_type": "gpt_oss", "num_hidden_layers": 24, "hidden_size": 2880,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
        "intermediate_size": 2880, "vocab_size": 201088, "num_local_experts": 32,
        "num_experts_per_tok": 4, "attention_bias": True, "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
        "max_position_embeddings": 131072, "quantization_config": {"quant_method": "mxfp4"},
    }  # fmt: skip
    assert from_huggingface(oss).params == spec("gpt-oss-20b").params
    assert from_huggingface(oss).window_layers == 12
    gpt2 = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12,
            "vocab_size": 50257, "n_positions": 1024}  # fmt: skip
    assert from_huggingface(gpt2).params == spec("GPT-2").params


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({}, "model_type"),
        ({"model_type": "lama"}, 'did you mean "llama"'),
        ({"model_type": "llama", "hidden_size": 64}, "num_hidden_layers"),
        ({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 9,
          "num_attention_heads": 4, "quantization_config": {"quant_method": "x"}}, "quant_method"),
    ],
)  # fmt: skip
def test_bad_configurations_are_refused(config: dict[str, object], match: str) -> None:
    with pytest.raises(SpecError, match=match):
        from_huggingface(config)


def test_files_that_are_no_configuration(tmp_path) -> None:
    with pytest.raises(SpecError, match="cannot be read"):
        from_huggingface(tmp_path / "none.json")
    for text in ("{", "[1]", ""):
        path = tmp_path / "config.json"
        path.write_text(text)
        with pytest.raises(SpecError, match="config.json"):
            from_huggingface(path)
