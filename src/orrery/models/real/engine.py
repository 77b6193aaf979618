"""`RealReplica`: continuous batching on a real model, with the state machine of the modelled one.

A `Scheduler` chooses what each step computes, exactly as for `orrery.models.replica.Replica` (with
`ahead=False`: the real one plans a step when the last one is over). Blocks are taken and shared in
the same order, so the two differ only in what a step takes, and in that this one makes real tokens.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from orrery.base.errors import OrreryError, PartError, UsageError
from orrery.models.ports import Batch, EngineView, Hit, ReplicaView, Scheduler
from orrery.models.real.graphs import Graphs, can_record
from orrery.models.real.jobs import Answer, Job, Live
from orrery.models.real.paged import BLANK, PagedPool, Piece
from orrery.models.real.sample import choose
from orrery.models.real.schedule import Continuous
from orrery.models.requests import Request, Running, Served

WAITING, RUNNING = "waiting", "running"


class StepRecord(msgspec.Struct, frozen=True):
    """One step: what it was made of, and when it began and ended.

    prefill holds (new tokens, tokens in the cache) of each prompt chunk, as `Steps.seconds` takes
    it. `queue` is how many waited, `made` how many tokens came out.
    """

    began_s: float
    ended_s: float
    prefill: tuple[tuple[int, int], ...]
    decodes: int
    decode_kv: int
    made: int = 0
    queue: int = 0

    @property
    def seconds(self) -> float:
        return self.ended_s - self.began_s


class RealReplica:
    """One engine: its queue, its batch, its cache, its model.

    `submit` and `cancel` may be called from any thread; `step` is called by one thread only.
    Counters as in the modelled replica: `made`, `hit_tokens`, `preemptions`, `busy_s`.

    graphs   whether steps are recorded and replayed (`Graphs`); None: where that can be done.
             A dictionary of options for `Graphs` is a yes, too.
    """

    def __init__(
        self, model: Any, scheduler: Scheduler | None = None, *, blocks: int,
        block_tokens: int = 16, caching: bool = True, index: int = 0,
        clock: Callable[[], float] = time.perf_counter,
        graphs: bool | dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.model, self.scheduler, self.index = model, scheduler or Continuous(), index
        self.clock = clock
        self.pool = PagedPool(blocks, block_tokens, caching=caching)
        self.graphs: Graphs | None = None
        if can_record(model) if graphs is None else graphs is not False:
            self.cache = model.new_cache(blocks, block_tokens, spare=True)
            limits = {
                "step_tokens": getattr(self.scheduler, "step_tokens", 512),
                "max_sequences": getattr(self.scheduler, "max_sequences", 64),
            }
            more = graphs if isinstance(graphs, dict) else {}
            self.graphs = Graphs(model, self.cache, **{**limits, **more})
        else:
            self.cache = model.new_cache(blocks, block_tokens)
        self.waiting: deque[Live] = deque()
        self.running: list[Live] = []
        self.made = self.hit_tokens = self.preemptions = self.steps = 0
        self.busy_s = 0.0
        self.on_step: Callable[[StepRecord], None] | None = None
        self._inbox: deque[tuple[str, Any]] = deque()
        self._view = ReplicaView(index, blocks, block_tokens, self._match)
        self.scheduler.start()

    # -- what clients call

    def submit(self, job: Job) -> None:
        """A job comes; its `on_end` is called once, whatever happens."""
        self.refuse(job)
        self._inbox.append(("come", Live(job, self.clock())))

    def cancel(self, request_id: int) -> None:
        """A client gives up; a job that is not here (any more) is none of our business."""
        self._inbox.append(("cancel", request_id))

    def refuse(self, job: Job) -> None:
        """Say no to a job that can never be served."""
        request, longest = job.request, self.model.max_context
        whole = request.prompt_tokens + request._output_tokens
        if whole > longest:
            raise UsageError(
                f"request {request.id}: {request.prompt_tokens} tokens and {request._output_tokens}"
                f" to make are more than the context of {longest}"
            )
        if -(-whole // self.pool.block_tokens) > self.pool.blocks:
            room = self.pool.blocks * self.pool.block_tokens
            raise UsageError(f"request {request.id}: {whole} tokens, the cache holds {room}")
        if max(job.prompt) >= self.model.spec.vocab or min(job.prompt) < 0:
            raise UsageError(f"request {request.id}: a token beyond the vocabulary")

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.running or self.waiting or self._inbox)

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens yet to be computed."""
        return sum(s.missing for s in (*self.waiting, *self.running) if not s.generated)

    @property
    def kv_tokens(self) -> int:
        """Tokens in the cache of those that run."""
        return sum(seq.computed for seq in self.running)

    # -- one step

    def step(self) -> bool:
        """Take in what came, compute one step; False when there was nothing to compute."""
        began_s = self.clock()
        self._read_inbox(began_s)
        work = self._plan(began_s)
        if not work:
            return False
        pieces = []
        prefill, decodes, decode_kv = [], 0, 0
        for seq, tokens in work:
            start, last = seq.computed, seq.computed + tokens
            if tokens == 1 and seq.generated:
                decodes, decode_kv = decodes + 1, decode_kv + last
            else:
                prefill.append((tokens, start))
            pieces.append(Piece(seq.tokens[start:last], start, seq.table, last == len(seq.tokens)))
        try:
            chosen = self._compute(pieces, [seq for seq, _ in work])
        except OrreryError:
            raise
        except Exception as error:  # out of memory, a kernel that fails: nobody may wait for ever
            self.fail_running(f"the model failed: {type(error).__name__}: {error}")
            return True
        made, now_s = self._end(work, chosen)
        self.steps += 1
        self.busy_s += now_s - began_s
        if self.on_step is not None:
            # Telling clients and keeping the books belongs to the step: it delays the next one.
            record = StepRecord(
                began_s, self.clock(), tuple(prefill), decodes, decode_kv, made, len(self.waiting)
            )
            self.on_step(record)
        return True

    def _compute(self, pieces: list[Piece], batch: list[Live]) -> list[int | None]:
        """The next token of each sequence that gets one, else None."""
        sampled = [seq for seq, piece in zip(batch, pieces, strict=True) if piece.sample]
        replayed = None if self.graphs is None else self.graphs.step(pieces)
        if replayed is None:
            tokens = iter(choose(self.model.step(pieces, self.cache), sampled))
        else:
            tokens = iter(choose(replayed[0], sampled, replayed[1]))
        return [next(tokens) if piece.sample else None for piece in pieces]

    def run(self, *, limit: int | None = None) -> None:
        """Step until nothing is left to do, or so many steps."""
        while not self.idle and (limit is None or limit > 0):
            self.step()
            limit = None if limit is None else limit - 1

    # -- the state machine

    def _read_inbox(self, now_s: float) -> None:
        while self._inbox:
            what, thing = self._inbox.popleft()
            if what == "come":
                thing.queued_s, thing.owner, thing.place = now_s, self, WAITING
                self.waiting.append(thing)
                continue
            for seq in (*self.waiting, *self.running):
                if seq.request.id == thing:
                    self._leave(seq, "cancelled", now_s)

    def _plan(self, now_s: float) -> list[tuple[Live, int]]:
        """Let the scheduler choose, and take the blocks."""
        while self.waiting or self.running:
            batch = self.scheduler.next_batch(self._look(now_s))
            self._check(batch)
            work = self._apply(batch, now_s)
            if work:
                return work
            if not batch.preempt:
                if self.running:
                    raise PartError(
                        f"{type(self.scheduler).__name__}.next_batch gave no work to "
                        f"{len(self.running)} running requests and preempted none; name one"
                    )
                return []
        return []

    def _check(self, batch: Batch) -> None:
        """Refuse a batch that names strangers, or a request twice."""
        name = f"{type(self.scheduler).__name__}.next_batch"
        seen: set[int] = set()
        for seq in batch.preempt:
            if self._place(seq) != RUNNING or id(seq) in seen:
                raise PartError(f"{name} preempts {seq!r}, which does not run (any more)")
            seen.add(id(seq))
        for seq, tokens in batch.work:
            if not self._place(seq) or id(seq) in seen:
                raise PartError(f"{name} names {seq!r}, which is not here, or named twice")
            if not isinstance(tokens, int) or not 1 <= tokens <= seq.missing:
                raise PartError(
                    f"{name} gave {tokens} tokens to request {seq.request.id}, which lacks "
                    f"{seq.missing}; give 1 to that many"
                )
            seen.add(id(seq))

    def _place(self, seq: Running) -> str:
        """Where a sequence is, without a search: a long queue must not make steps slower."""
        mine = isinstance(seq, Live) and seq.owner is self
        return seq.place if mine else ""  # type: ignore[attr-defined]

    def _apply(self, batch: Batch, now_s: float) -> list[tuple[Live, int]]:
        """Preempt, admit and take blocks, in the scheduler's order; what then really runs."""
        for seq in batch.preempt:
            self._preempt(seq)
        work, size = [], self.pool.block_tokens
        for seq, tokens in batch.work:
            if not seq.held:
                tokens = self._admit(seq, tokens, now_s)
                if not tokens:
                    continue
            else:
                need = -(-(seq.computed + tokens) // size) - len(seq.held)
                if need > 0:
                    blocks = self.pool.take_blocks(need)
                    if blocks is None:
                        continue
                    seq.set_blocks(seq.held + [BLANK] * need, seq.table + blocks)
            whole = (seq.computed + tokens) // size > seq.computed // size
            if whole and self.pool.caching:
                self._fill(seq, seq.computed + tokens)
            work.append((seq, tokens))
        return work

    def _admit(self, seq: Live, tokens: int, now_s: float) -> int:
        """Let a waiting job in with what is cached of it; the tokens that it may compute."""
        pool, size = self.pool, self.pool.block_tokens
        hits = self._hits(seq)
        keys = seq.keys_to(hits, size)
        start = hits * size
        tokens = min(tokens, seq.length - start)
        need = -(-(start + tokens) // size) - hits
        if need > pool.free - pool.idle(keys):
            return 0
        table = pool.hold_blocks(keys)
        seq.set_blocks(keys + [BLANK] * need, table + (pool.take_blocks(need) or []))
        seq.computed = start
        if seq.started_s < 0:
            seq.started_s, seq.hits = now_s, start
            self.hit_tokens += start
        self.waiting.remove(seq)
        self.running.append(seq)
        seq.place = RUNNING
        return tokens

    def _fill(self, seq: Live, computed: int) -> None:
        """Give keys to blocks that become full.

        Those who come later in the same batch may share them at once: in each layer, all keys and
        values of a step are written before any are read.
        """
        size = self.pool.block_tokens
        first, last = seq.computed // size, computed // size
        keys = seq.keys_to(last, size)
        for place in range(first, last):
            if seq.held[place] == BLANK:
                seq.held[place] = self.pool.fill_block(keys[place], seq.table[place])

    def _preempt(self, seq: Live) -> None:
        """Take a running job's blocks; it begins again, at the head of the queue."""
        self.running.remove(seq)
        self._let_go(seq)
        seq.preempted += 1
        self.preemptions += 1
        self.waiting.appendleft(seq)
        seq.place = WAITING

    def _let_go(self, seq: Live) -> None:
        self.pool.give_back(seq.held, seq.table)
        seq.set_blocks([], [])
        seq.computed = 0

    def _end(
        self, work: list[tuple[Live, int]], chosen: list[int | None]
    ) -> tuple[int, float]:  # fmt: skip
        """What was computed is there now; tell whom it concerns. (Tokens made, when all were told).

        A token counts as made when it was told, and those of one step count as told together.
        """
        makers = []
        for (seq, tokens), token in zip(work, chosen, strict=True):
            seq.computed += tokens
            if token is None:
                continue
            makers.append(seq)
            seq.tokens.append(token)
            seq.generated += 1
            seq.planned = seq.generated
            if seq.job.on_token is not None:
                seq.job.on_token(token)
        now_s = self.clock()
        for seq in makers:
            if seq.generated == 1:
                seq.first_s = now_s
            seq.times_s.append(now_s)
            if seq.tokens[-1] == seq.job.end:
                self._leave(seq, "stop", now_s)
            elif seq.generated >= seq.request._output_tokens:
                self._leave(seq, "length", now_s)
        self.made += len(makers)
        return len(makers), now_s

    def _leave(self, seq: Live, reason: str, now_s: float, why: str = "") -> None:
        """A job ends: its blocks go back, and its client is told."""
        request = seq.request
        if seq.place == RUNNING:
            self.running.remove(seq)
            self._let_go(seq)
        else:
            self.waiting.remove(seq)
        seq.owner, seq.place = None, ""
        served = None
        if reason in ("stop", "length"):
            served = Served(
                request.id, request.arrival_s, seq.queued_s, seq.started_s, seq.first_s, now_s,
                request.prompt_tokens, seq.generated, seq.hits, seq.preempted, self.index,
                request.kind,
            )  # fmt: skip
        answer = Answer(request.id, tuple(seq.tokens[request.prompt_tokens :]), reason, why, served)
        if seq.job.on_end is not None:
            seq.job.on_end(answer)

    # -- when things go wrong

    def fail_running(self, why: str) -> None:
        """Fail what runs, and forget the cache: what a broken step left there cannot be trusted."""
        now_s = self.clock()
        for seq in list(self.running):
            self._leave(seq, "failed", now_s, why)
        self.pool = PagedPool(
            self.pool.blocks, self.pool.block_tokens, caching=self.pool.caching
        )  # fmt: skip

    def fail_all(self, why: str) -> None:
        """Fail everything that is here or on its way."""
        self._read_inbox(self.clock())
        self.fail_running(why)
        for seq in list(self.waiting):
            self._leave(seq, "failed", self.clock(), why)

    # -- what others see

    def _look(self, now_s: float) -> EngineView:
        pool = self.pool
        return EngineView(
            now_s=now_s, waiting=self.waiting, running=self.running, free_blocks=pool.free,
            block_tokens=pool.block_tokens, hit=self._hit, would_free=self._would_free,
        )  # fmt: skip

    def _would_free(self, seq: Running) -> int:
        return self.pool.alone(seq.held)

    def _hits(self, seq: Live) -> int:
        """Leading blocks that are here; one token at least is always computed."""
        if not self.pool.caching:
            return 0
        size = self.pool.block_tokens
        return self.pool.match(seq.keys_to((seq.length - 1) // size, size))

    def _hit(self, seq: Live) -> Hit:
        blocks = self._hits(seq)
        return Hit(blocks, self.pool.idle(seq.keys_to(blocks, self.pool.block_tokens)))

    def _match(self, request: Request) -> int:
        return self.pool.match(request.blocks) if self.pool.caching else 0

    @property
    def view(self) -> ReplicaView:
        """How it stands, for routers."""
        view = self._view
        view.waiting, view.running = len(self.waiting) + len(self._inbox), len(self.running)
        view.prefill_tokens, view.kv_tokens = self.prefill_tokens, self.kv_tokens
        view.free_blocks = self.pool.free
        return view

    def faults(self) -> list[str]:
        """What is wrong with the books of the cache; empty when all is well."""
        found = self.pool.faults()
        owners: dict[int, tuple[int, int]] = {}
        for seq in self.running:
            blocks, tokens = len(seq.table), seq.computed
            if blocks != len(seq.held) or blocks * self.pool.block_tokens < tokens:
                found.append(f"request {seq.request.id}: {blocks} blocks, {tokens} tokens")
            for key, number in zip(seq.held, seq.table, strict=False):
                mark = (key, seq.request.id if key == BLANK else -1)
                if owners.setdefault(number, mark) != mark:
                    found.append(f"block {number} is held as {owners[number]} and as {mark}")
        used = self.pool.blocks - self.pool.free
        if len(owners) != used:
            found.append(f"{len(owners)} blocks held by requests, {used} in use")
        return found


__all__ = ["RealReplica", "StepRecord"]
