"""Proof of work on `blockchain`: growth under delay, convergence, cheats, closed forms."""

from __future__ import annotations

import pytest

from orrery import Node, World, run
from orrery.base.errors import KnobError, PartError, SpecError
from orrery.parts.byzantine import Liar, Message
from orrery.systems.protocols.baselines.proof_of_work import ProofOfWork
from orrery.systems.protocols.baselines.proof_of_work.cheats import Parasite, SelfishMiner
from orrery.systems.protocols.problems.blockchain import (
    GENESIS,
    Block,
    Blockchain,
    eyal_sirer,
    rosenfeld,
)
from orrery.world import Byzantine, Crash, Partition


@pytest.mark.parametrize("delay", [0.1, 0.5])
def test_delay_slows_the_chain_as_the_closed_form_says(delay):
    # With n equal miners and a constant delay d the chain grows by 1 / (1 + d (1 - 1/n)) blocks an
    # interval: after each block the others work in vain for a time d. (Those who find a block of
    # their own meanwhile go on from it, which the form leaves out; it matters for larger d.)
    n = 12
    world = World.lan(n, latency_s=delay, jitter=0.0)
    part = ProofOfWork(interval_s=1.0, announce_s=1e6)
    made = run(part, problem=Blockchain(blocks=1500, depth=20), world=world, seed=1)
    assert made.violations == []
    assert made.metrics["growth"] == pytest.approx(1 / (1 + delay * (1 - 1 / n)), rel=0.05)


def test_powers_are_shares():
    part = ProofOfWork(interval_s=1.0, powers=(6.0, 3.0, 1.0), announce_s=1e6)
    made = run(part, problem=Blockchain(blocks=3000), world=World.lan(3), seed=1)
    mined = [one.node for one in made.records if "mined" in one.values]
    shares = [mined.count(node) / len(mined) for node in range(3)]
    assert shares == pytest.approx([0.6, 0.3, 0.1], abs=0.03)


def test_a_cut_network_converges_again_and_undoes_the_shorter_side():
    world = World.lan(8).with_faults(Partition(groups=((0, 1, 2),), at_s=1.0, until_s=3.0))
    made = run(ProofOfWork(), problem=Blockchain(), world=world, seed=1)
    assert made.violations == []
    assert made.metrics["deepest_reorg"] > 3


def test_a_miner_that_lost_its_chain_gets_it_back():
    world = World.lan(5).with_faults(Crash(node=2, at_s=3.0, until_s=4.0))
    made = run(ProofOfWork(), problem=Blockchain(blocks=200), world=world, seed=1)
    assert made.violations == []


def test_a_network_that_cannot_talk_is_seen_as_split():
    world = World.lan(4).with_faults(Partition(groups=((0, 1),), at_s=0.0))
    made = run(ProofOfWork(), problem=Blockchain(), world=world, seed=1)
    assert "split" in {violation.kind for violation in made.violations}


def test_forged_blocks_are_thrown_away():
    # A liar that changes a field of each block cannot make its name fit.
    world = World.lan(4).with_faults(Byzantine(node=0, strategies=("mutate",)))
    made = run(ProofOfWork(), problem=Blockchain(), world=world, seed=1)
    assert made.violations == []


def test_a_miner_that_believes_forgeries_is_caught():
    class Gullible(ProofOfWork):
        """Takes any block."""

        def take(self, block):
            if block.parent in self.blocks and block.id not in self.blocks:
                self.blocks[block.id] = block
                if block.height > self.head.height:
                    self.head = block
                self.pass_on(block)

    from orrery.systems.protocols.problems import blockchain

    world = World.lan(4).with_faults(Byzantine(node=0, strategies=("mutate",)))
    sound = blockchain.Block.is_sound
    try:
        blockchain.Block.is_sound = lambda self: True
        made = run(Gullible(), problem=Blockchain(), world=world, seed=1)
    finally:
        blockchain.Block.is_sound = sound
    assert {violation.kind for violation in made.violations} & {"bad_chain", "split"}


# -- the cheats, step by step


def liar():
    return Liar(me=0, size=2, rng=None, now=lambda: 0.0)


def chain(miners):
    """Blocks on top of each other, by these miners."""
    blocks, last = [], GENESIS
    for nonce, miner in enumerate(miners):
        last = Block.on(last, miner, nonce)
        blocks.append(last)
    return blocks


def sent(strategy, block):
    out = strategy.on_send(Message(0, 1, "block", block.fields()))
    return [message.args[0] for message in out]


def heard(strategy, block):
    inside = strategy.on_receive(Message(1, 0, "block", block.fields()))
    return [message.args[0] for message in inside]


