"""Every order of deliveries for four nodes and a lying broadcaster; and faults that must be found.

The explorer of chosen order merges equal states. What a node merely counts would tell states apart
that have the same future, so the part that is searched does not count.
"""

from __future__ import annotations

import pytest

from orrery import World
from orrery.engines.virtual.engine import Engine
from orrery.engines.virtual.explore import explore
from orrery.parts import rpc
from orrery.parts.byzantine import Strategy
from orrery.systems.protocols.amortized_brb import AmortizedBRB
from orrery.systems.protocols.amortized_brb.chain import GENESIS, chained, digest_of
from orrery.systems.protocols.problems.reliable_broadcast import ReliableBroadcast
from orrery.world import Byzantine

MINE = "amortized-brb"


class Deaf(Strategy):
    """Hears nothing: what a liar says does not depend on the others, so there is less to try."""

    def on_receive(self, message):
        return []


class Searched(AmortizedBRB):
    """The part as it is, with one more way to lie and without its counters."""

    byzantine = {**AmortizedBRB.byzantine, "deaf": Deaf}

    def say(self, kind, peer, method, *args):
        self.tell(peer, method, *args)

    def say_all(self, kind, method, *args):
        for peer in self.peers:
            self.tell(peer, method, *args)

    def note_request(self, index):
        pass

    def refuse(self, why):
        pass


class Liar(Searched):
    """A broadcaster that tells each peer one of two streams, and votes and is ready as it likes.

    One letter a peer: whose payloads it gets, whose chain the liar votes for and calls ready there.
    """

    payloads: str = "AAB"
    votes: str = "AAB"
    readies: str = "AAB"
    stream: int = 1

    async def main(self):
        heads = {story: [GENESIS] for story in "AB"}
        for index in range(1, self.stream + 1):
            for story, chain in heads.items():
                chain.append(chained(index, chain[-1], digest_of(payload(story, index))))
            ways = zip(self.peers, self.payloads, self.votes, self.readies, strict=True)
            for peer, given, voted, ready in ways:
                digest = digest_of(payload(voted, index))
                news = (index, heads[ready][index])
                self.tell(peer, AmortizedBRB.shot, index, payload(given, index))
                self.tell(peer, AmortizedBRB.vote, index, heads[voted][-2], digest, *news)


def payload(story, index):
    return story.encode() + bytes([index])


def search(part, liar, **options):
    """All orders (up to bounds) of three correct nodes and this broadcaster."""
    problem = ReliableBroadcast(shots=liar.stream, size_B=2)
    world = World.chosen({"liar": 1, "node": 3})
    world = world.with_faults(Byzantine(node=0, strategies=("deaf",)))
    roles = {"liar": liar, "node": part}
    return explore(roles, world=world, check=problem.check, **options)


@pytest.mark.slow
@pytest.mark.works_when(MINE, 1)
def test_every_order_of_one_shot_is_safe_and_total():
    found = search(Searched(), Liar(votes="ABB", readies="ABB"))
    assert found.violations == []
    assert found.complete and found.merged > 1000


@pytest.mark.slow
@pytest.mark.works_when(MINE, 1)
@pytest.mark.parametrize(
    ("votes", "readies"), [("AAB", "AAB"), ("AAB", "ABB"), ("ABA", "AAB"), ("BBA", "BBA")]
)
def test_every_order_of_one_shot_for_more_liars(votes, readies):
    found = search(Searched(), Liar(votes=votes, readies=readies))
    assert found.violations == []
    assert found.complete


@pytest.mark.works_when(MINE, 1)
def test_two_shots_with_one_deviation_from_first_in_first_out():
    for votes in ("AAB", "ABB"):
        found = search(Searched(), Liar(votes=votes, readies=votes, stream=2), deviations=1)
        assert found.violations == [] and found.complete and found.schedules > 100


@pytest.mark.slow
@pytest.mark.works_when(MINE, 1)
def test_two_shots_with_three_deviations_from_first_in_first_out():
    liar = Liar(votes="ABB", readies="ABB", stream=2)
    found = search(Searched(), liar, deviations=3, max_schedules=1_000_000)
    assert found.violations == []
    assert found.complete


# -- faults that the search, or random schedules, must find


class SmallQuorum(Searched):
    """Takes half of the nodes for a quorum."""

    def start(self):
        super().start()
        self.quorum = self.n // 2


class Rash(Searched):
    """Takes the optimistic path when all but f have voted."""

    def weigh(self, head):
        votes = self.book.votes.get(head, 0).bit_count()
        if votes >= self.n - self.f:
            self.certain.setdefault(self.book.links[head].index, head)
        super().weigh(head)


class Stubborn(Searched):
    """Is ready on votes alone, never on the word of f + 1 others."""

    def become_ready(self, head):
        if self.book.votes.get(head, 0).bit_count() >= self.quorum:
            super().become_ready(head)


class Trusting(Searched):
    """Takes any bytes that it is given for the payload."""

    @rpc
    def give(self, index: int, payload: bytes, sender: int) -> None:
        self.spare.setdefault(index, payload)
        self.settle()


@pytest.mark.works_when(MINE, 1)
@pytest.mark.parametrize(
    ("part", "stories"),
    [(SmallQuorum(), "AAB"), (Rash(), "ABB"), (Stubborn(), "AAB")],
    ids=["quorum", "optimistic", "amplification"],
)
def test_a_planted_fault_is_found_by_search(part, stories):
    found = search(part, Liar(votes=stories, readies=stories))
    assert "missed" in {each.kind for each in found.violations}
    assert found.schedule is not None


def test_garbage_that_is_believed_is_found():
    problem = ReliableBroadcast(shots=1, size_B=4)
    world = World.chosen(7)
    world = world.with_faults(Byzantine(node=(0, 1), strategies=("subset", "garbage")))
    kinds = set()
    for seed in range(20):
        roles = problem.alone(Trusting(), world)
        found = problem.check(Engine(roles, world=world, seed=seed).run())
        kinds |= {each.kind for each in found}
        honest = problem.alone(Searched(), world)
        assert problem.check(Engine(honest, world=world, seed=seed).run()) == []
    assert "unsafe_apply" in kinds
