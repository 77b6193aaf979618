"""CCL-D: its acceptance lines, each with what fails when the mechanism is off."""

from __future__ import annotations

import math

import pytest

from orrery import World, run
from orrery.base.codec import encode
from orrery.base.errors import KnobError, OrreryError, PartError
from orrery.parts import Monitor
from orrery.systems.resilience.ccl_d import CCLD
from orrery.systems.resilience.ccl_d.hangs import Scene, expected, mismatch, went_past
from orrery.systems.resilience.ccl_d.probe import Norm, worst
from orrery.systems.resilience.ccl_d.slowness import Bounds, sick_way, straggler
from orrery.systems.resilience.problems.flight import Channel, Dump, Op, Recorder
from orrery.systems.resilience.problems.sick_communication import (
    KINDS,
    TRUTH,
    SickCommunication,
)
from orrery.systems.resilience.problems.watcher import Beat, Sign, levels, tree_over

HANGS = ("crash", "stop", "stuck", "skip", "size", "op", "link")
# A hang needs no knowledge of what is usual, so its job need not run as long before.
BEFORE = {kind: 30.0 if kind in HANGS else 110.0 for kind in KINDS}
BIG = {"tp": 8, "pp": 4, "dp": 8, "step_s": 20.0, "within_s": 20.0}
SMALL = {"tp": 2, "pp": 2, "dp": 4, "step_s": 20.0, "after_s": 110.0, "within_s": 20.0}


def watched(kind, place=0, part=None, seed=None, monitors=(), **knobs):
    problem = SickCommunication(**{"kind": kind, "place": place, **knobs})
    seed = place if seed is None else seed
    return run(part or CCLD(), problem=problem, seed=seed, monitors=monitors), problem


def said(made):
    return [(r.time_s, r.values["ailment"], tuple(r.values["blamed"])) for r in made.records
            if "ailment" in r.values]  # fmt: skip


# -- line 1: real processes

# Milliseconds where the defaults have seconds. What is slow has to stand out from the noise of a
# machine with more processes than cores, hence `least`, `way`, `share` and `tight` (all ranks have
# the same data); they were chosen after first runs on a loaded machine had called a NIC slow in a
# sound job, and a busy processor periodic.
REAL_PART = CCLD(
    heartbeat_s=0.25, hang_s=2.0, learn=12, share=0.2, least=1.0, way=8.0, answer_s=0.4, tries=4,
    calm_s=0.5, tight=1.0,
)  # fmt: skip
REAL = {
    "pp": 1, "step_s": 1e-6, "grinds": 800, "pace_s": 0.002, "batch_spread": 0.0, "width": 500,
    "after_s": 2.0, "within_s": 0.3, "factor": 40.0, "nic_fraction": 1.6e-6, "limit_s": 20.0,
    "launcher_s": 0.2, "scale": 1.0,
}  # fmt: skip
# Of a tree of four, a leaf talks to one rank only, so that its NIC and its link are one; hence the
# throttled socket is one of a ring.
REAL_KINDS = {
    "stop": "tree", "crash": "ring", "skip": "tree", "size": "ring", "nic": "ring", "slow": "tree",
}  # fmt: skip


def real(kind, how, place, **layout):
    problem = SickCommunication(**REAL | layout | {"kind": kind, "place": place, "collective": how})
    return run(REAL_PART, problem=problem, engine="processes", seed=place), problem


@pytest.mark.works_when("ccl-d", 1)
@pytest.mark.parametrize("kind", REAL_KINDS)
def test_a_real_fault_is_blamed_on_the_right_rank_and_class(kind):
    # In two seconds other work on this machine may look like a slow link; how often the first word
    # is right is a matter of the twenty trials below.
    for place in range(3):
        made, problem = real(kind, REAL_KINDS[kind], place, tp=4, dp=1)
        if made.metrics["right"] == 1.0:
            break
    assert said(made)[0][1:] == (TRUTH[kind], problem.cases()[0].ranks)
    assert made.metrics["right"] == 1.0 and made.ok


