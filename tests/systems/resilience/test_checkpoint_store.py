"""`CheckpointStore`: checkpoints in a real folder, and every way in which one can be damaged."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from orrery.base.errors import UsageError
from orrery.base.rand import Stream
from orrery.systems.resilience.datastates_llm import CheckpointStore
from orrery.systems.resilience.problems import shards
from orrery.systems.resilience.problems.shards import (
    CheckpointError,
    DamagedShard,
    Layout,
    Manifest,
    MissingManifest,
    StorageFull,
    TruncatedShard,
    UnknownVersion,
    WrongShape,
    seal,
    unseal,
)

STATE = {
    "weights": np.arange(600, dtype=np.float32).reshape(20, 30),
    "bias": np.array(2.5),
    "none": np.empty((0, 3)),
    "count": np.arange(5, dtype=np.int16),
}


def files(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_what_was_saved_is_loaded(tmp_path):
    store = CheckpointStore(tmp_path)
    assert store.save(4, STATE, b"rest") and store.newest() == 4
    arrays, small = store.load(4)
    assert small == b"rest" and list(arrays) == list(STATE)
    for name, array in STATE.items():
        np.testing.assert_array_equal(arrays[name], array)
        assert arrays[name].dtype == array.dtype and arrays[name].shape == array.shape
    # The bytes of a tensor lie raw in the shard, where the layout said they would.
    raw = (tmp_path / "it000000004" / "rank0000.shard").read_bytes()
    assert raw[: STATE["weights"].nbytes] == STATE["weights"].tobytes()


def test_it_counts_only_when_all_ranks_are_safe(tmp_path):
    first = CheckpointStore(tmp_path, rank=0, size=2)
    second = CheckpointStore(tmp_path, rank=1, size=2)
    assert not first.save(1, STATE) and first.newest() is None
    with pytest.raises(MissingManifest, match="never completed"):
        first.load(1)
    assert second.save(1, {"other": np.ones(3)})
    assert first.newest() == second.newest() == 1
    assert first.load(1, rank=1)[0]["other"].tolist() == [1, 1, 1]


def test_old_ones_and_leftovers_go(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    for iteration in range(1, 6):
        store.begin(100 + iteration, Layout.of(STATE)).abandon()
        store.save(iteration, STATE)
    assert store.complete() == [5, 4]
    assert files(tmp_path) == [
        f"it00000000{i}/{name}" for i in (4, 5)
        for name in ("manifest", "rank0000.record", "rank0000.shard")
    ]  # fmt: skip
    torn = store.begin(6, Layout.of(STATE))
    torn.append(b"half")
    store.save(7, STATE)
    assert store.complete() == [7, 5] and not (tmp_path / "it000000006").exists()


def damage(path, how):
    if how == "missing":
        path.unlink()
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:-3])
    elif how == "empty":
        path.write_bytes(b"")
    else:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(bytes(data))


@pytest.mark.works_when("datastates-llm", 5)
@pytest.mark.parametrize(
    ("name", "how", "error"),
    [
        ("rank0001.shard", "cut", TruncatedShard),
        ("rank0001.shard", "empty", TruncatedShard),
        ("rank0001.shard", "missing", TruncatedShard),
        ("rank0000.shard", "flip", DamagedShard),
        ("rank0000.record", "cut", TruncatedShard),
        ("rank0001.record", "missing", TruncatedShard),
        ("rank0000.record", "flip", DamagedShard),
        ("manifest", "missing", MissingManifest),
        ("manifest", "cut", TruncatedShard),
        ("manifest", "flip", DamagedShard),
    ],
)
def test_the_one_before_is_used_and_the_damage_is_told(tmp_path, name, how, error):
    stores = [CheckpointStore(tmp_path, rank=rank, size=2) for rank in range(2)]
    for iteration in (1, 2):
        for store in stores:
            store.save(iteration, STATE)
    damage(tmp_path / "it000000002" / name, how)
    for store in stores:
        told = []
        assert store.newest(told) == 1
        assert [iteration for iteration, _ in told] == [2]
        assert type(told[0][1]) is error and str(tmp_path) in str(told[0][1])


def test_an_unknown_version_is_named(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path)
    store.save(1, STATE)
    newer = seal(Manifest(iteration=2, shards=(), version=7))
    store.save(2, STATE)
    (tmp_path / "it000000002" / "manifest").write_bytes(newer)
    with pytest.raises(UnknownVersion, match="version 7, this program reads 1"):
        store.verify(2)
    assert store.newest() == 1
    assert shards.VERSION == 1


def test_other_ranks_and_other_shapes_are_refused(tmp_path):
    CheckpointStore(tmp_path).save(1, STATE)
    with pytest.raises(WrongShape, match="as many ranks"):
        CheckpointStore(tmp_path, rank=1, size=2).load(1)
    mine = Layout.of({"weights": np.zeros((30, 20), np.float32)})
    with pytest.raises(WrongShape, match=r"weights.*float32\[20, 30\].*float32\[30, 20\]"):
        Layout.of({"weights": STATE["weights"]}).must_fit(mine)
    with pytest.raises(WrongShape, match="none"):
        Layout.of(STATE).must_fit(mine)


@pytest.mark.works_when("datastates-llm", 5)
def test_a_full_disk_is_named_and_leaves_nothing_behind(tmp_path):
    """The kernel itself refuses: no file of this process may grow beyond a kilobyte."""
    store = CheckpointStore(tmp_path)
    store.save(1, STATE)
    before = files(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, limits[1]))
    try:
        with pytest.raises(StorageFull, match="no room"):
            store.save(2, STATE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert files(tmp_path) == before and not (tmp_path / "it000000002").exists()
    assert store.newest() == 1
    assert store.save(2, STATE) and store.newest() == 2


class FullAtTheManifest(CheckpointStore):
    def write_whole(self, path, data):
        if path.name == "manifest":
            raise OSError(28, "No space left on device")
        super().write_whole(path, data)


def test_no_room_for_the_manifest(tmp_path):
    CheckpointStore(tmp_path).save(1, STATE)
    store = FullAtTheManifest(tmp_path)
    with pytest.raises(StorageFull, match="manifest of iteration 2"):
        store.save(2, STATE)
    assert store.newest() == 1 and not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("data", [b"", b"x", b"orck", seal(Manifest(iteration=1, shards=()))[:-1]])
def test_torn_frames_are_named(data):
    with pytest.raises(CheckpointError):
        unseal(data, Manifest, "m")


def test_bad_input_is_named(tmp_path):
    for knobs in ({"rank": -1}, {"size": 0}, {"keep": 0}, {"rank": 2, "size": 2}, {"keep": "all"}):
        with pytest.raises(UsageError, match="CheckpointStore"):
            CheckpointStore(tmp_path, **knobs)
    store = CheckpointStore(tmp_path)
    for iteration in (-1, 10**9, 1.5, "1", True):
        with pytest.raises(UsageError, match="iteration"):
            store.save(iteration, STATE)
    plain = tmp_path / "file"
    plain.write_text("x")
    with pytest.raises(UsageError, match="give a folder"):
        CheckpointStore(plain)


SAVES = """
import sys
import numpy as np
from orrery.systems.resilience.datastates_llm import CheckpointStore
store = CheckpointStore(sys.argv[1])
first = store.newest() or 0
print("ready", flush=True)
for iteration in range(first + 1, 10**6):
    store.save(iteration, {"w": np.full(200_000, iteration)}, str(iteration).encode())
"""


@pytest.mark.works_when("datastates-llm", 1)
def test_a_process_that_saves_for_ever_is_killed_and_one_iteration_is_whole(tmp_path):
    rng, before = Stream(3, "kills", "instants"), 0
    for _ in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", SAVES, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout.readline() == "ready\n"
        time.sleep(rng.uniform(0.02, 0.15))
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        store = CheckpointStore(tmp_path)
        newest = store.newest()
        if newest is None:  # it was killed before its first save
            assert before == 0
            continue
        assert newest >= before
        arrays, small = store.load(newest)
        assert small == str(newest).encode() and set(arrays["w"].tolist()) == {newest}
        before = newest
    assert before > 0
