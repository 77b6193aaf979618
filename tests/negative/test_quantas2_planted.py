"""Bugs planted in the algorithms of QUANTAS 2, and damaged files: each must be found.

Each mutant is the real class with one rule taken away. The same storm leaves the real class
unharmed, so what is found is the mutant's own.
"""

from __future__ import annotations

import copy

import pytest

from orrery import World, run
from orrery.base.errors import OrreryError
from orrery.parts import rpc
from orrery.parts.byzantine import Strategy
from orrery.systems.protocols.baselines.alternating_bit import AlternatingBit
from orrery.systems.protocols.baselines.pbft import Pbft
from orrery.systems.protocols.baselines.pbft import views as pbft_views
from orrery.systems.protocols.baselines.pbft.deciding import Beginning
from orrery.systems.protocols.baselines.proof_of_work import ProofOfWork
from orrery.systems.protocols.baselines.proof_of_work.cheats import SelfishMiner
from orrery.systems.protocols.problems.blockchain import Blockchain
from orrery.systems.protocols.problems.data_link import DataLink
from orrery.systems.protocols.problems.total_order import TotalOrder
from orrery.systems.protocols.quantas2 import parse
from orrery.world import Byzantine, Crash, Drop, Duplicate, Partition

TWO_FACED = World.lan(4).with_faults(Byzantine(node=0, strategies=("equivocate",), p=0.75))
HALVES = World.lan(4).with_faults(Byzantine(node=0, strategies=("equivocate",)))
INVENTIVE = World.lan(4).with_faults(Byzantine(node=0, strategies=("mutate",), p=0.3))
QUICK = {"view_s": 0.1, "resend_s": 0.05}
SHORT = TotalOrder(requests=5, give_up_s=2.0, recover_s=3.0, settle_s=0.5)


class SmallQuorum(Pbft):
    """A quorum that need not share a correct replica with another."""

    def start(self):
        super().start()
        self.quorum = self.faulty + 1


class NoPrepare(Pbft):
    """Commits what the primary proposes, without asking what the others were told."""

    def try_prepare(self, slot):
        before, self.quorum = self.quorum, 1
        try:
            super().try_prepare(slot)
        finally:
            self.quorum = before


class OneCommit(Pbft):
    """Applies a batch as soon as it is prepared."""

    def apply_ready(self):
        before, self.quorum = self.quorum, 1
        try:
            super().apply_ready()
        finally:
            self.quorum = before


class Believer(Pbft):
    """Takes the primary's word for what clients asked."""

    def knows(self, request):
        return True


class Repeater(Pbft):
    """Applies a request as often as it is ordered."""

    def apply(self, batch):
        self.done = {}
        super().apply(batch)


def kinds(part, world, seeds=6, problem=SHORT):
    found = set()
    for seed in range(seeds):
        made = run(part, problem=problem, world=world, seed=seed, until_s=60.0)
        found |= {violation.kind for violation in made.violations}
    return found


@pytest.mark.parametrize("world", [TWO_FACED, HALVES, INVENTIVE])
def test_the_real_one_survives_these_liars(world):
    assert kinds(Pbft(**QUICK), world) == set()


@pytest.mark.parametrize(
    ("mutant", "world", "kind"),
    [
        (SmallQuorum, HALVES, "two_values"),
        (NoPrepare, HALVES, "two_values"),
        (Believer, INVENTIVE, "invented"),
    ],
)
def test_a_missing_rule_of_pbft_is_found(mutant, world, kind):
    assert kind in kinds(mutant(**QUICK), world)


def test_applying_before_the_commit_quorum_is_found():
    # Replica 3 hears all and is not heard; 1 and 2 do not hear each other, so only 0 and 3 can
    # know that a batch is prepared. Then 0 falls and 3 is cut off: the next view cannot know.
    world = World.lan(4).with_faults(
        Partition(groups=((3,),), one_way=True, at_s=0.1, until_s=0.2),
        Drop(p=1.0, link=(1, 2), at_s=0.1, until_s=0.5),
        Crash(node=0, at_s=0.2, until_s=0.3),
        Partition(node=3, at_s=0.2, until_s=1.5),
    )
    part = {"view_s": 0.15, "resend_s": 0.05}
    problem = TotalOrder(requests=20, give_up_s=4.0, recover_s=5.0)
    assert kinds(Pbft(**part), world, 6, problem) == set()
    assert "two_values" in kinds(OneCommit(**part), world, 6, problem)


