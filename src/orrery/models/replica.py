"""A modelled replica: the state machine of an engine with continuous batching, without a clock.

A host tells it what comes and when (`submit`, `advance`), and reads when something is due
(`next_s`). One event is one change of the batch: steps in which the same requests make one token
each are done as one run, which an arrival cuts at the next step. State machines such as this one
(limits of the cache, preemption, shared prefixes) matter more for the result than the times of
single operations.

An engine that plans ahead (vLLM's asynchronous scheduling) chooses the next step while the device
computes this one. What comes meanwhile waits for the step after it, and blocks that become free
at the end of a step serve the step after the next.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from orrery.base.errors import PartError
from orrery.models.kv import BLANK, KVPool
from orrery.models.meters import Meters
from orrery.models.ports import Batch, EngineView, Hit, ReplicaView, Scheduler
from orrery.models.requests import Request, Running, Served

if TYPE_CHECKING:
    from orrery.models.steps import Steps

NEVER = math.inf
# The power of every so-many-th event of a kind is worked out and holds until the next one. A prime,
# so that it does not fall into step with requests that come at regular intervals.
POWER_EVERY = 7
NO_LIFE = -1


class Step:
    """What the device computes at once: (request, its life, whether it makes a token) each.

    A request that lost its blocks has a new life; what an older one made counts for nothing. A
    piece of a prompt that is not its last one makes no token. The `makers`, most of a batch, make
    one token each and lost nothing.
    """

    __slots__ = ("decode_kv", "decodes", "makers", "prefill", "spread", "work")

    def __init__(self) -> None:
        self.makers: list[Running] = []
        self.work: list[tuple[Running, int, bool]] = []
        self.prefill: list[tuple[int, int]] = []
        self.decodes = self.decode_kv = 0
        self.spread: tuple[int, int] | None = None

    @property
    def only_decodes(self) -> bool:
        return not self.prefill

    @property
    def everyone(self) -> list[Running]:
        """All who take part."""
        return self.makers + [seq for seq, _, _ in self.work] if self.work else self.makers

    def strike(self, seq: Running) -> None:
        """One who loses its blocks before the step has ended will do it again."""
        if seq in self.makers:
            self.makers = [each for each in self.makers if each is not seq]
            self.work.append((seq, NO_LIFE, True))


class Replica:
    """One engine with its queue, its batch and its cache.

    `steps` tells what a step takes, `scheduler` what it computes. `ahead` lets it plan the next
    step during this one. `speed` below 1 is a slow replica. Counters: `made` tokens, `hit_tokens`,
    `preemptions`, `busy_s`, and the `meters`.
    """

    def __init__(
        self, steps: Steps, scheduler: Scheduler, *, blocks: int, block_tokens: int = 16,
        caching: bool = True, ahead: bool = True, index: int = 0,
    ) -> None:  # fmt: skip
        self.steps, self.scheduler, self.index, self.ahead = steps, scheduler, index, ahead
        self.pool = KVPool(blocks, block_tokens, caching=caching)
        self.waiting: deque[Running] = deque()
        self.running: list[Running] = []
        self.speed = 1.0
        self.next_s = NEVER
        self.made = self.hit_tokens = self.preemptions = 0
        self.busy_s = 0.0
        self.meters = Meters()
        self._joules = getattr(steps, "joules", None)  # tables need not know power
        self._watts, self._until_power = [0.0, 0.0], [0, 0]  # of decodes, of steps with prompts
        self.prefill_tokens = self.kv_tokens = 0
        self._now: Step | None = None  # what is being computed
        self._next: Step | None = None  # what was planned for after it
        self._times = 0  # how often in a row
        self._began_s = 0.0
        self._unseen: list[Running] = []
        self._spread = bool(getattr(steps, "spread", False))
        self.view = ReplicaView(index, blocks, block_tokens, self._match)
        scheduler.start()

    # -- what a host calls

    def submit(self, request: Request, now_s: float) -> None:
        """A request comes."""
        self._refuse_too_long(request)
        seq = Running(request, now_s)
        self.waiting.append(seq)
        self._unseen.append(seq)
        self._owe(seq, request.prompt_tokens)
        if self._now is None:
            self._begin(now_s)
        else:
            if self._times > 1:
                self._cut(now_s)
            self._tell()

    def advance(self, now_s: float) -> list[Served]:
        """Do what is due: end the step or run, begin the next; those who are done."""
        if now_s < self.next_s:
            return []
        end_s = self.next_s
        done = self._end(end_s)
        self._begin(end_s)
        return done

    def set_speed(self, speed: float, now_s: float) -> None:
        """Compute faster or slower from the step on that is being computed."""
        if self._times > 1:
            self._cut(now_s)
        if self.next_s < NEVER:
            self.next_s = now_s + max(self.next_s - now_s, 0.0) * self.speed / speed
        self.speed = speed

    def drop_all(self) -> list[Request]:
        """Lose everything, as in a crash; the requests that were here."""
        lost = [seq.request for seq in (*self.running, *self.waiting)]
        for seq in self.running:
            self._release(seq)
        self.waiting.clear()
        self._unseen.clear()
        self.pool.forget()
        self.running, self._now, self._next, self._times = [], None, None, 0
        self.next_s, self.prefill_tokens, self.kv_tokens = NEVER, 0, 0
        self._tell()
        return lost

    def cancel(self, request_id: int, now_s: float) -> bool:
        """A client gives up; False if the request is not here (any more)."""
        for seq in self.waiting:
            if seq.request.id == request_id:
                self.waiting.remove(seq)
                self._owe(seq, 0)
                self._tell()
                return True
        for seq in self.running:
            if seq.request.id == request_id:
                if self._times > 1:
                    self._cut(now_s)
                # It leaves with the step that is planned last, like one that is done; the steps
                # of a run, which are booked when it ends, come before that.
                seq._limit = max(seq.planned + max(self._times - 1, 0), 1)
                seq.decoding = False
                return True
        return False

    # -- one step after the other

    def _begin(self, now_s: float) -> None:
        """Compute what was planned, and plan what comes after it."""
        step = self._next or self._plan(now_s)
        self._now, self._next = step, None
        if step is None:
            self._times, self.next_s = 0, NEVER
            self._tell()
            return
        if self.ahead:
            self._next = self._plan(now_s)
        self._began_s, self._times = now_s, 1
        if step.only_decodes:
            self._times += self._more_times(step, now_s)
        self.next_s = now_s + self._seconds(step, self._times) / self.speed
        self._tell()

    def _plan(self, now_s: float) -> Step | None:
        """Let the scheduler choose and take the blocks; None when there is nothing to do."""
        for seq in self._unseen:
            seq.queued_s = now_s
        self._unseen.clear()
        while self.waiting or self.running:
            batch = self.scheduler.next_batch(self._look(now_s))
            step = self._apply(batch, now_s)
            if step.makers or step.work:
                return step
            if not batch.preempt:
                if self._now is None and self.running:
                    raise PartError(
                        f"{type(self.scheduler).__name__}.next_batch gave no work to "
                        f"{len(self.running)} running requests and preempted none; name one"
                    )
                return None
        return None

    def _apply(self, batch: Batch, now_s: float) -> Step:
        """Preempt, admit and take blocks, in the scheduler's order; what then really runs.

        From now on its tokens count as computed.
        """
        for seq in batch.preempt:
            self._preempt(seq)
        step = Step()
        work, decodes, decode_kv = step.work, len(batch.decodes), 0
        for seq in batch.decodes:
            seq.computed = computed = seq.computed + 1
            seq.planned = planned = seq.planned + 1
            decode_kv += computed
            if planned >= seq._limit:
                seq.decoding = False
        step.makers = batch.decodes
        self.kv_tokens += decodes
        for seq, tokens in batch.pieces:
            tokens = self._take(seq, tokens, now_s)
            if not tokens:
                continue
            seq.computed += tokens
            makes = seq.computed == seq.request.prompt_tokens + seq.planned
            if tokens == 1 and makes and seq.planned:
                decodes += 1
                decode_kv += seq.computed
            else:
                step.prefill.append((tokens, seq.computed - tokens))
            self.kv_tokens += tokens
            seq.planned += makes
            seq.decoding = makes and seq.planned < seq._limit
            work.append((seq, seq.preempted, makes))
        step.decodes, step.decode_kv = decodes, decode_kv
        if self._spread and decodes:
            kvs = [seq.computed for seq, tokens in batch.work if tokens == 1]
            step.spread = (min(kvs), max(kvs))
        return step

    def _take(self, seq: Running, tokens: int, now_s: float) -> int:
        """Blocks for some tokens of a request; how many it may compute."""
        if tokens < 1 or tokens > seq.missing:
            raise PartError(
                f"{type(self.scheduler).__name__}.next_batch gave {tokens} tokens to request "
                f"{seq.request.id}, which lacks {seq.missing}; give 1 to that many"
            )
        if not seq.blocks_held:
            tokens = self._admit(seq, tokens, now_s)
            if not tokens:
                return 0
        else:
            need = -(-(seq.computed + tokens) // self.pool.block_tokens) - seq.blocks_held
            if need > 0 and not self._grow(seq, need):
                return 0
        if seq.held:
            self._fill(seq, seq.computed + tokens)
        if seq.owed:
            self._owe(seq, max(seq.owed - tokens, 0))
        return tokens

    def _admit(self, seq: Running, tokens: int, now_s: float) -> int:
        """Let a waiting request in with what is cached of it; the tokens that it may compute."""
        pool, request = self.pool, seq.request
        shared, own = self._hits(seq)
        keys = request.blocks[:shared]
        start = (shared + own) * pool.block_tokens
        tokens = min(tokens, seq.length - start)
        need = -(-(start + tokens) // pool.block_tokens) - shared - own
        if need > pool.free - pool.idle(keys) - own:
            return 0
        if shared:
            pool.hold(keys)
        if own:
            pool.regain(request.own_key, own)
        seq.held, seq.own, seq.blocks_held = list(keys), own, shared + own
        self._grow(seq, need)
        seq.computed = start
        self.kv_tokens += start
        self._owe(seq, max(seq.owed - start, 0))
        if seq.started_s < 0:
            seq.started_s, seq.hits = now_s, start
            self.hit_tokens += start
        if self.waiting[0] is seq:
            self.waiting.popleft()
        else:
            self.waiting.remove(seq)
        self.running.append(seq)
        return tokens

    def _grow(self, seq: Running, blocks: int) -> bool:
        """Take more blocks: first those of the prompt that others may share."""
        if not self.pool.take(blocks):
            return False
        self._book(seq, blocks)
        return True

    def _book(self, seq: Running, blocks: int) -> None:
        """Blocks that were taken, or will be at once, are those of a request."""
        seq.blocks_held = held = seq.blocks_held + blocks
        seq.room = held * self.pool.block_tokens
        if seq.request.blocks:
            shared = len(seq.request.blocks) - len(seq.held)
            if shared > 0:
                shared = min(shared, blocks)
                seq.held.extend([BLANK] * shared)
                blocks -= shared
        seq.own += blocks

    def _fill(self, seq: Running, computed: int) -> None:
        """Give keys to the shared blocks that become full."""
        size, pool, held, keys = self.pool.block_tokens, self.pool, seq.held, seq.request.blocks
        for place in range(seq.computed // size, min(computed // size, len(held))):
            if held[place] == BLANK:
                held[place] = pool.fill(keys[place])

    def _release(self, seq: Running) -> None:
        """Give a request's blocks back; what is its own goes before what others may share."""
        shared = len(seq.held)
        if seq.own:
            full = max(seq.computed // self.pool.block_tokens - shared, 0)
            self.pool.release_own(seq.request.own_key, seq.own, min(full, seq.own))
        if shared:
            self.pool.release(seq.held)
        seq.held, seq.own, seq.blocks_held, seq.room = [], 0, 0, 0

    def _preempt(self, seq: Running) -> None:
        """Take a running request's blocks; it will begin again, at the head of the queue."""
        self.running.remove(seq)
        for step in (self._now, self._next):
            if step is not None:
                step.strike(seq)
        self._let_go(seq)
        seq.computed, seq.planned, seq.decoding = 0, seq.generated, False
        seq.preempted += 1
        self.preemptions += 1
        self._owe(seq, seq.length)
        self.waiting.appendleft(seq)

    def _let_go(self, seq: Running) -> None:
        self._release(seq)
        self.kv_tokens -= seq.computed
        self._owe(seq, 0)

    def _owe(self, seq: Running, tokens: int) -> None:
        """So many tokens must be computed before the request makes its next one."""
        self.prefill_tokens += tokens - seq.owed
        seq.owed = tokens

    def _end(self, now_s: float) -> list[Served]:
        """What was computed is there now."""
        step, times = self._now, self._times
        assert step is not None
        self._now, done = None, []
        began_s, in_step = self._began_s, 0
        self._read_meters(step, now_s - began_s, times)
        if times > 1:
            self._repeat(step, times - 1)
        each_s = (now_s - began_s) / times
        for seq in step.makers:
            if seq.last_s == began_s:
                in_step += 1
            else:
                self._stood_still(seq, began_s + each_s, each_s, times)
            seq.last_s = now_s
            seq.generated = made = seq.generated + times
            if made >= seq._limit:
                done.append(seq)
        self.made += times * len(step.makers)
        for seq, life, makes in step.work:
            # One that lost its blocks while this was computed has to do it again.
            if not makes or seq.preempted != life:
                continue
            if not seq.generated:
                seq.first_s = now_s
            elif seq.last_s == began_s:
                in_step += 1
            else:
                self._stood_still(seq, began_s + each_s, each_s, times)
            seq.last_s = now_s
            seq.generated += times
            self.made += times
            if seq.generated >= seq._limit:
                done.append(seq)
        if in_step:
            self.meters.gap(each_s, in_step * times)
        return [self._finish(seq, now_s) for seq in done]

    def _stood_still(self, seq: Running, now_s: float, each_s: float, times: int) -> None:
        """Count the gaps of one that did not take part in the step before."""
        if seq.last_s >= 0:
            self.meters.gap(now_s - seq.last_s, 1)
        if times > 1:
            self.meters.gap(each_s, times - 1)

    def _read_meters(self, step: Step, took_s: float, times: int) -> None:
        meters, pool = self.meters, self.pool
        self.busy_s += took_s
        used = pool.blocks - pool.free
        meters.block_s += used * took_s
        if used > meters.peak_use * pool.blocks:
            meters.peak_use = used / pool.blocks
        if self._joules is None:
            return
        kind = 1 if step.prefill else 0
        if self._until_power[kind] <= 0 and took_s > 0:
            self._until_power[kind] = POWER_EVERY
            once_J = self._joules(step.prefill, step.decodes, step.decode_kv)
            self._watts[kind] = once_J / (took_s * self.speed / times)
        self._until_power[kind] -= 1
        meters.joules += self._watts[kind] * took_s

    def _finish(self, seq: Running, now_s: float) -> Served:
        self.running.remove(seq)
        self._let_go(seq)
        request = seq.request
        if seq.generated >= request._output_tokens:  # a cancelled one tells nothing of lengths
            self.scheduler.finished(seq, now_s)
        return Served(
            request.id, request.arrival_s, seq.queued_s, seq.started_s, seq.first_s, now_s,
            request.prompt_tokens, seq.generated, seq.hits, seq.preempted, self.index, request.kind,
        )  # fmt: skip

    # -- runs of equal steps

    def _more_times(self, step: Step, now_s: float) -> int:
        """How often the step can be repeated: until a request ends, or as blocks last."""
        after = self._next or step
        if after.prefill:
            return 0
        count, everyone = len(self.running), after.everyone
        if not len(everyone) == len(step.makers) + len(step.work) == count:
            return 0
        if not self.scheduler.steady(self._look(now_s)):
            return 0
        more = min([seq._limit - seq.planned for seq in everyone])
        free = self.pool.free
        # At most so many blocks are lacking; only where they might not be there, it is reckoned.
        most = count * (more // self.pool.block_tokens + 1)
        if more > 0 and most > free and self._blocks_for(after, more) > free:
            fits, fails = 0, more
            while fails - fits > 1:
                middle = (fits + fails) // 2
                if self._blocks_for(after, middle) > self.pool.free:
                    fails = middle
                else:
                    fits = middle
            more = fits
        return max(more, 0)

    def _blocks_for(self, step: Step, more: int) -> int:
        """Blocks that its requests lack for so many more tokens each."""
        size = self.pool.block_tokens
        return sum(
            -(-(seq.computed + more) // size) - seq.blocks_held for seq in step.everyone
        )  # fmt: skip

    def _repeat(self, step: Step, more: int) -> None:
        """The plan was the same so often more: take the blocks of those steps."""
        size = self.pool.block_tokens
        everyone = step.everyone
        self.kv_tokens += more * len(everyone)
        taken = 0
        for seq in everyone:
            seq.computed = computed = seq.computed + more
            lacking = computed - seq.room
            if lacking > 0:
                blocks = -(-lacking // size)
                taken += blocks
                self._book(seq, blocks)
            seq.planned = planned = seq.planned + more
            if planned >= seq._limit:
                seq.decoding = False
        self.pool.take(taken)
        if self._next is not None:
            # The planned step is now one that comes so many steps later.
            self._next.decode_kv += more * self._next.decodes
            if self._next.spread:
                low, high = self._next.spread
                self._next.spread = (low + more, high + more)

    def _cut(self, now_s: float) -> None:
        """End the run with the step that is being computed."""
        step, passed_s = self._now, (now_s - self._began_s) * self.speed
        assert step is not None
        low, high = 0, self._times
        while high - low > 1:
            middle = (low + high) // 2
            if self._seconds(step, middle) <= passed_s:
                low = middle
            else:
                high = middle
        self._times = high
        self.next_s = self._began_s + self._seconds(step, high) / self.speed

    def _seconds(self, step: Step, times: int) -> float:
        spread = (step.spread,) if step.spread else ()
        if step.prefill:
            return self.steps.seconds(step.prefill, step.decodes, step.decode_kv, *spread)
        return self.steps.decode_run(step.decodes, step.decode_kv, times, *spread)

    # -- what others see

    def _look(self, now_s: float) -> EngineView:
        pool = self.pool
        return EngineView(
            now_s, self.waiting, self.running, pool.free, pool.block_tokens, self._hit,
            self._would_free,
        )  # fmt: skip

    def _tell(self) -> None:
        """Bring what routers see up to date."""
        view = self.view
        view.waiting, view.running = len(self.waiting), len(self.running)
        view.prefill_tokens, view.kv_tokens = self.prefill_tokens, self.kv_tokens
        view.free_blocks = self.pool.free

    def _match(self, request: Request) -> int:
        return self.pool.match(request.blocks) if self.pool.caching else 0

    def _would_free(self, seq: Running) -> int:
        return self.pool.alone(seq.held) + seq.own

    def _hits(self, seq: Running) -> tuple[int, int]:
        """Leading blocks that are here, shared and own; one token at least is always computed."""
        pool, request = self.pool, seq.request
        if not pool.caching:
            return 0, 0
        most = (seq.length - 1) // pool.block_tokens
        keys = request.blocks[:most]
        shared = pool.match(keys) if keys else 0
        # Its own content comes after all of the shared, and is here only if it was preempted.
        if shared < len(request.blocks) or not seq.preempted:
            return shared, 0
        return shared, min(pool.own(request.own_key), most - shared)

    def _hit(self, seq: Running) -> Hit:
        shared, own = self._hits(seq)
        if not shared and not own:
            return NO_HIT
        return Hit(shared + own, self.pool.idle(seq.request.blocks[:shared]) + own)

    def _refuse_too_long(self, request: Request) -> None:
        need = -(-(request.prompt_tokens + request._output_tokens) // self.pool.block_tokens)
        if need > self.pool.blocks:
            raise PartError(
                f"request {request.id} needs {need} blocks, the replica has {self.pool.blocks}; "
                "refuse it before it is routed, or give the replica more memory"
            )

    def faults(self) -> list[str]:
        """What is wrong with the books of the cache."""
        found = self.pool.faults()
        held = sum(each.blocks_held for each in self.running)
        used = self.pool.blocks - self.pool.free
        if held < used:
            found.append(f"{held} blocks held by requests, {used} in use")
        computed = sum(seq.computed for seq in self.running)
        if computed != self.kv_tokens:
            found.append(f"{computed} tokens computed, {self.kv_tokens} counted")
        return found


NO_HIT = Hit(0, 0)


def drain(replica: Replica, requests: Iterable[Request]) -> list[Served]:
    """Serve requests in the order in which they come, alone on one replica, to the end."""
    done: list[Served] = []
    for request in requests:
        while replica.next_s <= request.arrival_s:
            done += replica.advance(replica.next_s)
        replica.submit(request, request.arrival_s)
    while replica.next_s < NEVER:
        done += replica.advance(replica.next_s)
    return done


__all__ = ["NEVER", "Replica", "drain"]
