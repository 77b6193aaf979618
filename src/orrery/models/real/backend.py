"""PyTorch when it is there, and a named error when it is not."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from orrery.base.errors import PlatformLacks, UsageError, did_you_mean

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}


class _Torch:
    """Stands for the module until the first use, so that importing our files needs no torch."""

    def __getattr__(self, name: str) -> Any:
        return getattr(need_torch(), name)


torch: Any = _Torch()


def need_torch() -> Any:
    """The module, or `PlatformLacks` with the extra that brings it."""
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise PlatformLacks(
            "the real replica needs PyTorch, which is not installed; pip install 'orrery[torch]' "
            "(on a machine without a GPU: with --index-url https://download.pytorch.org/whl/cpu)"
        ) from error


def has_torch() -> bool:
    """Whether PyTorch can be imported."""
    return importlib.util.find_spec("torch") is not None


def pick_device(name: str = "auto") -> str:
    """The device to compute on: "auto" takes CUDA when it is there."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.split(":")[0] not in ("cpu", "cuda"):
        raise UsageError(f"device {name!r} is unknown; give cpu, cuda, cuda:N or auto")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise PlatformLacks(f"device {name!r}: PyTorch sees no CUDA device here; use cpu")
    return name


def pick_dtype(name: str) -> Any:
    """The torch number type of one of our names: fp32, bf16, fp16, fp64."""
    if name not in DTYPES:
        raise UsageError(f"dtype {name!r} is unknown; {did_you_mean(name, DTYPES)}")
    return getattr(torch, DTYPES[name])
