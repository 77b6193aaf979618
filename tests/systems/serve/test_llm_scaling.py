"""Replicas that come and go: autoscaling, weights over shared links, meters, targets by class."""

from __future__ import annotations

import numpy as np
import pytest

from orrery import run, worlds
from orrery.base.errors import KnobError, OrreryError
from orrery.models import replica as replica_module
from orrery.models.meters import Meters
from orrery.models.ports import Autoscaler, FleetView
from orrery.models.replica import Replica, drain
from orrery.models.requests import Request, Target
from orrery.models.specs import spec
from orrery.models.steps import steps_for
from orrery.systems.serve import AlwaysOn, LeastOutstanding, LLMRouting, LLMScaling, TargetTracking
from orrery.systems.serve.baselines.vllm_v1 import VllmV1
from orrery.systems.serve.problems.loads import Targets
from orrery.world import Crash, accelerator


def view(now_s=0.0, on=2, starting=0, outstanding=0, most=8):
    return FleetView(now_s, on, starting, 1, most, outstanding, 0, 0.0, 0.0)


# -- the classics


def test_target_tracking_wants_load_over_target_and_waits_on_the_way_down():
    scaler = TargetTracking(target=10, settle_s=30.0)
    scaler.start()
    assert scaler.replicas(view(0.0, on=2, outstanding=61)) == 7
    assert scaler.replicas(view(5.0, on=7, outstanding=72)) == 7, "within a tenth of the target"
    assert scaler.replicas(view(10.0, on=7, outstanding=10)) == 7, "a lull is not yet a trough"
    assert scaler.replicas(view(41.0, on=7, outstanding=10)) == 1
    assert scaler.replicas(view(50.0, on=1, outstanding=1000)) == 8, "never more than there are"


def test_a_steady_load_settles_where_littles_law_puts_it():
    """Unfinished requests are rate x time in the system; the target divides them."""
    problem = LLMScaling(requests=1500, rate_per_s=12.0, swing=0.0)
    done = run(TargetTracking(target=4), problem=problem, seed=2)
    assert done.violations == []
    inside = 12.0 * done.metrics["latency_mean_s"]
    assert done.metrics["replicas_on"] == pytest.approx(inside / 4, rel=0.25)


def test_scaling_saves_money_and_a_fixed_number_is_what_it_says():
    problem = LLMScaling(requests=2500, period_s=120.0, scale_every_s=2.0)
    fixed = run(AlwaysOn(count=3), problem=problem, seed=1).metrics
    all_on = run(AlwaysOn(), problem=problem, seed=1).metrics
    scaled = run(TargetTracking(settle_s=10.0), problem=problem, seed=1).metrics
    assert fixed["replicas_on"] == pytest.approx(3, abs=0.15)
    assert scaled["replicas_on"] < 0.8 * all_on["replicas_on"]
    assert scaled["money"] < 0.8 * all_on["money"]
    assert scaled["energy_J"] < all_on["energy_J"]
    assert scaled["attainment"] > 0.95
    ratio = fixed["money_per_month"] / all_on["money_per_month"]
    assert ratio == pytest.approx(fixed["replicas_on"] / all_on["replicas_on"], rel=1e-6)


def test_nothing_is_lost_while_replicas_come_go_and_die():
    faults = [Crash(node=0, at_s=6.0, until_s=12.0), Crash(node=3, at_s=9.0), Crash(
        node=1, at_s=15.0, until_s=16.0)]  # fmt: skip
    world = worlds.get("h100_pod:5").with_faults(*faults)
    problem = LLMScaling(requests=1200, period_s=15.0, scale_every_s=1.0)
    scaler = TargetTracking(target=6, settle_s=3.0)
    done = run(scaler, problem=problem, world=world, seed=4)
    assert done.violations == [] and done.metrics["failed"] == 0
    assert done.metrics["starts"] > 3 and done.metrics["resent"] > 0
    assert run(scaler, problem=problem, world=world, seed=4).digest == done.digest


def test_other_problems_may_be_scaled_too():
    problem = LLMRouting(requests=300, rate_per_s=30.0, scaler="target-tracking", scale_every_s=1.0)
    done = run(LeastOutstanding(), problem=problem, seed=1)
    assert done.violations == [] and 1 <= done.metrics["replicas_on"] < 8


def test_an_autoscaler_that_gives_no_number_is_told():
    class Vague(Autoscaler):
        def replicas(self, view):
            return "many"

    with pytest.raises(OrreryError, match="whole number of replicas"):
        run(Vague(), problem=LLMScaling(requests=200))


# -- weights


def ready_at(world, weights_from="peer"):
    """When the first request after a crash was served by each node that came back."""
    problem = LLMRouting(
        model="Llama-3.1-8B", tp=1, requests=250, rate_per_s=30.0, detect_s=0.05,
        weights_from=weights_from,
    )  # fmt: skip
    done = run(LeastOutstanding(), problem=problem, world=world, seed=1)
    assert done.violations == []
    first = {}
    for record in done.records:
        served = record.values["served"]
        if served.started_s > 2.0:
            first[served.replica] = min(served.started_s, first.get(served.replica, 1e9))
    return first