@pytest.mark.slow
@pytest.mark.works_when("ccl-d", 1)
@pytest.mark.parametrize("kind", REAL_KINDS)
def test_eight_real_processes_twenty_trials_nineteen_right(kind):
    right = 0
    for place in range(20):
        how = "ring" if kind == "nic" or place % 2 else "tree"
        # What is usual must be known only where slowness is looked for.
        after_s = 4.0 if kind in HANGS else 8.0
        made, _ = real(kind, how, place, tp=8, dp=1, after_s=after_s, limit_s=40.0)
        right += made.metrics["right"] == 1.0
    assert right >= 19


# -- line 2: a virtual job of many ranks

# Rules and bounds were found on the places 0 to 9 of the fault; judged are others. (Places 100 to
# 103 of 512 and 4,096 ranks have shown that waits by chance hide a periodic fault, so the largest
# job has still others.)
FRESH = 100
# Forty cases; hangs are cheaper to run than slowness, so there are more of them.
FORTY = {"crash": 5, "stop": 5, "stuck": 5, "skip": 5, "size": 5, "op": 5, "link": 4,
         "slow": 2, "periodic": 2, "nic": 2}  # fmt: skip


def judged(kind, places, **knobs):
    """(cases with the right rank, with the right ailment too, the slowest) of one kind."""
    ranks = right = 0
    slowest_s = 0.0
    for place in places:
        made, _ = watched(kind, place, **{"after_s": BEFORE[kind], **knobs})
        assert made.ok  # no alarm before the fault
        ranks += made.metrics["right_rank"] == 1.0
        right += made.metrics["right"] == 1.0
        slowest_s = max(slowest_s, made.metrics["slowest_s"])
    return ranks, right, slowest_s


@pytest.mark.works_when("ccl-d", 2)
@pytest.mark.parametrize("kind", KINDS)
def test_256_ranks_the_rank_is_named_within_six_minutes(kind):
    ranks, right, slowest_s = judged(kind, [FRESH], **BIG)
    assert ranks == right == 1
    assert slowest_s < 360.0


@pytest.mark.slow
@pytest.mark.works_when("ccl-d", 2)
def test_256_ranks_forty_cases():
    assert sum(FORTY.values()) == 40
    ranks = 0
    for kind, count in FORTY.items():
        right, _, slowest_s = judged(kind, range(FRESH, FRESH + count), **BIG)
        ranks += right
        assert slowest_s < 360.0, kind
    assert ranks >= 38


@pytest.mark.works_when("ccl-d", 2)
@pytest.mark.parametrize("minutes", [15, pytest.param(60, marks=pytest.mark.slow)])
def test_a_sound_hour_of_256_ranks_raises_no_alarm(minutes):
    made, _ = watched("none", tp=8, pp=4, dp=8, step_s=60.0, calm_s=60.0 * minutes)
    assert made.ok and said(made) == [] and made.metrics["right"] == 1.0
    # With batches of 0.7 to 1.3 times the usual length.
    assert made.metrics["steps"] >= 0.66 * minutes


@pytest.mark.slow
@pytest.mark.works_when("ccl-d", 2)
@pytest.mark.parametrize("kind", KINDS)
def test_4096_ranks_three_hundred_cases(kind):
    big = {"tp": 8, "pp": 8, "dp": 64, "step_s": 20.0, "within_s": 20.0}
    ranks, _, slowest_s = judged(kind, range(2 * FRESH, 2 * FRESH + 30), **big)
    assert ranks >= 0.95 * 30 and slowest_s < 360.0


# Four times six hours, so that they can run side by side.
@pytest.mark.slow
@pytest.mark.works_when("ccl-d", 2)
@pytest.mark.parametrize("place", range(4))
def test_a_sound_day_of_4096_ranks_raises_no_alarm(place):
    knobs = {"tp": 8, "pp": 8, "dp": 64, "step_s": 60.0, "calm_s": 6 * 3600.0}
    made, _ = watched("none", place, **knobs)
    assert made.ok and said(made) == []


