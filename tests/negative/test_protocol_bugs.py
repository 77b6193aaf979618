"""Planted bugs in gossip, flooding, Chord and two-phase commit: the checkers must find each one.

Every bug is a small subclass of a shipped protocol. It has to be found by the problem's checker in
a world in which the shipped protocol, with the same seeds, does nothing wrong.
"""

from __future__ import annotations

import pytest

from orrery import World, rpc, run
from orrery.systems.protocols import (
    AtomicCommit,
    Broadcast,
    Chord,
    Flood,
    Lookup,
    PushGossip,
    TwoPhaseCoordinator,
    TwoPhaseParticipant,
)
from orrery.world import Crash, Group, RandomCrashes, RandomPartitions

SEEDS = range(12)


def kinds_found(part, problem, world, seeds=SEEDS) -> set[str]:
    """The kinds of violations in the first seed that has any."""
    for seed in seeds:
        made = run(part, problem=problem, world=world, seed=seed)
        if made.violations:
            return {violation.kind for violation in made.violations}
    return set()


# -- broadcast


class DeafAfterCrash(PushGossip):
    """Takes its restart for a fresh start and listens to nobody."""

    @rpc
    async def learn(self, values: frozenset[int]) -> None:
        if self.incarnation == 0:
            await super().learn(values)


class LosesInterest(PushGossip):
    """Sends only what it learnt since the last round, so a lost message is lost for good."""

    def start(self):
        super().start()
        self.sent: set[int] = set()

    async def main(self):
        while True:
            await self.sleep(self.period_s)
            fresh = frozenset(self.seen - self.sent)
            self.sent |= fresh
            for peer in self.rng.sample(self.peers, self.fanout) if fresh else ():
                self.tell(peer, PushGossip.learn, fresh)


class DeliversAgain(PushGossip):
    """Forgets to look whether it has a value already."""

    @rpc
    async def learn(self, values: frozenset[int]) -> None:
        for value in sorted(values):
            self.emit(delivered=value)
        self.seen |= values


class Garbles(PushGossip):
    """Node 2 adds one to the values that it hears."""

    @rpc
    async def learn(self, values: frozenset[int]) -> None:
        off = 1000 if self.id == 2 else 0
        await super().learn(frozenset(value + off for value in values))


class KeepsNoCopy(PushGossip):
    """Spreads what it is told but does not deliver its own values, and refuses to hear of them."""

    @rpc
    async def broadcast(self, value: int) -> None:
        self.seen.add(value)


class FloodsHalf(Flood):
    """Tells only the neighbours with a greater number."""

    def forward(self, value: int) -> None:
        if value in self.seen:
            return
        self.seen.add(value)
        for peer in self.neighbours:
            if peer > self.id:
                self.tell(peer, Flood.hear, value)
        self.emit(delivered=value)


ROUGH = World.lan(16, drop=0.2).with_faults(
    RandomCrashes(count=4, between_s=(0.05, 0.5), down_s=(0.05, 0.3), at_most=3)
)


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        (DeafAfterCrash(), "missed"),
        (LosesInterest(fanout=1), "missed"),
        (DeliversAgain(), "duplicated"),
        (Garbles(), "created"),
        (KeepsNoCopy(), "not_delivered"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, PushGossip) else value,
)
def test_gossip_bugs_are_found(part, kind):
    assert kind in kinds_found(part, Broadcast(), ROUGH)


def test_the_shipped_gossip_is_clean_there():
    assert kinds_found(PushGossip(), Broadcast(), ROUGH) == set()


def test_a_flood_in_one_direction_is_found():
    assert "missed" in kinds_found(FloodsHalf(), Broadcast(), World.lan(8))
    assert kinds_found(Flood(), Broadcast(), World.lan(8)) == set()


# -- lookup


class NeverStabilises(Chord):
    """Joins, and then looks after nothing but its fingers."""

    async def _stabilise(self) -> None:
        return


class HoldsOnToTheDead(Chord):
    """Never drops a node that does not answer."""

    def _forget(self, node: int) -> None:
        return


class NamesTheNodeBefore(Chord):
    """Takes a key for its own when its successor owns it."""

    def _choose(self, key, skip, final):
        node, last = super()._choose(key, skip, final)
        return (self.id, True) if last and not final else (node, last)


class IgnoresNotices(Chord):
    """Believes its first predecessor for ever, dead or alive."""

    def _set_pred(self, node):
        if self.pred is None:
            super()._set_pred(node)


class StaysOut(Chord):
    """Does not find the way back into the ring after a crash."""

    async def _enter(self, helpers):
        if self.incarnation == 0:
            await super()._enter(helpers)
        else:
            await self.event().wait()


CHURNING = World.lan(16).with_faults(
    Crash(node=3, at_s=0.3), Crash(node=9, at_s=0.6, until_s=1.0), Crash(node=12, at_s=0.9)
)
SHORT = Lookup(lookups=40, final=40, join_s=0.0, spread_s=1.5, settle_s=3.0)


