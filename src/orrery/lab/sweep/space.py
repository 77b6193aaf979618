"""The space of a sweep: which parameters vary, and over which values.

A parameter is a knob of the problem or of the part, or a path into the world; `problem.`, `part.`
or `world.` before it says which. It is looked up as `orrery when` does. A parameter takes some
listed values, or a range of numbers, evenly spread over it or over its logarithm.
"""

from __future__ import annotations

import itertools
import math
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from orrery.base.errors import KnobError, UsageError
from orrery.lab.when.axes import Asked, Axis, find_parameter, make_axis, parse_axis, typed
from orrery.parts.knobs import Part, check_knob, knob_types

STEPS = 5
MOST_STEPS = 10_000
MOST_VALUES = 10_000
_SPAN = re.compile(r"^(?P<lo>[^:,\[\]{}\"]+?)\.\.(?P<hi>[^:,\[\]{}\"]+)(?P<more>(?::\w*)*)$")


class Place(NamedTuple):
    """What a parameter is looked up in: one system with its problem and world."""

    problem: Any
    ours: Any
    world: Any
    rival: Any = None
    claim: Any = None


class Written(NamedTuple):
    """Values as texts of a command line; what they mean depends on the parameter."""

    texts: tuple[str, ...]


class Span(NamedTuple):
    """A range as it is written."""

    lo: float
    hi: float
    scale: str = ""
    steps: int = STEPS


class Choice(msgspec.Struct, kw_only=True, frozen=True):
    """A parameter that takes listed values."""

    parameter: str
    values: tuple[Any, ...]

    @property
    def size(self) -> int:
        """How many values there are."""
        return len(self.values)

    def at(self, share: float) -> Any:
        """The value at a share of the list, from 0 to 1."""
        return self.values[min(int(share * len(self.values)), len(self.values) - 1)]

    def points(self) -> tuple[Any, ...]:
        """The values that a grid visits."""
        return self.values

    def to_json(self) -> dict[str, Any]:
        """The dimension as data: part of the question's hash."""
        return {"parameter": self.parameter, "values": list(self.values)}


class Range(msgspec.Struct, kw_only=True, frozen=True):
    """A parameter that takes numbers between two ends."""

    parameter: str
    axis: Axis
    steps: int = STEPS

    @property
    def size(self) -> int | None:
        """How many values there are; None for more than anyone can count."""
        return int(self.axis.hi - self.axis.lo) + 1 if self.axis.whole else None

    def at(self, share: float) -> int | float:
        """The value at a share of the range; each whole number has its part of the range."""
        axis = self.axis
        if not axis.whole:
            return typed(axis, axis.value(share))
        return typed(axis, min(max(round(self._wide().value(share)), axis.lo), axis.hi))

    def share(self, value: float) -> float:
        """Where a value lies in the range, from 0 to 1."""
        axis = self._wide() if self.axis.whole else self.axis
        return min(max(axis.share(value), 0.0), 1.0)

    def _wide(self) -> Axis:
        # Half a unit more at both ends, so that the ends are as likely as what lies between.
        axis = self.axis
        return msgspec.structs.replace(axis, lo=axis.lo - 0.5, hi=axis.hi + 0.5, whole=False)

    def points(self) -> tuple[int | float, ...]:
        """The values that a grid visits, evenly spread from end to end."""
        shares = [i / (self.steps - 1) for i in range(self.steps)]
        return tuple(dict.fromkeys(typed(self.axis, self.axis.value(s)) for s in shares))

    def to_json(self) -> dict[str, Any]:
        """The dimension as data: part of the question's hash."""
        return {**self.axis.to_json(), "parameter": self.parameter, "steps": self.steps}


Dim = Choice | Range
Point = tuple[Any, ...]


