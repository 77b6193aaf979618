"""The problem `data_parallel` and its classics: each first meets a known figure of its own."""

from __future__ import annotations

import numpy as np
import pytest

from orrery import World, run
from orrery.base.errors import KnobError, PartError
from orrery.base.rand import Stream
from orrery.models.learn import Language, Quadratic, make
from orrery.systems.train import (
    DataParallel,
    DiLoCo,
    FullySharded,
    GossipSGD,
    LocalSGD,
    NoTalk,
    OverlapLocalSGD,
    SlowMo,
    Synchronous,
    Trainer,
)
from orrery.systems.train.baselines.gossip_sgd import partner
from orrery.systems.train.problems.data_parallel import curve, final
from orrery.systems.train.problems.trainer import spread
from orrery.world import Crash

CLASSICS = [
    Synchronous, FullySharded, LocalSGD, DiLoCo, SlowMo, OverlapLocalSGD, GossipSGD, NoTalk,
]  # fmt: skip


def trained(part, ranks=4, world=None, **knobs):
    problem = DataParallel(**{"steps": 12, **knobs})
    made = run(part, problem=problem, world=world or World.lan(ranks), seed=1)
    return made, {n: values["weights"] for n, values in final(made).items()}


def alone(task, ranks, steps, optimiser="adamw"):
    """One machine that reads the batches of all ranks at once."""
    shares = [task.share(rank, ranks, Stream(1, rank, "node")) for rank in range(ranks)]
    weights, inner = task.start_weights(), make(optimiser, task.rate)
    for _ in range(steps):
        slope = np.mean([share.grad(weights) for share in shares], axis=0)
        weights = inner.step(weights, slope)
    return weights


@pytest.mark.parametrize("part", CLASSICS, ids=lambda part: part.__name__)
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_every_classic_trains_and_obeys_the_checker(part, ranks):
    made, weights = trained(part(), ranks)
    assert made.violations == [] and len(weights) == ranks
    assert made.metrics["loss"] < Language().judge(Language().start_weights())


@pytest.mark.parametrize(
    "part", [Synchronous(), Synchronous(overlap=False), FullySharded()], ids=str
)
def test_synchronous_training_equals_one_machine_with_the_whole_batch(part):
    _, weights = trained(part)
    np.testing.assert_allclose(weights[0], alone(Language(), 4, 12), atol=2e-5)


def test_sharding_sends_half_as_much_again_and_keeps_a_share():
    plain, _ = trained(Synchronous())
    made, _ = trained(FullySharded(), steps=12)
    numbers = Language().start_weights().size
    # The last gather, for the judge, is a third of a step's traffic in 12 steps.
    steps = made.metrics["sent_B"] * 12 - plain.metrics["sent_B"] / 2
    assert steps / 12 == pytest.approx(1.5 * plain.metrics["sent_B"], rel=1e-3)
    assert plain.metrics["sent_B"] == pytest.approx(2 * 3 / 4 * 4 * numbers, rel=1e-3)


def test_local_sgd_that_averages_each_step_is_synchronous_sgd():
    _, local = trained(LocalSGD(every=1, optimiser="sgd"), rate=0.1)
    _, synchronous = trained(Synchronous(optimiser="sgd"), rate=0.1)
    np.testing.assert_allclose(local[0], synchronous[0], atol=1e-6)


@pytest.mark.parametrize(
    "part",
    [
        DiLoCo(every=4, outer_rate=1.0, outer_momentum=0.0),
        SlowMo(every=4, slow_momentum=0.0, slow_rate=1.0),
    ],
    ids=["diloco", "slowmo"],
)
def test_an_outer_step_without_momentum_is_local_sgd(part):
    _, plain = trained(LocalSGD(every=4))
    _, outer = trained(part)
    np.testing.assert_allclose(outer[0], plain[0], atol=1e-6)


def test_the_outer_step_of_diloco_is_nesterov_as_pytorch_has_it():
    torch = pytest.importorskip("torch")
    rounds, task = 3, Quadratic(steps=6, spread=0.0, noise=0.0)
    made = run(
        DiLoCo(every=2, optimiser="sgd"), problem=DataParallel(own=task, steps=6),
        world=World.lan(2),
    )  # fmt: skip
    leaf = torch.tensor(task.start_weights(), requires_grad=True)
    outer = torch.optim.SGD([leaf], lr=0.7, momentum=0.9, nesterov=True)
    for _ in range(rounds):
        inner = leaf.detach().numpy().copy()
        for _ in range(2):
            inner = inner - task.rate * task.curvature() * (inner - task.centre(0))
        leaf.grad = leaf.detach() - torch.tensor(inner)
        outer.step()
    np.testing.assert_allclose(final(made)[0]["weights"], leaf.detach().numpy(), rtol=1e-9)


def test_local_sgd_on_quadratics_ends_where_the_recursion_says():
    # Bowls of equal curvature: the mean of the replicas moves as one machine would.
    task = Quadratic(steps=24, condition=10.0)
    made = run(
        LocalSGD(every=6, optimiser="sgd"), problem=DataParallel(own=task, steps=24),
        world=World.lan(5),
    )  # fmt: skip
    middle = np.mean([task.centre(rank) for rank in range(5)], axis=0)
    shrink = (1 - task.rate * task.curvature()) ** 24
    expected = middle + shrink * (task.start_weights() - middle)
    np.testing.assert_allclose(final(made)[0]["weights"], expected, rtol=1e-9)


