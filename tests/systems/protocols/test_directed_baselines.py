"""The classics of `directed_consensus`: each gives a known figure of its own."""

from __future__ import annotations

import math

import networkx as nx
import pytest

from orrery import World, run
from orrery.base.errors import KnobError
from orrery.base.rand import Stream
from orrery.systems.protocols.baselines.dolev_strong_consensus import DolevStrongConsensus
from orrery.systems.protocols.baselines.min_max_crash import MinMaxCrash, one_reach
from orrery.systems.protocols.baselines.trimmed_mean import TrimmedMean, iterative
from orrery.systems.protocols.baselines.unsigned_directed import (
    UnsignedDirected,
    three_reach,
    tseng_vaidya,
)
from orrery.systems.protocols.directed_byzantine_auth import conditions
from orrery.systems.protocols.problems.digraphs import (
    Digraph,
    all_digraphs,
    complete,
    drawn,
    ring,
    triangles,
)
from orrery.systems.protocols.problems.directed_consensus import DirectedConsensus
from orrery.world import Byzantine, Crash

PARTS = (DolevStrongConsensus(), UnsignedDirected(), MinMaxCrash(), TrimmedMean())


def lied_to(part, problem, n, liars, lie, seed):
    world = World.lan(n).with_faults(Byzantine(node=liars, strategies=(lie,)))
    return run(part, problem=problem, world=world, seed=seed)


# -- Dolev and Strong


@pytest.mark.parametrize(("n", "f"), [(3, 1), (5, 2), (7, 3)])
def test_dolev_strong_takes_f_plus_one_rounds_and_its_messages(n, f):
    problem = DirectedConsensus(tolerated=f)
    made = run(DolevStrongConsensus(), problem=problem, world=World.lan(n))
    assert made.violations == [] and made.metrics["rounds"] == f + 1
    # Everybody tells its bit; everybody passes every other bit on to whom it is news, at once.
    assert made.messages == 2 * n * (n - 1) + 3 * n  # and the client's: begin, outcome, answer
    tokens = n * (n - 1) + n * (n - 1) * (n - 2) * 2
    assert 64 * tokens < made.bytes < 1.6 * (64 + 24) * tokens + 64 * made.messages + 2000 * n


@pytest.mark.parametrize("lie", ["silence", "equivocate", "mutate", "replay"])
def test_dolev_strong_bears_almost_half(lie):
    for seed in range(4):
        problem = DirectedConsensus(tolerated=2, inputs=("equal", "random")[seed % 2])
        made = lied_to(DolevStrongConsensus(), problem, 5, (1, 3), lie, seed)
        assert made.violations == []


def test_dolev_strong_needs_its_rounds_to_be_long_enough():
    world = World.lan(5, latency_s=0.2, jitter=2.0)
    part = DolevStrongConsensus(round_s=0.05)
    problem = DirectedConsensus(inputs="values", values=(1.0,) * 5)
    made = run(part, problem=problem, world=world)
    assert {each.kind for each in made.violations} == {"invalid_decision"}


# -- without signatures


def test_the_two_forms_of_the_unsigned_condition_are_one():
    for n in (2, 3, 4):
        for graph in all_digraphs(n):
            for f in (0, 1):
                assert three_reach(graph, f) == tseng_vaidya(graph, f), (graph.links, f)
    rng = Stream(4, 0, "graphs")
    answers = set()
    for i in range(40):
        graph = drawn(5 + i % 3, 0.6 + 0.4 * rng.random(), rng)
        answers.add(three_reach(graph, 1))
        assert three_reach(graph, 1) == tseng_vaidya(graph, 1)
    assert answers == {True, False}


def test_the_unsigned_condition_is_three_f_plus_one_and_connectivity_two_f_plus_one():
    for f in (1, 2):
        for n in range(f + 1, 3 * f + 3):
            assert three_reach(complete(n), f) == (n > 3 * f)
    # On two-way graphs it is the classical pair of bounds (Dolev, 1982; Fischer et al., 1986).
    rng, answers = Stream(7, 0, "two-way"), set()
    for i in range(60):
        n = 4 + i % 4
        pairs = [(a, b) for a in range(n) for b in range(a) if rng.random() < 0.5 + 0.5 * (i % 2)]
        known = nx.Graph(pairs)
        known.add_nodes_from(range(n))
        classical = n >= 4 and nx.node_connectivity(known) >= 3
        graph = Digraph.of(n, [*pairs, *((b, a) for a, b in pairs)])
        assert three_reach(graph, 1) == classical, pairs
        answers.add(classical)
    assert answers == {True, False}


@pytest.mark.parametrize("lie", ["silence", "equivocate", "mutate", "replay"])
def test_unsigned_consensus_agrees_on_complete_and_sparse_graphs(lie):
    for seed in range(6):
        graph, n = (("complete", 4), ("random", 5))[seed % 2]
        problem = DirectedConsensus(graph=graph, inputs=("equal", "random")[seed % 3 > 0])
        made = lied_to(UnsignedDirected(), problem, n, (seed % n,), lie, seed)
        assert made.violations == []
    assert made.metrics["rounds"] == n * 2 * n


def test_unsigned_consensus_with_two_liars_among_seven():
    problem = DirectedConsensus(tolerated=2)
    made = lied_to(UnsignedDirected(), problem, 7, (0, 3), "equivocate", 1)
    assert made.violations == [] and made.metrics["rounds"] == math.comb(7, 2) * 2 * 7


