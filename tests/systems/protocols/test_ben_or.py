"""Ben-Or on `binary_consensus`: its rounds against the exact chain, storms, bugs that are found."""

from __future__ import annotations

import math

import numpy as np
import pytest

from orrery import Node, World, run
from orrery.base.errors import KnobError, PartError
from orrery.base.rand import Stream
from orrery.parts import Outcome, Record
from orrery.systems.protocols.baselines.ben_or import (
    UNSURE,
    BenOr,
    outcome_of,
    vote_of,
)
from orrery.systems.protocols.problems.binary_consensus import BinaryConsensus, Votes
from orrery.world import Byzantine, Crash, Partition, Pause, TornWrite

UNIT = {"latency_s": 0.001, "jitter": 0.0, "bandwidth_Bps": 1e15}
CRASH, LIES = BenOr(faults="crash"), BenOr()


def kinds(made):
    return {each.kind for each in made.violations}


# -- known figures


@pytest.mark.parametrize(("part", "n"), [(CRASH, 2), (CRASH, 5), (LIES, 4), (LIES, 6), (LIES, 11)])
@pytest.mark.parametrize("inputs", ["zero", "one"])
def test_unanimous_inputs_decide_in_one_round(part, n, inputs):
    problem = BinaryConsensus(inputs=inputs, instances=4)
    made = run(part.with_knobs(durable=False), problem=problem, world=World.lan(n, **UNIT), seed=1)
    assert made.violations == []
    assert made.metrics["rounds_mean"] == made.metrics["rounds_max"] == 1.0
    # The input, a report, a vote: three messages in a row, and n (n - 1) of each kind of word: the
    # report, the vote, and the one in which a node that has decided says the next round.
    assert made.metrics["latency_p99_s"] == pytest.approx(0.003, rel=0.01)
    assert made.metrics["messages_per_instance"] == 2 * n + 3 * n * (n - 1)
    values = {one.values["decided"] for one in made.records if "decided" in one.values}
    assert values == {int(inputs == "one")}


def expected_rounds(live, needed, ones):
    """The mean of the chain over the number of ones among `live` nodes that all hear each other.

    A round ends well when `needed` of them hold one value; else all toss. Solved as the absorbing
    chain that it is: t = 1 + Q t over the states from which a round fails.
    """
    failing = [k for k in range(live + 1) if max(k, live - k) < needed]
    if ones not in failing:
        return 1.0
    toss = np.array([math.comb(live, k) / 2**live for k in failing])
    waits = np.linalg.solve(np.eye(len(failing)) - np.tile(toss, (len(failing), 1)),
                            np.ones(len(failing)))  # fmt: skip
    # The round in which tosses end well counts too, so each state is left after one more.
    return 1.0 + float(waits[failing.index(ones)])


def test_the_chain_has_the_closed_form_of_equal_coins():
    # With as many crashed as can be, all of the other m = (n + 1) / 2 coins must fall alike.
    for m in (2, 3, 4, 5):
        assert expected_rounds(m, m, 1) == pytest.approx(1 + 2 ** (m - 1))