def test_the_anchor_is_one_round_old():
    # Without a gradient the replicas stay where they are, so the average changes nothing.
    _, weights = trained(OverlapLocalSGD(every=3, rate_scale=0.0))
    assert all(np.allclose(w, Language().start_weights(), atol=1e-6) for w in weights.values())
    # The average runs behind the next round: waiting for it costs less than averaging at once.
    slow = World.lan(4, latency_s=1e-6, bandwidth_Bps=15e9)
    hidden, _ = trained(OverlapLocalSGD(every=6), world=slow, scale=30.0, steps=24)
    waited, _ = trained(LocalSGD(every=6), world=slow, scale=30.0, steps=24)
    assert hidden.metrics["time_s"] < waited.metrics["time_s"]


def test_pairs_contract_the_spread_as_they_must():
    ranks, kept = 8, []
    for seed in range(1, 200):
        values = [np.eye(ranks)[rank] for rank in range(ranks)]
        before = spread(values) ** 2
        others = [partner(rank, ranks, seed, 0) for rank in range(ranks)]
        values = [(values[rank] + values[others[rank]]) / 2 for rank in range(ranks)]
        kept.append(spread(values) ** 2 / before)
        assert all(others[others[rank]] == rank for rank in range(ranks))
    # For unit vectors every matching keeps the same part: (n - 2) / (2 (n - 1)).
    assert np.mean(kept) == pytest.approx((ranks - 2) / (2 * (ranks - 1)), rel=1e-9)
    assert sorted(str(partner(rank, 3, 1, 0)) for rank in range(3)).count("None") == 1


def test_gossip_brings_replicas_together_and_silence_does_not():
    _, near = trained(GossipSGD(), ranks=4, steps=24)
    _, far = trained(NoTalk(), ranks=4, steps=24)
    assert spread(list(near.values())) < 0.3 * spread(list(far.values()))


def test_overlap_hides_the_average_behind_the_backward_pass():
    world = World.lan(4, latency_s=1e-6, bandwidth_Bps=50e9)
    hidden, _ = trained(Synchronous(), world=world, scale=1000.0)
    waited, _ = trained(Synchronous(overlap=False), world=world, scale=1000.0)
    assert hidden.metrics["exposed"] < 0.8 * waited.metrics["exposed"]
    ahead, _ = trained(FullySharded(), world=world, scale=1000.0)
    behind, _ = trained(FullySharded(prefetch=False), world=world, scale=1000.0)
    assert ahead.metrics["time_s"] < behind.metrics["time_s"]


def test_an_average_takes_the_time_of_a_ring():
    # 2 (n - 1)/n times the bytes over the bandwidth, besides latency: the closed form.
    world = World.lan(4, latency_s=0.0, bandwidth_Bps=1e6)
    made, _ = trained(Synchronous(overlap=False), world=world, scale=100.0)
    quiet, _ = trained(NoTalk(), world=world, scale=100.0)
    numbers_B = 4 * Language().start_weights().size * 100.0
    expected = 2 * 3 / 4 * numbers_B / 1e6
    assert made.metrics["step_s"] - quiet.metrics["step_s"] == pytest.approx(expected, rel=0.01)


def test_the_curve_falls_and_the_target_has_a_time():
    made, _ = trained(Synchronous(), steps=40, look_every=10, target=2.3)
    points = curve(made)
    assert [step for _, step, _ in points] == [0, 10, 20, 30]
    assert points[-1][2] < points[0][2]
    assert 0 < made.metrics["target_s"] <= made.metrics["time_s"]
    never, _ = trained(Synchronous(), steps=4, look_every=2, target=0.1)
    assert "target_s" not in never.metrics


def test_a_sharded_model_is_looked_at_when_it_is_whole():
    looks = [
        curve(trained(part, steps=9, look_every=3)[0]) for part in (Synchronous(), FullySharded())
    ]
    steps, losses = zip(*((step, loss) for _, step, loss in looks[0]), strict=True)
    assert [step for _, step, _ in looks[1]] == list(steps)
    assert [loss for _, _, loss in looks[1]] == pytest.approx(losses, rel=1e-4)


# -- the checker fails what it must fail


class Forgetful(Trainer):
    """Takes a step less than asked."""

    async def train(self):
        for _ in range(self.training.steps - 1):
            await self.local_step()
        self.weights = await self.mean(self.weights)


class Disagreeing(Trainer):
    """Says that replicas agree, and never talks."""

    async def train(self):
        for _ in self.steps():
            await self.local_step()


class Exploding(Trainer):
    async def train(self):
        for _ in self.steps():
            await self.gradient()
        self.weights = self.weights * np.inf


@pytest.mark.parametrize(
    ("part", "kind"),
    [(Forgetful, "steps_lost"), (Disagreeing, "replicas_differ"), (Exploding, "not_finite")],
)
def test_the_checker_notices(part, kind):
    made, _ = trained(part(), steps=3)
    assert kind in {violation.kind for violation in made.violations}


@pytest.mark.parametrize(
    "part", [Synchronous(), Synchronous(overlap=False), FullySharded(), LocalSGD(every=2),
             OverlapLocalSGD(every=2)], ids=str,
)  # fmt: skip
def test_a_crashed_replica_is_noticed_by_those_who_wait_for_it(part):
    world = World.lan(3).with_faults(Crash(node=1, at_s=0.001))
    made, _ = trained(part, world=world, patience_s=1.0, scale=100.0)
    assert {violation.kind for violation in made.violations} >= {"rank_lost"}


def test_bad_input_is_named():
    with pytest.raises(KnobError):
        DataParallel(steps=0)
    with pytest.raises(KnobError):
        DataParallel(scale=0.0)
    with pytest.raises(KnobError):
        DataParallel(task="chess")
    with pytest.raises(KnobError, match="colour"):
        DataParallel(more={"colour": 3.0}).learning()
    with pytest.raises(PartError, match="no train"):
        trained(Trainer())
    with pytest.raises(KnobError):
        LocalSGD(every=0)