class Space:
    """All dimensions together; a point is one value of each, in their order."""

    def __init__(self, dims: Sequence[Dim]) -> None:
        self.dims = tuple(dims)

    @property
    def size(self) -> int | None:
        """How many points there are; None where a range is continuous."""
        sizes = [dim.size for dim in self.dims]
        known = [size for size in sizes if size is not None]
        return math.prod(known) if len(known) == len(sizes) else None

    @property
    def grid_size(self) -> int:
        """How many points the grid has."""
        return math.prod(len(dim.points()) for dim in self.dims)

    def grid(self) -> Iterator[Point]:
        """Every point of the grid; the last dimension turns fastest."""
        return itertools.product(*(dim.points() for dim in self.dims))

    def at(self, shares: Sequence[float]) -> Point:
        """The point at a share of each dimension."""
        return tuple(dim.at(share) for dim, share in zip(self.dims, shares, strict=True))

    def values(self, point: Point) -> dict[str, Any]:
        """A point by the names of its parameters."""
        return {dim.parameter: value for dim, value in zip(self.dims, point, strict=True)}


# -- from words


def parse_setting(word: str) -> tuple[str, Written | Span]:
    """`key=a,b,c`, `key=a..b`, `key=a..b:log` or `key=a..b:log:7` (seven steps in a grid).

    >>> parse_setting("fanout=2,4")
    ('fanout', Written(texts=('2', '4')))
    >>> parse_setting("network.latency_s=1e-4..0.1:log")
    ('network.latency_s', Span(lo=0.0001, hi=0.1, scale='log', steps=5))
    """
    name, equals, text = word.partition("=")
    name = name.strip()
    if not equals or not name:
        raise UsageError(f"{word!r}: write key=a,b,c or key=a..b[:log], for example fanout=2,4,8")
    if not text.strip():
        raise UsageError(f"{name}: it has no value; write {name}=a,b,c or {name}=a..b")
    span = parse_span(name, text)
    if span is not None:
        return name, span
    texts = tuple(each.strip() for each in _commas(text))
    if not all(texts):
        raise UsageError(f"{word!r}: a value between the commas is empty; leave the comma out")
    return name, Written(texts)


def parse_span(name: str, text: str) -> Span | None:
    """A range from its text, or None where the text is something else."""
    found = _SPAN.match(text.strip())
    if found is None:
        return None
    scale, steps = "", STEPS
    for word in found["more"].split(":")[1:]:
        if word.isascii() and word.isdigit():
            steps = int(word)
        else:
            scale = word
    # The ends and the scale are judged where `orrery when` judges them.
    ends = f"{name}={found['lo'].strip()}..{found['hi'].strip()}"
    asked = parse_axis(f"{ends}:{scale}" if found["more"] and scale else ends)
    return Span(asked.lo, asked.hi, asked.scale, steps)


def _commas(text: str) -> list[str]:
    """Split at commas outside brackets and quotes."""
    words, depth, quoted = [""], 0, False
    for letter in text:
        quoted ^= letter == '"'
        depth += 0 if quoted else (letter in "[{(") - (letter in "]})")
        if letter == "," and depth <= 0 and not quoted:
            words.append("")
        else:
            words[-1] += letter
    return words


def from_data(name: str, value: Any) -> list[tuple[str, Any]]:
    """(name, what is asked) of one entry of a file's `[over]` table.

    A list is its values; `{low, high, log, steps}` or a text "a..b" is a range; another table is a
    path (so that `network.drop = [0, 0.1]` needs no quotes); anything else is one fixed value.
    """
    if isinstance(value, Mapping):
        if not value:
            raise UsageError(f"over.{name}: the table is empty; give values")
        if {"low", "high"} & set(value):
            return [(name, _span_of(name, value))]
        inner = [from_data(f"{name}.{key}", each) for key, each in value.items()]
        return [pair for pairs in inner for pair in pairs]
    if isinstance(value, str) and (span := parse_span(name, value)) is not None:
        return [(name, span)]
    return [(name, value if isinstance(value, list) else [value])]


def _span_of(name: str, table: Mapping[str, Any]) -> Span:
    for key in table:
        if key not in ("low", "high", "log", "steps"):
            raise UsageError(f"over.{name}.{key}: no such field; a range has low, high, log, steps")
    for key in ("low", "high"):
        if key not in table or isinstance(table[key], bool | str):
            raise UsageError(f"over.{name}.{key}={table.get(key)!r}: give a number")
    log, steps = table.get("log"), table.get("steps", STEPS)
    if log is not None and not isinstance(log, bool):
        raise UsageError(f"over.{name}.log={log!r}: give true or false")
    scale = "" if log is None else ":log" if log else ":lin"
    asked = parse_axis(f"{name}={table['low']}..{table['high']}{scale}")
    return Span(asked.lo, asked.hi, asked.scale, steps)


