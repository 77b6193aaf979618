"""Modelled devices: rooflines, sharing, faults of devices, energy and money."""

from __future__ import annotations

import math
from typing import Any

import pytest

from orrery.base.errors import OrreryError, PartError, PlatformLacks
from orrery.engines.virtual.accelerator import peak_of
from orrery.engines.virtual.engine import Engine
from orrery.parts import Node, cost
from orrery.world import (
    Accelerator,
    Crash,
    DeviceLoss,
    Group,
    Machine,
    Power,
    PowerCap,
    PriceJump,
    Prices,
    Slow,
    SpotReclaim,
    Straggler,
    World,
)

GPU = Accelerator(
    name="gpu", peak_flops={"fp32": 100.0, "bf16": 200.0}, memory_B=1000, memory_Bps=50.0,
    idle_W=10.0, active_W=110.0,
)  # fmt: skip
PLAIN = Machine(cpu_flops=10.0, memory_Bps=20.0, idle_W=100.0, active_W=300.0)
WITH_GPUS = PLAIN.replace(accelerators=(GPU, GPU))


def world_of(machine: Machine, *faults: Any, nodes: int = 1, **fields: Any) -> World:
    group = Group(count=nodes, machine="box")
    return World(groups=(group,), machines={"box": machine}, faults=faults, **fields)


def run(body: Any, world: World, seed: int = 0) -> tuple[Any, Engine]:
    class Computer(Node):
        async def main(self) -> None:
            await body(self)

    engine = Engine({"node": Computer()}, world=world, seed=seed, kernel="python")
    return engine.run(), engine


def work(flops: float = 0.0, bytes: float = 0.0, dtype: str = "fp32") -> Any:
    @cost(flops=flops, bytes=bytes, dtype=dtype)
    def fn() -> str:
        return "value"

    return fn


def seconds(machine: Machine, *faults: Any, fn: Any = None, seed: int = 0, **how: Any) -> float:
    async def body(node: Any) -> None:
        assert await node.compute(fn or work(flops=10.0), **how) == "value"
        node.emit(took=node.now)

    outcome, _ = run(body, world_of(machine, *faults), seed)
    ((_, _, took),) = outcome.emitted("took")
    return float(took)


def test_the_roofline_is_the_larger_of_both_times() -> None:
    assert seconds(PLAIN, fn=work(10.0, 10.0)) == pytest.approx(1.0)
    assert seconds(PLAIN, fn=work(10.0, 100.0)) == pytest.approx(5.0)
    assert seconds(PLAIN, fn=work()) == 0.0
    assert seconds(WITH_GPUS, fn=work(100.0, 25.0)) == pytest.approx(1.0)
    assert seconds(WITH_GPUS, fn=work(100.0, 100.0)) == pytest.approx(2.0)
    assert seconds(WITH_GPUS, fn=work(100.0, dtype="bf16")) == pytest.approx(0.5)


def test_which_device() -> None:
    assert seconds(WITH_GPUS, device="cpu") == pytest.approx(1.0)
    assert seconds(WITH_GPUS, device="1") == pytest.approx(0.1)
    assert seconds(WITH_GPUS) == pytest.approx(0.1)
    assert seconds(WITH_GPUS, share=0.25) == pytest.approx(0.4)


def ends(machine: Machine, jobs: list[tuple[float, float, float, str]]) -> list[float]:
    """When each of (start, flops, share, device) ends."""

    async def body(node: Any) -> None:
        async def one(start: float, flops: float, share: float, device: str) -> float:
            await node.sleep(start)
            await node.compute(work(flops), share=share, device=device)
            return float(node.now)

        node.emit(ends=await node.all(*(one(*job) for job in jobs)))

    outcome, _ = run(body, world_of(machine))
    found: list[float] = outcome.emitted("ends")[0][2]
    return found


def test_jobs_share_a_device_fairly() -> None:
    # Alone for 1 s, then both at half speed until the short one ends, then alone again.
    assert ends(PLAIN, [(0, 30, 1, ""), (1, 10, 1, "")]) == pytest.approx([4.0, 3.0])


def test_what_a_small_share_leaves_the_others_take() -> None:
    assert ends(PLAIN, [(0, 10, 0.2, ""), (0, 16, 1, "")]) == pytest.approx([3.6 + 1.4, 2.0])
    shares = [(0, 10, 0.25, "") for _ in range(4)]
    assert ends(PLAIN, shares) == pytest.approx([4.0] * 4)


