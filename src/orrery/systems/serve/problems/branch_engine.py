"""One replica whose answers may fork: step by step, without a clock.

Blocks of keys and values are kept by reference: when an answer forks, each branch holds the blocks
of the prefix (they are counted, not copied) and takes blocks for its own tokens as it writes them.
A branch on pause keeps what it wrote. A join puts the branches one after the other, in their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from orrery.base.errors import PartError, UsageError
from orrery.models.kv import KVPool
from orrery.systems.serve.problems.branch_requests import BranchPolicy, BranchView, Forked

NEVER = float("inf")


class Answered(msgspec.Struct, frozen=True):
    """How a request fared; times in seconds of the run's clock."""

    id: int
    arrival_s: float
    first_s: float
    last_s: float
    tokens: int
    branchy: bool
    met: bool

    @property
    def ttft_s(self) -> float:
        return self.first_s - self.arrival_s

    @property
    def tpot_s(self) -> float:
        return (self.last_s - self.first_s) / max(self.tokens - 1, 1)


class Live:
    """A request on the replica.

    context       tokens that are in the cache before any open branch
    open, made    unfinished branches, in order; tokens that each branch of the stage has made
    due_s         when its next token is due, by its user's pace
    """

    __slots__ = (
        "blocks", "computed", "context", "due_s", "ended", "first_s", "forks", "keys", "made",
        "open", "own_blocks", "own_tokens", "phase_tokens", "request", "serial_left", "stage",
        "tail", "tokens", "waited",
    )  # fmt: skip

    def __init__(self, request: Forked) -> None:
        self.request = request
        self.computed = self.context = self.stage = self.tokens = self.forks = 0
        self.serial_left = request._stages[0].serial
        self.open: list[int] = []
        self.made: list[int] = []
        self.own_blocks: list[int] = []
        self.own_tokens = self.phase_tokens = self.ended = self.waited = 0
        self.keys: list[int] = []  # sealed blocks of the prefix, by reference
        self.blocks = self.tail = 0  # blocks that are not sealed, and tokens in them
        self.first_s = -1.0
        self.due_s = request.arrival_s + request.ttft_s


class StepNote(msgspec.Struct, frozen=True):
    """What a step was made of."""

    began_s: float
    seconds: float
    prefill: int
    sequences: int
    kv_tokens: int
    widths: tuple[int, ...]
    blocks: int
    ids: tuple[int, ...] = ()