# -- from what was asked to dimensions


def make_dim(name: str, asked: Any, places: Sequence[Place]) -> Dim:
    """One dimension; every value is tried on every system's knobs before anything runs."""
    inside = re.sub(r"^part\.", "ours.", name)
    if inside.partition(".")[0] in ("rival", "both") and "." in inside:
        raise UsageError(f"parameter {name!r}: a sweep has no rival; write part.KNOB")
    owner, knob = find_parameter(inside, places[0])  # type: ignore[arg-type]
    for place in places[1:]:
        find_parameter(f"{owner}.{knob}", place)  # type: ignore[arg-type]
    told = f"{'part' if owner == 'ours' else owner}.{knob}"
    if isinstance(asked, Span):
        if isinstance(asked.steps, bool) or not isinstance(asked.steps, int) or not (
            2 <= asked.steps <= MOST_STEPS
        ):  # fmt: skip
            fix = f"give a whole number from 2 to {MOST_STEPS}"
            raise UsageError(f"{name}: steps {asked.steps!r}: {fix}")
        plain = Asked(f"{owner}.{knob}", asked.lo, asked.hi, asked.scale)
        axis = make_axis(plain, places[0])  # type: ignore[arg-type]
        for end, place in itertools.product((axis.lo, axis.hi), places):
            _value(owner, knob, typed(axis, end), False, place)
        return Range(parameter=told, axis=axis, steps=asked.steps)
    text = isinstance(asked, Written)
    raw: Any = asked.texts if isinstance(asked, Written) else asked
    if not raw:
        raise UsageError(f"{name}: it has no value; give at least one")
    if len(raw) > MOST_VALUES:
        raise UsageError(f"{name}: {len(raw)} values are more than {MOST_VALUES}; use a range")
    found: list[Any] = []
    for each in raw:
        values = [_value(owner, knob, each, text, place) for place in places]
        if values[0] in found:
            raise UsageError(f"{name}: {each!r} comes twice; give each value once")
        found.append(values[0])
    return Choice(parameter=told, values=tuple(found))


def _value(owner: str, name: str, value: Any, text: bool, place: Place) -> Any:
    """A value as plain data, once the world, the problem or the part has taken it."""
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{owner}.{name}: {value} is not a finite number")
    if owner == "world":
        plain = _plain_text(value) if text else value
        place.world.with_param(name, plain)
        return plain
    part = place.problem if owner == "problem" else place.ours
    cls: type = type(part)
    kind = knob_types(cls).get(name, Any)
    path = f"{cls.__name__}.{name}"
    if _is_part(kind):
        part.with_knobs(**{name: load_part(value)})
        return value
    taken = check_knob(path, _plain_text(value) if text and kind is Any else value, kind, text=text)
    part.with_knobs(**{name: taken})
    try:
        plain = msgspec.to_builtins(taken)
    except TypeError:
        raise KnobError(path, f"{taken!r} cannot be swept", "sweep numbers or text") from None
    if isinstance(plain, float) and not math.isfinite(plain):
        raise UsageError(f"{path}: {plain} is not a finite number")
    return plain


def _plain_text(value: str) -> Any:
    """JSON where it reads as JSON, else the text itself."""
    try:
        return msgspec.json.decode(value.encode())
    except (msgspec.MsgspecError, UnicodeError):
        return value


def _is_part(kind: Any) -> bool:
    plain = typing.get_origin(kind) or kind
    return isinstance(plain, type) and issubclass(plain, Part)


def load_part(value: Any) -> Any:
    """A knob that is itself a part, from its id or `module:Class`."""
    from orrery.lab import discover

    if not isinstance(value, str):
        raise UsageError(f"{value!r}: give the id of a part, or module:Class")
    return discover.load(value)()


def with_values(part: Part, values: Mapping[str, Any]) -> Any:
    """The part with some knobs set from plain data."""
    types = knob_types(type(part))
    made = {k: load_part(v) if _is_part(types.get(k, Any)) else v for k, v in values.items()}
    return part.with_knobs(**made) if made else part


__all__ = ["Choice", "Place", "Range", "Space", "Span", "Written", "from_data", "make_dim",
           "parse_setting", "parse_span", "with_values"]  # fmt: skip
