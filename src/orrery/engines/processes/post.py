"""The post office of one process: tells, asks and answers between nodes, here or elsewhere."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from orrery.base.codec import decode, encode
from orrery.base.errors import CodecError, PartError, Refused
from orrery.base.units import to_ns
from orrery.engines.processes import wire
from orrery.engines.processes.kernel import Kernel
from orrery.engines.processes.net import Net
from orrery.engines.processes.shim import Copy, Shim
from orrery.engines.processes.spec import Counters, RunSpec
from orrery.engines.processes.tasks import Call, Throw
from orrery.parts.rpc import SENDER, Rpc, resolve, rpcs_of
from orrery.world import Byzantine


class Post:
    """Sends what the nodes of this process say, and hands over what is said to them."""

    def __init__(
        self,
        spec: RunSpec,
        group: int,
        again: int,
        kernel: Kernel,
        counters: Counters,
        on_malformed: Callable[[str], None],
    ) -> None:
        self.spec = spec
        self.group = group
        self.kernel = kernel
        self.counters = counters
        self.hosts: dict[int, Any] = {}
        self.net = Net(kernel.loop, spec, group, counters, self.arrive)
        self.shim = Shim(spec, group, again, counters)
        self.liars = self._find_liars()
        self.arrivals: dict[int, Call] = {}  # transfers whose arrival is awaited
        self._asks: dict[int, tuple[Call, Rpc, int]] = {}
        # Answers to a dead process must not be taken for answers to its successor.
        self._next = again << 40
        self._rpcs: dict[tuple[Any, type], Rpc] = {}
        self._tables: dict[type, dict[str, Rpc]] = {}
        self._on_malformed = on_malformed

    # -- out

    def rpc_at(self, peer: int, method: Any) -> Rpc:
        spec = self.spec
        if (
            not isinstance(peer, int)
            or not 0 <= peer <= spec.size
            or (peer < spec.size and not spec.cast)
        ):
            raise PartError(f"there is no node {peer!r}; ids are 0..{self.spec.size - 1}")
        key = (method, self.spec.class_of(peer))
        rpc = self._rpcs.get(key)
        if rpc is None:
            rpc = self._rpcs[key] = resolve(key[1], method)
        return rpc

    def tell(self, src: int, peer: int, method: Any, args: Any, kwargs: Any) -> None:
        rpc = self.rpc_at(peer, method)
        self._say(wire.TELL, src, peer, 0, rpc.name, rpc.arguments(args, kwargs))

    def ask(self, src: int, peer: int, method: Any, args: Any, kwargs: Any) -> Call:
        rpc = self.rpc_at(peer, method)
        arguments = rpc.arguments(args, kwargs)
        call = Call(self.kernel, peer, rpc.name)
        call.number = number = self.next_number()
        self._asks[number] = (call, rpc, peer)
        try:
            self._say(wire.ASK, src, peer, number, rpc.name, arguments)
        except BaseException:
            self.forget(call)
            raise
        return call

    def forget(self, call: Call) -> None:
        """An ask that a deadline or a cancellation ended needs no memory."""
        self._asks.pop(call.number, None)

    def next_number(self) -> int:
        self._next += 1
        return self._next

    def answer(self, host: Any, answers: tuple[int, int], result: Any) -> None:
        """Send the result of a handler back to the one who asked."""
        asker, number = answers
        if type(result) is Throw:
            self._say(wire.REFUSED, host.id, asker, number, "", str(result.error))
        else:
            self._say(wire.REPLY, host.id, asker, number, "", result)

    def _say(self, kind: int, src: int, dst: int, number: int, name: str, args: Any) -> None:
        """Put a message into words, or several other ones if the node is a liar."""
        if not self.liars:
            self.send(wire.Message(kind, src, dst, number, name, encode(args)), 0)
            return
        is_reply = kind in (wire.REPLY, wire.REFUSED)
        for to, told, delay_s in self.liars.said(src, dst, name, args, is_reply):
            message = wire.Message(kind, src, to, number, name, encode(told))
            self.send(message, to_ns(delay_s))

    def send(self, message: wire.Message, late_ns: int) -> None:
        """Give a message to the shim, and each copy that it lets through to its way."""
        payload = wire.pack_message(message)
        what = f"the message {message.method or 'answer'!r} of node {message.src}"
        framed = wire.frame(payload, self.spec.max_frame_B, what)
        size_B = self.spec.world.network.header_B + len(message.body)
        self.counters.add("messages")
        self.counters.add("bytes", size_B)
        now_ns = self.kernel.now_ns()
        copies = self.shim.copies(message.src, message.dst, size_B, now_ns)
        if not copies:
            self.counters.add("shimmed")
        for copy in copies:
            due_ns = copy.due_ns + late_ns
            if due_ns <= now_ns and self.spec.group_of[message.dst] != self.group:
                self._leave(message, framed, copy)
            else:
                leave = functools.partial(self._leave, message, framed, copy)
                self.kernel.call_at(due_ns, leave)

    def _leave(self, message: wire.Message, framed: bytes, copy: Copy) -> None:
        if copy.twist is not None and message.body:
            body = wire.flip_bit(bytes(wire.FRAME.size) + message.body, copy.twist)
            changed = message._replace(body=body[wire.FRAME.size :])
            framed = wire.frame(wire.pack_message(changed), self.spec.max_frame_B)
        group = self.spec.group_of[message.dst]
        if copy.spoil is not None:
            framed = wire.flip_bit(framed, copy.spoil)
        if group != self.group:
            self.net.send(group, framed)
            return
        reader = wire.FrameReader(self.spec.max_frame_B)
        for payload in reader.feed(framed):
            self.arrive(group, payload)
        self.counters.add("corrupt", reader.corrupt)

    # -- in

    def arrive(self, group: int, payload: bytes) -> None:
        """Take a payload from a process of the run; whatever is wrong with it, nothing breaks."""
        try:
            message = wire.unpack_message(payload)
            self._take(group, message)
        except (wire.WireError, CodecError) as error:
            self.counters.add("malformed")
            self._on_malformed(str(error))

    def _take(self, group: int, message: wire.Message) -> None:
        kind, src, dst, number, name, body = message
        host = self.hosts.get(dst)
        if host is None or src >= len(self.spec.group_of) or self.spec.group_of[src] != group:
            raise wire.WireError(f"a message from node {src} to node {dst} came the wrong way")
        if kind in (wire.TELL, wire.ASK):
            rpc = self._table(self.spec.class_of(dst)).get(name)
            if rpc is None:
                raise wire.WireError(f"node {src} called {name!r}, which node {dst} has not")
            args = self._decode(rpc, body, src, dst)
            self.counters.add("delivered")
            answers = (src, number) if kind == wire.ASK else None
            heard = self.liars.heard(src, dst, name, args) if self.liars else ((dst, args, 0.0),)
            for _, arguments, delay_s in heard:
                self._hand_over(host, rpc, src, arguments, answers, delay_s)
            return
        if kind == wire.ARRIVED:
            arrived = self.arrivals.pop(number, None)
            if arrived is not None:
                arrived.resolve(None)
            return
        self.counters.add("delivered")
        known = self._asks.get(number)
        if known is None:
            return  # the asker no longer waits, or this is the second copy of an answer
        call, rpc, peer = known
        if peer != src:
            raise wire.WireError(f"node {src} answered an ask that went to node {peer}")
        if kind == wire.REFUSED:
            value: Any = Throw(Refused(str(decode(body, str))))
        else:
            value = rpc.decode_result(body)
        del self._asks[number]
        call.resolve(value)

    def _hand_over(
        self, host: Any, rpc: Rpc, src: int, args: Any, answers: Any, delay_s: float
    ) -> None:
        if rpc.flags & SENDER:
            args = (*args, src)
        if delay_s:
            later = functools.partial(self.kernel.deliver, host, rpc, args, answers)
            self.kernel.call_at(self.kernel.now_ns() + to_ns(delay_s), later)
        else:
            self.kernel.deliver(host, rpc, args, answers)

    def _find_liars(self) -> Any:
        if not any(isinstance(fault, Byzantine) for fault in self.spec.faults):
            return None
        from orrery.engines.processes.liars import Liars

        now_s: Callable[[], float] = lambda: self.kernel.now_ns() / 1e9  # noqa: E731
        return Liars(self.spec, self.group, self.counters, now_s)

    def _decode(self, rpc: Rpc, body: bytes, src: int, dst: int) -> tuple[Any, ...]:
        try:
            return tuple(rpc.decode_arguments(body))
        except CodecError as error:
            raise CodecError(
                f"node {src} called {rpc.qualname} of node {dst} with arguments that do not fit "
                f"its annotations: {error}"
            ) from None

    def _table(self, cls: type) -> dict[str, Rpc]:
        table = self._tables.get(cls)
        if table is None:
            table = self._tables[cls] = rpcs_of(cls)
        return table
