"""Every kind of fault fires, has its effect, and the effect is absent without it.

One scene serves all kinds: four nodes that talk, write to disk, compute, move data and read their
clocks, each emitting what it sees. A kind is tested by the things that it must change in the scene.
A new kind without an entry here fails `test_every_kind_has_a_test`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from orrery import world as w
from orrery.base.errors import DiskError, OrreryError
from orrery.engines.virtual.engine import Engine
from orrery.parts import Node, cost, rpc
from orrery.world import FAULTS, Accelerator, Disk, Group, Machine, World

GPU = Accelerator(
    name="gpu", peak_flops={"fp32": 100.0}, memory_B=1000, memory_Bps=1e9, idle_W=1.0, active_W=2.0
)
BOX = Machine(
    cpu_flops=100.0, accelerators=(GPU,), price_per_h=3600.0,
    disk=Disk(page_B=16, latency_s=0.001, fsync_s=0.001),
)  # fmt: skip


@cost(flops=10.0)
def total(values: Any) -> float:
    return float(values.sum())


class Scene(Node):
    """Does a little of everything, eight times."""

    def start(self) -> None:
        self.held = 1000

    @rpc
    def say(self, step: int, sender: int) -> None:
        self.emit(said=(sender, step))

    async def main(self) -> None:
        self.emit(began=self.incarnation)
        if self.disk.exists("log"):
            self.emit(kept=await self.disk.read("log"))
        for step in range(8):
            for peer in self.peers:
                self.tell(peer, Scene.say, step)
            await self.try_disk(step)
            await self.try_device()
            self.emit(off=round(self.clock() - self.now, 6), held=self.held)
            if self.id == 0 and step % 4 == 0:
                self.spawn(self.move())
            await self.sleep(0.1)
        self.emit(log=await self.disk.read("log"))

    async def try_disk(self, step: int) -> None:
        try:
            await self.disk.write("page", bytes([step]) * 40)
            await self.disk.append("log", bytes([65 + step]) * 40)
            self.emit(read=(step, await self.disk.read("page")))
        except DiskError as error:
            self.emit(error=str(error))

    async def try_device(self) -> None:
        began = self.now
        try:
            value = await self.compute(total, np.ones(8))
            self.emit(took=round(self.now - began, 6), value=value)
        except OrreryError as error:
            self.emit(error=str(error))

    async def move(self) -> None:
        began = self.now
        await self.transfer(1, np.zeros(100_000, dtype=np.uint8))
        self.emit(moved=round(self.now - began, 6))


def play(*faults: Any, seed: int = 3, kernel: str = "python") -> Any:
    groups = (
        Group(name="node", count=3, machine="box"),
        Group(name="edge", count=1, machine="box"),
    )
    network = w.Network(jitter=0.0, bandwidth_Bps=1e6)
    world = World(groups=groups, network=network, machines={"box": BOX}, faults=faults)
    engine = Engine({"node": Scene(), "edge": Scene()}, world=world, seed=seed, kernel=kernel)
    outcome = engine.run(until_s=4.0)
    outcome.extra.update(engine.faults.extra())
    return outcome


def seen(outcome: Any, name: str, node: int | None = None) -> list[Any]:
    return [value for _, who, value in outcome.emitted(name) if node is None or who == node]


def heard(outcome: Any, by: int, of: int) -> list[int]:
    return [step for sender, step in seen(outcome, "said", by) if sender == of]


def times(outcome: Any, by: int, of: int) -> list[float]:
    found = outcome.emitted("said")
    return [time for time, node, (sender, _) in found if (node, sender) == (by, of)]


def restarted(outcome: Any) -> bool:
    return any(seen(outcome, "began"))


def misread(outcome: Any) -> bool:
    return any(data != bytes([step]) * 40 for step, data in seen(outcome, "read"))


def misheld(outcome: Any) -> bool:
    whole = b"".join(bytes([65 + step]) * 40 for step in range(8))
    return any(data != whole for data in seen(outcome, "log"))


def torn(outcome: Any) -> bool:
    return any(len(data) % 40 for data in seen(outcome, "kept"))


def out_of_order(outcome: Any) -> bool:
    return heard(outcome, 0, 1) != sorted(heard(outcome, 0, 1))


AT = {"at_s": 0.25, "until_s": 0.65}

# kind -> (the fault, what shows in the outcome exactly when it is there, who is counted as firing)
CASES: dict[str, tuple[Any, Any, str]] = {
    "Crash": (w.Crash(node=1, **AT), restarted, "Crash"),
    "Pause": (
        w.Pause(node=1, **AT),
        lambda o: not any(0.26 < t < 0.64 for t in times(o, 1, 0)), "Pause"),
    "Hang": (
        w.Hang(node=1, **AT),
        lambda o: not any(0.26 < t < 0.64 for t in times(o, 1, 0)), "Hang"),
    "Slow": (w.Slow(node=1, factor=3.0, **AT), lambda o: max(seen(o, "took", 1)) > 0.2, "Slow"),
    "Straggler": (
        w.Straggler(node=1, factor=4.0, p=0.9, **AT),
        lambda o: max(seen(o, "took", 1)) > 0.3, "Straggler"),
    "DeviceLoss": (
        w.DeviceLoss(node=1, device=0, **AT),
        lambda o: any("lost" in text for text in seen(o, "error", 1)), "DeviceLoss"),
    "PowerCap": (
        w.PowerCap(node=1, watts=150.0, **AT),
        lambda o: max(seen(o, "took", 1)) > 0.2, "PowerCap"),
    "SpotReclaim": (
        w.SpotReclaim(node=1, notice_s=0.1, **AT),
        lambda o: restarted(o) and seen(o, "spot_notice_s") == [0.1], "SpotReclaim"),
    "DomainLoss": (w.DomainLoss(domain="edge", **AT), restarted, "Crash"),
    "Partition": (w.Partition(node=1, **AT), lambda o: len(heard(o, 0, 1)) < 8, "Partition"),
    "Clog": (
        w.Clog(link=(0, 1), fraction=0.1, at_s=0.0),
        lambda o: max(seen(o, "moved", 0)) > 0.5, "Clog"),
    "Drop": (w.Drop(link=(0, 1), p=0.9, **AT), lambda o: len(heard(o, 0, 1)) < 8, "Drop"),
    "Duplicate": (w.Duplicate(node=1, p=0.9, **AT), lambda o: len(heard(o, 0, 1)) > 8, "Duplicate"),
    "Reorder": (w.Reorder(node=1, p=0.5, spread_s=1.0), out_of_order, "Reorder"),
    "Corrupt": (w.Corrupt(node=1, p=0.9, **AT), lambda o: len(heard(o, 0, 1)) < 8, "Corrupt"),
    "NicFlap": (
        w.NicFlap(node=1, period_s=0.4, **AT), lambda o: len(heard(o, 0, 1)) < 8, "NicFlap"),
    "ClockSkew": (
        w.ClockSkew(node=1, skew_s=5.0, **AT),
        lambda o: 5.0 in seen(o, "off", 1) and seen(o, "off", 1)[-1] == 0.0, "ClockSkew"),
    "ClockDrift": (
        w.ClockDrift(node=1, drift=0.5, **AT),
        lambda o: seen(o, "off", 1)[-1] == pytest.approx(0.2), "ClockDrift"),
    "ClockJump": (
        w.ClockJump(node=1, jump_s=-2.0, at_s=0.25),
        lambda o: seen(o, "off", 1)[-1] == -2.0, "ClockJump"),
    "DiskFull": (
        w.DiskFull(node=1, **AT),
        lambda o: any("full" in text for text in seen(o, "error", 1)), "DiskFull"),
    "TornWrite": (w.TornWrite(node=1, p=1.0), torn, "TornWrite"),
    "MisdirectedWrite": (w.MisdirectedWrite(node=1, p=0.9, **AT), misread, "MisdirectedWrite"),
    "BitFlip": (w.BitFlip(node=1, p=0.9, **AT), misread, "BitFlip"),
    "PriceJump": (w.PriceJump(factor=10.0, at_s=1.0), lambda o: o.money > 20.0, "PriceJump"),
    "Byzantine": (
        w.Byzantine(node=1, strategies=("mutate",), **AT),
        lambda o: sorted(heard(o, 0, 1)) != list(range(8)), "Byzantine"),
    "RandomCrashes": (
        w.RandomCrashes(count=2, between_s=(0.1, 0.5), down_s=0.2), restarted, "Crash"),
    "RandomPartitions": (
        w.RandomPartitions(count=1, between_s=(0.1, 0.3), down_s=0.4),
        lambda o: any(len(heard(o, by, of)) < 8 for by in range(4) for of in range(4) if by != of),
        "Partition"),
}  # fmt: skip

# What must be there for the effect to show: torn writes need a crash, which tears nothing itself.
NEEDED: dict[str, tuple[Any, ...]] = {"TornWrite": (w.Crash(node=1, at_s=0.55, until_s=0.9),)}

MORE_FLIPS = {
    "disk at once": (w.BitFlip(node=1, at_s=0.26), misheld),
    "memory at once": (
        w.BitFlip(node=1, at_s=0.25, where="memory"),
        lambda o: set(seen(o, "held", 1)) != {1000}),
    "memory by chance": (
        w.BitFlip(node=1, p=1.0, where="memory", **AT),
        lambda o: any(value != 8.0 for value in seen(o, "value", 1))),
    "message at once": (
        w.BitFlip(node=1, at_s=0.25, where="message"),
        lambda o: sum(sorted(heard(o, 1, of)) != list(range(8)) for of in (0, 2, 3)) == 1),
    "message by chance": (
        w.BitFlip(node=1, p=1.0, where="message", **AT),
        lambda o: sorted(heard(o, 1, 0)) != list(range(8))),
}  # fmt: skip


def test_every_kind_has_a_test() -> None:
    assert set(CASES) == set(FAULTS)


@pytest.mark.parametrize("kind", sorted(CASES))
def test_it_fires_and_shows(kind: str) -> None:
    fault, shows, counted = CASES[kind]
    needed = NEEDED.get(kind, ())
    assert isinstance(fault, FAULTS[kind])
    assert any(shows(play(*needed, fault, seed=seed)) for seed in range(3, 9))
    assert play(*needed, fault).extra["faults_fired"][counted] > 0


@pytest.mark.parametrize("kind", sorted(CASES))
def test_without_it_nothing_shows(kind: str) -> None:
    _, shows, counted = CASES[kind]
    needed = NEEDED.get(kind, ())
    outcomes = [play(*needed, seed=seed) for seed in (3, 4, 5)]
    assert not any(shows(outcome) for outcome in outcomes)
    assert all(counted not in outcome.extra["faults_fired"] for outcome in outcomes)


@pytest.mark.parametrize("kind", sorted(CASES))
def test_it_is_deterministic(kind: str) -> None:
    fault, _, _ = CASES[kind]
    faults = *NEEDED.get(kind, ()), fault
    first, second = play(*faults), play(*faults)
    assert first.digest == second.digest
    assert first.records == second.records
    assert (first.money, first.energy_J) == (second.money, second.energy_J)


@pytest.mark.parametrize("kind", sorted(CASES))
def test_both_kernels_agree(kind: str) -> None:
    pytest.importorskip("orrery.engines.virtual._kernel")
    fault, _, _ = CASES[kind]
    faults = *NEEDED.get(kind, ()), fault
    first, second = play(*faults), play(*faults, kernel="c")
    assert first.digest == second.digest
    assert first.records == second.records


@pytest.mark.parametrize("how", sorted(MORE_FLIPS))
def test_bits_flip_where_they_are_told_to(how: str) -> None:
    fault, shows = MORE_FLIPS[how]
    outcomes = [play(fault, seed=seed) for seed in range(6)]
    assert any(shows(outcome) for outcome in outcomes)
    assert all(outcome.extra["faults_fired"]["BitFlip"] > 0 for outcome in outcomes)
    assert not shows(play())


@pytest.mark.parametrize("kind", sorted(set(CASES) - {"RandomCrashes", "RandomPartitions"}))
def test_a_fault_after_the_end_is_reported_as_never_fired(kind: str) -> None:
    fault, _, counted = CASES[kind]
    late = fault.replace(at_s=100.0, until_s=None)
    extra = play(late).extra
    # A notice comes before its fault, so nothing but the late beginning may count.
    assert extra["faults_fired"] == {counted: 0}
    assert extra["faults_never_fired"] == [f"{counted} at 100 s"]
