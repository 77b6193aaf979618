"""The bulk lane of the processes engine: its checksum, its memory, arrays given away."""

from __future__ import annotations

import contextlib
import os

import numpy as np
import pytest

from orrery import World, run
from orrery.base.errors import DeadlineExceeded, PartError, WorldError
from orrery.engines.memory import check_memory
from orrery.engines.processes.bulk import Pool
from orrery.engines.processes.checksum import Checksum, add_columns, add_columns_py, checksum
from orrery.engines.processes.outflow import BITE_B, TRAILER, bursts
from orrery.parts import Node


@pytest.mark.parametrize("size_B", [0, 1, 7, 4095, 4096, 4097, 70_000])
def test_a_flipped_bit_changes_the_checksum(size_B):
    rng = np.random.default_rng(size_B)
    data = rng.integers(0, 256, size_B, dtype=np.uint8)
    right = checksum(data)
    assert checksum(data.copy()) == right
    for bit in rng.integers(0, max(8 * size_B, 1), 40 if size_B else 0):
        wrong = data.copy()
        wrong[bit // 8] ^= 1 << (bit % 8)
        assert checksum(wrong) != right
    if size_B:
        assert checksum(data[:-1]) != right


@pytest.mark.parametrize("size_B", [0, 255, 256, 257, 4096, 4352, 70_001])
def test_the_compiled_sums_are_those_of_numpy(size_B):
    data = memoryview(np.random.default_rng(size_B).bytes(size_B + 3))[3:]  # any alignment
    sums, twin = bytearray(b"\xff" * 256), bytearray(b"\xff" * 256)
    add_columns(data, sums)
    add_columns_py(data, twin)
    assert sums == twin


def test_a_checksum_grows_with_its_bytes():
    data = memoryview(np.random.default_rng(1).bytes(9000))
    growing = Checksum(data)
    for filled in (0, 1, 255, 256, 300, 4000, 4001, 8999):
        growing.reach(filled)
    assert growing.value() == checksum(data)


def test_memory_is_used_again_only_when_nobody_holds_it():
    pool, shape, kind = Pool(), (100_000,), np.dtype("float32")
    first = pool.array(shape, kind)
    first[:] = 1.0
    part = first[10:20]
    second = pool.array(shape, kind)
    second[:] = 2.0
    assert not np.shares_memory(first, second)
    address = first.ctypes.data
    del first
    third = pool.array(shape, kind)  # a view of the first is still held
    third[:] = 3.0
    assert (part == 1.0).all() and (second == 2.0).all()
    del part
    assert pool.array(shape, kind).ctypes.data == address


@pytest.mark.parametrize("shape", [(), (0,), (3, 5), (300, 401)])
def test_arrays_of_any_shape_come_from_the_pool(shape):
    made = Pool().array(shape, np.dtype("int16"))
    assert made.shape == shape and made.dtype == np.int16 and made.flags.writeable


class Giver(Node):
    """Node 0 gives an array away and does not change it; node 1 changes what it got."""

    async def main(self):
        if self.id == 0:
            array = np.arange(300_000.0)
            await self.transfer(1, array, "x", owned=True)
            await self.sleep(0.05)
            self.emit(kept=bool((array == np.arange(300_000.0)).all()))
        else:
            got = await self.receive(0, "x")
            self.emit(right=bool((got == np.arange(300_000.0)).all()))
            got[:] = -1.0


HOW = [("virtual", {}), *(("processes", {"nodes_per_process": k}) for k in (1, 2))]


@pytest.mark.parametrize(("engine", "options"), HOW)
def test_what_is_given_away_arrives_and_is_not_shared(engine, options):
    made = run(Giver(), world=World.lan(2), engine=engine, **options)
    assert {k: v for r in made.records for k, v in r.values.items()} == {
        "right": True,
        "kept": True,
    }


class Spreader(Node):
    """Node 0 sends arrays under tags that name connections, and counts its sockets."""

    ways: int = 1

    async def main(self):
        names = [f"x#{k}" for k in range(self.ways)]
        if self.id == 0:
            before = sockets()
            await self.all(*(self.transfer(1, np.full(9, k), n) for k, n in enumerate(names)))
            self.emit(opened=sockets() - before)
        else:
            got = [int((await self.receive(0, name))[0]) for name in names]
            self.emit(right=got == list(range(self.ways)))


def sockets():
    found = set()  # a socket may have two descriptors
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/self/fd/{name}"))
    return sum(what.startswith("socket:") for what in found)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts sockets by /proc")
def test_a_tag_may_name_one_of_several_connections():
    opened = {}
    for ways in (1, 5):
        made = run(Spreader(ways=ways), world=World.lan(2), engine="processes", nodes_per_process=1)
        told = {k: v for r in made.records for k, v in r.values.items()}
        assert told["right"]
        opened[ways] = told["opened"]
    assert opened[5] - opened[1] == 4


class Sender(Node):
    """Node 0 sends one large array."""

    async def main(self):
        if self.id == 0:
            began_s = self.now
            await self.transfer(1, np.zeros(10_000_000, np.uint8), "x")
            self.emit(took_s=self.now - began_s)


def test_a_window_limits_what_one_connection_carries():
    plain = World.lan(2, latency_s=0.05, bandwidth_Bps=1e9, jitter=0.0)
    narrow = World.lan(2, latency_s=0.05, bandwidth_Bps=1e9, jitter=0.0, window_B=1e6)
    took = [
        next(r.values["took_s"] for r in run(Sender(), world=world).records)
        for world in (plain, narrow)
    ]  # fmt: skip
    assert took == pytest.approx([0.05 + 0.01, 0.05 + 10_000_000 / (1e6 / 0.1)], rel=1e-6)
    assert "window_B" not in plain.to_data()["network"]  # so that hashes stay what they were
    assert World.from_toml(narrow.to_toml()) == narrow and narrow.hash != plain.hash
    for bad in (0.0, -1.0, float("nan")):
        with pytest.raises(WorldError, match="window_B"):
            World.lan(2, window_B=bad)


class Filler(Node):
    """Node 0 sends three arrays of one tag; node 1 receives them in its own memory."""

    async def main(self):
        if self.id == 0:
            for number in range(3):
                await self.transfer(1, np.full(200_000, float(number)), "x")
            return
        memory = np.full((2, 200_000), -1.0)
        first = await self.receive(0, "x", memory[0])
        await self.sleep(0.02)  # the second array waits in the inbox meanwhile
        second = await self.receive(0, "x", memory[1])
        self.emit(inside=first.base is memory and second.base is memory)
        self.emit(values=memory[:, [0, -1]].tolist())
        self.emit(third=float((await self.receive(0, "x"))[0]))


@pytest.mark.parametrize(("engine", "options"), HOW)
def test_arrays_come_into_memory_that_is_given(engine, options):
    made = run(Filler(), world=World.lan(2), engine=engine, **options)
    assert {k: v for r in made.records for k, v in r.values.items()} == {
        "inside": True,
        "values": [[0.0, 0.0], [1.0, 1.0]],
        "third": 2.0,
    }


class Folder(Node):
    """Node 1 adds what comes to what it has: where it waits for it, and where it lies there."""

    async def main(self):
        items = 700_003  # several bites, and a last one of odd length
        if self.id == 0:
            for number in range(2):
                await self.transfer(1, np.arange(items) + float(number), "x")
            return
        own, total = np.full(items, 0.5), np.empty((2, items))
        await self.receive(0, "x", total[0], fold=(np.subtract, own))
        await self.sleep(0.02)
        got = await self.receive(0, "x", total[1], fold=(np.subtract, own))
        right = np.arange(items) - 0.5
        self.emit(first=bool((total[0] == right).all()), second=bool((total[1] == right + 1).all()),
                  inside=got.base is total, own=bool((own == 0.5).all()))  # fmt: skip


@pytest.mark.parametrize(("engine", "options"), HOW)
def test_arrays_are_folded_as_they_come(engine, options):
    made = run(Folder(), world=World.lan(2), engine=engine, **options)
    told = {k: v for r in made.records for k, v in r.values.items()}
    assert told == {"first": True, "second": True, "inside": True, "own": True}


@pytest.mark.parametrize("size_B", [0, 1, BITE_B - 1, BITE_B, BITE_B + 1, 3 * BITE_B + 7])
def test_an_array_leaves_in_bites_with_its_checksum_behind(size_B):
    raw = memoryview(np.random.default_rng(1).bytes(size_B))
    made = list(bursts(b"head", raw))
    assert len(made) == max(1, -(-size_B // BITE_B))
    sent = b"".join(bytes(part) for burst in made for part in burst)
    assert sent == b"head" + bytes(raw) + (TRAILER.pack(checksum(raw)) if size_B else b"")


class GivesUp(Node):
    """Node 1 offers memory, gives up at a random moment, and receives the same array afresh."""

    folds: bool = False

    async def main(self):
        if self.id == 0:
            for number in range(40):
                await self.transfer(1, np.full(60_000 + number, float(number)), "x")
            return
        wrong = 0
        for number in range(40):
            memory = np.full(60_000 + number, -1.0)
            try:
                async with self.deadline(1e-9 + float(self.rng.random()) * 4e-4):
                    fold = (np.add, np.zeros_like(memory)) if self.folds else None
                    got = await self.receive(0, "x", memory, fold=fold)
            except DeadlineExceeded:
                memory[:] = -2.0  # whatever is still coming must not land here
                got = await self.receive(0, "x")
                await self.sleep(1e-3)
                wrong += int((memory != -2.0).any())
            wrong += int((got != float(number)).any())
        self.emit(wrong=wrong)


@pytest.mark.parametrize("folds", [False, True])
@pytest.mark.parametrize(("engine", "options"), HOW)
def test_whoever_gives_up_keeps_his_memory_and_loses_no_array(engine, options, folds):
    made = run(GivesUp(folds=folds), world=World.lan(2), engine=engine, **options)
    assert [r.values["wrong"] for r in made.records] == [0]


def _frozen():
    memory = np.zeros(4)
    memory.flags.writeable = False
    return memory


class Unfit(Node):
    """Node 1 offers memory that does not fit."""

    offer: str = ""

    async def main(self):
        if self.id == 0:
            await self.first(self.transfer(1, np.zeros(4), "x"), self.sleep(0.5))
            return
        into = {
            "list": [0.0] * 4, "short": np.zeros(3), "type": np.zeros(4, np.float32),
            "strided": np.zeros(8)[::2], "frozen": _frozen(),
        }[self.offer]  # fmt: skip
        try:
            await self.receive(0, "x", into)
        except PartError as error:
            self.emit(said=str(error))


@pytest.mark.parametrize("offer", ["list", "short", "type", "strided", "frozen"])
@pytest.mark.parametrize("engine", ["virtual", "processes"])
def test_memory_that_does_not_fit_is_refused(engine, offer):
    made = run(Unfit(offer=offer), world=World.lan(2), engine=engine)
    said = made.records[0].values["said"]
    assert said.startswith("receive(into=") and ("give" in said or "must be" in said)


FOLDS = {
    "no pair": np.add, "no ufunc": (max, np.zeros(4)), "one array": (np.sqrt, np.zeros(4)),
    "shape": (np.add, np.zeros(3)), "kind": (np.add, np.zeros(4, np.float32)),
    "list": (np.add, [1]),
}  # fmt: skip


@pytest.mark.parametrize("fold", FOLDS)
def test_a_fold_that_does_not_fit_is_refused(fold):
    with pytest.raises(PartError, match=r"receive\(fold="):
        check_memory(np.zeros(4), FOLDS[fold])
    with pytest.raises(PartError, match="give into="):
        check_memory(None, (np.add, np.zeros(4)))
