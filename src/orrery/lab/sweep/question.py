"""The question of a sweep: what is varied, where, and by which metric the trials are judged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from orrery.base.errors import UsageError
from orrery.lab.cells import Cell
from orrery.lab.compare import main_metric, pick, world_of
from orrery.lab.questions import ask_problem, snake
from orrery.lab.sweep.search import Search, make_search
from orrery.lab.sweep.space import Choice, Place, Space, make_dim, with_values
from orrery.parts.knobs import Part

SYSTEM = "system"
BETTER = ("lower", "higher")
MOST_SEEDS = 10_000


class Question(msgspec.Struct, kw_only=True):
    """A sweep that can be made: everything it names was found and fits."""

    parts: dict[str, Any]
    problem: Any
    world: Any
    space: Space
    search: str
    seed: int
    seeds: list[int]
    by: str
    better: str
    engine: str = "virtual"
    until_s: float | None = None

    @property
    def name(self) -> str:
        """The id of the problem."""
        return snake(type(self.problem).__name__)

    def make_search(self) -> Search:
        """The search from its beginning."""
        return make_search(self.search, self.space, self.seed)

    def cells(self, values: Mapping[str, Any]) -> list[Cell]:
        """The runs of one trial; raises what the part, the problem or the world refuses."""
        from orrery.lab.run import check_call

        sets: dict[str, dict[str, Any]] = {"problem": {}, "part": {}, "world": {}}
        for parameter, value in values.items():
            owner, _, name = parameter.partition(".")
            if parameter != SYSTEM:
                sets[owner][name] = value
        problem = with_values(self.problem, sets["problem"])
        part = with_values(self.parts[values[SYSTEM]], sets["part"])
        world = world_of(self.world, problem)
        world = world.with_(changes=sets["world"]) if sets["world"] else world
        problem.accept(part)
        check_call(part, problem, self.engine, self.seeds[0], self.until_s, ())
        return [
            Cell(name=values[SYSTEM], part=part, problem=problem, world=world, seed=seed,
                 engine=self.engine, until_s=self.until_s)
            for seed in self.seeds
        ]  # fmt: skip

    def to_data(self) -> dict[str, Any]:
        """All that decides the trials and their results; how many trials there are does not."""
        import orrery
        from orrery.lab.spec import core_hash, describe, sources

        used: dict[str, str] = {}
        for each in (*self.parts.values(), self.problem):
            cls: type = type(each)
            used |= sources(cls)
        return {
            "parts": {name: describe(part) for name, part in self.parts.items()},
            "problem": describe(self.problem), "world": world_of(self.world, self.problem).hash,
            "over": [dim.to_json() for dim in self.space.dims], "search": self.search,
            "seed": self.seed if self.search != "grid" else 0, "seeds": self.seeds, "by": self.by,
            "better": self.better, "engine": self.engine, "until_s": self.until_s,
            "version": orrery.__version__, "core": core_hash(),
            "sources": dict(sorted(used.items())),
        }  # fmt: skip


def make_question(
    systems: Any,
    over: Mapping[str, Any],
    *,
    problem: Any = None,
    world: Any = None,
    search: str = "grid",
    seed: int = 0,
    seeds: Any = 1,
    by: str = "",
    better: str = "",
    engine: str = "virtual",
    until_s: float | None = None,
) -> Question:
    """Check everything that a sweep names, before anything runs."""
    if not over:
        raise UsageError("the sweep varies nothing; give key=a,b,c or key=a..b, or [over] in TOML")
    asked = ask_problem(_problem_of(systems) if problem is None else problem)
    parts = pick(systems, snake(type(asked).__name__))
    for name, part in parts.items():
        if not isinstance(part, Part):
            raise UsageError(f"system {name}: a sweep takes single parts, not {{role: part}}")
        asked.accept(part)
    base = world_of(world, asked)
    places = [Place(asked, part, base) for part in parts.values()]
    dims: list[Any] = [Choice(parameter=SYSTEM, values=tuple(parts))]
    for name, values in over.items():
        dim = make_dim(name, values, places)
        if any(dim.parameter == other.parameter for other in dims):
            raise UsageError(f"{dim.parameter} is given twice; give it once")
        dims.append(dim)
    by = main_metric(asked, by)
    found = Question(
        parts=parts, problem=asked, world=world or None, space=Space(dims), search=search,
        seed=seed, seeds=_seeds(seeds), by=by, better=_direction(asked, by, better),
        engine=engine, until_s=until_s,
    )  # fmt: skip
    found.make_search()
    return found


def _problem_of(systems: Any) -> str:
    """The problem of the first system, which must be an id."""
    from orrery.lab import discover

    names = systems.split(",") if isinstance(systems, str) else list(systems or [])
    if not names or not isinstance(names[0], str) or ":" in names[0]:
        raise UsageError("the sweep names no problem; give --problem ID, or problem = in TOML")
    found = discover.find(names[0].strip()).problem
    if not found:
        raise UsageError(f"{names[0]} answers no problem; give --problem ID")
    return found


def _direction(problem: Any, by: str, better: str) -> str:
    if not by:
        raise UsageError(f"{type(problem).__name__} has no metric; give --by METRIC")
    if better and better not in BETTER:
        raise UsageError(f"better {better!r}: give lower or higher")
    known = problem.metrics[by].better if by in problem.metrics else ""
    if not (better or known):
        raise UsageError(f"by {by!r}: nobody says which way is better; give --better lower|higher")
    return better or known


def _seeds(seeds: Any) -> list[int]:
    """A number of seeds from 0 on, or the seeds themselves."""
    if isinstance(seeds, int) and not isinstance(seeds, bool) and 1 <= seeds <= MOST_SEEDS:
        return list(range(seeds))
    good = isinstance(seeds, list | tuple | range) and 1 <= len(seeds) <= MOST_SEEDS
    if not good or any(isinstance(s, bool) or not isinstance(s, int) or s < 0 for s in seeds):
        fix = f"give a whole number from 1 to {MOST_SEEDS}, or a list of whole numbers >= 0"
        raise UsageError(f"seeds {seeds!r}: {fix}")
    if len(set(seeds)) != len(seeds):
        raise UsageError(f"seeds {list(seeds)!r}: one comes twice; give each once")
    return list(seeds)


def loss_of(scores: list[float], better: str) -> float:
    """What a trial costs: low is good; NaN where there is no finite figure."""
    if not scores or not all(math.isfinite(score) for score in scores):
        return math.nan
    mean = math.fsum(scores) / len(scores)
    return mean if better == "lower" else -mean
