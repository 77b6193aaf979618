"""`Part`: anything whose constructor holds knobs only.

A knob is a class attribute with an annotation and a default. `Part` turns the knobs into a
keyword-only constructor that checks names, types and bounds, so that `MyPart()` always works, a
wrong knob is named with its fix, and a part can be written to and read from a file.
"""

from __future__ import annotations

import math
import typing
from typing import Annotated, Any, ClassVar, Self, dataclass_transform

import msgspec

from orrery.base.errors import KnobError, did_you_mean

Count = Annotated[int, msgspec.Meta(ge=1)]
Whole = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
NonNegative = Annotated[float, msgspec.Meta(ge=0)]
Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]


@dataclass_transform(kw_only_default=True)
class Part:
    """The base of parts and problems: knobs in, nothing else.

    >>> class Pinger(Part):
    ...     period_s: Positive = 0.5
    >>> Pinger(period_s=2)
    Pinger(period_s=2.0)
    """

    _knob_defaults: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        defaults: dict[str, Any] = {}
        for base in reversed(cls.__mro__):
            for name, kind in getattr(base, "__annotations__", {}).items():
                if _is_knob(name, kind) and name in vars(base):
                    defaults[name] = vars(base)[name]
        # A subclass may restate a default without an annotation.
        for name in defaults:
            defaults[name] = getattr(cls, name)
        cls._knob_defaults = defaults

    def __init__(self, **knobs: Any) -> None:
        if not knobs:
            return
        types = knob_types(type(self))
        for name, value in knobs.items():
            if name not in self._knob_defaults:
                fix = did_you_mean(name, self._knob_defaults)
                raise KnobError(f"{type(self).__name__}.{name}", "no such knob", fix)
            path = f"{type(self).__name__}.{name}"
            self.__dict__[name] = check_knob(path, value, types.get(name, Any))

    def knobs(self) -> dict[str, Any]:
        """Every knob with its value, in order of definition."""
        return {name: getattr(self, name) for name in self._knob_defaults}

    def changed_knobs(self) -> dict[str, Any]:
        """The knobs that differ from their defaults."""
        default = self._knob_defaults
        return {k: v for k, v in self.knobs().items() if not _same(v, default[k])}

    def with_knobs(self, **knobs: Any) -> Self:
        """The same part with some knobs set otherwise."""
        return type(self)(**{**self.changed_knobs(), **knobs})

    def __repr__(self) -> str:
        inside = ", ".join(f"{k}={v!r}" for k, v in self.changed_knobs().items())
        return f"{type(self).__name__}({inside})"

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        assert isinstance(other, Part)
        return self.knobs() == other.knobs()

    def __hash__(self) -> int:
        return hash((type(self).__qualname__, repr(self)))


def _is_knob(name: str, kind: Any) -> bool:
    if name.startswith("_"):
        return False
    if isinstance(kind, str):
        return not kind.replace("typing.", "").startswith("ClassVar")
    return typing.get_origin(kind) is not ClassVar and kind is not ClassVar


def _same(a: Any, b: Any) -> bool:
    try:
        return bool(a is b or a == b)
    except ValueError:  # arrays
        return False


_types_of: dict[type, dict[str, Any]] = {}


def knob_types(cls: type) -> dict[str, Any]:
    """The resolved annotation of each knob (cached; annotations may be text)."""
    types = _types_of.get(cls)
    if types is None:
        types = {}
        for base in reversed(cls.__mro__):
            if "__annotations__" not in vars(base):
                continue
            try:
                hints = typing.get_type_hints(base, include_extras=True)
            except (NameError, TypeError):
                # A name known only to a type checker: that class's knobs go unchecked.
                hints = {}
            types.update({k: v for k, v in hints.items() if k in vars(base)["__annotations__"]})
        _types_of[cls] = types
    return types


def check_knob(path: str, value: Any, kind: Any, *, text: bool = False) -> Any:
    """`value` as `kind`, or a `KnobError`; with `text`, "3" may become 3 (the command line)."""
    if isinstance(value, float) and math.isnan(value):
        raise KnobError(path, "nan is not a value", "give a number")
    if isinstance(value, Part) or _holds_parts(kind):
        plain = typing.get_origin(kind) or kind
        if isinstance(plain, type) and issubclass(plain, Part) and not isinstance(value, plain):
            raise KnobError(
                path, f"{value!r} is not a {plain.__name__}", f"give a {plain.__name__}"
            )
        return value
    try:
        return msgspec.convert(value, kind, strict=not text)
    except msgspec.ValidationError as e:
        if text and isinstance(value, str):
            # The command line may carry JSON for lists and tables.
            try:
                return msgspec.json.decode(value.encode(), type=kind)
            except msgspec.MsgspecError:
                pass
        raise KnobError(path, f"{value!r} does not fit: {e}", f"give {say_type(kind)}") from None
    except TypeError:
        return value  # a type outside the codec's world (a callable, a protocol): taken as it is


def _holds_parts(kind: Any) -> bool:
    plain = typing.get_origin(kind) or kind
    return isinstance(plain, type) and issubclass(plain, Part)


_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def say_type(kind: Any) -> str:
    """A type as a person would name it, with its bounds."""
    if typing.get_origin(kind) is Annotated:
        base, *metas = typing.get_args(kind)
        bounds = [
            f"{sign} {getattr(meta, field)}"
            for meta in metas
            if isinstance(meta, msgspec.Meta)
            for field, sign in (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<="))
            if getattr(meta, field) is not None
        ]
        return " ".join([say_type(base), " and ".join(bounds)]).rstrip()
    return _WORDS.get(kind) or f"a {getattr(kind, '__name__', str(kind))}"