# -- line 3: cascades


class Stuck(Monitor):
    """When each rank last entered or left a collective."""

    def start(self):
        self.last_s = {}

    def at_rank(self, memory, time_s, phase, kind, tag, data):
        return 0

    def before_collective(self, time_s, node, kind, tag, data):
        self.last_s[node] = time_s

    after_collective = before_collective


@pytest.mark.works_when("ccl-d", 3)
@pytest.mark.parametrize("kind", ["stuck", "size"])
def test_of_a_stuck_stage_the_cause_is_named_and_not_the_victims(kind):
    stuck = Stuck()
    made, problem = watched(kind, 7, monitors=[stuck], **BIG, after_s=45.0)
    ((time_s, ailment, blamed),) = said(made)
    blocked = [node for node, last_s in stuck.last_s.items() if time_s - last_s > 60.0]
    assert len(blocked) >= 200 and ailment == TRUTH[kind]
    assert blamed == problem.cases()[0].ranks and made.metrics["victims"] == 0
    # Without following what ranks wait for, a victim is blamed in one of a few places.
    blind = [watched(kind, place, CCLD(follow=False), **SMALL)[0].metrics["victims"]
             for place in range(4)]  # fmt: skip
    assert kind == "size" or sum(blind) > 0


# -- line 4: what it costs


@pytest.mark.works_when("ccl-d", 4)
def test_a_rank_keeps_a_fixed_ring_and_calls_are_few():
    def recorder_after(steps):
        recorder = CCLD(ring=32).recorder_for(0, clock := iter(range(10**6)).__next__)
        assert callable(clock)
        for _ in range(steps):
            op = recorder.enqueue("tp", "tp.0", "all_reduce", 64, [0, 1])
            recorder.post(op, 1)
            recorder.takes(op, 1)
            recorder.took(op, 1)
            recorder.shipped(op, 1, 64)
            recorder.end(op)
        return recorder

    few, many = recorder_after(100), recorder_after(10_000)
    assert len(few.ring) == len(many.ring) == 32
    for name in ("waits", "ships", "ways", "channels", "under_way", "members", "seqs"):
        assert len(getattr(few, name)) == len(getattr(many, name)) == 1
    assert len(many.waits["tp.0", "all_reduce", 64].values) == 32
    assert len(encode(many.dump(32))) <= 1.3 * len(encode(few.dump(32)))
    # Two calls for an operation and three for an array that goes out and one that comes in: at
    # some microseconds each (bench/ccl_d.py) that is far below a hundredth of a step.
    assert many.calls == 10_000 * 5


@pytest.mark.works_when("ccl-d", 4)
def test_what_a_watcher_hears_is_bounded_by_its_fan_in():
    # The widest heart-beat has four signs of each of the five kinds.
    name = "pp.4095.f.63"
    hints = ("hang", "wait", "pipe", "send", "silent") * 4
    widest = Beat(4096, [Sign(hint, 4095, 123.456, name, 4095, 4095) for hint in hints])
    most_B = len(encode((widest,)))
    for dp, ranks in ((4, 16), (16, 64), (64, 256)):
        made, problem = watched("stuck", 1, **SMALL | {"dp": dp, "after_s": 45.0, "fan_in": 4})
        assert problem.layout.size == ranks and made.metrics["right"] == 1.0
        # A beat may come just before a watcher's own, and the next one just before its next.
        assert 0 < made.metrics["inflow_B"] <= 2 * 4 * most_B
    signs = [Sign("hang", rank, float(rank)) for rank in range(1000)]
    assert [sign.rank for sign in worst(signs, 4)] == [999, 998, 997, 996]