def test_unsigned_consensus_breaks_with_three_nodes_and_one_liar():
    wrong = set()
    for seed in range(12):
        problem = DirectedConsensus(inputs="equal", strict=False)
        made = lied_to(UnsignedDirected(), problem, 3, (seed % 3,), "equivocate", seed)
        wrong |= {each.kind for each in made.violations}
        split = problem.with_knobs(inputs="random")
        made = lied_to(UnsignedDirected(), split, 3, (seed % 3,), "mutate", seed)
        wrong |= {each.kind for each in made.violations}
    assert wrong
    assert conditions.synchronous(complete(3), 1)  # with signatures three are enough


# -- crashes


@pytest.mark.parametrize(("n", "f"), [(3, 2), (4, 1), (6, 3)])
def test_min_max_takes_its_rounds_and_survives_f_crashes(n, f):
    for seed in range(8):
        rng = Stream(seed, n, "crashes")
        victims = rng.sample(range(n), f)
        faults = [Crash(node=v, at_s=0.2 + rng.uniform(0.0, 1.0)) for v in victims]
        problem = DirectedConsensus(graph="random", tolerated=f, inputs="split")
        made = run(MinMaxCrash(), problem=problem, world=World.lan(n).with_faults(*faults),
                   seed=seed)  # fmt: skip
        assert made.violations == []
        assert made.metrics["rounds"] == 2 * (f + 1) * (n - 1)


def test_crashes_ask_for_one_source_and_no_more():
    for n in range(2, 6):
        assert all(one_reach(complete(n), f) for f in range(n))
        assert one_reach(ring(n), 1) and (n < 4 or not one_reach(ring(n), 2))
    for graph in all_digraphs(4):
        kinder = conditions.synchronous(graph, 1)
        assert one_reach(graph, 1) or not kinder
    assert one_reach(triangles(), 1) and not one_reach(triangles(joined=False), 1)
    apart = Digraph.of(4, [(0, 1), (1, 0), (2, 3), (3, 2)])
    problem = DirectedConsensus(graph="links", links=apart.links, tolerated=0, strict=False,
                                inputs="values", values=(0.0, 0.0, 1.0, 1.0))  # fmt: skip
    made = run(MinMaxCrash(), problem=problem, world=World.lan(4))
    assert {each.kind for each in made.violations} == {"disagreement"}


def test_min_max_is_no_match_for_a_liar():
    problem = DirectedConsensus(inputs="equal")
    wrong = [lied_to(MinMaxCrash(), problem, 4, (3,), "equivocate", seed).ok for seed in range(4)]
    assert not all(wrong)


# -- trimmed means


@pytest.mark.parametrize(("n", "f"), [(4, 1), (7, 2), (10, 3)])
def test_trimmed_means_contract_by_the_closed_form(n, f):
    # With at least f inputs 0 and f inputs 1 on a complete graph, a 0 drops f of the ones and
    # moves to (b - f) / (n - f), a 1 drops f of the zeros and moves to b / (n - f).
    values = tuple(float(v < n // 2) for v in range(n))
    problem = DirectedConsensus(tolerated=f, inputs="values", values=values, epsilon=1.0)
    made = run(TrimmedMean(steps=1), problem=problem, world=World.lan(n))
    assert made.violations == []
    assert made.metrics["spread"] == pytest.approx(f / (n - f))


def test_trimmed_means_without_faults_are_the_mean_at_once():
    values = (0.0, 0.25, 0.5, 1.0, 4.0)
    problem = DirectedConsensus(tolerated=0, inputs="values", values=values)
    made = run(TrimmedMean(steps=1), problem=problem, world=World.lan(5))
    decided = [r.values["decided"] for r in made.records if "decided" in r.values]
    assert decided == pytest.approx([sum(values) / 5] * 5)


@pytest.mark.parametrize("lie", ["silence", "equivocate", "mutate", "replay"])
def test_trimmed_means_bear_liars(lie):
    for seed in range(4):
        problem = DirectedConsensus(graph="random", tolerated=1)
        made = lied_to(TrimmedMean(), problem, 5, (seed % 5,), lie, seed)
        assert made.violations == []


def test_trimmed_means_need_robust_graphs():
    for f in (1, 2):
        for n in range(f + 1, 3 * f + 3):
            assert iterative(complete(n), f) == (n > 3 * f)
    for graph in all_digraphs(4):  # purely local rules ask for at least as much as relaying
        assert tseng_vaidya(graph, 1) or not iterative(graph, 1)
    stuck = DirectedConsensus(graph="bridge", strict=False, inputs="values",
                              values=(0.0, 0.0, 0.0, 1.0, 1.0, 1.0))  # fmt: skip
    made = run(TrimmedMean(), problem=stuck, world=World.lan(6))
    assert "disagreement" in {each.kind for each in made.violations}


# -- all


@pytest.mark.parametrize("part", PARTS, ids=lambda part: type(part).__name__)
def test_a_graph_that_does_not_suit_is_refused(part):
    apart = Digraph.of(4, [(0, 1), (1, 0), (2, 3), (3, 2)])
    with pytest.raises(KnobError, match=rf"{type(part).__name__} promises nothing"):
        run(part, problem=DirectedConsensus(graph="links", links=apart.links))


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS, ids=lambda part: type(part).__name__)
def test_on_processes_with_a_kill(part):
    if isinstance(part, DolevStrongConsensus):
        pytest.importorskip("cryptography")
    problem = DirectedConsensus(lead_s=1.0)
    world = World.lan(4).with_faults(Crash(node=2, at_s=1.2))
    made = run(part, problem=problem, world=world, engine="processes", nodes_per_process=1)
    assert made.violations == []
