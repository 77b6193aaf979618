"""How the pure-Python kernel sends messages over the modelled network; twin of `send_one` in C.

The engine fills in the public fields from the world. A message is lost, cut off or scheduled here
and nowhere else: latency, jitter, loss, the sender's line (egress queue), order between a pair,
synchronous rounds, and the hook through which faults act on special nodes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from orrery.base import rand
from orrery.base.codec import size_of
from orrery.base.errors import PartError
from orrery.engines.virtual.waits_py import Call, Throw

if TYPE_CHECKING:
    from orrery.engines.virtual.kernel_py import Host

MESSAGE = 1  # the mark of a message's entry; a reply is one too
ARRIVED = 5  # a message that its receiver's processor has taken in
_MASK32 = 0xFFFFFFFF
SIZES = {int: 8, float: 8, bool: 1, type(None): 1}


class Slot:
    """An rpc as one destination class answers it."""

    __slots__ = ("flags", "fn", "mark", "n_params", "name", "rpc")

    def __init__(self, rpc: Any) -> None:
        self.rpc = rpc
        self.fn = rpc.fn
        self.flags = rpc.flags
        self.mark = rpc.mark
        self.name = rpc.name
        self.n_params = len(rpc.params)


class Sending:
    """The network half of the kernel."""

    now: int
    seq: int
    hosts: list[Host | None]

    def __init__(
        self, hosts: int, net_keys: list[int], resolve: Callable[[type, Any], Any]
    ) -> None:
        self.times: list[int] = []  # a heap of the times at which something happens
        self.buckets: dict[int, list[Any]] = {}  # what happens then, in order
        self.sizes: list[int] = []  # of the messages sent since they were last added up
        self._messages = 0
        self._bytes = 0
        self.resolve = resolve
        # One table of rpc method -> Slot per class, found by the index of any of its hosts.
        self.class_slots: dict[type, dict[Any, Slot]] = {}
        self.host_slots: dict[int, dict[Any, Slot]] = {}
        self.net_keys = list(net_keys)
        self.net_counts = [0] * hosts
        self._draws: list[list[int]] = [[] for _ in range(hosts)]
        self.mode = 0  # 0 uniform, 1 by pair (link_of), 2 rounds
        self.latency_ns = 0
        self.jitter_ns = 0
        self.drop32 = 0
        self.ns_per_byte = 0.0
        self.header = 0
        self.fifo = False
        self.egress = False
        self.round_ns = 0
        self.immune = hosts  # hosts with this index or above lose nothing
        self.link_of: Callable[[int, int], tuple[int, int, float]] | None = None
        self._links: dict[int, tuple[int, int, float]] = {}
        self._last: dict[int, int] = {}
        self._last_limit = 4096
        self._nic_free = [0] * hosts
        self.cut = False  # whether `side` divides the nodes
        self.side = [0] * hosts
        self.special = bytearray(hosts)  # 1: messages of this node pass the hook
        self.hook: Callable[..., list[tuple[int, int, Any]] | None] | None = None
        self.wire: tuple[Callable[..., bytes], Callable[..., Any]] | None = None
        # What sending or receiving costs a processor: (host, size, receiving) -> ns to wait.
        self.charge: Callable[[int, int, bool], int] | None = None

    @property
    def messages(self) -> int:
        """How many messages were sent, lost ones too."""
        return self._messages + len(self.sizes)

    @property
    def bytes(self) -> int:
        """How many bytes those messages had, headers included."""
        self._count_sizes()
        return self._bytes

    def _count_sizes(self) -> None:
        self._messages += len(self.sizes)
        self._bytes += sum(self.sizes)
        self.sizes.clear()

    def slot(self, peer: int, method: Any) -> Slot:
        """The rpc that `method` reaches at a peer; resolved once for each class."""
        hosts = self.hosts
        host = hosts[peer] if type(peer) is int and 0 <= peer < len(hosts) else None
        if host is None:
            raise PartError(f"there is no node {peer!r}; ids are 0..{self.immune - 1}")
        slots = self.host_slots[peer]
        slot = slots.get(method)
        if slot is None:
            slot = slots[method] = Slot(self.resolve(type(host), method))
        return slot

    def post(self, src: int, dst: int, slot: Slot, args: Any, call: Call | None) -> None:
        """Send a request or one-way message; special nodes pass the fault hook first."""
        if self.special[src] or self.special[dst]:
            assert self.hook is not None
            copies = self.hook(src, dst, slot, args, False)
            if copies is not None:
                for extra_ns, to, changed in copies:
                    self.send(src, to, slot, changed, call, extra_ns, False)
                return
        self.send(src, dst, slot, args, call, 0, False)

    def reply(self, src: int, call: Call, slot: Slot, value: Any) -> None:
        dst = call.asker._index
        if self.special[src] or self.special[dst]:
            assert self.hook is not None
            copies = self.hook(src, dst, slot, value, True)
            if copies is not None:
                for extra_ns, _, changed in copies:
                    self.send(src, dst, slot, changed, call, extra_ns, True)
                return
        self.send(src, dst, slot, value, call, 0, True)

    def send(
        self, src: int, dst: int, slot: Slot, args: Any, call: Call | None, extra_ns: int,
        is_reply: bool,
    ) -> None:  # fmt: skip
        """Put one message on the network. This is the hottest path: everything is in line."""
        now = self.now
        if self.wire is not None:
            args = self.wire[0](slot, args, is_reply)
            size = self.header + len(args)
        elif type(args) is tuple:
            size = self.header + 4
            for item in args:
                size += SIZES.get(type(item)) or size_of(item, 1)
        elif type(args) is Throw:
            size = self.header + 4 + len(str(args.error))
        else:
            size = self.header + size_of(args)
        self.sizes.append(size)
        if self.charge is not None and src != dst:
            now += self.charge(src, size, False)
        if src == dst:
            when = now + extra_ns
        else:
            outside = src >= self.immune or dst >= self.immune
            if self.cut and not outside and self.side[src] != self.side[dst]:
                return
            mode = self.mode
            if mode == 1:
                latency, jitter, ns_per_byte = self._link(src, dst)
            else:
                latency, jitter, ns_per_byte = self.latency_ns, self.jitter_ns, self.ns_per_byte
            if jitter or (self.drop32 and not outside):
                draws = self._draws[src]
                word = draws.pop() if draws else self._draw(src)
                if (word >> 32) < self.drop32 and not outside:
                    return
                latency += ((word & _MASK32) * jitter) >> 32
            when = now
            if ns_per_byte:
                busy = int(size * ns_per_byte)
                if self.egress:
                    free = self._nic_free[src]
                    if free > now:
                        when = free
                    self._nic_free[src] = when + busy
                when += busy
            when += latency + extra_ns
            if mode == 2:
                # The messages of a round arrive in its last nanosecond, before the next begins.
                when = ((now + 1) // self.round_ns + 1) * self.round_ns - 1 + extra_ns
            elif jitter and self.fifo and not extra_ns:  # what a fault delays may be overtaken
                when = self._in_order(src << 32 | dst, when)
        self.seq = seq = self.seq + 1
        self.push(when, (seq, MESSAGE, src, dst, slot, args, call, is_reply, size, self.now))

    def push(self, when: int, entry: Any) -> None:
        """Put an entry on the calendar."""
        bucket = self.buckets.get(when)
        if bucket is None:
            self.buckets[when] = [entry]
            heapq.heappush(self.times, when)
        else:
            bucket.append(entry)

    def _draw(self, src: int) -> int:
        """Refill a source's block of random words, each time a longer one, and take the first."""
        start = self.net_counts[src]
        count = min(1024, start + 16)
        draws = self._draws[src]
        draws.extend(rand.block(self.net_keys[src], start, count)[::-1].tolist())
        self.net_counts[src] = start + count
        return draws.pop()

    def _link(self, src: int, dst: int) -> tuple[int, int, float]:
        key = src << 32 | dst
        link = self._links.get(key)
        if link is None:
            assert self.link_of is not None
            link = self._links[key] = self.link_of(src, dst)
        return link

    def _in_order(self, key: int, when: int) -> int:
        """No message overtakes an earlier one of the same pair."""
        last = self._last
        before = last.get(key, -1)
        if when <= before:
            when = before + 1
        last[key] = when
        if len(last) > self._last_limit:  # pairs with nothing in flight need no memory
            now = self.now
            self._last = {k: t for k, t in last.items() if t > now}
            self._last_limit = max(4096, 2 * len(self._last))
        return when

    def _grow_network(self, net_key: int) -> None:
        self.net_keys.append(net_key)
        self.net_counts.append(0)
        self._draws.append([])
        self._nic_free.append(0)
        self.side.append(0)
        self.special.append(0)
