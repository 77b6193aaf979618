"""Node-averaged LOCAL time: messages beside balls, the exponential gap, colourings, ID-averages."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from orrery import World, run
from orrery.base.errors import KnobError, PartError, UsageError
from orrery.base.rand import Stream
from orrery.systems.protocols.baselines.cole_vishkin import ColeVishkin
from orrery.systems.protocols.baselines.full_view_election import FullViewElection
from orrery.systems.protocols.baselines.greedy_by_id import GreedyById
from orrery.systems.protocols.baselines.greedy_mis import GreedyMis
from orrery.systems.protocols.baselines.luby_mis import LubyMis
from orrery.systems.protocols.ordinary_node import LargestId, OrdinaryNode
from orrery.systems.protocols.problems.local_rounds import (
    LocalRounds,
    all_ids,
    ball_times,
    check_said,
    check_task,
    cycle,
    from_lists,
    lockstep,
    random_graph,
    random_ids,
    some_ids,
    sorted_ids,
    worst_ids,
    worst_sum,
    worst_sums,
)
from orrery.world import Crash

ALGORITHMS = [
    OrdinaryNode(), OrdinaryNode(early=False), FullViewElection(), GreedyById(), GreedyMis(),
    GreedyMis(draw=True), LubyMis(), ColeVishkin(),
]  # fmt: skip
NAMES = [repr(part) for part in ALGORITHMS]


def a_graph(number: int, cycles_only: bool):
    """Graph `number`: a cycle or a connected random graph, small, with random identifiers."""
    rng = Stream(number, "graph", "test_ordinary_node")
    n = 3 + rng.below(10)
    ids, key = random_ids(n, rng.word()), rng.word()
    if cycles_only or number % 4 == 0:
        return cycle(n, ids, key)
    return random_graph(n, rng.uniform(1.5, 4.5), rng, ids, key)


# -- 1: messages and balls


@pytest.mark.works_when("ordinary-node", 1)
@pytest.mark.parametrize("part", ALGORITHMS, ids=NAMES)
def test_messages_balls_and_arrays_agree_on_1000_graphs(part):
    for number in range(1000):
        graph = a_graph(number, part.cycles_only)
        said = lockstep(part, graph)
        assert check_said(said) == []
        first = [each[0] for each in said]
        assert list(ball_times(part, graph).values()) == first
        assert check_task(part.task, graph, [value for value, _ in first]) == []
        if number % 5:
            continue  # the arrays are a third witness; every fifth graph is enough for them
        outputs, rounds = part.arrays(graph)
        assert list(zip(outputs.tolist(), rounds.tolist(), strict=True)) == first


@pytest.mark.works_when("ordinary-node", 1)
@pytest.mark.parametrize("part", ALGORITHMS, ids=NAMES)
def test_the_same_on_the_engine_where_a_round_is_a_round_of_the_world(part):
    shape = "cycle" if part.cycles_only else "random"
    for seed in range(5):
        problem = LocalRounds(graph=shape, audit=100)
        made = run(part, problem=problem, world=World.rounds(11), seed=seed)
        assert made.violations == []
        graph = problem.instance(
            next(r.values["instance"] for r in made.records if "instance" in r.values), 11
        )
        assert list(made.decisions.values()) == list(ball_times(part, graph).values())
        for record in made.records:
            if "output" in record.values:  # the question itself takes the first round
                assert math.ceil(record.time_s) == record.values["round"] + 1


def test_late_and_lost_messages_change_no_output_and_no_round():
    calm = run(OrdinaryNode(), problem=LocalRounds(), world=World.rounds(12), seed=5)
    for world in (World.lan(12), World.lan(12, drop=0.2), World.ring(12)):
        rough = run(OrdinaryNode(), problem=LocalRounds(), world=world, seed=5)
        assert rough.violations == []
        assert rough.decisions == calm.decisions


# -- 2: leader election


def exhaustive(part, n: int) -> np.ndarray:
    """The mean time of every assignment on a cycle, up to rotation (which changes no time)."""
    return part.many(all_ids(n)).mean(axis=1)


def check_election(powers) -> list[tuple[int, float, float, float]]:
    """(n, slowest, worst average, random average) for cycles of 2^k nodes."""
    rows = []
    for k in powers:
        n = 2**k
        outputs, worst = OrdinaryNode().arrays(cycle(n, worst_ids(n)))
        assert outputs.sum() == 1
        assert worst.max() == n // 2
        assert worst.sum() == worst_sum(n - 1) + n // 2
        means = []
        for seed in range(5):
            rounds = OrdinaryNode().arrays(cycle(n, random_ids(n, seed)))[1]
            assert rounds.max() == n // 2
            means.append(rounds.mean())
        assert max(means) < worst.mean()
        rows.append((n, n // 2, float(worst.mean()), float(np.mean(means))))
    return rows


@pytest.mark.works_when("ordinary-node", 2)
def test_election_is_slow_for_the_leader_and_fast_for_the_ordinary_node():
    rows = check_election(range(4, 15))
    print("\n      n  slowest  worst average  random average")
    for n, slowest, worst, mean in rows:
        print(f"{n:7d}  {slowest:7d}  {worst:13.4f}  {mean:14.4f}")
    by_size = {n: worst for n, _, worst, _ in rows}
    assert (by_size[16], by_size[64], by_size[1024]) == (2.5, 3.5, 5.5)
    # The slowest doubles with n; the worst average grows by one half: n against log n.
    for (_, slow, worst, _), (_, slower, more, _) in itertools.pairwise(rows):
        assert slower == 2 * slow
        assert more - worst == pytest.approx(0.5, abs=1e-9)


@pytest.mark.slow
@pytest.mark.works_when("ordinary-node", 2)
def test_election_on_a_cycle_of_2_to_the_17():
    ((_, slowest, worst, mean),) = check_election([17])
    assert slowest == 65536
    assert mean < worst == 9.0


@pytest.mark.works_when("ordinary-node", 2)
@pytest.mark.parametrize("n", range(3, 9))
def test_the_recursion_is_the_worst_of_all_assignments(n):
    assert exhaustive(OrdinaryNode(), n).max() * n == pytest.approx(worst_sum(n - 1) + n // 2)


@pytest.mark.works_when("ordinary-node", 2)
def test_the_middle_attains_the_maximum_of_the_recursion():
    assert worst_sums(1099).tolist() == [worst_sum(m) for m in range(1100)]


@pytest.mark.works_when("ordinary-node", 2)
def test_without_early_output_there_is_no_gap():
    n = 1024
    rounds = OrdinaryNode(early=False).arrays(cycle(n, random_ids(n, 1)))[1]
    assert rounds.min() == rounds.max() == n // 2


def test_the_random_average_is_the_sum_of_odd_reciprocals():
    # A node is still silent after d rounds if it is the largest of its 2d + 1 nodes.
    for n in (5, 8):
        exact = sum(1 / (2 * d + 1) for d in range(n // 2))
        assert exhaustive(OrdinaryNode(), n).mean() == pytest.approx(exact)
    n = 4096
    means = [LargestId().arrays(cycle(n, random_ids(n, seed)))[1].mean() for seed in range(40)]
    assert np.mean(means) == pytest.approx(sum(1 / (2 * d + 1) for d in range(n // 2)), rel=0.02)


# -- 3: 3-colouring


def colouring_ratios(sizes) -> dict[str, list[float]]:
    """node-averaged / slowest by size, for three algorithms; every colouring is checked."""
    found: dict[str, list[float]] = {"ColeVishkin": [], "GreedyById": [], "LargestId": []}
    for n in sizes:
        graph = cycle(n, random_ids(n, n))
        for algorithm in (ColeVishkin(), GreedyById(), LargestId()):
            outputs, rounds = OrdinaryNode(algorithm=algorithm).arrays(graph)
            assert check_task(algorithm.task, graph, outputs) == []
            found[type(algorithm).__name__].append(rounds.mean() / rounds.max())
            if isinstance(algorithm, ColeVishkin):
                assert len(np.unique(rounds)) >= 3  # times really differ between nodes
    return found


@pytest.mark.works_when("ordinary-node", 3)
def test_colouring_has_no_gap_and_election_has():
    sizes = (100, 1_000, 10_000, 100_000)
    found = colouring_ratios(sizes)
    print("\n", {name: [round(r, 6) for r in ratios] for name, ratios in found.items()})
    assert all(0.2 < ratio <= 1 for ratio in found["ColeVishkin"])
    scaled = [r * n / math.log(n) for r, n in zip(found["LargestId"], sizes, strict=True)]
    assert max(scaled) < 2 * min(scaled)
    # The negative: by the same test election is not of the same order.
    assert found["LargestId"][-1] < 0.001


@pytest.mark.slow
@pytest.mark.works_when("ordinary-node", 3)
def test_colouring_a_million():
    found = colouring_ratios((1_000, 1_000_000))
    assert all(0.2 < ratio <= 1 for ratio in found["ColeVishkin"])


# -- 4: averages over identifiers


@pytest.mark.works_when("ordinary-node", 4)
@pytest.mark.parametrize(
    "part", [LargestId(), GreedyMis(), GreedyById(), ColeVishkin(), FullViewElection()], ids=repr
)
def test_sampled_averages_equal_exhaustive_ones(part):
    for n in range(3, 9):
        measured = OrdinaryNode(algorithm=part)
        assert measured.id_averaged(n, samples=5000) == pytest.approx(
            measured.id_averaged(n), rel=0.02
        )
        # The negative: one assignment alone is no estimate of the average.
        if n == 8 and type(part) is not FullViewElection:
            alone = [measured.id_averaged(n, samples=1, seed=seed) for seed in range(20)]
            assert max(alone) > 1.02 * measured.id_averaged(n)


def test_rotation_changes_no_time_and_rows_equal_single_cycles():
    for part in (LargestId(), GreedyMis(), GreedyById(), ColeVishkin(), FullViewElection()):
        for ids in some_ids(8, 20, key=3):
            one = part.arrays(cycle(8, ids))[1]
            assert part.many(ids[None, :])[0].tolist() == one.tolist()
            turned = part.arrays(cycle(8, np.roll(ids, 3)))[1]
            assert turned.tolist() == np.roll(one, 3).tolist()


@pytest.mark.works_when("ordinary-node", 4)
def test_random_identifiers_do_what_random_priorities_do():
    for k in range(6, 15):
        n = 2**k
        seeds = range(max(2, 4096 // n))
        fed = np.mean([GreedyMis().arrays(cycle(n, random_ids(n, s)))[1].mean() for s in seeds])
        drawn = np.mean([
            GreedyMis(draw=True).arrays(cycle(n, sorted_ids(n), key=s))[1].mean() for s in seeds
        ])  # fmt: skip
        luby = np.mean([LubyMis().arrays(cycle(n, sorted_ids(n), key=s))[1].mean() for s in seeds])
        assert 0.5 <= fed / drawn <= 2
        assert 0.5 <= fed / luby <= 2
        # The negative: identifiers that an adversary chose are no random priorities.
        if n <= 1024:
            assert GreedyMis().arrays(cycle(n, sorted_ids(n)))[1].mean() > 2 * drawn


# -- claims, knobs, errors


def test_the_metrics_of_the_claims():
    worst = LocalRounds(by="arrays", n=1024, ids="worst")
    made = run(OrdinaryNode(), problem=worst)
    assert made.violations == []
    assert made.metrics["exponential_gap"] == pytest.approx(9 / 5.5)
    off = run(OrdinaryNode(early=False), problem=worst)
    assert off.violations == []
    assert off.metrics["exponential_gap"] < 0.02
    assert off.metrics["ratio"] == 1.0
    mis = run(OrdinaryNode(algorithm=GreedyMis()), problem=LocalRounds(by="arrays", n=1024))
    assert 0.5 < mis.metrics["drawn_ratio"] < 2


@pytest.mark.slow
@pytest.mark.parametrize("part", [OrdinaryNode(), OrdinaryNode(algorithm=LubyMis())], ids=repr)
def test_on_processes_with_a_real_kill(part):
    world = World.rounds(6, round_s=0.2).with_faults(Crash(node=2, at_s=0.5, until_s=1.2))
    problem = LocalRounds(audit=6)
    calm = run(part, problem=problem, world=World.rounds(6, round_s=0.2), seed=4)
    made = run(part, problem=problem, world=world, seed=4, engine="processes", until_s=60.0)
    assert made.violations == []
    assert made.ended == "driven"
    assert not made.extra.get("faults_never_fired")
    assert made.decisions == calm.decisions


def test_a_node_that_lost_its_memory_says_the_same_again():
    world = World.rounds(16, round_s=0.1).with_faults(Crash(node=3, at_s=0.45, until_s=0.8))
    made = run(OrdinaryNode(), problem=LocalRounds(audit=16), world=world, seed=1, until_s=100.0)
    assert made.violations == []
    assert made.ended == "driven"
    assert len([r for r in made.records if r.node == 3 and "output" in r.values]) == 2


@pytest.mark.parametrize(
    "knobs",
    [{"n": -1}, {"n": 1.5}, {"degree": 0.0}, {"degree": float("nan")}, {"ids": "best"},
     {"by": "magic"}, {"graph": "tree"}, {"audit": -1}, {"size": 3}],
)  # fmt: skip
def test_bad_knobs_are_named(knobs):
    with pytest.raises(KnobError, match=rf"LocalRounds\.{next(iter(knobs))}"):
        LocalRounds(**knobs)


def test_what_cannot_run_is_refused_with_the_fix():
    with pytest.raises(KnobError, match=r"LocalRounds\.n: 20 nodes in a world of 5; use World"):
        run(OrdinaryNode(), problem=LocalRounds(n=20), world=World.rounds(5))
    with pytest.raises(KnobError, match=r"LocalRounds\.n: 2 nodes make no cycle"):
        run(OrdinaryNode(), problem=LocalRounds(), world=World.rounds(2))
    with pytest.raises(KnobError, match=r"LocalRounds\.n: .* too many"):
        run(OrdinaryNode(), problem=LocalRounds(n=10**9, by="arrays"))
    with pytest.raises(KnobError, match=r'runs on cycles; set graph = "cycle"'):
        run(ColeVishkin(), problem=LocalRounds(graph="random"))
    with pytest.raises(KnobError, match=r"OrdinaryNode\.algorithm"):
        OrdinaryNode(algorithm=3)
    with pytest.raises(KnobError, match=r"OrdinaryNode\.early: LubyMis has no bound"):
        OrdinaryNode(algorithm=LubyMis(), early=False).arrays(cycle(5, sorted_ids(5)))
    with pytest.raises(PartError, match="inherit from LocalAlgorithm"):
        LocalRounds().accept(LocalRounds())


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: cycle(2, np.arange(2)), "give 3 to"),
        (lambda: cycle(True, np.arange(1)), "give 3 to"),
        (lambda: cycle(3, np.array([0, 1, 1])), "distinct"),
        (lambda: cycle(3, np.array([0, 1])), "give 3 whole numbers"),
        (lambda: cycle(3, np.array([0.0, 1.0, math.nan])), "whole numbers"),
        (lambda: cycle(3, np.array([0, 1, -1])), "begin at 0"),
        (lambda: from_lists([], np.arange(0)), "empty"),
        (lambda: from_lists([[1], []], np.arange(2)), "both ends"),
        (lambda: from_lists([[1, 1], [0, 0]], np.arange(2)), "each once"),
        (lambda: from_lists([[1], [0], []], np.arange(3)), "not connected"),
        (lambda: ColeVishkin().arrays(cycle(3, np.array([0, 1, 1 << 40]))), "1 to 32"),
    ],
)
def test_bad_graphs_are_refused(make, says):
    with pytest.raises(UsageError, match=says):
        make()
