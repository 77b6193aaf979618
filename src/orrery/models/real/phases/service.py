"""Prefill and decode in two processes that are watched, started again after a death, and ended."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from orrery.base.errors import DeadlineExceeded, UsageError
from orrery.models.real.paged import Piece
from orrery.models.real.phases.arena import Arena, resident_B
from orrery.models.real.phases.blocks import PHASES, BlockBook
from orrery.models.real.phases.plan import Orders
from orrery.models.real.phases.table import (
    DECODING,
    DONE,
    FULL,
    MADE,
    PREEMPTED,
    PREFILLING,
    READY,
    STEPS,
    STOP,
    TOKENS,
    WAITING,
    WANTED,
    WRITTEN,
    Requests,
    overlaps,
)
from orrery.models.real.phases.weights import SharedCache, lay_down, plan
from orrery.models.real.transformer import Transformer

LOOK_S = 0.005
MOST_DEATHS = 5


class PhaseReport(NamedTuple):
    """What a run gave.

    answers       tokens of each request
    overlapping   prefill steps that ran while a decode step did
    moved_B       bytes written to the cache beyond one entry for each token computed
    weights_pss   proportional set size of the weights, over all processes that map them
    weights_rss   what each of the two processes has of them
    waited        times that a prompt found the pool too full
    leaked        blocks that somebody had when all was done
    deaths        how often a phase died and was started again
    undone        changes of the book that a dead phase left half done
    """

    answers: list[list[int]]
    steps: dict[str, int]
    overlapping: int
    moved_B: int
    computed_tokens: int
    weights_B: int
    weights_pss: int
    weights_rss: dict[str, int]
    waited: int
    preempted: int
    leaked: int
    deaths: int
    undone: int


def serve_alone(
    model: Transformer, prompts: Sequence[Sequence[int]], outputs: Sequence[int],
    block_tokens: int = 16,
) -> list[list[int]]:  # fmt: skip
    """The sequential reference: one request after the other, in this process."""
    answers = []
    for prompt, wanted in zip(prompts, outputs, strict=True):
        blocks = -(-(len(prompt) + wanted) // block_tokens)
        cache, table = model.new_cache(blocks, block_tokens), list(range(blocks))
        made = model.greedy([Piece(list(prompt), 0, table)], cache)
        while len(made) < wanted:
            at = len(prompt) + len(made) - 1
            made += model.greedy([Piece([made[-1]], at, table)], cache)
        answers.append(made)
    return answers


def serve_phases(
    model: Transformer, prompts: Sequence[Sequence[int]], outputs: Sequence[int], *,
    blocks: int, block_tokens: int = 16, timeout_s: float = 120.0,
    kill_at: dict[str, int] | None = None,
) -> PhaseReport:  # fmt: skip
    """Serve requests by two processes over one arena; what they made, and what it took.

    kill_at   {"decode": 9}: that phase kills itself in the middle of its 9th change of blocks, with
              the lock in its hand; it is started again
    """
    _refuse(model, prompts, outputs, blocks, block_tokens)
    entries, weights_B = plan(model)
    longest = max(len(p) + n for p, n in zip(prompts, outputs, strict=True))
    base = Orders(
        phase="prefill", spec=model.spec, dtype=model.dtype_name,
        epsilon=model.final_norm.epsilon, max_context=model.max_context, entries=entries,
        weights_fd=0, weights_B=weights_B, arena_fd=0, arena_B=1, blocks=blocks,
        block_tokens=block_tokens, requests=len(prompts), longest=longest, parent=os.getpid(),
    )  # fmt: skip
    size = base.cache_at + SharedCache.size_B(model.spec, blocks, block_tokens, model.dtype_name)
    with Arena.create("weights", weights_B) as weights, Arena.create("cache", size) as arena:
        lay_down(model, weights.memory, entries)
        orders = msgspec.structs.replace(
            base, weights_fd=weights.fd, arena_fd=arena.fd, arena_B=size
        )
        service = Service(orders, arena, weights, kill_at or {})
        for number, (prompt, wanted) in enumerate(zip(prompts, outputs, strict=True)):
            service.table.fill(number, prompt, wanted)
        try:
            service.run(timeout_s)
            return service.report()
        finally:
            service.end()


class Service:
    """The parent of the two phases: it starts them, notices deaths, and cleans up after them."""

    def __init__(
        self, orders: Orders, arena: Arena, weights: Arena, kill_at: dict[str, int]
    ) -> None:
        self.orders, self.kill_at, self.arena, self.weights = orders, dict(kill_at), arena, weights
        lock = arena.lock()
        words = arena.words(0, BlockBook.words(orders.blocks))
        self.book = BlockBook(words, orders.blocks, lock)
        count = Requests.words(orders.requests, orders.longest, orders.width)
        self.table = Requests(
            arena.words(orders.table_at, count), orders.requests, orders.longest, orders.width, lock
        )
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self.deaths = 0
        self.pss: tuple[int, dict[str, int]] = (0, {})

    def run(self, timeout_s: float) -> None:
        """Until every request is done."""
        until_s = time.monotonic() + timeout_s
        for phase in PHASES:
            self._start(phase)
        while len(self.table.in_state(DONE)) < self.orders.requests:
            if time.monotonic() > until_s:
                left = self.orders.requests - len(self.table.in_state(DONE))
                raise DeadlineExceeded(f"{left} requests were not done after {timeout_s} s")
            for phase, child in list(self.children.items()):
                if child.poll() is not None:
                    self._died(phase)
            time.sleep(LOOK_S)
        self._look_at_memory()

    def _start(self, phase: str) -> None:
        orders = msgspec.structs.replace(
            self.orders, phase=phase, kill_at=self.kill_at.pop(phase, 0)
        )
        root = str(Path(__file__).resolve().parents[4])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
        self.children[phase] = subprocess.Popen(
            [sys.executable, "-m", "orrery.models.real.phases.worker",
             msgspec.json.encode(orders).decode()],
            pass_fds=(orders.weights_fd, orders.arena_fd), stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def _died(self, phase: str) -> None:
        """Free what the dead phase had, let its requests begin again, start it anew."""
        self.deaths += 1
        if self.deaths > MOST_DEATHS:
            code = self.children[phase].returncode
            raise UsageError(f"the {phase} process died {self.deaths} times (last code {code})")
        with self.book.lock:
            self.book.reclaim(PHASES[phase])
            states = (PREFILLING,) if phase == "prefill" else (READY, DECODING)
            for request in self.table.in_state(*states):
                self.book.reclaim_request(request)
                over = self.table.rows[request, MADE] >= self.table.rows[request, WANTED]
                # Its last token may be made, and only its blocks not yet free.
                self.table.move(request, DONE if over else WAITING)
        self._start(phase)

    def _look_at_memory(self) -> None:
        if not Path("/proc/self/smaps").exists():
            return
        total, mine = resident_B(os.getpid(), "weights")[0], {}
        for phase, child in self.children.items():
            pss, rss = resident_B(child.pid, "weights")
            total, mine[phase] = total + pss, rss
        self.pss = (total, mine)

    def report(self) -> PhaseReport:
        """What the arena says when all is done."""
        table, head = self.table, self.table.head
        steps = {name: int(head[STEPS + at]) for at, name in enumerate(PHASES)}
        tokens = int(head[TOKENS] + head[TOKENS + 1])
        spec, width = self.orders.spec, {"fp64": 8, "fp32": 4}.get(self.orders.dtype, 2)
        token_B = 2 * spec.layers * spec.kv_heads * spec.head_dim * width
        written = int(head[WRITTEN] + head[WRITTEN + 1])
        return PhaseReport(
            answers=[table.answer(number) for number in range(table.count)], steps=steps,
            overlapping=overlaps(table.times, list(steps.values())),
            moved_B=written - tokens * token_B, computed_tokens=tokens,
            weights_B=self.orders.weights_B, weights_pss=self.pss[0], weights_rss=self.pss[1],
            waited=int(head[FULL]), preempted=int(table.rows[:, PREEMPTED].sum()),
            leaked=self.orders.blocks - self.book.free, deaths=self.deaths,
            undone=self.book.undone,
        )  # fmt: skip

    def end(self) -> None:
        """No process stays behind."""
        self.table.head[STOP] = 1
        for child in self.children.values():
            try:
                child.wait(2.0)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _refuse(
    model: Any, prompts: Sequence[Sequence[int]], outputs: Sequence[int], blocks: int, size: int
) -> None:
    if not len(prompts) or len(prompts) != len(outputs):
        raise UsageError(f"{len(prompts)} prompts and {len(outputs)} lengths; give as many, 1 or "
                         "more")  # fmt: skip
    if blocks < 1 or size < 1:
        raise UsageError(f"{blocks} blocks of {size} tokens; give 1 or more")
    for number, (prompt, wanted) in enumerate(zip(prompts, outputs, strict=True)):
        whole = len(prompt) + wanted
        if not len(prompt) or wanted < 1:
            raise UsageError(f"request {number}: {len(prompt)} tokens, {wanted} to make; give 1 or "
                             "more")  # fmt: skip
        if min(prompt) < 0 or max(prompt) >= model.spec.vocab:
            raise UsageError(f"request {number}: a token beyond the vocabulary")
        if whole > model.max_context or -(-whole // size) > blocks:
            raise UsageError(f"request {number}: {whole} tokens do not fit; the context is "
                             f"{model.max_context}, the cache {blocks * size}")  # fmt: skip


__all__ = ["PhaseReport", "Service", "serve_alone", "serve_phases"]
