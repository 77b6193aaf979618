"""The allocator under random work from two processes, one of which may be killed in the middle.

Each process takes blocks for made-up requests, writes its stamp into every block, reads the stamps
back before it passes blocks on or frees them, and so would notice a second owner.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from orrery.base.errors import DeadlineExceeded, UsageError
from orrery.base.rand import Stream
from orrery.models.real.phases.arena import Arena
from orrery.models.real.phases.blocks import DECODE, PHASES, PREFILL, BlockBook, owner_of

# Words after the book: of each phase operations done, clashes seen, times that the pool was full.
DONE, CLASHES, FULL, TALLY = 0, 1, 2, 4
MOST_HELD = 12
PASSED = 1_000_000  # the request under whose name prefill passes blocks on


class FuzzReport(NamedTuple):
    """What the two processes saw."""

    operations: int
    clashes: int
    full: int
    leaked: int
    deaths: int
    reclaimed: int
    undone: int


def fuzz_blocks(
    operations: int, *, blocks: int = 64, seed: int = 0, kill_at: int = 0, timeout_s: float = 200.0,
    careless: bool = False,
) -> FuzzReport:  # fmt: skip
    """So many operations, half from each of two processes, on one book.

    kill_at    the prefill process dies in the middle of this change, with the lock, and is started
               again; 0: it does not
    careless   without the lock: a planted fault, which must be noticed
    """
    if operations < 2 or blocks < 2 * MOST_HELD:
        raise UsageError(f"fuzz_blocks({operations}, blocks={blocks}): give 2 operations or more, "
                         f"and {2 * MOST_HELD} blocks or more")  # fmt: skip
    words = BlockBook.words(blocks)
    size = 8 * (words + blocks + 2 * TALLY)
    with Arena.create("fuzz", size) as arena:
        book = BlockBook(arena.words(0, words), blocks, arena.lock())
        tally = arena.words(8 * (words + blocks), 2 * TALLY).reshape(2, TALLY)
        half, deaths, reclaimed = operations // 2, 0, 0
        children = {
            phase: _start(arena, phase, half, blocks, seed, careless,
                          kill_at if phase == "prefill" else 0)
            for phase in PHASES
        }  # fmt: skip
        until_s = time.monotonic() + timeout_s
        try:
            while children:
                if time.monotonic() > until_s:
                    raise DeadlineExceeded(f"the fuzz was not done after {timeout_s} s: stuck")
                for phase, child in list(children.items()):
                    code = child.poll()
                    if code == 0:
                        del children[phase]
                    elif code is not None:
                        deaths += 1
                        if deaths > 3:
                            raise UsageError(f"the {phase} process died with code {code}")
                        reclaimed += book.reclaim(PHASES[phase])
                        reclaimed += book.reclaim_request(PASSED) if phase == "prefill" else 0
                        left = half - int(tally[PHASES[phase] - 1, DONE])
                        children[phase] = _start(
                            arena, phase, max(left, 1), blocks, seed + 1, careless, 0
                        )
                time.sleep(0.005)
            done, clashes, full = (int(tally[:, at].sum()) for at in (DONE, CLASHES, FULL))
            return FuzzReport(
                done, clashes, full, blocks - book.free, deaths, reclaimed, book.undone
            )
        finally:
            for child in children.values():
                child.kill()
                child.wait()


def _start(
    arena: Arena, phase: str, operations: int, blocks: int, seed: int, careless: bool, kill_at: int
) -> subprocess.Popen[bytes]:
    root = str(Path(__file__).resolve().parents[4])
    orders = {"fd": arena.fd, "size": arena.size, "phase": phase, "operations": operations,
              "blocks": blocks, "seed": seed, "careless": careless, "kill_at": kill_at,
              "parent": os.getpid()}  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-m", "orrery.models.real.phases.fuzz", json.dumps(orders)],
        pass_fds=(arena.fd,), stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


class _Nobody:
    """A lock that keeps nobody out; it lets the others run in between."""

    def __enter__(self) -> None:
        os.sched_yield()

    def __exit__(self, *error: object) -> None:
        os.sched_yield()


class Fuzzer:
    """One process's made-up requests."""

    def __init__(self, orders: dict[str, int]) -> None:
        self.orders = orders
        blocks, words = orders["blocks"], BlockBook.words(orders["blocks"])
        self.arena = Arena(orders["fd"], orders["size"])
        self.phase = PHASES[str(orders["phase"])]
        lock = _Nobody() if orders["careless"] else self.arena.lock()
        self.left = orders["kill_at"]
        midway = self._midway if self.left else os.sched_yield if orders["careless"] else None
        self.book = BlockBook(self.arena.words(0, words), blocks, lock, midway)
        self.stamps = self.arena.words(8 * words, blocks)
        tally = self.arena.words(8 * (words + blocks), 2 * TALLY).reshape(2, TALLY)
        self.tally = tally[self.phase - 1]
        self.rng = Stream(orders["seed"], "fuzz", str(orders["phase"]))
        self.mine: list[tuple[int, list[int]]] = []
        self.next = 0

    def _midway(self) -> None:
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)

    def run(self) -> None:
        """Operations at random; at the end everything is given back."""
        for _ in range(self.orders["operations"]):
            if os.getppid() != self.orders["parent"]:
                return
            if self.mine and self.rng.below(2):
                self.drop()
            else:
                self.take()
            self.tally[DONE] += 1
        while self.mine:
            self.drop()

    def take(self) -> None:
        """Blocks for a new request; with a full pool, an old one gives way."""
        owner = owner_of(self.phase, self.next)
        self.next = (self.next + 1) % 100_000
        got = self.book.take(owner, 1 + self.rng.below(MOST_HELD))
        if got is None:
            self.tally[FULL] += 1
            if self.mine:
                self.drop()
            return
        self.stamps[got] = owner
        self.mine.append((owner, got))

    def drop(self) -> None:
        """Give a request's blocks back, some of them by way of the other phase's name."""
        owner, blocks = self.mine.pop(self.rng.below(len(self.mine)))
        if (self.stamps[np.array(blocks)] != owner).any():
            self.tally[CLASHES] += 1
        try:
            if self.phase == PREFILL and self.rng.below(4) == 0:
                # The hand-over: the same blocks, under the name of the same request in decode.
                to = owner_of(DECODE, PASSED)
                self.book.pass_on(owner, to, blocks)
                owner = to
                self.stamps[blocks] = to
            self.book.give(owner, blocks)
        except UsageError:
            self.tally[CLASHES] += 1


if __name__ == "__main__":
    Fuzzer(json.loads(sys.argv[1])).run()
