"""The last-writer-wins store: the latest stamp stays, replicas converge, faults are survived."""

from __future__ import annotations

import pytest

from orrery import World, run
from orrery.base.errors import KnobError, PartError
from orrery.parts import rpc
from orrery.systems.protocols.baselines.causal_store import CausalStore
from orrery.systems.protocols.baselines.lww_store import LWWStore
from orrery.systems.protocols.baselines.push_gossip import PushGossip
from orrery.systems.protocols.problems.replicated_views import ReplicatedViews, Shown, ViewStore
from orrery.world import Drop, Duplicate, Partition


def last_shown(made):
    """What each replica shows for each key at the end."""
    settled = [r.values["saw"] for r in made.records if "saw" in r.values and r.values["saw"][-1]]
    return {(node, key): value for _, node, key, value, *_ in settled}


@pytest.mark.parametrize("seed", range(5))
def test_replicas_end_with_the_highest_stamp_of_each_key(seed):
    world = World.lan(3).with_faults(Partition(node=1, at_s=0.1, until_s=0.6))
    made = run(LWWStore(), problem=ReplicatedViews(), world=world, seed=seed)
    assert made.violations == [] and made.metrics["unanswered"] == 0
    keys = {r.values["writes"][2]: r.values["writes"][1] for r in made.records
            if "writes" in r.values}  # fmt: skip
    best: dict[str, tuple] = {}
    for record in made.records:
        if "applied" in record.values:
            value, rank = record.values["applied"]
            best[keys[value]] = max(best.get(keys[value], ((-1.0, -1), 0)), (tuple(rank), value))
    for (_, key), value in last_shown(made).items():
        assert value == best[key][1]


def test_each_write_costs_one_exchange_with_each_other_replica():
    # Closed form without loss: n - 1 asks with their answers for each write, and the clients' own
    # ask and answer for each operation.
    made = run(LWWStore(), problem=ReplicatedViews(), world=World.lan(5), seed=1)
    writes = sum("wrote" in r.values for r in made.records)
    assert made.messages == 2 * 4 * writes + 2 * made.metrics["operations"]


def test_loss_and_duplicates_are_survived():
    world = World.lan(3).with_faults(
        Drop(p=0.3, at_s=0.0, until_s=1.0), Duplicate(p=0.5, at_s=0.0, until_s=1.0)
    )
    made = run(LWWStore(), problem=ReplicatedViews(settle_s=4.0), world=world, seed=3)
    assert made.violations == []


class Forgetful(LWWStore):
    """Sends nothing on."""

    async def _send(self, peer, key, value, stamp_s):
        return


class Inventive(LWWStore):
    """Answers what nobody wrote."""

    @rpc
    async def get(self, session: int, key: str) -> Shown:
        return Shown(12345, len(self.known))


class Stutterer(CausalStore):
    """Applies what it takes twice."""

    def _apply(self, key, value, origin):
        super()._apply(key, value, origin)
        self.emit(applied=(value, None))


@pytest.mark.parametrize(
    ("part", "kind"),
    [(Forgetful(), "lagging"), (Inventive(), "invented"), (Stutterer(), "applied_twice")],
)
def test_the_checker_finds_faulty_replicas(part, kind):
    made = run(part, problem=ReplicatedViews(), world=World.lan(3), seed=1)
    assert kind in {violation.kind for violation in made.violations}


def test_refusals():
    with pytest.raises(KnobError, match=r"LWWStore\.retry_s"):
        LWWStore(retry_s=0.0)
    with pytest.raises(PartError, match="inherit from ViewStore"):
        run(PushGossip(), problem=ReplicatedViews(), world=World.lan(3))
    made = run(ViewStore(), problem=ReplicatedViews(ops=2), world=World.lan(3), seed=1)
    assert made.metrics["operations"] == 0 and made.metrics["unanswered"] > 0
