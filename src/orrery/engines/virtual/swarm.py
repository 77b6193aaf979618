"""The vectorised tier: a `Swarm` of up to millions of agents, window by window.

Each window takes O(messages + agents the part touches) in NumPy. Loss and jitter come from the same
counter-based streams as in the other tiers, one per sender, so adding an agent shifts no other's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any

import numpy as np
import numpy.typing as npt

from orrery.base.errors import FaultError, WorldError
from orrery.base.rand import GOLDEN, Stream, key_of
from orrery.base.units import FOREVER_NS, to_ns
from orrery.parts.monitor import Monitor
from orrery.parts.problem import Outcome, Problem, Record
from orrery.parts.swarm import Mail, Swarm
from orrery.world import Crash, Drop, Partition, World
from orrery.world.schedule import sides

Words = npt.NDArray[np.uint64]
_MIX_A, _MIX_B = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def mix(x: Words) -> Words:
    """SplitMix64's finaliser, on arrays."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * _MIX_A
        x = (x ^ (x >> np.uint64(27))) * _MIX_B
        return x ^ (x >> np.uint64(31))


class SwarmEngine:
    """One run of a swarm in a world."""

    def __init__(
        self,
        roles: Any,
        *,
        world: World,
        part: Swarm,
        problem: Problem | None = None,
        seed: int = 0,
        monitors: Sequence[Monitor] = (),
    ) -> None:
        self.world = world
        self.problem = problem
        self.seed = seed
        self.monitors = tuple(monitors)
        self.swarm = part.with_knobs()
        self.n = world.size
        self.records: list[Record] = []
        self.messages = 0
        self.delivered = 0
        self.bytes = 0
        self.sequence = 0
        self.hasher = hashlib.blake2b(digest_size=16)
        self.now_ns = 0
        self.alive = np.ones(self.n, dtype=bool)
        self._crashed = np.zeros(self.n, dtype=bool)
        self._side: npt.NDArray[np.int32] | None = None
        self._extra_drop = 0.0
        self._counts = np.zeros(self.n, dtype=np.uint64)
        # One key per agent without a million hashes: the agent's number mixed with the seed's key.
        root = np.uint64(key_of(seed, "swarm", "net"))
        with np.errstate(over="ignore"):
            self._keys = mix(root + np.arange(1, self.n + 1, dtype=np.uint64) * np.uint64(GOLDEN))
        self._configure()

    def _configure(self) -> None:
        net = self.world.network
        latency_s = self.world.wiring().uniform_latency_s
        if net.model == "rounds":
            self.latency_ns, self.jitter_ns = to_ns(net.round_s), 0
        elif latency_s is None:
            raise WorldError(
                "network.topology", "latencies differ between pairs",
                "a swarm needs a uniform world: World.lan(n) or World.rounds(n)",
            )  # fmt: skip
        else:
            self.latency_ns, self.jitter_ns = to_ns(latency_s), to_ns(latency_s * net.jitter)
        asked = type(self.swarm).window_s
        self.window_ns = self.latency_ns if asked is None else to_ns(asked)
        if not 0 < self.window_ns <= self.latency_ns:
            raise WorldError(
                "network.latency_s", f"the window of {self.window_ns} ns exceeds the latency",
                "set a latency above zero, or a shorter window_s on the swarm",
            )  # fmt: skip
        self._plan_faults()

    def _plan_faults(self) -> None:
        """Crashes, partitions and drops act at the start of the window that holds their time."""
        self._calendar: list[tuple[int, int, str, Any]] = []
        for place, fault in enumerate(self.world.schedule(self.seed)):
            if not isinstance(fault, Crash | Partition | Drop):
                raise FaultError(
                    fault.kind, "does not act on a swarm", "use Crash, Partition or Drop"
                )
            heappush(self._calendar, (to_ns(fault.at_s), place, "on", fault))
            if fault.until_s is not None:
                heappush(self._calendar, (to_ns(fault.until_s), place, "off", fault))

    def _apply_faults(self) -> None:
        while self._calendar and self._calendar[0][0] <= self.now_ns:
            _, _, what, fault = heappop(self._calendar)
            on = what == "on"
            if isinstance(fault, Crash):
                nodes = np.asarray(list(self.world.targets(fault)), dtype=np.int64)
                self.alive[nodes] = not on
                self._crashed[nodes] = True
                if not on:
                    self.swarm.revived(nodes)
            elif isinstance(fault, Partition):
                self._side = sides(fault, self.n) if on else None
            else:
                self._extra_drop += fault.p if on else -fault.p

    # -- the run

    def run(self, until_s: float | None = None) -> Outcome:
        until_ns = FOREVER_NS if until_s is None else to_ns(until_s)
        for monitor in self.monitors:
            monitor.start()
        self._dress()
        self.swarm.start()
        waiting: dict[int, list[tuple[Any, Any, Mail]]] = {}  # window number -> lots
        window = 0
        ended = "until"
        while window * self.window_ns <= until_ns:
            self.now_ns = window * self.window_ns
            self.swarm.__dict__["now"] = self.now_ns / 1e9
            self._apply_faults()
            mail = self._collect(waiting.pop(window, []))
            sent = self.swarm.step(mail)
            if sent is not None and len(sent):
                self._send(sent, waiting)
            elif not waiting and not self._calendar and self.swarm.idle():
                ended = "quiet"
                break
            window += 1
        for monitor in self.monitors:
            monitor.on_end(self.now_ns / 1e9, np.flatnonzero(self._crashed).tolist())
        return self._outcome(ended)

    def _dress(self) -> None:
        """Give the swarm what exists only while it runs."""
        self.swarm.__dict__.update(
            n=self.n, now=0.0, alive=self.alive, world=self.world,
            rng=Stream(self.seed, "swarm", "agents").numpy(), emit=self._emit,
        )  # fmt: skip

    def _emit(self, **values: Any) -> None:
        time_s = self.now_ns / 1e9
        self.records.append(Record(time_s, -1, values))
        for monitor in self.monitors:
            monitor.on_emit(time_s, -1, values)

    def _send(self, mail: Mail, waiting: dict[int, list[tuple[Any, Any, Mail]]]) -> None:
        """Lose some, give each its arrival time and sequence, and put it in its window."""
        if mail.dst.min() < 0 or mail.dst.max() >= self.n:
            raise WorldError("dst", "names an agent that is not there", f"use 0..{self.n - 1}")
        mail = mail.take(self.alive[mail.src])
        count = len(mail)
        if not count:
            return
        size = self.world.network.header_B + 4
        size += sum(int(column.dtype.itemsize) for column in mail.columns.values())
        self.messages += count
        self.bytes += count * size
        sequence = np.arange(self.sequence, self.sequence + count, dtype=np.int64)
        self.sequence += count
        when = np.full(count, self.now_ns + self.latency_ns, dtype=np.int64)
        kept = np.ones(count, dtype=bool)
        drop = min(1.0, self.world.network.drop + self._extra_drop)
        if drop or self.jitter_ns:
            word = self._draw(mail.src)
            kept = (word >> np.uint64(32)) >= np.uint64(int(drop * (1 << 32)))
            low = (word & np.uint64(0xFFFFFFFF)).astype(np.float64)
            when += (low * self.jitter_ns / float(1 << 32)).astype(np.int64)
        if self._side is not None:
            kept &= self._side[mail.src] == self._side[mail.dst]
        place = when // self.window_ns
        for window in np.unique(place[kept]):
            here = kept & (place == window)
            lot = (when[here], sequence[here], mail.take(here))
            waiting.setdefault(int(window), []).append(lot)

    def _draw(self, src: npt.NDArray[np.int64]) -> Words:
        """The next word of each sender's stream, also where one sends several messages at once."""
        order = np.argsort(src, kind="stable")
        grouped = src[order]
        first = np.r_[True, grouped[1:] != grouped[:-1]]
        starts = np.flatnonzero(first)
        lengths = np.diff(np.r_[starts, len(grouped)])
        nth = np.empty(len(src), dtype=np.uint64)
        nth[order] = (np.arange(len(grouped)) - np.repeat(starts, lengths)).astype(np.uint64)
        with np.errstate(over="ignore"):
            at = self._counts[src] + nth + np.uint64(1)
            word = mix(self._keys[src] + at * np.uint64(GOLDEN))
        self._counts[grouped[starts]] += lengths.astype(np.uint64)
        return word

    def _collect(self, lots: list[tuple[Any, Any, Mail]]) -> Mail:
        if not lots:
            return Mail([], [])
        when = np.concatenate([lot[0] for lot in lots])
        sequence = np.concatenate([lot[1] for lot in lots])
        mail = Mail.join([lot[2] for lot in lots])
        if when[0] == when[-1] and (when == when[0]).all():
            order = np.argsort(mail.dst, kind="stable")  # sequence order is what they came in
        else:
            order = np.lexsort((sequence, when, mail.dst))
        order = order[self.alive[mail.dst[order]]]
        mail = mail.take(order)
        self.delivered += len(mail)
        rows = np.stack([when[order], sequence[order], mail.src, mail.dst], axis=1)
        self.hasher.update(np.ascontiguousarray(rows, dtype="<i8").tobytes())
        return mail

    def _outcome(self, ended: str) -> Outcome:
        return Outcome(
            part=self.swarm, world=self.world, seed=self.seed, engine="virtual",
            seconds=self.now_ns / 1e9, ended=ended, driven=dict(self.swarm.outcome()),
            records=self.records, messages=self.messages, bytes=self.bytes,
            events=self.delivered, alive=self.alive.tolist(), digest=self.hasher.hexdigest(),
            extra={"tier": "swarm", "window_s": self.window_ns / 1e9},
        )  # fmt: skip
