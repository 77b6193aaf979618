"""`Pairwise`: minimisers whose neighbours meet in pairs, on random clocks, with no rounds at all.

A meeting changes both ends by the same vector, with opposite signs, so that what they hold adds up
to zero over the graph. Messages may be lost, doubled or late, and peers may die; this module keeps
the sum at zero all the same:

- The owner of an edge sends its vector with a number; the other end applies its side at once and
  answers with the change and the tick of its clock. The owner applies its side as if at that tick:
  what drifts in between is linear, so a late change can be put in exactly.
- A lost answer is asked for again under the same number, and the same answer comes back. Nothing is
  applied twice.
- Each end keeps, for each edge, all that came over it, as it has drifted since. An end that gives
  an edge up takes exactly that out of its state again and begins a new session. Whoever hears of a
  new session does the same. So both ends are left as if they had never met, whoever died when.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Sequence
from typing import Annotated, ClassVar, NamedTuple

import msgspec
import numpy as np

from orrery.base.errors import DeadlineExceeded, PartError, Refused
from orrery.parts import Positive, rpc
from orrery.parts.collectives import Array
from orrery.systems.train.problems.gossip_graphs import Graph
from orrery.systems.train.problems.minimiser import Minimiser

TICKS = 1 << 20  # of the clock, in one unit of time
RESET = -1  # the stamp of an answer that says: begin anew
LIFE = 1 << 20  # sessions that one life of a node may have
SILENCE = 30  # mean gaps without a word after which an edge is given up by the end that listens
BACKLOG = 4.0  # units of time that a clock may catch up on

Load = Annotated[float, msgspec.Meta(gt=0, le=1)]
Answer = tuple[int, int, Array]  # session, tick, change
Spike = tuple[float, float]


class Pair(NamedTuple):
    """Two rows u, v that drift as u' = a (v - u), v' = b (u - v); exact forwards and backwards."""

    a: float
    b: float

    def drifted(self, rows: Array, units: float) -> Array:
        """Both rows after so many units of time.

        >>> Pair(1.0, 1.0).drifted(np.array([[0.0], [2.0]]), 1e9).ravel().tolist()
        [1.0, 1.0]
        """
        total = self.a + self.b
        part = -math.expm1(-total * units) / total
        gap, found = rows[1] - rows[0], rows.copy()
        found[0] += (self.a * part) * gap
        found[1] -= (self.b * part) * gap
        return found


class RoundTrip:
    """How long to wait for an answer: the mean and four deviations; longer after a miss.

    Jacobson, "Congestion avoidance and control", SIGCOMM 1988.
    """

    __slots__ = ("limit_s", "mean_s", "most_s", "off_s", "usual_s")

    def __init__(self, most_s: float) -> None:
        self.most_s = most_s
        self.limit_s = self.usual_s = most_s / 4.0
        self.mean_s = self.off_s = 0.0

    def took(self, seconds: float) -> None:
        """An answer came after so long."""
        if not self.mean_s:
            self.mean_s, self.off_s = seconds, seconds / 2.0
        miss_s = seconds - self.mean_s
        self.mean_s += miss_s / 8.0
        self.off_s += (abs(miss_s) - self.off_s) / 4.0
        # Where all take equally long, the least difference must not look like a loss.
        self.limit_s = self.usual_s = min(1.5 * self.mean_s + 4.0 * self.off_s, self.most_s)

    def missed(self) -> None:
        """No answer came within the limit; it may double twice, as losses come in a row."""
        self.limit_s = min(2.0 * self.limit_s, 4.0 * self.usual_s, self.most_s)


class Edge:
    """What one end of an edge remembers."""

    __slots__ = (
        "answer", "at", "heard_s", "ledger", "lost", "mine", "number", "peer", "rate", "retry_s",
        "spike", "theirs", "wait_s",
    )  # fmt: skip

    def __init__(
        self, peer: int, rate: float, mine: int, zero: Array, spike: Spike = (0.0, 0.0)
    ) -> None:
        self.peer, self.rate, self.spike = peer, rate, spike
        self.mine, self.theirs = mine, 0  # sessions of the two ends
        self.number = 0  # of the latest meeting that was asked for, or answered
        self.answer: Answer = (mine, RESET, zero)
        self.ledger: Array = np.zeros((2, zero.size))  # what came over this edge, drifted to `at`
        self.at = 0
        self.heard_s = 0.0
        self.lost = False
        self.retry_s = self.wait_s = 0.0


def owners(graph: Graph, rates: Sequence[float]) -> list[int]:
    """Which end of each edge starts the meetings: the one that has less to do, then fewer edges."""
    degree, load = [0] * graph.nodes, [0.0] * graph.nodes
    for a, b in graph.edges:
        degree[a] += 1
        degree[b] += 1
    found = []
    for (a, b), rate in zip(graph.edges, rates, strict=True):
        owner = min((a, b), key=lambda node: (load[node], degree[node]))
        load[owner] += rate
        found.append(owner)
    return found


class Pairwise(Minimiser):
    """A minimiser that meets its neighbours two by two. A subclass writes what a meeting changes.

    It gives `plan()`, the rate of each edge in meetings for a unit of time, which also sets `pair`,
    by which the changed rows drift; `spike(peer)`, by how much a meeting changes each row;
    `value()`, what the ends compare; `kick(change)` and `late_kick(…)`, which add to the rows;
    `advance(to)`, which drifts the state to a tick; `rows()`, the two rows now. `self.unit_s` is
    the unit of time in seconds.

    Knobs: `load`, the part of its time that a node computes gradients; `patience_s`, seconds
    without an answer after which an edge is given up.
    """

    load: Load = 0.8
    patience_s: Positive = 0.5

    timed: ClassVar[bool] = True
    pair: Pair

    def start(self) -> None:
        super().start()
        self.unit_s = self.given.gradient_s / self.load
        self.at = 0
        self.held = self.meeting = False
        self.waiting = 0  # peers whose answer is awaited at this moment
        self.round_trip = RoundTrip(self.patience_s)
        self.idle, self.freed = self.event(), self.event()
        rates = self.plan()
        mine = self.incarnation * LIFE
        self.edges: dict[int, Edge] = {}
        self.owned: list[Edge] = []
        for (a, b), rate, owner in zip(
            self.graph.edges, rates, owners(self.graph, rates), strict=True
        ):
            if self.id in (a, b):
                peer = a + b - self.id
                edge = self.edges[peer] = Edge(peer, rate, mine, self.zero, self.spike(peer))
                if owner == self.id and rate > 0:
                    self.owned.append(edge)

    # -- what a subclass writes

    def plan(self) -> Sequence[float]:
        """Meetings of each edge in a unit of time."""
        raise PartError(f"{type(self).__name__} has no plan(); give the rate of each edge")

    def spike(self, peer: int) -> Spike:
        """By how much of the change each of the two rows moves, at the owner's end."""
        raise PartError(f"{type(self).__name__} has no spike(peer); give a factor for each row")

    def value(self) -> Array:
        """What the two ends of an edge compare."""
        raise PartError(f"{type(self).__name__} has no value(); say what the ends compare")

    def kick(self, change: Array) -> None:
        """Add these two rows to the state."""
        raise PartError(f"{type(self).__name__} has no kick(change); add the rows to the state")

    def late_kick(self, spike: Spike, change: Array, ticks: int) -> Array:
        """Put in a change of so many ticks ago, as it has drifted since; gives its two rows."""
        rows = self.pair.drifted(np.multiply.outer(np.array(spike), change), ticks / TICKS)
        self.kick(rows)
        return rows

    def rows(self) -> Array:
        """The two rows that meetings change, as of `self.at`."""
        raise PartError(f"{type(self).__name__} has no rows(); give what meetings change")

    def advance(self, to: int) -> None:
        """Drift the state to a tick."""
        raise PartError(f"{type(self).__name__} has no advance(to); drift the state")

    # -- the clock

    def tick(self) -> int:
        """The time by this node's clock, which never goes back."""
        return max(int(self.clock() / self.unit_s * TICKS), self.at)

    async def meet(self) -> None:
        """Meet neighbours, one at a time, on the clocks of the edges that this node owns."""
        if not self.owned:
            return
        sums = np.cumsum([edge.rate for edge in self.owned]).tolist()
        mean_s, due_s, edge = self.unit_s / sums[-1], self.now, self.owned[0]
        while True:
            due_s += self.rng.expovariate(1.0) * mean_s
            due_s = max(due_s, self.now - BACKLOG * self.unit_s)
            # A real clock goes on between two looks at it.
            if (ahead_s := due_s - self.now) > 0:
                await self.sleep(ahead_s)
            if len(sums) > 1:
                edge = self.owned[bisect(sums, self.rng.random() * sums[-1], 0, len(sums) - 1)]
            if self.held:
                await self.freed.wait()
            if edge.lost and edge.retry_s > self.now:
                continue
            self.meeting = True
            await self._meeting(edge)
            self.meeting = False
            if self.held:
                self.idle.set()

    async def _meeting(self, edge: Edge) -> None:
        edge.number += 1
        told = await self._ask(edge, await self.offer())
        if told is None:
            edge.lost = True
            edge.wait_s = min(2 * edge.wait_s or self.patience_s, 1000 * self.patience_s)
            edge.retry_s = self.now + edge.wait_s
            self._give_up(edge)
            return
        edge.lost, edge.wait_s = False, 0.0
        session, stamp, change = told
        if session != edge.theirs:
            self._take_out(edge)
            edge.theirs = session
        elif stamp != RESET:
            self.advance(max(self.tick(), stamp))
            self._enter(edge, self.late_kick(edge.spike, change, self.at - stamp))

    async def offer(self) -> Array:
        """What the owner sends: its value at this moment."""
        self.advance(self.tick())
        return self.value()

    async def _ask(self, edge: Edge, offer: Array) -> Answer | None:
        """The answer of the other end; None where none comes in time."""
        began_s, trip = self.now, self.round_trip
        self.waiting += 1
        self.widest = max(self.widest, self.waiting)
        try:
            return await self._ask_again(edge, offer, began_s, trip)
        finally:
            self.waiting -= 1

    async def _ask_again(
        self, edge: Edge, offer: Array, began_s: float, trip: RoundTrip
    ) -> Answer | None:
        while True:
            self.sent += 1
            asked_s = self.now
            try:
                async with self.deadline(trip.limit_s):
                    told = await self.ask(
                        edge.peer, Pairwise.swap, edge.mine, edge.theirs, edge.number, offer
                    )
            except DeadlineExceeded:
                if edge.lost or self.now - began_s >= self.patience_s:
                    return None
                trip.missed()
            else:
                trip.took(self.now - asked_s)
                return told

    @rpc
    def swap(self, theirs: int, mine: int, number: int, offer: Array, sender: int) -> Answer:
        """The other end of a meeting: apply this side of it, and tell the change and the tick."""
        edge = self.known(theirs, mine, number, sender)
        if edge.number != number:
            self.advance(self.tick())
            self.settle(edge, number, 0.5 * (offer - self.value()))
        return edge.answer

    def known(self, theirs: int, mine: int, number: int, sender: int) -> Edge:
        """The edge that a request came over, with its answer ready where there is nothing to do."""
        edge = self.edges.get(sender)
        if edge is None:
            raise Refused(f"node {sender} is no neighbour of node {self.id} in this graph")
        self.sent += 1
        edge.heard_s = self.now
        if theirs > edge.theirs:
            self._take_out(edge)
            edge.theirs, edge.number = theirs, 0
            edge.answer = (edge.mine, RESET, self.zero)
        if theirs < edge.theirs or mine != edge.mine or number < edge.number:
            # An old request that was under way for long, or from before this end began anew.
            stale = Edge(sender, edge.rate, edge.mine, self.zero)
            stale.number = number
            return stale
        return edge

    def settle(self, edge: Edge, number: int, change: Array) -> None:
        """Apply this side of a meeting now, and remember the answer."""
        rows = np.multiply.outer((-edge.spike[0], -edge.spike[1]), change)
        self.kick(rows)
        self._enter(edge, rows)
        edge.number, edge.answer = number, (edge.mine, self.at, change)

    # -- the books

    def _enter(self, edge: Edge, change: Array) -> None:
        """Book what came over an edge, so that it can be taken out again."""
        edge.ledger = self._ledger_now(edge) + change
        edge.at = self.at

    def _ledger_now(self, edge: Edge) -> Array:
        return self.pair.drifted(edge.ledger, (self.at - edge.at) / TICKS)

    def _take_out(self, edge: Edge) -> None:
        """Take all that came over an edge out of the state: as if the ends had never met."""
        if edge.ledger.any():
            self.advance(self.tick())
            self.kick(-self._ledger_now(edge))
            edge.ledger = np.zeros_like(edge.ledger)
            edge.at = self.at
            self.emit(taken_out=edge.peer)

    def _give_up(self, edge: Edge) -> None:
        self._take_out(edge)
        edge.mine += 1
        edge.answer = (edge.mine, RESET, self.zero)

    async def watch(self) -> None:
        """Give up the edges of others over which nothing has come for very long."""
        mine = {edge.peer for edge in self.owned}
        others = [e for e in self.edges.values() if e.peer not in mine and e.rate > 0]
        if not others:
            return
        limits = [self.patience_s + SILENCE * self.unit_s / edge.rate for edge in others]
        while True:
            await self.sleep(min(limits) / 2)
            for edge, limit_s in zip(others, limits, strict=True):
                if self.now - edge.heard_s > limit_s and edge.ledger.any():
                    self._give_up(edge)

    # -- what the referee uses

    @rpc
    async def hold(self) -> int:
        self.held = True
        self.freed.clear()
        self.idle.clear()
        if self.meeting:
            await self.idle.wait()
        return self.tick()

    @rpc
    def go_on(self) -> None:
        self.held = False
        self.freed.set()

    def balance(self, mark: int) -> Array:
        return self.pair.drifted(self.rows(), (mark - self.at) / TICKS)[0]


__all__ = ["TICKS", "Edge", "Pair", "Pairwise", "owners"]
