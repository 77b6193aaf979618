"""HotStuff on `total_order`: linear cost, three-chains, pacemaker, storms of liars, bugs found."""

from __future__ import annotations

import msgspec
import pytest

from orrery import Node, World, run
from orrery.base.errors import KnobError, PartError
from orrery.base.rand import Stream
from orrery.parts import rpc
from orrery.systems.protocols.baselines.hotstuff import HotStuff
from orrery.systems.protocols.baselines.hotstuff.messages import (
    FIRST,
    ROOT,
    Block,
    Certificate,
    Chain,
    certificate,
    is_certified,
    name_of,
    signers_of,
    vote,
)
from orrery.systems.protocols.baselines.journal import frame, unframe
from orrery.systems.protocols.baselines.pbft import Pbft
from orrery.systems.protocols.problems.total_order import Request, TotalOrder
from orrery.world import Byzantine, Crash, Drop, Partition, Pause, Reorder, TornWrite

# Nothing is sent twice, and no disk is waited for: what is left is the protocol of the paper.
STILL = HotStuff(resend_s=1e3, durable=False)
PBFT_STILL = Pbft(resend_s=1e3, view_s=1e3, checkpoint_every=10**6, span=10**6)


def unit_world(n):
    return World.lan(n, jitter=0.0, latency_s=0.001, bandwidth_Bps=1e15)


def kinds(made):
    return {each.kind for each in made.violations}


# -- known figures


@pytest.mark.parametrize("n", [1, 4, 7, 10])
def test_one_request_costs_four_views_and_nine_delays(n):
    # The batch and three blocks on it: four views of n - 1 proposals and n - 1 votes, beside n
    # requests and n answers. In time: the request, four proposals with three rounds of votes
    # between them, the answer. PBFT in the same world: 2 n^2 messages and five delays.
    problem = TotalOrder(clients=1, settle_s=0.01)
    made = run(STILL, problem=problem, world=unit_world(n), seed=1)
    rival = run(PBFT_STILL, problem=problem, world=unit_world(n), seed=1)
    assert made.violations == rival.violations == []
    assert made.metrics["messages_per_request"] == 8 * (n - 1) + 2 * n
    assert rival.metrics["messages_per_request"] == 2 * n * n
    delays, rivals = (2, 2) if n == 1 else (9, 5)
    assert made.metrics["latency_p50_s"] == pytest.approx(delays * 0.001, rel=0.01)
    assert rival.metrics["latency_p50_s"] == pytest.approx(rivals * 0.001, rel=0.01)


class Watched(HotStuff):
    """Reports its proposals."""

    def propose(self, is_due=False):
        before = self.proposed
        super().propose(is_due)
        if self.proposed > before:
            self.emit(proposed=self.proposed)


@pytest.mark.parametrize("n", [4, 7, 16])
def test_a_view_costs_2n_messages_where_pbft_pays_2n_squared(n):
    problem = TotalOrder(clients=12, requests=10, think_s=0.001, settle_s=0.05)
    made = run(Watched(resend_s=1e3, durable=False, batch=4), problem=problem,
               world=unit_world(n), seed=2)  # fmt: skip
    rival = run(PBFT_STILL.with_knobs(batch=4), problem=problem, world=unit_world(n), seed=2)
    assert made.violations == rival.violations == []
    clients = 2 * n * 121  # the probe at the end is one more request
    views = {one.values["proposed"] for one in made.records if "proposed" in one.values}
    assert views == set(range(1, len(views) + 1)) and len(views) > 40
    assert made.messages - clients == 2 * (n - 1) * len(views)
    numbers = {one.values["ordered"][0] for one in rival.records if "ordered" in one.values}
    assert rival.messages - clients == 2 * n * (n - 1) * len(numbers)


