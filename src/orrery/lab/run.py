"""`run`: a part, on a problem, in a world, gives a `Run`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from orrery.base.errors import UsageError, did_you_mean
from orrery.base.violation import Violation
from orrery.parts.monitor import Monitor
from orrery.parts.node import Node
from orrery.parts.problem import Metric, Outcome, Problem, Record
from orrery.parts.swarm import Swarm

if TYPE_CHECKING:
    import pandas
    import polars

    from orrery.lab.frames import Table
    from orrery.world import World

ENGINES = ("virtual", "processes", "ray")


class Run(msgspec.Struct, kw_only=True):
    """What a run gave: metrics, violations, spans, digest."""

    metrics: dict[str, float]
    violations: list[Violation]
    digest: str
    seconds: float
    events: int
    spans: list[Any]
    seed: int
    engine: str
    ended: str
    part: Any
    problem: Problem | None
    world: World
    messages: int = 0
    bytes: int = 0
    records: list[Record] = []
    units: dict[str, Metric] = {}
    decisions: Any = None
    extra: dict[str, Any] = {}

    @property
    def ok(self) -> bool:
        """Whether nothing that must not happen did."""
        return not self.violations

    def __repr__(self) -> str:
        shown = ", ".join(f"{k}={v:.6g}" for k, v in list(self.metrics.items())[:6])
        found = f"{len(self.violations)} violations" if self.violations else "no violations"
        return f"Run({self.seconds:.6g} s {self.engine}, {found}, {shown})"

    def _repr_html_(self) -> str:
        from orrery.lab.html_cells import run_cell

        return run_cell(self)

    def to_columns(self, table: Table = "metrics") -> dict[str, list[Any]]:
        """A table as lists by column: the metrics, the `records` (emits), or the violations."""
        from orrery.lab import frames

        return frames.to_columns(frames.run_columns(self, table))

    def to_pandas(self, table: Table = "metrics") -> pandas.DataFrame:
        """The same as a DataFrame of pandas (the extra `frames`)."""
        from orrery.lab import frames

        return frames.to_pandas(frames.run_columns(self, table))

    def to_polars(self, table: Table = "metrics") -> polars.DataFrame:
        """The same as a DataFrame of Polars (the extra `frames`)."""
        from orrery.lab import frames

        return frames.to_polars(frames.run_columns(self, table))


def run(
    part: Any,
    *,
    problem: Problem | None = None,
    world: World | None = None,
    engine: str = "virtual",
    seed: int = 0,
    until_s: float | None = None,
    monitors: Sequence[Monitor] = (),
    **options: Any,
) -> Run:
    """Run a part (or {role: part}) on a problem in a world.

    With no problem and no `until_s` it ends when all is quiet; an ask that can then never be
    answered is a violation. `options` go to the engine (`trace=True`, `wire=True`, …).
    """
    check_call(part, problem, engine, seed, until_s, monitors)
    if world is None:
        if problem is None:
            raise UsageError("run() needs a world; for example world=World.lan(5)")
        world = problem.world()
    roles = _roles(part, problem, world)
    made = _engine(engine, part)(
        roles, world=world, problem=problem, part=part, seed=seed, monitors=monitors, **options
    )
    return judge(made.run(until_s), problem, monitors)


def judge(outcome: Outcome, problem: Problem | None, monitors: Sequence[Monitor] = ()) -> Run:
    """Check and measure an outcome: the last step of every engine's run."""
    violations = list(outcome.violations)
    metrics: dict[str, float] = {}
    decisions = None
    if problem is not None:
        violations += problem.check(outcome)
        metrics.update(problem.measure(outcome))
        if problem.unique_outcome:
            decisions = problem.decisions(outcome)
    else:
        metrics.update(messages=float(outcome.messages), bytes=float(outcome.bytes))
    for monitor in monitors:
        violations += monitor.violations()
        metrics.update(monitor.metrics())
    violations, noticed = _against_budget(outcome, violations)
    return Run(
        metrics=metrics, violations=violations, digest=outcome.digest, seconds=outcome.seconds,
        events=outcome.events, spans=outcome.spans, seed=outcome.seed, engine=outcome.engine,
        ended=outcome.ended, part=outcome.part, problem=problem, world=outcome.world,
        messages=outcome.messages, bytes=outcome.bytes, records=outcome.records,
        units=dict(problem.metrics) if problem is not None else {}, decisions=decisions,
        extra={**outcome.extra, **noticed, "energy_J": outcome.energy_J, "money": outcome.money},
    )  # fmt: skip


def _against_budget(
    outcome: Outcome, violations: list[Violation]
) -> tuple[list[Violation], dict[str, Any]]:
    """In a world with more faults than the part tolerates, silence is what is wrong.

    Such a run tests the checker: what it finds is expected and goes to `extra["noticed"]`, and a
    run in which it finds nothing has the violation `unnoticed`.
    """
    if not getattr(outcome.world, "over_budget", False):
        return violations, {}
    if violations:
        return [], {"noticed": violations}
    silent = Violation(
        kind="unnoticed",
        message="the faults exceed what the part tolerates, yet no checker noticed anything; "
        "inject more, or mend the checker",
    )
    return [silent], {}


def check_call(
    part: Any,
    problem: Any,
    engine: str,
    seed: Any,
    until_s: Any,
    monitors: Sequence[Any],
) -> None:
    """Refuse a call that cannot work, with the fix, before anything is built."""
    if isinstance(part, type):
        raise UsageError(f"run() got the class {part.__name__}; make one: {part.__name__}()")
    if problem is not None and not isinstance(problem, Problem):
        raise UsageError(f"problem={problem!r} is not a Problem; for example Broadcast(values=20)")
    if engine not in ENGINES:
        raise UsageError(f"no engine {engine!r}; {did_you_mean(engine, ENGINES)}")
    # An actor of Ray is a real process too: what runs on the one runs on the other.
    needed = "processes" if engine == "ray" else engine
    if problem is not None and needed not in problem.engines:
        raise UsageError(
            f"{type(problem).__name__} models what is around its part, so it runs on "
            f"{' and '.join(problem.engines)}, not on {engine!r}"
        )
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise UsageError(f"seed={seed!r} is not a whole number")
    if until_s is not None and not (isinstance(until_s, int | float) and 0 < until_s < math.inf):
        raise UsageError(f"until_s={until_s!r}: give a number of seconds > 0")
    for monitor in monitors:
        if not isinstance(monitor, Monitor):
            raise UsageError(f"monitors holds {monitor!r}, which is not a Monitor")


def _roles(part: Any, problem: Problem | None, world: World) -> Mapping[str, Any]:
    if problem is not None:
        problem.accept(part)
        return problem.host(part, world)
    if isinstance(part, Mapping):
        return part
    if isinstance(part, Node):
        return {"node": part}
    if isinstance(part, Swarm):
        return {}
    raise UsageError(f"a {type(part).__name__} cannot run alone; name the problem that hosts it")


def _engine(name: str, part: Any) -> Any:
    if isinstance(part, Swarm):
        if name != "virtual":
            raise UsageError(f"a swarm runs on the virtual engine, not on {name!r}")
        from orrery.engines.virtual.swarm import SwarmEngine

        return SwarmEngine
    if name == "virtual":
        from orrery.engines.virtual.engine import Engine

        return Engine
    if name == "ray":
        from orrery.engines.ray.engine import RayEngine

        return RayEngine
    from orrery.engines.processes.engine import ProcessEngine

    return ProcessEngine
