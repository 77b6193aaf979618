"""Arrays that are received into memory which the receiver has already; the same in every engine.

A fold is a pair (combine, own): what lands in the memory is `combine(coming, own)`, item by item.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from orrery.base.errors import PartError


def check_memory(into: Any, fold: Any = None) -> None:
    """Refuse what cannot be filled as one run of bytes, and what cannot be folded into it."""
    if fold is not None:
        _check_fold(into, fold)
    if into is None:
        return
    if not isinstance(into, np.ndarray) or into.dtype.hasobject:
        raise PartError(f"receive(into={type(into).__name__}): give a NumPy array of numbers")
    if not into.flags.writeable or not into.flags.c_contiguous:
        raise PartError("receive(into=…): the memory must be writeable and contiguous")


def _check_fold(into: Any, fold: Any) -> None:
    if not isinstance(fold, tuple) or len(fold) != 2 or not isinstance(fold[0], np.ufunc):
        raise PartError("receive(fold=…): give (a NumPy ufunc of two arrays, the own array)")
    combine, own = fold
    if combine.nin != 2 or combine.nout != 1:
        raise PartError(f"receive(fold=…): {combine.__name__} does not make one array of two")
    if not isinstance(into, np.ndarray):
        raise PartError("receive(fold=…) needs memory for the result; give into=")
    if not isinstance(own, np.ndarray) or (own.shape, own.dtype) != (into.shape, into.dtype):
        raise PartError("receive(fold=…): the own array must have the shape and type of into=")


def poured(array: Any, into: Any, fold: Any = None) -> Any:
    """The array itself, or what becomes of it in the memory that is given for it."""
    if into is None:
        return array
    if array.shape != into.shape or array.dtype != into.dtype:
        raise PartError(
            f"receive(into=…): {array.dtype} of shape {array.shape} came for memory of {into.dtype}"
            f" and shape {into.shape}; give memory that fits, or none"
        )
    if fold is None:
        np.copyto(into, array)
    else:
        combine, own = fold
        combine(array, own, out=into)
    return into


__all__ = ["check_memory", "poured"]
