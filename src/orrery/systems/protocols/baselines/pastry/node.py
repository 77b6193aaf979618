"""Pastry: each hop shares one more digit with the key, and the leaf set ends the route.

As in Chord here, each question has a deadline, and who does not answer is forgotten until it
speaks up again. A node takes a stranger into its leaf set only after it has heard from it, so that
the dead do not come back by hearsay.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from orrery.parts import Positive, rpc
from orrery.systems.protocols.baselines.pastry.tables import NODE, PrefixTables


class Pastry(PrefixTables):
    """The prefix overlay of Rowstron and Druschel (Middleware 2001), with a leaf set and locality.

    How it works: identifiers are read as digits of `b` bits. The routing table has a row for each
    length of common prefix and in it an entry for each next digit; a question goes to the entry
    that shares one more digit with the key, and inside the leaf set straight to the nearest node.
    Every `probe_s` a node exchanges leaf sets with a neighbour (its nearest on each side, and the
    others by turns) and asks one entry of its table for a row. A lost leaf is replaced from the
    sets of the leaves that remain, a lost entry from rows.

    Knobs: `b`, bits of a digit; `leaves`, the size of the leaf set, half on each side; `locality`,
    whether of two nodes for one entry the one with the shorter round trip is kept; `probe_s`, the
    period of upkeep; `timeout_s` (at least) and `tries`, after which a node counts as gone;
    `find_s` (at least), after which a lookup is tried again; `warm`, to begin with the tables of a
    network at rest; `bootstrap`, the node through which a cold network forms; `repair`, whether
    lost leaves are replaced.

    Differs from the paper: there is no neighbourhood set; a newcomer asks the nodes on its way one
    by one instead of sending a join message through them; entries are compared by round trips that
    the node measures itself, one stranger each period; a warm table takes the nearest of eight
    candidates. Hops count every step between nodes, the last one too.

    >>> Pastry(b=2).knobs()["b"]
    2
    """

    probe_s: Positive = 0.25
    repair: bool = True

    tolerates: ClassVar[tuple[str, ...]] = ("duplicate", "reorder", "crash", "restart", "pause")

    # -- life

    def start(self) -> None:
        super().start()
        self.turns = 0
        self.gone_s: dict[int, float] = {}  # who did not answer, and when

    async def main(self) -> None:
        await self._come_in()
        while True:
            if self.joined and self.peers:
                await self._tend_leaves()
                await self._tend_table()
            await self.sleep(self.probe_s)

    def _period_s(self) -> float:
        return self.probe_s

    async def _enter_through(self, node: int) -> bool:
        """Walk to my own place, take rows on the way and the leaf set at its end, say hello."""
        skip: list[int] = [self.id]
        came: list[int] = []
        while True:
            answer = await self._call(node, Pastry.step, self.place, tuple(skip))
            if self.joined:
                return True
            if answer is None:
                if not came:
                    return False
                skip.append(node)
                node = came.pop()
                continue
            after, row, leaves = answer
            self._learn_entries((node, *row))
            if after == node:
                break
            came.append(node)
            node = after
        self.joined = True
        for leaf in (node, *leaves):
            if leaf not in skip:
                self._add_leaf(leaf)
        for peer in self._known():
            self.tell(peer, Pastry.hello)
        return True

    # -- the port

    @rpc
    async def lookup(self, key: int) -> tuple[int, int]:
        return await self._find(key)

    @rpc
    async def leave(self) -> None:
        """Tell the leaf set, then stop taking part."""
        if not self.joined:
            return
        self.joined = False
        for peer in self._leaf_nodes():
            self.tell(peer, Pastry.goodbye)
        self.up, self.down, self.around, self.table = [], [], None, {}

    # -- what nodes say to each other

    @rpc
    def hello(self, sender: int) -> None:
        """The sender has joined: it has been heard from, so it may be taken in at once."""
        if self.joined:
            self.gone_s.pop(sender, None)
            self._add_leaf(sender)
            self._add_entry(sender)

    @rpc
    def goodbye(self, sender: int) -> None:
        if self.joined:
            self._lost(sender)

    @rpc
    def leaf_set(self, sender: int) -> tuple[int, ...]:
        """My leaves, for a node that has me among its own; it is alive, so I take it in too."""
        self._must_be_in()
        self.hello(sender)
        return self._leaf_nodes()

    @rpc
    def row(self, sender: int) -> tuple[int, ...]:
        """The entries of mine that the sender can use."""
        self._must_be_in()
        self._add_entry(sender)
        return self._row_for(sender)

    @rpc
    def step(self, key: int, skip: tuple[int, ...]) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        """Where to go next for a key, with my rows and leaves, for a node that wants to join."""
        self._must_be_in()
        after = self._choose(key, skip)
        leaves = self._leaf_nodes() if after == self.id else ()
        return after, tuple(dict.fromkeys(self.table.values())), leaves

    @rpc
    def route(self, key: int, origin: int, ticket: int, hops: int) -> bool:
        """Take a question over; who sent it is free as soon as this returns."""
        self._must_be_in()
        self.spawn(self._pass_on(key, origin, ticket, hops))
        return True

    # -- finding

    async def _find(self, key: int) -> tuple[int, int]:
        self._must_be_in()
        if self._choose(key, ()) == self.id:
            return self.id, 0
        return await super()._find(key)

    async def _pass_on(self, key: int, origin: int, ticket: int, hops: int) -> None:
        skip: list[int] = []
        # A question that goes round and round is dropped; its origin asks anew.
        while self.joined and hops <= 4 * self.bits:
            node = self._choose(key, skip)
            if node == self.id:
                self._answer(origin, ticket, hops)
                return
            if await self._call(node, Pastry.route, key, origin, ticket, hops + 1):
                return
            self._lost(node)
            skip.append(node)

    # -- upkeep

    async def _tend_leaves(self) -> None:
        """Exchange leaf sets with the nearest on one side, or with another leaf by turns."""
        self.turns += 1
        sides = [side for side in (self.up, self.down) if side]
        if not sides:
            await self._begin_again()
            return
        short = [side for side in sides if len(side) < self.leaves // 2]
        if short and self.repair and self.turns % 2:
            peer = short[0][-1] & NODE  # a repair that found too few is tried again
        elif self.turns % 3:
            peer = sides[self.turns % 3 % len(sides)][0] & NODE
        else:
            leaves = self._leaf_nodes()
            peer = leaves[self.turns // 3 % len(leaves)]
        await self._exchange(peer)

    async def _exchange(self, peer: int) -> None:
        theirs = await self._call(peer, Pastry.leaf_set)
        if not self.joined:
            return
        if theirs is None:
            self._lost(peer)
            return
        self._add_leaf(peer)
        self._add_entry(peer)
        await self._take_in(theirs)

    async def _take_in(self, nodes: Iterable[int]) -> None:
        """Hear from the strangers that would be leaves, then take them in."""
        known = {*self._leaf_nodes(), self.id}
        for node in nodes:
            self._add_entry(node)
            if node in known or not self._is_leaf(node) or self._gone_of_late(node):
                continue
            answer = await self._call(node, Pastry.leaf_set)
            if not self.joined:
                return
            if answer is None:
                self._lost(node)
            else:
                self._add_leaf(node)

    async def _tend_table(self) -> None:
        """Ask one entry for its rows: fill what is empty, and see whether a stranger is nearer."""
        if not self.table:
            return
        peer = self.rng.choice(list(self.table.values()))
        row = await self._call(peer, Pastry.row)
        if not self.joined:
            return
        if row is None:
            self._lost(peer)
            return
        strange = None
        # A row has a hundred entries, so the loop looks everything up by itself.
        me, gone_s, slots, table, rtt_s = self.id, self.gone_s, self.slots, self.table, self.rtt_s
        for node in row:
            if node == me or (node in gone_s and self._gone_of_late(node)):
                continue
            slot = slots.get(node)
            held = table.setdefault(self._slot(node) if slot is None else slot, node)
            if held != node and node not in rtt_s:
                strange = node
        if strange is not None and self.locality:
            await self._compare(strange)

    async def _compare(self, node: int) -> None:
        """Keep the nearer of two nodes for one entry, by their round trips."""
        if not await self._alive(node):
            self.gone_s[node] = self.now
            return
        slot = self._slot(node)
        held = self.table.get(slot)
        if held is None or self.rtt_s.get(held, 1e9) > 1.1 * self.rtt_s[node]:
            self.table[slot] = node

    def _lost(self, node: int) -> None:
        """Forget a node; where it was a leaf, ask the farthest that remain for theirs."""
        self.gone_s[node] = self.now
        if self._forget(node) and self.repair and self.joined:
            for side in (self.up, self.down):
                if side and len(side) < self.leaves // 2:
                    self.spawn(self._exchange(side[-1] & NODE))
                    break

    async def _begin_again(self) -> None:
        """Every leaf is gone: enter anew through an entry of the table, or through anybody."""
        if len(self.peers):
            self.joined = False
            helpers = list(self.table.values())[:1]
            self.table = {}
            await self._enter(helpers)

    def _gone_of_late(self, node: int) -> bool:
        return self.now - self.gone_s.get(node, -1e9) < 8 * self.probe_s
