"""The alternating bit on `data_link`: how often it sends, what it survives, what it does not."""

from __future__ import annotations

import pytest

from orrery import Node, World, run
from orrery.base.errors import KnobError, PartError
from orrery.systems.protocols.baselines.alternating_bit import AlternatingBit
from orrery.systems.protocols.problems.data_link import DataLink
from orrery.world import Duplicate, Partition, Pause, Reorder


@pytest.mark.parametrize("loss", [0.0, 0.1, 0.3])
def test_an_item_is_sent_as_often_as_the_closed_form_says(loss):
    # A frame and its acknowledgement must both get through: 1 / (1 - p)^2 tries on average.
    problem = DataLink(items=2000, recover_s=500.0)
    made = run(AlternatingBit(), problem=problem, world=World.lan(2, drop=loss), seed=1)
    assert made.violations == []
    assert made.metrics["sends_per_item"] == pytest.approx(1 / (1 - loss) ** 2, rel=0.04)


def test_several_lines_at_once():
    made = run(AlternatingBit(), problem=DataLink(), world=World.lan(6, drop=0.1), seed=2)
    assert made.violations == []
    assert sorted(made.decisions) == [1, 3, 5]


@pytest.mark.parametrize("seed", range(5))
def test_loss_repetition_pauses_and_cuts(seed):
    world = World.lan(2, drop=0.2, duplicate=0.2).with_faults(
        Duplicate(p=0.3, until_s=0.5),
        Pause(node=1, at_s=0.05, until_s=0.2),
        Partition(node=0, at_s=0.3, until_s=0.6),
    )
    assert run(AlternatingBit(), problem=DataLink(), world=world, seed=seed).violations == []


def test_without_the_bit_repetitions_come_through():
    part = AlternatingBit(alternate=False)
    made = run(part, problem=DataLink(), world=World.lan(2, drop=0.2), seed=1)
    assert [violation.kind for violation in made.violations] == ["wrong_item"]


def test_reordering_breaks_it_and_the_checker_sees_that():
    world = World.lan(2).with_faults(Reorder(p=0.3, spread_s=0.05))
    kinds = set()
    for seed in range(10):
        made = run(AlternatingBit(), problem=DataLink(), world=world, seed=seed, until_s=60.0)
        kinds |= {violation.kind for violation in made.violations}
    assert "wrong_item" in kinds


def test_a_dead_line_is_noticed():
    world = World.lan(2).with_faults(Partition(node=0, at_s=0.02))
    made = run(AlternatingBit(), problem=DataLink(recover_s=1.0), world=world, seed=1)
    assert [violation.kind for violation in made.violations] == ["not_live"]


@pytest.mark.parametrize(
    ("cls", "knobs"),
    [
        (AlternatingBit, {"timeout_s": 0.0}),
        (AlternatingBit, {"alternate": 3}),
        (DataLink, {"items": 0}),
        (DataLink, {"gap_s": float("nan")}),
    ],
)
def test_bad_knobs_are_named(cls, knobs):
    with pytest.raises(KnobError, match=rf"{cls.__name__}\.{next(iter(knobs))}"):
        cls(**knobs)


def test_an_odd_world_and_a_misfit_are_refused():
    with pytest.raises(PartError, match="two ends for each line"):
        run(AlternatingBit(), problem=DataLink(), world=World.lan(3))

    class Other(Node):
        pass

    with pytest.raises(PartError, match="inherit from LinkEnd"):
        run(Other(), problem=DataLink())
