"""Planted faults in the checkers, and lying verifiers: the tests and the problem notice them."""

from __future__ import annotations

import pytest

pytest.importorskip("z3", reason="pip install 'orrery[verify]'")

from orrery import run
from orrery.base.errors import InternalError
from orrery.base.rand import Stream
from orrery.systems.protocols.baselines.explicit_state import ExplicitState
from orrery.systems.protocols.problems.property_verification import PropertyVerification, Verifier
from orrery.systems.protocols.taco import (
    Taco,
    checker,
    library,
    orders,
    parse,
    paths,
    random_automaton,
    replayed,
    segments,
    smt,
)
from orrery.systems.protocols.taco.answer import Answer
from orrery.systems.protocols.taco.trace import Counterexample, why_bogus


def kinds(part, **knobs) -> set[str]:
    made = run(part, problem=PropertyVerification(**{"drawn": 0, **knobs}))
    return {violation.kind for violation in made.violations}


# -- verifiers that lie


class SaysSafe(Verifier):
    """Finds everything safe."""

    def __call__(self, automaton, name=""):
        return Answer("safe")


class SaysUnsafe(Verifier):
    """Finds everything unsafe, by the run in which nothing happens."""

    def __call__(self, automaton, name=""):
        zero = dict.fromkeys((*automaton.locations, *automaton.shared), 0)
        parameters = dict.fromkeys(automaton.parameters, 0)
        return Answer("unsafe", Counterexample(tuple(parameters.items()), tuple(zero.items()), ()))


class SaysNothing(Verifier):
    """Calls it unsafe and shows no run."""

    def __call__(self, automaton, name=""):
        return Answer("unsafe")


class Mumbles(Verifier):
    """A word that is no verdict."""

    def __call__(self, automaton, name=""):
        return Answer("perhaps")


def test_the_problem_notices_every_kind_of_lie():
    assert kinds(SaysSafe()) == {"wrong_verdict"}
    assert kinds(SaysSafe(), automata=(), drawn=6) == {"missed_violation"}
    assert kinds(SaysUnsafe()) == {"bogus_counterexample"}
    assert kinds(SaysNothing()) == {"no_counterexample"}
    assert kinds(Mumbles()) == {"no_verdict"}
    assert kinds(Taco()) == set()


def test_a_counterexample_with_a_step_that_cannot_be_taken_does_not_replay():
    automaton = library.automaton("strb")
    real = Taco()(automaton, "may_accept").counterexample
    asked = automaton.property_named("may_accept")
    for schedule in (("2",), ("0",), ("0", "0", "2"), ("0", "nine")):
        false = Counterexample(real.parameters, real.start, schedule)
        assert why_bogus(automaton, asked, false)
        part, problem, world = replayed(automaton, "may_accept", false)
        seen = [v.kind for v in run(part, problem=problem, world=world).violations]
        assert "property_broken" not in seen
    wrong_start = Counterexample(real.parameters, tuple((n, v + 1) for n, v in real.start), ("0",))
    assert "initial conditions" in why_bogus(automaton, asked, wrong_start)


# -- faults in the procedures


def disagreements(method: str, seeds: range) -> int:
    """How often a procedure misses what enumeration sees, or brings a run that is none."""
    found = 0
    for seed in seeds:
        automaton = random_automaton(Stream(seed, "taco", "random"))
        if "acs" in method and "L0 != 0" in automaton.properties[0].text:
            continue
        try:
            answer = Taco(method=method)(automaton, "drawn")
        except InternalError:
            found += 1
            continue
        seen = ExplicitState(most_n=4)(automaton, "drawn")
        found += seen.verdict == "unsafe" and answer.verdict == "safe"
    return found


SEEDS = range(10)


@pytest.mark.works_when("taco", 3)
def test_without_its_stretches_the_smt_checker_misses_violations(monkeypatch):
    monkeypatch.setattr(smt, "rising_or_falling", lambda automaton: ())
    assert disagreements("smt", SEEDS) > 0


@pytest.mark.works_when("taco", 3)
def test_without_guards_the_smt_checker_brings_false_runs(monkeypatch):
    monkeypatch.setattr(smt, "_enabled", lambda walk, rules, begin, end: [])
    assert disagreements("smt", SEEDS) > 0


CYCLE = """ta C { parameters n; shared x; assumptions { n >= 1; }
locations { A: [0]; B: [1]; C: [2]; } inits { A == n; B == 0; C == 0; x == 0; } rules {
0: B -> C when (true) do { x' == x + 1; }; 1: C -> B when (true) do {}; }
specifications { quiet: [](x == 0); } }"""


@pytest.mark.works_when("taco", 1)
@pytest.mark.parametrize("method", ["smt", "zcs", "acs"])
def test_a_cycle_that_nobody_reaches_is_not_used(method, monkeypatch):
    # B and C feed each other: the numbers balance, but no process is ever there.
    automaton = parse(CYCLE)
    assert Taco(method=method)(automaton, "quiet").verdict == "safe"
    if method == "smt":
        monkeypatch.setattr(segments.Walk, "_reached", lambda walk, place, rules: [])
        with pytest.raises(InternalError, match="cannot be put in order"):
            Taco(method=method)(automaton, "quiet")


@pytest.mark.works_when("taco", 1)
def test_with_one_order_of_thresholds_the_path_checkers_miss_violations(monkeypatch):
    whole = orders.Thresholds.orders
    monkeypatch.setattr(orders.Thresholds, "orders", lambda self: list(whole(self))[:1])
    missed = disagreements("zcs", SEEDS)
    assert missed > 0


@pytest.mark.works_when("taco", 1)
def test_a_wrong_interval_makes_the_procedures_differ(monkeypatch):
    # Every threshold is met one interval too late: rules come too late, and violations are missed.
    plain = orders.Order.enabled
    monkeypatch.setattr(
        orders.Order, "enabled",
        lambda self, rule, context: plain(self, rule, tuple(max(0, c - 1) for c in context)),
    )  # fmt: skip
    assert disagreements("all", SEEDS) > 0


@pytest.mark.works_when("taco", 4)
def test_a_semi_decision_that_gives_up_early_would_be_caught(monkeypatch):
    # A search that takes "no more paths of this length" for "no paths" calls unsafe things safe.
    monkeypatch.setattr(paths.PathSearch, "_go_on", lambda self, path, length: None)
    wrong = [
        (name, asked)
        for name, verdicts in library.EXTENDED.items()
        for asked, known in verdicts.items()
        if known == "unsafe"
        and Taco(method="zcs", budget=200_000)(library.automaton(name), asked).verdict != "unsafe"
    ]
    assert wrong


def test_a_disagreement_is_a_violation_of_the_run(monkeypatch):
    monkeypatch.setitem(checker.CHECKS, "zcs", lambda automaton, asked, solver: None)
    assert kinds(Taco(method="all")) == {"verifier_broke"}
