"""Random walks: a known chance of finding, real runs, and no proofs."""

from __future__ import annotations

import pytest

from orrery.base.errors import KnobError, UsageError
from orrery.systems.protocols.baselines.random_walks import RandomWalks
from orrery.systems.protocols.taco import library, parse
from orrery.systems.protocols.taco.trace import why_bogus

FORK = parse("""ta Fork { parameters n; assumptions { n == 1; }
    locations { A: [0]; L: [1]; R: [2]; } inits { A == n; L == 0; R == 0; }
    rules { 0: A -> L when (true) do {}; 1: A -> R when (true) do {}; }
    specifications { right: [](L == 0); } }""")


def test_a_fork_is_taken_to_the_left_every_second_time():
    # One walk of one process finds the violation with chance 1/2: 400 tries, five deviations wide.
    hits = sum(RandomWalks(walks=1, seed=s)(FORK, "right").verdict == "unsafe" for s in range(400))
    assert abs(hits - 200) < 5 * 10


def test_what_it_finds_is_real_and_the_seed_decides():
    automaton = library.automaton("floodmin")
    first = RandomWalks(walks=2000, most_n=3)(automaton, "agreement")
    again = RandomWalks(walks=2000, most_n=3)(automaton, "agreement")
    assert first.verdict == "unsafe" and first.counterexample == again.counterexample
    assert why_bogus(automaton, automaton.property_named("agreement"), first.counterexample) == ""


def test_it_proves_nothing_and_says_so():
    answer = RandomWalks(walks=20)(library.automaton("strb"), "unforgeability")
    assert answer.verdict == "unknown" and "20 walks" in answer.reason
    assert RandomWalks(walks=5, most_n=3)(
        parse("""ta N { parameters n; assumptions { n > 9; } locations { A: [0]; }
        inits { A == n; } specifications { s: [](A >= 1); } }"""), "s"
    ).verdict == "unsatisfiable"  # fmt: skip


def test_bad_input_is_refused():
    with pytest.raises(KnobError, match=r"RandomWalks\.walks"):
        RandomWalks(walks=0)
    with pytest.raises(UsageError, match="is no automaton"):
        RandomWalks()(7)
