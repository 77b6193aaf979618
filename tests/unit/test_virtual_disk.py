"""The modelled disk: time, queueing, what a crash leaves, and what faults do to data."""

from __future__ import annotations

from typing import Any

import pytest

from orrery.base.errors import DiskError, PartError
from orrery.engines.virtual.engine import Engine
from orrery.parts import Node
from orrery.world import (
    BitFlip,
    Crash,
    Disk,
    DiskFull,
    Group,
    Machine,
    MisdirectedWrite,
    TornWrite,
    World,
)

SLOW = Disk(read_Bps=1e6, write_Bps=1e6, latency_s=0.01, fsync_s=0.02, page_B=100, capacity_B=10**6)


def world_of(disk: Disk = SLOW, nodes: int = 1, **fields: Any) -> World:
    group = Group(count=nodes, machine="box")
    return World(groups=(group,), machines={"box": Machine(disk=disk)}, **fields)


def run(body: Any, world: World, seed: int = 0, after_restart: Any = None) -> Any:
    """Run one coroutine on node 0 (another one after its crash); gives the outcome."""

    class Disky(Node):
        async def main(self) -> None:
            if self.incarnation and after_restart is not None:
                await after_restart(self)
            else:
                await body(self)

    return Engine({"node": Disky()}, world=world, seed=seed, kernel="python").run()


def values(outcome: Any, name: str) -> list[Any]:
    return [value for _, _, value in outcome.emitted(name)]


def test_what_is_written_is_read() -> None:
    async def body(node: Any) -> None:
        disk = node.disk
        await disk.write("a", b"one")
        await disk.append("a", b"two")
        await disk.append("b", b"new")
        node.emit(got=[await disk.read("a"), await disk.read("b"), disk.names(), disk.exists("c")])
        await disk.write("a", b"x")
        await disk.delete("b")
        node.emit(got=[await disk.read("a"), disk.names(), disk.exists("b")])

    first, second = values(run(body, world_of()), "got")
    assert first == [b"onetwo", b"new", ["a", "b"], False]
    assert second == [b"x", ["a"], False]


def test_time_is_latency_plus_bytes_over_bandwidth() -> None:
    async def body(node: Any) -> None:
        times = [node.now]
        await node.disk.write("a", bytes(10_000))
        times.append(node.now)
        await node.disk.fsync("a")
        times.append(node.now)
        await node.disk.read("a")
        times.append(node.now)
        node.emit(times=times)

    (times,) = values(run(body, world_of()), "times")
    assert times == pytest.approx([0.0, 0.02, 0.04, 0.06])


def test_one_disk_serves_one_operation_at_a_time() -> None:
    async def body(node: Any) -> None:
        await node.all(*(node.disk.write(str(i), bytes(10_000)) for i in range(4)))
        node.emit(end=node.now)

    assert values(run(body, world_of()), "end") == pytest.approx([0.08])


CRASH = Crash(node=0, at_s=1.0, until_s=1.5)


def survivors(seed: int, *faults: Any) -> bytes | None:
    """What is left of ten unsynced writes after a synced one."""

    async def body(node: Any) -> None:
        await node.disk.append("log", b"0123456789")
        await node.disk.fsync("log")
        for i in range(10):
            await node.disk.append("log", bytes([65 + i]) * 30)
        await node.sleep(10)

    async def again(node: Any) -> None:
        node.emit(found=await node.disk.read("log") if node.disk.exists("log") else None)

    world = world_of(faults=(CRASH, *faults))
    (found,) = values(run(body, world, seed, again), "found")
    return found  # type: ignore[no-any-return]


def test_synced_data_always_survive_and_the_rest_as_a_prefix() -> None:
    whole = b"0123456789" + b"".join(bytes([65 + i]) * 30 for i in range(10))
    found = [survivors(seed) for seed in range(30)]
    for one in found:
        assert one is not None and one.startswith(b"0123456789")
        assert whole.startswith(one)
        assert (len(one) - 10) % 30 == 0, "without TornWrite an append survives whole or not"
    assert len({len(one) for one in found if one}) > 3, "the prefix is drawn from the seed"
    assert any(one != whole for one in found), "a crash must be able to lose unsynced writes"


def test_a_torn_write_leaves_a_part() -> None:
    torn = [survivors(seed, TornWrite(node=0, p=1.0)) for seed in range(20)]
    assert any((len(one or b"") - 10) % 30 for one in torn)
    assert all((one or b"").startswith(b"0123456789") for one in torn)


def test_a_torn_replacement_keeps_whole_pages_of_the_new_and_the_old_beyond() -> None:
    async def body(node: Any) -> None:
        await node.disk.write("a", b"o" * 300)
        await node.disk.fsync("a")
        await node.disk.write("a", b"n" * 300)
        await node.sleep(10)

    async def again(node: Any) -> None:
        node.emit(found=await node.disk.read("a"))

    world = world_of(faults=(CRASH, TornWrite(node=0, p=1.0)))
    found = {values(run(body, world, seed, again), "found")[0] for seed in range(12)}
    assert found <= {b"n" * 300, b"n" * 100 + b"o" * 200, b"n" * 200 + b"o" * 100}
    assert len(found) > 1


