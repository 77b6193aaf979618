"""The wire format: MessagePack with a schema at each end, and arrays as raw buffers.

Values are encoded with sorted sets and dictionaries, so equal values give equal bytes in every
process. Decoding is typed: bytes that do not fit the declared type are refused by name and never
half-applied. Nothing on a wire is ever unpickled.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import struct
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from orrery.base.errors import CodecError

ARRAY_EXT = 1
MAX_FRAME_B = 64 << 20
MAX_DIMS = 32

# What one field costs on the wire when a message is sized without being encoded.
_FIXED = {type(None): 1, bool: 1, int: 8, float: 8}


def _encode_other(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise CodecError(f"dtype {value.dtype} holds Python objects; use a number type")
        dtype = value.dtype.str.encode()
        head = struct.pack(f"<BB{value.ndim}Q", len(dtype), value.ndim, *value.shape)
        data = head[:1] + dtype + head[1:] + np.ascontiguousarray(value).tobytes()
        return msgspec.msgpack.Ext(ARRAY_EXT, data)
    if isinstance(value, np.generic):
        return value.item()
    raise CodecError(
        f"cannot put a {type(value).__name__} on the wire; use numbers, text, bytes, containers, "
        "dataclasses, msgspec structs, enums or NumPy arrays"
    )


def _decode_ext(code: int, data: memoryview) -> Any:
    if code != ARRAY_EXT:
        raise CodecError(f"unknown extension {code} on the wire; both ends must run one version")
    try:
        dtype_len = data[0]
        dtype = np.dtype(bytes(data[1 : 1 + dtype_len]).decode())
        ndim = data[1 + dtype_len]
        at = 2 + dtype_len
        shape = struct.unpack_from(f"<{ndim}Q", data, at)
        at += 8 * ndim
        if ndim > MAX_DIMS or dtype.hasobject:
            raise CodecError("an array on the wire has an unusable dtype or shape")
        # Python integers cannot overflow, so a hostile shape is caught here.
        if functools.reduce(lambda a, b: a * b, shape, 1) * dtype.itemsize != len(data) - at:
            raise CodecError("an array on the wire is shorter or longer than its shape says")
        return np.frombuffer(data[at:], dtype=dtype).reshape(shape).copy()
    except CodecError:
        raise
    except (ValueError, TypeError, struct.error, UnicodeDecodeError, IndexError, SyntaxError) as e:
        raise CodecError(f"an array on the wire is malformed: {e}") from None


def _decode_other(kind: type, value: Any) -> Any:
    origin = getattr(kind, "__origin__", kind)
    if isinstance(origin, type) and isinstance(value, origin):
        return value
    raise CodecError(f"expected {kind}, got {type(value).__name__} on the wire")


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_other, order="deterministic")
_in_given_order = msgspec.msgpack.Encoder(enc_hook=_encode_other)


def _ordered(value: Any, depth: int = 0) -> Any:
    """The same value with every dictionary and set in the order of their encoded keys.

    The codec sorts by itself, but only dictionaries with text keys; this is for all others.
    """
    if depth > 64:
        raise CodecError("a message is nested more than 64 deep; flatten it")
    if isinstance(value, dict):
        items = [(_ordered(k, depth + 1), _ordered(v, depth + 1)) for k, v in value.items()]
        return dict(sorted(items, key=lambda item: _in_given_order.encode(item[0])))
    if isinstance(value, set | frozenset):
        return sorted((_ordered(item, depth + 1) for item in value), key=_in_given_order.encode)
    if isinstance(value, tuple):
        return tuple(_ordered(item, depth + 1) for item in value)
    if isinstance(value, list):
        return [_ordered(item, depth + 1) for item in value]
    if isinstance(value, msgspec.Struct):
        fields = [_ordered(getattr(value, name), depth + 1) for name in value.__struct_fields__]
        if value.__struct_config__.array_like:
            return fields
        return dict(zip(value.__struct_encode_fields__, fields, strict=True))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            f.name: _ordered(getattr(value, f.name), depth + 1) for f in dataclasses.fields(value)
        }
    return value


def encode(value: Any) -> bytes:
    """The bytes of a value.

    >>> encode(frozenset({3, 1, 2})) == encode(frozenset({1, 2, 3}))
    True
    """
    try:
        try:
            return _encoder.encode(value)
        except TypeError:
            return _in_given_order.encode(_ordered(value))
    except CodecError:
        raise
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as e:
        raise CodecError(f"cannot put {type(value).__name__} on the wire: {e}") from None


@functools.lru_cache(maxsize=4096)
def _typed(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind, ext_hook=_decode_ext, dec_hook=_decode_other)


def decoder(kind: Any) -> Callable[[bytes], Any]:
    """A function that turns bytes into a value of `kind`, or raises `CodecError`."""
    try:
        typed = _typed(kind)
    except TypeError as e:
        raise CodecError(f"{kind} cannot travel: {e}") from None

    def decode_typed(data: bytes) -> Any:
        try:
            return typed.decode(data)
        except CodecError:
            raise
        except (msgspec.MsgspecError, RecursionError, ValueError, TypeError, OverflowError) as e:
            raise CodecError(f"bytes do not fit {kind}: {e}") from None

    return decode_typed


def decode(data: bytes, kind: Any = Any) -> Any:
    """The value of some bytes, as `kind`.

    >>> decode(encode((1, "a")), tuple[int, str])
    (1, 'a')
    """
    return decoder(kind)(data)


def size_of(value: Any, depth: int = 0) -> int:
    """About how many bytes a value takes on the wire, without encoding it.

    The same rule stands in the C kernel, so both kernels see the same sizes: one byte for None and
    bool, eight for a number, four plus the content for text, bytes and containers, sixteen plus
    the buffer for an array; other objects are the sum of their fields.
    """
    fixed = _FIXED.get(type(value))
    if fixed is not None:
        return fixed
    if depth > 32:
        raise CodecError("a message is nested more than 32 deep; flatten it")
    kind = type(value)
    if kind is str or kind is bytes or kind is bytearray:
        return 4 + len(value)
    if kind is tuple or kind is list or kind is frozenset or kind is set:
        total = 4
        for item in value:
            total += size_of(item, depth + 1)
        return total
    if kind is dict:
        total = 4
        for key, item in value.items():
            total += size_of(key, depth + 1) + size_of(item, depth + 1)
        return total
    return _size_of_object(value, depth)


# The fields of the structs met so far; messages are mostly these.
_fields: dict[type, tuple[str, ...]] = {}


def _size_of_object(value: Any, depth: int) -> int:
    known = _fields.get(type(value))
    if known is not None:
        total = 4
        for name in known:
            total += size_of(getattr(value, name), depth + 1)
        return total
    if isinstance(value, np.ndarray):
        return 16 + int(value.nbytes)
    if isinstance(value, enum.Enum):
        return size_of(value.value, depth + 1)
    if isinstance(value, tuple | list | frozenset | set):
        return 4 + sum(size_of(item, depth + 1) for item in value)
    if isinstance(value, dict):
        return 4 + sum(size_of(k, depth + 1) + size_of(v, depth + 1) for k, v in value.items())
    if isinstance(value, msgspec.Struct):
        names: Any = value.__struct_fields__
        _fields[type(value)] = names
    elif dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
    elif isinstance(value, int | float | np.generic):
        return 8
    elif isinstance(value, str | bytes | bytearray | memoryview):
        return 4 + len(value)
    else:
        raise CodecError(
            f"a message holds a {type(value).__name__}, which cannot travel; use numbers, text, "
            "bytes, containers, dataclasses, msgspec structs, enums or NumPy arrays"
        )
    return 4 + sum(size_of(getattr(value, name), depth + 1) for name in names)