@pytest.mark.parametrize(
    ("part", "kinds"),
    [
        (NeverStabilises(), {"wrong_owner", "wrong_successor", "wrong_predecessor"}),
        (HoldsOnToTheDead(), {"no_owner", "dead_successor"}),
        (NamesTheNodeBefore(), {"wrong_owner"}),
        (IgnoresNotices(), {"wrong_predecessor"}),
        (StaysOut(), {"wrong_owner", "no_successor", "wrong_successor"}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Chord) else "",
)
def test_chord_bugs_are_found(part, kinds):
    found = kinds_found(part, SHORT, CHURNING, range(3))
    assert found & kinds, found


def test_the_shipped_chord_is_clean_there():
    assert kinds_found(Chord(), SHORT, CHURNING, range(6)) == set()


# -- atomic commit


class VotesBeforeWriting(TwoPhaseParticipant):
    """Says yes with nothing on disk."""

    async def promise(self, tx, nodes):
        return


class GrowsImpatient(TwoPhaseParticipant):
    """Aborts by itself when it has waited long enough for the decision."""

    async def resolve(self, tx, coordinator, participants, wait_s):
        await self.sleep(wait_s)
        if tx not in self.decided:
            await self.learn(tx, "abort")


class ForgetsItsPromise(TwoPhaseParticipant):
    """After a crash takes every open transaction for aborted."""

    async def resolve(self, tx, coordinator, participants, wait_s):
        if wait_s == 0.0:
            self.settle(tx, "abort")
        else:
            await super().resolve(tx, coordinator, participants, wait_s)


class CommitsOnMajority(TwoPhaseCoordinator):
    """Counts votes as if this were consensus."""

    def all_said_yes(self, votes):
        return 2 * sum(vote is True for vote in votes) > len(votes)


class SilenceIsConsent(TwoPhaseCoordinator):
    """Commits unless somebody said no."""

    def all_said_yes(self, votes):
        return all(vote is not False for vote in votes)


class TellsBeforeWriting(TwoPhaseCoordinator):
    """Tells the commit with nothing on disk."""

    async def make_safe(self, tx, participants):
        return


class NeverDares(TwoPhaseCoordinator):
    """Aborts everything, which is safe and useless."""

    def all_said_yes(self, votes):
        return False


CAST = World(groups=(Group(name="coordinator", count=1), Group(name="participant", count=4)))
# Crashes are short and many, so that some fall between a promise and what follows from it.
CRASHING = CAST.with_(
    changes={"network.drop": 0.05},
).with_faults(
    RandomCrashes(count=30, between_s=(0.0, 1.0), down_s=(0.005, 0.05)),
    RandomPartitions(count=3, between_s=(0.0, 1.0), down_s=(0.1, 0.8)),
)
BUSY = AtomicCommit(transactions=80, vote_no=0.05)
CALM_ONE = AtomicCommit(transactions=10, vote_no=0.2)


@pytest.mark.parametrize(
    ("coordinator", "participant", "kinds"),
    [
        (TwoPhaseCoordinator(), VotesBeforeWriting(), {"split_decision", "undecided"}),
        (TwoPhaseCoordinator(), GrowsImpatient(), {"split_decision"}),
        (TwoPhaseCoordinator(), ForgetsItsPromise(), {"split_decision"}),
        (TellsBeforeWriting(), TwoPhaseParticipant(), {"split_decision"}),
    ],
    ids=["votes before writing", "impatient", "forgets", "tells too early"],
)
def test_commit_bugs_are_found_under_faults(coordinator, participant, kinds):
    roles = {"coordinator": coordinator, "participant": participant}
    found = kinds_found(roles, BUSY, CRASHING, range(40))
    assert found & kinds, found


ONE_AWAY = CAST.with_faults(Crash(node=2, at_s=0.2, until_s=3.0))


@pytest.mark.parametrize(
    ("bug", "world", "kind"),
    [
        (CommitsOnMajority(), CAST, "commit_without_yes"),
        (NeverDares(), CAST, "needless_abort"),
        (SilenceIsConsent(), ONE_AWAY, "commit_without_yes"),
    ],
    ids=["majority", "never dares", "silence is consent"],
)
def test_coordinators_that_count_wrongly_are_found(bug, world, kind):
    roles = {"coordinator": bug, "participant": TwoPhaseParticipant()}
    assert kind in kinds_found(roles, CALM_ONE, world)


def test_the_shipped_commit_is_clean_there():
    roles = {"coordinator": TwoPhaseCoordinator(), "participant": TwoPhaseParticipant()}
    assert kinds_found(roles, BUSY, CRASHING, range(20)) == set()
    assert kinds_found(roles, CALM_ONE, CAST) == set()
    assert kinds_found(roles, CALM_ONE, ONE_AWAY) == set()
