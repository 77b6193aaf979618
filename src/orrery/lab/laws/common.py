"""What laws are made of, and the laws of every part: knobs only, docstring, repr, no leaks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from orrery.base.errors import KnobError
from orrery.base.rand import Stream
from orrery.lab.leaks import lint_all
from orrery.parts.knobs import Part, knob_types


class Broken(msgspec.Struct, frozen=True):
    """A law that a part breaks: which one, and how."""

    law: str
    message: str

    def __str__(self) -> str:
        return f"{self.law}: {self.message}"


class Runs(dict[int, Any]):
    """Runs by seed. Subjects are told apart without them, so they all hash alike."""

    def __hash__(self) -> int:  # type: ignore[override]
        return 0


class Subject(msgspec.Struct, frozen=True):
    """The part on trial, the problem it answers (or None), and how thorough the trial is."""

    part: Any
    problem: Any = None
    seeds: tuple[int, ...] = (0,)
    # Engines beside the virtual one whose verdict and decisions must be the same.
    engines: tuple[str, ...] = ()
    # Plain runs by seed, which several laws look at and none changes.
    plain: Runs = msgspec.field(default_factory=Runs)

    @property
    def name(self) -> str:
        return type(self.part).__name__

    def stream(self, purpose: str) -> Stream:
        """Random numbers for a law; the same for every run of it."""
        return Stream(self.seeds[0], self.name, purpose)


Law = Callable[[Subject], Iterable[str]]


def try_law(law: Law, subject: Subject) -> list[Broken]:
    """What a law finds; an error inside the part is a finding too."""
    name = law.__name__
    try:
        return [Broken(name, message) for message in law(subject)]
    except Exception as error:
        return [Broken(name, f"{type(error).__name__}: {error}")]


# -- laws of every part


def knobs_only(subject: Subject) -> Iterable[str]:
    """The constructor holds knobs only: no `__init__`, and no argument is needed."""
    for cls in type(subject.part).__mro__:
        if cls is Part:
            break
        if "__init__" in vars(cls) or "__new__" in vars(cls):
            yield f"{cls.__name__} has a constructor of its own; make state in start()"
    made = type(subject.part)()
    if vars(made):
        yield f"{subject.name}() sets {sorted(vars(made))}; a part holds its knobs and no more"


def has_docstring(subject: Subject) -> Iterable[str]:
    """The class says in one line what it does."""
    first = (inspect.cleandoc(vars(type(subject.part)).get("__doc__") or "")).partition("\n")[0]
    if not first:
        yield f"{subject.name} has no docstring of its own; say in one line what it does"
    elif not first.endswith((".", "?", "!", ")", ":", ";")):
        yield f"the first line of {subject.name}'s docstring is no sentence: {first!r}"


def repr_round_trips(subject: Subject) -> Iterable[str]:
    """`eval(repr(part)) == part`, also with other knobs."""
    for part in (subject.part, *_variations(subject.part)):
        names = {type(each).__name__: type(each) for each in _parts_within(part)}
        try:
            back = eval(repr(part), {"__builtins__": {}, **names})
        except Exception as error:
            yield f"{part!r} does not evaluate: {type(error).__name__}: {error}"
            continue
        if back != part:
            yield f"{part!r} comes back as {back!r}"


def _variations(part: Part) -> Iterable[Part]:
    """The same part with each number or switch set to something else that fits."""
    for name, value in part.knobs().items():
        others: tuple[Any, ...] = ()
        if isinstance(value, bool):
            others = (not value,)
        elif isinstance(value, int | float):
            others = (value + 1, value / 2 if isinstance(value, float) else value)
        for other in others:
            try:
                yield part.with_knobs(**{name: other})
            except KnobError:  # outside its bounds
                continue


def _parts_within(part: Part) -> Iterable[Part]:
    yield part
    for value in part.knobs().values():
        if isinstance(value, Part):
            yield from _parts_within(value)


def bad_knobs_are_named(subject: Subject) -> Iterable[str]:
    """A knob that does not exist, or a value that cannot fit, is refused with its path."""
    cls = type(subject.part)
    yield from _must_refuse(cls, "no_such_knob", 1)
    types = knob_types(cls)
    for name, value in subject.part.knobs().items():
        if name not in types:
            yield f"{cls.__name__}.{name} has no annotation that can be resolved, so goes unchecked"
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield from _must_refuse(cls, name, "not a number")
            yield from _must_refuse(cls, name, float("nan"))
        elif isinstance(value, Part):
            yield from _must_refuse(cls, name, 1)


def _must_refuse(cls: type[Part], name: str, value: Any) -> Iterable[str]:
    try:
        cls(**{name: value})
    except KnobError as error:
        if name not in error.path:
            yield f"{cls.__name__}({name}={value!r}): the error does not name the knob: {error}"
        return
    yield f"{cls.__name__}({name}={value!r}) is taken; it must be a KnobError"


def no_leaks(subject: Subject) -> Iterable[str]:
    """No module that the part's code reaches lets the outside in: clocks, `random`, threads …"""
    for finding in lint_all(subject.part):
        if finding.level == "leak":
            yield f"{Path(finding.path).name}:{finding.line}: {finding.what}; {finding.fix}"


PART_LAWS: tuple[Law, ...] = (
    knobs_only, has_docstring, repr_round_trips, bad_knobs_are_named, no_leaks,
)  # fmt: skip
