"""Shared processors: the queue for the cores, in arithmetic that can be done by hand."""

from __future__ import annotations

import numpy as np
import pytest

from orrery import Node, Problem, Worker, World, rpc, run
from orrery.base.errors import WorldError
from orrery.engines.virtual import kernel as kernels
from orrery.parts import cost
from orrery.world import Straggler
from orrery.world.processors import Bend, Cost, Processors

MS = 1e-3
KERNELS = ["python", "c"]


def world(n=3, **costs):
    return World.lan(n, latency_s=0.0, jitter=0.0, bandwidth_Bps=1e15,
                     processors=Processors(**{"cores": 1, **costs}))  # fmt: skip


def bend(from_B, per_B_s):
    return Bend(from_B=from_B, per_B_s=per_B_s)


class Echo(Node):
    @rpc
    async def hear(self) -> int:
        return self.id

    @rpc
    async def keep(self, size: int) -> float:
        began_s = self.now
        await self.disk.append("f", bytes(size))
        await self.disk.fsync("f")
        return self.now - began_s


class AskAll(Problem):
    """The driver asks all nodes at once; what it gives is when each answer came."""

    async def drive(self, driver):
        async def one(node):
            await driver.ask(node, Echo.hear)
            return driver.now

        return await driver.all(*(one(node) for node in driver.nodes))

    def measure(self, outcome):
        return {"last_s": max(outcome.driven)}


def last_s(spec_world, kernel=None):
    return run(Echo(), problem=AskAll(), world=spec_world, kernel=kernel).metrics["last_s"]


def test_a_world_without_processors_keeps_its_hash_and_its_time():
    plain = World.lan(3)
    assert "processors" not in plain.to_data()
    assert plain.hash != World.lan(3, processors=Processors(cores=1)).hash
    free = World.lan(3, processors=Processors(cores=1))
    assert last_s(plain) == last_s(free)


def test_a_world_with_processors_goes_through_toml_whole():
    before = world(
        send=Cost(fixed_s=1e-5, per_B_s=1e-9, bends=(Bend(from_B=4096, per_B_s=2e-9),)),
        flush_Bps=1e9,
    )
    assert World.from_toml(before.to_toml()) == before
    assert World.from_toml(before.to_toml()).hash == before.hash


def test_the_source_is_a_note_and_not_part_of_the_hash():
    assert world(source="here").hash == world(source="there").hash


@pytest.mark.parametrize(
    "bad", [{"cores": 0}, {"cores": 1.5}, {"flush_Bps": 0.0}, {"flush_Bps": float("nan")},
            {"send": Cost}, {"wake_s": -1.0}, {"core": 2}]
)  # fmt: skip
def test_bad_processors_are_refused_by_name(bad):
    with pytest.raises((WorldError, TypeError)):
        Processors(**{"cores": 1, **bad})


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), "much"])
def test_bad_costs_are_refused_by_name(bad):
    with pytest.raises(WorldError, match="cost"):
        Cost(fixed_s=bad)


def test_bytes_beyond_a_bend_have_their_own_price():
    cost = Cost(fixed_s=1.0, per_B_s=0.5, bends=(bend(10, 2.0), bend(20, 0.0)))
    assert [cost.seconds(size_B) for size_B in (4, 12, 20, 99)] == [3.0, 10.0, 26.0, 26.0]
    assert Cost(per_B_s=0.5).seconds(12) == 6.0


@pytest.mark.parametrize("sizes", [(20, 10), (10, 10)])
def test_bends_rise(sizes):
    with pytest.raises(WorldError, match="sort them"):
        Cost(bends=tuple(bend(size_B, 1.0) for size_B in sizes))


def test_waking_and_own_work_cost_the_node_that_gets_a_message():
    """One ask, handled in 1 ms; node and driver are idle, and need 2 ms more each to wake up."""
    alone = last_s(world(1, cores=8))
    own = last_s(world(1, cores=8, own=Cost(fixed_s=MS)))
    woken = last_s(world(1, cores=8, own=Cost(fixed_s=MS), wake_s=2 * MS))
    assert own - alone == pytest.approx(1 * MS, abs=1e-9)
    assert woken - alone == pytest.approx(5 * MS, abs=1e-9)


def test_a_busy_node_need_not_be_woken():
    """Three asks in a row to one core of nodes: the driver's answers find it busy receiving."""
    cost = {"receive": Cost(fixed_s=10 * MS), "cores": 8}
    idle, awake = last_s(world(3, **cost)), last_s(world(3, wake_s=MS, **cost))
    # Each node wakes once and the driver once, for the first of three answers.
    assert awake - idle == pytest.approx(2 * MS, abs=1e-9)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("cores", "expected_ms"), [(1, 12), (2, 7), (8, 6)])
def test_messages_wait_for_the_cores(kernel, cores, expected_ms):
    """Three asks: each is sent, taken in, answered and taken in, 1 ms each, 12 ms on one core.

    The driver alone has six of the twelve to do, so it takes no less on any number of cores. On
    two, the first message and the last answer have nothing to run beside: 5 pairs and 2 alone.
    """
    if kernel == "c" and kernels.load(None).NAME != "c":
        pytest.skip("the C kernel is not built here")
    costs = {"send": Cost(fixed_s=MS), "receive": Cost(fixed_s=MS)}
    assert last_s(world(cores=cores, **costs), kernel) == pytest.approx(expected_ms * MS, abs=1e-9)


