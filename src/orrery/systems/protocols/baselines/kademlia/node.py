"""Kademlia: nearest by XOR, found by a few questions in flight at a time.

Questions and answers are plain messages with a ticket; a search is one object that each answer
pushes on, with one timer for all that is in flight. So a search of thirty questions costs one task,
not thirty.
"""

from __future__ import annotations

from typing import Any, ClassVar

from orrery.base.errors import DeadlineExceeded, Refused
from orrery.parts import Count, Positive, rpc
from orrery.systems.protocols.baselines.kademlia.buckets import (
    NODE,
    SHIFT,
    Buckets,
    Search,
)


class Kademlia(Buckets):
    """The XOR overlay of Maymounkov and Mazieres (IPTPS 2002): k-buckets, parallel searches.

    How it works: each node keeps up to `k` contacts for each length of common prefix. A search asks
    the nearest contacts it has for nearer ones, `alpha` at a time, until the `k` nearest have all
    answered. Contacts that ask or answer move to the fresh end of their bucket; where a bucket is
    full, the oldest is pinged and makes room only when it is silent.

    Knobs: `k`, the size of a bucket and of a result; `alpha`, questions in flight; `upkeep_s`, the
    period of upkeep: by turns a search for one's own place and for a random place of the bucket
    that has had no search for longest; `timeout_s` (at least, doubled with each try) and `tries`,
    after which a contact counts as silent; `warm`, to begin with the contacts of a network at rest;
    `bootstrap`, the node through which a cold network forms; `ping`, whether a full bucket keeps
    its old contacts while they answer (off: the newest contact wins).

    Differs from the paper: identifiers have `bits` bits, not 160, and are hashes of node numbers; a
    full bucket pings its oldest at most once in `upkeep_s`; round trips are not used to choose
    among contacts. Hops are the referrals that led to the owner, the last step left out.

    >>> Kademlia(k=8).k
    8
    """

    alpha: Count = 3
    upkeep_s: Positive = 1.0
    timeout_s: Positive = 0.1
    tries: Count = 2
    ping: bool = True

    tolerates: ClassVar[tuple[str, ...]] = (
        "drop", "duplicate", "reorder", "crash", "restart", "pause",
    )  # fmt: skip

    # -- life

    def start(self) -> None:
        super().start()
        self.silent = False  # after a leave
        self.open: dict[int, Search] = {}
        self.searched_s: dict[int, float] = {}

    async def main(self) -> None:
        await self._come_in()
        own = False
        while True:
            if self.joined and self.peers:
                own = not own
                await self._search(self.place if own else self._lonely_place())
            await self.sleep(self.upkeep_s)

    def _period_s(self) -> float:
        return self.upkeep_s

    async def _enter(self, helpers: list[int]) -> None:
        """Search for oneself through a helper, then in every bucket beyond the nearest one."""
        while not self.joined:
            self._saw(helpers.pop(0) if helpers else self.rng.choice(self.peers))
            search = await self._search(self.place)
            if not search.answered:
                if await self._all_are_out():
                    break
                await self.sleep(self.rng.uniform(0.5, 1.0) * self.upkeep_s)
                continue
            self.joined = True
            for i in self.filled[1:]:
                await self._search(self._place_in(i))
        self.joined = True

    def _place_in(self, i: int) -> int:
        """A random place of a bucket."""
        span = i - SHIFT - 1
        flipped = (self.place ^ (1 << span)) >> span << span
        return flipped | self.rng.getrandbits(span) if span else flipped

    def _lonely_place(self) -> int:
        """A random place of the bucket that has had no search for longest."""
        if not self.filled:
            return self.place
        i = min(self.filled, key=lambda j: (self.searched_s.get(j, -1.0), -j))
        self.searched_s[i] = self.now
        return self._place_in(i)

    # -- the port

    @rpc
    async def lookup(self, key: int) -> tuple[int, int]:
        self._must_be_in()
        search = await self._search(key)
        best = search.nearest(1)
        # I am nearest to the key myself unless somebody who answered is nearer.
        mine = self.mine ^ search.target
        if not best or mine < self.book[best[0]] ^ search.target:
            return self.id, 0
        return best[0], search.depth[self.book[best[0]] ^ search.target]

    @rpc
    async def leave(self) -> None:
        """Fall silent: others find out when they ask."""
        self.joined, self.silent = False, True

    @rpc
    async def join(self, via: int) -> None:
        self.silent = False
        await super().join(via)

    # -- what nodes say to each other

    @rpc
    def find(self, ticket: int, key: int, want: bool, sender: int) -> None:
        """Who is nearest to a key, as far as I know; also while I am still joining."""
        if self.silent:
            return
        self._greet(sender)
        k = self.k
        near = [x & NODE for x in self._closest(key << SHIFT, k + 1)]
        if sender in near:
            near.remove(sender)
        self.tell(sender, Kademlia.nearer, ticket, tuple(near[:k]))

    @rpc
    def nearer(self, ticket: int, nodes: tuple[int, ...], sender: int) -> None:
        """The answer to `find`."""
        search = self._answered(ticket, sender)
        if search is not None:
            self._take_in(search, sender, nodes)

    @rpc
    def alive(self) -> bool:
        return not self.silent

    # -- searching

    async def _search(self, key: int, want: bool = False) -> Search:
        """Find the nodes nearest to a key; the search ends when all of them have answered."""
        self.tickets += 1
        search = Search(self.tickets, key, want, self.event(), self.mine)
        search.begin(self._closest(search.target, self.k))
        self.open[search.ticket] = search
        self._push_on(search)
        try:
            while not search.over:
                next_s = min([due_s for _, due_s in search.out.values()])
                wait_s = max(next_s - self.now, 0.001)
                try:
                    async with self.deadline(wait_s):
                        await search.done.wait()
                except DeadlineExceeded:
                    self._give_up_on_silent(search)
        finally:
            del self.open[search.ticket]
        return search

    def _push_on(self, search: Search) -> None:
        """Ask the nearest that were not asked yet; with none left and none out, it is over."""
        out = search.out
        room = self.alpha - len(out)
        if room <= 0:
            return
        k, tell, find, now_s = self.k, self.tell, Kademlia.find, self.now
        due_s = now_s + self._wait_s()
        for _ in range(room):
            x = search.next(k)
            if x < 0:
                break
            out[x] = (now_s, due_s)
            tell(x & NODE, find, search.ticket, search.key, search.want)
        if not out:
            search.over = True
            search.done.set()

    def _answered(self, ticket: int, sender: int) -> Search | None:
        """The open search that an answer belongs to; the sender is alive in any case."""
        self._greet(sender)
        search = self.open.get(ticket)
        if search is None or search.over:
            return None
        x = self.book[sender] ^ search.target
        asked = search.out.pop(x, None)
        if asked is None:
            return None  # a second answer, or one that came after we gave up
        took_s, slow_s = self.now - asked[0], self.slow_s
        if x in search.tries:
            # Which of the questions was answered is not known (Karn's rule), so the wait grows by
            # steps of two at most.
            took_s = min(took_s, 2 * max(slow_s, self.timeout_s / 3))
        self.slow_s = took_s if took_s > slow_s else slow_s + 0.1 * (took_s - slow_s)
        search.answered[x] = None
        return search

    def _take_in(self, search: Search, sender: int, nodes: tuple[int, ...]) -> None:
        book = self.book
        depth = search.depth[book[sender] ^ search.target] + 1
        # More than k are kept, so that the next best are at hand when some turn out silent.
        search.learn(book, nodes, depth, 3 * self.k)
        self._push_on(search)

    def _give_up_on_silent(self, search: Search) -> None:
        """Ask again those whose time is up, with twice the time; after `tries` leave them out."""
        now_s = self.now + 1e-9
        for x in [x for x, (_, due_s) in search.out.items() if due_s <= now_s]:
            sent_s, _ = search.out.pop(x)
            tried = search.tries[x] = search.tries.get(x, 0) + 1
            if tried < self.tries:
                # The first question counts for the round trip: its answer may be the one to come.
                search.out[x] = (sent_s, self.now + self._wait_s() * (1 << tried))
                self.tell(x & NODE, Kademlia.find, search.ticket, search.key, search.want)
            else:
                search.drop(x)
                self._evict(x & NODE)
        self._push_on(search)

    def _wait_s(self) -> float:
        least_s, slow_s = self.timeout_s, 3 * self.slow_s
        return slow_s if slow_s > least_s else least_s

    # -- upkeep

    def _greet(self, node: int) -> None:
        """Note a sign of life; where its bucket is full, see whether the oldest still lives."""
        i = self._saw(node)
        if i and self.now - self.pinged_s.get(i, -1e9) >= self.upkeep_s:
            self.pinged_s[i] = self.now
            if self.ping:
                self.spawn(self._ping_oldest(i))
            else:
                self._evict(self.buckets[i][0] & NODE)

    async def _ping_oldest(self, i: int) -> None:
        oldest = self.buckets[i][0] & NODE
        if await self._alive(oldest):
            self._saw(oldest)
        else:
            self._evict(oldest)

    async def _alive(self, peer: int) -> bool:
        for attempt in range(self.tries):
            try:
                async with self.deadline(self._wait_s() * (1 << attempt)):
                    return bool(await self.ask(peer, Kademlia.alive))
            except DeadlineExceeded:
                continue
            except Refused:
                return False
        return False

    def _first_nodes(self, search: Search, n: int) -> list[int]:
        """The n nodes nearest to a search's key that are known to be there, oneself among them."""
        found: list[Any] = [self.book[node] ^ search.target for node in search.nearest(n)]
        found.append(self.mine ^ search.target)
        return [x & NODE for x in sorted(found)[:n]]