def test_a_block_is_decided_by_three_views_in_a_row():
    made = run(Watched(resend_s=1e3, durable=False), problem=TotalOrder(clients=1, requests=1),
               world=unit_world(4), seed=1)  # fmt: skip
    proposed = {one.values["proposed"]: one.time_s for one in made.records
                if "proposed" in one.values}  # fmt: skip
    first = next(one.time_s for one in made.records if one.values.get("ordered", (0,))[0] == 1)
    # Height 1 is the block of view 1; its leader decides it when it can propose in view 4.
    assert first == pytest.approx(proposed[4]) and first - proposed[1] == pytest.approx(0.006)


class Counting(HotStuff):
    """Reports what it hears in search of a leader."""

    @rpc
    def wish(
        self, view: int, token: bytes, high: Certificate, proof: Certificate | None, sender: int
    ) -> None:
        self.emit(wish=view, own=sender == self.id)
        super().wish(view, token, high, proof, sender)

    @rpc
    def news(
        self, high: Certificate, proof: Certificate | None, decided: Certificate, sender: int
    ) -> None:
        self.emit(news=sender)
        super().news(high, proof, decided, sender)


@pytest.mark.parametrize("n", [4, 7, 13])
def test_replacing_a_dead_leader_takes_one_wish_of_each(n):
    part = Counting(durable=False, resend_s=0.1, view_s=0.05)
    world = unit_world(n).with_faults(Crash(node=0, at_s=0.0))
    problem = TotalOrder(clients=1, requests=1, think_s=0.0, settle_s=0.05)
    made = run(part, problem=problem, world=world, seed=1)
    assert made.violations == []
    wishes = [one.values for one in made.records if "wish" in one.values]
    # All live replicas but the next leader send one message, and its proposal tells all: with the
    # n - 1 proposals that is at most 2 (n - 1), as in any view.
    assert sum(not each["own"] for each in wishes) == n - 2
    assert {each["wish"] for each in wishes} == {part.tenure}
    # The f wishes that come when the view has begun are answered with what began it.
    answers = [one for one in made.records if "news" in one.values and one.time_s < 0.15]
    assert len(answers) <= (n - 1) // 3 + 1


# -- life


def test_dead_leaders_in_a_row_are_passed_over():
    world = World.lan(7).with_faults(Crash(node=(0, 1), at_s=0.0))
    made = run(HotStuff(), problem=TotalOrder(), world=world, seed=1)
    assert made.violations == [] and made.metrics["unanswered"] == 0
    assert made.metrics["views"] >= 2 * HotStuff().tenure


def test_without_a_quorum_nothing_is_ordered_and_all_may_restart_at_once():
    downs = Crash(node=(0, 1, 2, 3), at_s=0.1, until_s=2.0)
    world = World.lan(4).with_faults(Crash(node=(2, 3), at_s=0.05, until_s=0.09), downs)
    for seed in range(5):
        problem = TotalOrder(requests=20, think_s=0.01)
        made = run(HotStuff(), problem=problem, world=world, seed=seed)
        assert made.violations == [], seed
        times = [one.time_s for one in made.records if "ordered" in one.values]
        assert not [at_s for at_s in times if 0.1 < at_s < 2.0]
        assert made.extra["incarnations"] == {0: 1, 1: 1, 2: 2, 3: 2}


def test_a_rotating_leader_needs_four_views():
    # With a silent replica and a new leader for each view, one certificate in four is lost, and no
    # three views in a row are ever certified; with tenures of four, each leader decides its own.
    world = World.lan(4).with_faults(Byzantine(node=0, strategies=("silence",)))
    problem = TotalOrder(clients=1, requests=2, give_up_s=3.0, recover_s=3.0)
    assert kinds(run(HotStuff(tenure=1), problem=problem, world=world, seed=1)) == {"not_live"}
    assert run(HotStuff(tenure=4), problem=problem, world=world, seed=1).violations == []


def test_laggards_fetch_what_they_missed():
    world = World.lan(4).with_faults(Partition(node=3, at_s=0.02, until_s=1.5))
    made = run(HotStuff(), problem=TotalOrder(requests=40), world=world, seed=3)
    assert made.violations == []
    late = [one.values["ordered"][0] for one in made.records
            if one.node == 3 and one.time_s > 1.5 and "ordered" in one.values]  # fmt: skip
    assert len(late) > 60 and late == sorted(late)