def test_many_who_wait_in_one_group_count_before_those_who_wait_by_chance():
    alone = [Sign("wait", rank, 90.0, f"dp.{rank}") for rank in range(64)]
    fellows = [Sign("wait", rank, float(rank % 7), "tp.8") for rank in range(8, 16)]
    told = worst([*alone, *fellows], 4)
    assert [(sign.comm, sign.votes) for sign in told] == [
        ("tp.8", 8), ("dp.0", 1), ("dp.1", 1), ("dp.2", 1),
    ]  # fmt: skip
    # Votes of several watchers add up, and the rank with the highest score speaks for all.
    again = worst([*told, Sign("wait", 3, 50.0, "tp.8", votes=2)], 1)
    assert [(sign.rank, sign.score, sign.votes) for sign in again] == [(3, 50.0, 10)]
    # Pipes are of two ranks, and have places of their own.
    pipes = [Sign("pipe", rank, 1.0, "pp.0.f.1") for rank in (0, 1)]
    assert worst([*pipes, *told], 4) == [*pipes, *told]


@pytest.mark.slow
@pytest.mark.works_when("ccl-d", 2)
def test_512_ranks_chance_waits_do_not_hide_the_late_rank():
    # At these places waits by chance, in pipes and in data groups, once filled the heart-beats.
    wide = {"tp": 8, "pp": 8, "dp": 8, "step_s": 20.0, "within_s": 20.0}
    ranks, right, slowest_s = judged("periodic", (2, 5), **wide)
    assert ranks == right == 2 and slowest_s < 360.0


@pytest.mark.parametrize("layout", [(1, 1, 64), pytest.param((2, 2, 32), marks=pytest.mark.slow)])
def test_in_a_large_ring_small_delays_of_many_arrays_count(layout):
    tp, pp, dp = layout
    ring = {"tp": tp, "pp": pp, "dp": dp, "step_s": 20.0, "within_s": 20.0, "collective": "ring"}
    # Arrays that queue up in the first step once looked like a slow link.
    made, _ = watched("none", calm_s=100.0, **ring)
    assert made.ok and said(made) == []
    # Of a hundred arrays each is late by less than a hundredth of a step.
    made, problem = watched("nic", FRESH, after_s=110.0, **ring)
    assert made.ok and [each[1:] for each in said(made)] == [("slow_nic", problem.cases()[0].ranks)]


def test_before_a_step_is_known_nothing_is_slow_and_an_operation_that_came_once_is_no_step():
    now_s = [0.0]
    probe = CCLD().probe_for(0, lambda: now_s[0], 1e9)

    def step(kind, seconds):
        probe.channels.setdefault(1, Channel(1))
        op = probe.enqueue(kind, kind, kind, 8, [0, 1])
        now_s[0] += seconds
        probe.arrived(1, 8, seconds)
        probe.end(op)

    step("broadcast", 1.0)
    for _ in range(4):
        step("all_reduce", 1.0)
    assert probe.period_s == math.inf
    step("all_reduce", 50.0)
    assert not any(way.flags for way in probe.ways.values())
    for _ in range(20):
        step("all_reduce", 1.0)
    assert probe.period_s == 1.0 and probe.sent_before == {1: 1}
    for _ in range(3):
        step("all_reduce", 50.0)
    assert [sign.hint for sign in probe.beat().signs] == ["wait", "send"]


@pytest.mark.works_when("ccl-d", 4)
def test_the_depth_of_the_tree_is_logarithmic():
    for fan_in in (2, 4, 16):
        for power in range(1, 5):
            ranks = fan_in**power
            shape = levels(ranks, fan_in)
            assert len(shape) == power and sum(shape) < ranks
            assert len(levels(ranks + 1, fan_in)) == power + 1
            tree = tree_over(ranks, sum(shape))
            below = {}
            for place in range(tree.root):
                below[tree.parent_of(place)] = below.get(tree.parent_of(place), 0) + 1
            for rank in range(ranks) if ranks < 10_000 else ():
                below[tree.parent_of_rank(rank)] = below.get(tree.parent_of_rank(rank), 0) + 1
            assert max(below.values(), default=0) <= fan_in


