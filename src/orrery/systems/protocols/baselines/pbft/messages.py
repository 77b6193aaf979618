"""What PBFT replicas keep and send: batches, slots, view changes; and how they can lie."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import msgspec

from orrery.base.codec import encode
from orrery.parts.byzantine import Message, Strategy
from orrery.systems.protocols.problems.total_order import Request

Batch = tuple[Request, ...]
Vote = tuple[int, bytes]  # a view and a digest


def digest_of(value: Any) -> bytes:
    """16 bytes that stand for a value; equal values have equal digests in every process."""
    return hashlib.blake2b(encode(value), digest_size=16).digest()


NOTHING: Batch = ()
NULL = digest_of(NOTHING)
GENESIS = b""


class Prepared(msgspec.Struct, frozen=True, array_like=True):
    """A batch that was prepared at a replica, and the last view in which it was (the set P)."""

    number: int
    view: int
    batch: Batch


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """A digest that a replica spoke for, and the last view in which it did (the set Q)."""

    number: int
    view: int
    digest: bytes


class ViewChange(msgspec.Struct, frozen=True, array_like=True):
    """All that a replica brings to a new view."""

    view: int
    stable: int
    checkpoints: tuple[tuple[int, bytes], ...]
    prepared: tuple[Prepared, ...]
    seen: tuple[Seen, ...]

    def is_sound(self, span: int) -> bool:
        """Whether a correct replica could have sent it: bounded, ordered, nothing twice."""
        top = self.stable + span
        numbers = [entry.number for entry in self.prepared]
        entries = (*self.prepared, *self.seen)
        return (
            self.view > 0
            and self.stable >= 0
            and len(set(numbers)) == len(numbers)
            and len(self.seen) <= 4 * span
            and len(self.checkpoints) <= span + 1
            and all(self.stable < e.number <= top and 0 <= e.view < self.view for e in entries)
            and all(self.stable <= number <= top for number, _ in self.checkpoints)
        )


class Votes:
    """The last vote of each replica, counted as they come: asking for the count costs O(1)."""

    __slots__ = ("counts", "last")

    def __init__(self) -> None:
        self.last: dict[int, Vote] = {}
        self.counts: dict[Vote, int] = {}

    def add(self, voter: int, view: int, digest: bytes) -> bool:
        """Take a vote, unless the replica has voted in this view or a later one before."""
        before = self.last.get(voter)
        if before is not None:
            if before[0] >= view:
                return False
            self.counts[before] -= 1
        vote = self.last[voter] = (view, digest)
        self.counts[vote] = self.counts.get(vote, 0) + 1
        return True


class Slot:
    """What a replica knows of one sequence number: the proposal of its view, and the votes."""

    __slots__ = ("batch", "commits", "digest", "number", "prepares", "sent_commit",
                 "sent_prepare", "view", "vouched")  # fmt: skip

    def __init__(self, number: int) -> None:
        self.number = number
        self.view = -1
        self.batch: Batch = NOTHING
        self.digest = NULL
        self.vouched = False
        self.sent_prepare = False
        self.sent_commit = False
        self.prepares = Votes()
        self.commits = Votes()

    def propose(self, view: int, batch: Batch, vouched: bool) -> None:
        """Take the proposal of a view; votes that came before it stay."""
        self.view, self.batch, self.digest = view, batch, digest_of(batch)
        self.vouched, self.sent_prepare, self.sent_commit = vouched, False, False

    def agreeing(self, votes: Votes) -> int:
        """How many replicas voted for this proposal."""
        return votes.counts.get((self.view, self.digest), 0)


class TwoStories(Strategy):
    """Speaks for the true proposal to some replicas and for an empty one to the others.

    The replicas with the smallest ids, a share `p` of all, hear the truth; with p = 1 that is half
    of them. Liars who share `p` tell the same two stories, so they act as one.
    """

    def on_send(self, message: Message) -> list[Message]:
        share = self.liar.p if self.liar.p < 1 else 0.5
        if message.is_reply or message.dst < math.floor(self.liar.size * share + 0.5):
            return [message]
        if message.method == "pre_prepare":
            view, number, _ = message.args
            return [message._replace(args=(view, number, NOTHING))]
        if message.method in ("prepare", "commit"):
            view, number, _ = message.args
            return [message._replace(args=(view, number, NULL))]
        return [message]
