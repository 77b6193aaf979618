"""Jobs: child processes of the command line, a few at a time, with their progress and their end.

A child is `python -m orrery.cli.page` with the words of a command: the same program as `orrery`,
which tells its progress on stderr as JSON behind a record separator, and which ends when the page
does, because it sees its stdin close. There is no shell, and no word that was not checked.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import secrets
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

import orrery
from orrery.page.http import HttpError

MOST_RUNNING = 2
MOST_QUEUED = 32
MOST_KEPT = 200
MOST_OUT_B = 32 << 20
MOST_LINE_B = 1 << 20
MOST_TALK = 40
GRACE_S = 1.5
PACE_S = 0.1
MARK = b"\x1e"
OVER = ("done", "failed", "cancelled")


class Job(msgspec.Struct, kw_only=True):
    """One piece of work that was asked for."""

    id: str
    kind: str
    title: str
    about: dict[str, Any]
    command: str
    state: str = "queued"
    date: str = ""
    seconds: float = 0.0
    done: float = 0.0
    total: float | None = None
    now: str = ""
    talk: list[str] = []
    exit: int | None = None
    error: str = ""
    result: Any = None
    report: bool = False

    def row(self) -> dict[str, Any]:
        """The job without its result, as lists and streams show it."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        data.pop("result")
        return data


