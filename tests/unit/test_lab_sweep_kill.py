"""Kills, full disks, torn lines and two at once: nothing acknowledged is lost or done twice."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.unit.test_lab_sweep import plain, swept

import orrery
from orrery.base.errors import StoreError
from orrery.base.rand import Stream
from orrery.lab import cells
from orrery.lab.spec import spec_id
from orrery.lab.sweep import journal as journals
from orrery.lab.sweep.journal import Trial
from orrery.lab.sweep.space import Span

SOURCE = Path(orrery.__file__).resolve().parents[1]
ROOT = Path(__file__).resolve().parents[2]
ASKED = {"over": {"load": Span(1.0, 100.0), "fixed": [5.0, 50.0]}, "search": "tpe", "trials": 16}
CALLS = ("write", "fsync", "rename", "mkdir", "open")


def lines_of(home: Path) -> list[Trial]:
    """The sound trials of the only journal, in the order of the file."""
    paths = list((home / "sweeps").glob("*/journal")) if (home / "sweeps").is_dir() else []
    found = [journals._read(line) for path in paths for line in path.read_bytes().split(b"\n")]
    return [each for each in found if isinstance(each, Trial)]


# -- kill -9


def begin(home: Path, log: Path, at: int = 0) -> int:
    """A child that sweeps and tells in a log what it begins and what is acknowledged.

    With `at` it kills itself at so many calls to the operating system, the last of which, where it
    is a write, writes only a half.
    """
    child = os.fork()
    if child:
        return child
    try:
        told = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        tell, attempt = os.write, cells.attempt

        def trying(cell):
            tell(told, f"try {spec_id(cell.spec())}\n".encode())
            return attempt(cell)

        cells.attempt = trying
        if at:
            die_at(at)
        swept(home, **ASKED, progress=lambda t: tell(told, f"ack {t.n} {t.runs[0]}\n".encode()))
        os._exit(0)
    finally:
        os._exit(3)


def die_at(at: int) -> None:
    """Replace the calls that change the disk by ones that end in SIGKILL at the given count."""
    left = [at]

    def guard(name):
        real = getattr(os, name)

        def call(*arguments, **options):
            left[0] -= 1
            if left[0] == 0:
                if name == "write":
                    real(arguments[0], arguments[1][: len(arguments[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        return call

    for name in CALLS:
        setattr(os, name, guard(name))


def wait_for(child: int, delay_s: float) -> bool:
    """Kill a child after a while; says whether it was killed rather than finished."""
    if delay_s:
        time.sleep(delay_s)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def check_promises(home: Path, log: Path) -> None:
    """Whatever was acknowledged is in the journal, once, and was never begun again."""
    kept = lines_of(home)
    assert len({trial.n for trial in kept}) == len(kept)
    runs = {trial.n: trial.runs[0] for trial in kept}
    sure: set[str] = set()
    for line in log.read_text().splitlines() if log.exists() else []:
        word, *rest = line.split()
        if word == "ack":
            assert runs[int(rest[0])] == rest[1]
            sure.add(rest[1])
        else:
            assert rest[0] not in sure, "a run that was acknowledged was made again"


def kill_often(tmp_path: Path, kills: int, seed: int) -> tuple[int, int]:
    """Kill sweeps until there were so many kills; (kills, sweeps that came to their end)."""
    whole = plain(swept(tmp_path / "whole", **ASKED))
    dice, killed, finished, home = Stream(seed, 0, "kills"), 0, 0, tmp_path / "0"
    log = home.with_suffix(".log")
    while killed < kills:
        timed = dice.random() < 0.4
        # A sweep makes several hundred calls; a kill in the first hundred lets it take many.
        child = begin(home, log, 0 if timed else 1 + dice.below(120))
        died = wait_for(child, 0.001 + 0.15 * dice.random() if timed else 0.0)
        check_promises(home, log)
        killed += died
        if not died:
            assert len(lines_of(home)) == ASKED["trials"]
            assert plain(swept(home, **ASKED)) == whole
            finished += 1
            home = tmp_path / str(finished)
            log = home.with_suffix(".log")
    assert plain(swept(home, **ASKED)) == whole
    check_promises(home, log)
    assert len(lines_of(home)) == ASKED["trials"]
    return killed, finished


def test_kill_9_at_random_moments(tmp_path):
    assert kill_often(tmp_path, 6, seed=1)[0] == 6


@pytest.mark.slow
def test_500_times_kill_9(tmp_path):
    killed, finished = kill_often(tmp_path, 500, seed=2)
    assert killed == 500 and finished >= 5


CHILD = """
import sys
from pathlib import Path
from tests.unit.test_lab_sweep import swept
from tests.unit.test_lab_sweep_kill import ASKED
if __name__ == "__main__":
    swept(Path(sys.argv[1]), **{**ASKED, "search": "random", "trials": 400}, jobs=2)
