"""TACO: the three checkers agree, refute what must be refuted, replay it, and prove the rest."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("z3", reason="pip install 'orrery[verify]'")

from orrery import World, run
from orrery.base.errors import KnobError, UsageError
from orrery.base.rand import Stream
from orrery.systems.protocols.baselines.explicit_state import ExplicitState
from orrery.systems.protocols.problems.property_verification import PropertyVerification
from orrery.systems.protocols.taco import (
    SyntaxFault,
    Taco,
    UnsupportedProperty,
    library,
    parse,
    random_automaton,
    replayed,
    to_text,
)
from orrery.systems.protocols.taco.forms import All, Any_, Atom, Linear, both, compare
from orrery.systems.protocols.taco.trace import why_bogus


def plays(automaton, name, found, **options) -> list[str]:
    """The kinds of violations of a counterexample on stage."""
    part, problem, world = replayed(automaton, name, found)
    made = run(part, problem=problem, world=options.pop("world", world), **options)
    assert made.metrics["steps"] == len(found.schedule)
    return [violation.kind for violation in made.violations]


def agree(name: str) -> None:
    """All procedures on all properties of a library automaton, and the known verdicts."""
    automaton = library.automaton(name)
    for asked, known in library.expected(name).items():
        answer = Taco(method="all")(automaton, asked)
        assert answer.verdict == known, f"{name}.{asked}: {answer}"
        # Every procedure that took the question has decided it, and they said the same.
        assert {verdict for _, verdict in answer.procedures} == {known}
        assert [p for p, _ in answer.procedures][:2] == ["smt", "zcs"]
        if known == "unsafe":
            assert plays(automaton, asked, answer.counterexample) == ["property_broken"]


# -- 1: the three procedures


@pytest.mark.works_when("taco", 1)
@pytest.mark.parametrize("name", library.SMALLEST)
def test_all_procedures_agree_on_the_smallest(name):
    agree(name)


@pytest.mark.slow
@pytest.mark.works_when("taco", 1)
@pytest.mark.parametrize("name", sorted(library.EXPECTED))
def test_all_procedures_agree_on_every_classic(name):
    assert len(library.EXPECTED) >= 10
    agree(name)


def test_acs_takes_all_but_empty_targets_and_they_are_few():
    took = [
        Taco(method="acs")(library.automaton(name), asked).verdict
        for name in library.SMALLEST
        for asked in library.expected(name)
    ]
    assert len(took) == 10


# -- 2: what is fatal, and its replay

FATAL = [
    ("strb", "unforgeability", "n > 3 * t; f <= t + 1;"),
    ("aba", "unforgeability", "n > 3 * t; f <= t + 1;"),
    ("bv_broadcast", "justification0", "n > 3 * t; f <= t + 1;"),
    ("bracha_two", "agreement", "n > 3 * t; f <= t + 1;"),
    ("frb", "bounded_crashes", "n > t; f <= t + 1; n >= 1;"),
]
FATAL_SLOW = [
    ("cf1s", "one_step0", "n >= 3 * t; t >= f; t >= 1;"),
    ("bosco", "one_step0", "n > 3 * t; f <= t + 1; n > f;"),
    ("benor", "agreement", "n > 2 * t; f <= t + 1; n > f;"),
    ("floodmin2", "agreement", "n > t; t >= f; t == 2;"),
]


def weakened(name, assumptions):
    inside = f"parameters n, t, f; assumptions {{ {assumptions} }} locations {{ L: [0]; }}"
    return library.automaton(name).with_assumptions(parse(f"ta A {{ {inside} }}").assumptions)


def refuted(name, asked, assumptions, methods):
    automaton = weakened(name, assumptions)
    assert library.expected(name)[asked] == "safe"
    for method in methods:
        answer = Taco(method=method)(automaton, asked)
        assert answer.verdict == "unsafe", f"{method}: {answer}"
        assert why_bogus(automaton, automaton.property_named(asked), answer.counterexample) == ""
        assert plays(automaton, asked, answer.counterexample) == ["property_broken"]


@pytest.mark.works_when("taco", 2)
@pytest.mark.parametrize(("name", "asked", "assumptions"), FATAL)
def test_a_fatal_resilience_condition_is_refuted_and_replayed(name, asked, assumptions):
    refuted(name, asked, assumptions, ("smt", "zcs", "acs"))


@pytest.mark.slow
@pytest.mark.works_when("taco", 2)
@pytest.mark.parametrize(("name", "asked", "assumptions"), FATAL_SLOW)
def test_more_fatal_conditions(name, asked, assumptions):
    refuted(name, asked, assumptions, ("smt",))


def test_the_replay_is_the_same_in_every_world():
    automaton = library.automaton("naive_voting")
    found = Taco()(automaton, "agreement").counterexample
    size = found.processes(automaton)
    for options in ({"world": World.chosen(size)}, {"wire": True}, {"world": World.rounds(size)}):
        assert plays(automaton, "agreement", found, **options) == ["property_broken"]


@pytest.mark.slow
def test_the_replay_runs_on_processes():
    automaton = library.automaton("naive_voting")
    found = Taco()(automaton, "agreement").counterexample
    assert plays(automaton, "agreement", found, engine="processes") == ["property_broken"]


def looser(formula):
    """Every formula that has one threshold of this one lowered by one, or one atom left out."""
    if isinstance(formula, Atom):
        yield Atom(formula.form + Linear.number(1))
        yield All()
        return
    for place, part in enumerate(formula.parts):
        for other in looser(part):
            parts = (*formula.parts[:place], other, *formula.parts[place + 1 :])
            yield both(*parts) if isinstance(formula, All) else Any_(parts)


def mutants():
    """Automata with one wrong guard that enumeration at small n catches: (automaton, property)."""
    eye = ExplicitState(most_n=4)
    for name in ("strb", "frb", "aba", "naive_voting", "nbac", "bv_broadcast", "floodmin", "cbc"):
        whole = library.automaton(name)
        safe = [asked for asked, known in library.expected(name).items() if known == "safe"]
        for rule in whole.rules:
            for guard in looser(rule.guard):
                mutant = whole.with_rule(replace(rule, guard=guard))
                for asked in safe:
                    if eye(mutant, asked).verdict == "unsafe":
                        yield mutant, asked
                        break


@pytest.mark.works_when("taco", 2)
def test_ten_of_ten_mutants_are_caught():
    caught = 0
    for mutant, asked in mutants():
        answer = Taco()(mutant, asked)
        assert answer.verdict == "unsafe", f"{to_text(mutant)} {asked}"
        assert plays(mutant, asked, answer.counterexample) == ["property_broken"]
        caught += 1
        if caught == 10:
            break
    assert caught == 10


# -- 3: random automata


def compare_with_enumeration(count, most_n, method):
    larger = 0
    for seed in range(count):
        automaton = random_automaton(Stream(seed, "taco", "random"))
        answer = Taco(method=method)(automaton, "drawn")
        seen = ExplicitState(most_n=most_n)(automaton, "drawn")
        assert answer.verdict in ("safe", "unsafe"), f"seed {seed}: {answer}"
        if seen.verdict == "unsafe":
            assert answer.verdict == "unsafe", f"seed {seed}: {to_text(automaton)}"
        if answer.verdict == "unsafe":
            assert plays(automaton, "drawn", answer.counterexample) == ["property_broken"]
            larger += seen.verdict != "unsafe"
    return larger


@pytest.mark.works_when("taco", 3)
@pytest.mark.slow
def test_random_automata_agree_with_enumeration():
    # One of the forty is broken only beyond n = 5, and brings a run that can be replayed.
    assert compare_with_enumeration(40, 5, "auto") == 1


@pytest.mark.slow
@pytest.mark.works_when("taco", 3)
def test_two_hundred_random_automata_and_all_procedures():
    compare_with_enumeration(200, 6, "all")


# -- 4: semi-decisions


@pytest.mark.works_when("taco", 4)
@pytest.mark.parametrize("method", ["zcs", "acs"])
def test_a_semi_decision_never_says_safe_when_its_budget_ends(method):
    automaton = library.automaton("lock_reset")
    for budget in (1, 1_000, 100_000):
        answer = Taco(method=method, budget=budget)(automaton, "mutual_exclusion")
        assert answer.verdict == "unknown" and "budget" in answer.reason
        assert answer.counterexample is None
    # Even a decided question is unknown, not safe, when the budget is too small.
    assert (
        Taco(method=method, budget=1)(library.automaton("tickets"), "no_debt").verdict == "unknown"
    )


@pytest.mark.works_when("taco", 4)
@pytest.mark.parametrize("method", ["zcs", "acs"])
def test_resets_and_decrements_are_proved_and_refuted(method):
    for name, asked in (("rounds_reset", "may_return"), ("semaphore", "may_enter"),
                        ("lock_reset", "may_enter"), ("tickets", "may_run_out")):  # fmt: skip
        automaton = library.automaton(name)
        answer = Taco(method=method)(automaton, asked)
        assert answer.procedures == ((f"{method} (semi-decision)", "unsafe"),)
        assert plays(automaton, asked, answer.counterexample) == ["property_broken"]
    for name, asked in (
        ("rounds_reset", "validity"),
        ("tickets", "no_debt"),
        ("semaphore", "mutual_exclusion"),
    ):
        assert Taco(method=method)(library.automaton(name), asked).verdict == "safe"


@pytest.mark.works_when("taco", 4)
def test_random_automata_with_resets_are_never_called_safe_wrongly():
    for seed in range(12):
        automaton = random_automaton(Stream(seed, "taco", "random"), extended=True)
        answer = Taco(method="all", budget=200_000)(automaton, "drawn")
        seen = ExplicitState(most_n=3, most_states=5_000)(automaton, "drawn")
        assert not (answer.verdict == "safe" and seen.verdict == "unsafe"), f"seed {seed}"


EMPTY = """ta E { parameters n; locations { A: [0]; B: [1]; } inits { A == n; B == 0; }
rules { 0: A -> B when (true) do {}; } specifications { stays: [](A != 0 || B == 0); } }"""


@pytest.mark.works_when("taco", 4)
def test_what_a_checker_does_not_support_is_refused_by_name():
    automaton = parse(EMPTY)
    with pytest.raises(UnsupportedProperty, match="ACS checker cannot judge stays.* in A from abo"):
        Taco(method="acs")(automaton, "stays")
    for method in ("smt", "zcs"):
        assert Taco(method=method)(automaton, "stays").verdict == "unsafe"
    with pytest.raises(UnsupportedProperty, match="SMT checker .*rule 0 decrements s"):
        Taco(method="smt")(library.automaton("semaphore"), "may_enter")
    alive = parse(EMPTY.replace("[](A != 0 || B == 0)", "<>(B != 0)"))
    with pytest.raises(UnsupportedProperty, match="liveness"):
        Taco()(alive, "stays")


# -- 5: errors

BAD = [
    ("", 1, 1, "is empty"),
    ("ta A {\n  shard x;\n}", 2, 3, 'did you mean "shared"'),
    ("ta A {\n  shared x;\n  shared x;\n}", 3, 10, "declared already"),
    ("ta A { locations { L: [0]; }\n rules { 0: L -> M when (true) do {}; } }", 2, 18, "'M'"),
    ("ta A { shared x; parameters n; locations { L: [0]; }\n"
     " rules { 0: L -> L when (x >= m) do {}; } }", 2, 31, "'m'"),
    ("ta A { shared x, y; locations { L: [0]; }\n rules { 0: L -> L when (x * y >= 1) do {}; } }",
     2, 28, "not linear"),
    ("ta A { shared x; locations { L: [0]; }\n rules { 0: L -> L when (true) do { x' == 7; }; } }",
     2, 37, "no step or reset"),
    ("ta A { parameters n; assumptions { n > 1 } }", 1, 42, "';'"),
    ("ta A { parameters n; assumptions { n + ; } }", 1, 40, "a number or a name"),
    ("ta A { parameters n; assumptions { [](n > 1); } }", 1, 36, "outside a specification"),
    ("ta A { /* ", 1, 8, "close the comment"),
    ("ta A { parameters n; assumptions { n > 99999999999; } }", 1, 40, "too large"),
    ("ta A { parameters n; assumptions { " + "(" * 300 + "n > 1" + ")" * 300 + "; } }",
     1, 136, "nested"),
    ("ta A { } }", 1, 10, "follows the closing brace"),
    ("ta A { }", 1, 4, "A.locations: is empty"),
]  # fmt: skip


@pytest.mark.works_when("taco", 5)
@pytest.mark.parametrize(("text", "line", "column", "says"), BAD)
def test_errors_name_line_and_column(text, line, column, says):
    with pytest.raises(SyntaxFault) as caught:
        parse(text, "bad.ta")
    assert says in str(caught.value)
    assert (caught.value.line, caught.value.column) == (line, column), str(caught.value)
    assert str(caught.value).startswith(f"bad.ta:{line}:{column}: ")


@pytest.mark.works_when("taco", 5)
@pytest.mark.parametrize("method", ["auto", "all", "smt", "zcs", "acs"])
def test_unsatisfiable_assumptions_are_reported_as_such(method):
    never = weakened("strb", "n > 3 * t; t >= f; n < f;")
    answer = Taco(method=method)(never, "unforgeability")
    assert answer.verdict == "unsatisfiable" and "assumptions of SRB" in answer.reason
    empty = parse(EMPTY.replace("A == n;", "A == n; A > n;"))
    answer = Taco(method="zcs" if method == "acs" else method)(empty, "stays")
    assert answer.verdict == "unsatisfiable" and "inits" in answer.reason


def test_bad_input_is_refused_with_the_fix():
    strb = library.automaton("strb")
    with pytest.raises(UsageError, match='did you mean "unforgeability"'):
        Taco()(strb, "unforgeable")
    with pytest.raises(UsageError, match="is no automaton"):
        Taco()(None, "unforgeability")
    with pytest.raises(UsageError, match="is no name"):
        Taco()(strb, 3)
    with pytest.raises(KnobError, match=r"Taco\.method"):
        Taco(method="bdd")
    with pytest.raises(KnobError, match=r"Taco\.budget"):
        Taco(budget=0)
    with pytest.raises(UsageError, match='did you mean "strb"'):
        library.automaton("srtb")
    with pytest.raises(KnobError, match="no automaton 'nope'"):
        run(Taco(), problem=PropertyVerification(automata=("nope",)))
    with pytest.raises(SyntaxFault, match="is no text"):
        parse(None)


def test_every_file_of_the_library_reads_and_writes_back():
    for name in library.names():
        automaton = library.automaton(name)
        assert parse(to_text(automaton)) == automaton
        judged = {each.name for each in automaton.properties}
        assert judged == set(library.expected(name))


def test_the_problem_runs_it_and_is_content():
    made = run(Taco(method="all"), problem=PropertyVerification(), seed=3)
    assert made.violations == []
    assert made.metrics["procedures"] == 5
    assert made.metrics["decided"] == 1.0
    rival = run(ExplicitState(), problem=PropertyVerification(), seed=3)
    assert rival.violations == [] and rival.metrics["proved"] == 0.0


@pytest.mark.slow
def test_the_problem_gives_the_same_on_processes():
    one = run(Taco(), problem=PropertyVerification(), seed=3)
    other = run(Taco(), problem=PropertyVerification(), seed=3, engine="processes")
    assert other.violations == [] and one.decisions == other.decisions


def test_comparisons_become_atoms_that_mean_the_same():
    x, one = Linear.of("x"), Linear.number(1)
    for sign, law in (("<", int.__lt__), ("<=", int.__le__), (">", int.__gt__),
                      (">=", int.__ge__), ("==", int.__eq__), ("!=", int.__ne__)):  # fmt: skip
        from orrery.systems.protocols.taco.forms import holds, negate

        for value in range(4):
            made = compare(x, sign, one)
            assert bool(holds(made, {"x": value})) == law(value, 1)
            assert bool(holds(negate(made), {"x": value})) != law(value, 1)
