"""Values between a run's own processes with their Python types kept: tuples stay tuples.

What nodes emit is checked and measured by the problem, which must see the same values as in virtual
time; the wire codec alone would turn tuples and sets into lists. The form is still plain data: no
code travels, and a class is only ever looked up by name among the modules that are loaded already.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import sys
from typing import Any

import msgspec
import numpy as np

from orrery.base import codec
from orrery.base.errors import CodecError
from orrery.parts.knobs import Part

_LIST, _TUPLE, _SET, _FROZENSET, _DICT, _ENUM, _FIELDS, _BIG, _PART, _RANGE, _NAMED = range(11)
_KINDS: dict[int, Any] = {_LIST: list, _TUPLE: tuple, _SET: set, _FROZENSET: frozenset}
_TAGS: dict[Any, int] = {list: _LIST, tuple: _TUPLE, set: _SET, frozenset: _FROZENSET}
_PLAIN = (type(None), bool, float, str, bytes)
MOST_DEPTH = 200


def pack(value: Any) -> bytes:
    """The bytes of a value; a value that cannot travel is refused by name."""
    return codec.encode(_lower(value, 0))


def unpack(data: bytes, *, trusted: bool = False) -> Any:
    """The value of some bytes; `trusted` also imports the parts and functions that are named."""
    try:
        return _raise(codec.decode(data), trusted)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, RecursionError) as e:
        raise CodecError(f"a value between processes is malformed: {e}") from None


def name_of(thing: Any) -> str:
    """`module:qualname` of a class or function, or an error when a child could not import it."""
    module = getattr(thing, "__module__", None)
    qualname = getattr(thing, "__qualname__", None)
    if not module or not qualname:
        raise CodecError(f"{thing!r} has no name by which another process could find it")
    name = f"{module}:{qualname}"
    try:
        found = _find(name, trusted=False)
    except CodecError:
        found = None
    if found is not thing:
        raise CodecError(
            f"{name} cannot be found by another process; define it at the top level of a module"
        )
    return name


def _find(name: str, trusted: bool) -> Any:
    module, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module)
    if found is None and trusted:
        try:
            found = importlib.import_module(module)
        except ImportError as e:
            raise CodecError(f"{name} cannot be imported in another process: {e}") from None
    for step in qualname.split("."):
        found = getattr(found, step, None)
    if found is None:
        raise CodecError(f"there is no {name} here")
    return found


def _lower(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind in _PLAIN or kind is np.ndarray:
        return value
    if kind is int:
        return value if -(1 << 63) <= value < 1 << 63 else [_BIG, str(value)]
    if depth > MOST_DEPTH:
        raise CodecError(f"a value is nested deeper than {MOST_DEPTH}; flatten it")
    deeper = depth + 1
    tag = _TAGS.get(kind)
    if tag is not None:
        return [tag, *(_lower(item, deeper) for item in value)]
    if isinstance(value, dict):
        return [_DICT, *(_lower(x, deeper) for pair in value.items() for x in pair)]
    if isinstance(value, np.generic):
        return _lower(value.item(), deeper)
    if isinstance(value, enum.Enum):
        return [_ENUM, name_of(kind), value.name]
    if isinstance(value, range):
        return [_RANGE, value.start, value.stop, value.step]
    if isinstance(value, Part):
        knobs = value.changed_knobs().items()
        return [_PART, name_of(kind), *(_lower(x, deeper) for pair in knobs for x in pair)]
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    fields = _fields(value)
    if fields is not None:
        return [_FIELDS, name_of(kind), *(_lower(x, deeper) for x in fields)]
    if isinstance(value, (set, frozenset, list, tuple, str, float, int)):
        bases: tuple[Any, ...] = (frozenset, set, list, tuple, str, float, int)
        base = next(b for b in bases if isinstance(value, b))
        return _lower(base(value), deeper)
    if callable(value):
        return [_NAMED, name_of(value)]
    raise CodecError(
        f"cannot hand a {kind.__name__} to another process; use numbers, text, bytes, containers, "
        "dataclasses, msgspec structs, enums or NumPy arrays"
    )


def _fields(value: Any) -> list[Any] | None:
    """The field values of a record, in order: a struct, a dataclass or a named tuple."""
    if isinstance(value, msgspec.Struct):
        return [getattr(value, name) for name in value.__struct_fields__]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(value)
    return None


def _raise(value: Any, trusted: bool) -> Any:
    if type(value) is not list:
        return value
    tag, rest = value[0], value[1:]
    if tag in _KINDS:
        return _KINDS[tag](_raise(item, trusted) for item in rest)
    if tag == _DICT:
        items = [_raise(item, trusted) for item in rest]
        return dict(zip(items[::2], items[1::2], strict=True))
    if tag == _BIG:
        return int(rest[0])
    if tag == _RANGE:
        return range(*rest)
    found = _find(rest[0], trusted)
    if tag == _ENUM and issubclass(found, enum.Enum):
        return found[rest[1]]
    if tag == _FIELDS:
        return _record(found, [_raise(item, trusted) for item in rest[1:]])
    if tag == _PART and issubclass(found, Part):
        items = [_raise(item, trusted) for item in rest[1:]]
        return found(**dict(zip(items[::2], items[1::2], strict=True)))
    if tag == _NAMED and trusted:
        return found
    raise CodecError(f"a value between processes has the unknown tag {tag!r}")


def _record(kind: Any, values: list[Any]) -> Any:
    make: Any = kind.__new__
    if issubclass(kind, msgspec.Struct):
        return kind(**dict(zip(kind.__struct_fields__, values, strict=True)))
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
        made = make(kind)
        for name, value in zip(names, values, strict=True):
            object.__setattr__(made, name, value)
        return made
    if issubclass(kind, tuple) and hasattr(kind, "_make"):
        return kind._make(values)
    raise CodecError(f"{kind!r} is not a record")
