"""`when`: the region of two parameters in which a claim holds, with the break-even line.

Each point of the map is judged by the machinery of `orrery check`: the same runs, seeds and rules,
with two parameters of the claim set otherwise. The first points form a coarse grid; the rest of the
budget goes where the answer changes. Points are kept in ORRERY_HOME, so the same command goes on
where it was killed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from orrery.base.errors import ClaimError, UsageError
from orrery.lab.when.axes import Asked, Axis, find_parameter, make_axis, parse_axis, typed
from orrery.lab.when.axes import with_values as claim_with
from orrery.lab.when.book import Book
from orrery.lab.when.contour import in_values, lines
from orrery.lab.when.points import NO, OPEN, YES, Point, point_of
from orrery.lab.when.survey import Survey

if TYPE_CHECKING:
    from orrery.lab.cells import Runner
    from orrery.lab.claims import Claim
    from orrery.lab.discover import Entry
    from orrery.lab.store import Store

MOST_GRID, MOST_DEPTH, MOST_POINTS = 33, 8, 4000
Tell = Callable[[str], None]


class Map(msgspec.Struct, kw_only=True):
    """What `when` found: the points, the line between them, and how much of the map holds."""

    id: str
    n: int
    claim: Claim
    survey: Survey
    kind: str = "modelled"
    key: str = ""
    made: int = 0

    @property
    def points(self) -> list[Point]:
        """Every point, by y and then x."""
        return sorted(self.survey.values.values(), key=lambda point: (point.y, point.x))

    @property
    def break_even(self) -> list[list[list[float]]]:
        """The break-even line as polylines of [x, y]."""
        return [in_values(self.survey, line) for line in lines(self.survey)]

    @property
    def decided(self) -> bool:
        """Whether any point has an answer."""
        return any(point.state != OPEN for point in self.points)

    def to_json(self) -> dict[str, Any]:
        """The contract's JSON of `orrery when`, and what else is known."""
        survey, claim = self.survey, self.claim
        finest, coarsest = survey.finest()
        shares = survey.shares()
        return {
            "id": self.id, "kind": self.kind,
            "claim": {"n": self.n, "form": claim.form, "metric": claim.metric, "says": claim.says,
                      "against": claim.against or None},
            "grid": {"x": survey.x.to_json(), "y": survey.y.to_json(),
                     "finest_cell": finest, "coarsest_cell": coarsest},
            "values": [point.to_json() for point in self.points],
            "break_even": self.break_even,
            "share": {"holds": shares[YES], "does_not": shares[NO], "open": shares[OPEN]},
            "complete": survey.complete, "made": self.made, "key": self.key,
        }  # fmt: skip

    def sentence(self) -> str:
        """What the map says, in one sentence for people."""
        share = self.survey.shares()
        words = f"{self.id}, {self.claim.metric} ({self.claim.says or self.claim.form}): "
        if share[YES] in (0.0, 1.0) and not share[OPEN]:
            return words + ("holds" if share[YES] else "does not hold") + " at every point tried"
        words += f"holds on {share[YES]:.0%} of the map, does not on {share[NO]:.0%}"
        return words + (f", open on {share[OPEN]:.0%}" if share[OPEN] else "")

    def svg(self) -> str:
        """The map as a picture that needs nothing else."""
        from orrery.lab.when.draw import picture

        return picture(self)

    def _repr_html_(self) -> str:
        return self.svg()

    def __repr__(self) -> str:
        return f"Map({self.sentence()}; {len(self.survey.values)} points)"


def when(
    id: str,
    x: str | Asked,
    y: str | Asked,
    *,
    claim: int | str | None = None,
    fixed: Mapping[str, Any] | None = None,
    world: str | None = None,
    points: int = 60,
    grid: int = 5,
    depth: int = 3,
    seeds: int | None = None,
    jobs: int = 1,
    store: Store | None = None,
    folder: Path | None = None,
    progress: Tell | None = None,
) -> Map:
    """Map where a claim of a system holds, over two of its parameters."""
    from orrery.lab import discover

    entry = discover.find(id)
    n, chosen = pick_claim(entry, claim)
    return map_claim(
        chosen, discover.load(entry.id), x, y, problem=entry.problem, id=entry.id, n=n,
        fixed=fixed, world=world, points=points, grid=grid, depth=depth, seeds=seeds, jobs=jobs,
        store=store, folder=folder, progress=progress,
    )  # fmt: skip


def pick_claim(entry: Entry, wanted: int | str | None) -> tuple[int, Claim]:
    """A claim of a system by its number (from 0) or its metric; by default the first testable."""
    claims = entry.stem.claims
    testable = [n for n, claim in enumerate(claims) if claim.testable]
    if not testable:
        raise UsageError(
            f"{entry.id} makes no claim that can be tested; see: orrery show {entry.id}"
        )
    if wanted is None:
        return testable[0], claims[testable[0]]
    text = str(wanted).strip()
    if text.isascii() and text.isdigit():
        found = [int(text)] if int(text) < len(claims) else []
    else:
        found = [n for n, claim in enumerate(claims) if text in (claim.metric, claim.measure)]
    if not found:
        metrics = ", ".join(f"{n} {claims[n].metric!r}" for n in testable)
        raise UsageError(f"--claim {text!r}: {entry.id} has no such claim; testable are {metrics}")
    if len(found) > 1:
        raise UsageError(f"--claim {text!r}: claims {found} are about it; give a number")
    return found[0], claims[found[0]]


