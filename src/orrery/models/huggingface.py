"""A ModelSpec from the `config.json` that comes with a model on Hugging Face.

Families whose layers this library can describe are known by `model_type`; any other one is refused
by name, because a guessed shape would give wrong times silently.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orrery.base.errors import SpecError, did_you_mean
from orrery.models.specs import ModelSpec
from orrery.world.spec import brief

# What a family has beyond the plain llama layer.
_FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {}, "mistral": {}, "mixtral": {}, "phi3": {}, "yi": {},
    "qwen2": {"qkv_bias": True}, "qwen3": {"qk_norm": True}, "qwen3_moe": {"qk_norm": True},
    "gemma2": {"norms": 4, "tied": True},
    "gpt_oss": {"sinks": True, "expert_bias": True, "router_bias": True, "out_bias": True},
    "deepseek_v2": {}, "deepseek_v3": {"router_bias": True}, "kimi_k2": {"router_bias": True},
    "gpt2": {"gated": False, "norm": "layer", "qkv_bias": True, "out_bias": True,
             "mlp_bias": True, "tied": True, "rope": False},
    "opt": {"gated": False, "norm": "layer", "qkv_bias": True, "out_bias": True,
            "mlp_bias": True, "tied": True, "rope": False},
    "bloom": {"gated": False, "norm": "layer", "qkv_bias": True, "out_bias": True,
              "mlp_bias": True, "tied": True, "rope": False, "embedding_norm": True},
}  # fmt: skip
# Our field, and the names that configurations have for it, the first that is there wins.
_FIELDS: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer"),
    "hidden": ("hidden_size", "n_embd"),
    "heads": ("num_attention_heads", "n_head"),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "intermediate": ("intermediate_size", "ffn_dim", "n_inner"),
    "vocab": ("vocab_size",),
    "max_context": ("max_position_embeddings", "n_positions", "seq_length"),
    "tied": ("tie_word_embeddings",),
    "q_lora_rank": ("q_lora_rank",),
    "kv_lora_rank": ("kv_lora_rank",),
    "qk_nope_dim": ("qk_nope_head_dim",),
    "qk_rope_dim": ("qk_rope_head_dim",),
    "v_head_dim": ("v_head_dim",),
    "experts": ("n_routed_experts", "num_local_experts", "num_experts"),
    "experts_active": ("num_experts_per_tok", "experts_per_token"),
    "shared_experts": ("n_shared_experts",),
    "expert_intermediate": ("moe_intermediate_size",),
    "first_dense": ("first_k_dense_replace",),
    "mlp_bias": ("mlp_bias",),
}
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def from_huggingface(
    config: Mapping[str, Any] | str | os.PathLike[str], name: str = ""
) -> ModelSpec:
    """The shape in a `config.json`, given as a dict or as its path.

    >>> from_huggingface({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64,
    ...     "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 100}).params
    95040
    """
    if not isinstance(config, Mapping):
        config, name = _read(Path(config)), name or Path(config).parent.name
    family = config.get("model_type")
    if family not in _FAMILIES:
        fix = did_you_mean(str(family), _FAMILIES)
        raise SpecError("config.model_type", f"{brief(family)} is not known", fix)
    data: dict[str, Any] = dict(_FAMILIES[family])
    for field, names in _FIELDS.items():
        value = next((config[each] for each in names if config.get(each) is not None), None)
        if value is not None:
            data[field] = value
    for field in ("layers", "hidden", "heads", "vocab"):
        if field not in data:
            raise SpecError(f"config.{_FIELDS[field][0]}", "is missing", "give the whole file")
    _sizes(data, config, str(family))
    if not isinstance(data.get("head_dim", 0), int) or data.get("kv_lora_rank"):
        data.pop("head_dim", None)
    data["dtype"] = _DTYPES.get(str(config.get("torch_dtype", config.get("dtype"))), "bf16")
    _quantised(data, config)
    label = name or str(config.get("_name_or_path") or family)
    return ModelSpec(name=label, source="config.json", **data)


def _sizes(data: dict[str, Any], config: Mapping[str, Any], family: str) -> None:
    """What configurations leave to the family: widths, positions, biases, windows, experts."""
    data.setdefault("intermediate", 4 * data["hidden"])
    if family in ("gpt2", "opt"):
        data["positions"] = data.get("max_context", 1024) + (2 if family == "opt" else 0)
    if family in ("llama", "qwen3", "qwen3_moe", "gpt_oss") and config.get("attention_bias"):
        data["qkv_bias"] = True
        data["out_bias"] = family in ("llama", "gpt_oss", "qwen3", "qwen3_moe")
    if data.get("experts"):
        data.setdefault("expert_intermediate", data["intermediate"])
    else:
        for field in ("experts", "experts_active", "shared_experts", "expert_intermediate",
                      "first_dense"):  # fmt: skip
            data.pop(field, None)
    window = config.get("sliding_window")
    if window and config.get("use_sliding_window", True):
        kinds = config.get("layer_types")
        if kinds:
            count = sum(kind == "sliding_attention" for kind in kinds)
        else:
            count = data["layers"] // 2 if family == "gemma2" else data["layers"]
        if count and window < data.get("max_context", window + 1):
            data["window"], data["window_layers"] = window, count


def _quantised(data: dict[str, Any], config: Mapping[str, Any]) -> None:
    method = (config.get("quantization_config") or {}).get("quant_method")
    if method == "fp8":
        data["linear_dtype"] = "fp8"
    elif method == "mxfp4":
        data["expert_dtype"] = "mxfp4"
    elif method in ("awq", "gptq"):
        data["linear_dtype"] = "int4"
    elif method is not None:
        known = ("fp8", "mxfp4", "awq", "gptq")
        fix = did_you_mean(str(method), known)
        raise SpecError("config.quantization_config.quant_method", f"{brief(method)}", fix)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as failure:
        raise SpecError(str(path), f"cannot be read: {failure.strerror}", "check it") from None
    except (ValueError, UnicodeDecodeError) as failure:
        raise SpecError(str(path), f"is not JSON: {failure}", "give a config.json") from None
    if not isinstance(config, dict):
        raise SpecError(str(path), "is not a table of fields", "give a config.json")
    return config


__all__ = ["from_huggingface"]
