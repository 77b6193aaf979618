"""An instance of the pool: a replica that also encodes images and takes over caches of others.

The state machine is that of `orrery.models.replica.Replica`. Added are what an elastic service
needs: jobs that only encode, requests whose cache was computed elsewhere, requests that leave for
another instance at the end of a step, reports of which blocks came and went, and a second tier of
cached blocks in host memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

from orrery.models.kv import EMPTY, KVPool
from orrery.models.ports import Batch, Hit, Scheduler
from orrery.models.replica import Replica, Step
from orrery.models.requests import Request, Running, Served
from orrery.systems.serve.problems.llm_elastic.ports import OFFLINE, InstanceView


class Encode(Request):
    """A job that only encodes images; its tokens stand for those of the images."""

    __slots__ = ()


class Left(NamedTuple):
    """A request that left an instance in the middle: tokens made, tokens in the cache."""

    request: Request
    generated: int
    computed: int
    first_s: float
    started_s: float


class ReportingPool(KVPool):
    """A block pool that says which keyed blocks came and went, with a tier in host memory.

    A block that is evicted from the device stays in host memory for a while (`host_blocks` of them,
    the one unused for longest goes first), and can be loaded again.
    """

    def __init__(self, blocks: int, block_tokens: int, host_blocks: int) -> None:
        super().__init__(blocks, block_tokens)
        self.host_blocks = host_blocks
        self.host: OrderedDict[int, None] = OrderedDict()
        self.got: list[int] = []
        self.lost: list[int] = []

    def fill(self, key: int) -> int:
        held = super().fill(key)
        if held == key:
            if key not in self.host:
                self.got.append(key)
            else:
                self.host.move_to_end(key)
        return held

    def take(self, count: int) -> bool:
        if count > self.free:
            return False
        left = count
        for key, there in self._free.items():
            if left <= 0:
                break
            if 0 <= key < EMPTY:
                self._spill(key)
            left -= there
        return super().take(count)

    def _spill(self, key: int) -> None:
        """A block leaves the device; it is reported lost only when host memory drops it too."""
        self.host[key] = None
        self.host.move_to_end(key)
        while len(self.host) > self.host_blocks:
            oldest, _ = self.host.popitem(last=False)
            if oldest not in self._holders and (oldest not in self._free or oldest == key):
                self.lost.append(oldest)

    def release_own(self, key: int, count: int, full: int) -> None:
        # A request may come back to an instance that it left before; its old content is then stale.
        stale = self._free.pop(key, 0)
        if stale:
            self.free -= stale
            self._add_empty(stale)
        super().release_own(key, count, full)

    def here(self, keys: Sequence[int]) -> tuple[int, int]:
        """How many of the first keys are here in some tier, and how many of those only in host."""
        count = loads = 0
        for key in keys:
            if key in self._holders or key in self._free:
                count += 1
            elif key in self.host:
                count += 1
                loads += 1
            else:
                break
        return count, loads

    def bring(self, keys: Sequence[int]) -> int:
        """Put blocks that were loaded or fetched into free ones; how many found room."""
        wanted = [key for key in keys if key not in self._holders and key not in self._free]
        held = []
        for key in wanted:
            # Never more than half of what is free: those who run must be able to grow.
            if self.free < 2 or not self.take(1):
                break
            held.append(self.fill(key))
        self.release(held)
        return len(held)

    def reports(self) -> tuple[list[int], list[int]]:
        """Keys that came and went since the last report."""
        got, lost, self.got, self.lost = self.got, self.lost, [], []
        return got, lost

    def forget(self) -> None:
        super().forget()
        self.host.clear()
        self.got, self.lost = [], []


class Instance(Replica):
    """One engine of the pool, with a role."""

    def __init__(
        self, steps: Any, scheduler: Scheduler, *, blocks: int, block_tokens: int, index: int,
        host_blocks: int = 0,
    ) -> None:  # fmt: skip
        # The engine's own overlap of host and device is in its step times, so plans are not ahead.
        super().__init__(
            steps, scheduler, blocks=blocks, block_tokens=block_tokens, ahead=False, index=index
        )
        self.pool: ReportingPool = ReportingPool(blocks, block_tokens, host_blocks)
        self.view: InstanceView = InstanceView(index, blocks, block_tokens)
        self.alive = True
        self.to_encode: dict[int, float] = {}  # request -> seconds of its images
        self.foreign: dict[int, int] = {}  # request -> tokens of its cache that came with it
        self.leaving = False  # whether decodes leave at the end of this step
        self.left: list[Left] = []
        self._encode_s = 0.0
        self.encoding_s = 0.0

    # -- coming

    def submit(self, request: Request, now_s: float, encode_s: float = 0.0) -> None:
        """A request comes, with images that are encoded in the step of its first chunk."""
        if encode_s:
            self.to_encode[request.id] = encode_s
            self.view.encode_s += encode_s
        if request.priority == OFFLINE:
            self.view.offline += 1
            self.view.offline_waiting += 1
        super().submit(request, now_s)

    def adopt(self, left: Left, now_s: float) -> None:
        """A request comes with its cache: it goes on where it stopped."""
        request = left.request
        self._refuse_too_long(request)
        seq = Running(request, now_s)
        seq.generated = seq.planned = left.generated
        seq.first_s, seq.started_s = left.first_s, left.started_s
        self.foreign[request.id] = left.computed
        self.waiting.append(seq)
        self._unseen.append(seq)
        if self._now is None:
            self._begin(now_s)
        else:
            if self._times > 1:
                self._cut(now_s)
            self._tell()

    # -- steps

    def advance(self, now_s: float) -> list[Served]:
        if now_s < self.next_s:
            return []
        end_s = self.next_s
        done = self._end(end_s)
        if self.leaving:
            self._let_leave()
        self._begin(end_s)
        return done

    def _apply(self, batch: Batch, now_s: float) -> Step:
        if not self.to_encode:
            return super()._apply(batch, now_s)
        # Jobs that only encode take no part in the language model's step.
        images = [pair for pair in batch.pieces if isinstance(pair[0].request, Encode)]
        if images:
            pieces = [pair for pair in batch.pieces if not isinstance(pair[0].request, Encode)]
            step = super()._apply(batch._replace(pieces=pieces), now_s)
            step.work += super()._apply(Batch(images), now_s).work
        else:
            step = super()._apply(batch, now_s)
        for seq, _, _ in step.work:
            if seq.request.id in self.to_encode:
                spent_s = self.to_encode.pop(seq.request.id)
                self._encode_s += spent_s
                self.encoding_s += spent_s
                self.view.encode_s = max(self.view.encode_s - spent_s, 0.0)
        return step

    def _more_times(self, step: Step, now_s: float) -> int:
        only_images = not step.prefill and not step.decodes
        return 0 if self._encode_s or only_images else super()._more_times(step, now_s)

    def _seconds(self, step: Step, times: int) -> float:
        took_s = super()._seconds(step, times) if step.prefill or step.decodes else 1e-6
        if self._encode_s:
            took_s, self._encode_s = took_s + self._encode_s, 0.0
        return took_s

    # -- who comes with a cache, who leaves with one

    def _hit(self, seq: Running) -> Hit:
        computed = self.foreign.get(seq.request.id)
        if computed is None:
            return super()._hit(seq)
        blocks = computed // self.pool.block_tokens
        return Hit(blocks, blocks)

    def _admit(self, seq: Running, tokens: int, now_s: float) -> int:
        if seq.request.priority == OFFLINE:
            self.view.offline_waiting -= 1
        computed = self.foreign.get(seq.request.id)
        if computed is None:
            tokens = super()._admit(seq, tokens, now_s)
        else:
            tokens = self._settle(seq, computed, now_s)
        if not tokens and seq.request.priority == OFFLINE:
            self.view.offline_waiting += 1
        return tokens

    def _settle(self, seq: Running, computed: int, now_s: float) -> int:
        """Let in a request with the cache that it brought; it may make one token."""
        need = -(-(computed + 1) // self.pool.block_tokens)
        if need > self.pool.free:
            return 0
        del self.foreign[seq.request.id]
        self._grow(seq, need)
        seq.computed = 0
        if seq.held:
            self._fill(seq, computed)
        seq.computed = computed
        self.kv_tokens += computed
        if seq.started_s < 0:
            seq.started_s = now_s
        self.waiting.remove(seq)
        self.running.append(seq)
        return 1

    def _preempt(self, seq: Running) -> None:
        super()._preempt(seq)
        if seq.request.priority == OFFLINE:
            self.view.offline_waiting += 1

    def hand_over(self, now_s: float) -> None:
        """From the end of this step on, online requests that decode here leave."""
        self.leaving = True
        if self._now is None:
            self._let_leave()
        elif self._times > 1:
            self._cut(now_s)

    def _let_leave(self) -> None:
        self.leaving = False
        for seq in [each for each in self.running if each.decoding]:
            if seq.request.priority != OFFLINE and seq.generated:
                self.left.append(
                    Left(seq.request, seq.generated, seq.computed, seq.first_s, seq.started_s)
                )
                self.running.remove(seq)
                self._let_go(seq)

    def withdraw(self, images: bool) -> list[Running]:
        """Take back those who wait and have computed nothing: encode jobs, or all others."""
        gone = [
            seq for seq in self.waiting
            if isinstance(seq.request, Encode) == images and not seq.generated
            and seq.request.priority != OFFLINE and seq.request.id not in self.foreign
        ]  # fmt: skip
        for seq in gone:
            self.waiting.remove(seq)
            if seq in self._unseen:
                self._unseen.remove(seq)
            self._owe(seq, 0)
            spent_s = self.to_encode.pop(seq.request.id, 0.0)
            self.view.encode_s = max(self.view.encode_s - spent_s, 0.0)
        self._tell()
        return gone

    def die(self) -> list[Running]:
        """Lose everything; those who were here, with what they had made."""
        here = [*self.running, *self.waiting]
        self.drop_all()
        self.alive = False
        self.to_encode.clear()
        self.foreign.clear()
        self.leaving, self._encode_s = False, 0.0
        self.view.encode_s, self.view.offline, self.view.offline_waiting = 0.0, 0, 0
        return here

    def _finish(self, seq: Running, now_s: float) -> Served:
        if seq.request.priority == OFFLINE:
            self.view.offline -= 1
        return super()._finish(seq, now_s)

    def _tell(self) -> None:
        super()._tell()
        view = self.view
        # Who comes with a cache will decode here; who waits without one has a prompt to compute.
        view.decodes = view.running + len(self.foreign)


__all__ = ["Encode", "Instance", "Left", "ReportingPool"]