def map_claim(
    claim: Claim,
    part: type,
    x: str | Asked,
    y: str | Asked,
    *,
    problem: Any = "",
    id: str = "",
    n: int = 0,
    fixed: Mapping[str, Any] | None = None,
    world: str | None = None,
    points: int = 60,
    grid: int = 5,
    depth: int = 3,
    seeds: int | None = None,
    jobs: int = 1,
    store: Store | None = None,
    folder: Path | None = None,
    progress: Tell | None = None,
) -> Map:
    """Map where one claim about a part class holds; `when` does so by the id of a system."""
    from orrery.lab.cells import Runner
    from orrery.lab.checking import Trial
    from orrery.lab.store import Store

    _check_sizes(points, grid, depth, seeds)
    if not claim.testable:
        raise ClaimError(f"{claim.metric!r} cannot be tested: {claim.untestable}")
    base = _limited(claim, world, seeds)
    with Runner(store if store is not None else Store(), jobs) as runner:
        trial = Trial(base, part, problem, runner)
        if fixed:
            settings = {find_parameter(k, trial): v for k, v in fixed.items()}
            base = claim_with(base, settings)
            trial = Trial(base, part, problem, runner)
        wide, high = (make_axis(parse_axis(a) if isinstance(a, str) else a, trial) for a in (x, y))
        if wide.parameter == high.parameter:
            raise UsageError(f"both axes are {wide.parameter}; give two parameters")
        for ends in (
            (wide.lo, high.lo),
            (wide.hi, high.lo),
            (wide.lo, high.hi),
            (wide.hi, high.hi),
        ):
            # What cannot be built at a corner is refused before anything is run.
            Trial(_at(base, wide, high, *ends), part, problem, runner)
        judge = _Judge(base, part, problem, wide, high, runner, _book(trial, wide, high, folder),
                       progress)  # fmt: skip
        survey = Survey(wide, high, judge, grid=grid, depth=depth, budget=points).run()
    kind = "modelled" if claim.engine == "virtual" else "measured"
    return Map(id=id or part.__name__, n=n, claim=base, survey=survey, kind=kind,
               key=judge.book.key, made=judge.made)  # fmt: skip


class _Judge:
    """Finds the point at two values: from the book, or by the runs that the verdict needs."""

    def __init__(
        self, claim: Claim, part: type, problem: Any, x: Axis, y: Axis, runner: Runner, book: Book,
        progress: Tell | None,
    ) -> None:  # fmt: skip
        self.claim, self.part, self.problem, self.x, self.y = claim, part, problem, x, y
        self.runner, self.book, self.tell = runner, book, progress or (lambda what: None)
        self.made = 0

    def __call__(self, x: float, y: float) -> Point:
        from orrery.lab.checking import judge

        where = f"{self.x.name} {x:.4g}, {self.y.name} {y:.4g}"
        found = self.book.points.get((x, y))
        if found is None:
            here = _at(self.claim, self.x, self.y, x, y)
            step = functools.partial(self._step, where)
            verdict = judge(here, self.part, problem=self.problem, runner=self.runner,
                            progress=step)  # fmt: skip
            found = point_of(x, y, verdict)
            self.book.put(found)
            self.made += 1
        self.tell(f"{where}: {found.verdict}")
        return found

    def _step(self, where: str, cell: Any, stored: Any) -> None:
        self.tell(f"{where}: {cell.name}, seed {cell.seed}")


def _at(claim: Claim, x: Axis, y: Axis, at_x: float, at_y: float) -> Claim:
    return claim_with(claim, {(x.owner, x.name): typed(x, at_x), (y.owner, y.name): typed(y, at_y)})


def _limited(claim: Claim, world: str | None, seeds: int | None) -> Claim:
    changes: dict[str, Any] = {"world": world} if world is not None else {}
    if seeds is not None:
        changes |= {"most_seeds": seeds, "seeds": min(claim.seeds, seeds)}
    return msgspec.structs.replace(claim, **changes)


def _book(trial: Any, x: Axis, y: Axis, folder: Path | None) -> Book:
    """The book of this question; other code or another world is another question."""
    from orrery.lab.spec import core_hash, describe, sources

    parts = [each for each in (trial.ours, trial.rival, trial.problem) if each is not None]
    used: dict[str, str] = {}
    for each in parts:
        cls: type = type(each)
        used |= sources(cls)
    return Book({
        "claim": trial.claim.hash, "parts": [describe(each) for each in parts],
        "world": trial.world.hash, "x": x.parameter, "y": y.parameter, "core": core_hash(),
        "sources": dict(sorted(used.items())), "metric": trial.metric,
    }, folder)  # fmt: skip


def _check_sizes(points: int, grid: int, depth: int, seeds: int | None) -> None:
    for name, value, least, most in (
        ("grid", grid, 2, MOST_GRID), ("depth", depth, 0, MOST_DEPTH),
        ("points", points, 4, MOST_POINTS), ("seeds", 1 if seeds is None else seeds, 1, 10_000),
    ):  # fmt: skip
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise UsageError(f"{name} {value!r}: give a whole number from {least} to {most}")
    if grid * grid > points:
        fix = f"give --points {grid * grid} or more, or a smaller --grid"
        raise UsageError(f"points {points}: the grid alone has {grid * grid}; {fix}")


__all__ = ["Axis", "Map", "Point", "map_claim", "parse_axis", "pick_claim", "when"]
