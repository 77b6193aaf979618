"""The kernel for chosen order: the next delivery is picked, not timed.

Messages wait in a pool; at each step a chooser picks one of them, or lets the next timer fire. The
chooser is a seed (a random asynchronous schedule), a script (a replayed one), or the explorer (all
of them). Time is only an order here: each step takes one nanosecond, and timers come when picked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop
from typing import Any

from orrery.base.errors import UsageError
from orrery.base.rand import Stream
from orrery.base.units import FOREVER_NS
from orrery.engines.virtual import kernel_py
from orrery.engines.virtual.kernel_py import ALIVE, Host
from orrery.engines.virtual.sending_py import MESSAGE
from orrery.engines.virtual.waits_py import Call, Deadline, Event, Lock, Queue, Task, Throw

NAME = "chosen"
TICK = -1  # the choice that lets the next timer fire

Chooser = Callable[["Kernel"], int]


class Kernel(kernel_py.Kernel):
    """Deliveries in an order that `choose` picks."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.pool: list[Any] = []
        self.choices: list[int] = []
        self.choose: Chooser = lambda kernel: 0

    def _refresh(self) -> None:
        self.plain = None  # every message must pass `push`

    def push(self, when: int, entry: Any) -> None:
        if entry[1] == MESSAGE:
            self.pool.append(entry)
        else:
            super().push(when, entry)

    def run(self, until_ns: int = FOREVER_NS, max_events: int = FOREVER_NS) -> str:
        limit = self.events + max_events if max_events < FOREVER_NS else FOREVER_NS
        ready, pool = self.ready, self.pool
        try:
            while True:
                while ready:
                    self._run_ready(*ready.popleft())
                ended = self._ended(limit)
                if ended:
                    return ended
                if not pool and not self.times:
                    return "quiet"
                pick = self.choose(self) if pool else TICK
                if pick == TICK and not self.times:
                    pick = 0
                self.choices.append(pick)
                if pick == TICK:
                    if not self._tick(until_ns, limit):
                        return "until"
                else:
                    self._deliver_picked(pick)
        finally:
            self.digest_flush()

    def _deliver_picked(self, pick: int) -> None:
        if not 0 <= pick < len(self.pool):
            raise UsageError(
                f"step {len(self.choices)} of the schedule picks message {pick}, but "
                f"{len(self.pool)} wait; the schedule belongs to another run"
            )
        entry = self.pool.pop(pick)
        self.now += 1
        dst = entry[3]
        if self.state[dst] != ALIVE:
            self._not_alive(dst, entry)
            return
        self.events += 1
        seq, _, src, dst, slot, args, call, is_reply, size, sent = entry
        self._deliver(seq, src, dst, slot, args, call, is_reply, size, sent)

    def _tick(self, until_ns: int, limit: int) -> bool:
        when = self.times[0]
        if when > until_ns:
            self.now = until_ns
            return False
        heappop(self.times)
        bucket = self.buckets.pop(when)
        # One timer at a time: what else is due then is another choice.
        first, rest = bucket[:1], bucket[1:]
        for entry in rest:
            super().push(when, entry)
        self._run_bucket(max(when, self.now), first, limit)
        return True


def by_seed(seed: int) -> Chooser:
    """Any waiting message, or the next timer, each as likely."""
    rng = Stream(seed, "chooser", "chosen")

    def choose(kernel: Kernel) -> int:
        n = len(kernel.pool)
        pick = rng.below(n + 1 if kernel.times else n)
        return pick if pick < n else TICK

    return choose


def by_script(script: Sequence[int]) -> Chooser:
    """The given choices, then the oldest message each time."""
    steps = iter(script)

    def choose(kernel: Kernel) -> int:
        return next(steps, 0)

    return choose


__all__ = [
    "ALIVE", "NAME", "TICK", "Call", "Chooser", "Deadline", "Event", "Host", "Kernel", "Lock",
    "Queue", "Stream", "Task", "Throw", "by_script", "by_seed",
]  # fmt: skip