# -- line 5: a poor view


@pytest.mark.works_when("ccl-d", 5)
@pytest.mark.parametrize("dead", [-1, 0, 3, 4])
def test_lost_messages_skewed_clocks_and_a_dead_watcher_blame_nobody_wrongly(dead):
    knobs = SMALL | {"jobs": 10, "fan_in": 4, "probe_loss": 0.1, "skew_s": 0.05, "limit_s": 400.0}
    made, problem = watched("all", 1, dead_watcher=dead, **knobs)
    assert made.ok and made.metrics["wrong"] == 0 and made.metrics["victims"] == 0
    truths = {case.ranks: TRUTH[case.kind] for case in problem.cases()}
    for _, ailment, blamed in said(made):
        assert (ailment, blamed) == (truths.get(blamed, ""), blamed) or ailment == (
            "insufficient_data"
        )
    # With a dead leaf most answers are still right; with a dead root (place 4) there is none, and
    # the one who asked says that.
    silent = [r for r in made.records if "no_answer" in r.values]
    assert made.metrics["right"] >= 0.8 if dead != 4 else len(silent) == 10


# -- the rules by themselves


def op_of(seq, kind="all_reduce", nbytes=64, comm="tp.0", ended_s=2.0, slot="tp", work_s=0.0):
    return Op(slot, comm, seq, kind, nbytes, 1.0, work_s, 1.5, ended_s)


def dump_of(rank, open_=(), ring=(), counts=None, channels=(), idle_s=0.0):
    seqs = {}
    for op in (*ring, *open_):
        seqs[op.comm] = max(seqs.get(op.comm, 0), op.seq + 1)
    return Dump(rank, 10.0, idle_s, list(open_), counts or {}, seqs, {"tp.0": [0, 1, 2]},
                list(channels), list(ring))  # fmt: skip


def test_patterns_are_expected_to_go_on():
    known = {n: ("all_reduce", 64 if n % 2 else 96) for n in range(6)}
    assert expected(known, 6) == ("all_reduce", 96) and expected(known, 7) == ("all_reduce", 64)
    assert expected({}, 3) is None and expected({0: ("a", 1)}, 1) is None


@pytest.mark.parametrize(
    ("kind", "nbytes", "ailment"),
    [("all_reduce", 96, "skipped"), ("all_reduce", 68, "size_mismatch"),
     ("all_gather", 64, "op_mismatch")],
)  # fmt: skip
def test_two_equal_parties_are_told_apart_by_what_they_did_before(kind, nbytes, ailment):
    ring = [op_of(n, nbytes=96 if n % 2 else 64) for n in range(6)]
    sound = dump_of(0, [op_of(6, ended_s=-1.0)], ring)
    odd = dump_of(1, [op_of(6, kind, nbytes, ended_s=-1.0)], ring)
    found = mismatch(Scene("tp.0", 6, {0: sound, 1: odd}))
    assert (found.ailment, found.ranks) == (ailment, (1,))
    # Without a history nobody can tell.
    alone = Scene("tp.0", 6, {0: dump_of(0, sound.open), 1: dump_of(1, odd.open)})
    assert mismatch(alone).ailment == "insufficient_data"


def test_who_went_past_is_told_by_its_other_counts():
    waits = dump_of(0, [op_of(6, ended_s=-1.0)], counts={"tp": 7, "dp": 3})
    past = dump_of(1, [op_of(3, comm="dp.1", slot="dp", ended_s=-1.0)], counts={"tp": 6, "dp": 4})
    late = dump_of(2, [op_of(2, comm="dp.2", slot="dp", ended_s=-1.0)], counts={"tp": 6, "dp": 3})
    scene = Scene("tp.0", 6, {0: waits, 1: past, 2: late})
    assert went_past(scene, 1) and not went_past(scene, 2)


