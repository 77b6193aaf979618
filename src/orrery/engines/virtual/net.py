"""The network in virtual time: small messages from the kernel, bulk transfers as fluid flows."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from orrery.base.codec import encode
from orrery.base.errors import Refused
from orrery.base.rand import Stream
from orrery.base.units import FOREVER_NS, to_ns
from orrery.engines.virtual.flows import FlowNet

if TYPE_CHECKING:
    from orrery.engines.virtual.engine import Engine

DROP_ONE = 1 << 32


def configure(engine: Engine) -> None:
    """Tell the kernel how messages travel in this world."""
    kernel, world = engine.kernel, engine.world
    net = world.network
    kernel.header = net.header_B
    kernel.drop32 = int(net.drop * DROP_ONE)
    kernel.fifo = net.fifo
    kernel.egress = net.egress_queue
    kernel.immune = engine.size
    if net.model == "rounds":
        kernel.mode = 2
        kernel.round_ns = to_ns(net.round_s)
        return
    uniform = engine.wiring.uniform_latency_s
    if uniform is not None:
        kernel.mode = 0
        kernel.latency_ns = to_ns(uniform)
        kernel.jitter_ns = to_ns(uniform * net.jitter)
        kernel.ns_per_byte = ns_per_byte(net.bandwidth_Bps)
        return
    kernel.mode = 1
    size, wiring = engine.size, engine.wiring
    rate = ns_per_byte(net.bandwidth_Bps)

    def link(latency_s: float) -> tuple[int, int, float]:
        return to_ns(latency_s), to_ns(latency_s * net.jitter), rate

    def link_of(src: int, dst: int) -> tuple[int, int, float]:
        if src >= size or dst >= size:  # the driver stands beside the node it speaks to
            return link(net.latency_s)
        return link(wiring.latency(src, dst))

    kernel.link_of = link_of
    if wiring.site_of is None or wiring.site_latency_s is None:
        return
    # Where the sites decide, all links are known now: a large world asks for millions of pairs.
    sites, beside, oneself = wiring.site_of.tolist(), link(net.latency_s), link(0.0)
    links = [[link(latency_s) for latency_s in row] for row in wiring.site_latency_s.tolist()]

    def link_of_sites(src: int, dst: int) -> tuple[int, int, float]:
        if src >= size or dst >= size:
            return beside
        return oneself if src == dst else links[sites[src]][sites[dst]]

    kernel.link_of = link_of_sites


def ns_per_byte(bandwidth_Bps: float) -> float:
    return 0.0 if math.isinf(bandwidth_Bps) else 1e9 / bandwidth_Bps


def wire_codec(kernel: Any) -> tuple[Any, Any]:
    """Wire mode: every message becomes bytes and is read back by its declared types."""

    def to_bytes(slot: Any, args: Any, is_reply: bool) -> bytes:
        if not is_reply:
            return encode(args)
        if type(args) is kernel.Throw:
            return b"\x01" + str(args.error).encode()
        return b"\x00" + encode(args)

    def to_values(slot: Any, data: bytes, is_reply: bool) -> Any:
        if not is_reply:
            return tuple(slot.rpc.decode_arguments(data))
        if data[:1] == b"\x01":
            return kernel.Throw(Refused(data[1:].decode()))
        return slot.rpc.decode_result(data[1:])

    return to_bytes, to_values


class Transfers:
    """Bulk arrays as max-min fair flows over the world's links, with an inbox at the far end."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._net: FlowNet | None = None  # built when the first transfer starts
        self._timer: Any = None
        self._timer_ns = FOREVER_NS
        self._settling = False
        self._inboxes: dict[tuple[int, int, str], Any] = {}
        self._open: dict[int, tuple[int, int]] = {}  # flow -> (source, destination)
        self.bytes = 0
        self.count = 0
        self._sigma = engine.world.network.latency_sigma
        self._tails = Stream(engine.seed, "transfers", "tail")

    def _tail(self) -> float:
        """By which factor the latency of the next transfer differs."""
        return self._tails.lognormvariate(0.0, self._sigma) if self._sigma else 1.0

    def inbox(self, node: int, peer: int, tag: str) -> Any:
        key = (node, peer, tag)
        queue = self._inboxes.get(key)
        if queue is None:
            queue = self._inboxes[key] = self._engine.kernel_module.Queue(self._engine.kernel)
        return queue

    async def send(self, src: int, dst: int, array: Any, tag: str, scale: float) -> None:
        """Resolves when the last byte arrived; a flow to or from a dead node never does."""
        engine = self._engine
        kernel = engine.kernel
        arrived = engine.kernel_module.Event(kernel)
        if kernel.state[dst] == 0:
            await arrived.wait()
        nbytes = round(array.nbytes * scale)
        self.bytes += nbytes
        self.count += 1
        latency_ns = 0
        links: tuple[int, ...] = ()
        if src != dst and src < engine.size and dst < engine.size:
            links = tuple(engine.wiring.bulk_path(src, dst))
            latency_ns = to_ns(engine.wiring.latency(src, dst) * self._tail())
        if not links or not nbytes:
            arrive = partial(self._arrive, src, dst, tag, array, arrived, nbytes)
            kernel.call_at(kernel.now + latency_ns, arrive)
        else:
            net = self.net
            flow = net.start(
                kernel.now, links, float(nbytes), self._window_Bps(latency_ns),
                (src, dst, tag, array, arrived, nbytes, latency_ns),
            )  # fmt: skip
            self._open[flow] = (src, dst)
            self._settle_soon()
        await arrived.wait()

    def _window_Bps(self, latency_ns: int) -> float:
        """The most that one connection carries: a window in each round trip."""
        window_B = self._engine.world.network.window_B
        if window_B is None or not latency_ns:
            return math.inf
        return window_B / (2e-9 * latency_ns)

    @property
    def net(self) -> FlowNet:
        if self._net is None:
            self._net = FlowNet(self._engine.wiring.capacity_Bps)
        return self._net

    def _settle_soon(self) -> None:
        """Solve once for all that changes in this instant: n flows that start together cost one."""
        if not self._settling:
            self._settling = True
            self._engine.kernel.call_at(self._engine.kernel.now, self._settle)

    def _settle(self) -> None:
        """Keep exactly one kernel event, at the next completion."""
        self._settling = False
        due = self.net.next_ns()
        if due == self._timer_ns and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_ns = due
        if due < FOREVER_NS:
            self._timer = self._engine.kernel.call_at(due, self._complete)

    def _complete(self) -> None:
        kernel = self._engine.kernel
        self._timer = None
        for flow, done in self.net.finish_due(kernel.now):
            self._open.pop(flow, None)
            *what, latency_ns = cast(tuple[Any, ...], done)
            # The last byte leaves now and is there one latency later.
            kernel.call_at(kernel.now + latency_ns, partial(self._arrive, *what))
        self._settle_soon()

    def _arrive(self, src: int, dst: int, tag: str, array: Any, arrived: Any, nbytes: int) -> None:
        if self._engine.kernel.state[dst]:
            self.inbox(dst, src, tag).put(array)
            arrived.set()

    def node_lost(self, node: int) -> None:
        """A crash ends the flows to and from a node and empties its inboxes."""
        for key in [key for key in self._inboxes if key[0] == node]:
            del self._inboxes[key]
        gone = [flow for flow, ends in self._open.items() if node in ends]
        for flow in gone:
            del self._open[flow]
            self.net.cancel(self._engine.kernel.now, flow)
        if gone:
            self._settle_soon()

    def set_link(self, link: int, capacity_Bps: float) -> None:
        """A fault changes what a link can carry."""
        self.net.set_capacity(self._engine.kernel.now, link, capacity_Bps)
        self._settle_soon()
