"""The frame of all world data: frozen structs that check every field and name what is off.

A field is checked when a struct is made, by hand or from a file, so a world that exists is a sound
one. Checking also makes values canonical (an integer given for a float becomes a float, a list
becomes a tuple), which is why equal worlds have equal hashes.
"""

from __future__ import annotations

import functools
import math
import re
import reprlib
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeVar, Union

import msgspec
import numpy as np
from msgspec import Meta

from orrery.base.errors import SpecError, WorldError, did_you_mean

Positive = Annotated[float, Meta(gt=0)]
NonNegative = Annotated[float, Meta(ge=0)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=1, le=10_000_000)]
Index = Annotated[int, Meta(ge=0, le=10_000_000)]
Bytes = Annotated[int, Meta(ge=0, le=1 << 60)]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_+\- ]{0,63}$")]
Text = Annotated[str, Meta(max_length=2000)]

S = TypeVar("S", bound="Spec")


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A frozen struct whose fields are checked whenever it is made."""

    label: ClassVar[str] = "value"
    error: ClassVar[type[SpecError]] = WorldError
    unchecked: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        self._prepare()
        for name, kind in _fields(type(self)):
            if name not in self.unchecked:
                value = getattr(self, name)
                sound = check(kind, value, f"{self.label}.{name}", self.error)
                if sound is not value:
                    msgspec.structs.force_setattr(self, name, sound)
        self._check()

    def _prepare(self) -> None:
        """Expand short forms of fields before they are checked."""

    def _check(self) -> None:
        """Check what several fields must satisfy together."""

    def _refuse(self, name: str, problem: str, fix: str) -> SpecError:
        return self.error(f"{self.label}.{name}" if name else self.label, problem, fix)

    def replace(self: S, **changes: Any) -> S:
        """A copy with some fields changed, checked like any other.

        >>> from orrery.world import Disk
        >>> Disk().replace(fsync_s=0.02).fsync_s
        0.02
        """
        known = [name for name, _ in _fields(type(self))]
        for name in changes:
            if name not in known:
                path = f"{self.label}.{name}"
                raise self.error(path, "unknown field", did_you_mean(name, known))
        return msgspec.structs.replace(self, **changes)


@functools.cache
def _fields(cls: type[Spec]) -> tuple[tuple[str, Any], ...]:
    return tuple((field.name, field.type) for field in msgspec.structs.fields(cls))


def field_names(cls: type[Spec]) -> list[str]:
    """The names of a struct's fields, in order."""
    return [name for name, _ in _fields(cls)]


def brief(value: object) -> str:
    """The value for an error message, never longer than a line."""
    try:
        shown = reprlib.repr(value)
    except ValueError:  # Python refuses to print whole numbers beyond 4,300 digits
        shown = "a number of thousands of digits"
    return shown if len(shown) <= 80 else shown[:77] + "..."


def check(kind: Any, value: Any, path: str, error: type[SpecError]) -> Any:
    """The value in canonical form, or the named error that says why it is refused."""
    value = _plain(value, path, error)
    value = _whole(kind, value)
    if typing.get_origin(kind) is dict and isinstance(value, dict):
        # Entry by entry, because msgspec does not say which key of a table is off.
        key_kind, item_kind = typing.get_args(kind)
        return {
            check(key_kind, key, f"{path}.{key}", error): check(
                item_kind, item, f"{path}.{key}", error
            )
            for key, item in value.items()
        }
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as failure:
        text, _, where = str(failure).partition(" - at `$")
        steps = re.findall(r"[^.\[\]`]+", where)
        expected = re.sub(r", got .*$", "", text).replace("`", "")
        expected = expected[:1].lower() + expected[1:]
        full = ".".join([path, *(step for step in steps if step != "...")])
        shown = brief(_at(value, steps))
        raise error(full, f"{shown} is refused", expected.replace("expected", "give")) from None


def _plain(value: Any, path: str, error: type[SpecError]) -> Any:
    """NumPy scalars become Python ones; NaN and infinities are refused wherever they hide."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        raise error(path, f"{value!r} is refused", "give a finite number (1e15 is wide enough)")
    if isinstance(value, Mapping):
        return {key: _plain(each, f"{path}.{key}", error) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(_plain(each, f"{path}.{i}", error) for i, each in enumerate(value))
    return value


def _whole(kind: Any, value: Any) -> Any:
    """A whole float such as 80e9 is a fine integer: people write bytes that way."""
    if not isinstance(value, float) or not value.is_integer():
        return value
    kinds = _alternatives(kind)
    return int(value) if int in kinds and float not in kinds else value


def _alternatives(kind: Any) -> list[Any]:
    if typing.get_origin(kind) is Annotated:
        kind = typing.get_args(kind)[0]
    if typing.get_origin(kind) in (Union, types.UnionType):
        return [each for arm in typing.get_args(kind) for each in _alternatives(arm)]
    return [kind]


def _at(value: Any, steps: list[str]) -> Any:
    for step in steps:
        if isinstance(value, (list, tuple)) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        elif isinstance(value, Mapping) and step in value:
            value = value[step]
    return value


def build(cls: type[S], data: Any, path: str) -> S:
    """A struct from the plain data of a file; an error carries the full dotted path."""
    if not isinstance(data, Mapping):
        raise cls.error(path, f"{brief(data)} is refused", "give a table of fields")
    known = dict(_fields(cls))
    for key in data:
        if key not in known:
            where = f"{path}.{key}" if path else str(key)
            raise cls.error(where, "unknown field", did_you_mean(str(key), known))
    for field in msgspec.structs.fields(cls):
        if field.required and field.name not in data:
            where = f"{path}.{field.name}" if path else field.name
            raise cls.error(where, "is missing", "give it a value")
    values = {
        key: _construct(known[key], value, f"{path}.{key}" if path else str(key))
        for key, value in data.items()
    }
    try:
        return cls(**values)
    except SpecError as failure:
        head, rest = cls.label, failure.path
        if rest == head or rest.startswith(head + "."):
            rest = rest[len(head) :].lstrip(".")
            rest = ".".join(part for part in (path, rest) if part)
        raise type(failure)(rest, failure.problem, failure.fix) from None


def _construct(kind: Any, value: Any, path: str) -> Any:
    for arm in _alternatives(kind):
        origin, args = typing.get_origin(arm), typing.get_args(arm)
        if isinstance(arm, type) and issubclass(arm, Spec) and isinstance(value, Mapping):
            return build(arm, value, path)
        if origin is tuple and isinstance(value, (list, tuple)):
            inner = [args[0]] * len(value) if args[-1] is Ellipsis else list(args)
            if len(inner) == len(value):
                return tuple(
                    _construct(each, item, f"{path}.{i}")
                    for i, (each, item) in enumerate(zip(inner, value, strict=True))
                )
        if origin is dict and isinstance(value, Mapping):
            return {key: _construct(args[1], item, f"{path}.{key}") for key, item in value.items()}
    return value


def to_data(value: Any) -> Any:
    """Plain dicts, lists and scalars; fields that are None are left out, as TOML has no null."""
    if isinstance(value, Spec):
        tag = type(value).__struct_config__.tag
        head = {"kind": tag} if tag is not None else {}
        fields = ((name, getattr(value, name)) for name in field_names(type(value)))
        return head | {name: to_data(each) for name, each in fields if each is not None}
    if isinstance(value, Mapping):
        return {key: to_data(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_data(each) for each in value]
    return value
