"""`choose`: which system is best for this world and workload, why, and what would change that.

Every part of a problem is compared on the user's own world by the metric they name. Then the knobs
that the problem names as its axes (how often requests come, what users expect, …) are varied one at
a time, outwards from where they are, among the best few; where another system wins for certain, the
value at which the answer flips is narrowed down by bisection.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from orrery.base.errors import UsageError
from orrery.base.units import show
from orrery.lab import stats
from orrery.lab.compare import Comparison, Row, compare, main_metric, pick, world_of
from orrery.lab.questions import ask_problem, snake
from orrery.lab.store import Store
from orrery.parts.problem import Problem

if TYPE_CHECKING:
    from orrery.world import World

CONTENDERS = 4
BISECTIONS = 3


class Ranked(msgspec.Struct, kw_only=True):
    """One system in the ranking: its mean score with an interval, and why it stands there."""

    system: str
    score: float | None
    lo: float | None
    hi: float | None
    why: str


class Flip(msgspec.Struct, kw_only=True):
    """Where the answer changes: beyond this value of this parameter another system wins."""

    parameter: str
    at: float
    to: str
    side: str
    base: float


class Choice(msgspec.Struct, kw_only=True):
    """What `choose` found: the ranking, the flips, and the comparison behind it."""

    problem: str
    world: str
    by: str
    ranking: list[Ranked]
    flips: list[Flip]
    tried: dict[str, list[float]]
    comparison: Comparison

    def to_json(self) -> dict[str, Any]:
        """The contract's JSON of `orrery choose`, and what else is known."""
        return {
            "problem": self.problem, "world": self.world, "by": self.by,
            "ranking": [msgspec.to_builtins(each) for each in self.ranking],
            "flips": [msgspec.to_builtins(each) for each in self.flips], "tried": self.tried,
            "decided": self.comparison.decided,
        }  # fmt: skip

    def __repr__(self) -> str:
        flips = ", ".join(f"{each.parameter} {each.at:.4g} -> {each.to}" for each in self.flips)
        return f"Choice({self.ranking[0].system} for {self.problem} by {self.by}; flips: {flips})"


def choose(
    problem: Any,
    systems: Any = None,
    *,
    world: World | str | None = None,
    by: str = "",
    seeds: int = 3,
    flips: bool = True,
    store: Store | None = None,
    jobs: int = 1,
    progress: Callable[[str], None] | None = None,
) -> Choice:
    """Rank the systems of a problem by a metric, say why, and find where the answer flips."""
    asked = ask_problem(problem)
    parts = pick(systems, snake(type(asked).__name__))
    place, by = world_of(world, asked), main_metric(asked, by)
    if not by:
        raise UsageError(f"{type(asked).__name__} has no metric to choose by")
    tell = progress or (lambda what: None)

    def judged(question: Problem, chosen: dict[str, Any], what: str) -> Comparison:
        return compare(
            question, chosen, world=place, seeds=seeds, by=by, store=store, jobs=jobs,
            progress=lambda cell, _: tell(f"{what}: {cell.name}"),
        )  # fmt: skip

    found = judged(asked, parts, "as it is")
    ranking = [_ranked(found, row) for row in found.rows]
    turned: list[Flip] = []
    tried: dict[str, list[float]] = {}
    if flips and len(found.rows) > 1:
        best = {row.system: parts[row.system] for row in found.rows[:CONTENDERS]}
        for name, values in asked.axes(by).items():
            search = _Search(asked, name, best, found, judged)
            turned += search.run(values)
            tried[name] = sorted(search.tried)
    return Choice(
        problem=found.problem, world=found.world, by=by, ranking=ranking, flips=turned,
        tried=tried, comparison=found,
    )  # fmt: skip


# -- where the answer flips


