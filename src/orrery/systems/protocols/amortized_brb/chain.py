"""The chain of shots, and the book of who has voted for what.

Shot k has the chain hash H_k = hash(k, H_{k-1}, hash(m_k)). A *link* (k, H_{k-1}, hash(m_k)) is its
own proof: whoever says it, the hash shows it. So links may come from anybody, and a statement about
H_j is one about every earlier shot of its chain.

Sets of nodes are whole numbers, one bit a node. Memory grows with what was heard and by no more:
one vote and one readiness statement for each (sender, index) are kept.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import msgspec

HASH_B = 32
GENESIS = bytes(HASH_B)


class Link(NamedTuple):
    """What stands behind a chain hash."""

    index: int
    before: bytes
    digest: bytes


def digest_of(payload: bytes) -> bytes:
    """The hash of a payload."""
    return hashlib.sha256(payload).digest()


def chained(index: int, before: bytes, digest: bytes) -> bytes:
    """The chain hash of a shot.

    >>> chained(1, GENESIS, digest_of(b"a")) == chained(2, GENESIS, digest_of(b"a"))
    False
    """
    return hashlib.sha256(index.to_bytes(8, "big") + before + digest).digest()


def sound(index: int, before: bytes, digest: bytes) -> bool:
    """Whether a link has the right form; only the first one begins at nothing."""
    return (
        0 < index < 1 << 63
        and len(before) == len(digest) == HASH_B
        and (index == 1) == (before == GENESIS)
    )


class Book(msgspec.Struct):
    """What a node has heard: links, votes, and which statements cover which hash.

    `cover[H]` holds every node whose readiness statement is about H or a later hash of its chain.
    It only grows towards the beginning of a chain, so each walk stops where nothing is new, and a
    statement costs O(1) on average.
    """

    links: dict[bytes, Link] = msgspec.field(default_factory=dict)
    votes: dict[bytes, int] = msgspec.field(default_factory=dict)
    cover: dict[bytes, int] = msgspec.field(default_factory=dict)
    # index -> who has voted there, for whatever
    voted_at: dict[int, int] = msgspec.field(default_factory=dict)
    stated_at: dict[int, int] = msgspec.field(default_factory=dict)

    def vote(self, sender: int, index: int, before: bytes, digest: bytes) -> bytes | None:
        """Note a vote; gives its chain hash, or None where this sender has voted there before."""
        bit = 1 << sender
        at = self.voted_at.get(index, 0)
        if at & bit:
            return None
        self.voted_at[index] = at | bit
        head = chained(index, before, digest)
        self.votes[head] = self.votes.get(head, 0) | bit
        return head

    def learn(self, head: bytes, link: Link) -> list[bytes] | None:
        """Note a link; gives the hashes whose cover it widens, or None where it was known."""
        if head in self.links:
            return None
        self.links[head] = link
        return self._widen(link.before, self.cover.get(head, 0))

    def state(self, sender: int, index: int, head: bytes) -> list[bytes] | None:
        """Note a readiness statement; gives the hashes it covers anew, None where said before."""
        bit = 1 << sender
        at = self.stated_at.get(index, 0)
        if at & bit:
            return None
        self.stated_at[index] = at | bit
        return self._widen(head, bit)

    def _widen(self, head: bytes, who: int) -> list[bytes]:
        """Add nodes to the cover of a hash and of all before it."""
        widened = []
        while who:
            have = self.cover.get(head, 0)
            if have | who == have:
                break
            self.cover[head] = have | who
            widened.append(head)
            link = self.links.get(head)
            if link is None or link.index == 1:
                break
            head = link.before
        return widened

    def ancestor(self, head: bytes, index: int) -> bytes | None:
        """The hash at a lower index of the chain of `head`; None where a link is not known yet."""
        while True:
            link = self.links.get(head)
            if link is None:
                return None
            if link.index <= index:
                return head
            if index == 0 and link.index == 1:
                return GENESIS
            head = link.before
