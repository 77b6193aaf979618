"""Pieces of the processes engine that need no process: links, clocks, disks, grouping."""

import asyncio

import pytest

from orrery.base.errors import DiskError, PartError
from orrery.engines.processes.arena import Arena
from orrery.engines.processes.bill import rent
from orrery.engines.processes.clock import SkewedClock
from orrery.engines.processes.disk import RealDisk
from orrery.engines.processes.faults import signalled
from orrery.engines.processes.kernel import Kernel
from orrery.engines.processes.place import capped
from orrery.engines.processes.shim import Shim
from orrery.engines.processes.spec import Counters, RunSpec, group_nodes
from orrery.parts import Driver, Node
from orrery.world import (
    ClockJump,
    Clog,
    Crash,
    Drop,
    Hang,
    Partition,
    Pause,
    PriceJump,
    Reorder,
    Slow,
    World,
)

MS = 1_000_000


def spec_of(world, folder, seed=1, raw=False):
    cast = [("node", Node())] * world.size
    return RunSpec(
        world=world, seed=seed, cast=cast, groups=[(n,) for n in range(world.size)],
        faults=world.schedule(seed), folder=str(folder), arenas=str(folder), secret=b"s" * 32,
        host="127.0.0.1", raw=raw, max_frame_B=1 << 20, driver=Driver(),
    )  # fmt: skip


def shim_of(world, folder, **options):
    spec = spec_of(world, folder, **options)
    counters = Counters(spec.folder, 3, 0, len(spec.faults))
    return Shim(spec, 0, 0, counters), counters


def test_the_world_s_figures_are_added_at_the_sender(tmp_path):
    world = World.lan(3, latency_s=0.01, jitter=0.0, bandwidth_Bps=1e6)
    shim, _ = shim_of(world, tmp_path)
    (copy,) = shim.copies(0, 1, 1000, 0)
    assert copy.due_ns == 11 * MS  # one millisecond on the wire, ten on the way
    (second,) = shim.copies(0, 2, 1000, 0)
    assert second.due_ns == 12 * MS  # it waited for the first at the NIC
    assert shim.copies(0, 0, 1000, 5)[0].due_ns == 5  # to oneself at once
    raw, _ = shim_of(world, tmp_path, raw=True)
    assert raw.copies(0, 1, 1000, 7)[0].due_ns == 7


def test_jitter_keeps_the_order_and_the_seed_decides(tmp_path):
    world = World.lan(2, latency_s=0.01, jitter=1.0)
    runs = []
    for seed in (1, 1, 2):
        shim, _ = shim_of(world, tmp_path, seed=seed)
        runs.append([shim.copies(0, 1, 64, i * 1000)[0].due_ns for i in range(50)])
    assert runs[0] == runs[1] != runs[2]
    assert runs[0] == sorted(runs[0]) and len(set(runs[0])) == 50


def test_loss_spares_the_driver(tmp_path):
    shim, _ = shim_of(World.lan(2, drop=1.0), tmp_path)
    assert shim.copies(0, 1, 64, 0) == []
    assert len(shim.copies(0, 2, 64, 0)) == 1 and len(shim.copies(2, 0, 64, 0)) == 1


def test_rounds_end_together(tmp_path):
    shim, _ = shim_of(World.rounds(2, round_s=1.0), tmp_path)
    assert shim.copies(0, 1, 64, 300 * MS)[0].due_ns == 1000 * MS - 1


def test_faults_apply_in_their_time_and_are_counted(tmp_path):
    world = World.lan(3, latency_s=0.001, jitter=0.0).with_faults(
        Partition(node=1, at_s=1.0, until_s=2.0),
        Clog(link=(0, 2), delay_s=0.5),
        Drop(p=1.0, node=1),
    )
    shim, counters = shim_of(world, tmp_path)
    (late,) = shim.copies(0, 2, 64, 0)
    assert late.due_ns > 501 * MS
    assert shim.copies(0, 1, 64, 0) == []
    assert shim.copies(1, 2, 64, 1500 * MS) == []
    kinds = [fault.kind for fault in world.schedule(1)]
    fired = {kind: counters.fired(i) for i, kind in enumerate(kinds)}
    assert fired["Clog"] == 1 and fired["Drop"] >= 1
    counters.close()


def test_what_is_held_back_may_be_overtaken(tmp_path):
    world = World.lan(2, latency_s=0.001, jitter=0.0).with_faults(Reorder(p=0.5, spread_s=0.1))
    shim, _ = shim_of(world, tmp_path)
    due = [shim.copies(0, 1, 64, i * MS)[0].due_ns for i in range(40)]
    assert due != sorted(due)


