"""One law test over everything discovered: systems, classics and problems.

The default trial has one seed and, where a problem names one, a shorter question; `make test-slow`
has five seeds, the whole question, and the processes engine besides.
"""

from __future__ import annotations

import pytest

from orrery.lab import discover, laws
from orrery.lab.questions import problem_class, questions
from orrery.parts import Estimator, Node, Policy, Routine
from orrery.parts.collectives import Collective

FOUND = discover.scan()
BUILT = [entry for entry in FOUND.entries if entry.built]
# Which classes may stand under a shape; a protocol of several roles is a part that names them.
SHAPES = {
    "node": Node, "worker": (Node, Collective), "policy": Policy, "routine": Routine,
    "estimator": Estimator,
}  # fmt: skip


def part_and_problem(entry):
    part = discover.load_entry(entry)()  # that it does not leak is one of the laws
    return part, problem_class(entry.problem)() if entry.problem else None


def test_every_stem_is_well_formed():
    assert [str(error) for error in FOUND.errors] == []
    assert len(BUILT) >= 10


@pytest.mark.parametrize("entry", BUILT, ids=lambda entry: entry.id)
def test_the_shape_is_the_declared_one(entry):
    part, _ = part_and_problem(entry)
    assert isinstance(part, SHAPES[entry.shape]) or callable(getattr(part, "roles", None))


@pytest.mark.parametrize("entry", BUILT, ids=lambda entry: entry.id)
def test_every_system_obeys_the_laws_of_its_shape(entry, record_property):
    record_property("engine", (entry.id, "virtual"))
    part, problem = part_and_problem(entry)
    if problem is not None:
        problem = problem.with_knobs(**problem.trial)
    assert [str(broken) for broken in laws.check(part, problem)] == []


@pytest.mark.slow
@pytest.mark.parametrize("entry", BUILT, ids=lambda entry: entry.id)
def test_every_system_obeys_them_for_more_seeds_and_on_processes(entry, record_property):
    part, problem = part_and_problem(entry)
    engines = ("processes",) if "processes" in getattr(problem, "engines", ()) else ()
    if engines:
        record_property("engine", (entry.id, "processes"))
    found = laws.check(part, problem, seeds=range(1, 6), engines=engines)
    assert [str(broken) for broken in found] == []


@pytest.mark.parametrize("question", questions(), ids=lambda question: question.id)
def test_every_problem_asks_a_full_question(question):
    found = laws.check_problem(problem_class(question.id)())
    assert [str(broken) for broken in found] == []
