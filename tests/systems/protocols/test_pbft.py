"""PBFT on `total_order`: its cost in messages and delays, view changes, storms of liars."""

from __future__ import annotations

import pytest

from orrery import Node, World, run
from orrery.base.errors import KnobError, PartError
from orrery.base.rand import Stream
from orrery.systems.protocols.baselines.pbft import Pbft
from orrery.systems.protocols.baselines.pbft.deciding import begin
from orrery.systems.protocols.baselines.pbft.messages import (
    GENESIS,
    NOTHING,
    Prepared,
    Seen,
    ViewChange,
    digest_of,
)
from orrery.systems.protocols.problems.total_order import Request, TotalOrder
from orrery.world import Byzantine, Crash, Drop, Partition, Pause, Reorder

STILL = Pbft(resend_s=1e3, view_s=1e3, checkpoint_every=1000, span=1000)


@pytest.mark.parametrize("n", [1, 4, 7, 10])
def test_the_normal_case_costs_what_the_paper_says(n):
    # n - 1 proposals, (n - 1)^2 prepares, n (n - 1) commits, n requests and n answers: 2 n^2.
    # A client waits for five messages in a row (Castro and Liskov, 1999, figure 1).
    problem = TotalOrder(clients=1, settle_s=0.0)
    world = World.lan(n, jitter=0.0, latency_s=0.001, bandwidth_Bps=1e15)
    made = run(STILL, problem=problem, world=world, seed=1)
    assert made.violations == []
    assert made.metrics["messages_per_request"] == 2 * n * n
    waits = 2 if n == 1 else 5
    assert made.metrics["latency_p50_s"] == pytest.approx(waits * 0.001, rel=0.01)


def test_a_dead_primary_is_replaced():
    world = World.lan(4).with_faults(Crash(node=0, at_s=0.0))
    made = run(Pbft(), problem=TotalOrder(), world=world, seed=1)
    assert made.violations == []
    assert made.metrics["views"] == 1
    assert made.metrics["unanswered"] == 0


def test_dead_primaries_in_a_row_are_passed_over():
    world = World.lan(7).with_faults(Crash(node=(0, 1), at_s=0.0))
    made = run(Pbft(), problem=TotalOrder(), world=world, seed=1)
    assert made.violations == []
    assert made.metrics["views"] == 2


def test_without_a_quorum_nothing_is_ordered_until_it_is_back():
    world = World.lan(4).with_faults(Crash(node=(2, 3), at_s=0.05, until_s=3.0))
    made = run(Pbft(), problem=TotalOrder(requests=20), world=world, seed=2)
    numbers = [one.time_s for one in made.records if "ordered" in one.values]
    assert not [at_s for at_s in numbers if 0.1 < at_s < 3.0]
    # Two amnesiacs are more than one fault; here nothing was in doubt, so all is well.
    assert made.violations == []


def test_checkpoints_bound_what_is_kept_and_bring_up_laggards():
    class Watched(Pbft):
        """Reports the size of its log."""

        def settle(self, number):
            super().settle(number)
            self.emit(kept=len(self.slots))

    world = World.lan(4).with_faults(Partition(node=3, at_s=0.05, until_s=1.5))
    made = run(Watched(checkpoint_every=4, span=16), problem=TotalOrder(requests=40),
               world=world, seed=3)  # fmt: skip
    assert made.violations == []
    kept = [one.values["kept"] for one in made.records if "kept" in one.values]
    assert len(kept) > 20 and max(kept) <= 16


@pytest.mark.parametrize("seed", range(25))
def test_storms_of_lies_loss_and_cuts(seed):
    rng = Stream(seed, 0, "storm")
    n = rng.choice([4, 4, 5, 7])
    faulty = (n - 1) // 3
    nodes = tuple(range(faulty)) if rng.random() < 0.6 else tuple(rng.sample(range(n), faulty))
    kinds = ["silence", "equivocate", "mutate", "delay", "replay", "twins"]
    strategies = tuple(rng.sample(kinds, rng.randint(1, 3)))
    p, delay_s = rng.choice([0.3, 0.6, 0.75, 1.0]), rng.choice([0.01, 0.2])
    lie = Byzantine(node=nodes, strategies=strategies, p=p, delay_s=delay_s)
    world = World.lan(n, drop=rng.choice([0.0, 0.1])).with_faults(lie)
    if rng.random() < 0.5:
        cut_s = rng.uniform(0.2, 1.0)
        world = world.with_faults(Partition(node=rng.below(n), at_s=0.1, until_s=cut_s))
    if rng.random() < 0.3:
        world = world.with_faults(Reorder(p=0.3, spread_s=0.02, until_s=1.0))
    part = Pbft(view_s=rng.choice([0.1, 0.5]), checkpoint_every=rng.choice([2, 4]), span=8)
    problem = TotalOrder(requests=6, settle_s=3.0)
    made = run(part, problem=problem, world=world, seed=seed, until_s=100.0)
    assert made.violations == []