def test_devices_of_one_node_do_not_disturb_one_another() -> None:
    jobs = [(0, 100, 1, "0"), (0, 100, 1, "1"), (0, 10, 1, "cpu")]
    assert ends(WITH_GPUS, [(0.0, *job[1:]) for job in jobs]) == pytest.approx([1.0, 1.0, 1.0])


def test_a_deadline_takes_its_job_off_the_device() -> None:
    async def body(node: Any) -> None:
        async def impatient() -> None:
            with pytest.raises(OrreryError):
                async with node.deadline(1.0):
                    await node.compute(work(1000.0))

        async def patient() -> None:
            await node.compute(work(10.0))
            node.emit(end=node.now)

        await node.all(impatient(), patient())

    outcome, _ = run(body, world_of(PLAIN))
    assert outcome.emitted("end")[0][2] == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"device": "2"}, r"no such device; .*0, 1, cpu|no such device"),
        ({"device": "gpu"}, "no such device"),
        ({"device": "-1"}, "no such device"),
        ({"share": 0.0}, r"share=0\.0"),
        ({"share": 1.5}, r"share=1\.5"),
        ({"share": math.nan}, "share=nan"),
        ({"fn": work(1.0, dtype="fp23")}, 'unknown dtype; did you mean "fp32"'),
        ({"fn": work(-1.0)}, r"flops=-1\.0"),
        ({"fn": work(math.nan)}, "flops=nan"),
        ({"fn": work(1.0, math.inf)}, "bytes=inf"),
    ],
)
def test_bad_work_has_a_name(how: dict[str, Any], says: str) -> None:
    with pytest.raises(PartError, match=says):
        seconds(WITH_GPUS, **how)


def test_a_dtype_without_a_published_peak_is_stated() -> None:
    async def body(node: Any) -> None:
        for dtype in ("fp16", "fp8", "fp64", "fp32"):
            await node.compute(work(100.0, dtype=dtype))

    _, engine = run(body, world_of(WITH_GPUS))
    assert engine.devices.extra()["substituted_dtypes"] == {
        "fp16 on gpu as bf16": 1, "fp64 on gpu as fp32": 1, "fp8 on gpu as bf16": 1,
    }  # fmt: skip
    assert peak_of(GPU, "fp64") == (50.0, "fp32")
    assert peak_of(GPU, "tf32") == (100.0, "fp32")
    assert peak_of(GPU, "int8") == (200.0, "bf16")


# -- faults


def test_slow_stretches_only_while_it_lasts_and_stacks() -> None:
    assert seconds(PLAIN, Slow(node=0, factor=4.0)) == pytest.approx(4.0)
    # One second at a quarter of the speed does 0.25 of the work; the rest runs at full speed.
    assert seconds(PLAIN, Slow(node=0, factor=4.0, until_s=1.0)) == pytest.approx(1.75)
    both = [Slow(node=0, factor=2.0, until_s=1.0), Slow(node=0, factor=2.0, until_s=2.0)]
    assert seconds(PLAIN, *both) == pytest.approx(2.25)
    assert seconds(PLAIN, *both[::-1]) == pytest.approx(2.25)


def test_a_straggler_is_drawn_for_each_computation() -> None:
    fault = Straggler(node=0, factor=3.0, p=0.5)
    took = {round(seconds(PLAIN, fault, seed=seed), 6) for seed in range(12)}
    assert took == {1.0, 3.0}
    assert seconds(PLAIN, Straggler(node=0, factor=3.0)) == pytest.approx(3.0)


def test_a_power_cap_slows_in_proportion_above_idle() -> None:
    assert seconds(PLAIN, PowerCap(node=0, watts=200.0)) == pytest.approx(2.0)
    assert seconds(PLAIN, PowerCap(node=0, watts=900.0)) == pytest.approx(1.0)
    caps = [PowerCap(node=0, watts=200.0), PowerCap(watts=150.0, until_s=2.0)]
    assert seconds(PLAIN, *caps) == pytest.approx(3.0)
    # Below idle nothing moves until the cap is lifted.
    assert seconds(PLAIN, PowerCap(watts=50.0, until_s=7.0)) == pytest.approx(8.0)


def test_a_lost_device_fails_its_jobs_by_name_and_comes_back() -> None:
    async def body(node: Any) -> None:
        with pytest.raises(PlatformLacks, match="accelerator 0 of node 0 is lost"):
            await node.compute(work(1000.0))
        node.emit(failed=node.now)
        with pytest.raises(PlatformLacks, match="accelerator 0 of node 0 is lost"):
            await node.compute(work(100.0), device="0")
        await node.compute(work(100.0))  # the other one serves
        node.emit(other=node.now)
        await node.sleep(5.0)
        await node.compute(work(100.0), device="0")
        node.emit(back=node.now)

    fault = DeviceLoss(node=0, device=0, at_s=1.0, until_s=5.0)
    outcome, _ = run(body, world_of(WITH_GPUS, fault))
    times = [time for name in ("failed", "other", "back") for time, _, _ in outcome.emitted(name)]
    assert times == pytest.approx([1.0, 2.0, 8.0])