def slow_links(*faults, nic_Bps=8e9, nodes=3):
    """A pod whose links take about two seconds for the weights of an 8B model."""
    world = worlds.get(f"h100_pod:{nodes}")
    (name,) = world.machines
    machines = {name: world.machines[name].replace(nic_Bps=nic_Bps)}
    return world.with_(machines=machines, network={"bandwidth_Bps": nic_Bps}).with_faults(*faults)


def test_two_that_load_at_once_share_the_senders_link():
    weights_B = spec("Llama-3.1-8B").weight_bytes()
    alone = ready_at(slow_links(Crash(node=1, at_s=1.0, until_s=2.0)))
    both = ready_at(slow_links(*(Crash(node=n, at_s=1.0, until_s=2.0) for n in (1, 2))))
    one_s = weights_B / 8e9
    assert alone[1] - 2.0 == pytest.approx(one_s, rel=0.1)
    assert both[1] - 2.0 == pytest.approx(2 * one_s, rel=0.1)
    assert both[2] - 2.0 == pytest.approx(2 * one_s, rel=0.1)


def test_weights_may_come_from_the_disk():
    world = slow_links(*(Crash(node=n, at_s=1.0, until_s=2.0) for n in (1, 2)))
    found = ready_at(world, weights_from="disk")
    took_s = spec("Llama-3.1-8B").weight_bytes() / world.machine_of(0).disk.read_Bps
    assert found[1] - 2.0 == pytest.approx(took_s, rel=0.1)


def test_when_the_sender_dies_another_one_sends():
    faults = [Crash(node=2, at_s=1.0, until_s=2.0), Crash(node=0, at_s=3.0)]
    found = ready_at(slow_links(*faults))
    one_s = spec("Llama-3.1-8B").weight_bytes() / 8e9
    assert found[2] == pytest.approx(3.0 + one_s, abs=0.5), "it began again with node 1"


# -- meters


def served_alone(scheduler, count=40, blocks=3000):
    steps = steps_for("Llama-3.1-8B", accelerator("H100-SXM"), 1)
    replica = Replica(steps, scheduler, blocks=blocks)
    requests = [Request(n, 0.11 * n, 200 + 37 * (n % 9), 20 + 13 * (n % 7)) for n in range(count)]
    return replica, drain(replica, requests)


class OneByOne(VllmV1):
    """The same decisions, without runs of equal steps."""

    def steady(self, view):
        return False


@pytest.mark.parametrize("blocks", [3000, 100], ids=["roomy", "preempting"])
def test_gaps_between_tokens_are_all_counted_and_runs_do_not_blur_them(blocks):
    runs, served = served_alone(VllmV1(), blocks=blocks)
    singles, _ = served_alone(OneByOne(), blocks=blocks)
    assert (runs.preemptions > 0) == (blocks == 100)
    tokens = sum(each.output_tokens - 1 for each in served)
    assert sum(runs.meters.gaps.values()) == sum(singles.meters.gaps.values()) == tokens
    decode_s = sum(each.last_s - each.first_s for each in served)
    assert runs.meters.gap_mean_s() * tokens == pytest.approx(decode_s, rel=0.006)
    for share in (0.5, 0.95, 0.99):
        assert runs.meters.gap_quantile_s(share) == pytest.approx(
            singles.meters.gap_quantile_s(share), rel=0.02)  # fmt: skip


def test_meter_quantiles_are_those_of_the_gaps():
    draws = np.random.default_rng(1).lognormal(-4, 1, 5000)
    meters = Meters()
    for gap_s in draws:
        meters.gap(float(gap_s), 1)
    for share in (0.5, 0.95, 0.99):
        assert meters.gap_quantile_s(share) == pytest.approx(np.quantile(draws, share), rel=0.01)
    assert meters.gap_mean_s() == pytest.approx(draws.mean(), rel=0.005)
    assert Meters().gap_quantile_s(0.5) == 0.0


def test_power_that_is_looked_at_now_and_then_adds_up(monkeypatch):
    now_and_then, _ = served_alone(VllmV1(), count=150)
    monkeypatch.setattr(replica_module, "POWER_EVERY", 1)
    always, _ = served_alone(VllmV1(), count=150)
    assert now_and_then.meters.joules == pytest.approx(always.meters.joules, rel=0.01)
    watts = always.meters.joules / always.busy_s
    assert 0.3 * 700 <= watts <= 700


# -- targets by class


def test_classes_have_their_own_targets():
    targets = Targets(Target(1.0, 0.05), ("batch=60:1", "chat=0.2:0.02"))
    assert targets.of("batch") == Target(60.0, 1.0) and targets.of("other") == Target(1.0, 0.05)
    usual = LLMRouting(requests=200, rate_per_s=50.0, ttft_s=1e-6)
    patient = usual.with_knobs(patience=("default=60:1",))
    kinds = {
        record.values["served"].kind for record in run(LeastOutstanding(), problem=usual).records
    }
    assert run(LeastOutstanding(), problem=usual).metrics["attainment"] == 0
    patient = usual.with_knobs(patience=tuple(f"{kind}=60:1" for kind in kinds))
    assert run(LeastOutstanding(), problem=patient).metrics["attainment"] == 1


@pytest.mark.parametrize("text", ["batch", "=1:1", "batch=1", "batch=nan:1", "batch=-1:1", "b=0:1"])
def test_a_target_that_is_none_is_refused(text):
    with pytest.raises(KnobError, match="patience"):
        run(LeastOutstanding(), problem=LLMRouting(requests=5, patience=(text,)))