# -- storms

LIES = ("silence", "equivocate", "mutate", "delay", "replay", "twins", "selective", "stale")


def storm(seed):
    """A world with up to f liars, and any number of crashes with restart."""
    rng = Stream(seed, 0, "storm")
    n = rng.choice([4, 4, 5, 7])
    faulty = (n - 1) // 3
    nodes = tuple(range(faulty)) if rng.random() < 0.6 else tuple(rng.sample(range(n), faulty))
    strategies = tuple(rng.sample(LIES, rng.randint(1, 3)))
    to = tuple(rng.sample(range(n), n // 2)) if "selective" in strategies else ()
    lie = Byzantine(node=nodes, strategies=strategies, p=rng.choice([0.3, 0.6, 1.0]),
                    delay_s=rng.choice([0.0002, 0.01, 0.2]), to=to)  # fmt: skip
    world = World.lan(n, drop=rng.choice([0.0, 0.1]))
    if rng.random() < 0.8:
        world = world.with_faults(lie)
    if rng.random() < 0.5:
        cut = Partition(node=rng.below(n), at_s=0.1, until_s=rng.uniform(0.2, 1.0))
        world = world.with_faults(cut)
    if rng.random() < 0.3:
        world = world.with_faults(Reorder(p=0.3, spread_s=0.02, until_s=1.0))
    if rng.random() < 0.5:
        downs = tuple(rng.sample(range(n), rng.randint(1, n)))
        at_s, until_s = rng.uniform(0.05, 0.4), rng.uniform(0.5, 1.2)
        world = world.with_faults(Crash(node=downs, at_s=at_s, until_s=until_s),
                                  TornWrite(node=downs, p=0.5))  # fmt: skip
    if rng.random() < 0.3:
        world = world.with_faults(Pause(node=rng.below(n), at_s=0.1, until_s=rng.uniform(0.3, 1.5)))
    return world, {"view_s": rng.choice([0.1, 0.5]), "tenure": rng.choice([4, 8, 16])}


def in_storm(cls, seed):
    world, knobs = storm(seed)
    problem = TotalOrder(requests=6, settle_s=3.0)
    return run(cls(**knobs), problem=problem, world=world, seed=seed, until_s=100.0)


@pytest.mark.parametrize("part", range(6))
def test_safe_and_live_in_storms(part):
    for seed in range(part, 60, 6):
        made = in_storm(HotStuff, seed)
        assert made.violations == [] and made.metrics["unanswered"] == 0, seed


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_safe_and_live_in_a_thousand_storms(part):
    for seed in range(1000 + part, 2000, 4):
        assert in_storm(HotStuff, seed).violations == [], seed


@pytest.mark.parametrize("lie", ["silence", "equivocate", "replay", "twins", "selective", "stale"])
def test_each_lie_of_the_leader_alone(lie):
    to = (2, 3) if lie == "selective" else ()
    liar = Byzantine(node=0, strategies=(lie,), delay_s=0.0003, to=to)
    for seed in range(4):
        made = run(HotStuff(tenure=4), problem=TotalOrder(requests=6),
                   world=World.lan(4).with_faults(liar), seed=seed)  # fmt: skip
        assert made.violations == [] and made.metrics["unanswered"] == 0, seed


def test_drop_pause_and_restart():
    world = World.lan(4).with_faults(
        Pause(node=0, at_s=0.1, until_s=1.0),
        Drop(p=0.2, at_s=0.0, until_s=1.5),
        Crash(node=2, at_s=1.2, until_s=1.6),
    )
    for seed in range(5):
        made = run(HotStuff(), problem=TotalOrder(requests=20), world=world, seed=seed)
        assert made.violations == [], seed


# -- more faults than it bears


def test_two_chains_of_too_many_liars_are_noticed():
    problem = TotalOrder()
    for liars, broken in (((0,), False), ((0, 1), True)):
        lie = Byzantine(node=liars, strategies=("equivocate",), delay_s=0.0003)
        world = World.lan(4).with_faults(lie)
        made = run(HotStuff(tenure=64), problem=problem, world=world, seed=1)
        assert ("two_values" in kinds(made)) == broken


def test_replicas_that_forget_their_votes_are_noticed_and_a_disk_prevents_it():
    # Replica 3 hears nothing of the first part; then 0 and 1 restart, and 2 is cut off.
    world = World.lan(4).with_faults(
        Partition(node=3, at_s=0.0, until_s=0.5),
        Crash(node=(0, 1), at_s=0.45, until_s=0.5),
        Partition(node=2, at_s=0.45, until_s=2.0),
    )
    problem = TotalOrder(requests=20, think_s=0.05)
    assert run(HotStuff(), problem=problem, world=world, seed=1).violations == []
    forgetful = run(HotStuff(durable=False), problem=problem, world=world, seed=1)
    assert "two_values" in kinds(forgetful)


# -- planted bugs


class NoLock(HotStuff):
    """Votes for anything that is new."""

    def is_safe(self, name, block):
        return True


class Hasty(HotStuff):
    """Decides the parent of a certified block, whatever the gap between their views."""

    def decided_of(self, path):
        return max(0, len(path) - 1)


class OneShort(HotStuff):
    """Takes one vote too few for a quorum."""

    def start(self):
        super().start()
        self.quorum -= 1


def siege(seed):
    """Two lying leaders in a row, who withhold blocks and extend old ones; cuts and loss."""
    rng = Stream(seed, 0, "fork")
    first = rng.below(7)
    liars = tuple(sorted({first, (first + 1) % 7}))
    honest = [node for node in range(7) if node not in liars]
    world = World.lan(7, drop=0.1).with_faults(Byzantine(node=liars, strategies=("stale",)))
    at_s = 0.02
    while at_s < 1.5:
        until_s = at_s + rng.uniform(0.1, 0.2)
        cut = Partition(node=rng.choice(honest), at_s=at_s, until_s=until_s)
        world, at_s = world.with_faults(cut), until_s
    return world


def besieged(cls, seed):
    problem = TotalOrder(requests=15, think_s=0.05, settle_s=3.0)
    part = cls(view_s=0.1, resend_s=0.2, tenure=4)
    return run(part, problem=problem, world=siege(seed), seed=seed, until_s=60.0)


@pytest.mark.parametrize(("cls", "seeds"), [(NoLock, 4), (Hasty, 13)])
def test_a_missing_lock_and_a_hasty_decision_are_found(cls, seeds):
    # A replica that sees a quorum contradict what it applied stops, and is found lagging; where
    # another one had not applied as much yet, one number has two values.
    found = [kinds(besieged(cls, seed)) for seed in range(seeds)]
    assert sum(bool(each) for each in found) >= 2
    assert cls is NoLock or "two_values" in set().union(*found)


def test_the_same_sieges_do_no_harm_to_the_protocol_itself():
    for seed in range(8):
        assert besieged(HotStuff, seed).violations == [], seed


def test_a_quorum_that_is_one_short_is_found_with_the_first_seed():
    world = World.lan(4).with_faults(Partition(groups=((0, 1), (2, 3)), at_s=0.02, until_s=2.0))
    assert "two_values" in kinds(run(OneShort(), problem=TotalOrder(), world=world, seed=0))
    assert run(HotStuff(), problem=TotalOrder(), world=world, seed=0).violations == []


# -- certificates, chains, records


def test_only_a_quorum_of_true_votes_makes_a_certificate():
    votes = {i: vote(i, 3, b"block") for i in (0, 2, 5)}
    made = certificate(3, b"block", votes)
    assert signers_of(made) == [0, 2, 5]
    assert is_certified(made, 6, 3) and is_certified(FIRST, 6, 3)
    replace = msgspec.structs.replace
    forged = [
        replace(made, view=4), replace(made, block=b"other"), replace(made, signers=b"\x07"),
        replace(made, token=b""), replace(made, signers=b""), replace(made, view=-1),
        replace(made, signers=made.signers + b"\x01"), replace(FIRST, block=b"other"),
        certificate(3, b"block", {**votes, 1: vote(2, 3, b"block")}),
        certificate(3, b"", votes),
    ]  # fmt: skip
    assert not [each for each in forged if is_certified(each, 6, 3)]
    assert not is_certified(made, 6, 4) and not is_certified(made, 5, 3)


def grow(chain, views, start=ROOT):
    names, parent = [], start
    for view in views:
        height = chain.blocks[parent].height + 1
        block = Block(view, height, msgspec.structs.replace(FIRST, view=view - 1, block=parent), ())
        parent = name_of(block)
        chain.blocks[parent] = block
        names.append(parent)
    return names


def test_a_chain_knows_gaps_branches_and_three_in_a_row():
    chain = Chain()
    trunk = grow(chain, [1, 2, 3, 5])
    branch = grow(chain, [7], start=trunk[1])
    assert chain.extends(trunk[3], trunk[0]) and not chain.extends(branch[0], trunk[2])
    assert [name for name, _ in chain.path(branch[0])] == [*trunk[:2], *branch]
    decided = HotStuff().decided_of
    assert decided(chain.path(trunk[2])) == decided(chain.path(trunk[3])) == 1
    assert decided(chain.path(trunk[1])) == decided(chain.path(branch[0])) == 0
    chain.applied += trunk[:3]
    assert chain.path(branch[0]) is None and len(chain.path(trunk[3])) == 1
    del chain.blocks[trunk[3]]
    assert chain.gap(trunk[3]) == trunk[3] and chain.gap(trunk[2]) is None


def test_torn_and_damaged_records_end_a_journal():
    whole = frame(Request(1, 2, 3)) + frame(Request(4, 5, 6))
    assert unframe(whole, Request) == [Request(1, 2, 3), Request(4, 5, 6)]
    for cut in range(1, len(frame(Request(4, 5, 6)))):
        assert unframe(whole[:-cut], Request) == [Request(1, 2, 3)]
    damaged = whole[:-1] + bytes([whole[-1] ^ 1])
    assert unframe(damaged, Request) == [Request(1, 2, 3)]
    assert unframe(frame("text") + whole, Request) == [] == unframe(b"", Request)


# -- bad input, determinism, sockets


@pytest.mark.parametrize(
    "knobs",
    [{"batch": 0}, {"tenure": 0}, {"view_s": 0.0}, {"resend_s": float("nan")}, {"spam": 1},
     {"durable": "yes"}, {"fetch_s": -1.0}],
)  # fmt: skip
def test_bad_knobs_are_named(knobs):
    with pytest.raises(KnobError, match=rf"HotStuff\.{next(iter(knobs))}"):
        HotStuff(**knobs)


def test_a_misfit_is_refused():
    class Other(Node):
        pass

    with pytest.raises(PartError, match="inherit from OrderNode"):
        run(Other(), problem=TotalOrder())


def test_same_digest_in_both_kernels_and_right_on_the_wire():
    lie = Byzantine(node=0, strategies=("equivocate",), delay_s=0.0003)
    world = World.lan(4, drop=0.05).with_faults(lie, Crash(node=1, at_s=0.1, until_s=0.3))
    first, other = (run(HotStuff(), problem=TotalOrder(), world=world, seed=3, kernel=kernel)
                    for kernel in (None, "python"))  # fmt: skip
    assert (first.digest, first.metrics) == (other.digest, other.metrics)
    assert run(HotStuff(), problem=TotalOrder(), world=world, seed=3, wire=True).violations == []


@pytest.mark.slow
@pytest.mark.parametrize("node", [0, 3], ids=["leader", "replica"])
def test_a_real_kill_on_sockets(node):
    world = World.lan(4).with_faults(Crash(node=node, at_s=0.5, until_s=1.5))
    part = HotStuff(view_s=1.0, resend_s=0.2)
    problem = TotalOrder(clients=2, requests=20, think_s=0.05, settle_s=3.0)
    for engine in ("virtual", "processes"):
        made = run(part, problem=problem, world=world, seed=2, engine=engine)
        assert made.violations == [], engine
        assert made.metrics["unanswered"] == 0