def test_a_straggler_is_who_computes_longer_and_by_turns_is_periodic():
    def ring(slow):
        done, work_s = [], 0.0
        for n in range(12):
            work_s += slow(n)
            done.append(op_of(n, work_s=work_s))
        return done

    bounds = Bounds(8, 3, 0.25, 3.0)
    flat = {rank: dump_of(rank, ring=ring(lambda n: 1.0)) for rank in (0, 2, 3)}
    cases = ((lambda n: 2.0 if n > 7 else 1.0, "slow_compute"),
             (lambda n: 2.0 if n % 3 == 2 else 1.0, "periodic_compute"))  # fmt: skip
    for slow, ailment in cases:
        found = straggler({**flat, 1: dump_of(1, ring=ring(slow))}, "tp.0", bounds)
        assert (found.report.ailment, found.report.ranks) == (ailment, (1,))
    for sound in (lambda n: 1.0, lambda n: 1.2, lambda n: 2.0 if n == 9 else 1.0):
        assert straggler({**flat, 1: dump_of(1, ring=ring(sound))}, "tp.0", bounds) is None


def test_slow_ways_have_a_nic_in_common_or_are_one_link():
    def ways(*slow):
        return {rank: dump_of(rank, channels=[
            Channel(peer, 9, 9, 9, 0.0, 8, 20.0 if (rank, peer) in slow else 1.0)
            for peer in range(4) if peer != rank]) for rank in range(4)}  # fmt: skip

    sign = Sign("send", 1, 20.0, "", 2)
    nic = sick_way(ways((1, 2), (0, 1), (1, 0)), sign, 3.0)
    assert (nic.ailment, nic.ranks) == ("slow_nic", (1,))
    link = sick_way(ways((1, 2), (2, 1)), sign, 3.0)
    assert (link.ailment, link.ranks) == ("slow_link", (1, 2))
    assert sick_way(ways(), sign, 3.0) is None


def test_what_is_usual_is_not_moved_by_what_is_slow():
    norm = Norm(8)
    for value in (1.0, 1.1, 0.9, 1.0, 1.05) * 4:
        assert not norm.add(value, 4, 6.0, 0.5)
    assert [norm.add(5.0, 4, 6.0, 0.5) for _ in range(20)] == [True] * 20
    assert norm.middle == pytest.approx(1.0, abs=0.1) and not norm.add(1.2, 4, 6.0, 0.5)


# -- bad input


@pytest.mark.parametrize(
    "knobs",
    [{"heartbeat_s": 0}, {"heartbeat_s": float("nan")}, {"hang_s": -1}, {"ring": 0},
     {"share": 2.0}, {"confirm": "three"}, {"no_such": 1}],
)  # fmt: skip
def test_bad_knobs_are_named(knobs):
    with pytest.raises(KnobError, match=next(iter(knobs))):
        CCLD(**knobs)


@pytest.mark.parametrize(
    ("knobs", "says"),
    [({"tp": 1, "pp": 1, "dp": 1}, "at least 2 ranks"), ({"kind": "skip", "tp": 1}, "tp >= 2"),
     ({"fan_in": 1}, "fan_in=1"), ({"dead_watcher": 99}, "dead_watcher=99")],
)  # fmt: skip
def test_bad_problems_are_named(knobs, says):
    with pytest.raises(PartError, match=says):
        run(CCLD(), problem=SickCommunication(**knobs))


def test_a_world_that_does_not_fit_is_named():
    problem = SickCommunication()
    for world in (World.lan(9), World.lan({"rank": 7, "watcher": 1}), World.lan({"rank": 8})):
        with pytest.raises(OrreryError, match="rank"):
            run(CCLD(), problem=problem, world=world)
    with pytest.raises(OrreryError, match="confirm=9"):
        run(CCLD(confirm=9), problem=problem)
    with pytest.raises(KnobError, match="kind"):
        SickCommunication(kind="flood")


def test_the_bare_recorder_counts_and_finds_nothing():
    recorder = Recorder(0, lambda: 1.0, 4)
    assert recorder.dump(4).ring == [] and recorder.dump().idle_s == 0.0
