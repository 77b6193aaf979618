"""Arrays that are received into memory which the receiver has already; the same in every engine."""

from __future__ import annotations

from typing import Any

import numpy as np

from orrery.base.errors import PartError


def check_memory(into: Any) -> None:
    """Refuse what cannot be filled as one run of bytes."""
    if into is None:
        return
    if not isinstance(into, np.ndarray) or into.dtype.hasobject:
        raise PartError(f"receive(into={type(into).__name__}): give a NumPy array of numbers")
    if not into.flags.writeable or not into.flags.c_contiguous:
        raise PartError("receive(into=…): the memory must be writeable and contiguous")


def poured(array: Any, into: Any) -> Any:
    """The array itself, or its copy in the memory that is given for it."""
    if into is None:
        return array
    if array.shape != into.shape or array.dtype != into.dtype:
        raise PartError(
            f"receive(into=…): {array.dtype} of shape {array.shape} came for memory of {into.dtype}"
            f" and shape {into.shape}; give memory that fits, or none"
        )
    np.copyto(into, array)
    return into


__all__ = ["check_memory", "poured"]
