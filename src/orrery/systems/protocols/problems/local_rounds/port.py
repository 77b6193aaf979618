"""The port of `local_rounds`: a LOCAL algorithm, written as rounds of messages.

The same three methods (`begin`, `send`, `take`) run on any engine, behind a synchroniser that
survives lost messages and restarts, and in a plain lockstep loop. `ball` says the same thing once
more as a function of the radius-T ball, and `arrays` once more for a million nodes.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
import numpy as np

from orrery.base.errors import DeadlineExceeded, PartError, UsageError
from orrery.base.rand import GOLDEN, mix64
from orrery.base.units import to_ns
from orrery.parts import Node, Positive, rpc
from orrery.systems.protocols.problems.local_rounds.graph import (
    Ints,
    LocalGraph,
    many_cycles,
)

# One message: any number of rows of whole numbers (the LOCAL model does not bound its size).
Payload = tuple[tuple[int, ...], ...]

PART = "part"  # the file in which a node keeps who it is


class Me(msgspec.Struct, frozen=True):
    """What a node knows before the first round: itself, its ports, and bounds on the world."""

    id: int
    peers: tuple[int, ...]  # where each port leads, for the transport only
    n: int
    bits: int  # identifiers lie in 0..2**bits - 1
    tape: int  # the key of its private random numbers
    limit: int  # the rounds after which it stops

    @property
    def degree(self) -> int:
        """How many ports it has."""
        return len(self.peers)

    def draw(self, i: int) -> int:
        """Draw number i of the private tape."""
        return mix64(self.tape + (i + 1) * GOLDEN)


class State:
    """One node between two rounds: who it is, how many rounds are over, what it has said."""

    def __init__(self, me: Me) -> None:
        self.me = me
        self.round = 0
        self.said: list[tuple[int, int]] = []  # (value, round) of each output

    @property
    def answer(self) -> int | None:
        """The first output, or None."""
        return self.said[0][0] if self.said else None

    def speak(self, value: int) -> None:
        """Output a value; a second one is recorded too, for the checker to find."""
        self.said.append((int(value), self.round))


def me_of(graph: LocalGraph, v: int, limit: int) -> Me:
    """What node v of a graph knows at first."""
    return Me(int(graph.ids[v]), tuple(graph.neighbours(v)), graph.n, graph.bits,
              int(graph.tapes[v]), limit)  # fmt: skip


class LocalAlgorithm(Node):
    """The port: `begin`, `send` and `take` for one node, and `ball` for the same as a function.

    A subclass sets `task` ("leader", "colouring" or "mis"), keeps all state of a node in the
    `State` it is given, and outputs by `state.speak(value)`. It goes on relaying afterwards.
    Optional: `arrays(graph)` gives (outputs, rounds) of all nodes at once; `bound(n, bits)` the
    rounds that are enough for every node of a cycle, or None; `cycles_only`.

    Messages of a round are kept, so a node that lost its memory asks for those that it missed and
    computes everything anew. `patience_s` is how long it waits for a message before it asks again.
    """

    patience_s: Positive = 2.5

    task: ClassVar[str] = ""
    cycles_only: ClassVar[bool] = False
    tolerates: ClassVar[tuple[str, ...]] = (
        "drop", "duplicate", "reorder", "restart", "pause", "partition",
    )  # fmt: skip

    # -- what a subclass writes

    def begin(self, state: State) -> None:
        """Make the state of a node; it may speak in round 0."""

    def send(self, state: State, port: int) -> Payload:
        """The message of the next round through a port."""
        raise PartError(f"{type(self).__name__} has no send(state, port); write its message")

    def take(self, state: State, inbox: list[Payload]) -> None:
        """Take the messages of a round, one for each port; `state.round` counts it already."""
        raise PartError(f"{type(self).__name__} has no take(state, inbox); write its rule")

    def ball(self, ball: Any) -> int | None:
        """The output that the ball allows, or None; see `Ball`."""
        raise PartError(f"{type(self).__name__} has no ball(ball); write it as a function")

    def arrays(self, graph: LocalGraph) -> tuple[Ints, Ints]:
        """The outputs and output rounds of all nodes at once."""
        raise UsageError(f'{type(self).__name__} has no arrays(graph); use by="messages"')

    def many(self, ids: Ints, key: int = 0) -> Ints:
        """The output rounds on many cycles at once: a row of rounds for each row of identifiers.

        This serves algorithms that only compare neighbours; one that uses n writes its own.
        """
        return self.arrays(many_cycles(ids, key))[1].reshape(np.shape(ids))

    def bound(self, n: int, bits: int) -> int | None:
        """The rounds that are enough for all nodes of a cycle, for any identifiers; or None."""
        return None

    def drawn(self) -> LocalAlgorithm | None:
        """The same rule with random priorities for identifiers; None where there is none."""
        return None

    # -- the synchroniser, the same for all

    def start(self) -> None:
        self._heard: dict[tuple[int, int], Payload] = {}  # (round, peer)
        self._sent: dict[tuple[int, int], Payload] = {}
        self._news = self.event()
        self._spoken = self.event()
        self._state: State | None = None

    @rpc
    async def solve(self, me: Me) -> tuple[int, int]:
        """Take part in the computation; gives (output, round). It may be asked more than once."""
        if self._state is None:
            state = self._state = State(me)
            # Others rely on this node's relaying as soon as it has begun, so from then on it has
            # to know its part again after a crash, when nobody may ask it any more.
            await self.disk.write(PART, msgspec.json.encode(me))
            await self.disk.fsync(PART)
            self.spawn(self._go(state))
        await self._spoken.wait()
        return self._state.said[0]

    async def main(self) -> None:
        if self.incarnation and self.disk.exists(PART):
            try:
                me = msgspec.json.decode(await self.disk.read(PART), type=Me)
            except msgspec.MsgspecError:
                return  # torn before it was safe: it had not begun, and will be asked again
            if self._state is None:
                self._state = State(me)
                await self._go(self._state)

    @rpc
    async def hear(self, round: int, payload: Payload, sender: int) -> None:
        """The message of a neighbour for a round."""
        self._heard.setdefault((round, sender), payload)
        self._news.set()

    @rpc
    async def want(self, round: int, sender: int) -> None:
        """A neighbour misses a message of ours: send it again, if it was sent already."""
        payload = self._sent.get((round, sender))
        if payload is not None:
            self.tell(sender, LocalAlgorithm.hear, round, payload)

    async def _go(self, state: State) -> None:
        me = state.me
        self.begin(state)
        self._report(state, 0)
        while state.round < me.limit:
            number, told = state.round + 1, len(state.said)
            await self._next_round()
            for port, peer in enumerate(me.peers):
                payload = self.send(state, port)
                self._sent[number, peer] = payload
                self.tell(peer, LocalAlgorithm.hear, number, payload)
            await self._all_of(number, me.peers)
            inbox = [self._heard.pop((number, peer)) for peer in me.peers]
            state.round = number
            self.take(state, inbox)
            self._report(state, told)

    async def _next_round(self) -> None:
        """In a world of rounds, wait for the next one, so that a round is one of the world's.

        There, messages are handled as a round ends; whatever is sent before the next one begins
        would still arrive in this one. Elsewhere the messages themselves make the rounds.
        """
        network = self.world.network
        if network.model == "rounds":
            # On a real clock a message may be a little late; then the round has just begun.
            left_ns = -to_ns(self.now) % to_ns(network.round_s)
            if left_ns <= to_ns(network.round_s) // 2:
                await self.sleep(left_ns / 1e9)

    async def _all_of(self, number: int, peers: tuple[int, ...]) -> None:
        """Wait for the messages of a round; ask again for those that do not come."""
        while missing := [peer for peer in peers if (number, peer) not in self._heard]:
            self._news.clear()
            try:
                async with self.deadline(self.patience_s):
                    await self._news.wait()
            except DeadlineExceeded:
                for peer in missing:
                    self.tell(peer, LocalAlgorithm.want, number)

    def _report(self, state: State, told: int) -> None:
        for value, at in state.said[told:]:
            self.emit(output=value, round=at)
        if state.said:
            self._spoken.set()


Said = list[list[tuple[int, int]]]


def lockstep(part: LocalAlgorithm, graph: LocalGraph, limit: int = 0) -> Said:
    """Run the messages of all nodes in one loop, with no engine; what each node said, by node.

    It ends when all have spoken, or after `limit` rounds (0: 4 n + 16).
    """
    most = limit or 4 * graph.n + 16
    states = [State(me_of(graph, v, most)) for v in range(graph.n)]
    back = [[graph.neighbours(u).index(v) for u in graph.neighbours(v)] for v in range(graph.n)]
    for state in states:
        part.begin(state)
    for number in range(1, most + 1):
        if all(state.said for state in states):
            break
        sent = [[part.send(s, port) for port in range(s.me.degree)] for s in states]
        for v, state in enumerate(states):
            inbox = [sent[u][port] for u, port in zip(graph.neighbours(v), back[v], strict=True)]
            state.round = number
            part.take(state, inbox)
    return [state.said for state in states]