def test_an_unsynced_file_and_an_unsynced_deletion_may_be_undone() -> None:
    async def body(node: Any) -> None:
        await node.disk.write("old", b"old")
        await node.disk.fsync("old")
        await node.disk.write("new", b"new")
        await node.disk.delete("old")
        await node.sleep(10)

    async def again(node: Any) -> None:
        node.emit(names=node.disk.names())

    world = world_of(faults=(CRASH,))
    found = {tuple(values(run(body, world, seed, again), "names")[0]) for seed in range(30)}
    assert found == {("old",), ("new", "old"), ("new",), ()}


def test_a_synced_deletion_stays() -> None:
    async def body(node: Any) -> None:
        await node.disk.write("old", b"old")
        await node.disk.fsync("old")
        await node.disk.delete("old")
        await node.disk.fsync("old")
        await node.sleep(10)

    async def again(node: Any) -> None:
        node.emit(names=node.disk.names())

    for seed in range(8):
        assert values(run(body, world_of(faults=(CRASH,)), seed, again), "names") == [[]]


def test_an_fsync_cut_off_by_the_crash_promises_nothing() -> None:
    async def body(node: Any) -> None:
        await node.disk.write("a", b"data")
        await node.sleep(1.0 - node.now - 0.005)
        await node.disk.fsync("a")  # takes 20 ms, and the crash comes after 5
        node.emit(synced=True)

    async def again(node: Any) -> None:
        node.emit(found=node.disk.exists("a"))

    found = set()
    for seed in range(12):
        outcome = run(body, world_of(faults=(CRASH,)), seed, again)
        assert values(outcome, "synced") == []
        found |= set(values(outcome, "found"))
    assert found == {True, False}


def test_old_writes_are_written_back() -> None:
    async def body(node: Any) -> None:
        for _ in range(1100):
            await node.disk.append("log", b"x")
        await node.sleep(100)

    async def again(node: Any) -> None:
        node.emit(found=len(await node.disk.read("log")))

    world = world_of(faults=(Crash(node=0, at_s=20.0, until_s=21.0),))
    for seed in range(4):
        assert 1100 - 1024 <= values(run(body, world, seed, again), "found")[0] <= 1100


async def _write_twice(node: Any) -> None:
    for data in (b"first", b"second"):
        try:
            await node.disk.write("a", data)
            node.emit(wrote=data)
        except DiskError as error:
            node.emit(error=str(error))
        await node.sleep(1.0)


def test_disk_full_refuses_before_any_byte() -> None:
    outcome = run(_write_twice, world_of(faults=(DiskFull(node=0, at_s=0.5, until_s=2.0),)))
    assert values(outcome, "wrote") == [b"first"]
    (error,) = values(outcome, "error")
    assert "disk of node 0 is full" in error and "'a'" in error
    assert values(run(_write_twice, world_of()), "error") == []


def test_capacity_is_a_limit() -> None:
    outcome = run(_write_twice, world_of(SLOW.replace(capacity_B=5)))
    assert values(outcome, "wrote") == [b"first"]
    assert "5 of 5 bytes" in values(outcome, "error")[0]


def test_a_misdirected_write_lands_on_another_page() -> None:
    async def body(node: Any) -> None:
        await node.disk.write("a", b"o" * 200)
        await node.sleep(1.0)
        await node.disk.write("a", b"n" * 50)
        node.emit(found=await node.disk.read("a"))

    world = world_of(faults=(MisdirectedWrite(node=0, p=1.0, at_s=0.5),))
    for seed in range(6):
        (found,) = values(run(body, world, seed), "found")
        assert found.startswith(b"o" * 50), "the old bytes stay where the new ones should be"
        assert found.find(b"n") % 100 == 0 and found.count(b"n") == 50
    assert values(run(body, world_of()), "found") == [b"n" * 50]


@pytest.mark.parametrize("p", [None, 1.0])
def test_a_flipped_bit_is_one_bit_and_stays(p: float | None) -> None:
    async def body(node: Any) -> None:
        await node.disk.write("a", bytes(64))
        await node.disk.fsync("a")
        await node.sleep(1.0)
        node.emit(found=await node.disk.read("a"))
        await node.sleep(2.0)
        node.emit(found=await node.disk.read("a"))

    fault = BitFlip(node=0, at_s=0.5, until_s=2.0, p=p)
    first, second = values(run(body, world_of(faults=(fault,))), "found")
    assert sum(byte.bit_count() for byte in first) == 1
    assert first == second
    assert values(run(body, world_of()), "found") == [bytes(64), bytes(64)]


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda disk: disk.read("lgo"), "no file 'lgo'; did you mean \"log\"?"),
        (lambda disk: disk.fsync("nothing"), "no file 'nothing'"),
        (lambda disk: disk.delete("x"), "no file 'x'"),
        (lambda disk: disk.write("", b""), "not a file name"),
        (lambda disk: disk.write("a" * 256, b""), "not a file name"),
        (lambda disk: disk.append(7, b""), "not a file name"),
        (lambda disk: disk.write("a", "text"), "given a str; give bytes"),
        (lambda disk: disk.write("a", None), "given a NoneType"),
    ],
)
def test_bad_use_has_a_name(act: Any, says: str) -> None:
    async def body(node: Any) -> None:
        await node.disk.write("log", b"")
        with pytest.raises(DiskError, match=says.replace("?", "\\?")):
            await act(node.disk)
        node.emit(names=node.disk.names())

    assert values(run(body, world_of()), "names") == [["log"]]


def test_an_unhandled_disk_error_ends_the_run_by_name() -> None:
    async def body(node: Any) -> None:
        await node.disk.read("nothing")

    with pytest.raises(PartError, match=r"node 0 failed at .* DiskError"):
        run(body, world_of())
