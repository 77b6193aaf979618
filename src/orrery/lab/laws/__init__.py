"""The laws that every part must obey, by its shape; the tests hold everything discovered to them.

    from orrery.lab import laws
    laws.check(MyRouter(), LLMRouting())       # a list of what is broken; empty is good

`check` finds the laws by what a part is: all parts have those of constructors and modules; a part
with a problem has those of running (among them: it survives what `tolerates` names); policies,
routines, estimators, workers and collectives have their own besides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from orrery.base.errors import OrreryError, UsageError
from orrery.lab.laws.common import PART_LAWS, Broken, Law, Subject, try_law
from orrery.lab.laws.ranks import COLLECTIVE_LAWS, WORKER_LAWS
from orrery.lab.laws.running import RUNNING_LAWS, faults_of
from orrery.lab.laws.still import ESTIMATOR_LAWS, POLICY_LAWS, ROUTINE_LAWS
from orrery.parts import Estimator, Node, Policy, Problem, Routine, Worker
from orrery.parts.collectives import Collective
from orrery.parts.knobs import Part
from orrery.world import World

__all__ = ["Broken", "Law", "Subject", "check", "check_problem", "faults_of", "laws_of"]

_BY_SHAPE: tuple[tuple[type, tuple[Law, ...]], ...] = (
    (Collective, COLLECTIVE_LAWS), (Policy, POLICY_LAWS), (Routine, ROUTINE_LAWS),
    (Estimator, ESTIMATOR_LAWS),
)  # fmt: skip


def laws_of(part: Any, problem: Problem | None = None) -> tuple[Law, ...]:
    """The laws that hold for this part; those of running need the problem that it answers."""
    found = list(PART_LAWS)
    for shape, laws in _BY_SHAPE:
        if isinstance(part, shape):
            found += laws
    if problem is not None:
        found += RUNNING_LAWS
        if isinstance(part, Worker):
            found += WORKER_LAWS
    return tuple(found)


def check(
    part: Any,
    problem: Problem | None = None,
    *,
    seeds: Sequence[int] = (0,),
    engines: Sequence[str] = (),
) -> list[Broken]:
    """What laws a part breaks, on a problem; an empty list is good.

    More `seeds` try the faults more often; `engines` such as ("processes",) must give the same
    verdict as virtual time.
    """
    if not isinstance(part, Part) or isinstance(part, type):
        raise UsageError(f"laws.check({part!r:.60}): give a part, for example PushGossip()")
    if problem is not None and not isinstance(problem, Problem):
        raise UsageError(f"laws.check(…, {problem!r:.60}): give a problem, for example Broadcast()")
    if not seeds:
        raise UsageError("laws.check(seeds=()): give at least one seed")
    if problem is None and isinstance(part, Node):
        raise UsageError(f"{type(part).__name__} is a node; name the problem that it answers")
    subject = Subject(part, problem, tuple(seeds), tuple(engines))
    return [broken for law in laws_of(part, problem) for broken in try_law(law, subject)]


# -- problems


def check_problem(problem: Problem) -> list[Broken]:
    """What laws a problem breaks: those of all parts, a world, metrics, and a port that refuses."""
    if not isinstance(problem, Problem):
        raise UsageError(f"laws.check_problem({problem!r:.60}): give a problem, as Broadcast()")
    subject = Subject(problem)
    laws: tuple[Law, ...] = (*PART_LAWS, asks_a_full_question)
    return [broken for law in laws for broken in try_law(law, subject)]


def asks_a_full_question(subject: Subject) -> Iterable[str]:
    """It has a world, says what it measures with units and directions, and refuses what misfits."""
    problem = subject.part
    if not isinstance(problem.world(), World):
        yield "world() gives no World"
    if not problem.metrics:
        yield "metrics is empty; say what is measured"
    for name, metric in problem.metrics.items():
        if metric.better not in ("lower", "higher", ""):
            yield f"metrics[{name!r}].better is {metric.better!r}; give lower, higher or nothing"
        if not metric.says:
            yield f"metrics[{name!r}] does not say what it is"
    try:
        problem.accept(_Stranger())
    except OrreryError:
        return
    yield f"accept takes a part that is no {problem.port.__name__}"


class _Stranger(Part):
    """A part that answers no problem."""