@pytest.mark.parametrize(
    ("part", "n", "down", "needed"),
    [
        (BenOr(faults="crash", tolerated=0), 4, 0, 3),  # more than 4 / 2 of all four
        (CRASH, 3, 1, 2),
        (CRASH, 5, 2, 3),
        (CRASH, 7, 3, 4),
        (BenOr(faults="crash", tolerated=2), 7, 2, 4),
        (LIES, 6, 1, 4),  # more than 7 / 2, of the five that speak
    ],
)
def test_the_mean_number_of_rounds_is_that_of_the_chain(part, n, down, needed):
    # As many as may fail are dead from the start, so each of the others hears all others and the
    # chain is exact whatever the delays are.
    world = World.lan(n)
    if down:
        world = world.with_faults(Crash(node=tuple(range(n - down, n)), at_s=0.0))
    problem = BinaryConsensus(instances=400, inputs="split", pace_s=0.0)
    made = run(part.with_knobs(durable=False), problem=problem, world=world, seed=5)
    assert made.violations == []
    live = n - down
    want = expected_rounds(live, needed, live // 2)
    p = 1 / (want - 1)
    error = math.sqrt(1 - p) / p / math.sqrt(400)
    assert abs(made.metrics["rounds_mean"] - want) < 4 * error
    assert want > 2.2


def test_the_expected_number_of_rounds_doubles_with_each_more_fault():
    rounds = []
    for n in (3, 5, 7, 9):
        world = World.lan(n).with_faults(Crash(node=tuple(range((n + 1) // 2, n)), at_s=0.0))
        problem = BinaryConsensus(instances=150, inputs="split", pace_s=0.0)
        made = run(CRASH.with_knobs(durable=False), problem=problem, world=world, seed=1)
        assert made.violations == []
        rounds.append(made.metrics["rounds_mean"] - 1)
    growth = np.polyfit(range(4), np.log2(rounds), 1)[0]
    assert growth == pytest.approx(1.0, abs=0.25)


# -- storms

STRATEGIES = ("silence", "equivocate", "mutate", "delay", "replay", "twins", "selective")


def storm(seed):
    """A world with as many faults as the version bears, and any number of restarts."""
    rng = Stream(seed, 0, "storm")
    faults = rng.choice(["crash", "byzantine"])
    n = rng.choice([3, 4, 5, 7] if faults == "crash" else [6, 6, 7, 11])
    world = World.lan(n, drop=rng.choice([0.0, 0.1]), jitter=rng.choice([0.1, 3.0]))
    if faults == "byzantine":
        nodes = tuple(rng.sample(range(n), (n - 1) // 5))
        strategies = tuple(rng.sample(STRATEGIES, rng.randint(1, 3)))
        to = tuple(rng.sample(range(n), n // 2)) if "selective" in strategies else ()
        lie = Byzantine(node=nodes, strategies=strategies, p=rng.choice([0.3, 0.6, 1.0]),
                        delay_s=rng.choice([0.001, 0.05]), to=to)  # fmt: skip
        world = world.with_faults(lie)
    elif rng.random() < 0.5:
        dead = tuple(rng.sample(range(n), (n - 1) // 2))
        world = world.with_faults(Crash(node=dead, at_s=rng.uniform(0.0, 0.1)))
    if rng.random() < 0.5:
        apart = tuple(rng.sample(range(n), rng.randint(1, n - 1)))
        world = world.with_faults(Partition(node=apart, at_s=0.02, until_s=rng.uniform(0.1, 1.0)))
    if rng.random() < 0.5:
        downs = (rng.below(n),) if rng.random() < 0.5 else tuple(range(n))
        at_s, until_s = rng.uniform(0.005, 0.2), rng.uniform(0.3, 0.6)
        world = world.with_faults(Crash(node=downs, at_s=at_s, until_s=until_s),
                                  TornWrite(node=downs, p=0.5))  # fmt: skip
    if rng.random() < 0.3:
        world = world.with_faults(
            Pause(node=rng.below(n), at_s=0.01, until_s=rng.uniform(0.1, 0.5))
        )
    inputs = rng.choice(["random", "split", "one"])
    return world, {"faults": faults, "resend_s": rng.choice([0.02, 0.1])}, inputs


def in_storm(cls, seed):
    world, knobs, inputs = storm(seed)
    problem = BinaryConsensus(instances=5, inputs=inputs)
    return run(cls(**knobs), problem=problem, world=world, seed=seed, until_s=100.0)


@pytest.mark.parametrize("part", range(4))
def test_safe_and_live_in_storms(part):
    for seed in range(part, 100, 4):
        made = in_storm(BenOr, seed)
        assert made.violations == [] and made.metrics["undecided"] == 0, seed


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_safe_and_live_in_two_thousand_storms(part):
    for seed in range(1000 + part, 3000, 4):
        assert in_storm(BenOr, seed).violations == [], seed


@pytest.mark.parametrize("lie", ["silence", "equivocate", "replay", "twins", "selective"])
def test_each_lie_alone(lie):
    liar = Byzantine(node=2, strategies=(lie,), to=(0, 1) if lie == "selective" else ())
    world = World.lan(6, jitter=2.0).with_faults(liar)
    for seed in range(5):
        made = run(LIES, problem=BinaryConsensus(inputs="split"), world=world, seed=seed)
        assert made.violations == [], seed


def test_without_enough_nodes_nothing_is_decided_until_they_are_back():
    world = World.lan(5).with_faults(Crash(node=(0, 1, 2), at_s=0.0, until_s=1.0))
    made = run(CRASH, problem=BinaryConsensus(), world=world, seed=1)
    assert made.violations == []
    assert min(one.time_s for one in made.records if "decided" in one.values) > 1.0


# -- more faults than it bears


def test_the_crash_version_does_not_bear_a_liar():
    lie = Byzantine(node=0, strategies=("equivocate",))
    world = World.lan(5, jitter=2.0).with_faults(lie)
    problem = BinaryConsensus(inputs="split", instances=40)
    assert "disagreement" in kinds(run(CRASH, problem=problem, world=world, seed=0))


def test_more_liars_than_a_fifth_are_noticed():
    problem = BinaryConsensus(inputs="split", instances=40, recover_s=3.0)
    world = World.lan(6, jitter=2.0)
    for liars, broken in (((0,), False), ((0, 1, 2), True)):
        lying = world.with_faults(Byzantine(node=liars, strategies=("equivocate",)))
        made = run(LIES, problem=problem, world=lying, seed=0, until_s=30.0)
        assert bool(made.violations) == broken
        assert not broken or "disagreement" in kinds(made)


def test_more_crashes_than_half_leave_it_undecided():
    world = World.lan(5).with_faults(Crash(node=(0, 1, 2), at_s=0.0))
    made = run(CRASH, problem=BinaryConsensus(recover_s=2.0), world=world, seed=0)
    assert kinds(made) == {"no_decision"} and made.metrics["undecided"] == 10


def test_nodes_that_forget_what_they_said_are_noticed_and_a_disk_prevents_it():
    # One after the other restarts, so that in the end each has forgotten something.
    downs = (Crash(node=k % 3, at_s=0.02 + 0.02 * k, until_s=0.022 + 0.02 * k) for k in range(12))
    world = World.lan(3, jitter=3.0).with_faults(*downs)
    problem = BinaryConsensus(inputs="split", instances=60, pace_s=0.004, retry_s=0.05,
                              recover_s=3.0)  # fmt: skip
    for durable in (True, False):
        part = CRASH.with_knobs(durable=durable, resend_s=0.01)
        made = run(part, problem=problem, world=world, seed=1, until_s=10.0)
        assert made.ok == durable


# -- planted bugs


class LowBar(BenOr):
    """Votes for what more than half of the reports that it heard say, not of all nodes."""

    def advance(self, instance, state):
        heard = state.boxes.get(state.place, {})
        if state.step == 1 and self.id in heard and len(heard) >= self.n - self.f:
            del state.boxes[state.place]
            state.step = 2
            ones = sum(heard.values())
            self.say(instance, state, int(2 * ones > len(heard)))
            return
        super().advance(instance, state)


class OneVote(BenOr):
    """Decides on the first vote for a value."""

    def advance(self, instance, state):
        heard = state.boxes.get(state.place, {})
        sure = sorted(value for value in heard.values() if value != UNSURE)
        if state.step == 2 and self.id in heard and len(heard) >= self.n - self.f and sure:
            self.decide(instance, state, sure[0], state.round)
            return
        super().advance(instance, state)


class Stubborn(BenOr):
    """Its coin always falls as its number says."""

    def coin(self):
        return self.id % 2


@pytest.mark.parametrize(("cls", "seeds"), [(LowBar, 2), (OneVote, 4)])
def test_wrong_thresholds_are_found(cls, seeds):
    problem = BinaryConsensus(inputs="split", instances=40)
    world = World.lan(5, jitter=3.0)

    def verdict(part, seed):
        return kinds(run(part, problem=problem, world=world, seed=seed, until_s=60.0))

    assert any("disagreement" in verdict(cls(faults="crash"), seed) for seed in range(seeds))
    assert not any(verdict(CRASH, seed) for seed in range(seeds))


def test_a_coin_that_is_none_is_found_with_the_first_seed():
    world = World.lan(5).with_faults(Crash(node=4, at_s=0.0))
    problem = BinaryConsensus(inputs="split", instances=2, recover_s=2.0)
    stuck = run(Stubborn(faults="crash", tolerated=1), problem=problem, world=world, seed=0)
    assert kinds(stuck) == {"no_decision"}
    assert run(BenOr(faults="crash", tolerated=1), problem=problem, world=world, seed=0).ok


# -- the rules, and what the checker finds


def test_the_thresholds_at_their_edges():
    assert vote_of([1, 1, 1, 0], 5, 2, False) == 1 and vote_of([1, 1, 0], 5, 2, False) == UNSURE
    assert vote_of([1, 1, 1, 0, 0], 6, 1, True) == UNSURE  # 3 is not more than 7 / 2
    assert vote_of([0, 0, 0, 0, 1], 6, 1, True) == 0
    assert outcome_of([UNSURE, UNSURE, 0], 5, 2, False) == (0, False)
    assert outcome_of([0, 0, 0], 5, 2, False) == (0, True)
    assert outcome_of([UNSURE] * 3, 5, 2, False) == (UNSURE, False)
    assert outcome_of([1, UNSURE, UNSURE, UNSURE, 0], 6, 1, True) == (UNSURE, False)
    assert outcome_of([1, 1, UNSURE, UNSURE, 0], 6, 1, True) == (1, False)
    assert outcome_of([1, 1, 1, 1, 0], 6, 1, True) == (1, True)


def judged(decisions, inputs=(0, 1, 1), alive=(True, True, True), faults=()):
    records = [Record(0.1, node, {"instance": 0, "decided": value, "round": 1})
               for node, value in decisions]  # fmt: skip
    outcome = Outcome(part=LIES, world=World.lan(3).with_faults(*faults), seed=0, engine="virtual",
                      seconds=1.0, ended="driven", driven=Votes([list(inputs)], [0.0]),
                      records=records, alive=list(alive))  # fmt: skip
    return [each.kind for each in BinaryConsensus(instances=1).check(outcome)]


def test_the_checker_finds_each_broken_promise():
    assert judged([(0, 1), (1, 1), (2, 1)]) == []
    assert judged([(0, 1), (1, 1), (2, 0)]) == ["disagreement"]
    assert judged([(0, 1), (1, 1)]) == ["no_decision"]
    assert judged([(0, 1), (1, 1)], alive=(True, True, False)) == []
    assert judged([(0, 1), (1, 1), (2, 1), (2, 1)]) == []  # said again after a restart
    assert judged([(0, 1), (1, 1), (2, 1), (2, 0)]) == ["decided_twice"]
    assert set(judged([(0, 0), (1, 0), (2, 0)], inputs=(1, 1, 1))) == {"invalid_decision"}
    liar = Byzantine(node=0)
    assert judged([(0, 0), (1, 1), (2, 1)], faults=[liar]) == []
    assert judged([(1, 0), (2, 0)], inputs=(0, 1, 1), faults=[liar]) == ["invalid_decision"] * 2


def test_an_unfinished_run_is_a_finding():
    made = run(CRASH, problem=BinaryConsensus(), world=World.lan(3), until_s=0.001)
    assert kinds(made) == {"unfinished"}


# -- bad input, determinism, sockets


@pytest.mark.parametrize(
    ("cls", "knobs"),
    [
        (BenOr, {"faults": "omission"}),
        (BenOr, {"tolerated": -2}),
        (BenOr, {"tolerated": 1.5}),
        (BenOr, {"resend_s": 0.0}),
        (BenOr, {"resend_s": float("nan")}),
        (BenOr, {"spam": 1}),
        (BinaryConsensus, {"instances": 0}),
        (BinaryConsensus, {"inputs": "none"}),
        (BinaryConsensus, {"pace_s": -1.0}),
        (BinaryConsensus, {"recover_s": float("nan")}),
    ],
)
def test_bad_knobs_are_named(cls, knobs):
    with pytest.raises(KnobError, match=rf"{cls.__name__}\.{next(iter(knobs))}"):
        cls(**knobs)


def test_too_many_faults_and_a_misfit_are_refused():
    with pytest.raises(PartError, match=r"BenOr\.tolerated.*2 byzantine faults among 6.*at most 1"):
        run(BenOr(tolerated=2), problem=BinaryConsensus())

    class Other(Node):
        pass

    with pytest.raises(PartError, match="inherit from BinaryNode"):
        run(Other(), problem=BinaryConsensus())


def test_same_digest_in_both_kernels_and_right_on_the_wire():
    world = World.lan(6, drop=0.05).with_faults(
        Byzantine(node=0, strategies=("equivocate",)), Crash(node=1, at_s=0.05, until_s=0.3)
    )
    problem = BinaryConsensus()
    first, other = (run(LIES, problem=problem, world=world, seed=3, kernel=kernel)
                    for kernel in (None, "python"))  # fmt: skip
    assert (first.digest, first.metrics) == (other.digest, other.metrics)
    assert run(LIES, problem=problem, world=world, seed=3, wire=True).violations == []


@pytest.mark.slow
@pytest.mark.parametrize(("part", "n"), [(CRASH, 3), (LIES, 6)], ids=["crash", "byzantine"])
def test_a_real_kill_on_sockets(part, n):
    world = World.lan(n).with_faults(Crash(node=1, at_s=0.3, until_s=1.2))
    problem = BinaryConsensus(instances=12, pace_s=0.1)
    for engine in ("virtual", "processes"):
        made = run(part, problem=problem, world=world, seed=2, engine=engine)
        assert made.violations == [], engine
        assert made.metrics["undecided"] == 0
