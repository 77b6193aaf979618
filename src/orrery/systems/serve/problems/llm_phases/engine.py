"""Engines: one lane in which both phases take turns, or a lane for each phase side by side.

Every lane does one step after the other. What a step takes is fixed by its share of the
multiprocessors when it begins, and stretched while the other lane's step competes for the memory.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from orrery.base.errors import PartError
from orrery.systems.serve.problems.llm_phases.batch import Decoding, Live, Pool
from orrery.systems.serve.problems.llm_phases.costs import ShareCosts, slowdown
from orrery.systems.serve.problems.llm_phases.ports import (
    Decoded,
    EngineView,
    PhasePolicy,
    Place,
    Prefilled,
    SplitView,
)

NEVER = math.inf


class Note(NamedTuple):
    """A step that ended, for audits: its phase, when it ran, on which share."""

    engine: int
    phase: str
    began_s: float
    ended_s: float
    share: float


class Change(NamedTuple):
    """A decision for another share, and when each phase had it: at its next step."""

    engine: int
    decided_s: float
    before: float
    after: float


class Lane:
    """What one phase computes now; `due_s` moves while the other phase speeds up or slows down."""

    __slots__ = ("began_s", "busy", "demand", "due_s", "left", "pace", "share", "since_s", "took_s")

    def __init__(self, share: float) -> None:
        self.share, self.busy, self.due_s = share, False, NEVER
        self.took_s = self.demand = self.left = self.began_s = self.since_s = 0.0
        self.pace = 1.0

    def begin(self, now_s: float, cost: tuple[float, float]) -> None:
        self.took_s, self.demand = cost
        self.busy, self.left, self.pace = True, 1.0, 1.0
        self.began_s = self.since_s = now_s
        self.due_s = now_s + self.took_s

    def end(self) -> None:
        self.busy, self.due_s, self.demand = False, NEVER, 0.0

    def settle(self, now_s: float, pace: float) -> None:
        """Go on `pace` times as slowly as alone."""
        if pace == self.pace:
            return
        self.left -= (now_s - self.since_s) / (self.took_s * self.pace)
        self.since_s, self.pace = now_s, pace
        self.due_s = now_s + max(self.left, 0.0) * self.took_s * pace


class Engine:
    """What all engines share: a queue of prompts, a pool of blocks, and what others see of it."""

    def __init__(
        self, index: int, place: Place, costs: ShareCosts, blocks: int, block_tokens: int,
        slots: int, prompt_tokens: int, notes: list[Note] | None = None,
    ) -> None:  # fmt: skip
        self.index, self.place, self.costs = index, place, costs
        self.slots, self.prompt_tokens = slots, prompt_tokens
        self.pool = Pool(blocks, block_tokens)
        self.decoding = Decoding(self.pool, index)
        self.waiting: deque[Live] = deque()
        self.waiting_tokens = 0
        self.filling: list[Live] = []  # prompts that have blocks and are being computed
        self.next_s = NEVER
        self.preemptions = 0
        self.busy_s = 0.0
        self.notes = notes

    def view(self) -> EngineView:
        pool, size = self.pool, self.pool.size
        filling = sum(live.length - live.done for live in self.filling)
        return EngineView(
            self.index, self.place.role, self.place.devices,
            len(self.waiting) + len(self.filling), self.waiting_tokens + filling,
            len(self.decoding.batch), self.decoding.kv, pool.free * size, pool.blocks * size,
        )  # fmt: skip

    def refuse(self, live: Live) -> str:
        """Why this engine can never serve a request; empty when it can."""
        need, have = self.pool.need(live.asked.prompt_tokens + live.output), self.pool.blocks
        return f"needs {need} blocks of {have}" if need > have else ""

    def submit(self, live: Live, now_s: float) -> None:
        self.waiting.append(live)
        self.waiting_tokens += live.length
        self.go(now_s)

    def back(self, lost: Sequence[Live]) -> None:
        """Those who lost their blocks begin again, at the head of the queue."""
        for live in lost:
            live.computed = live.done = 0
            self.waiting.appendleft(live)
            self.waiting_tokens += live.length
        self.preemptions += len(lost)

    def admit(self, budget: int, running: int, now_s: float) -> list[Live]:
        """Whole prompts from the queue, in order, as far as tokens, slots and blocks go.

        The first is taken whatever its length. Some blocks stay free for those who decode, so that
        they are not robbed at once by who comes in.
        """
        taken: list[Live] = []
        pool, spare = self.pool, len(self.decoding.batch)
        while self.waiting and running + len(taken) < self.slots:
            live = self.waiting[0]
            length = live.length
            if taken and length > budget:
                break
            if not pool.take(length, spare):
                break
            self.waiting.popleft()
            self.waiting_tokens -= length
            budget -= length
            if live.started_s < 0:
                live.started_s = now_s
            taken.append(live)
        return taken

    def finish_prompts(self, prompts: Sequence[Live], now_s: float) -> list[Live]:
        """Each makes a token and decodes on, here; who made its last one."""
        over = []
        for live in prompts:
            live.make(now_s)
            if live.made >= live.output:
                self.pool.give(live.computed)
                over.append(live)
            else:
                self.decoding.join(live)
        return over

    def note(self, phase: str, began_s: float, now_s: float, share: float) -> None:
        self.busy_s += now_s - began_s
        if self.notes is not None:
            self.notes.append(Note(self.index, phase, began_s, now_s, share))

    def go(self, now_s: float) -> None:
        """Begin what can begin."""

    def advance(self, now_s: float) -> list[Live]:
        """End what is due; who is done."""
        return []

    def faults(self) -> list[str]:
        """What is wrong with the books, between two steps with nothing under way."""
        held = self.decoding.held() + sum(self.pool.need(live.length) for live in self.filling)
        if held != self.pool.blocks - self.pool.free:
            return [f"engine {self.index}: {held} blocks held, "
                    f"{self.pool.blocks - self.pool.free} in use"]  # fmt: skip
        return []


class MixedEngine(Engine):
    """Both phases in one lane: chunks of prompts beside the decodes, or whole prompts first."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.began_s = 0.0
        self.decodes = False
        self.work: list[tuple[Live, int]] = []

    def go(self, now_s: float) -> None:
        if self.next_s < NEVER:
            return
        took_s = (self._chunks if self.place.chunk else self._whole)(now_s)
        if took_s:
            self.began_s, self.next_s = now_s, now_s + took_s

    def _chunks(self, now_s: float) -> float:
        """All decodes, and prompts as far as the budget goes (Sarathi-Serve, vLLM)."""
        decoding, work = self.decoding, []
        lost: list[Live] = []
        while self.filling and decoding.counts[decoding.step % self.pool.size] > self.pool.free:
            newest = self.filling.pop()
            self.pool.give(newest.length)
            newest.preempted += 1
            lost.append(newest)
        lost += decoding.begin()
        self.back(lost)
        running = len(decoding.batch)
        budget = self.place.chunk - running
        for live in self.filling:
            tokens = min(live.length - live.done, max(budget, 0))
            if tokens:
                work.append((live, tokens))
                budget -= tokens
        while not lost and budget > 0 and self.waiting:
            live = self.waiting[0]
            if running + len(self.filling) >= self.slots or not self.pool.take(live.length):
                break
            self.waiting.popleft()
            self.waiting_tokens -= live.length
            if live.started_s < 0:
                live.started_s = now_s
            self.filling.append(live)
            tokens = min(live.length, budget)
            work.append((live, tokens))
            budget -= tokens
        self.work, self.decodes = work, running > 0
        if not work and not running:
            return 0.0
        chunks = [(tokens, live.done) for live, tokens in work]
        return self.costs.mixed_s(chunks, running, decoding.kv + running)

    def _whole(self, now_s: float) -> float:
        """Prompts that wait come first, whole and alone; else all decode (vLLM before chunks)."""
        running = len(self.decoding.batch)
        self.filling = self.admit(self.prompt_tokens, running, now_s)
        if self.filling:
            self.work, self.decodes = [(live, live.length) for live in self.filling], False
            return self.costs.prefill([(live.length, 0) for live in self.filling])[0]
        self.work = []
        self.back(self.decoding.begin())
        running = len(self.decoding.batch)
        self.decodes = running > 0
        if not running:
            return self._whole(now_s) if self.waiting else 0.0
        return self.costs.decode(running, self.decoding.kv + running)[0]

    def advance(self, now_s: float) -> list[Live]:
        phase = "both" if self.decodes and self.work else "decode" if self.decodes else "prefill"
        self.note(phase, self.began_s, now_s, 1.0)
        over = self.decoding.end(now_s) if self.decodes else []
        ready = []
        for live, tokens in self.work:
            live.done += tokens
            if live.done == live.length:
                ready.append(live)
        if ready:
            self.filling = [live for live in self.filling if live.done < live.length]
            over += self.finish_prompts(ready, now_s)
        self.next_s = NEVER
        self.go(now_s)
        return over


