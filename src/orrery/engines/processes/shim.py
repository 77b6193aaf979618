"""Links as the world has them: the sender holds each message back, loses it or spoils it.

Every message passes here before it reaches a socket. Latency, jitter, loss, duplicates, bandwidth
and order are the world's, drawn from the same streams as in virtual time; faults of traffic are
followed from the schedule, which every process knows, so a partition needs no message to begin.
The delay is added to what the loopback itself takes. With `raw`, the world's figures are left out
and only faults are applied, for measuring the machine as it is.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy.typing as npt

from orrery.base.rand import Stream
from orrery.base.units import to_ns
from orrery.engines.processes.spec import Counters, RunSpec
from orrery.world import (
    BitFlip,
    Clog,
    Corrupt,
    Drop,
    Duplicate,
    NicFlap,
    Partition,
    Reorder,
    sides,
)

_MASK32 = 0xFFFFFFFF
_NEVER_NS = 1 << 62


class Copy(NamedTuple):
    """One copy of a message on its way: when it leaves, and what happens to its bits."""

    due_ns: int
    spoil: int | None = None  # flip this bit below the checksum: the receiver drops the frame
    twist: int | None = None  # flip this bit above the checksum: the part itself must notice


class _Fate:
    """What the faults make of one message."""

    __slots__ = ("delay_ns", "held_ns", "lost", "slower", "spoil", "times", "twist")

    def __init__(self) -> None:
        self.delay_ns = self.held_ns = 0
        self.lost = False
        self.slower = 1.0
        self.times = 1
        self.spoil: int | None = None
        self.twist: int | None = None


class _Rule:
    """One fault of traffic, with its own random stream in each sending process."""

    def __init__(self, spec: RunSpec, place: int, fault: Any, group: int, again: int) -> None:
        self.fault = fault
        self.place = place
        self.rng = Stream(spec.seed, f"{place}:{group}:{again}", "shim")
        self.fired = False
        self.side: npt.NDArray[Any] | None = None
        if isinstance(fault, Partition):
            self.side = sides(fault, spec.size)
        node = getattr(fault, "node", None)
        self.nodes = (node,) if isinstance(node, int) else node
        self.link = getattr(fault, "link", None)

    def hits(self, src: int, dst: int) -> bool:
        if self.side is not None:
            here, there = self.side[src], self.side[dst]
            return bool(here < there if self.fault.one_way else here != there)
        if isinstance(self.fault, BitFlip):
            return self.nodes is None or src in self.nodes
        if self.link is not None:
            return (src, dst) in (self.link, self.link[::-1])
        return self.nodes is None or src in self.nodes or dst in self.nodes

    def apply(self, fate: _Fate, now_s: float) -> bool:
        """Do to one message what the fault does; tells whether it had an effect."""
        fault = self.fault
        if isinstance(fault, Partition):
            fate.lost = True
        elif isinstance(fault, NicFlap):
            # The NIC is down at the beginning of each period.
            since_s = (now_s - fault.at_s) % fault.period_s
            fate.lost = since_s < fault.period_s * fault.down_fraction
            return fate.lost
        elif isinstance(fault, Clog):
            fate.delay_ns += to_ns(fault.delay_s)
            fate.slower /= fault.fraction
        elif isinstance(fault, BitFlip) and fault.p is None:
            if self.fired:
                return False
            self.fired = True
            fate.twist = self.rng.word() >> 1
        elif self.rng.random() >= fault.p:
            return False
        elif isinstance(fault, Drop):
            fate.lost = True
        elif isinstance(fault, Duplicate):
            fate.times += 1
        elif isinstance(fault, Reorder):
            fate.held_ns += 1 + to_ns(self.rng.random() * fault.spread_s)
        elif isinstance(fault, Corrupt):
            fate.spoil = self.rng.word() >> 1
        else:
            fate.twist = self.rng.word() >> 1
        return True


_TRAFFIC = (Partition, Clog, Drop, Duplicate, Reorder, Corrupt, NicFlap, BitFlip)


class Shim:
    """Decides for each message of this process when, how often and how well it is sent."""

    def __init__(self, spec: RunSpec, group: int, again: int, counters: Counters) -> None:
        net = spec.world.network
        self._spec = spec
        self._counters = counters
        self._net = net
        self._again = again
        self._wiring = spec.world.wiring()
        self._rules = [
            _Rule(spec, place, fault, group, again)
            for place, fault in enumerate(spec.faults)
            if isinstance(fault, _TRAFFIC)
            and not (isinstance(fault, BitFlip) and fault.where != "message")
        ]
        self._pairs: dict[tuple[int, int], list[_Rule]] = {}
        self._ns_per_byte = 0.0 if math.isinf(net.bandwidth_Bps) else 1e9 / net.bandwidth_Bps
        self._drop32 = int(net.drop * (1 << 32))
        self._rngs: dict[int, Stream] = {}
        self._nic_free_ns: dict[int, int] = {}
        self._last_ns: dict[tuple[int, int], int] = {}
        self._latency: dict[tuple[int, int], int] = {}

    # -- one message

    def copies(self, src: int, dst: int, size_B: int, now_ns: int) -> list[Copy]:
        """The copies of a message to be sent, each at its time; none when it is lost."""
        outside = src >= self._spec.size or dst >= self._spec.size  # the driver suffers no fault
        if src == dst:
            return [Copy(now_ns)]
        fate = _Fate()
        now_s = now_ns / 1e9
        for rule in () if outside or not self._rules else self._rules_of(src, dst):
            if rule.fault.during(now_s) and rule.apply(fate, now_s):
                self._counters.fire(rule.place)
                if fate.lost:
                    return []
        found = []
        for copy in range(fate.times):
            for due_ns in self._leave(src, dst, size_B, now_ns, fate.slower, outside, copy == 0):
                due_ns += fate.delay_ns + fate.held_ns
                if self._net.fifo and not fate.held_ns and not self._spec.raw:
                    due_ns = self._in_order(src, dst, due_ns)
                found.append(Copy(due_ns, fate.spoil, fate.twist))
        return found

    def _leave(
        self, src: int, dst: int, size_B: int, now_ns: int, slower: float, outside: bool,
        first: bool,
    ) -> list[int]:  # fmt: skip
        """When the message leaves by the world's figures; empty when the world loses it."""
        if self._spec.raw:
            return [now_ns]
        net = self._net
        if net.model == "rounds":
            # The messages of a round are there when the next one begins.
            round_ns = to_ns(net.round_s)
            return [(now_ns // round_ns + 1) * round_ns - 1]
        latency_ns = self._latency_ns(src, dst)
        rng = self._rngs.get(src)
        if rng is None:
            purpose = f"net#{self._again}" if self._again else "net"
            rng = self._rngs[src] = Stream(self._spec.seed, src, purpose)
        if net.latency_sigma:
            latency_ns = int(latency_ns * rng.lognormvariate(0.0, net.latency_sigma))
        jitter_ns = int(latency_ns * net.jitter)
        word = rng.word() if jitter_ns or self._drop32 else 0
        if self._drop32 and (word >> 32) < self._drop32 and not outside:
            return []
        sent_ns = now_ns
        if self._ns_per_byte:
            busy_ns = int(size_B * self._ns_per_byte * slower)
            if net.egress_queue:
                sent_ns = max(now_ns, self._nic_free_ns.get(src, 0))
                self._nic_free_ns[src] = sent_ns + busy_ns
            sent_ns += busy_ns
        due_ns = sent_ns + latency_ns + (((word & _MASK32) * jitter_ns) >> 32)
        if first and net.duplicate and not outside and rng.random() < net.duplicate:
            again_ns = sent_ns + latency_ns + (((rng.word() & _MASK32) * jitter_ns) >> 32)
            return [due_ns, again_ns]
        return [due_ns]

    def _latency_ns(self, src: int, dst: int) -> int:
        pair = (src, dst)
        known = self._latency.get(pair)
        if known is None:
            uniform = self._wiring.uniform_latency_s
            if uniform is not None:
                known = to_ns(uniform)
            elif src >= self._spec.size or dst >= self._spec.size:
                known = to_ns(self._net.latency_s)  # the driver stands beside the node it speaks to
            else:
                known = to_ns(self._wiring.latency(src, dst))
            self._latency[pair] = known
        return known

    def _in_order(self, src: int, dst: int, due_ns: int) -> int:
        pair = (src, dst)
        due_ns = max(due_ns, self._last_ns.get(pair, -1) + 1)
        self._last_ns[pair] = due_ns
        return due_ns

    def _rules_of(self, src: int, dst: int) -> list[_Rule]:
        pair = (src, dst)
        rules = self._pairs.get(pair)
        if rules is None:
            rules = self._pairs[pair] = [rule for rule in self._rules if rule.hits(src, dst)]
        return rules

    # -- one bulk transfer

    def bulk_due(self, src: int, dst: int, size_B: int, now_ns: int) -> int:
        """When an array has arrived by the world's figures; cut links hold it until they heal."""
        if src == dst or src >= self._spec.size or dst >= self._spec.size:
            return now_ns
        start_ns, slower = now_ns, 1.0
        for rule in self._rules_of(src, dst) if self._rules else ():
            fault = rule.fault
            if not fault.during(now_ns / 1e9):
                continue
            if isinstance(fault, Partition):
                end_ns = _NEVER_NS if fault.until_s is None else to_ns(fault.until_s)
                start_ns = max(start_ns, end_ns)
            elif isinstance(fault, Clog):
                slower /= fault.fraction
        if self._spec.raw or start_ns >= _NEVER_NS:
            return start_ns
        start_ns = max(start_ns, self._nic_free_ns.get(-1 - src, 0))
        end_ns = start_ns + int(size_B * self._ns_per_byte * slower)
        self._nic_free_ns[-1 - src] = end_ns  # an array does not hold up small messages
        return end_ns + self._latency_ns(src, dst)
