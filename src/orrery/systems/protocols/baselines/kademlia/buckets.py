"""The k-buckets of a Kademlia node, and the state of one search. Nothing here waits or sends.

A contact is one whole number: the place in the high bits, the node's number in the low 24. Then a
list of contacts XORed with a target sorts by distance with no key function, which is what makes a
search cheap.
"""

from __future__ import annotations

import functools
from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Any, ClassVar

from orrery.parts import Count
from orrery.systems.protocols.baselines.overlay import OverlayNode
from orrery.systems.protocols.problems.lookup import place_of, ring_of

SHIFT = 24
NODE = (1 << SHIFT) - 1


@functools.lru_cache(maxsize=8)
def contacts_of(size: int, bits: int) -> tuple[int, ...]:
    """The contact of every node of a world of this size."""
    return tuple(place_of(node, bits) << SHIFT | node for node in range(size))


class Search:
    """One iterative search: what was heard of, nearest first, and who was asked.

    What was heard of is in one of four states: still to be asked (in `todo`), asked (in `out`),
    answered (in `answered`), or silent (in `depth` alone).
    """

    __slots__ = (
        "answered",
        "depth",
        "done",
        "found",
        "key",
        "near",
        "out",
        "over",
        "target",
        "ticket",
        "todo",
        "tries",
        "want",
    )

    def __init__(self, ticket: int, key: int, want: bool, done: Any, mine: int) -> None:
        self.ticket = ticket
        self.key = key
        self.target = target = key << SHIFT
        self.want = want  # whether a record under the key ends the search
        self.done = done
        self.over = False
        self.near: list[int] = []  # contacts XOR target, sorted
        self.todo: list[int] = []  # those of them that were not asked yet, sorted
        # How many referrals away each was heard of; who searches never asks itself.
        self.depth: dict[int, int] = {mine ^ target: 0}
        self.out: dict[int, tuple[float, float]] = {}  # asked, not answered: since and until when
        self.answered: dict[int, None] = {}
        self.tries: dict[int, int] = {}
        self.found: list[Any] = []

    def begin(self, nearest: list[int]) -> None:
        """Start from contacts XOR target, nearest first."""
        self.near = nearest
        self.todo = nearest.copy()
        self.depth.update(dict.fromkeys(nearest, 0))

    def learn(self, book: tuple[int, ...], nodes: Iterable[int], depth: int, most: int) -> None:
        """Take in nodes; only the nearest `most` are kept."""
        target, known = self.target, self.depth
        fresh = [x for node in nodes if (x := book[node] ^ target) not in known]
        if not fresh:
            return
        for x in fresh:
            known[x] = depth
        near, todo = self.near, self.todo
        near += fresh
        near.sort()
        todo += fresh
        todo.sort()
        if len(near) > most:
            del near[most:]
            last = near[-1]
            while todo and todo[-1] > last:
                todo.pop()

    def next(self, k: int) -> int:
        """Take the nearest of the first k that was not asked yet; -1 when all of them were."""
        todo, near = self.todo, self.near
        if not todo or (len(near) > k and todo[0] > near[k - 1]):
            return -1
        return todo.pop(0)

    def drop(self, x: int) -> None:
        """Leave out one that does not answer."""
        at = bisect_left(self.near, x)
        if at < len(self.near) and self.near[at] == x:
            del self.near[at]

    def nearest(self, n: int) -> list[int]:
        """The nodes that answered, nearest first."""
        answered = self.answered
        return [x & NODE for x in self.near if x in answered][:n]


