"""One instance: continuous batching with chunks of prompts, where one event is one change.

The decodes of a batch are counted, not walked through: requests that make tokens have a place in a
heap by the step in which they end, so a step costs the same however large the batch is. Steps that
only make tokens are done as one run, which an arrival cuts at the next step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any

from orrery.models.requests import Request
from orrery.systems.serve.problems.llm_parallelism.plans import Placed
from orrery.systems.serve.problems.llm_parallelism.ports import InstanceView, Parallelism

NEVER = math.inf
# A request is let in only where this share of the cache stays free for the answers that grow.
HEADROOM = 0.01


class Seq:
    """A request under way: what is computed of it, and where its cache lies.

    need, done   prompt tokens (and tokens made before it lost its cache) to compute, and computed
    generated    tokens made before `joined`, the step with which its answer went on here
    life         changes whenever it leaves a batch, so that what was planned for it is void
    """

    __slots__ = (
        "done", "first_s", "generated", "joined", "life", "limit", "moved", "need", "rank",
        "request", "restarts", "started_s", "tier",
    )  # fmt: skip

    def __init__(self, request: Request) -> None:
        self.request, self.tier = request, request.priority
        self.rank: tuple[float, ...] = ()
        self.limit = request._output_tokens
        self.need, self.done = request.prompt_tokens, 0
        self.generated = self.joined = self.life = self.moved = self.restarts = 0
        self.first_s = self.started_s = -1.0

    @property
    def band(self) -> int:
        """The first number of its rank."""
        return int(self.rank[0])

    def lose_cache(self) -> None:
        """Everything must be computed again; tokens that were made stay made."""
        self.life += 1
        self.restarts += 1
        self.need, self.done = self.request.prompt_tokens + self.generated, 0


class Instance:
    """GPUs that serve as one: a queue, a batch, a cache.

    `steps` are the step times; `done(seq, now_s)` is told of answers, `prefilled(self, seq,
    now_s)` takes over a request whose prompt is computed, or says no. The cluster that owns it
    calls `submit`, `advance`, `take_in` and the like, and reads `next_s`.
    """

    def __init__(
        self, index: int, placed: Placed, steps: Any, cost: Any, capacity: int, policy: Parallelism,
        *, chunk_tokens: int, most_seqs: int, done: Callable[[Seq, float], None],
        prefilled: Callable[[Instance, Seq, float], bool],
    ) -> None:  # fmt: skip
        self.placed, self.steps, self.policy = placed, steps, policy
        self.view = InstanceView(index, placed, capacity, cost, chunk_tokens)
        self.index, self.most_seqs = index, most_seqs
        self._done, self._prefilled = done, prefilled
        self.waiting: list[tuple[tuple[float, ...], int, Seq]] = []
        self.partial: list[Seq] = []
        self.decoding: dict[int, Seq] = {}
        self.outbox: dict[int, Seq] = {}  # computed here, waiting for a place elsewhere
        self.landed: list[Seq] = []  # whose cache has come from elsewhere
        self.coming = 0  # tokens reserved for requests on their way here
        self._ends: list[tuple[int, int, int, Seq]] = []
        self._work: list[tuple[Seq, int]] = []
        self.step, self._times, self._began_s = 0, 0, 0.0
        self.next_s = NEVER
        self.halt = False  # stop at the next boundary
        self.closed = False  # no prompt is let in
        self.on_halt: Callable[[Instance, float], None] | None = None
        self.made = self.preemptions = 0
        self.busy_s = 0.0
        self.over = 0  # times that the cache was found fuller than it is

    # -- what the cluster calls

    def submit(self, seq: Seq, now_s: float) -> None:
        """A request joins the queue."""
        self._queue(seq)
        self.wake(now_s)

    def wake(self, now_s: float) -> None:
        """Something changed: begin if idle, else look again after the present step."""
        if not self._times:
            self._begin(now_s)
        elif self._times > 1:
            self._cut(now_s)

    def advance(self, now_s: float) -> None:
        """The step or run that was due now has ended; begin the next."""
        self._end(now_s)
        self._begin(now_s)

    def take_in(self, seq: Seq, now_s: float) -> None:
        """A request's cache has landed here, for which `coming` was reserved."""
        self.coming -= seq.need
        self.landed.append(seq)
        self.wake(now_s)

    def reserve(self, seq: Seq) -> None:
        """Keep room for a request whose cache is about to come."""
        self.coming += seq.need
        self.view.kv_tokens += seq.need

    def room(self) -> int:
        """Tokens that fit beside what is there."""
        return self.view.capacity - self.view.kv_tokens

    def stop(self, now_s: float, then: Callable[[Instance, float], None]) -> None:
        """Halt at the next boundary of steps, and tell."""
        self.halt, self.on_halt = True, then
        self.wake(now_s)

    def clear(self) -> tuple[list[Seq], list[Seq]]:
        """Give everything up: (requests with a cache to take along, requests without)."""
        carried = [self._leave(seq) for seq in list(self.decoding.values())]
        carried += [*self.landed, *self.outbox.values()]
        bare = [*self.partial, *(seq for _, _, seq in sorted(self.waiting, key=lambda w: w[:2]))]
        for seq in (*self.partial, *self.outbox.values()):
            seq.life += 1
        for seq in self.partial:
            seq.done = 0
        view = self.view
        view.kv_tokens = self.coming
        view.waiting = view.waiting_tokens = view.decodes = view.decode_kv = 0
        view.queued = {}
        self.waiting, self.partial, self.landed, self.outbox, self._work = [], [], [], {}, []
        self._times, self.next_s = 0, NEVER
        return carried, bare

    def give_waiting(self) -> list[Seq]:
        """Those in the queue, who go elsewhere; whoever has begun stays."""
        queue = [seq for _, _, seq in sorted(self.waiting, key=lambda w: w[:2])]
        view = self.view
        for seq in queue:
            view.queued[seq.band] -= seq.need
        self.waiting, view.waiting, view.waiting_tokens = [], 0, 0
        return queue

    def unreserve(self, tokens: int) -> None:
        """What was about to come will not."""
        self.coming -= tokens
        self.view.kv_tokens -= tokens

    @property
    def empty(self) -> bool:
        """Whether no request has any cache here, or is about to."""
        return not (self.decoding or self.partial or self.outbox or self.landed or self.coming)

    def release(self, seq: Seq) -> None:
        """A request that waited in the outbox is gone, and with it its cache."""
        del self.outbox[seq.request.id]
        self.view.kv_tokens -= seq.need

    def shrink(self, capacity: int, now_s: float) -> list[Seq]:
        """Less room from now on: who has to go, last in rank first."""
        self.view.capacity = capacity
        if self._times > 1:
            self._cut(now_s)
        # The step being computed still adds a token to each answer.
        gone: list[Seq] = []
        while self.view.kv_tokens + self.view.decodes * max(self._times, 1) > capacity:
            seq = self._victim()
            if seq is None:
                break
            gone.append(seq)
        for seq in gone:
            self._queue(seq)
        return gone

    # -- a step

    def _queue(self, seq: Seq) -> None:
        heappush(self.waiting, (seq.rank, seq.request.id, seq))
        view = self.view
        view.waiting += 1
        view.waiting_tokens += seq.need
        view.queued[seq.band] = view.queued.get(seq.band, 0) + seq.need

    def _begin(self, now_s: float) -> None:
        view = self.view
        view.now_s = now_s
        self._times, self.next_s = 0, NEVER
        for seq in self.landed:
            self._join(seq)
        self.landed.clear()
        if self.halt:
            tell, self.on_halt = self.on_halt, None
            if tell is not None:
                tell(self, now_s)
            return
        while view.kv_tokens > view.capacity:
            seq = self._victim()
            if seq is None:
                self.over += 1
                break
            self._queue(seq)
        if self.partial or (self.waiting and not self.closed):
            self._choose(now_s)
        count = view.decodes
        if self._work:
            self._times = 1
            chunks = [(tokens, seq.done) for seq, tokens in self._work]
            took_s = self.steps.seconds(chunks, count, view.decode_kv)
        elif count:
            left = self._next_end() - self.step
            self._times = min(left, 1 + (view.capacity - view.kv_tokens) // count)
            took_s = self.steps.decode_run(count, view.decode_kv, self._times)
        else:
            return
        self._began_s, self.next_s = now_s, now_s + took_s

    def _next_end(self) -> int:
        ends = self._ends
        while ends[0][2] != ends[0][3].life:
            heappop(ends)
        return ends[0][0]

    def _choose(self, now_s: float) -> None:
        """Chunks of prompts beside the decodes: by rank, those begun and those waiting."""
        view, chunk = self.view, self.policy.chunk
        budget, chosen = view.chunk_tokens - view.decodes, 0
        begun = sorted(self.partial, key=lambda seq: seq.rank, reverse=True)
        stuck = self.closed  # nobody overtakes a head of the queue that is not let in
        while chosen < budget:
            if not stuck and self.waiting and not (begun and begun[-1].rank < self.waiting[0][0]):
                seq = self.waiting[0][2]
                tokens = min(chunk(seq.request, view, chosen), budget - chosen, seq.need)
                stuck = tokens <= 0 or not self._let_in(seq, now_s)
                if stuck:
                    continue
            elif begun:
                seq = begun.pop()
                left = seq.need - seq.done
                tokens = min(chunk(seq.request, view, chosen), budget - chosen, left)
            else:
                return
            if tokens > 0:
                self._work.append((seq, tokens))
                chosen += tokens

    def _let_in(self, seq: Seq, now_s: float) -> bool:
        view = self.view
        if view.decodes + len(self.partial) >= self.most_seqs:
            return False
        room = view.capacity - view.kv_tokens
        spare = int(HEADROOM * view.capacity) if view.kv_tokens else 0
        if seq.need + 1 > room - spare and not (
            self.policy.yields(seq.request, view) and self._make_room(seq, spare)
        ):
            return False
        # Whoever made room is in the queue now, and may be ahead in it.
        if self.waiting[0][2] is seq:
            heappop(self.waiting)
        else:
            self.waiting = [each for each in self.waiting if each[2] is not seq]
            heapify(self.waiting)
        view.waiting -= 1
        view.waiting_tokens -= seq.need
        view.kv_tokens += seq.need
        self.partial.append(seq)
        if seq.started_s < 0:
            seq.started_s = now_s
        return True

    def _make_room(self, seq: Seq, spare: int) -> bool:
        """Take the cache of lower tiers, if that is enough."""
        lower = [each for each in self.decoding.values() if each.tier > seq.tier]
        freed = sum(self._context(each) for each in lower)
        if seq.need + 1 > self.room() - spare + freed:
            return False
        while seq.need + 1 > self.room() - spare:
            gone = self._victim(above=seq.tier)
            assert gone is not None
            self._queue(gone)
        return True

    def _context(self, seq: Seq) -> int:
        return seq.request.prompt_tokens + seq.generated + self.step - seq.joined

    def _victim(self, above: int = -1) -> Seq | None:
        """Who loses its cache first: the last in rank of those that make tokens, of tiers above."""
        may = [each for each in self.decoding.values() if each.tier > above]
        if not may:
            return None
        seq = max(may, key=lambda each: (each.rank, each.request.id))
        self._leave(seq)
        seq.lose_cache()
        self.preemptions += 1
        return seq

    def _join(self, seq: Seq) -> None:
        """A request whose cache is here makes tokens from the next step on."""
        view = self.view
        seq.joined = self.step
        self.decoding[seq.request.id] = seq
        view.decodes += 1
        view.running[seq.band] = view.running.get(seq.band, 0) + 1
        context = seq.request.prompt_tokens + seq.generated
        view.decode_kv += context
        view.kv_tokens += context - seq.need
        seq.need = context
        heappush(self._ends, (self.step + seq.limit - seq.generated, seq.request.id, seq.life, seq))

    def _leave(self, seq: Seq) -> Seq:
        view = self.view
        context = self._context(seq)
        seq.generated += self.step - seq.joined
        seq.joined, seq.need = self.step, context
        seq.life += 1
        del self.decoding[seq.request.id]
        view.decodes -= 1
        view.running[seq.band] -= 1
        view.decode_kv -= context
        view.kv_tokens -= context
        return seq

    def _end(self, now_s: float) -> None:
        view, times = self.view, self._times
        self.busy_s += now_s - self._began_s
        self._times, self.next_s = 0, NEVER
        count = view.decodes
        if count:
            self.step += times
            view.decode_kv += count * times
            view.kv_tokens += count * times
            self.made += count * times
            ends = self._ends
            while ends and (ends[0][0] <= self.step or ends[0][2] != ends[0][3].life):
                _, _, life, seq = heappop(ends)
                if seq.life == life:
                    self._done(self._leave(seq), now_s)
        else:
            self.step += times
        work, self._work = self._work, []
        for seq, tokens in work:
            seq.done += tokens
            view.queued[seq.band] -= tokens
            if seq.done >= seq.need:
                self._prompt_done(seq, now_s)

    def _prompt_done(self, seq: Seq, now_s: float) -> None:
        self.partial.remove(seq)
        self.made += 1
        seq.generated += 1
        if seq.first_s < 0:
            seq.first_s = now_s
        if seq.generated >= seq.limit:
            self.view.kv_tokens -= seq.need
            self._done(seq, now_s)
        elif not self._prefilled(self, seq, now_s):
            self._join(seq)
        else:
            self.outbox[seq.request.id] = seq

    def _cut(self, now_s: float) -> None:
        """End the run with the step that is being computed."""
        view = self.view
        within = self.steps.decode_steps_within(
            view.decodes, view.decode_kv, now_s - self._began_s, self._times - 1
        )
        self._times = within + 1
        took_s = self.steps.decode_run(view.decodes, view.decode_kv, self._times)
        self.next_s = self._began_s + took_s


__all__ = ["NEVER", "Instance", "Seq"]