def test_a_new_view_that_forgets_is_found(monkeypatch):
    # Much is lost and the primary falls silent, so views change while some have applied a batch
    # and others have not.
    silent = Byzantine(node=0, strategies=("silence",), at_s=0.05, until_s=0.25)
    world = World.lan(4, drop=0.3).with_faults(silent)
    problem = TotalOrder(requests=10, give_up_s=3.0, recover_s=5.0)
    part = Pbft(**QUICK)
    assert kinds(part, world, 4, problem) == set()
    real = pbft_views.begin

    def forgetful(*args):
        found = real(*args)
        return found and Beginning(found.stable, found.digest, ())

    monkeypatch.setattr(pbft_views, "begin", forgetful)
    assert "two_values" in kinds(part, world, 4, problem)


class Stutter(Strategy):
    """A primary that proposes each batch a second time, in place of the next one."""

    def __init__(self, liar):
        super().__init__(liar)
        self.last = {}

    def on_send(self, message):
        if message.method != "pre_prepare":
            return [message]
        view, number, batch = message.args
        self.last[number] = batch
        return [message._replace(args=(view, number, self.last.get(number - number % 2, batch)))]


def test_requests_applied_twice_are_found():
    stutter = {"stutter": Stutter}
    world = World.lan(4).with_faults(Byzantine(node=0, strategies=("stutter",)))
    real = type("Real", (Pbft,), {"byzantine": stutter, "__doc__": "Among stutterers."})
    mutant = type("Mutant", (Repeater,), {"byzantine": stutter, "__doc__": "Among stutterers."})
    assert kinds(real(**QUICK), world) == set()
    assert "applied_again" in kinds(mutant(**QUICK), world)


def test_a_miner_that_never_gives_way_is_found():
    class Stubborn(ProofOfWork):
        """Mines on its own blocks only."""

        @rpc
        def block(self, name: int, parent: int, height: int, miner: int, nonce: int) -> None:
            return None

    made = run(Stubborn(), problem=Blockchain(), world=World.lan(4), seed=1)
    assert "split" in {violation.kind for violation in made.violations}


def test_a_selfish_miner_that_never_publishes_earns_nothing():
    class Miser(SelfishMiner):
        """Keeps all."""

        def publish(self, blocks):
            self.give_in()

    class Mine(ProofOfWork):
        """Has the miser as its cheat."""

        byzantine = {"selfish": Miser}

    world = World.lan(3).with_faults(Byzantine(node=0, strategies=("selfish",)))
    part = Mine(powers=(0.4, 0.3, 0.3), announce_s=1e3)
    miser = run(part, problem=Blockchain(blocks=400), world=world, seed=1)
    real = run(ProofOfWork(**part.changed_knobs()), problem=Blockchain(blocks=400), world=world,
               seed=1)  # fmt: skip
    assert miser.metrics["cheats_revenue"] < 0.2 < 0.4 < real.metrics["cheats_revenue"]


def test_a_line_that_forgets_its_bit_is_found():
    # A restart forgets the bit: the reason why the alternating bit does not tolerate one.
    world = World.lan(2, drop=0.2).with_faults(
        Duplicate(p=0.5), Crash(node=1, at_s=0.1, until_s=0.15)
    )
    found = kinds(AlternatingBit(), world, 8, DataLink(recover_s=2.0))
    assert found & {"wrong_item", "not_live"}


# -- damaged files


def places(data, way=()):
    """The way to every field of a document."""
    if not isinstance(data, dict | list):
        return
    for key, value in data.items() if isinstance(data, dict) else enumerate(data):
        yield (*way, key)
        yield from places(value, (*way, key))


WEIRD = [
    None, True, -1, 0, 1e308, float("nan"), float("inf"), "", "x" * 300, [], {}, [[]], [None],
    {"a": 1}, 10**30, "\x00", b"x", {1: 2}, [1, "a"], object(),
]  # fmt: skip


def test_no_damage_to_a_file_gives_a_traceback():
    whole = {
        "name": "whole", "nodes": 4, "seed": 1, "until_s": 5.0, "over_budget": False,
        "algorithm": {"id": "pbft", "knobs": {"view_s": 0.5}},
        "problem": {"id": "total_order", "knobs": {"clients": 3}},
        "abstract": {"round_s": 0.001}, "concrete": {"latency_s": 0.001},
        "faults": [{"kind": "Reorder", "p": 0.3, "spread_s": 0.004}],
        "byzantine": [{"nodes": [0], "strategies": ["equivocate"], "p": 0.75}],
    }  # fmt: skip
    parse(whole)
    refused = 0
    for *way, last in list(places(whole)):
        for value in WEIRD:
            data = copy.deepcopy(whole)
            place = data
            for step in way:
                place = place[step]
            place[last] = value
            try:
                parse(data)
            except OrreryError:
                refused += 1
    assert refused > 300
