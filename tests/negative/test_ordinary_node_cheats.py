"""Planted cheats in LOCAL algorithms: whoever looks too far or speaks twice must be found."""

from __future__ import annotations

from typing import ClassVar

import pytest

from orrery import World, run
from orrery.base.rand import Stream
from orrery.systems.protocols.baselines.cole_vishkin import ColeVishkin
from orrery.systems.protocols.baselines.greedy_by_id import GreedyById
from orrery.systems.protocols.baselines.greedy_mis import GreedyMis
from orrery.systems.protocols.ordinary_node import LargestId, OrdinaryNode
from orrery.systems.protocols.problems.local_rounds import (
    BeyondRadius,
    LocalRounds,
    ball_times,
    check_balls,
    check_locality,
    check_said,
    check_task,
    cycle,
    lockstep,
    random_ids,
    sorted_ids,
)

PROBLEM = LocalRounds(audit=12)


class PeeksInBall(LargestId):
    """Its ball function reads the identifiers of nodes one step beyond the radius."""

    def ball(self, ball):
        nodes = ball.nodes()
        beyond = {(v + 1) % ball.n for v in nodes} | set(nodes)
        return 0 if max(ball.id(v) for v in beyond) > ball.id(ball.centre) else None


class SharedBoard(LargestId):
    """Nodes write their identifiers on a board that all can read: no message, no round."""

    board: ClassVar[dict[int, int]] = {}

    def begin(self, state):
        if len(self.board) >= state.me.n:
            self.board.clear()
        self.board[state.me.id] = state.me.id
        super().begin(state)

    def take(self, state, inbox):
        if not state.said and max(self.board) != state.me.id:
            state.speak(0)
        super().take(state, inbox)

    def ball(self, ball):
        # Both forms cheat alike, so only a change beyond the ball can show it.
        ids = [ball._graph.ids[v] for v in range(ball.n)]
        mine = ball.id(ball.centre)
        if max(ids) > mine:
            return 0 if ball.radius >= 1 else None
        return 1 if ball.radius >= ball.n // 2 else None


class ChangesItsMind(GreedyById):
    """Outputs a colour at once and a better one when it knows more."""

    def begin(self, state):
        super().begin(state)
        state.speak(0)
        state.colour = -1

    def take(self, state, inbox):
        said, state.said = state.said, []
        super().take(state, inbox)
        state.said = said + state.said


class SaysItTwiceInTheBall(GreedyMis):
    """Its ball function takes its output back when the radius grows."""

    def ball(self, ball):
        value = super().ball(ball)
        return value if value is None or ball.radius % 2 else 1 - value


class TooEager(ColeVishkin):
    """Speaks one round before the ball settles its colour: guesses the least of the set."""

    def take(self, state, inbox):
        super().take(state, inbox)
        if not state.said and state.round == 2:
            state.speak(0)


class Mute(LargestId):
    """Never outputs when it is the leader."""

    def decide(self, state):
        if len(state.seen) < state.me.n:
            super().decide(state)


def kinds(part, seeds=range(3), **options) -> set[str]:
    """The kinds of violations over some seeds."""
    found = set()
    for seed in seeds:
        made = run(part, problem=PROBLEM, world=World.rounds(12), seed=seed, **options)
        found |= {violation.kind for violation in made.violations}
    return found


@pytest.mark.works_when("ordinary-node", 5)
@pytest.mark.parametrize(
    "honest", [LargestId(), GreedyById(), GreedyMis(), ColeVishkin()], ids=repr
)
def test_the_honest_ones_pass_in_the_same_world(honest):
    assert kinds(honest) == set()
    assert kinds(OrdinaryNode(algorithm=honest)) == set()


@pytest.mark.works_when("ordinary-node", 5)
def test_a_ball_function_that_reads_beyond_its_radius_is_caught():
    assert "beyond_radius" in kinds(PeeksInBall())
    with pytest.raises(BeyondRadius, match="give None until the radius is 1"):
        ball_times(PeeksInBall(), cycle(8, sorted_ids(8)))


@pytest.mark.works_when("ordinary-node", 5)
def test_messages_that_cheat_are_caught_although_the_ball_agrees():
    graph = cycle(12, random_ids(12, 5) + 12, bits=6)
    said = [each[0] for each in lockstep(SharedBoard(), graph)]
    assert check_balls(SharedBoard(), graph, said, range(12)) == []
    found = check_locality(SharedBoard(), graph, said, range(12), Stream(1, 0, "cheats"))
    assert found and {violation.kind for violation in found} == {"beyond_radius"}
    honest = [each[0] for each in lockstep(LargestId(), graph)]
    for seed in range(20):
        stream = Stream(seed, 0, "cheats")
        assert check_locality(LargestId(), graph, honest, range(12), stream) == []


@pytest.mark.works_when("ordinary-node", 5)
def test_two_different_outputs_are_caught():
    assert "two_outputs" in kinds(ChangesItsMind())
    assert "two_outputs" in kinds(SaysItTwiceInTheBall())


def test_a_colour_spoken_too_early_is_caught():
    assert {"ball_differs"} <= kinds(TooEager())


def test_silence_is_caught():
    graph = cycle(5, sorted_ids(5))
    assert [v.kind for v in check_said(lockstep(Mute(), graph))] == ["no_output"]
    made = run(Mute(), problem=PROBLEM, world=World.rounds(12), until_s=200.0)
    assert made.ended == "until"  # the driver waits for it in vain


@pytest.mark.parametrize(
    ("task", "outputs", "kind"),
    [
        ("colouring", [0, 1, 0, 1, 1], "not_proper"),
        ("colouring", [0, 1, 0, 1, 3], "too_many_colours"),
        ("mis", [1, 1, 0, 0, 0], "not_independent"),
        ("mis", [1, 0, 0, 0, 0], "not_maximal"),
        ("leader", [0, 0, 0, 0, 0], "leaders"),
        ("leader", [1, 0, 0, 0, 1], "leaders"),
        ("leader", [1, 0, 0, 0, 0], "leaders"),
    ],
)
def test_wrong_solutions_are_named(task, outputs, kind):
    assert kind in {v.kind for v in check_task(task, cycle(5, sorted_ids(5)), outputs)}