def test_all_accelerators_lost_is_not_silently_the_cpu() -> None:
    lost = [DeviceLoss(node=0, device=place) for place in (0, 1)]
    with pytest.raises(PartError, match="lost all of its 2 accelerators"):
        seconds(WITH_GPUS, *lost)
    assert seconds(WITH_GPUS, *lost, device="cpu") == pytest.approx(1.0)


def test_a_crash_frees_the_device() -> None:
    async def body(node: Any) -> None:
        await node.compute(work(10.0 if node.incarnation else 1e6))
        node.emit(end=node.now)

    outcome, _ = run(body, world_of(PLAIN, Crash(node=0, at_s=1.0, until_s=2.0)))
    assert [time for time, _, _ in outcome.emitted("end")] == pytest.approx([3.0])


# -- energy and money


async def _busy_one_of_ten(node: Any) -> None:
    await node.compute(work(10.0))
    await node.sleep(9.0)


def test_energy_is_idle_for_the_run_plus_busy_above_idle() -> None:
    outcome, _ = run(_busy_one_of_ten, world_of(PLAIN, nodes=3))
    assert outcome.seconds == pytest.approx(10.0)
    assert outcome.energy_J == pytest.approx(3 * (100.0 * 10.0 + 200.0 * 1.0))
    gpus, _ = run(_busy_one_of_ten, world_of(WITH_GPUS))
    assert gpus.seconds == pytest.approx(9.1)
    assert gpus.energy_J == pytest.approx(120.0 * 9.1 + 100.0 * 0.1)


def test_owned_machines_pay_electricity_with_cooling() -> None:
    prices, power = Prices(electricity_per_kWh=36.0), Power(pue=2.0)
    world = world_of(PLAIN, prices=prices, power=power)
    outcome, _ = run(_busy_one_of_ten, world)
    assert outcome.money == pytest.approx(1200.0 / 3.6e6 * 36.0 * 2.0)


def test_rented_machines_pay_by_the_hour() -> None:
    rented = WITH_GPUS.replace(
        price_per_h=3600.0, accelerators=(GPU.replace(name="paid", price_per_h=1800.0), GPU)
    )
    outcome, _ = run(_busy_one_of_ten, world_of(rented, nodes=2))
    assert outcome.money == pytest.approx(2 * 1.5 * 9.1)


def test_a_price_jump_counts_while_it_lasts_and_stacks() -> None:
    rented = PLAIN.replace(price_per_h=3600.0)
    jumps = [PriceJump(factor=3.0, at_s=2.0, until_s=4.0), PriceJump(factor=2.0, at_s=3.0)]
    outcome, _ = run(_busy_one_of_ten, world_of(rented, *jumps))
    assert outcome.money == pytest.approx(2 * 1 + 1 * 3 + 1 * 6 + 6 * 2)


def test_electricity_follows_a_price_jump_at_the_time_of_use() -> None:
    prices, power = Prices(electricity_per_kWh=3.6e6), Power(pue=1.0)
    jump = PriceJump(factor=2.0, at_s=0.5, until_s=1.0)
    outcome, _ = run(_busy_one_of_ten, world_of(PLAIN, jump, prices=prices, power=power))
    assert outcome.money == pytest.approx(150.0 + 2 * 150.0 + 900.0)


def test_a_reclaimed_machine_costs_nothing_until_it_is_back() -> None:
    async def body(node: Any) -> None:
        await node.sleep(10.0 if not node.incarnation else 4.0)

    rented = PLAIN.replace(price_per_h=3600.0)
    fault = SpotReclaim(node=0, at_s=2.0, until_s=6.0, notice_s=1.0)
    outcome, _ = run(body, world_of(rented, fault))
    assert outcome.seconds == pytest.approx(10.0)
    assert outcome.money == pytest.approx(6.0)
    assert outcome.energy_J == pytest.approx(600.0)


def test_a_power_cap_saves_power_but_not_work() -> None:
    async def body(node: Any) -> None:
        await node.compute(work(10.0))

    outcome, _ = run(body, world_of(PLAIN, PowerCap(watts=200.0)))
    assert outcome.energy_J == pytest.approx(2.0 * 200.0)