class BranchEngine:
    """Continuous batching with chunked prompts; the policy sets the widths of every step.

    `submit` and `advance` as for any replica, `next_s` tells when the step ends. A request is let
    in when blocks for all that it may ever write are free, so none is ever preempted.
    """

    def __init__(
        self, steps: Any, policy: BranchPolicy, *, blocks: int, block_tokens: int = 16,
        chunk: int = 512, slots: int = 256, notes: bool = False,
    ) -> None:  # fmt: skip
        if chunk < 1 or slots < 1:
            raise UsageError(f"chunk = {chunk}, slots = {slots}: give at least one of each")
        self.steps, self.policy = steps, policy
        self.pool = KVPool(blocks, block_tokens)
        self.chunk, self.slots = chunk, slots
        self.waiting: deque[Live] = deque()
        self.filling: deque[Live] = deque()
        self.running: list[Live] = []
        self.reserved = 0
        self.next_s = NEVER
        self.busy_s = 0.0
        self.made = self.count = self.width_sum = self.fork_rows = 0
        self.times_s: list[float] = []
        self.notes: list[StepNote] | None = [] if notes else None
        self._plan: tuple[Any, ...] | None = None
        policy.start()

    # -- what a host calls

    def refuse(self, request: Forked) -> str:
        """Why a request can never be served; empty: it can."""
        need = self._most_blocks(request)
        if need <= self.pool.blocks:
            return ""
        return f"it may need {need} blocks, the cache has {self.pool.blocks}"

    def submit(self, request: Forked, now_s: float) -> None:
        """A request comes."""
        reason = self.refuse(request)
        if reason:
            raise PartError(f"request {request.id}: {reason}; refuse it before it is submitted")
        self.waiting.append(Live(request))
        if self._plan is None:
            self._begin(now_s)

    def advance(self) -> list[Answered]:
        """End the step that is due, and begin the next; those who are done."""
        now_s = self.next_s
        done = self._end(now_s)
        self._begin(now_s)
        return done

    @property
    def in_use(self) -> int:
        """Blocks that hold something."""
        return self.pool.blocks - self.pool.free

    # -- one step

    def _most_blocks(self, request: Forked) -> int:
        size = self.pool.block_tokens
        # Every branch, and every stage, may leave a block that is not full.
        pieces = 1 + sum(1 + len(stage.branches) for stage in request._stages)
        return -(-(request.prompt_tokens + request.most_tokens) // size) + pieces

    def _admit(self) -> None:
        while self.waiting and len(self.running) + len(self.filling) < self.slots:
            need = self._most_blocks(self.waiting[0].request)
            if self.reserved + need > self.pool.blocks:
                return  # nobody overtakes it
            self.reserved += need
            self.filling.append(self.waiting.popleft())

    def _begin(self, now_s: float) -> None:
        self._admit()
        prefill, left = [], self.chunk
        for seq in self.filling:
            new = min(seq.request.prompt_tokens - seq.computed, left)
            if not new:
                break
            prefill.append((seq, new))
            left -= new
        rows = self.running
        if not prefill and not rows:
            self._plan, self.next_s = None, NEVER
            return
        chunks = tuple((new, seq.computed) for seq, new in prefill)
        widths = self._widths(now_s, rows, chunks) if rows else []
        sequences = kv_tokens = 0
        for row, width in zip(rows, widths, strict=True):
            sequences += width
            kv_tokens += width * (row.context + 1)
            if row.open:
                made = row.made
                kv_tokens += sum([made[at] for at in row.open[:width]])
        took_s = self.steps.seconds(chunks, sequences, kv_tokens)
        self._plan = (prefill, widths, now_s, sequences, kv_tokens)
        self.next_s = now_s + took_s

    def _widths(
        self, now_s: float, rows: Sequence[Live], chunks: tuple[tuple[int, int], ...]
    ) -> list[int]:
        view = BranchView(now_s, rows, chunks, self._look_up)
        answer = self.policy.widths(view)
        widths = answer.tolist() if isinstance(answer, np.ndarray) else list(answer)
        name = type(self.policy).__name__
        if len(widths) != len(rows):
            raise PartError(f"{name}.widths gave {len(widths)} numbers for {len(rows)} requests")
        for row, width in zip(rows, widths, strict=True):
            most = len(row.open) or 1
            if type(width) is not int or not 1 <= width <= most:
                raise PartError(
                    f"{name}.widths gave {width!r} to request {row.request.id}, which has {most} "
                    "open branches; give a whole number from 1 to that"
                )
        return widths

    def _look_up(self, chunks: Sequence[tuple[int, int]], sequences: int, kv_tokens: int) -> float:
        """What a step would take; looking is not running, so the counters stay."""
        steps: Any = self.steps
        before, outside = steps.extrapolated, dict(getattr(steps, "outside", ()))
        took_s = float(steps.seconds(chunks, sequences, kv_tokens))
        if steps.extrapolated != before:
            steps.extrapolated, steps.outside = before, outside
        return took_s

    def _end(self, now_s: float) -> list[Answered]:
        """What was computed is there now."""
        if self._plan is None:
            raise UsageError("no step is due; submit a request first")
        prefill, widths, began_s, sequences, kv_tokens = self._plan
        took_s = now_s - began_s
        rows, self.running = self.running, []
        done = []
        for row, width in zip(rows, widths, strict=True):
            ended = self._decode(row, width, now_s)
            if ended is not None:
                done.append(ended)
            else:
                self.running.append(row)
        for seq, new in prefill:
            seq.computed += new
            self._write(seq, new)
            if seq.computed == seq.request.prompt_tokens:
                self.filling.popleft()
                ended = self._first(seq, now_s)
                if ended is not None:
                    done.append(ended)
                else:
                    self.running.append(seq)
        new = sum(new for _, new in prefill)
        self.busy_s += took_s
        self.count += 1
        self.times_s.append(took_s)
        self.policy.observe(new, sequences, kv_tokens, took_s)
        if self.notes is not None:
            ids = tuple(row.request.id for row in rows)
            self.notes.append(StepNote(began_s, took_s, new, sequences, kv_tokens,
                                       tuple(widths), self.in_use, ids))  # fmt: skip
        return done

    # -- tokens, forks and joins

    def _first(self, seq: Live, now_s: float) -> Answered | None:
        """The prompt is computed: it makes the first token of the answer."""
        seq.first_s = now_s
        request = seq.request
        if not request.branchy:
            # From now on its pace counts from its first token, which is what it is judged by.
            seq.due_s = now_s
        return self._serial(seq, now_s, write=False)

    def _decode(self, row: Live, width: int, now_s: float) -> Answered | None:
        if not row.open:
            return self._serial(row, now_s)
        made, lengths = row.made, row.request._stages[row.stage].branches
        self.width_sum += width
        self.fork_rows += 1
        row.waited += 1
        run = row.open[:width]
        row.own_tokens += width
        row.phase_tokens += width
        row.tokens += width
        self.made += width
        size, ended = self.pool.block_tokens, False
        for at in run:
            if not made[at] % size:
                self._take(1)
                row.own_blocks[at] += 1
            made[at] += 1
            ended = ended or made[at] == lengths[at]
        if ended:
            over = [at for at in run if made[at] == lengths[at]]
            row.open = [at for at in row.open if made[at] < lengths[at]]
            row.ended += len(over)
            row.own_tokens -= sum(lengths[at] for at in over)
            if not row.open:
                self._join(row)
                return self._next_stage(row, now_s)
        return None

    def _serial(self, row: Live, now_s: float, write: bool = True) -> Answered | None:
        """One token more of a serial stage; the token before it is now in the cache."""
        if write:
            row.context += 1
            self._write(row, 1)
        row.tokens += 1
        self.made += 1
        row.due_s += row.request.tpot_s
        row.serial_left -= 1
        if row.serial_left:
            return None
        stage = row.request._stages[row.stage]
        if stage.branches:
            self._fork(row, stage.branches)
            return None
        return self._next_stage(row, now_s)

    def _next_stage(self, row: Live, now_s: float) -> Answered | None:
        row.stage += 1
        stages = row.request._stages
        while row.stage < len(stages):
            stage = stages[row.stage]
            row.serial_left = stage.serial
            if stage.serial:
                return None
            if stage.branches:
                self._fork(row, stage.branches)
                return None
            row.stage += 1
        return self._finish(row, now_s)

    def _write(self, row: Live, tokens: int) -> None:
        """Take blocks for tokens at the end of the context."""
        if row.first_s < 0:
            row.context += tokens  # a prompt chunk
        row.tail += tokens
        need = -(-row.tail // self.pool.block_tokens) - row.blocks
        if need > 0:
            self._take(need)
            row.blocks += need

    def _take(self, blocks: int) -> None:
        if not self.pool.take(blocks):
            raise PartError(f"{blocks} blocks wanted, {self.pool.free} free: the reserve is wrong")

    def _fork(self, row: Live, lengths: tuple[int, ...]) -> None:
        """Seal the prefix; every branch holds its blocks."""
        base = (row.request.id + 1) << 24
        for _ in range(row.blocks):
            row.keys.append(self.pool.fill(base + len(row.keys)))
        row.blocks = row.tail = 0
        row.open = list(range(len(lengths)))
        row.made, row.own_blocks = [0] * len(lengths), [0] * len(lengths)
        row.own_tokens = row.phase_tokens = row.ended = row.waited = 0
        row.forks += 1
        for _ in lengths:
            self.pool.hold(row.keys)

    def _join(self, row: Live) -> None:
        """The branches' tokens become part of the context, in their order."""
        base = (row.request.id + 1) << 24
        for blocks in row.own_blocks:
            for _ in range(blocks):
                row.keys.append(self.pool.fill(base + len(row.keys)))
        stage = row.request._stages[row.stage]
        held = row.keys[: len(row.keys) - sum(row.own_blocks)]
        for _ in row.own_blocks:
            self.pool.release(held)
        row.context += sum(row.made)
        row.due_s += row.request.tpot_s * self._allowed(row, stage.branches)
        row.made, row.own_blocks, row.own_tokens = [], [], 0

    @staticmethod
    def _allowed(row: Live, lengths: tuple[int, ...]) -> float:
        """Tokens in a row that the deadline allows for a fork that is over."""
        request = row.request
        whole = (request.deadline_s - request.arrival_s - request.ttft_s) / request.tpot_s
        serial = sum(stage.serial for stage in request._stages)
        longest = sum(max(stage.branches, default=0) for stage in request._stages)
        return (whole - serial) * max(lengths) / longest

    def _finish(self, row: Live, now_s: float) -> Answered:
        request = row.request
        self.pool.release_own(-(request.id + 2), row.blocks, 0)
        self.pool.release(row.keys)
        self.reserved -= self._most_blocks(request)
        early = row.first_s - request.arrival_s <= request.ttft_s
        if request.branchy:
            met = early and now_s <= request.deadline_s
        else:
            met = early and now_s - row.first_s <= request.tpot_s * max(row.tokens - 1, 1) + 1e-12
        return Answered(
            request.id, request.arrival_s, row.first_s, now_s, row.tokens, request.branchy, met
        )

    # -- the books

    def faults(self) -> list[str]:
        """What is wrong with the books of the cache."""
        found, size = self.pool.faults(), self.pool.block_tokens
        held = 0
        for row in (*self.filling, *self.running):
            held += len(row.keys) + row.blocks + sum(row.own_blocks)
            for at, made in enumerate(row.made):
                if row.own_blocks[at] != -(-made // size):
                    found.append(f"request {row.request.id}: branch {at} has {made} tokens in "
                                 f"{row.own_blocks[at]} blocks")  # fmt: skip
            if row.blocks != -(-row.tail // size):
                found.append(f"request {row.request.id}: {row.tail} tokens in {row.blocks} blocks")
        if held != self.in_use:
            found.append(f"{held} blocks held by requests, {self.in_use} in use")
        return found


__all__ = ["NEVER", "Answered", "BranchEngine", "Live", "StepNote"]
