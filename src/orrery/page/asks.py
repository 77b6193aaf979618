"""What a job may be asked: fields that are checked, and the words of the command they become.

A request never holds a path, a module or an option. Systems, problems, metrics and knobs are named
from the catalogue, worlds from the list of worlds; each value is checked as the command line would
before the child is started, so that a wrong one is a refusal and not a failed job.
"""

from __future__ import annotations

import inspect
import math
import re
import typing
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from orrery.base.errors import did_you_mean
from orrery.page.http import HttpError
from orrery.page.library import Library

MOST_NODES = 100_000
_WORLD = re.compile(r"[a-z0-9_]{1,40}(?::[a-z0-9_.=,+-]{1,80})?")
_VALUE = re.compile(r'[A-Za-z0-9_.,:+<>\-\[\]{}"() ]{0,200}')
_SCALAR = re.compile(r"[A-Za-z0-9_.+-]{1,60}")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
# Knobs of problems that name files: the page takes no path.
PATH_KNOBS = frozenset({"trace", "data", "path", "file", "folder", "tables", "profile"})

Name = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9][a-z0-9_-]{0,63}\Z", max_length=64)]
Seed = Annotated[int, msgspec.Meta(ge=0, le=(1 << 53) - 1)]
Value = str | int | float | bool
Knobs = Annotated[dict[str, Value], msgspec.Meta(max_length=64)]


