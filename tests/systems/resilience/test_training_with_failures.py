"""The problem `training_with_failures`, and the classics with their known figures."""

from __future__ import annotations

import numpy as np
import pytest
from tests.systems.resilience.checkpoint_runs import CLASSICS, EVERYBODY, LARGE, said, trained

from orrery import World
from orrery.base.errors import KnobError, PartError
from orrery.systems.resilience.baselines.async_save import AsyncSave
from orrery.systems.resilience.baselines.check_freq import CheckFreq
from orrery.systems.resilience.baselines.no_checkpoints import NoCheckpoints
from orrery.systems.resilience.baselines.synchronous_save import SynchronousSave
from orrery.systems.resilience.baselines.torch_snapshot import TorchSnapshot
from orrery.systems.resilience.datastates_llm import DataStates
from orrery.systems.resilience.problems.rig import PAGEABLE_BPS, PINNED_BPS, SERIALISE_BPS
from orrery.systems.resilience.problems.training_with_failures import (
    TrainingWithFailures,
    ended,
    ranks_of,
)
from orrery.world import BitFlip, Crash, DiskFull
from orrery.world.hardware import Disk

STATE_B = LARGE["state_B"]
PAGEABLE_S, PINNED_S = STATE_B / PAGEABLE_BPS, STATE_B / PINNED_BPS
SERIALISE_S = STATE_B / SERIALISE_BPS
DISK_S = STATE_B / Disk().write_Bps
# An update moves the state twice through the memory of the machine; it counts to the iteration.
STEP_S = LARGE["step_s"] + 2 * STATE_B / 204.8e9


def metrics_of(part, **knobs):
    made = trained(part, **{**LARGE, **knobs})
    assert made.violations == []
    return made.metrics


# -- each classic's own figure


def test_a_synchronous_save_blocks_for_copy_and_write():
    slow = metrics_of(SynchronousSave())["blocked_s"]
    assert slow == pytest.approx(PAGEABLE_S + SERIALISE_S, rel=0.01)
    fast = metrics_of(SynchronousSave(), serialise_Bps=1e12)["blocked_s"]
    assert fast == pytest.approx(PAGEABLE_S + DISK_S, rel=0.01)


@pytest.mark.parametrize("step_s", [1.0, 3.0, 6.0])
def test_an_asynchronous_save_blocks_for_its_copy_and_for_the_write_before(step_s):
    found = metrics_of(AsyncSave(), step_s=step_s)["blocked_s"]
    step_s += 2 * STATE_B / 204.8e9
    # The first save has none before it.
    waits = 7 / 8 * max(SERIALISE_S - step_s, 0.0)
    assert found == pytest.approx(PAGEABLE_S + waits, rel=0.02)


def test_checkfreq_hides_its_snapshot_and_waits_for_the_persist_before():
    assert metrics_of(CheckFreq(), small_B=1e6)["blocked_s"] == pytest.approx(0.001, rel=0.1)
    found = metrics_of(CheckFreq(), step_s=1.0)["blocked_s"]
    step_s = 1.0 + 2 * STATE_B / 204.8e9
    assert found == pytest.approx(7 / 8 * (PAGEABLE_S + SERIALISE_S - step_s), rel=0.02)
    # A snapshot that takes longer than forward and backward makes the update wait.
    slow = metrics_of(CheckFreq(), pageable_Bps=STATE_B / 7.0, serialise_Bps=1e12)
    assert slow["stall_s"] == pytest.approx(7 / 8 * 2.0, rel=0.02)


def test_torchsnapshot_blocks_for_staging_at_the_speed_of_the_link():
    assert metrics_of(TorchSnapshot())["blocked_s"] == pytest.approx(PINNED_S, rel=0.01)
    one = metrics_of(TorchSnapshot(threads=1))["blocked_s"]
    assert one == pytest.approx(PAGEABLE_S, rel=0.01)


def test_torchsnapshot_keeps_to_its_budget_and_then_waits_for_storage():
    tight = metrics_of(TorchSnapshot(buffer_B=1e9))
    assert tight["high_B"] <= 1e9
    # All but the budget must have been written before the last chunk is staged.
    assert tight["blocked_s"] == pytest.approx((STATE_B - 1e9) / Disk().write_Bps, rel=0.15)
    assert tight["blocked_s"] > 3 * PINNED_S


def test_no_checkpoints_cost_nothing_until_something_fails():
    calm = metrics_of(NoCheckpoints())
    assert calm["blocked_s"] == 0.0 and calm["committed"] == 0.0 and calm["throughput_Bps"] == 0.0
    assert calm["time_s"] == pytest.approx(8 * STEP_S, rel=0.01)
    made = trained(NoCheckpoints(), faults=[Crash(node=1, at_s=23.0, until_s=24.0)], **LARGE)
    assert made.violations == []
    assert made.metrics["lost_steps"] == 4 and made.metrics["restored"] == 0
    assert made.metrics["time_s"] > 23.0 + 8 * STEP_S


