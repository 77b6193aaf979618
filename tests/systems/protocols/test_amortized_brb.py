"""`AmortizedBRB`: cost, steps, recovery and guarantees, as its acceptance lines ask."""

from __future__ import annotations

import itertools

import pytest
from tests.systems.protocols.broadcast_runs import (
    REAL,
    Battered,
    Shouting,
    forked_in_chosen_order,
    killed,
    restarted,
)

from orrery import World, run
from orrery.base.errors import FaultError, KnobError, PartError
from orrery.base.rand import Stream
from orrery.engines.virtual.engine import Engine
from orrery.lab.checking import check
from orrery.systems.protocols.amortized_brb import AmortizedBRB
from orrery.systems.protocols.amortized_brb.chain import GENESIS, Book, Link, chained, sound
from orrery.systems.protocols.baselines.bracha import Bracha
from orrery.systems.protocols.problems.reliable_broadcast import (
    ReliableBroadcast,
    ReliableBroadcaster,
)
from orrery.world import Byzantine, Corrupt

MINE = "amortized-brb"
ALL = ("two_stories", "subset", "stop_after", "vote_twice", "fork", "garbage", "shun", "greedy",
       "silence", "equivocate", "mutate", "replay")  # fmt: skip
# Delays of 10 to 30 ms; the timer of the recovery lies above the longest of them.
SLOW_LAN = {"latency_s": 0.01, "jitter": 2.0}
PATIENT = AmortizedBRB(recover_s=0.1)
STREAM = ReliableBroadcast(shots=10, size_B=256 << 10, settle_s=5.0)