def test_both_kernels_tell_the_same_story():
    if kernels.load(None).NAME != "c":
        pytest.skip("the C kernel is not built here")
    spec = world(cores=2, send=Cost(fixed_s=3e-5, per_B_s=1e-9), receive=Cost(fixed_s=7e-5))
    told = [run(Echo(), problem=AskAll(), world=spec, kernel=each).digest for each in KERNELS]
    assert told[0] == told[1]


class Pair(Worker):
    async def main(self):
        if self.rank == 0:
            await self.send(1, np.zeros(1000, np.uint8))
            self.emit(sent_s=self.now)
        else:
            await self.recv(0)
            self.emit(got_s=self.now)


def test_a_transfer_costs_both_ends_and_a_note_back():
    spec = world(2, transfer_out=Cost(per_B_s=1e-6), transfer_in=Cost(fixed_s=2 * MS),
                 send=Cost(fixed_s=MS), receive=Cost(fixed_s=4 * MS))  # fmt: skip
    seen = {}
    for record in run(Pair(), world=spec).records:
        seen |= record.values
    assert seen["got_s"] == pytest.approx(3 * MS)
    assert seen["sent_s"] == pytest.approx(8 * MS)


class SyncAll(AskAll):
    async def drive(self, driver):
        return await driver.all(*(driver.ask(n, Echo.keep, 1000) for n in driver.nodes))


def sync_s(**costs):
    base = world(3, **costs)
    disk = base.machine_of(0).disk.replace(latency_s=0.0, fsync_s=MS, write_Bps=1e15)
    machines = {"server": base.machine_of(0).replace(disk=disk)}
    return run(Echo(), problem=SyncAll(), world=base.replace(machines=machines)).metrics["last_s"]


def test_syncs_share_cores_and_one_device():
    assert sync_s() == pytest.approx(MS, rel=1e-3)
    assert sync_s(sync=Cost(fixed_s=MS)) == pytest.approx(4 * MS, rel=1e-3)
    assert sync_s(cores=3, sync=Cost(fixed_s=MS)) == pytest.approx(2 * MS, rel=1e-3)
    assert sync_s(flush_Bps=1e6) == pytest.approx(4 * MS, rel=1e-3)
    assert sync_s(write=Cost(fixed_s=MS)) == pytest.approx(4 * MS, rel=1e-3)


class Teller(Node):
    async def main(self):
        self.emit(words=b"x" * 100)
        await self.sleep(0.0)
        self.tell((self.id + 1) % 2, Teller.note)

    @rpc
    def note(self) -> None:
        self.emit(at_s=self.now)


@pytest.mark.parametrize(("cores", "expected_ms"), [(1, 10), (2, 5)])
def test_what_nodes_emit_keeps_their_processor(cores, expected_ms):
    spec = world(2, cores=cores, report=Cost(fixed_s=5 * MS))
    times = [r.values["at_s"] for r in run(Teller(), world=spec).records if "at_s" in r.values]
    assert len(times) == 2 and min(times) == pytest.approx(expected_ms * MS)


def test_the_driver_hears_what_nodes_emit_and_is_busy_meanwhile():
    class Loud(Echo):
        async def main(self):
            self.emit(words=b"x")

    quiet, heard = world(3, cores=8), world(3, cores=8, hear=Cost(fixed_s=MS))
    assert run(Loud(), problem=AskAll(), world=quiet).metrics["last_s"] == 0.0
    assert run(Loud(), problem=AskAll(), world=heard).metrics["last_s"] == pytest.approx(3 * MS)


class Grinder(Worker):
    """Computes for a second, and says when that was over."""

    async def main(self):
        await self.compute(grind)
        self.emit(ended_s=self.now)

    @rpc
    async def hear(self) -> float:
        return self.now


@cost(bytes=1e9)
def grind():
    return 0


def grinders(cores, **costs):
    """A world in which `grind` takes a second of a core."""
    one = world(3, cores=cores, **costs)
    slow = one.machine_of(0).replace(memory_Bps=1e9, accelerators=())
    return one.replace(machines={"slow": slow}, groups=(one.groups[0].replace(machine="slow"),))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("cores", "ends_s"), [(1, [1, 2, 3]), (2, [1, 1, 2]), (3, [1, 1, 1])])
def test_what_nodes_compute_waits_for_the_cores(kernel, cores, ends_s):
    made = run(Grinder(), world=grinders(cores), kernel=kernel)
    assert sorted(r.values["ended_s"] for r in made.records) == pytest.approx(ends_s)


def test_a_message_waits_for_a_node_that_computes():
    class AskOne(Problem):
        async def drive(self, driver):
            return await driver.ask(0, Grinder.hear)

        def measure(self, outcome):
            return {"heard_s": outcome.driven}

    busy = grinders(3, receive=Cost(fixed_s=MS))
    made = run(Grinder(), problem=AskOne(), world=busy)
    assert made.metrics["heard_s"] == pytest.approx(1.0 + MS)


def test_a_straggler_waits_beside_the_core():
    # The first node is done after four seconds, of which it held the core for one.
    slow = grinders(1).with_faults(Straggler(node=0, factor=4.0, p=1.0))
    made = run(Grinder(), world=slow)
    ends_s = {r.node: r.values["ended_s"] for r in made.records}
    assert ends_s == pytest.approx({0: 4.0, 1: 2.0, 2: 3.0})