@pytest.mark.parametrize("part", CLASSICS)
def test_every_classic_goes_on_from_its_newest_checkpoint(part):
    crash = Crash(node=(0, 1), at_s=23.0, until_s=24.0)
    made = trained(part(), faults=[crash], **LARGE)
    assert made.violations == []
    assert made.metrics["restarts"] == 1 and made.metrics["restored"] >= 1
    assert made.metrics["lost_steps"] <= 2


# -- the problem


@pytest.mark.parametrize("part", EVERYBODY)
@pytest.mark.parametrize("ranks", [1, 3])
def test_all_end_with_the_weights_of_a_plain_loop(part, ranks):
    made = trained(part(), ranks=ranks, steps=6)
    assert made.violations == []
    _, weights = TrainingWithFailures(steps=6).reference(ranks)
    ends = ended(made)
    np.testing.assert_array_equal(
        np.concatenate([ends[node]["weights"] for node in range(ranks)]), np.concatenate(weights)
    )


def test_a_transformer_is_trained_and_restored_too():
    crash = Crash(node=0, at_s=0.09, until_s=0.12)
    made = trained(DataStates(), faults=[crash], task="language", batch=1, steps=4, step_s=0.05)
    assert made.violations == [] and made.metrics["restarts"] == 1


@pytest.mark.parametrize("coupled", [True, False])
def test_one_rank_that_fails_takes_all_back(coupled):
    crash = Crash(node=1, at_s=0.11, until_s=0.2)
    made = trained(DataStates(), ranks=3, faults=[crash], steps=12, step_s=0.02, coupled=coupled)
    assert made.violations == []
    restored = {node: values["restored"] for _, node, values in said(made, "restored")}
    assert set(restored) == {0, 1, 2} and len(set(restored.values())) == 1


def test_the_interval_bounds_what_is_lost():
    crash = Crash(node=(0, 1), at_s=0.395, until_s=0.5)
    for every in (1, 5):
        made = trained(DataStates(), faults=[crash], steps=24, step_s=0.02, every=every)
        assert made.violations == [] and made.metrics["committed"] == 24 // every
        assert made.metrics["restored"] % every == 0
        done = made.metrics["restored"] * 0.02
        assert 0.395 - done <= (every + 2) * 0.025


def test_a_shared_file_system_is_shared():
    """Eight ranks flush through one server: each gets an eighth of it."""

    def world(ranks):
        return World.lan({"rank": ranks, "storage": 1}, model="flows", bandwidth_Bps=1e9)

    knobs = {"state_B": 1e9, "serialise_Bps": 1e12, "coupled": False, "watch_s": 1.0, "steps": 3}
    for ranks in (2, 8):
        made = trained(SynchronousSave(), world=world(ranks), **knobs)
        assert made.violations == [] and ranks_of(made.world) == list(range(ranks))
        assert made.metrics["blocked_s"] == pytest.approx(0.1 + ranks * 1.0, rel=0.02)


def test_a_full_disk_fails_the_checkpoint_and_not_the_training():
    full = DiskFull(node=1, at_s=0.05, until_s=0.15)
    made = trained(SynchronousSave(), faults=[full], steps=12, step_s=0.02)
    assert made.violations == []
    assert made.metrics["failed"] >= 3
    assert made.metrics["failed"] + made.metrics["committed"] == 12
    assert all("full" in values["why"] for _, _, values in said(made, "failed"))


def test_a_bit_that_flips_at_rest_is_found():
    flips = BitFlip(node=0, at_s=0.141, where="disk")
    crash = Crash(node=(0, 1), at_s=0.142, until_s=0.2)
    seen = 0
    for seed in range(8):
        made = trained(SynchronousSave(), faults=[flips, crash], steps=10, step_s=0.02, seed=seed)
        assert made.violations == []
        seen += made.metrics["damaged"] > 0
    assert seen >= 2  # the bit falls on any file: shards of both checkpoints, records, manifests


def test_a_part_that_does_not_fit_is_refused():
    from orrery.systems.train import Synchronous

    with pytest.raises(PartError, match="Checkpointer"):
        trained(Synchronous())


@pytest.mark.parametrize(
    ("knobs", "word"),
    [
        ({"every": 0}, "every"),
        ({"keep": 0}, "keep"),
        ({"copy_Bps": 0.0}, "copy_Bps"),
        ({"copy_Bps": float("nan")}, "copy_Bps"),
        ({"state_B": -1.0}, "state_B"),
        ({"task": "chess"}, "task"),
        ({"watch_s": "often"}, "watch_s"),
        ({"intervall": 3}, "intervall"),
    ],
)
def test_bad_knobs_are_named(knobs, word):
    with pytest.raises(KnobError, match=word):
        TrainingWithFailures(**knobs)
