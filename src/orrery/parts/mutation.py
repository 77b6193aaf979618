"""Changing values without changing their types: lies of Byzantine nodes, and flipped bits.

`changed` gives another value of the same type, as a liar would; `flipped` flips one bit, as a
broken memory would. Neither touches the value it is given, and both draw only from the stream. A
value in which nothing can change comes back as it is.
"""

from __future__ import annotations

import dataclasses
import enum
import struct
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from orrery.base.codec import encode
from orrery.base.errors import CodecError
from orrery.base.rand import Stream

Leaf = Callable[[Any, Stream], Any]
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def changed(value: Any, rng: Stream) -> Any:
    """Another value of the same type: one leaf of it, picked by the stream, is different."""
    return _at_a_leaf(value, rng, _other)


def flipped(value: Any, rng: Stream) -> Any:
    """The value with one bit flipped, in a leaf that the stream picks."""
    return _at_a_leaf(value, rng, _flip)


# -- finding a leaf


def _at_a_leaf(value: Any, rng: Stream, act: Leaf) -> Any:
    """Rebuild the value with `act` done to one leaf that can change."""
    if not can_change(value):
        return value
    children = _children(value)
    if children is None:
        return act(value, rng)
    able = [key for key, child in children if can_change(child)]
    key = rng.choice(able)
    child = dict(children)[key]
    return _rebuilt(value, key, _at_a_leaf(child, rng, act))


def can_change(value: Any) -> bool:
    """Whether there is another value of the same type."""
    if isinstance(value, enum.Enum):
        return len(type(value)) > 1
    if isinstance(value, bool | int | float | np.number | np.bool_):
        return True
    if isinstance(value, str | bytes | bytearray):
        return len(value) > 0
    if isinstance(value, np.ndarray):
        return value.size > 0 and value.dtype.kind in "biufc"
    children = _children(value)
    return children is not None and any(can_change(child) for _, child in children)


def _children(value: Any) -> list[tuple[Any, Any]] | None:
    """The (key, child) pairs of a container, in an order that is the same in every process."""
    if isinstance(value, enum.Enum | str | bytes | bytearray | np.ndarray):
        return None
    if isinstance(value, tuple | list):
        return list(enumerate(value))
    if isinstance(value, set | frozenset):
        return list(enumerate(_sorted(value)))
    if isinstance(value, Mapping):
        # A key is a name; a lie is in what stands under it.
        return [(key, value[key]) for key in _sorted(value)]
    if isinstance(value, msgspec.Struct):
        return [(name, getattr(value, name)) for name in value.__struct_fields__]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value) if f.init]
    return None


def _sorted(items: Any) -> list[Any]:
    try:
        return sorted(items)
    except TypeError:
        pass
    try:
        return sorted(items, key=encode)
    except CodecError:
        return sorted(items, key=repr)


def _rebuilt(value: Any, key: Any, child: Any) -> Any:
    if isinstance(value, tuple | list):
        items = list(value)
        items[key] = child
        if hasattr(value, "_make"):
            return value._make(items)
        return type(value)(items)
    if isinstance(value, set | frozenset):
        old = _sorted(value)[key]
        return type(value)([item for item in value if item != old] + [child])
    if isinstance(value, Mapping):
        return {**value, key: child}
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.replace(value, **{key: child})
    return dataclasses.replace(value, **{key: child})


# -- the leaves


def _other(value: Any, rng: Stream) -> Any:
    """A different value that an honest reader could believe: small numbers stay small."""
    if isinstance(value, enum.Enum):
        return rng.choice([member for member in type(value) if member is not value])
    if isinstance(value, bool | np.bool_):
        return type(value)(not value)
    if isinstance(value, np.ndarray):
        return _in_array(value, rng, _other)
    if isinstance(value, int | np.integer):
        near = int(value)
        other = near + 1 + rng.below(max(abs(near), 1))
        if near > 0 and rng.below(2):
            other = rng.below(near)
        return _fit(type(value), other, near)
    if isinstance(value, float | np.floating):
        sign = -1.0 if rng.below(2) else 1.0
        moved = float(value) * sign * (1.5 + rng.random())
        return type(value)(moved if moved not in (float(value), 0.0) else 1.0 + rng.random())
    if isinstance(value, complex | np.complexfloating):
        return type(value)(value + 1.0 + rng.random())
    if isinstance(value, str):
        at = rng.below(len(value))
        letters = _LETTERS.replace(value[at], "")
        return value[:at] + rng.choice(letters) + value[at + 1 :]
    return _flip(value, rng)


def _fit(kind: Any, other: int, near: int) -> Any:
    """NumPy integers have bounds; beyond them the neighbour below serves."""
    if issubclass(kind, np.integer):
        return kind(other if other <= np.iinfo(kind).max else near - 1)
    return kind(other)


def _flip(value: Any, rng: Stream) -> Any:
    if isinstance(value, enum.Enum):
        return _other(value, rng)
    if isinstance(value, bool | np.bool_):
        return type(value)(not value)
    if isinstance(value, np.ndarray):
        return _in_array(value, rng, _flip)
    if isinstance(value, np.generic):
        return _flip(np.array([value]), rng)[0]
    if isinstance(value, int):
        return type(value)(value ^ (1 << rng.below(max(value.bit_length(), 8))))
    if isinstance(value, float):
        (word,) = struct.unpack("<Q", struct.pack("<d", value))
        (other,) = struct.unpack("<d", struct.pack("<Q", word ^ (1 << rng.below(64))))
        return type(value)(other)
    if isinstance(value, str):
        return _other(value, rng)
    data = bytearray(value)
    data[rng.below(len(data))] ^= 1 << rng.below(8)
    return type(value)(data)


def _in_array(value: np.ndarray[Any, Any], rng: Stream, act: Leaf) -> np.ndarray[Any, Any]:
    copy = np.array(value, copy=True, order="C")
    flat = copy.reshape(-1)
    at = rng.below(flat.size)
    if act is _flip:
        raw = flat.view(np.uint8)
        size = flat.dtype.itemsize
        if flat.dtype.kind == "b":
            flat[at] = not flat[at]
        else:
            raw[at * size + rng.below(size)] ^= np.uint8(1 << rng.below(8))
    else:
        flat[at] = act(flat[at], rng)
    return copy