class _Search:
    """Looks along one knob for values at which another system wins for certain."""

    def __init__(
        self, asked: Problem, name: str, parts: dict[str, Any], base: Comparison,
        judged: Callable[[Problem, dict[str, Any], str], Comparison],
    ) -> None:  # fmt: skip
        self.asked, self.name, self.parts, self.judged = asked, name, parts, judged
        self.winner = base.rows[0].system
        self.here = float(getattr(asked, name))
        self.tried: set[float] = set()

    def run(self, values: Sequence[float]) -> list[Flip]:
        """The nearest flip below and the nearest above the value as it is."""
        below = sorted((v for v in values if v < self.here), reverse=True)
        above = sorted(v for v in values if v > self.here)
        found = []
        for side, path in (("below", below), ("above", above)):
            same = self.here
            for value in path:
                other = self.other_winner(value)
                if other:
                    at, to = self.narrow(same, value, other)
                    found.append(Flip(parameter=self.name, at=at, to=to, side=side, base=self.here))
                    break
                same = value
        return found

    def narrow(self, same: float, other: float, to: str) -> tuple[float, str]:
        """Bisect between a value with the old answer and one with a new one."""
        for _ in range(BISECTIONS):
            positive = same > 0 and other > 0
            middle = math.sqrt(same * other) if positive else (same + other) / 2
            middle = self.rounded(middle)
            if middle in (same, other):
                break
            found = self.other_winner(middle)
            if found:
                other, to = middle, found
            else:
                same = middle
        return other, to

    def rounded(self, value: float) -> float:
        return float(round(value)) if isinstance(getattr(self.asked, self.name), int) else value

    def other_winner(self, value: float) -> str:
        """Who wins there, if it is somebody else and beyond chance; else nothing."""
        self.tried.add(value)
        whole = isinstance(getattr(self.asked, self.name), int)
        question = self.asked.with_knobs(**{self.name: int(value) if whole else value})
        found = self.judged(question, self.parts, f"{self.name} = {value:.4g}")
        first = found.rows[0]
        old = next(row for row in found.rows if row.system == self.winner)
        if first.system == self.winner or not _certain(first, old, found.by):
            return ""
        return first.system


def _certain(one: Row, other: Row, by: str) -> bool:
    """Whether the same seeds give one system a value that differs from the other's."""
    a, b = one.column(by), other.column(by)
    if len(a) != len(b) or len(a) < 2:
        return False
    gap = stats.difference_interval(a, b, stats.LEVEL)
    return gap.known and (gap.lo > 0 or gap.hi < 0)


# -- why


def _ranked(found: Comparison, row: Row) -> Ranked:
    values = row.column(found.by)
    if not values:
        why = row.violations[0]["message"] if row.violations else "it gave no value"
        return Ranked(system=row.system, score=None, lo=None, hi=None, why=why)
    told = stats.mean_interval(values)
    bounds = (told.lo, told.hi) if told.known else (None, None)
    return Ranked(
        system=row.system, score=told.mean, lo=bounds[0], hi=bounds[1], why=_why(found, row)
    )


def _why(found: Comparison, row: Row) -> str:
    """One sentence: by how much, and which other figure goes with it."""
    first = found.rows[0]
    if row.violations:
        return f"it broke a rule: {row.violations[0]['message']}"
    rival = found.rows[1] if row is first and len(found.rows) > 1 else first
    if rival is row or not rival.column(found.by):
        return "it is the only one"
    mine, theirs = (stats.mean(each.column(found.by)) for each in (row, rival))
    text = f"{found.by} {_shown(found, found.by, mine)} against {_shown(found, found.by, theirs)} "
    text += f"of {rival.system}"
    if not _certain(row, rival, found.by):
        text += ", within what chance does"
    cause = _telling(found, row, rival)
    return text + (f"; {cause}" if cause else "")


def _telling(found: Comparison, row: Row, rival: Row) -> str:
    """The other metric in which the two differ most, for certain."""
    best, gap = "", 0.05
    for name in found.metrics:
        metric = found.units.get(name)
        if name == found.by or metric is None or not metric.better:
            continue
        a, b = row.column(name), rival.column(name)
        if not a or not b or not _certain(row, rival, name):
            continue
        one, other = stats.mean(a), stats.mean(b)
        apart = abs(one - other) / max(abs(one), abs(other), 1e-12)
        # A figure of the same family (p50 beside p99) says the same thing again.
        if apart > gap and name.split("_")[0] != found.by.split("_")[0]:
            best, gap = name, apart
    if not best:
        return ""
    one, other = stats.mean(row.column(best)), stats.mean(rival.column(best))
    return f"{best} {_shown(found, best, one)} against {_shown(found, best, other)}"


def _shown(found: Comparison, name: str, value: float) -> str:
    return show(value, found.units[name].unit if name in found.units else "")


__all__ = ["Choice", "Flip", "Ranked", "choose"]