class _Ask(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """What every question has: a tag, and no field that is not known."""


class RunAsk(_Ask, tag="run"):
    """Run one system on its problem."""

    system: Name
    seed: Seed = 0
    engine: Literal["virtual", "processes"] = "virtual"
    world: str = ""
    knobs: Knobs = {}
    problem_knobs: Knobs = {}


class CheckAsk(_Ask, tag="check"):
    """Put a system's claims to the test; the ledger is not written."""

    system: Name


class CompareAsk(_Ask, tag="compare"):
    """Compare systems of a problem."""

    problem: Name
    systems: Annotated[list[Name], msgspec.Meta(max_length=64)] = []
    world: str = ""
    seeds: Annotated[int, msgspec.Meta(ge=1, le=1000)] | None = None
    by: str = ""
    problem_knobs: Knobs = {}


class ChooseAsk(_Ask, tag="choose"):
    """Rank the systems of a problem, and look for what flips the answer."""

    problem: Name
    systems: Annotated[list[Name], msgspec.Meta(max_length=64)] = []
    world: str = ""
    seeds: Annotated[int, msgspec.Meta(ge=2, le=1000)] = 3
    by: str = ""
    flips: bool = True
    problem_knobs: Knobs = {}


class Axis(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One axis of a map: a parameter, its ends, and whether it is drawn in powers."""

    name: Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z_][A-Za-z0-9_.]{0,63}\Z")]
    lo: float
    hi: float
    log: bool = False


class WhenAsk(_Ask, tag="when"):
    """Map where a claim holds over two parameters."""

    system: Name
    x: Axis
    y: Axis
    claim: Annotated[int, msgspec.Meta(ge=0, le=99)] = 0
    points: Annotated[int, msgspec.Meta(ge=16, le=400)] = 40
    seeds: Annotated[int, msgspec.Meta(ge=1, le=100)] | None = None


Ask = RunAsk | CheckAsk | CompareAsk | ChooseAsk | WhenAsk


class Asked(typing.NamedTuple):
    """A checked question: its title, the words after `orrery`, and whether it writes a report."""

    kind: str
    title: str
    words: list[str]
    report: bool


def words_of(ask: Ask, library: Library) -> Asked:
    """The command of a question; whatever is wrong in it is an error that names the field."""
    if isinstance(ask, RunAsk):
        return _run(ask, library)
    if isinstance(ask, CheckAsk):
        _built(library, ask.system)
        return Asked("check", f"Check {ask.system}", ["check", ask.system], False)
    if isinstance(ask, WhenAsk):
        return _when(ask, library)
    return _compare(ask, library)


# -- each kind


def _run(ask: RunAsk, library: Library) -> Asked:
    entry = _built(library, ask.system)
    world = _world_words(ask.world)
    words = ["run", ask.system, "--seed", str(ask.seed), "--engine", ask.engine]
    settings = _settings(library.part(entry.id), ask.knobs, library)
    for name, text in settings.items():
        words += ["--set", f"{name}={text}"]
    if ask.problem_knobs:
        words += ["--problem", _problem(entry.problem, ask.problem_knobs)]
    words += world
    return Asked("run", f"Run {ask.system}, seed {ask.seed}", words, False)


def _compare(ask: CompareAsk | ChooseAsk, library: Library) -> Asked:
    from orrery.lab.questions import problem_class

    kind = "compare" if isinstance(ask, CompareAsk) else "choose"
    words = [kind, _problem(ask.problem, ask.problem_knobs)]
    answering = [e.id for e in library.entries().values() if e.problem == ask.problem and e.built]
    if not answering:
        raise HttpError(422, f"problem {ask.problem!r}: no built system answers it")
    for id in ask.systems:
        if id not in answering:
            raise HttpError(422, f"systems: {id!r} does not answer {ask.problem}; "
                            f"{did_you_mean(id, answering)}")  # fmt: skip
    if len(set(ask.systems)) != len(ask.systems):
        raise HttpError(422, "systems: one is named twice")
    if ask.systems:
        words += ["--systems", ",".join(ask.systems)]
    if ask.by:
        metrics = problem_class(ask.problem).metrics
        if ask.by not in metrics:
            raise HttpError(422, f"by {ask.by[:60]!r}: {did_you_mean(ask.by[:60], metrics)}")
        words += ["--by", ask.by]
    if ask.seeds is not None:
        words += ["--seeds", str(ask.seeds)]
    if isinstance(ask, ChooseAsk):
        words += ["--flips" if ask.flips else "--no-flips", "--jobs", "1"]
    words += _world_words(ask.world)
    verb = "Compare" if kind == "compare" else "Choose for"
    return Asked(kind, f"{verb} {ask.problem}", words, True)


def _when(ask: WhenAsk, library: Library) -> Asked:
    entry = _built(library, ask.system)
    claims = entry.stem.claims
    if ask.claim >= len(claims) or not claims[ask.claim].testable:
        raise HttpError(422, f"claim {ask.claim}: {ask.system} has no such claim to test")
    words = ["when", ask.system, "--claim", str(ask.claim), "--points", str(ask.points)]
    for option, axis in (("--x", ask.x), ("--y", ask.y)):
        if not (math.isfinite(axis.lo) and math.isfinite(axis.hi) and axis.lo < axis.hi):
            raise HttpError(422, f"{option[2:]}: the lower end must be below the upper one")
        if axis.log and axis.lo <= 0:
            raise HttpError(422, f"{option[2:]}: a scale in powers begins above 0")
        scale = ":log" if axis.log else ":lin"
        words += [option, f"{axis.name}={axis.lo!r}:{axis.hi!r}{scale}"]
    if ask.seeds is not None:
        words += ["--seeds", str(ask.seeds)]
    return Asked("when", f"Where {ask.system} holds", words, False)


# -- fields


def _built(library: Library, id: str) -> Any:
    entry = library.entry(id)
    if not entry.built:
        raise HttpError(422, f"{id} is planned: there is no code to run yet")
    return entry


def _world_words(text: str) -> list[str]:
    if not text:
        return []
    check_world(text)
    return ["--world", text]


def check_world(text: str) -> None:
    """Refuse a world that is not a name of the list with numbers; a path never is one."""
    from orrery.world import worlds

    if not _WORLD.fullmatch(text):
        raise HttpError(422, f"world {text[:60]!r}: write a name such as lan:5; no path is taken")
    name, _, rest = text.partition(":")
    if name not in worlds.MAKERS:
        raise HttpError(422, f"world {name!r}: {did_you_mean(name, worlds.MAKERS)}")
    given: list[Any] = []
    named: dict[str, Any] = {}
    for word in rest.split(",") if rest else ():
        key, equals, value = word.rpartition("=")
        number = _small(value if equals else word, name)
        if key in named:
            raise HttpError(422, f"world {text!r}: {key} comes twice")
        if equals:
            named[key] = number
        else:
            given.append(number)
    shape = inspect.signature(worlds.MAKERS[name])
    try:
        shape.bind(*given, **named)
    except TypeError as failure:
        takes = ", ".join(shape.parameters)
        raise HttpError(422, f"world {text!r}: {failure}; {name} takes {takes}") from None
    if math.prod(max(1.0, float(n)) for n in [*given, *named.values()]) > MOST_NODES:
        raise HttpError(422, f"world {text!r}: over {MOST_NODES} nodes; use the command line")


def _small(word: str, name: str) -> float | bool:
    if word in ("true", "false"):
        return word == "true"
    try:
        value = float(word)
    except ValueError:
        raise HttpError(422, f"world {name}: {word[:40]!r} is not a number") from None
    if not (math.isfinite(value) and 0 <= value <= MOST_NODES):
        raise HttpError(422, f"world {name}: {word[:40]!r}: give 0 to {MOST_NODES}")
    return value


def _problem(id: str, knobs: dict[str, Value]) -> str:
    """`id` or `id:knob=value,…`, each knob checked against the problem's."""
    from orrery.lab.questions import problem_class, questions

    if id not in {each.id for each in questions()}:
        raise HttpError(422, f"there is no problem {id!r}")
    if not knobs:
        return id
    words = []
    for name, text in _settings(problem_class(id), knobs, None).items():
        if not _SCALAR.fullmatch(text):
            raise HttpError(422, f"{name}={text!r}: the page sets plain numbers and words only")
        words.append(f"{name}={text}")
    return f"{id}:{','.join(words)}"


def _settings(cls: Any, knobs: dict[str, Value], library: Library | None) -> dict[str, str]:
    """The texts of knobs, each checked to be one of the class and to fit its type."""
    from orrery.parts.knobs import Part, check_knob, knob_types

    types = knob_types(cls)
    found: dict[str, str] = {}
    for name, value in knobs.items():
        if not _WORD.fullmatch(name) or name not in cls._knob_defaults:
            fix = did_you_mean(name[:60], cls._knob_defaults)
            raise HttpError(422, f"{cls.__name__} has no knob {name[:60]!r}; {fix}")
        text = str(value).lower() if isinstance(value, bool) else str(value)
        # A colon is for tables only: elsewhere it could name a module and its class.
        odd = ".." in text or text.strip().startswith("--") or (":" in text and text[0] != "{")
        if not _VALUE.fullmatch(text) or odd:
            raise HttpError(422, f"{name}: a value is a plain number, word or list; no path")
        if text.strip().lower().lstrip("+-") in ("nan", "inf", "infinity"):
            raise HttpError(422, f"{name}: {text} is not a value; give a number")
        kind = types.get(name, Any)
        plain = typing.get_origin(kind) or kind
        if plain is Path or name in PATH_KNOBS:
            raise HttpError(422, f"{name}: names a file; set it on the command line")
        if isinstance(plain, type) and issubclass(plain, Part):
            if library is None or text not in library.entries():
                raise HttpError(422, f"{name}: give the id of a system of the catalogue")
            _built(library, text)
        else:
            check_knob(f"{cls.__name__}.{name}", text, kind, text=True)
        found[name] = text
    return found
