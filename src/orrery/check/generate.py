"""Correct histories of any size, to try checkers on: an atomic register played by clients.

Every operation gets a call, a return and an instant in between at which it takes effect, so the
history is linearizable by construction. Indefinite operations take effect late, or never.
"""

from __future__ import annotations

import heapq
from typing import Any

from orrery.base.errors import SpecError
from orrery.base.rand import Stream
from orrery.check.history import History

_CALL, _POINT, _RET = 0, 1, 2


def linearizable_history(
    operations: int,
    *,
    clients: int = 20,
    keys: int = 1,
    reads: float = 0.5,
    swaps: float = 0.0,
    indefinite: float = 0.05,
    failed: float = 0.0,
    seed: int = 0,
) -> History:
    """A linearizable history of registers with unique values, the same for the same arguments.

    `reads` and `swaps` are the shares of reads and compare-and-swaps; the rest are writes.
    `indefinite` and `failed` are the shares that end in unknown and in fail. A swap expects what
    its client saw last, so some are refused. O(n log clients).

    >>> len(linearizable_history(100, seed=1))
    100
    """
    for name, count, least in (("operations", operations, 0), ("clients", clients, 1),
                               ("keys", keys, 1)):  # fmt: skip
        if isinstance(count, bool) or not isinstance(count, int) or count < least:
            raise SpecError(name, f"{count!r} is no count", f"give a whole number >= {least}")
    for name, share in (("reads + swaps", reads + swaps), ("indefinite + failed",
                        indefinite + failed)):  # fmt: skip
        if not 0.0 <= share <= 1.0:
            raise SpecError(name, f"{share!r} is no share", "give shares that add up to 0..1")
    if min(reads, swaps, indefinite, failed) < 0:
        raise SpecError("shares", "one is negative", "give shares in 0..1")
    play = _Play(keys, reads, swaps, indefinite, failed, Stream(seed, "check", "generate"))
    return play.run(operations, clients)


class _Play:
    """Clients that call, wait and return in virtual time, on registers that are plain variables."""

    def __init__(
        self,
        keys: int,
        reads: float,
        swaps: float,
        indefinite: float,
        failed: float,
        rng: Stream,
    ) -> None:
        self.keys, self.reads, self.swaps = keys, reads, swaps
        self.indefinite, self.failed, self.rng = indefinite, failed, rng
        self.history = History()
        self.registers: dict[int, Any] = {}
        self.last_seen: dict[tuple[int, int], Any] = {}
        self.answers: dict[int, Any] = {}
        self.ends: dict[int, str] = {}
        self.agenda: list[tuple[float, int, int, int]] = []
        self.planned = 0
        self.fresh = 0

    def run(self, operations: int, clients: int) -> History:
        for client in range(clients):
            self._plan(self.rng.random(), _CALL, client)
        left = operations
        while self.agenda:
            now_s, _, kind, who = heapq.heappop(self.agenda)
            if kind == _CALL:
                if left:
                    left -= 1
                    self._call(now_s, who)
            elif kind == _POINT:
                self._take_effect(who)
            else:
                self._return(now_s, who)
        return self.history

    def _plan(self, at_s: float, kind: int, who: int) -> None:
        self.planned += 1
        heapq.heappush(self.agenda, (at_s, self.planned, kind, who))

    def _call(self, now_s: float, client: int) -> None:
        rng = self.rng
        key = rng.below(self.keys)
        draw = rng.random()
        value: Any = None
        if draw < self.reads:
            f = "read"
        else:
            self.fresh += 1
            f, value = "write", self.fresh
            if draw < self.reads + self.swaps:
                f, value = "cas", (self.last_seen.get((client, key)), self.fresh)
        op = self.history.invoke(client, f, key, value, now_s)
        took_s = rng.expovariate()
        draw = rng.random()
        if draw < self.failed:
            self.ends[op] = "fail"
        elif draw < self.failed + self.indefinite:
            self.ends[op] = "unknown"
            if rng.random() < 0.5:
                self._plan(now_s + 3.0 * rng.expovariate(), _POINT, op)
        else:
            self.ends[op] = "ok"
            self._plan(now_s + took_s * rng.random(), _POINT, op)
        self._plan(now_s + took_s, _RET, op)

    def _take_effect(self, op: int) -> None:
        f, key, value = self.history.fs[op], self.history.keys[op], self.history.values[op]
        if f == "read":
            self.answers[op] = self.registers.get(key)
        elif f == "write":
            self.registers[key] = value
        else:
            self.answers[op] = self.registers.get(key) == value[0]
            if self.answers[op]:
                self.registers[key] = value[1]

    def _return(self, now_s: float, op: int) -> None:
        history, end = self.history, self.ends[op]
        client, key = history.processes[op], history.keys[op]
        if end == "ok":
            answer = self.answers.get(op)
            history.ok(op, answer, now_s)
            value = history.values[op]
            if history.fs[op] == "read":
                value = answer
            elif history.fs[op] == "cas":
                value = value[1] if answer else self.last_seen.get((int(client), key))
            self.last_seen[(int(client), key)] = value
        elif end == "fail":
            history.fail(op, now_s)
        else:
            history.unknown(op, now_s)
        self._plan(now_s + 0.2 * self.rng.expovariate(), _CALL, int(client))