"""


def test_after_kill_9_the_workers_end_too(tmp_path):
    env = {**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    script, home = tmp_path / "child.py", tmp_path / "home"
    script.write_text(CHILD)
    child = subprocess.Popen([sys.executable, str(script), str(home)], env=env, cwd=ROOT)
    for _ in range(6000):
        if len(lines_of(home)) >= 3 or child.poll() is not None:
            break
        time.sleep(0.01)
    assert child.poll() is None, "it must still be at work"
    workers = children_of(child.pid)
    assert len(workers) >= 2
    child.send_signal(signal.SIGKILL)
    child.wait(timeout=60)
    for _ in range(3000):
        if not any(Path(f"/proc/{pid}").exists() for pid in workers):
            break
        time.sleep(0.01)
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    kept = len(lines_of(home))
    rest = swept(home, **{**ASKED, "search": "random", "trials": kept + 2})
    assert rest.made <= 2 + kept and len(rest.trials) == kept + 2


def children_of(pid: int) -> list[int]:
    """The processes whose parent is this one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(path.parent.name))
    return found


# -- a full disk


class Disk:
    """Makes every n-th call that changes the disk fail, from a given one on."""

    def __init__(self, monkeypatch, every: int, once: bool) -> None:
        self.every, self.once, self.calls, self.failed = every, once, 0, 0
        for name in CALLS:
            monkeypatch.setattr(os, name, self.guard(name, getattr(os, name)))

    def guard(self, name, real):
        def call(*arguments, **options):
            self.calls += 1
            due = self.calls == self.every if self.once else self.calls % self.every == 0
            if due:
                self.failed += 1
                if name == "write" and self.calls % 2:
                    real(arguments[0], arguments[1][: len(arguments[1]) // 2])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*arguments, **options)

        return call


SHORT = {"over": {"load": [10.0, 100.0]}}


# By default every fifth call; the slow test takes each.
@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_one_write_error_at_each_call(tmp_path, monkeypatch, step):
    whole = plain(swept(tmp_path / "whole", **SHORT))
    refused = 0
    for at in range(1, 1000, step):
        home, told = tmp_path / str(at), []
        with monkeypatch.context() as patch:
            disk = Disk(patch, at, once=True)
            try:
                swept(home, **SHORT, progress=told.append)
            except StoreError as error:
                assert "free some space" in str(error) or "permissions" in str(error)
                refused += 1
        assert {trial.n for trial in told} <= {trial.n for trial in lines_of(home)}
        rest = swept(home, **SHORT)
        assert plain(rest) == whole
        assert rest.made <= 2 - len(told)
        if not disk.failed:
            break
    assert not disk.failed and refused > 20 // step


@pytest.mark.parametrize("every", [2, 3, 29])
def test_write_errors_at_every_nth_call(tmp_path, monkeypatch, every):
    whole = plain(swept(tmp_path / "whole", **SHORT))
    home, told = tmp_path / "home", []
    with monkeypatch.context() as patch:
        disk = Disk(patch, every, once=False)
        for _ in range(30):
            try:
                swept(home, **SHORT, progress=told.append)
                break
            except StoreError:
                pass
            assert {trial.n for trial in told} <= {trial.n for trial in lines_of(home)}
    assert disk.failed
    assert plain(swept(home, **SHORT)) == whole
    kept = lines_of(home)
    assert len(kept) == len({trial.n for trial in kept}) == 2


# -- the journal itself


def test_a_trial_is_told_only_after_its_line_is_synced(tmp_path, monkeypatch):
    """A kill cannot show a missing sync, only a loss of power; so the order itself is looked at."""
    events = []
    real_write, real_sync = os.write, os.fsync

    def named(handle):
        return os.readlink(f"/proc/self/fd/{handle}").endswith("/journal")

    def write(handle, data):
        events.extend(["write"] if named(handle) else [])
        return real_write(handle, data)

    def sync(handle):
        events.extend(["sync"] if named(handle) else [])
        return real_sync(handle)

    monkeypatch.setattr(os, "write", write)
    monkeypatch.setattr(os, "fsync", sync)
    swept(tmp_path, **SHORT, progress=lambda trial: events.append("told"))
    assert events == ["sync", "write", "sync", "write", "sync", "told", "write", "sync", "told"]


def test_torn_and_foreign_lines_are_skipped(tmp_path):
    whole = swept(tmp_path, **SHORT)
    path = Path(whole.journal)
    data = path.read_bytes()
    head, first, second = data.splitlines(keepends=True)
    for torn, lost in (
        (head + first + second[: len(second) // 2], 1),
        (head + first + second[:-1], 0),  # only its end is missing
        (head + first[: len(first) // 2] + b"\n" + second, 1),
        (head + first.replace(b'"n":0', b'"n":1') + second, 1),  # changed: the sum tells
        (b"\x00" * 512 + b"\n" + first + second, 0),
        (b"not a journal\n\xff\xfe\n" + first + second, 0),
        (b"", 2),
    ):
        path.write_bytes(torn)
        rest = swept(tmp_path, **SHORT)
        assert (rest.made, plain(rest)) == (lost, plain(whole))
        assert len(lines_of(tmp_path)) == 2
        assert swept(tmp_path, **SHORT).made == 0


def test_a_line_with_other_values_is_not_believed(tmp_path):
    """A sound line whose trial the search would not choose: from another version of it."""
    whole = swept(tmp_path, **SHORT)
    path = Path(whole.journal)
    alien = Trial(n=0, values={"system": "plan", "problem.load": 7.0}, scores=[0.0], runs=["ab"])
    with path.open("ab") as file:
        file.write(journals._line({f: getattr(alien, f) for f in alien.__struct_fields__}))
    rest = swept(tmp_path, **SHORT)
    assert (rest.made, plain(rest)) == (1, plain(whole))


def test_two_at_once_are_refused_and_the_first_is_not_disturbed(tmp_path):
    told = []

    def second(trial):
        told.append(trial)
        with pytest.raises(StoreError, match="another sweep of this question"):
            swept(tmp_path, **SHORT)
        # Another question is nobody's business.
        assert swept(tmp_path, over={"load": [10.0, 50.0]}).made <= 2

    first = swept(tmp_path, **SHORT, progress=second)
    assert len(told) == 2 and first.made == 2
    assert swept(tmp_path, **SHORT).made == 0


def test_ctrl_c_gives_what_is_there(tmp_path):
    def stop(trial):
        if trial.n == 3:
            raise KeyboardInterrupt

    found = swept(tmp_path, **ASKED, progress=stop)
    assert found.partial and len(found.trials) == found.made == 4
    rest = swept(tmp_path, **ASKED)
    assert rest.made == 12 and not rest.partial


def test_a_journal_that_cannot_be_opened_is_named(tmp_path):
    key = swept(tmp_path, **SHORT).key
    path = tmp_path / "sweeps" / key / "journal"
    path.unlink()
    path.mkdir()
    with pytest.raises(StoreError, match="journal"):
        swept(tmp_path, **SHORT)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="permissions"):
        swept(tmp_path / "file", **SHORT)
