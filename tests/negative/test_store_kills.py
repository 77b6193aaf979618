"""Kills a comparison at random moments and makes the disk fail: nothing is lost or half-written.

A child runs `compare` and, after each cell that is told to it, writes a line to an
acknowledgement log (fsynced), and another line whenever it really makes a run. SIGKILL ends it at
a moment chosen by the seed; the same command then continues.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.unit.lab_toys import Plain, Race, Racer

from orrery import World
from orrery.base.errors import StoreError
from orrery.base.rand import Stream
from orrery.lab import compare
from orrery.lab.run import run
from orrery.lab.spec import spec_of
from orrery.lab.store import Store

ROOT = Path(__file__).parents[2]
SEEDS = 30
CHILD = """
import os, sys
from orrery import World
from orrery.lab import cells, compare, spec
from orrery.lab.store import Store
from tests.unit.lab_toys import Broken, Plain, Race, Racer

root, log, seeds = sys.argv[1], sys.argv[2], int(sys.argv[3])
spec.core_hash = lambda: "fixed while this test runs"
handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def note(*words):
    os.write(handle, (" ".join(map(str, words)) + "\\n").encode())
    os.fsync(handle)

real = Store.save

def save(self, made, told, **more):
    id = real(self, made, told, **more)
    note("made", id)
    return id

Store.save = save
note("start", os.getpid())
parts = {"a": Racer(), "b": Plain(), "c": Broken()}
found = compare(Race(), parts, world=World.lan(2), seeds=seeds, store=Store(root),
                progress=lambda cell, stored: note("ack", stored.id))