class Buckets(OverlayNode):
    """What a node knows of the others; `Kademlia` keeps it fresh."""

    k: Count = 20

    owner_rule: ClassVar[str] = "xor"

    def start(self) -> None:
        super().start()
        self.book = contacts_of(len(self.peers) + 1, self.bits)
        self.mine = self.book[self.id]
        self.buckets: dict[int, list[int]] = {}  # by the length of the XOR, oldest seen first
        self.filled: list[int] = []  # the indexes of the buckets that are there, in order
        self.mask = 0  # the same as bits: index i is bit i - 1
        self.spare: dict[int, list[int]] = {}  # newcomers to full buckets, latest last
        self.pinged_s: dict[int, float] = {}

    def _begin_in_place(self) -> None:
        """Take the contacts that a network at rest would have: up to k of each bucket, at random.

        A bucket covers one stretch of places, so it is cut from the sorted list of all nodes; from
        one bucket to the next nearer one, only what shares my next bit is still looked at.
        """
        places, nodes = ring_of(len(self.book), self.bits)
        cuts: list[tuple[int, int, int]] = []
        low, high = 0, len(places)
        for i in range(self.bits - 1, -1, -1):
            middle = bisect_left(places, (self.place >> i | 1) << i, low, high)
            if self.place >> i & 1:
                first, last, low = low, middle, middle
            else:
                first, last, high = middle, high, middle
            if last > first:
                cuts.append((i, first, last))
            if high - low == 1:  # nobody is nearer
                break
        for i, first, last in reversed(cuts):
            picked = self.rng.sample(range(first, last), self.k)
            # The index is the length of the contacts' XOR, node bits included.
            self.buckets[i + 1 + SHIFT] = [self.book[nodes[at]] for at in picked]
        self.filled = sorted(self.buckets)
        self.mask = sum(1 << (i - 1) for i in self.filled)
        self.joined = True

    def _saw(self, node: int) -> int:
        """Note a sign of life; gives the index of a full bucket whose oldest should be pinged."""
        contact = self.book[node]
        i = (self.mine ^ contact).bit_length()
        bucket = self.buckets.get(i)
        if bucket is None:
            if i:
                self.buckets[i] = [contact]
                insort(self.filled, i)
                self.mask |= 1 << (i - 1)
            return 0
        if bucket[-1] == contact:
            return 0
        if contact in bucket:
            bucket.remove(contact)
            bucket.append(contact)
            return 0
        if len(bucket) < self.k:
            bucket.append(contact)
            return 0
        spare = self.spare.setdefault(i, [])
        if contact in spare:
            spare.remove(contact)
        spare.append(contact)
        if len(spare) > self.k:
            del spare[0]
        return i

    def _evict(self, node: int) -> None:
        """Drop a contact that is silent; the latest newcomer takes its place."""
        contact = self.book[node]
        i = (self.mine ^ contact).bit_length()
        bucket = self.buckets.get(i)
        if bucket is None or contact not in bucket:
            spare = self.spare.get(i)
            if spare and contact in spare:
                spare.remove(contact)
            return
        bucket.remove(contact)
        spare = self.spare.get(i)
        if spare:
            bucket.append(spare.pop())
        elif not bucket:
            del self.buckets[i]
            self.filled.remove(i)
            self.mask ^= 1 << (i - 1)

    def _closest(self, target: int, n: int) -> list[int]:
        """The n contacts nearest to a shifted target, XORed with it, nearest first.

        A bucket holds those who differ from me in one bit and in nothing above it. Where I differ
        from the target in that bit too, they are nearer to it than I am, the more so the higher the
        bit; where I do not, they are further away, the less so the lower the bit. So bucket after
        bucket is sorted by itself, and only as many of them as are needed.
        """
        away = self.mine ^ target
        buckets, found = self.buckets, []
        left = self.mask & away  # the buckets on the target's side, the highest bit first
        while left:
            i = left.bit_length()
            left ^= 1 << (i - 1)
            some = [c ^ target for c in buckets[i]]
            some.sort()
            found += some
            if len(found) >= n:
                return found[:n]
        left = self.mask & ~away  # the others, the lowest bit first
        while left:
            i = (left & -left).bit_length()
            left &= left - 1
            some = [c ^ target for c in buckets[i]]
            some.sort()
            found += some
            if len(found) >= n:
                break
        return found[:n]
