"""From the words of a command line to parts, problems, worlds and stored runs."""

from __future__ import annotations

import os
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orrery.base.errors import KnobError, StoreError, UsageError, did_you_mean
from orrery.cli.common import preparing

if TYPE_CHECKING:
    from orrery.lab.store import Store, Stored
    from orrery.parts import Problem
    from orrery.world import World


def split_settings(settings: Sequence[str]) -> dict[str, str]:
    """`knob=value` words as a table; each knob once."""
    found: dict[str, str] = {}
    for word in settings:
        name, equals, value = word.partition("=")
        name = name.strip()
        if not equals or not name:
            raise UsageError(f"--set {word!r}: write knob=value, for example --set fanout=4")
        if name in found:
            raise UsageError(f"--set {name} comes twice; give it once")
        found[name] = value.strip()
    return found


def with_settings(cls: type, settings: Mapping[str, str]) -> Any:
    """A part or problem of this class, its knobs set from texts and checked."""
    from orrery.parts.knobs import Part, check_knob, knob_types

    if not issubclass(cls, Part):
        raise UsageError(f"{cls.__name__} is not a part: it does not inherit from one")
    types = knob_types(cls)
    values: dict[str, Any] = {}
    for name, text in settings.items():
        path = f"{cls.__name__}.{name}"
        if name not in cls._knob_defaults:
            raise KnobError(path, "no such knob", did_you_mean(name, cls._knob_defaults))
        kind = types.get(name, Any)
        plain = typing.get_origin(kind) or kind
        if isinstance(plain, type) and issubclass(plain, Part):
            values[name] = find_part(text)[1]
        else:
            values[name] = check_knob(path, text, kind, text=True)
    return cls(**values)


def find_part(text: str, settings: Mapping[str, str] | None = None) -> tuple[str, Any]:
    """(its problem's id or "", the part) of an id, `module:Class` or `path.py:Class`."""
    from orrery.lab import discover

    if not text.strip():
        raise UsageError("the system is empty; `orrery list` shows the ids")
    with preparing():
        cls = discover.load(text)
        problem = "" if ":" in text else discover.find(text).problem
        return problem, with_settings(cls, settings or {})


def find_problem(text: str, trace: Path | None = None) -> Problem:
    """A problem from `id`, `id:knob=value,knob=value` or `module:Class`."""
    from orrery.lab.questions import problem_class

    name, settings = text, {}
    head, colon, tail = text.rpartition(":")
    if colon and "=" in tail:
        name, settings = head, split_settings(_commas(tail))
    with preparing():
        cls = problem_class(name)
        if trace is not None:
            settings |= _trace_setting(cls, trace)
        made: Problem = with_settings(cls, settings)
        return made


def _commas(text: str) -> list[str]:
    """Split at commas, except inside brackets: `a=1,b=[2,3]` are two settings."""
    words, depth, word = [], 0, ""
    for letter in text:
        depth += (letter in "[{(") - (letter in "]})")
        if letter == "," and depth <= 0:
            words.append(word)
            word = ""
        else:
            word += letter
    return [each for each in [*words, word] if each.strip()]


def _trace_setting(cls: type, trace: Path) -> dict[str, str]:
    if "trace" not in getattr(cls, "_knob_defaults", {}):
        raise UsageError(f"--trace {trace}: {cls.__name__} makes its own workload; leave it out")
    if not trace.is_file():
        raise UsageError(f"--trace {trace}: no such file")
    return {"trace": str(trace)}


def find_world(text: str | None, problem: Problem | None, faults: Path | None = None) -> World:
    """The named or stored world, else the problem's own, else five machines; with more faults."""
    from orrery.world import World, load_faults, worlds

    if text is not None and not text.strip():
        raise UsageError("--world is empty; give a TOML path or a name such as lan:5")
    if text is not None:
        world = worlds.find(text)
    else:
        world = problem.world() if problem is not None else World.lan(5)
    return world.with_faults(*load_faults(faults)) if faults is not None else world


def find_run(text: str, store: Store) -> Stored:
    """A stored run from its id or the beginning of it, its folder, `last`, or a system's id."""
    word = text.strip().rstrip("/")
    if not word:
        raise UsageError("the run is empty; `orrery runs ls` shows them")
    if word == "last":
        runs = store.ls()
        if not runs:
            raise StoreError("there are no runs yet; make one: orrery run push-gossip")
        return runs[0]
    if os.sep in word and Path(word).resolve().parent == store.runs.resolve():
        word = Path(word).name
    if all(letter in "0123456789abcdef" for letter in word):
        return store.load(word)
    for stored in store.ls():
        if stored.spec.get("part", {}).get("name") == word:
            return stored
    raise StoreError(f"there is no run {text!r}; `orrery runs ls` shows those that are")


def check_number(name: str, value: float | None, least: float, most: float) -> None:
    """Refuse a number outside its bounds (also NaN) with the fix."""
    if value is not None and not least <= value <= most:
        raise UsageError(f"{name} {value:g}: give {least:g} to {most:g}")