def byzantine(seed: int, n: int) -> World:
    """f liars at places and with habits that the seed picks, in a world of chosen order."""
    rng = Stream(seed, n, "malice")
    liars = tuple(sorted(rng.sample(range(n), (n - 1) // 3)))
    if rng.below(2):
        liars = tuple(range((n - 1) // 3))  # the broadcaster is among them
    habits = tuple(rng.sample(ALL, 1 + rng.below(2)))
    share = rng.choice((1.0, 0.25, 0.5, 0.75))
    return World.chosen(n).with_faults(Byzantine(node=liars, strategies=habits, p=share))


def storm(n: int, seeds: range, part: AmortizedBRB | None = None, shots: int = 3) -> int:
    """Random schedules with random liars; gives how many shots were delivered in all."""
    problem = ReliableBroadcast(shots=shots, size_B=4)
    delivered = 0
    for seed in seeds:
        world = byzantine(seed, n)
        roles = problem.alone(part or AmortizedBRB(), world)
        outcome = Engine(roles, world=world, seed=seed).run()
        found = problem.check(outcome)
        assert outcome.ended == "quiet"
        assert found == [], (seed, world.faults, found[0])
        delivered += len(outcome.emitted("delivered"))
    return delivered


# -- line 1: guarantees under random adversaries


@pytest.mark.works_when(MINE, 1)
@pytest.mark.parametrize(("n", "runs"), [(4, 500), (7, 500), (10, 50), (31, 5)])
def test_guarantees_hold_in_random_adversarial_schedules(n, runs):
    assert storm(n, range(runs)) > runs * n  # else the liars only ever stopped everything


@pytest.mark.slow
@pytest.mark.works_when(MINE, 1)
def test_guarantees_hold_in_ten_thousand_schedules():
    for n, runs in ((4, 6000), (7, 3500), (10, 450), (31, 50)):
        assert storm(n, range(10_000, 10_000 + runs)) > runs * n


@pytest.mark.works_when(MINE, 1)
@pytest.mark.parametrize("n", [4, 7, 10])
def test_one_colluder_too_many_breaks_agreement(n):
    problem = ReliableBroadcast(shots=2, size_B=4)
    liars = tuple(range((n - 1) // 3 + 1))
    world = World.chosen(n).with_faults(Byzantine(node=liars, strategies=("two_stories",)))
    broken = 0
    for seed in range(10):
        roles = problem.alone(AmortizedBRB(), world)
        found = problem.check(Engine(roles, world=world, seed=seed).run())
        broken += any(each.kind == "unsafe_apply" for each in found)
    assert broken == 10


# -- line 2: bytes


def spoken(part, problem=STREAM, n=31, *faults, **options):
    world = World.lan(n, **{**SLOW_LAN, **options}).with_faults(*faults)
    made = run(part, problem=problem, world=world, seed=3)
    assert made.violations == []
    assert made.metrics["delivered_share"] == 1.0
    return made


LEAVES_OUT = Byzantine(node=0, strategies=("subset",))


@pytest.mark.works_when(MINE, 2)
@pytest.mark.parametrize("faults", [(), (LEAVES_OUT,)], ids=["honest", "subset"])
def test_bytes_are_linear_in_n_times_the_payload(faults):
    made = spoken(PATIENT, STREAM, 31, *faults)
    assert made.metrics["bytes_per_shot"] <= 2.5 * 31 * STREAM.size_B
    if faults:  # all that the left-out nodes needed was one payload each
        assert made.metrics["requests"] == 30 - 20
    else:
        assert made.metrics["requests"] == 0
        # Every byte of the run is accounted for by a node or by the client.
        sent = STREAM.shots * made.metrics["bytes_per_shot"]
        client = STREAM.shots * (64 + 8 + STREAM.size_B)
        assert 0 < made.bytes - sent - client < 31 * 1000  # the reports at the end


@pytest.mark.slow
@pytest.mark.works_when(MINE, 2)
@pytest.mark.parametrize("faults", [(), (LEAVES_OUT,)], ids=["honest", "subset"])
def test_bytes_of_a_hundred_shots_of_a_mebibyte(faults):
    # Thirty payloads of a mebibyte take 25 ms to leave; a shot every 50 ms leaves air between.
    problem = ReliableBroadcast(shots=100, size_B=1 << 20, pace_s=0.05, settle_s=5.0)
    made = spoken(AmortizedBRB(recover_s=0.2, ready_s=0.1), problem, 31, *faults)
    assert made.metrics["bytes_per_shot"] <= 2.5 * 31 * problem.size_B


@pytest.mark.works_when(MINE, 2)
def test_payloads_in_echoes_cost_the_square():
    problem = STREAM.with_knobs(shots=2)
    made = spoken(Bracha(), problem)
    assert made.metrics["bytes_per_shot"] >= 31**2 * problem.size_B / 2


@pytest.mark.works_when(MINE, 2)
def test_greedy_requesters_draw_no_more_than_one_payload_of_each_holder():
    n, problem = 10, ReliableBroadcast(shots=5, size_B=64 << 10, settle_s=5.0)
    calm = spoken(PATIENT, problem, n)
    greedy = Byzantine(node=(7, 8, 9), strategies=("greedy",))
    made = spoken(PATIENT, problem, n, greedy)
    extra_B = made.metrics["payload_bytes_per_shot"] - calm.metrics["payload_bytes_per_shot"]
    one_B = problem.size_B + 64 + 16
    assert extra_B == 3 * 7 * one_B  # every correct node served each of the three, once
    assert extra_B <= 3 * n * one_B


def test_greed_that_is_not_curbed_is_seen():
    class Generous(AmortizedBRB):
        """Serves everybody as often as they ask, and answers twice."""

        def say(self, kind, peer, method, *args):
            for _ in range(2 if kind == "payload" else 1):
                super().say(kind, peer, method, *args)

    n, problem = 10, ReliableBroadcast(shots=5, size_B=64 << 10, settle_s=5.0)
    greedy = Byzantine(node=(7, 8, 9), strategies=("greedy",))
    made = spoken(Generous(recover_s=0.1), problem, n, greedy)
    assert made.metrics["payload_bytes_per_shot"] > (n + 3 * n) * problem.size_B


@pytest.mark.works_when(MINE, 2)
@pytest.mark.parametrize("n", [7, 31])
def test_votes_weigh_as_much_as_payloads_where_the_arithmetic_says(n):
    def weights(size_B):
        problem = ReliableBroadcast(shots=10, size_B=size_B, settle_s=5.0)
        return spoken(AmortizedBRB(), problem, n, latency_s=0.0005, jitter=0.1).metrics

    low, high = 0, 64 << 10
    while high - low > 64:
        middle = (low + high) // 2
        found = weights(middle)
        if found["payload_bytes_per_shot"] < found["vote_bytes_per_shot"]:
            low = middle
        else:
            high = middle
    assert high == pytest.approx(n * weights(high)["vote_B"], rel=0.2)


# -- line 3: steps

UNIT = {"latency_s": 1.0, "jitter": 0.0, "bandwidth_Bps": 1e15}
STEPS = ReliableBroadcast(shots=20, size_B=64, pace_s=1.0, settle_s=200.0)
STEADY = AmortizedBRB(ready_s=4.0, recover_s=4.0)


def lags(made, good):
    """The steps from sending to delivery of each shot at each of these nodes."""
    sent = {r.values["sent"]: r.time_s for r in made.records if "sent" in r.values}
    return {
        (r.node, r.values["delivered"]): r.time_s - sent[r.values["delivered"]]
        for r in made.records
        if "delivered" in r.values and r.node in good
    }


@pytest.mark.works_when(MINE, 3)
@pytest.mark.parametrize("n", [4, 7, 13])
def test_a_shot_a_step_and_two_steps_of_lag_without_faults(n):
    made = spoken(STEADY, STEPS, n, **UNIT)
    assert made.metrics["steps_per_shot"] == pytest.approx(1.0)
    assert max(lags(made, range(n)).values()) <= 2.0
    assert made.metrics["fast_share"] == 1.0
    slower = spoken(STEADY.with_knobs(optimistic=False), STEPS, n, **UNIT)
    assert slower.metrics["fast_share"] == 0.0
    assert max(lags(slower, range(n)).values()) > 2.0


@pytest.mark.works_when(MINE, 3)
@pytest.mark.parametrize("n", [4, 7, 13])
def test_silent_nodes_cost_a_step_or_two(n):
    f = (n - 1) // 3
    silent = Byzantine(node=tuple(range(n - f, n)), strategies=("silence",))
    made = spoken(STEADY, STEPS, n, silent, **UNIT)
    assert made.metrics["fast_share"] == 0.0
    # The last shots have no later vote to ride on; the timer sends them.
    streaming = {shot: lag for shot, lag in lags(made, range(n - f)).items() if shot[1] <= 17}
    assert {round(lag) for lag in streaming.values()} <= {3, 4}
    times = sorted(r.time_s for r in made.records
                   if r.node == 1 and 2 <= r.values.get("delivered", 0) <= 17)  # fmt: skip
    assert [b - a for a, b in itertools.pairwise(times)] == pytest.approx([1.0] * 15)


@pytest.mark.works_when(MINE, 3)
@pytest.mark.parametrize("f", [1, 2, 5])
def test_recovery_asks_at_most_f_holders_in_vain(f):
    n = 3 * f + 1
    mean = Byzantine(node=tuple(range(f)), strategies=("subset", "shun"))
    made = spoken(STEADY, STEPS.with_knobs(shots=1), n, mean, **UNIT)
    assert made.metrics["requests_max"] == f + 1
    hasty = Byzantine(node=tuple(range(f)), strategies=("subset", "garbage"))
    rubbish = spoken(STEADY, STEPS.with_knobs(shots=1), n, hasty, **UNIT)
    assert rubbish.metrics["requests_max"] == f + 1
    assert rubbish.metrics["latency_steps_max"] < made.metrics["latency_steps_max"]
    assert rubbish.metrics["refused"] >= f


def test_without_piggyback_a_shot_costs_two_rounds():
    on = spoken(STEADY, STEPS, 7, **UNIT)
    off = spoken(STEADY.with_knobs(piggyback=False), STEPS, 7, **UNIT)
    assert on.metrics["rounds_per_shot"] == pytest.approx(1.0, abs=0.1)
    assert off.metrics["rounds_per_shot"] == pytest.approx(2.0, abs=0.1)


def test_without_the_lone_statement_the_last_shots_are_lost():
    class Forgetful(AmortizedBRB):
        """Never sends a readiness statement by itself."""

        async def tell_alone(self):
            self.telling = True

    silent = Byzantine(node=6, strategies=("silence",))
    world = World.lan(7).with_faults(silent)
    made = run(Forgetful(), problem=ReliableBroadcast(), world=world)
    assert {each.kind for each in made.violations} == {"not_delivered"}
    assert run(AmortizedBRB(), problem=ReliableBroadcast(), world=world).ok


# -- line 4: a forked chain


@pytest.mark.works_when(MINE, 4)
@pytest.mark.parametrize("n", [4, 7])
def test_a_broadcaster_that_restarts_with_another_chain_splits_nobody(n):
    delivered = 0
    for seed in range(25):
        made = restarted(AmortizedBRB(), n, seed)
        assert made.violations == []
        streams = [tuple(map(tuple, shots)) for shots in made.decisions.values()]
        assert len(set(streams)) == 1 and len(streams) == n - 1
        assert [index for index, _ in streams[0]] == list(range(1, len(streams[0]) + 1))
        delivered += len(streams[0])
    assert delivered > 25


@pytest.mark.works_when(MINE, 4)
def test_a_forking_broadcaster_in_chosen_order():
    for seed in range(100):
        assert forked_in_chosen_order(AmortizedBRB(), seed) == []


# -- line 5: for real


def really(problem, *faults, part=None, **options):
    """A run on real processes in which node 5 is killed; all others that do not lie agree."""
    part = part or AmortizedBRB(ready_s=0.1, recover_s=0.1)
    made = killed(part, problem, *faults, **options)
    assert made.violations == []
    assert all(len(shots) == 50 for shots in made.decisions.values())
    assert len({str(shots) for shots in made.decisions.values()}) == 1
    return made


@pytest.mark.slow
@pytest.mark.works_when(MINE, 5)
def test_seven_processes_one_killed_and_the_broadcaster_lies():
    # Nodes 5 and 6 get no payload; what the broadcaster serves them has a flipped bit.
    made = really(REAL, Byzantine(node=0, strategies=("subset", "garbage")))
    assert sorted(made.decisions) == [1, 2, 3, 4, 6]
    assert made.metrics["refused_garbage"] > 0
    assert made.metrics["requests"] > 0


@pytest.mark.slow
@pytest.mark.works_when(MINE, 5)
def test_seven_processes_one_killed_one_mad_with_bad_and_oversized_frames():
    problem = Battered(**REAL.changed_knobs())
    part = Shouting(ready_s=0.1, recover_s=0.1, most_B=8192)
    faults = (Byzantine(node=6, strategies=("mutate",), p=0.9), Corrupt(node=6, p=0.3))
    made = really(problem, *faults, part=part, max_frame_B=1 << 20)
    assert sorted(made.decisions) == [0, 1, 2, 3, 4]
    assert made.extra["corrupt"] > 0  # frames with a flipped bit
    assert made.extra["oversize"] == 3  # frames over the cap
    assert made.metrics["refused_oversized"] > 0  # payloads over the limit
    assert made.metrics["refused"] > made.metrics["refused_oversized"]


# -- claims, bad input, small things


@pytest.mark.slow
def test_every_claim_is_judged():
    found = check(MINE)
    assert [each.verdict for each in found] == ["holds"] * 4
    assert found[1].off == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize(
    "knobs",
    [{"ready_s": 0.0}, {"recover_s": -1.0}, {"recover_s": float("nan")}, {"most_B": 0},
     {"piggyback": "no"}, {"tolerated": 1.5}, {"broadcaster": -1}, {"quorum": 3}],
)  # fmt: skip
def test_bad_knobs_are_named(knobs):
    with pytest.raises(KnobError, match=rf"AmortizedBRB\.{next(iter(knobs))}"):
        AmortizedBRB(**knobs)


@pytest.mark.parametrize(
    "knobs", [{"shots": 0}, {"size_B": -1}, {"pace_s": -0.1}, {"settle_s": 0.0}, {"shot": 1}]
)
def test_bad_knobs_of_the_problem_are_named(knobs):
    with pytest.raises(KnobError, match=rf"ReliableBroadcast\.{next(iter(knobs))}"):
        ReliableBroadcast(**knobs)


def test_a_misfit_is_refused_with_the_fix():
    with pytest.raises(KnobError, match=r"2 liars among 6 nodes; give at most 1, or at least 7"):
        run(AmortizedBRB(tolerated=2), problem=ReliableBroadcast(), world=World.lan(6))
    with pytest.raises(KnobError, match=r"broadcaster: 9 is no node .* give 0 to 3"):
        run(AmortizedBRB(), problem=ReliableBroadcast(broadcaster=9), world=World.lan(4))
    with pytest.raises(KnobError, match=r"size_B: 2048 is above most_B = 1024"):
        run(AmortizedBRB(most_B=1024), problem=ReliableBroadcast(size_B=2048))
    with pytest.raises(FaultError, match="unknown strategy 'two_story'"):
        world = World.lan(4).with_faults(Byzantine(node=0, strategies=("two_story",)))
        run(AmortizedBRB(), problem=ReliableBroadcast(), world=world)

    class Hollow(ReliableBroadcaster):
        """Sends nothing."""

    with pytest.raises(PartError, match=r"Hollow has no broadcast\(payload\)"):
        run(Hollow(), problem=ReliableBroadcast(), world=World.lan(4))


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("size_B", [0, 1])
def test_few_nodes_and_empty_payloads(n, size_B):
    made = run(AmortizedBRB(), problem=ReliableBroadcast(size_B=size_B), world=World.lan(n))
    assert made.violations == [] and made.metrics["delivered_share"] == 1.0


def test_another_node_may_broadcast():
    made = run(AmortizedBRB(), problem=ReliableBroadcast(broadcaster=4), world=World.lan(7))
    assert made.ok and made.metrics["delivered_share"] == 1.0


def test_oversized_and_strange_messages_are_dropped_and_counted():
    class Shouting(AmortizedBRB):
        """Node 3 sends shots of its own, and everybody gets one that is too large."""

        async def main(self):
            if self.id == 3:
                self.say_all("payload", AmortizedBRB.shot, 1, b"mine")
            if self.id == self.broadcaster:
                self.say_all("payload", AmortizedBRB.shot, 1, bytes(self.most_B + 1))
                self.say_all("vote", AmortizedBRB.vote, 1, b"short", b"", 0, b"")
                self.say_all("vote", AmortizedBRB.ready, 0, b"")

    made = run(Shouting(most_B=2048), problem=ReliableBroadcast(), world=World.lan(4))
    assert made.violations == []
    assert made.metrics["refused"] == 3 + 3 * 3


def test_a_statement_covers_the_chain_below_it_however_late_the_links_come():
    book, heads = Book(), [GENESIS]
    for index in range(1, 6):
        heads.append(chained(index, heads[-1], bytes([index]) * 32))
    assert book.state(2, 5, heads[5]) == [heads[5]]
    assert book.state(2, 5, heads[5]) is None
    for index in (1, 3, 5, 4, 2):
        book.learn(heads[index], Link(index, heads[index - 1], bytes([index]) * 32))
    assert [book.cover[head] for head in heads[1:]] == [4] * 5
    assert book.ancestor(heads[5], 2) == heads[2]
    assert book.ancestor(heads[5], 0) == GENESIS
    assert book.vote(1, 3, heads[2], bytes(32)) is not None
    assert book.vote(1, 3, heads[2], bytes(32)) is None
    assert not sound(1, heads[1], bytes(32)) and not sound(2, GENESIS, bytes(32))
