"""Planted faults in `DirectedAuth`: each is seen, by the same runs that pass without it."""

from __future__ import annotations

import pytest

from orrery import World, run
from orrery.base.rand import Stream
from orrery.parts.byzantine import Liar, Strategy
from orrery.parts.problem import Outcome, Record
from orrery.systems.protocols.directed_byzantine_auth import DirectedAuth, conditions
from orrery.systems.protocols.directed_byzantine_auth.adversary import Liars
from orrery.systems.protocols.directed_byzantine_auth.approximate import ApproximateMachine
from orrery.systems.protocols.directed_byzantine_auth.exact import (
    ExactMachine,
    Plan,
    lockstep,
)
from orrery.systems.protocols.directed_byzantine_auth.steered import steer
from orrery.systems.protocols.problems.digraphs import bits, complete, mask_of, thinned
from orrery.systems.protocols.problems.directed_consensus import DirectedConsensus
from orrery.systems.protocols.problems.directed_node import DirectedNode
from orrery.systems.protocols.problems.signing import TokenKeys
from orrery.world import Byzantine

MINE = "directed-byzantine-auth"


def kinds(part, lie, seeds=range(8), **knobs):
    """The kinds of violations that a liar causes over some seeds."""
    found = set()
    for seed in seeds:
        world = World.lan(4).with_faults(Byzantine(node=seed % 4, strategies=(lie,)))
        problem = DirectedConsensus(**{"inputs": "equal", **knobs})
        made = run(part, problem=problem, world=world, seed=seed)
        found |= {each.kind for each in made.violations}
    return found


# -- signatures


@pytest.mark.works_when(MINE, 4)
@pytest.mark.parametrize("timing", ["synchronous", "asynchronous"])
def test_without_a_look_at_signatures_a_forger_wins(timing):
    part = DirectedAuth(timing=timing)
    inputs = "equal" if timing == "synchronous" else "random"
    assert kinds(part, "forge", inputs=inputs) == set()
    found = kinds(part.with_knobs(checked=False), "forge", inputs=inputs)
    assert "forgery" in found and found & {"disagreement", "invalid_decision", "out_of_range"}


class Lax(DirectedAuth):
    """Node 0 believes the bad signatures under one single text, the first that it meets."""

    def _keys(self):
        keys = super()._keys()
        strict, believed = keys.good, []

        def good(signer, text, token):
            answer = strict(signer, text, token)
            if not answer and self.id == 0 and not believed:
                believed.append(text)
            return answer or text in believed

        keys.good = good
        return keys


@pytest.mark.works_when(MINE, 4)
@pytest.mark.parametrize("timing", ["synchronous", "asynchronous"])
def test_one_accepted_forgery_is_seen(timing):
    assert "forgery" in kinds(Lax(timing=timing), "forge", seeds=(1, 2, 3))
    assert kinds(DirectedAuth(timing=timing), "forge", seeds=(1, 2, 3)) == set()


# -- the exact protocol


class Reveal(Liars):
    """Shows a 0 to one node of the source, in the last moment of a turn, and a verdict 1 to all.

    Three fault-free nodes with 1, 1 and 0 then stay so, if the late 0 counts.
    """

    def __init__(self, liar: Liar, plan: Plan) -> None:
        super().__init__(liar)
        self.plan = plan

    def bend(self, message, number, news):
        plan, when = self.plan, self.plan.rounds[number]
        now, out = [], []
        for each in news:
            if not self.mine(each):
                now.append(each)
            elif each.kind == "verdict":
                now.append(each if each.value == 1 else self.other(each))
            elif message.dst == min(bits(plan.turns[when.turn].core & ~(1 << self.liar.me))):
                last = (when.turn * (plan.f + 3) + plan.f + 2) * plan.hops - 1
                told = each if each.value == 0 else self.other(each)
                out.append(message._replace(args=(last, (told,))))
        return [*out, message._replace(args=(number, tuple(now)))]


def revealed(machine):
    """What three fault-free nodes decide when a fourth shows its bit late, to one of them."""
    plan = Plan.of(complete(4), 1)
    bent: dict[int, list[Strategy]] = {
        3: [Reveal(Liar(3, 4, Stream(0, 0, "reveal"), lambda: 0.0), plan)]
    }
    inputs = (1, 1, 0, 1)
    return lockstep([machine(v, plan, inputs[v], TokenKeys(v)) for v in range(4)], bent)[:3]


class Hasty(ExactMachine):
    """Believes a bit however late it comes and however few have signed it."""

    def _in_time(self, step, members, each):
        return True


@pytest.mark.works_when(MINE, 1)
def test_bits_that_come_late_with_few_signatures_split_the_hasty():
    assert revealed(ExactMachine) == [1, 1, 1]
    assert revealed(Hasty) == [0, 1, 1]


class Credulous(ExactMachine):
    """Takes a verdict of f nodes of the source, one of which may be a liar."""

    def close(self, number):
        super().close(number)
        when = self.plan.rounds[number]
        turn = self.plan.turns[when.turn]
        if when.last and when.step == self.plan.f + 3 and not turn.core >> self.me & 1:
            told = sorted(value for _, value in self.verdicts)
            if told:
                self.value = told[0]


class Forgetful(ExactMachine):
    """Suspects only the first set of nodes, in every turn."""

    def __init__(self, me, plan, value, keys):
        super().__init__(me, plan._replace(turns=plan.turns[:1] * len(plan.turns)), value, keys)