def test_pause_drop_and_restart():
    world = World.lan(4).with_faults(
        Pause(node=0, at_s=0.1, until_s=1.0),
        Drop(p=0.2, at_s=0.0, until_s=1.5),
        Crash(node=2, at_s=1.2, until_s=1.6),
    )
    for seed in range(5):
        made = run(Pbft(), problem=TotalOrder(requests=20), world=world, seed=seed)
        assert made.violations == [], seed


# -- the rules of a new view


A, B = (Request(0, 1, 7),), (Request(1, 1, 9),)


def change(prepared=(), seen=(), stable=0, marks=((0, GENESIS),), view=3):
    return ViewChange(view, stable, marks, tuple(prepared), tuple(seen))


def test_what_may_be_committed_is_proposed_again():
    bears = change([Prepared(1, 0, A)], [Seen(1, 0, digest_of(A))])
    found = begin([bears, bears, change()], 3, 2, 32)
    assert found.batches == (A,)


def test_a_lie_about_a_prepared_batch_is_not_believed():
    honest = change([Prepared(1, 1, A)], [Seen(1, 1, digest_of(A))])
    liar = change([Prepared(1, 2, B)], [Seen(1, 2, digest_of(B))])
    # Nobody else spoke for B in view 2, so the three correct ones decide.
    assert begin([honest, honest, change(), liar], 3, 2, 32).batches == (A,)
    # With one correct view change fewer it cannot be told apart yet.
    assert begin([honest, change(), liar], 3, 2, 32) is None


def test_a_number_nobody_prepared_becomes_empty():
    later = change([Prepared(2, 0, A)], [Seen(2, 0, digest_of(A))])
    assert begin([later, later, change()], 3, 2, 32).batches == (NOTHING, A)


def test_a_view_begins_at_a_checkpoint_that_is_vouched_for():
    mark = (8, b"state")
    ahead = change(stable=8, marks=(mark,))
    late = change(marks=((0, GENESIS), mark))
    assert begin([ahead, ahead, late], 3, 2, 32).stable == 8
    forged = change(stable=0, marks=((0, GENESIS), (16, b"lie")))
    assert begin([late, late, forged], 3, 2, 32).stable == 8


@pytest.mark.parametrize(
    "unsound",
    [
        change(view=0),
        change(stable=-1),
        change([Prepared(1, 0, A), Prepared(1, 1, B)]),
        change([Prepared(99, 0, A)]),
        change([Prepared(1, 5, A)]),
        change(seen=[Seen(1, -1, b"")]),
        change(marks=((-4, b""),)),
    ],
)
def test_unsound_view_changes_are_thrown_away(unsound):
    assert not unsound.is_sound(32)
    assert change().is_sound(32)


# -- bad input, determinism, sockets


@pytest.mark.parametrize(
    ("cls", "knobs"),
    [
        (Pbft, {"batch": 0}),
        (Pbft, {"view_s": 0.0}),
        (Pbft, {"resend_s": float("nan")}),
        (Pbft, {"spam": 1}),
        (TotalOrder, {"clients": 0}),
        (TotalOrder, {"think_s": -1.0}),
        (TotalOrder, {"requests": "many"}),
    ],
)
def test_bad_knobs_are_named(cls, knobs):
    with pytest.raises(KnobError, match=rf"{cls.__name__}\.{next(iter(knobs))}"):
        cls(**knobs)


def test_a_span_without_a_checkpoint_and_a_misfit_are_refused():
    with pytest.raises(PartError, match=r"Pbft\.span.*checkpoint_every = 8"):
        run(Pbft(span=4), problem=TotalOrder())

    class Other(Node):
        pass

    with pytest.raises(PartError, match="inherit from OrderNode"):
        run(Other(), problem=TotalOrder())


def test_same_digest_in_both_kernels_and_right_on_the_wire():
    world = World.lan(4, drop=0.05).with_faults(Byzantine(node=0, strategies=("equivocate",)))
    first, other = (run(Pbft(), problem=TotalOrder(), world=world, seed=3, kernel=kernel)
                    for kernel in (None, "python"))  # fmt: skip
    assert (first.digest, first.metrics) == (other.digest, other.metrics)
    assert run(Pbft(), problem=TotalOrder(), world=world, seed=3, wire=True).violations == []


@pytest.mark.slow
@pytest.mark.parametrize("node", [0, 3], ids=["primary", "backup"])
def test_a_real_kill_on_sockets(node):
    world = World.lan(4).with_faults(Crash(node=node, at_s=0.5, until_s=1.5))
    part = Pbft(view_s=1.0, resend_s=0.2)
    problem = TotalOrder(clients=2, requests=20, think_s=0.05, settle_s=3.0)
    for engine in ("virtual", "processes"):
        made = run(part, problem=problem, world=world, seed=2, engine=engine)
        assert made.violations == [], engine
        assert made.metrics["unanswered"] == 0
