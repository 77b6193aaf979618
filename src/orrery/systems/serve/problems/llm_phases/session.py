"""A run: requests come, engines work, caches move; a host moves the clock."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from orrery.base.errors import PartError
from orrery.systems.serve.problems.llm_phases.batch import Live
from orrery.systems.serve.problems.llm_phases.engine import (
    NEVER,
    Change,
    Engine,
    Note,
    SplitEngine,
)
from orrery.systems.serve.problems.llm_phases.ports import Asked, PhasePolicy


class Answer(NamedTuple):
    """How a request fared: `gap_s` is the 99th percentile of the times between its tokens."""

    id: int
    arrival_s: float
    started_s: float
    first_s: float
    last_s: float
    prompt_tokens: int
    output_tokens: int
    gap_s: float
    preempted: int
    met: bool

    @property
    def ttft_s(self) -> float:
        return self.first_s - self.arrival_s

    @property
    def tpot_s(self) -> float:
        """Seconds of each token after the first; 0 for an answer of one token."""
        return (self.last_s - self.first_s) / max(self.output_tokens - 1, 1)

    @property
    def latency_s(self) -> float:
        return self.last_s - self.arrival_s


class Transfer(NamedTuple):
    """The cache of one request on its way to another engine."""

    id: int
    source: int
    target: int
    begin_s: float
    end_s: float
    size_B: int


class Log(NamedTuple):
    """What a run leaves behind."""

    requests: list[Asked]
    outputs: list[int]
    answers: list[Answer]
    refused: list[tuple[int, str]]
    faults: list[str]
    changes: list[Change]
    transfers: list[Transfer]
    notes: list[Note] | None
    room_tokens: int
    preemptions: int
    busy_s: float
    seconds: float
    extrapolated: int
    capacity_per_s: float | None = None


class Link(NamedTuple):
    """What joins two engines: seconds before the first byte, and bytes a second."""

    latency_s: float
    rate_Bps: float


class Session:
    """Requests, the engines of a policy, and caches between them."""

    def __init__(
        self, policy: PhasePolicy, requests: Sequence[tuple[Asked, int]], engines: list[Engine],
        *, links: dict[tuple[int, int], Link], kv_B: int, notes: list[Note] | None = None,
    ) -> None:  # fmt: skip
        self.policy, self.requests, self.engines = policy, list(requests), engines
        self.links, self.kv_B, self.notes = links, kv_B, notes
        self.takers = [each for each in engines if each.place.role != "decode"]
        self.place, self.now_s, self.order = 0, 0.0, 0
        self.done: list[Live] = []
        self.refused: list[tuple[int, str]] = []
        self.flying: list[tuple[float, int, int, Live]] = []
        self.stranded: deque[tuple[Engine, Live]] = deque()
        self.free_s = dict.fromkeys(range(len(engines)), 0.0)  # when a link out is free
        self.transfers: list[Transfer] = []
        for each in engines:
            if isinstance(each, SplitEngine) and each.place.role != "split":
                each.hand_over = self.hand_over
                each.look = self.keep_room if each.place.role == "prefill" else None
        self.before = sum(steps.extrapolated for steps in self._steps())

    def _steps(self) -> list[Any]:
        found: list[Any] = []
        for each in self.engines:
            if not any(each.costs.steps is steps for steps in found):
                found.append(each.costs.steps)
        return found

    # -- the clock

    def next_s(self) -> float:
        """When the next thing happens."""
        due_s = min([each.next_s for each in self.engines])
        if self.place < len(self.requests):
            due_s = min(due_s, self.requests[self.place][0].arrival_s)
        return min(due_s, self.flying[0][0]) if self.flying else due_s

    def step(self, now_s: float) -> None:
        """Do what is due: steps that end, caches that are there, requests that come."""
        self.now_s = now_s
        for each in self.engines:
            if each.next_s <= now_s:
                self.done += each.advance(now_s)
        while self.flying and self.flying[0][0] <= now_s:
            _, _, source, live = heapq.heappop(self.flying)
            self._land(self.engines[source], live, now_s)
        if self.stranded:
            self._unstrand(now_s)
        while self.place < len(self.requests) and self.requests[self.place][0].arrival_s <= now_s:
            self._come(Live(*self.requests[self.place]), now_s)
            self.place += 1

    def play(self) -> Log:
        """Everything to the end."""
        while (due_s := self.next_s()) < NEVER:
            self.step(due_s)
        return self.log()

    def _come(self, live: Live, now_s: float) -> None:
        asked = live.asked
        reason = next(filter(None, (each.refuse(live) for each in self.engines)), "")
        if reason:
            self.refused.append((asked.id, reason))
            return
        index = self.policy.route(asked, [each.view() for each in self.engines])
        if not 0 <= index < len(self.engines) or self.engines[index] not in self.takers:
            raise PartError(
                f"{type(self.policy).__name__}.route sent request {asked.id} to engine {index}; "
                f"give one of {[each.index for each in self.takers]}"
            )
        self.engines[index].submit(live, now_s)

    # -- caches that move

    def keep_room(self, engine: Engine, prompts: Sequence[Live], now_s: float) -> None:
        """While prompts are computed, find each an engine that will decode it and has room."""
        for live in prompts:
            live.to = self._reserve(live, live.length)

    def _reserve(self, live: Live, tokens: int) -> int:
        asked = live.asked._replace(prompt_tokens=tokens)
        index = self.policy.hand_over(asked, [each.view() for each in self.engines])
        if index < 0:
            return -1
        if index >= len(self.engines) or self.engines[index].place.role != "decode":
            raise PartError(
                f"{type(self.policy).__name__}.hand_over gave engine {index}, which does not "
                "decode; give a decode engine or -1"
            )
        target = self.engines[index]
        spare = len(target.decoding.batch)
        return index if target.pool.take(tokens, spare) else -1

    def hand_over(
        self, engine: SplitEngine, lives: Sequence[Live], now_s: float, lost: bool
    ) -> list[Live]:
        """Prompts are computed, and their cache goes where they decode; `lost`: they begin again.

        With room kept since the prompt began, the cache of a layer goes as soon as it is computed.
        """
        if lost:
            for live in lives:
                index = self.policy.route(live.asked, [each.view() for each in self.engines])
                self.engines[index].back([live])
                self.engines[index].go(now_s)
            return []
        over = []
        began_s, layers = engine.prefill.began_s, engine.costs.layers
        for live in lives:
            live.make(now_s)
            if live.made >= live.output:
                engine.pool.give(live.computed)
                if live.to >= 0:
                    self.engines[live.to].pool.give(live.computed)
                over.append(live)
            elif live.to >= 0:
                self._send(engine, live, began_s + (now_s - began_s) / layers, now_s, layers)
            else:
                self.stranded.append((engine, live))
        return over

    def _send(
        self, engine: Engine, live: Live, ready_s: float, now_s: float, layers: int
    ) -> None:  # fmt: skip
        """Through the link, one cache after the other; the last layer is ready only now."""
        link, size_B = self.links[engine.index, live.to], live.computed * self.kv_B
        whole_s = size_B / link.rate_Bps
        begin_s = max(self.free_s[engine.index], ready_s)
        end_s = max(begin_s + whole_s, now_s + whole_s / layers) + link.latency_s
        self.free_s[engine.index] = end_s - link.latency_s
        self.order += 1
        heapq.heappush(self.flying, (end_s, self.order, engine.index, live))
        self.transfers.append(
            Transfer(live.asked.id, engine.index, live.to, begin_s, end_s, size_B)
        )

    def _land(self, source: Engine, live: Live, now_s: float) -> None:
        """The cache is there: its blocks at the source are free, and it decodes."""
        target = self.engines[live.to]
        source.pool.give(live.computed)
        live.to = -1
        target.decoding.join(live)
        target.go(now_s)
        source.go(now_s)

    def _unstrand(self, now_s: float) -> None:
        """Caches that found no room try again, in their order."""
        while self.stranded:
            engine, live = self.stranded[0]
            live.to = self._reserve(live, live.computed)
            if live.to < 0:
                return
            self.stranded.popleft()
            self._send(engine, live, now_s, now_s, 1 << 30)

    # -- the end

    def log(self) -> Log:
        """What happened."""
        engines = self.engines
        ends = [np.array(each.decoding.ends) for each in engines]
        answers = [answer_of(live, ends) for live in self.done]
        faults = [text for each in engines for text in each.faults()]
        busy = [each for each in engines if each.pool.free != each.pool.blocks]
        faults += [f"engine {each.index}: blocks in use when all is done" for each in busy]
        split = [each for each in engines if isinstance(each, SplitEngine)]
        room = sum(each.pool.blocks * each.pool.size for each in engines
                   if each.place.role != "prefill")  # fmt: skip
        return Log(
            [asked for asked, _ in self.requests], [output for _, output in self.requests],
            answers, self.refused, faults, [c for each in split for c in each.changes],
            self.transfers, self.notes, room, sum(each.preemptions for each in engines),
            sum(each.busy_s for each in engines), self.now_s,
            sum(steps.extrapolated for steps in self._steps()) - self.before,
        )  # fmt: skip


def answer_of(live: Live, ends: Sequence[np.ndarray]) -> Answer:
    """The times of one request's tokens, from the steps that made them."""
    asked = live.asked
    times = np.concatenate([
        np.array([each]) if isinstance(each, float) else ends[each[0]][each[1] : each[2]]
        for each in live.tokens
    ])  # fmt: skip
    gap_s = late_gap_s(np.diff(times)) if len(times) > 1 else 0.0
    met = live.first_s - asked.arrival_s <= asked.ttft_s and gap_s <= asked.gap_s
    return Answer(
        asked.id, asked.arrival_s, live.started_s, live.first_s, live.last_s, asked.prompt_tokens,
        len(times), gap_s, live.preempted, met,
    )  # fmt: skip


def late_gap_s(gaps: np.ndarray) -> float:
    """The 99th percentile, between the two nearest as `np.quantile` does, but quicker.

    >>> round(late_gap_s(np.array([1.0, 2.0, 3.0])), 3)  # as np.quantile([1, 2, 3], 0.99)
    2.98
    """
    place = 0.99 * (len(gaps) - 1)
    low = int(place)
    ordered = np.sort(gaps)
    high = ordered[min(low + 1, len(gaps) - 1)]
    return float(ordered[low] + (high - ordered[low]) * (place - low))


__all__ = ["Answer", "Link", "Log", "Session", "Transfer", "answer_of", "late_gap_s"]