@pytest.mark.works_when(MINE, 1)
@pytest.mark.parametrize("machine", [Credulous, Forgetful])
def test_faulty_machines_are_broken_by_the_same_lies(machine):
    from tests.systems.protocols.test_directed_byzantine_auth import LIES, on_machines

    graph = thinned(complete(6), 0.0, Stream(2, 0, "thin"), lambda g: conditions.synchronous(g, 1))
    runs = [(liar, lie, seed) for liar in range(6) for lie in LIES for seed in (liar, liar + 50)]
    assert all(on_machines(graph, 1, (a,), lie, seed) for a, lie, seed in runs)
    assert not all(on_machines(graph, 1, (a,), lie, seed, machine) for a, lie, seed in runs)


# -- the approximate protocol


class Untrimmed(ApproximateMachine):
    """Averages the extremes in."""

    def _middle(self, book):
        kept = sorted(each[0].value for each in book.said.values())
        return kept[0] / 2 + kept[-1] / 2


class Unreported(ApproximateMachine):
    """Moves on with the values of a round, without anybody's report."""

    def _go_on(self):
        book = self._book(self.number)
        if not self.decided and not self.reported:
            self.reported = any(want & ~book.have == 0 for want in self.wanted)
        if self.reported:
            book.told = mask_of(range(self.graph.n))
        if self.decided or not self.reported:
            return []
        self.values.append(self._middle(book))
        self.decided = self.number == self.rounds
        return [] if self.decided else [*self._open(), *self._go_on()]


def shrinking(machine, seeds=range(60)):
    """The largest factor of a round, and whether all stayed inside the inputs."""
    most, inside = 0.0, True
    for seed in seeds:
        rows = steer(complete(4), 1, (seed % 4,), seed, machine=machine)
        widths = [max(row) - min(row) for row in rows]
        for row, wider, narrower in zip(rows[1:], widths, widths[1:], strict=False):
            inside = inside and min(rows[0]) - 1e-9 <= min(row) <= max(row) <= max(rows[0]) + 1e-9
            most = max(most, narrower / wider if wider else 0.0)
    return most, inside


@pytest.mark.works_when(MINE, 3)
def test_trimming_and_reports_are_both_needed():
    most, inside = shrinking(ApproximateMachine)
    assert most <= 0.5 + 1e-9 and inside
    assert not shrinking(Untrimmed)[1]
    assert shrinking(Unreported)[0] > 0.5 + 1e-9


@pytest.mark.works_when(MINE, 3)
def test_waiting_for_everybody_blocks():
    class Patient(DirectedAuth):
        """Waits for all n nodes."""

        def draw_together(self):
            super().draw_together()
            self.machine.wanted = (self.graph.everyone,)

    problem = DirectedConsensus(limit_s=5.0)
    world = World.lan(4).with_faults(Byzantine(node=3, strategies=("silence",)))
    made = run(Patient(timing="asynchronous"), problem=problem, world=world)
    assert {each.kind for each in made.violations} == {"no_decision"}


# -- the checker


class Saying(DirectedNode):
    """Decides what the test says."""

    def suits(self, graph, f):
        return True


def judged(goal, inputs, decided, steps=(), **knobs):
    """The kinds that the checker finds in a made-up run of fault-free nodes."""
    records = [Record(0.0, v, {"input": x}) for v, x in enumerate(inputs)]
    records += [Record(1.0, v, {"step": k, "value": x}) for v, k, x in steps]
    records += [Record(2.0, v, {"decided": x, "rounds": 1, "forged": 0, "refused": 0})
                for v, x in decided]  # fmt: skip
    part = type("Saying", (Saying,), {"goal": goal, "halves": True})()
    outcome = Outcome(part=part, world=World.lan(len(inputs)), seed=0, engine="virtual",
                      seconds=3.0, ended="driven", records=records,
                      alive=[True] * len(inputs))  # fmt: skip
    return [each.kind for each in DirectedConsensus(**knobs).check(outcome)]


def test_the_checker_sees_every_kind_of_wrong():
    assert judged("exact", (0.0, 1.0), [(0, 1.0), (1, 1.0)]) == []
    assert judged("exact", (0.0, 1.0), [(0, 1.0), (1, 0.0)]) == ["disagreement"]
    assert judged("exact", (1.0, 1.0), [(0, 0.0), (1, 0.0)]) == ["invalid_decision"] * 2
    assert judged("exact", (1.0, 1.0), [(0, 1.0)]) == ["no_decision"]
    assert judged("exact", (1.0, 1.0), [(0, 1.0), (0, 1.0), (1, 1.0)]) == ["decided_twice"]
    assert judged("approximate", (0.0, 1.0), [(0, 0.5), (1, 0.5)]) == []
    assert judged("approximate", (0.0, 1.0), [(0, 1.5), (1, 1.5)]) == ["out_of_range"] * 2
    assert judged("approximate", (0.0, 1.0), [(0, 0.4), (1, 0.6)]) == ["disagreement"]
    assert judged("approximate", (0.0, 1.0), [(0, 0.5)]) == ["no_decision"]
    ends = [(0, 0.5), (1, 0.5)]
    assert judged("approximate", (0.0, 1.0), ends, [(0, 0, 0.0), (1, 0, 0.5)]) == []
    assert judged("approximate", (0.0, 1.0), ends, [(0, 0, 0.0), (1, 0, 0.6)]) == ["not_halved"]


def test_an_attack_that_breaks_nothing_is_reported():
    class Lucky(DirectedAuth):
        """Claims that no attack breaks it."""

        def refuted(self, graph, f):
            return False

    made = run(Lucky(), problem=DirectedConsensus(necessity=True), world=World.lan(4))
    assert [each.kind for each in made.violations] == ["not_refuted"]
    assert made.metrics["refuted"] == 0.0