def test_a_cut_link_holds_an_array_until_it_heals(tmp_path):
    world = World.lan(2, latency_s=0.001, bandwidth_Bps=1e6).with_faults(
        Partition(node=1, at_s=1.0, until_s=2.0)
    )
    shim, _ = shim_of(world, tmp_path)
    assert shim.bulk_due(0, 1, 1000, 0) == pytest.approx(2 * MS, rel=0.2)
    assert shim.bulk_due(0, 1, 1000, 1500 * MS) >= 2000 * MS
    forever, _ = shim_of(World.lan(2).with_faults(Partition(node=1)), tmp_path)
    assert forever.bulk_due(0, 1, 1000, 0) >= 1 << 62


def test_clocks_are_a_function_of_time_alone(tmp_path):
    world = World.lan(2).with_faults(ClockJump(node=0, at_s=1.0, jump_s=-3.0))
    world = world.with_param("clocks.skew_s", 0.5).with_param("clocks.drift", 0.01)
    spec = spec_of(world, tmp_path)
    counters = Counters(spec.folder, 3, 0, 1)
    one, again = (SkewedClock(spec, 0, counters) for _ in range(2))
    assert one.read(2.0) == again.read(2.0)
    assert one.read(2.0) - one.read(0.9) == pytest.approx(1.1 - 3.0, abs=0.05)
    assert counters.fired(0) == 3
    other = SkewedClock(spec, 1, counters)
    assert abs(other.read(0.0)) <= 0.5 and other.read(0.0) != one.read(0.0)


def test_nodes_that_a_signal_hits_live_alone():
    world = World.lan(40).with_faults(
        Crash(node=(3, 7), at_s=1.0), Pause(node=5), Slow(node=9, factor=2.0), Hang(node=11)
    )
    alone = signalled(world.schedule(0))
    assert alone == {3, 7, 5, 9}
    groups = group_nodes(40, alone, None)
    assert sorted(n for group in groups for n in group) == list(range(40))
    assert all((n,) in groups for n in alone) and len(groups) <= 20
    assert group_nodes(5, frozenset(), None) == [(0,), (1,), (2,), (3,), (4,)]
    assert group_nodes(5, frozenset({1}), 10) == [(1,), (0, 2, 3, 4)]


def test_rent_follows_the_price_jumps(tmp_path):
    machine = World.lan(2).machines["server"].replace(price_per_h=3600.0)
    world = World.lan(2).with_(machines={"server": machine})
    jumped = world.with_faults(PriceJump(factor=3.0, at_s=1.0, until_s=2.0))
    counters = Counters(str(tmp_path), 1, 0, 1)
    accelerators = sum(item.price_per_h or 0.0 for item in machine.accelerators)
    per_s = 2 * (3600.0 + accelerators) / 3600.0
    assert rent(world, 4.0, (), counters) == pytest.approx(4 * per_s)
    assert rent(jumped, 4.0, jumped.faults, counters) == pytest.approx(6 * per_s)
    assert counters.fired(0) == 1


def test_a_power_cap_slows_in_proportion_above_idle():
    machine = World.lan(1).machine_of(0)
    half = (machine.idle_W + machine.active_W) / 2
    assert capped(machine, half) == pytest.approx(2.0)
    assert capped(machine, machine.active_W + 1) == 1.0


def test_an_arena_has_one_size_and_one_content(tmp_path):
    one, two = (Arena.open(str(tmp_path), "a/b", 16) for _ in range(2))
    with one.locked():
        one[:3] = b"abc"
    assert two[:3] == b"abc" and len(two) == 16
    with pytest.raises(PartError, match="has 16 bytes, not 8"):
        Arena.open(str(tmp_path), "a/b", 8)
    for bad in (0, -1, 1.5, True):
        with pytest.raises(PartError, match="size"):
            Arena.open(str(tmp_path), "bad", bad)
    one.shut()
    two.shut()


def test_disk_names_are_checked_and_cannot_leave_the_folder(tmp_path):
    loop = asyncio.new_event_loop()
    spec = spec_of(World.lan(1), tmp_path)
    kernel = Kernel(loop, lambda host, error: None, lambda *words: None)
    disk = RealDisk(spec, 0, kernel, Counters(spec.folder, 3, 0, 0), 0)

    def do(coro):
        with pytest.raises(StopIteration) as end:  # nothing here waits
            coro.send(None)
        return end.value.value

    for name in ("../../escape", "a/b", ".", "..", "ü ü", "%2e"):
        do(disk.write(name, name.encode()))
        assert do(disk.read(name)) == name.encode()
    assert disk.names() == sorted(["../../escape", "a/b", ".", "..", "ü ü", "%2e"])
    assert not (tmp_path.parent / "escape").exists()
    do(disk.append("a/b", b"!"))
    assert do(disk.read("a/b")) == b"a/b!"
    do(disk.delete("a/b"))
    assert not disk.exists("a/b")
    for coro in (disk.read("a/b"), disk.delete("a/b"), disk.read(""), disk.write("x" * 300, b""),
                 disk.write("x", "text"), disk.fsync("never")):  # fmt: skip
        with pytest.raises(DiskError):
            coro.send(None)
    kernel.close()
    loop.close()
