"""`compare`: the systems of one problem, side by side, with intervals over seeds.

Every (system, seed) is a *cell*: a run whose folder in the store is named by its spec. A cell
that is in the store is not run again, so the same command continues where it was killed; a cell
counts (and is told to `progress`) only when its folder is safe on the disk.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from orrery.base.errors import UsageError, did_you_mean
from orrery.lab import stats
from orrery.lab.cells import Cell, Runner
from orrery.lab.store import Store, Stored
from orrery.parts.knobs import Part
from orrery.parts.problem import Metric, Problem

if TYPE_CHECKING:
    import pandas
    import polars

    from orrery.world import World

LEAST_SEEDS = 3
MOST_SEEDS = 24


class Row(msgspec.Struct, kw_only=True):
    """One system: its values by metric and seed, and what went wrong."""

    system: str
    values: dict[str, dict[int, float]] = {}
    seeds: list[int] = []
    violations: list[dict[str, Any]] = []
    runs: list[str] = []

    def column(self, metric: str) -> list[float]:
        """The values of a metric in order of seed."""
        found = self.values.get(metric, {})
        return [found[seed] for seed in sorted(found)]


class Comparison(msgspec.Struct, kw_only=True):
    """What `compare` found. `decided` says whether the order by the main metric is certain."""

    problem: str
    world: str
    world_hash: str
    by: str
    rows: list[Row]
    units: dict[str, Metric] = {}
    kind: str = "modelled"
    decided: bool = False
    partial: bool = False
    ties: list[tuple[str, str]] = []

    def interval(self, system: str, metric: str) -> stats.Interval:
        """The mean of a metric with its interval."""
        row = next((row for row in self.rows if row.system == system), None)
        if row is None:
            raise UsageError(f"no system {system!r} in this comparison")
        return stats.mean_interval(row.column(metric))

    @property
    def metrics(self) -> list[str]:
        """The names of all metrics, in the problem's order."""
        seen = dict.fromkeys(name for row in self.rows for name in row.values)
        known = [name for name in self.units if name in seen]
        return known + [name for name in seen if name not in self.units]

    @property
    def same(self) -> dict[str, float]:
        """The metrics that are one value for every system and seed: shown apart."""
        found: dict[str, float] = {}
        rows = [row for row in self.rows if row.values]  # a system that only failed tells nothing
        for name in self.metrics:
            values = {v for row in rows for v in row.values.get(name, {}).values()}
            if len(rows) > 1 and len(values) == 1 and all(name in row.values for row in rows):
                found[name] = values.pop()
        return found

    @property
    def differing(self) -> list[str]:
        """The metrics worth a column."""
        same = self.same
        return [name for name in self.metrics if name not in same]

    def to_json(self) -> dict[str, Any]:
        """The contract's JSON of `orrery compare`, and what else is known."""
        return {
            "problem": self.problem, "world": self.world, "by": self.by, "decided": self.decided,
            "partial": self.partial, "same": self.same, "ties": [list(pair) for pair in self.ties],
            "rows": [self._row(row) for row in self.rows],
        }  # fmt: skip

    def _row(self, row: Row) -> dict[str, Any]:
        metrics = {}
        for name in self.metrics:
            if name not in row.values:
                continue
            found = stats.mean_interval(row.column(name))
            unit = self.units[name].unit if name in self.units else ""
            metrics[name] = {
                "mean": _plain(found.mean), "lo": _plain(found.lo), "hi": _plain(found.hi),
                "unit": unit, "kind": self.kind,
            }  # fmt: skip
        return {"system": row.system, "metrics": metrics, "seeds": len(row.seeds),
                "violations": row.violations, "runs": row.runs}  # fmt: skip

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Heads and lines of text: only the columns in which the systems differ."""
        from orrery.base.units import show

        heads, lines = ["system", *self.differing, "seeds", "violations"], []
        for row in self.rows:
            cells = [row.system]
            for name in self.differing:
                unit = self.units[name].unit if name in self.units else ""
                if name not in row.values:
                    cells.append("–")
                    continue
                found = stats.mean_interval(row.column(name))
                text = show(found.mean, unit)
                if found.known and found.hi > found.lo:
                    text += f" [{show(found.lo, unit)}, {show(found.hi, unit)}]"
                cells.append(text)
            lines.append([*cells, str(len(row.seeds)), str(len(row.violations))])
        return heads, lines

    def __repr__(self) -> str:
        order = " < ".join(row.system for row in self.rows)
        state = "partial" if self.partial else "decided" if self.decided else "not decided"
        return f"Comparison({self.problem} by {self.by}: {order}; {state})"

    def _repr_html_(self) -> str:
        from orrery.lab.html_cells import comparison_cell

        return comparison_cell(self)

    def to_columns(self) -> dict[str, list[Any]]:
        """One row for each run (a system with a seed), as lists by column."""
        from orrery.lab import frames

        return frames.to_columns(frames.comparison_columns(self))

    def to_pandas(self) -> pandas.DataFrame:
        """The same as a DataFrame of pandas (the extra `frames`)."""
        from orrery.lab import frames

        return frames.to_pandas(frames.comparison_columns(self))

    def to_polars(self) -> polars.DataFrame:
        """The same as a DataFrame of Polars (the extra `frames`)."""
        from orrery.lab import frames

        return frames.to_polars(frames.comparison_columns(self))


def compare(
    problem: Any,
    systems: Any = None,
    *,
    world: World | str | None = None,
    seeds: int | Sequence[int] | None = None,
    most_seeds: int = MOST_SEEDS,
    by: str = "",
    engine: str = "virtual",
    until_s: float | None = None,
    store: Store | None = None,
    jobs: int = 1,
    progress: Callable[[Cell, Stored], None] | None = None,
) -> Comparison:
    """Run systems on a problem in a world and rank them by the main metric.

    `systems` are ids, parts, part classes or {name: part}; by default every built system of the
    problem. With `seeds` (a number or a list) exactly these are run; without, seeds are added
    from 3 up to `most_seeds` until the order by the main metric (`by`, or the problem's first
    with a direction) is decided: until each neighbour in the order differs significantly, or
    both are certainly within 1 % of one another. A run that fails is a row with a violation.
    `jobs` processes share the work. Ctrl-C gives what is finished, marked `partial`.
    """
    from orrery.lab.questions import ask_problem, snake

    asked = ask_problem(problem)
    name = snake(type(asked).__name__)
    parts = pick(systems, name)
    place = world_of(world, asked)
    fixed = _seed_list(seeds, most_seeds)
    by = main_metric(asked, by)
    found = Comparison(
        problem=name, world=_say_world(world, place), world_hash=place.hash, by=by,
        rows=[Row(system=each) for each in parts], units=dict(asked.metrics),
        kind="modelled" if engine == "virtual" else "measured",
    )  # fmt: skip
    with Runner(store if store is not None else Store(), jobs) as runner:
        try:
            for batch in _batches(found, fixed, most_seeds):
                cells = [
                    Cell(name=system, part=part, problem=asked, world=place, seed=seed,
                         engine=engine, until_s=until_s)
                    for seed in batch for system, part in parts.items()
                ]  # fmt: skip
                for cell, stored in runner.run(cells):
                    _enter(found, cell, stored)
                    if progress is not None:
                        progress(cell, stored)
        except KeyboardInterrupt:
            found.partial = True
    _rank(found)
    return found


def _batches(found: Comparison, fixed: list[int] | None, most: int) -> Iterator[Sequence[int]]:
    """The seeds to run next, until the order is decided or the limit is reached."""
    if fixed is not None:
        yield fixed
        found.decided = settle(found, stats.LEVEL)
        return
    have, look = 0, 0
    while have < most:
        want = stats.next_seeds(have, min(LEAST_SEEDS, most), most)
        yield range(have, want)
        have, look = want, look + 1
        found.decided = settle(found, stats.level_at(look))
        if found.decided:
            return


def settle(found: Comparison, level: float) -> bool:
    """Whether the order by the main metric is certain at this level; notes the ties."""
    found.ties = []
    rows = [row for row in found.rows if row.values.get(found.by)]
    if len(rows) < 2 or not found.by:
        return True
    rows.sort(key=lambda row: stats.mean(row.column(found.by)))
    # Several neighbours are judged at once, so each is asked for more confidence.
    each = 1 - (1 - level) / (len(rows) - 1)
    decided = True
    for one, other in itertools.pairwise(rows):
        shared = sorted(set(one.values[found.by]) & set(other.values[found.by]))
        a = [one.values[found.by][seed] for seed in shared]
        b = [other.values[found.by][seed] for seed in shared]
        verdict = _differ(a, b, each)
        if verdict == "tie":
            found.ties.append((one.system, other.system))
        decided = decided and verdict != "open"
    return decided


def _differ(a: list[float], b: list[float], level: float) -> str:
    """Whether paired values "differ", "tie" (within 1 %), or leave it "open"."""
    if not a or not all(math.isfinite(value) for value in (*a, *b)):
        return "open"
    if min(a) > 0 and min(b) > 0:
        ratio = stats.ratio_interval(a, b, level)
        gap = ratio._replace(lo=math.log(ratio.lo) if ratio.lo > 0 else -math.inf,
                             hi=math.log(ratio.hi) if ratio.hi > 0 else -math.inf)  # fmt: skip
        room = math.log1p(stats.MATTERS)
    else:
        gap = stats.difference_interval(a, b, level)
        room = stats.MATTERS * max(abs(stats.mean(a)), abs(stats.mean(b)))
    if gap.known and -room <= gap.lo and gap.hi <= room:
        return "tie"
    return "differ" if gap.known and (gap.lo > 0 or gap.hi < 0) else "open"


def _enter(found: Comparison, cell: Cell, stored: Stored) -> None:
    row = next(row for row in found.rows if row.system == cell.name)
    row.seeds.append(cell.seed)
    row.runs.append(stored.id)
    for metric, value in stored.metrics.items():
        row.values.setdefault(metric, {})[cell.seed] = value
    for violation in stored.violations:
        row.violations.append({"seed": cell.seed, **violation})
    for metric, told in stored.units.items():
        found.units.setdefault(metric, Metric(*told))  # type: ignore[arg-type]


def _rank(found: Comparison) -> None:
    """Best first; a system with violations comes after those without, one without a value last."""
    better = found.units[found.by].better if found.by in found.units else ""
    sign = -1.0 if better == "higher" else 1.0

    def key(row: Row) -> tuple[int, float, str]:
        values = row.column(found.by)
        score = sign * stats.mean(values) if values else math.inf
        state = 2 if not values or math.isnan(score) else 1 if row.violations else 0
        return (state, 0.0 if math.isnan(score) else score, row.system)

    found.rows.sort(key=key)


# -- what was asked for


def pick(systems: Any, problem: str) -> dict[str, Any]:
    """{name: part} from ids, parts, classes or a mapping; None is every built one."""
    from orrery.lab import discover

    if systems is None:
        entries = discover.of_problem(problem)
        if not entries:
            raise UsageError(f"no system answers {problem} yet; name some with systems=")
        return {entry.id: discover.load(entry.id)() for entry in entries}
    if isinstance(systems, str):
        systems = [word.strip() for word in systems.split(",") if word.strip()]
    pairs = systems.items() if isinstance(systems, Mapping) else [("", each) for each in systems]
    found: dict[str, Any] = {}
    for name, each in pairs:
        part = discover.load(each)() if isinstance(each, str) else each
        part = part() if isinstance(part, type) else part
        if not isinstance(part, Part | Mapping):
            raise UsageError(f"systems holds {each!r}; give ids, parts or part classes")
        label = name or (each if isinstance(each, str) else repr(part))
        if label in found:
            raise UsageError(f"systems names {label!r} twice; give {{name: part}}")
        found[label] = part
    if not found:
        raise UsageError("systems is empty; name at least one, or leave it out for all")
    return found


def world_of(world: Any, problem: Problem) -> World:
    """A world from a `World`, a name such as "lan:5", a path, or the problem's own."""
    if world is None or world == "":
        return problem.world()
    if isinstance(world, str):
        from orrery.world import worlds

        return worlds.find(world)
    if not hasattr(world, "hash"):
        raise UsageError(f"world={world!r}: give a World, a name such as lan:5, or a path")
    found: World = world
    return found


def _say_world(asked: Any, world: World) -> str:
    return asked if isinstance(asked, str) and asked else world.title or world.hash


def main_metric(problem: Problem, by: str = "") -> str:
    """The metric that ranks: the one asked for, or the first that has a direction."""
    if by:
        if problem.metrics and by not in problem.metrics:
            raise UsageError(f"by={by!r}: no such metric; {did_you_mean(by, problem.metrics)}")
        return by
    names = [name for name, metric in problem.metrics.items() if metric.better]
    return names[0] if names else next(iter(problem.metrics), "")


def _seed_list(seeds: Any, most: int) -> list[int] | None:
    if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= 100_000:
        raise UsageError(f"most_seeds={most!r}: give a whole number from 1 to 100000")
    if seeds is None:
        return None
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        if not 1 <= seeds <= 100_000:
            raise UsageError(f"seeds={seeds!r}: give a whole number from 1 to 100000")
        return list(range(seeds))
    found = list(seeds) if isinstance(seeds, Sequence) and not isinstance(seeds, str) else []
    if not found or any(isinstance(s, bool) or not isinstance(s, int) for s in found):
        raise UsageError(f"seeds={seeds!r}: give a number of seeds or a list of whole numbers")
    return list(dict.fromkeys(found))


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None
