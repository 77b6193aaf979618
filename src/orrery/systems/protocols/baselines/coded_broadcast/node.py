"""`CodedBroadcast`: reliable broadcast by dispersing coded fragments."""

from __future__ import annotations

from typing import ClassVar

from orrery.base.errors import KnobError
from orrery.parts import rpc
from orrery.systems.protocols.baselines.coded_broadcast import codes, proofs
from orrery.systems.protocols.problems.reliable_broadcast import (
    PAYLOAD,
    VOTE,
    ReliableBroadcaster,
)


class CodedBroadcast(ReliableBroadcaster):
    """Reliable broadcast of coded fragments (Cachin and Tessaro, "AVID", 2005).

    The broadcaster cuts a payload into n fragments, any n - 2 f of which give it back, and sends to
    each node its fragment with a Merkle proof; a node passes its own fragment on to all. On n - f
    fragments under one root a node decodes, encodes again and compares the root (a liar may have
    coded badly), and is ready for the root. 2 f + 1 readies and a decoded payload deliver. A shot
    costs n (n - 1) |m| / (n - 2 f) bytes, at most 3 n |m|, whatever the broadcaster does, and takes
    three steps.

    Knobs: those of `ReliableBroadcaster`. n is at most 256, the size of the field.
    **Differs from the paper**: a Merkle tree takes the place of the list of all fragments' hashes,
    as in later implementations (HoneyBadgerBFT, 2016); shots are delivered in order.

    >>> CodedBroadcast().tolerates[-1]
    'byzantine'
    """

    tolerates: ClassVar[tuple[str, ...]] = ("duplicate", "reorder", "crash", "pause", "byzantine")

    @classmethod
    def liars_of(cls, n: int, tolerated: int) -> int:
        if n > codes.MOST_FRAGMENTS:
            fix = f"give at most {codes.MOST_FRAGMENTS} nodes"
            raise KnobError(f"{cls.__name__}", f"{n} nodes need as many fragments", fix)
        return super().liars_of(n, tolerated)

    def start(self) -> None:
        super().start()
        self.k = self.n - 2 * self.f
        self.sent_on: dict[int, None] = {}
        self.ready_for: dict[int, None] = {}
        self.fragments: dict[tuple[int, bytes], dict[int, bytes]] = {}
        self.decoded: dict[tuple[int, bytes], bytes | None] = {}
        self.readies: dict[tuple[int, bytes], int] = {}
        self.heard: dict[tuple[str, int], int] = {}
        self.certain: dict[int, bytes] = {}

    @rpc
    def broadcast(self, payload: bytes) -> None:
        index = self.next_shot()
        fragments = codes.encode(payload, self.n, self.k)
        levels = proofs.tree(fragments)
        root = levels[-1][0]
        for peer in self.peers:
            beside = proofs.proof(levels, peer)
            self.say(PAYLOAD, peer, CodedBroadcast.shot, index, root, fragments[peer], beside)
        self.pass_on(index, root, fragments[self.id], proofs.proof(levels, self.id))

    @rpc
    def shot(
        self, index: int, root: bytes, fragment: bytes, beside: tuple[bytes, ...], sender: int
    ) -> None:
        """One's own fragment, from the broadcaster."""
        if sender != self.broadcaster:
            self.refuse("stranger")
        elif index < 1 or index in self.sent_on:
            self.refuse("repeated")
        elif not self.fits(root, self.id, fragment, beside):
            self.refuse("garbage")
        else:
            self.pass_on(index, root, fragment, beside)

    def fits(self, root: bytes, place: int, fragment: bytes, beside: tuple[bytes, ...]) -> bool:
        """Whether a fragment is of bearable size and under the root at its place."""
        small = (len(fragment) - 1) * self.k <= self.most_B + 8
        return small and proofs.proves(root, place, self.n, fragment, beside)

    def pass_on(self, index: int, root: bytes, fragment: bytes, beside: tuple[bytes, ...]) -> None:
        self.sent_on[index] = None
        self.say_all(PAYLOAD, CodedBroadcast.echo, index, root, fragment, beside)
        self.rounds += 1
        self.gather(index, root, fragment, self.id)

    @rpc
    def echo(
        self, index: int, root: bytes, fragment: bytes, beside: tuple[bytes, ...], sender: int
    ) -> None:
        """The sender's fragment."""
        if not self.fits(root, sender, fragment, beside):
            self.refuse("garbage")
        elif self.first("echo", index, sender):
            self.gather(index, root, fragment, sender)

    def first(self, kind: str, index: int, sender: int) -> bool:
        """Whether a node speaks for the first time in this instance; repeats are thrown away."""
        heard = self.heard.get((kind, index), 0)
        if index < 1 or heard >> sender & 1:
            self.refuse("repeated")
            return False
        self.heard[kind, index] = heard | 1 << sender
        return True

    def gather(self, index: int, root: bytes, fragment: bytes, place: int) -> None:
        found = self.fragments.setdefault((index, root), {})
        found[place] = fragment
        if len(found) >= self.n - self.f and self.payload_of(index, root) is not None:
            self.be_ready(index, root)
        self.settle()

    def payload_of(self, index: int, root: bytes) -> bytes | None:
        """The decoded payload, once enough fragments are here; None for a badly coded one."""
        key = (index, root)
        found = self.fragments.get(key, {})
        if key not in self.decoded and len(found) >= self.k:
            payload = codes.decode(found, self.n, self.k)
            if payload is not None:
                again = codes.encode(payload, self.n, self.k)
                payload = payload if proofs.tree(again)[-1][0] == root else None
            self.decoded[key] = payload
        return self.decoded.get(key)

    def be_ready(self, index: int, root: bytes) -> None:
        if index in self.ready_for:
            return
        self.ready_for[index] = None
        self.say_all(VOTE, CodedBroadcast.ready, index, root)
        self.count_ready(index, root, self.id)

    @rpc
    def ready(self, index: int, root: bytes, sender: int) -> None:
        """A node has seen n - f fragments of a well coded payload, or f + 1 readies."""
        if self.first("ready", index, sender):
            self.count_ready(index, root, sender)
            self.settle()

    def count_ready(self, index: int, root: bytes, sender: int) -> None:
        who = self.readies[index, root] = self.readies.get((index, root), 0) | 1 << sender
        if who.bit_count() > self.f:
            self.be_ready(index, root)
        if self.readies[index, root].bit_count() > 2 * self.f:
            self.certain.setdefault(index, root)

    def settle(self) -> None:
        """Deliver, in order, all that is certain and decoded."""
        while (root := self.certain.get(self.delivered + 1)) is not None:
            payload = self.payload_of(self.delivered + 1, root)
            if payload is None:
                return
            self.deliver(self.delivered + 1, payload)
