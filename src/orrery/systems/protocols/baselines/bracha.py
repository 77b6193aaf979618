"""Bracha's reliable broadcast, with the payload in every echo; also the base of its kin."""

from __future__ import annotations

import hashlib
from typing import ClassVar

from orrery.parts import rpc
from orrery.systems.protocols.problems.reliable_broadcast import (
    PAYLOAD,
    VOTE,
    ReliableBroadcaster,
)


class EchoReady(ReliableBroadcaster):
    """What Bracha's protocol and its kin share: echoes, readiness by hash, delivery in order.

    Each shot is an instance of its own. A node echoes the first payload that the broadcaster sends,
    is ready on a quorum of echoes or f + 1 readies, and delivers on 2 f + 1 readies.
    """

    tolerates: ClassVar[tuple[str, ...]] = ("duplicate", "reorder", "crash", "pause", "byzantine")

    def start(self) -> None:
        super().start()
        self.quorum = (self.n + self.f) // 2 + 1
        self.payloads: dict[tuple[int, bytes], bytes] = {}
        self.echoed: dict[int, None] = {}
        self.ready_for: dict[int, None] = {}
        self.echoes: dict[tuple[int, bytes], int] = {}  # (index, digest) -> who, one bit a node
        self.readies: dict[tuple[int, bytes], int] = {}
        self.heard: dict[tuple[str, int], int] = {}  # (kind, index) -> who has spoken
        self.certain: dict[int, bytes] = {}

    @rpc
    def broadcast(self, payload: bytes) -> None:
        index = self.next_shot()
        self.say_all(PAYLOAD, EchoReady.shot, index, payload)
        self.echo_own(index, payload)

    @rpc
    def shot(self, index: int, payload: bytes, sender: int) -> None:
        """The broadcaster's payload; only the first one for an index is echoed."""
        if sender != self.broadcaster:
            self.refuse("stranger")
        elif index < 1 or index in self.echoed:
            self.refuse("repeated")
        elif len(payload) > self.most_B:
            self.refuse("oversized")
        else:
            self.echo_own(index, payload)

    def echo_own(self, index: int, payload: bytes) -> None:
        self.echoed[index] = None
        digest = hashlib.sha256(payload).digest()
        self.payloads[index, digest] = payload
        self.send_echo(index, digest, payload)
        self.count_echo(index, digest, self.id)
        self.settle()

    def send_echo(self, index: int, digest: bytes, payload: bytes) -> None:
        """Tell all what was received; what an echo holds is up to the variant."""
        raise AssertionError("a variant says what its echoes hold")

    def first(self, kind: str, index: int, sender: int) -> bool:
        """Whether a node speaks for the first time in this instance; repeats are thrown away."""
        heard = self.heard.get((kind, index), 0)
        if index < 1 or heard >> sender & 1:
            self.refuse("repeated")
            return False
        self.heard[kind, index] = heard | 1 << sender
        return True

    def count_echo(self, index: int, digest: bytes, sender: int) -> None:
        who = self.echoes[index, digest] = self.echoes.get((index, digest), 0) | 1 << sender
        if who.bit_count() >= self.quorum:
            self.be_ready(index, digest)

    def be_ready(self, index: int, digest: bytes) -> None:
        if index in self.ready_for:
            return
        self.ready_for[index] = None
        self.send_ready(index, digest)
        self.count_ready(index, digest, self.id)

    def send_ready(self, index: int, digest: bytes) -> None:
        self.say_all(VOTE, EchoReady.ready, index, digest)

    @rpc
    def ready(self, index: int, digest: bytes, sender: int) -> None:
        """A node has seen a quorum for this digest, or that many readies."""
        if self.first("ready", index, sender):
            self.count_ready(index, digest, sender)
            self.settle()

    def count_ready(self, index: int, digest: bytes, sender: int) -> None:
        who = self.readies[index, digest] = self.readies.get((index, digest), 0) | 1 << sender
        if who.bit_count() > self.f:
            self.be_ready(index, digest)
        if self.readies[index, digest].bit_count() > 2 * self.f and index not in self.certain:
            self.certain[index] = digest
            self.on_certain(index, digest)

    def on_certain(self, index: int, digest: bytes) -> None:
        """A digest will be delivered; a variant may have to fetch its payload."""

    def settle(self) -> None:
        """Deliver, in order, all that is certain and held."""
        while True:
            index = self.delivered + 1
            payload = self.payloads.get((index, self.certain.get(index, b"")))
            if payload is None:
                return
            self.deliver(index, payload)


class Bracha(EchoReady):
    """Asynchronous reliable broadcast by echo and ready (Bracha, 1987).

    Every node passes the payload on in its echo, so whoever sees 2 f + 1 readies has the payload
    from one of at least f + 1 correct echoes. A shot costs (n - 1) + n (n - 1) payloads and
    n (n - 1) hashes, and takes three steps.

    Knobs: those of `ReliableBroadcaster`.
    **Differs from the paper**: a ready holds the hash and not the payload, which saves half of the
    bytes; shots are numbered instances that run side by side and are delivered in order.

    >>> Bracha()
    Bracha()
    """

    def send_echo(self, index: int, digest: bytes, payload: bytes) -> None:
        self.say_all(PAYLOAD, Bracha.echo, index, payload)
        self.rounds += 1

    @rpc
    def echo(self, index: int, payload: bytes, sender: int) -> None:
        """A node received this payload."""
        if len(payload) > self.most_B:
            self.refuse("oversized")
        elif self.first("echo", index, sender):
            digest = hashlib.sha256(payload).digest()
            self.payloads.setdefault((index, digest), payload)
            self.count_echo(index, digest, sender)
            self.settle()
