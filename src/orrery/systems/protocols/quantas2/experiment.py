"""The format of an experiment: what runs, on which question, among how many, who lies and how.

A file is JSON or TOML. Every field is checked when it is read; what is wrong is named by its path,
such as `byzantine.0.strategies.1`. The same file gives both modes: `abstract` (synchronous rounds
in virtual time) and `concrete` (processes and sockets).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from orrery.base.errors import KnobError, OrreryError, PartError, SpecError, did_you_mean
from orrery.parts import Node, Problem
from orrery.parts.byzantine import STRATEGIES
from orrery.parts.knobs import Part
from orrery.systems.protocols.quantas2 import known
from orrery.world import Byzantine, Fault, World
from orrery.world.schedule import faults_from, parse_text
from orrery.world.spec import (
    Count,
    Fraction,
    Index,
    NonNegative,
    Positive,
    Spec,
    Text,
    brief,
    build,
)

Mode = Literal["abstract", "concrete"]
MODES: dict[str, str] = {"abstract": "virtual", "concrete": "processes"}
HOME = Path(__file__).parent / "experiments"
Word = Annotated[str, Meta(min_length=1, max_length=200)]


class _Field(Spec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of an experiment file."""

    error: ClassVar[type[SpecError]] = SpecError


class Named(_Field, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An algorithm or a problem by name, with its knobs."""

    label: ClassVar[str] = "named"
    id: Word
    knobs: dict[str, Any] = {}


class Rounds(_Field, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The channels of the abstract mode: what is sent in a round arrives at its end."""

    label: ClassVar[str] = "abstract"
    round_s: Positive = 0.001
    drop: Fraction = 0.0


class Links(_Field, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The links of the concrete mode; the machine's own delays come on top."""

    label: ClassVar[str] = "concrete"
    latency_s: NonNegative = 0.0005
    jitter: NonNegative = 0.1
    drop: Fraction = 0.0


class Liars(_Field, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes that lie, and their strategies in the order in which they act."""

    label: ClassVar[str] = "byzantine"
    nodes: Annotated[tuple[Index, ...], Meta(min_length=1)]
    strategies: Annotated[tuple[Word, ...], Meta(min_length=1)]
    p: Fraction = 1.0
    delay_s: NonNegative = 0.1
    to: tuple[Index, ...] = ()
    at_s: NonNegative = 0.0
    until_s: Positive | None = None


class Experiment(_Field, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """One experiment: `.part`, `.problem` and `.world(mode)` are what `orrery.run` takes.

    `over_budget` says that more nodes lie than the algorithm tolerates, so that the checker is
    expected to notice; `seed` and `until_s` are those of the run; `per_s` is the length of one row
    of metrics.

    >>> load("pbft_equivocation").world("abstract").network.model
    'rounds'
    """

    label: ClassVar[str] = "experiment"
    unchecked: ClassVar[frozenset[str]] = frozenset({"faults"})

    name: Word
    title: Text = ""
    algorithm: Named
    problem_: Named
    nodes: Count
    abstract: Rounds = Rounds()
    concrete: Links = Links()
    byzantine: tuple[Liars, ...] = ()
    faults: tuple[Fault, ...] = ()
    over_budget: bool = False
    seed: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 0
    until_s: Positive | None = None
    per_s: Positive = 0.1

    @functools.cached_property
    def part(self) -> Node:
        """The algorithm with its knobs."""
        cls = known.algorithm(self.algorithm.id, "algorithm.id")
        made: Node = _with_knobs(cls, self.algorithm.knobs, "algorithm.knobs")
        return made

    @functools.cached_property
    def problem(self) -> Problem:
        """The problem with its knobs."""
        cls = known.problem(self.problem_.id, "problem.id")
        made: Problem = _with_knobs(cls, self.problem_.knobs, "problem.knobs")
        return made

    def world(self, mode: str) -> World:
        """The world of a mode, with the same faults and liars in both."""
        if mode not in MODES:
            raise SpecError("mode", f"{brief(mode)} is refused", did_you_mean(str(mode), MODES))
        if mode == "abstract":
            rounds = self.abstract
            world = World.rounds(self.nodes, round_s=rounds.round_s, drop=rounds.drop)
        else:
            links = self.concrete
            world = World.lan(
                self.nodes, latency_s=links.latency_s, jitter=links.jitter, drop=links.drop
            )
        return world.with_faults(*self.faults, *self.lies(), over_budget=self.over_budget)

    def lies(self) -> list[Byzantine]:
        """The liars as faults of a world."""
        made = []
        for i, each in enumerate(self.byzantine):
            fields = {
                "node": each.nodes, "strategies": each.strategies, "p": each.p, "to": each.to,
                "delay_s": each.delay_s, "at_s": each.at_s, "until_s": each.until_s,
            }  # fmt: skip
            made.append(build(Byzantine, fields, f"byzantine.{i}"))
        return made

    def call(self, mode: str) -> dict[str, Any]:
        """The keywords of `orrery.run` for a mode: `run(experiment.part, **call)`."""
        return {
            "problem": self.problem, "world": self.world(mode), "engine": MODES[mode],
            "seed": self.seed, "until_s": self.until_s,
        }  # fmt: skip

    def check(self) -> None:
        """Refuse what can only be seen when all is put together."""
        try:
            self.problem.accept(self.part)
        except PartError as failure:
            raise SpecError("algorithm.id", str(failure), "name one that fits") from None
        own = getattr(type(self.part), "byzantine", {})
        names = {**STRATEGIES, **own}
        for i, liars in enumerate(self.byzantine):
            for j, name in enumerate(liars.strategies):
                if name not in names:
                    path = f"byzantine.{i}.strategies.{j}"
                    raise SpecError(path, f"unknown strategy {name!r}", did_you_mean(name, names))
            for j, node in enumerate(liars.nodes):
                if node >= self.nodes:
                    fix = f"there are nodes 0 to {self.nodes - 1}"
                    raise SpecError(f"byzantine.{i}.nodes.{j}", f"there is no node {node}", fix)
        for mode in MODES:
            self.world(mode)


def _with_knobs(cls: type[Part], knobs: Mapping[str, Any], path: str) -> Any:
    try:
        return cls(**knobs)
    except KnobError as failure:
        name = failure.path.rpartition(".")[2]
        raise KnobError(f"{path}.{name}", failure.problem, failure.fix) from None


def parse(data: Any) -> Experiment:
    """An experiment from plain data, checked as a whole.

    >>> parse({"name": "x"})
    Traceback (most recent call last):
    orrery.base.errors.SpecError: algorithm: is missing; give it a value
    """
    if not isinstance(data, Mapping):
        raise SpecError("experiment", f"{brief(data)} is refused", "give a table of fields")
    names = [name.rstrip("_") for name in Experiment.__struct_fields__]
    for key in data:
        if key not in names:
            raise SpecError(str(key), "unknown field", did_you_mean(str(key), names))
    fields = dict(data)
    for field in ("algorithm", "problem"):
        if field in fields:
            fields[field] = build(Named, fields[field], field)
    if "byzantine" in fields:
        tables = fields["byzantine"]
        if not isinstance(tables, list | tuple):
            raise SpecError("byzantine", f"{brief(tables)} is refused", "give a list of tables")
        fields["byzantine"] = [build(Liars, t, f"byzantine.{i}") for i, t in enumerate(tables)]
    if "faults" in fields:
        fields["faults"] = faults_from(fields["faults"], "faults")
    if "problem" in fields:
        fields["problem_"] = fields.pop("problem")
    try:
        made = build(Experiment, fields, "")
    except SpecError as failure:
        # Inside, the field has another name than in the file, as the problem itself has it there.
        path = "problem" if failure.path == "problem_" else failure.path
        raise type(failure)(path, failure.problem, failure.fix) from None
    made.check()
    return made


def shipped() -> list[str]:
    """The names of the experiments that come with Orrery."""
    return sorted(path.stem for path in HOME.glob("*.json"))


def load(path: str | Path) -> Experiment:
    """The experiment of a .json or .toml file, or a shipped one by its name."""
    place = Path(path)
    if place.suffix not in (".json", ".toml"):
        if str(path) not in shipped():
            fix = did_you_mean(str(path), shipped())
            raise SpecError(str(path), "is neither a .json or .toml file nor a shipped one", fix)
        place = HOME / f"{path}.json"
    try:
        return parse(parse_text(place, SpecError))
    except SpecError as failure:
        if failure.path.startswith(str(place)):
            raise
        raise type(failure)(f"{place.name}: {failure.path}", failure.problem, failure.fix) from None
    except OrreryError as failure:
        raise SpecError(place.name, str(failure), "mend the file") from None
