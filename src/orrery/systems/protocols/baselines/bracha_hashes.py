"""Bracha's reliable broadcast with hashes in the echoes; missing payloads are asked of all."""

from __future__ import annotations

import hashlib
from typing import ClassVar

from orrery.parts import Positive, rpc
from orrery.systems.protocols.baselines.bracha import EchoReady
from orrery.systems.protocols.problems.reliable_broadcast import PAYLOAD, REQUEST, VOTE


class BrachaHashes(EchoReady):
    """Bracha's broadcast where only the broadcaster sends payloads (after Cachin et al., 2001).

    Echoes and readies hold hashes. A node that must deliver a payload it does not hold waits
    `recover_s` for it and then asks all known echoers at once: one round trip, and one payload from
    each of them. A shot costs (n - 1) payloads and 2 n (n - 1) hashes, in three steps; a node left
    out by a lying broadcaster draws up to n - 1 payloads.

    Knobs: `recover_s` in seconds, above the usual delay; those of `ReliableBroadcaster`.
    **Differs from the papers**: shots are numbered instances side by side, delivered in order; a
    holder serves each requester once an index.

    >>> BrachaHashes(recover_s=0.1)
    BrachaHashes(recover_s=0.1)
    """

    recover_s: Positive = 0.02

    tolerates: ClassVar[tuple[str, ...]] = ("duplicate", "reorder", "crash", "pause", "byzantine")

    def start(self) -> None:
        super().start()
        self.seeking: dict[int, int] = {}  # index -> who was asked
        self.served: dict[int, int] = {}

    def send_echo(self, index: int, digest: bytes, payload: bytes) -> None:
        self.say_all(VOTE, BrachaHashes.echo, index, digest)

    @rpc
    def echo(self, index: int, digest: bytes, sender: int) -> None:
        """A node received a payload with this hash."""
        if self.first("echo", index, sender):
            self.count_echo(index, digest, sender)
            if index in self.seeking and self.certain[index] == digest:
                self.ask_echoers(index)
            self.settle()

    def on_certain(self, index: int, digest: bytes) -> None:
        if (index, digest) not in self.payloads:
            self.spawn(self.seek(index, digest))

    async def seek(self, index: int, digest: bytes) -> None:
        await self.sleep(self.recover_s)  # it may be under way
        if (index, digest) not in self.payloads:
            self.seeking[index] = 0
            self.ask_echoers(index)

    def ask_echoers(self, index: int) -> None:
        """Ask everybody who echoed it and was not asked yet."""
        digest = self.certain[index]
        if (index, digest) in self.payloads:
            return
        who = self.echoes.get((index, digest), 0) & ~self.seeking[index] & ~(1 << self.id)
        self.seeking[index] |= who
        for peer in range(self.n):
            if who >> peer & 1:
                self.note_request(index)
                self.say(REQUEST, peer, BrachaHashes.want, index, digest)

    @rpc
    def want(self, index: int, digest: bytes, sender: int) -> None:
        """A request for a payload; each requester is served once for an index."""
        payload = self.payloads.get((index, digest))
        if payload is None or self.served.get(index, 0) >> sender & 1:
            self.refuse("greedy" if payload is not None else "unknown")
            return
        self.served[index] = self.served.get(index, 0) | 1 << sender
        self.say(PAYLOAD, sender, BrachaHashes.give, index, payload)

    @rpc
    def give(self, index: int, payload: bytes, sender: int) -> None:
        """An answer to a request; what does not fit its hash is thrown away."""
        digest = hashlib.sha256(payload).digest()
        if not self.seeking.get(index, 0) >> sender & 1:
            self.refuse("unasked")
        elif digest != self.certain[index]:
            self.refuse("garbage")
        else:
            self.payloads.setdefault((index, digest), payload)
            self.settle()