class Jobs:
    """The table of jobs of one page."""

    def __init__(self, most_running: int = MOST_RUNNING) -> None:
        self.most_running = most_running
        self.jobs: dict[str, Job] = {}
        self._words: dict[str, list[str]] = {}
        self._queue: list[str] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._children: dict[str, asyncio.subprocess.Process] = {}
        self._began: dict[str, float] = {}
        self._watchers: set[_Watcher] = set()
        self._folder: Path | None = None

    # -- asking

    def submit(
        self, kind: str, title: str, words: list[str], about: dict[str, Any], *,
        report: bool = False,
    ) -> Job:  # fmt: skip
        """Put a command into the queue; `words` are those after `orrery`."""
        if len(self._queue) >= MOST_QUEUED:
            raise HttpError(429, f"{MOST_QUEUED} jobs wait already; cancel some, or wait")
        salt = secrets.token_hex(8)
        id = hashlib.sha256(json.dumps([words, salt]).encode()).hexdigest()[:20]
        shown = shlex.join(["orrery", *words])
        job = Job(id=id, kind=kind, title=title, about=about, command=shown, report=report,
                  date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S"))  # fmt: skip
        full = [*words, "--json"]
        if report:
            full += ["-o", str(self.report_path(id))]
        self.jobs[id] = job
        self._words[id] = full
        self._queue.append(id)
        self._forget_old()
        self._tell(id)
        self._start_next()
        return job

    def get(self, id: str) -> Job:
        """A job by its id or the only one that begins so."""
        fits = [job for key, job in self.jobs.items() if key.startswith(id)]
        if len(fits) != 1:
            raise HttpError(404, f"there is no job {id}")
        job = fits[0]
        if id_began := self._began.get(job.id):
            job.seconds = time.monotonic() - id_began
        return job

    def report_path(self, id: str) -> Path:
        """Where a job's report is written."""
        return self.folder() / f"{id}.html"

    def folder(self) -> Path:
        """The page's own temporary folder; children run in it, so that no module lies there."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="orrery-page-"))
            (self._folder / "empty").mkdir()
        return self._folder

    def _forget_old(self) -> None:
        over = [id for id, job in self.jobs.items() if job.state in OVER]
        for id in over[: max(0, len(self.jobs) - MOST_KEPT)]:
            del self.jobs[id]
            self._words.pop(id, None)
            with contextlib.suppress(OSError):
                self.report_path(id).unlink()

    # -- running

    def _start_next(self) -> None:
        while self._queue and len(self._tasks) < self.most_running:
            id = self._queue.pop(0)
            self.jobs[id].state = "running"
            self._began[id] = time.monotonic()
            self._tasks[id] = asyncio.create_task(self._run(id))
            self._tell(id)

    async def _run(self, id: str) -> None:
        job = self.jobs[id]
        try:
            out, code = await self._child(job, self._words[id])
            self._finish(job, out, code)
        except asyncio.CancelledError:
            job.state = "cancelled"
        except OSError as failure:
            job.state, job.error = "failed", f"the command cannot be started: {failure}"
        finally:
            job.seconds = time.monotonic() - self._began.pop(id)
            self._tasks.pop(id, None)
            self._tell(id)
            self._start_next()

    async def _child(self, job: Job, words: list[str]) -> tuple[bytes, int]:
        child = await start_child(words, self.folder() / "empty")
        self._children[job.id] = child
        try:
            out, _ = await asyncio.gather(self._read_out(child), self._read_talk(job, child))
            return out, await child.wait()
        finally:
            await asyncio.shield(end_child(child))
            self._children.pop(job.id, None)

    async def _read_out(self, child: asyncio.subprocess.Process) -> bytes:
        assert child.stdout is not None
        pieces: list[bytes] = []
        size = 0
        while data := await child.stdout.read(1 << 16):
            size += len(data)
            if size <= MOST_OUT_B:
                pieces.append(data)
        return b"".join(pieces) if size <= MOST_OUT_B else b""

    async def _read_talk(self, job: Job, child: asyncio.subprocess.Process) -> None:
        assert child.stderr is not None
        while True:
            try:
                line = await child.stderr.readline()
            except ValueError:
                continue  # a line over the limit: it was dropped
            if not line:
                return
            if line.startswith(MARK):
                self._progress(job, line[1:])
            else:
                text = line.decode("utf-8", "replace").rstrip()[:500]
                job.talk = [*job.talk[-MOST_TALK + 1 :], text]
            self._tell(job.id)

    def _progress(self, job: Job, line: bytes) -> None:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            told = json.loads(line)
            job.done, job.now = float(told["done"]), str(told["now"])[:200]
            job.total = float(told["total"]) if told.get("total") is not None else None

    def _finish(self, job: Job, out: bytes, code: int) -> None:
        job.exit = code
        try:
            job.result = json.loads(out)
        except ValueError:
            job.result = None
        wrong = job.result.get("error") if isinstance(job.result, dict) else None
        # 0, 1 and 2 are answers (yes, no, open); anything else is a command that did not get there.
        if wrong or job.result is None or code not in (0, 1, 2):
            job.state = "failed"
            said = wrong.get("message") if isinstance(wrong, dict) else ""
            job.error = said or (job.talk[-1] if job.talk else f"it ended with code {code}")
        else:
            job.state = "done"
        job.report = job.report and job.state == "done" and self.report_path(job.id).is_file()

    async def cancel(self, id: str) -> Job:
        """End a job: out of the queue, or its whole process group."""
        job = self.get(id)
        if job.id in self._queue:
            self._queue.remove(job.id)
            job.state = "cancelled"
            self._tell(job.id)
        elif (task := self._tasks.get(job.id)) is not None:
            task.cancel()
            await asyncio.wait({task}, timeout=GRACE_S + 5)
        else:
            raise HttpError(409, f"the job is over: {job.state}")
        return job

    async def close(self) -> None:
        """End everything, and take the temporary folder away."""
        self._queue.clear()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=GRACE_S + 5)
        for watcher in list(self._watchers):
            watcher.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    # -- watching

    def _tell(self, id: str) -> None:
        for watcher in self._watchers:
            watcher.changed(id)

    async def watch(self) -> AsyncIterator[dict[str, Any]]:
        """Every job now, then each one as it changes, at a pace that a page can draw."""
        watcher = _Watcher()
        self._watchers.add(watcher)
        try:
            yield {"jobs": self.rows()}
            while ids := await watcher.next():
                yield {"jobs": [self.get(id).row() for id in ids if id in self.jobs]}
                await asyncio.sleep(PACE_S)
        finally:
            self._watchers.discard(watcher)

    def rows(self) -> list[dict[str, Any]]:
        """Every job, newest first."""
        return [self.get(id).row() for id in reversed(self.jobs)]


class _Watcher:
    """What has changed for one reader since it last looked."""

    def __init__(self) -> None:
        self.ids: dict[str, None] = {}
        self.event = asyncio.Event()
        self.open = True

    def changed(self, id: str) -> None:
        self.ids[id] = None
        self.event.set()

    def close(self) -> None:
        self.open = False
        self.event.set()

    async def next(self) -> list[str]:
        await self.event.wait()
        self.event.clear()
        ids, self.ids = list(self.ids), {}
        return ids if self.open else []


# -- processes


async def start_child(words: list[str], folder: Path) -> asyncio.subprocess.Process:
    """The command line as a child: its own process group, no shell, an empty folder to stand in."""
    source = str(Path(orrery.__file__).resolve().parents[1])
    old = os.environ.get("PYTHONPATH", "")
    paths = [source, *(str(Path(each).resolve()) for each in old.split(os.pathsep) if each)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "NO_COLOR": "1"}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "orrery.cli.page", *words,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE, cwd=folder, env=env, start_new_session=True,
        limit=MOST_LINE_B,
    )  # fmt: skip


async def end_child(child: asyncio.subprocess.Process) -> None:
    """End a child and all that it started: first asked, then forced."""
    if child.returncode is None:
        _signal(child.pid, signal.SIGTERM)
        try:
            await asyncio.wait_for(child.wait(), GRACE_S)
        except TimeoutError:
            pass
    _signal(child.pid, signal.SIGKILL)
    if child.returncode is None:
        await child.wait()


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
