"""Explicit-state enumeration: known numbers of states, shortest runs, honest limits."""

from __future__ import annotations

from math import comb

import pytest

from orrery.base.errors import KnobError, UsageError
from orrery.base.rand import Stream
from orrery.systems.protocols.baselines.explicit_state import ExplicitState, Search, valuations
from orrery.systems.protocols.taco import (
    UnsupportedProperty,
    library,
    parse,
    random_automaton,
)

LINE = """ta Line {{ parameters n; assumptions {{ n == {n}; }}
locations {{ {places} }} inits {{ L0 == n; {empty} }} rules {{ {rules} }}
specifications {{ never: [](L0 <= n); }} }}"""


def line(n: int, length: int):
    """n processes that walk along a line of locations, each as far as it likes."""
    rest = range(1, length)
    return parse(LINE.format(
        n=n, places=" ".join(f"L{i}: [0];" for i in range(length)),
        empty=" ".join(f"L{i} == 0;" for i in rest),
        rules=" ".join(f"{i}: L{i - 1} -> L{i} when (true) do {{}};" for i in rest),
    ))  # fmt: skip


@pytest.mark.parametrize(("n", "length"), [(1, 2), (3, 3), (5, 4), (7, 5), (4, 1)])
def test_the_number_of_configurations_is_that_of_the_closed_form(n, length):
    # n indistinguishable processes in L places: C(n + L - 1, L - 1).
    answer = ExplicitState(most_n=n)(line(n, length), "never")
    assert answer.work == comb(n + length - 1, length - 1)
    assert answer.verdict == "unknown" and "no violation" in answer.reason


def test_the_run_that_it_finds_is_a_shortest_one():
    automaton = library.automaton("naive_voting")
    # Two of each vote are needed, and one decision of each: six steps, at n = 5 and no sooner.
    answer = ExplicitState(most_n=5)(automaton, "agreement")
    assert len(answer.counterexample.schedule) == 6
    assert dict(answer.counterexample.parameters) == {"n": 5, "t": 1, "f": 1}
    assert ExplicitState(most_n=4)(automaton, "agreement").verdict == "unknown"


def test_it_agrees_with_the_plain_version_on_random_automata():
    words = []
    for seed in range(25):
        automaton = random_automaton(Stream(seed, "explicit", "random"))
        # The plain version does not hold counts, so cycles that count would never end there.
        if any(rule.source >= rule.target for rule in automaton.rules):
            continue
        part = ExplicitState(most_n=3)
        words.append(part(automaton, "drawn").verdict)
        assert words[-1] == part.reference(automaton, "drawn").verdict, f"seed {seed}"
    assert {"unsafe", "unknown"} <= set(words)


def test_counts_that_grow_without_end_are_held_and_others_are_cut():
    grows = parse("""ta G { shared x; parameters n; assumptions { n == 1; } locations { A: [0]; }
        inits { A == n; x == 0; } rules { 0: A -> A when (true) do { x' == x + 1; }; }
        specifications { low: [](x <= 5); } }""")
    assert len(ExplicitState()(grows, "low").counterexample.schedule) == 6
    falls = parse("""ta F { shared x; parameters n; assumptions { n == 1; } locations { A: [0]; }
        inits { A == n; x == 0; } rules { 0: A -> A when (true) do { x' == x + 1; };
        1: A -> A when (x >= 99) do { x' == x - 1; }; } specifications { low: [](A <= 1); } }""")
    assert "cut short" in ExplicitState()(falls, "low").reason
    few = ExplicitState(most_states=3)(line(5, 4), "never")
    assert few.verdict == "unknown" and "cut short" in few.reason


def test_bad_input_is_refused_with_the_fix():
    with pytest.raises(KnobError, match=r"ExplicitState\.most_n"):
        ExplicitState(most_n=0)
    with pytest.raises(UsageError, match="is no automaton"):
        ExplicitState()("strb", "unforgeability")
    loose = parse("""ta U { parameters n; locations { A: [0]; B: [1]; } inits { A == n; }
        specifications { s: [](A >= 1); } }""")
    with pytest.raises(UsageError, match="leave B without a bound"):
        ExplicitState()(loose, "s")
    alive = parse("""ta U { parameters n; locations { A: [0]; } inits { A == n; }
        specifications { s: <>(A >= 1); } }""")
    with pytest.raises(UnsupportedProperty, match="liveness"):
        ExplicitState()(alive, "s")
    huge = line(100, 12)
    with pytest.raises(UsageError, match="smaller most_n"):
        Search(huge, huge.properties[0], {"n": 100}, 10).run()
    assert ExplicitState(most_n=2)(line(9, 2), "never").verdict == "unsatisfiable"
    assert list(valuations(line(2, 2), 1)) == []
