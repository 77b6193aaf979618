"""The causal store: no write before what it depends on, and a planted fault that breaks it."""

from __future__ import annotations

import pytest

from orrery import World, run
from orrery.base.errors import KnobError
from orrery.systems.protocols.baselines.causal_store import CausalStore
from orrery.systems.protocols.light_cone_consistency import LightCone
from orrery.systems.protocols.light_cone_consistency.recorded import trace_of
from orrery.systems.protocols.problems.replicated_views import ReplicatedViews
from orrery.world import Drop, Partition, Reorder

STORMS = [
    Partition(groups=((0, 1), (2,)), at_s=0.2, until_s=0.5),
    Drop(p=0.4, at_s=0.0, until_s=1.0),
    Reorder(p=0.5, spread_s=0.1, at_s=0.0, until_s=1.0),
]


@pytest.mark.parametrize("fault", STORMS, ids=lambda fault: fault.kind)
@pytest.mark.parametrize("seed", range(4))
def test_causal_in_storms(fault, seed):
    world = World.lan(3).with_faults(fault)
    made = run(CausalStore(), problem=ReplicatedViews(sessions=6), world=world, seed=seed)
    assert made.violations == []
    told = LightCone().place(trace_of(made.records))
    assert "causal" in told.models and told.returns


def test_the_planted_fault_shows_in_some_storm():
    found = set()
    for seed in range(4):
        world = World.lan(3).with_faults(STORMS[0])
        part = CausalStore(drop_dependency=True)
        made = run(part, problem=ReplicatedViews(sessions=6), world=world, seed=seed)
        assert made.violations == []
        found.add("causal" in LightCone().place(trace_of(made.records)).models)
    assert False in found


def test_bad_knobs_are_named():
    for knobs in ({"retry_s": -1.0}, {"retry_s": float("nan")}, {"drop_dependency": "x"}):
        with pytest.raises(KnobError, match=rf"CausalStore\.{next(iter(knobs))}"):
            CausalStore(**knobs)
