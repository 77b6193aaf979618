"""Models by name: SmolLM2 from its package, a GGUF file, or a shape of the catalogue at random."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orrery.base.errors import UsageError
from orrery.models.real.backend import need_torch, pick_device
from orrery.models.specs import spec

SMOLLM = "smollm2"
# The names under which the weights of the package are known.
SMOLLM_NAMES = (SMOLLM, "smollm2-135m", "smollm2-135m-instruct")


def load_model(
    name: str = SMOLLM, *, device: str = "auto", dtype: str = "", seed: int = 0, threads: int = 0,
    max_context: int | None = None,
) -> tuple[Any, Any, str]:  # fmt: skip
    """(model, tokenizer or None, the name to call it by).

    An empty dtype means fp32 on a CPU and bf16 on CUDA. `threads` sets torch's threads; 0 leaves
    them as they are.
    """
    torch = need_torch()
    if threads < 0:
        raise UsageError(f"threads={threads}; give 0 (as it is) or more")
    if threads:
        torch.set_num_threads(threads)
    device = pick_device(device)
    dtype = dtype or ("bf16" if device.startswith("cuda") else "fp32")
    options: dict[str, Any] = {"device": device, "dtype": dtype, "max_context": max_context}
    if name.lower() in SMOLLM_NAMES:
        return _from_file(None, options)
    if name.endswith(".gguf"):
        return _from_file(Path(name), options)
    from orrery.models.real.transformer import Transformer

    shape = spec(name)
    return Transformer.random(shape, seed=seed, **options), None, shape.name


def _from_file(path: Path | None, options: dict[str, Any]) -> tuple[Any, Any, str]:
    from orrery.models.real.smollm import load_smollm

    model, tokenizer = load_smollm(path, **options)
    return model, tokenizer, "smollm2-135m-instruct" if path is None else path.stem