class SplitEngine(Engine):
    """A lane for each phase over one pool; an engine of one phase has only that lane.

    `policy` is asked for the share; `hand_over` takes prompts whose decoding is elsewhere.
    """

    def __init__(
        self, *args: Any, policy: PhasePolicy | None = None, grid: Sequence[float] = (),
        gap_s: float = 0.0, hand_over: Callable[..., list[Live]] | None = None,
        look: Callable[..., None] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(*args)
        role = self.place.role
        share = self.place.share if role == "split" else float(role == "prefill")
        self.share = share
        self.prefill, self.decode = Lane(share), Lane(1.0 - share)
        self.hand_over, self.look = hand_over, look
        self.policy, self.grid, self.gap_s = policy, tuple(grid), gap_s
        self.every_s = policy.ask_s() if policy is not None and role == "split" else NEVER
        self.asked_s = 0.0
        self.seen = self._look_anew(0.0)
        self.changes: list[Change] = []

    def submit(self, live: Live, now_s: float) -> None:
        if self.every_s < NEVER:
            self.seen.arrived.append(live.asked.prompt_tokens)
            self.seen.targets.append(live.asked.ttft_s)
        super().submit(live, now_s)

    def go(self, now_s: float) -> None:
        """Begin the steps that can begin; each phase takes up its present share when it does."""
        if now_s - self.asked_s >= self.every_s:
            self._ask(now_s)
        if not self.prefill.busy and self.waiting and self.place.role != "decode":
            self._begin_prefill(now_s)
        if not self.decode.busy and self.decoding.batch:
            self._begin_decode(now_s)
            if self.waiting and not self.prefill.busy and self.place.role != "decode":
                self._begin_prefill(now_s)
        self._settle(now_s)

    def _begin_prefill(self, now_s: float) -> None:
        running = len(self.decoding.batch)
        self.filling = self.admit(self.prompt_tokens, running, now_s)
        if not self.filling:
            return
        self.prefill.share = self.share
        work = [(live.length, 0) for live in self.filling]
        self.prefill.begin(now_s, self.costs.prefill(work, self.share))
        if self.look is not None:
            self.look(self, self.filling, now_s)

    def _begin_decode(self, now_s: float) -> None:
        lost = self.decoding.begin()
        if lost and self.hand_over is not None:
            self.hand_over(self, lost, now_s, True)
        elif lost:
            self.back(lost)
        running = len(self.decoding.batch)
        if running:
            self.decode.share = 1.0 - self.share
            cost = self.costs.decode(running, self.decoding.kv + running, self.decode.share)
            self.decode.begin(now_s, cost)

    def _settle(self, now_s: float) -> None:
        a, b = self.prefill, self.decode
        if a.busy and b.busy:
            a.settle(now_s, slowdown(a.share, a.demand, b.share, b.demand))
            b.settle(now_s, slowdown(b.share, b.demand, a.share, a.demand))
        elif a.busy:
            a.settle(now_s, 1.0)
        elif b.busy:
            b.settle(now_s, 1.0)
        self.next_s = min(a.due_s, b.due_s)

    def advance(self, now_s: float) -> list[Live]:
        over: list[Live] = []
        if self.decode.due_s <= now_s:
            over += self._end_decode(now_s)
        if self.prefill.due_s <= now_s:
            over += self._end_prefill(now_s)
        self.go(now_s)
        return over

    def _end_decode(self, now_s: float) -> list[Live]:
        lane, decoding = self.decode, self.decoding
        self.note("decode", lane.began_s, now_s, lane.share)
        if self.every_s < NEVER:
            running = len(decoding.batch)
            took_s = now_s - lane.began_s
            self.seen.decodes.append(Decoded(lane.share, running, decoding.kv + running, took_s))
        lane.end()
        over = decoding.end(now_s)
        if self.every_s < NEVER:
            self.seen.ended += [live.output for live in over]
        return over

    def _end_prefill(self, now_s: float) -> list[Live]:
        lane, prompts = self.prefill, self.filling
        self.note("prefill", lane.began_s, now_s, lane.share)
        self.filling = []
        if self.every_s < NEVER:
            tokens, took_s = sum(live.length for live in prompts), now_s - lane.began_s
            self.seen.prefills.append(Prefilled(lane.share, len(prompts), tokens, took_s))
            self.seen.firsts += [
                (now_s - live.asked.arrival_s, live.asked.ttft_s) for live in prompts
                if not live.made
            ]  # fmt: skip
        lane.end()
        if self.hand_over is not None:
            return self.hand_over(self, prompts, now_s, False)
        return self.finish_prompts(prompts, now_s)

    def _look_anew(self, now_s: float) -> SplitView:
        room = self.pool.blocks * self.pool.size
        return SplitView(now_s, now_s, self.share, self.grid, self.gap_s, self.slots, room)

    def _ask(self, now_s: float) -> None:
        """Let the policy see what happened, and take up its share from the next steps on."""
        assert self.policy is not None
        seen, decoding = self.seen, self.decoding
        seen.now_s, seen.share = now_s, self.share
        seen.waiting, seen.waiting_tokens = len(self.waiting), self.waiting_tokens
        seen.running, seen.kv_tokens = len(decoding.batch), decoding.kv
        share = self.policy.share(seen)
        if share not in self.grid:
            raise PartError(
                f"{type(self.policy).__name__}.share gave {share!r}; give one of {self.grid}"
            )
        self.asked_s = now_s
        self.seen = self._look_anew(now_s)
        if share != self.share:
            self.changes.append(Change(self.index, now_s, self.share, share))
            self.share = share


__all__ = ["NEVER", "Change", "Engine", "Lane", "MixedEngine", "Note", "SplitEngine"]