def test_a_selfish_miner_keeps_a_lead_and_races_when_it_is_gone():
    cheat = SelfishMiner(liar())
    (mine,) = chain([0])
    (theirs,) = chain([1])
    assert sent(cheat, mine) == []
    assert heard(cheat, theirs) == [theirs.id]
    assert sent(cheat, theirs) == [mine.id, theirs.id]  # the race is on
    winner = Block.on(mine, 0, 99)
    assert sent(cheat, winner) == [winner.id]


def test_a_selfish_miner_with_a_lead_of_two_takes_all():
    cheat = SelfishMiner(liar())
    first, second = chain([0, 0])
    (theirs,) = chain([1])
    assert sent(cheat, first) == sent(cheat, second) == []
    heard(cheat, theirs)
    assert sent(cheat, theirs) == [first.id, second.id, theirs.id]


def test_a_selfish_miner_with_a_long_lead_lets_out_one():
    cheat = SelfishMiner(liar())
    mine = chain([0, 0, 0])
    for block in mine:
        assert sent(cheat, block) == []
    (theirs,) = chain([1])
    heard(cheat, theirs)
    assert sent(cheat, theirs) == [mine[0].id, theirs.id]


def test_a_parasite_hides_the_others_blocks_and_wins_or_gives_up():
    class Short(Parasite):
        """Two confirmations; three blocks behind is enough."""

        depth, give_up = 2, 3

    cheat = Short(liar())
    mine, theirs = chain([0, 0, 0]), chain([1, 1, 1, 1])
    assert sent(cheat, mine[0]) == []
    assert heard(cheat, theirs[0]) == heard(cheat, theirs[1]) == []
    assert sent(cheat, mine[1]) == []  # as long, not longer
    assert sent(cheat, mine[2]) == [block.id for block in mine]

    cheat = Short(liar())
    assert sent(cheat, mine[0]) == []
    hidden = [heard(cheat, block) for block in theirs]
    assert hidden == [[], [], [], [block.id for block in theirs]]


# -- closed forms


def test_rosenfelds_table():
    # M. Rosenfeld (2014), table 1: the chance for q = 10 % and 30 % at n confirmations.
    for share, depth, percent in ((0.1, 1, 20.0), (0.1, 2, 5.6), (0.1, 6, 0.059),
                                  (0.3, 3, 32.616), (0.3, 6, 15.645)):  # fmt: skip
        assert 100 * rosenfeld(share, depth) == pytest.approx(percent, abs=5e-4)
    assert rosenfeld(0.0, 3) == 0.0
    assert rosenfeld(0.2, 0) == 1.0


def test_the_selfish_threshold_is_a_third():
    assert eyal_sirer(0.33) < 0.33 and eyal_sirer(0.34) > 0.34
    assert eyal_sirer(0.26, 0.5) > 0.26 > eyal_sirer(0.26)  # with gamma = 1/2 it is a quarter
    assert eyal_sirer(0.5) == 1.0


@pytest.mark.parametrize("args", [(-0.1, 1), (1.1, 1), (float("nan"), 1), (0.3, -1), (0.3, 1.5)])
def test_bad_shares_and_depths_are_named(args):
    with pytest.raises(SpecError, match="share|depth"):
        rosenfeld(*args)


@pytest.mark.parametrize(
    ("cls", "knobs"),
    [
        (ProofOfWork, {"interval_s": 0.0}),
        (ProofOfWork, {"powers": "all"}),
        (ProofOfWork, {"announce_s": float("nan")}),
        (Blockchain, {"blocks": 0}),
        (Blockchain, {"depth": -1}),
    ],
)
def test_bad_knobs_are_named(cls, knobs):
    with pytest.raises(KnobError, match=rf"{cls.__name__}\.{next(iter(knobs))}"):
        cls(**knobs)


@pytest.mark.parametrize("powers", [(0.0,), (-1.0, 2.0)])
def test_powers_that_are_none_are_refused(powers):
    with pytest.raises(PartError, match=r"ProofOfWork\.powers"):
        run(ProofOfWork(powers=powers), problem=Blockchain())


def test_a_part_without_the_port_is_refused():
    class Other(Node):
        pass

    with pytest.raises(PartError, match="inherit from ChainNode"):
        run(Other(), problem=Blockchain())


@pytest.mark.slow
def test_a_real_kill_on_sockets():
    world = World.lan(5).with_faults(Crash(node=1, at_s=1.0, until_s=2.0))
    for engine in ("virtual", "processes"):
        made = run(ProofOfWork(), problem=Blockchain(), world=world, seed=2, engine=engine)
        assert made.violations == [], engine