note("done", len({id for row in found.rows for id in row.runs}))
"""


def child(root: Path, log: Path) -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-c", CHILD, str(root), str(log), str(SEEDS)]
    return subprocess.Popen(command, env=env, cwd=ROOT, stderr=subprocess.PIPE)


def lines_of(log: Path, word: str) -> list[str]:
    if not log.exists():
        return []
    whole = log.read_text().split("\n")[:-1]
    return [line.split()[1] for line in whole if line.startswith(word + " ")]


def wait_for(process: subprocess.Popen[bytes], log: Path, acks: int) -> bool:
    """Wait until the child has told of so many cells; False when it ended before."""
    while process.poll() is None:
        if len(lines_of(log, "ack")) >= acks:
            return True
        time.sleep(0.001)
    return False


def kill_again_and_again(tmp_path: Path, kills: int, seed: int) -> Counter[str]:
    """Kill so often; returns where the kills struck, as an injector that misses proves nothing."""
    stream = Stream(seed, "test", "kills")
    done_kills, rounds = 0, 0
    struck: Counter[str] = Counter()
    while done_kills < kills:
        rounds += 1
        root, log = tmp_path / f"store{rounds}", tmp_path / f"log{rounds}"
        hurt = 0
        while True:
            # Moments are chosen by progress and not by time, so a busy machine is struck as well.
            # What is already there is told again first, hence the goal beyond what was made.
            goal = (
                len(lines_of(log, "ack")) + len(set(lines_of(log, "ack"))) + stream.randint(0, 12)
            )
            process = child(root, log)
            if done_kills < kills and wait_for(process, log, goal):
                time.sleep(0.008 * stream.random())
                process.send_signal(signal.SIGKILL)
            process.wait()
            told = process.stderr.read().decode() if process.stderr else ""
            if process.returncode == 0:
                break
            assert process.returncode == -signal.SIGKILL, told
            done_kills, hurt = done_kills + 1, hurt + 1
            struck["midway"] += 0 < len(lines_of(log, "ack")) < 3 * SEEDS
            struck["in a save"] += any(root.glob("runs/.tmp-*"))
            verify(root, log, finished=False, kills=hurt)
            if hurt >= 6:
                # This store has been hurt enough: let the command finish.
                process = child(root, log)
                assert process.wait() == 0
                break
        verify(root, log, finished=True, kills=hurt)
    return struck


def verify(root: Path, log: Path, *, finished: bool, kills: int) -> None:
    store = Store(root)
    damaged: list[StoreError] = []
    there = {stored.id for stored in store.ls(damaged.append)}
    assert damaged == []
    assert set(lines_of(log, "ack")) <= there
    made = Counter(lines_of(log, "made"))
    # A run that was saved is never made again, whether or not it was told before the kill.
    assert all(count == 1 for count in made.values())
    # Only the one line between a save and its note can be missing for each kill.
    assert set(made) <= there
    assert len(there) - len(made) <= kills
    store.gc()
    if root.exists():
        assert [name for name in os.listdir(store.runs) if name.startswith(".")] == []
    if finished:
        assert len(there) == 3 * SEEDS
        assert set(lines_of(log, "ack")) == there
        assert lines_of(log, "done")[-1] == str(3 * SEEDS)


def test_a_killed_comparison_continues(tmp_path):
    assert kill_again_and_again(tmp_path, kills=12, seed=1)["midway"] >= 6


@pytest.mark.slow
def test_a_comparison_killed_200_times_continues(tmp_path):
    struck = kill_again_and_again(tmp_path, kills=200, seed=2)
    print(dict(struck))
    assert struck["midway"] >= 100
    assert struck["in a save"] >= 20


# -- a disk that fails


class Failing:
    """Makes the n-th of some os calls fail, and counts them all."""

    NAMES = ("write", "fsync", "rename", "mkdir", "open")

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fail_at: int, code: int) -> None:
        self.calls = 0
        self.fired = False
        for name in self.NAMES:
            monkeypatch.setattr(os, name, self._wrap(getattr(os, name), fail_at, code))

    def _wrap(self, real, fail_at, code):
        def call(*args, **kw):
            self.calls += 1
            if self.calls == fail_at:
                self.fired = True
                raise OSError(code, os.strerror(code))
            return real(*args, **kw)

        return call


def one_run():
    part, problem, world = Racer(), Race(), World.lan(2)
    made = run(part, problem=problem, world=world)
    return made, spec_of(part, problem=problem, world=world)


def calls_of_a_save(tmp_path: Path) -> int:
    made, spec = one_run()
    with pytest.MonkeyPatch.context() as patch:
        counter = Failing(patch, -1, errno.EIO)
        Store(tmp_path / "count").save(made, spec)
    return counter.calls


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EACCES])
def test_no_failing_call_leaves_half_a_run(tmp_path, code):
    made, spec = one_run()
    total = calls_of_a_save(tmp_path)
    assert total > 15
    refused = 0
    for fail_at in range(1, total + 1):
        store = Store(tmp_path / f"{code}-{fail_at}")
        with pytest.MonkeyPatch.context() as patch:
            failing = Failing(patch, fail_at, code)
            try:
                store.save(made, spec)
            except StoreError as error:
                refused += 1
                assert str(store.runs) in str(error)
        assert failing.fired
        names = os.listdir(store.runs) if store.runs.exists() else []
        assert not [name for name in names if name.startswith(".")]
        for name in names:
            assert store.load(name).metrics == made.metrics
        # The disk is well again: the same command succeeds.
        assert store.load(store.save(made, spec)).metrics == made.metrics
    assert refused == total


def test_a_short_write_is_carried_on(tmp_path, monkeypatch):
    made, spec = one_run()
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:5]))
    store = Store(tmp_path)
    assert store.load(store.save(made, spec)).metrics == made.metrics


def test_a_disk_that_takes_nothing_is_full(tmp_path, monkeypatch):
    made, spec = one_run()
    monkeypatch.setattr(os, "write", lambda fd, data: 0)
    with pytest.raises(StoreError, match="free some space"):
        Store(tmp_path).save(made, spec)
    assert os.listdir(tmp_path / "runs") == []


def test_a_comparison_whose_disk_fails_keeps_what_it_had(tmp_path, monkeypatch):
    parts, store = {"a": Racer(), "b": Plain()}, Store(tmp_path)
    told: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        Failing(patch, 70, errno.ENOSPC)
        with pytest.raises(StoreError):
            compare(Race(), parts, world=World.lan(2), seeds=9, store=store,
                    progress=lambda cell, stored: told.append(stored.id))  # fmt: skip
    assert told
    assert set(told) <= {stored.id for stored in store.ls()}
    assert not compare(Race(), parts, world=World.lan(2), seeds=9, store=store).partial
    assert len(store.ls()) == 18


def test_the_checks_above_can_fail(tmp_path, monkeypatch):
    """A store that writes in place is caught by the same injection."""
    made, spec = one_run()

    def in_place(self, id, files, partial):
        folder = self.runs / id
        folder.mkdir(parents=True)
        for name, data in files.items():
            handle = os.open(folder / name, os.O_WRONLY | os.O_CREAT)
            os.write(handle, data)
            os.close(handle)

    monkeypatch.setattr(Store, "_put", in_place)
    with pytest.MonkeyPatch.context() as patch:
        Failing(patch, 6, errno.ENOSPC)
        with pytest.raises(StoreError):
            Store(tmp_path).save(made, spec)
    assert os.listdir(tmp_path / "runs"), "a half-written run is what we expect here"
    with pytest.raises(StoreError):
        Store(tmp_path).load(os.listdir(tmp_path / "runs")[0])


@pytest.mark.parametrize("wrong", ["ack 0000000000", "made {id}", "made 0000000000"])
def test_a_lost_or_repeated_run_is_noticed(tmp_path, wrong):
    """The verification must fail on a log that tells of a loss or of a run made twice."""
    made, spec = one_run()
    id = Store(tmp_path / "s").save(made, spec)
    log = tmp_path / "log"
    log.write_text(f"start 1\nmade {id}\nack {id}\n")
    verify(tmp_path / "s", log, finished=False, kills=0)
    log.write_text(f"start 1\nmade {id}\nack {id}\n{wrong.format(id=id)}\n")
    with pytest.raises(AssertionError):
        verify(tmp_path / "s", log, finished=False, kills=0)
