"""The vectorised tier: the same protocol as coroutine nodes, and a million agents."""

from __future__ import annotations

import numpy as np
import pytest

from orrery import Node, World, rpc, run
from orrery.base.errors import FaultError, PartError, UsageError, WorldError
from orrery.parts import Mail, Swarm
from orrery.world import Crash, Drop, Pause


class Ring(Swarm):
    """A token set goes round: each agent that has the token hands it on."""

    hops: int = 5

    def start(self):
        self.visits = np.zeros(self.n, dtype=np.int64)

    def step(self, mail):
        if self.now == 0:
            return Mail(0, 1 % self.n, left=self.hops)
        np.add.at(self.visits, mail.dst, 1)
        going = mail.take(mail["left"] > 0) if len(mail) else mail
        if not len(going):
            return None
        return Mail(going.dst, (going.dst + 1) % self.n, left=going["left"] - 1)

    def outcome(self):
        return {"visits": self.visits.copy()}


class Epidemic(Swarm):
    """Push gossip: every infected agent tells one random other in each window."""

    def start(self):
        self.infected = np.zeros(self.n, dtype=bool)
        self.infected[0] = True

    def step(self, mail):
        if len(mail):
            self.infected[mail.dst] = True
        self.emit(infected=int(self.infected.sum()))
        if self.infected[self.alive].all():
            return None
        tellers = np.flatnonzero(self.infected & self.alive)
        return Mail(tellers, self.rng.integers(0, self.n, len(tellers)), hello=np.int8(1))

    def revived(self, agents):
        self.infected[agents] = False

    def idle(self):
        return bool(self.infected[self.alive].all())


class RingNode(Node):
    hops: int = 5

    @rpc
    def token(self, left: int) -> None:
        self.emit(visit=self.id)
        if left:
            self.tell((self.id + 1) % (len(self.peers) + 1), RingNode.token, left - 1)

    async def main(self):
        if self.id == 0:
            self.tell(1, RingNode.token, self.hops)


def test_a_swarm_and_coroutine_nodes_tell_the_same_story():
    world = World.lan(4, jitter=0.0, bandwidth_Bps=1e15)
    swarm = run(Ring(hops=9), world=world)
    nodes = run(RingNode(hops=9), world=world)
    visits = np.zeros(4, dtype=int)
    for record in nodes.records:
        visits[record.values["visit"]] += 1
    assert swarm.messages == nodes.messages == 10
    assert swarm.extra["tier"] == "swarm"
    assert visits.tolist() == [2, 3, 3, 2]
    assert swarm.seconds == pytest.approx(nodes.seconds, abs=1e-6)


def test_push_gossip_takes_the_rounds_that_pittel_gives():
    # log2 n + ln n rounds, to a constant (Pittel, 1987).
    for n in (1_000, 100_000):
        rounds = [len(run(Epidemic(), world=World.rounds(n), seed=s).records) - 1 for s in range(5)]
        assert abs(np.mean(rounds) - (np.log2(n) + np.log(n))) < 3


@pytest.mark.slow
def test_a_million_agents():
    done = run(Epidemic(), world=World.rounds(1_000_000), seed=1)
    assert done.records[-1].values["infected"] == 1_000_000
    assert done.ended == "quiet"


def test_the_seed_decides_and_other_seeds_differ():
    world = World.lan(500, drop=0.2)
    assert (
        run(Epidemic(), world=world, seed=3).digest == run(Epidemic(), world=world, seed=3).digest
    )
    assert (
        run(Epidemic(), world=world, seed=3).digest != run(Epidemic(), world=world, seed=4).digest
    )


def test_loss_is_the_asked_fraction():
    class Shout(Swarm):
        def step(self, mail):
            self.heard = len(mail)
            self.emit(heard=self.heard)
            every = np.arange(self.n)
            return Mail(every, every[::-1].copy()) if self.now == 0 else None

    got = run(Shout(), world=World.lan(100_000, drop=0.25), seed=5)
    heard = sum(record.values["heard"] for record in got.records)
    assert abs(heard / 100_000 - 0.75) < 0.006  # four standard errors


def test_crashed_agents_neither_send_nor_hear():
    world = World.rounds(1000).with_faults(Crash(node=tuple(range(500, 1000)), at_s=0.0))
    done = run(Epidemic(), world=world, seed=2)
    assert not done.part.infected[500:].any()
    assert done.part.infected[:500].all()


def test_total_loss_then_healing():
    world = World.rounds(200).with_faults(Drop(p=1.0, at_s=0.0, until_s=20.0))
    done = run(Epidemic(), world=world, seed=2)
    early = [r.values["infected"] for r in done.records if r.time_s <= 19]
    assert set(early) == {1}
    assert done.records[-1].values["infected"] == 200


def test_what_cannot_be_is_refused_by_name():
    with pytest.raises(FaultError, match="Pause"):
        run(Epidemic(), world=World.rounds(9).with_faults(Pause(node=1, at_s=0.1, until_s=0.2)))
    with pytest.raises(WorldError, match="uniform"):
        run(Epidemic(), world=World.ring(9))
    with pytest.raises(UsageError, match="virtual"):
        run(Epidemic(), world=World.rounds(9), engine="processes")
    with pytest.raises(PartError, match="shape"):
        Mail([1, 2], [3])
    with pytest.raises(PartError, match="no column"):
        Mail([1], [2], x=3)["y"]
    with pytest.raises(PartError, match="same columns"):
        Mail.join([Mail([1], [2], x=3), Mail([1], [2], y=3)])
