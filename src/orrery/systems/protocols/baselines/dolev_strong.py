"""Dolev and Strong's broadcast: rounds and chains of signatures bear any number of liars.

Signatures are tokens: a digest of the signer's number and what is signed, which all can check.
They stand for unforgeable ones because no strategy of a lying node computes another node's token;
their length is that of an Ed25519 signature.
"""

from __future__ import annotations

import hashlib
from typing import ClassVar

from orrery.parts import Positive, rpc
from orrery.systems.protocols.problems.reliable_broadcast import PAYLOAD, ReliableBroadcaster


def sign(signer: int, text: bytes) -> bytes:
    """The token of a node under a text, as long as an Ed25519 signature (64 bytes)."""
    return hashlib.blake2b(text, key=b"orrery", salt=signer.to_bytes(16, "big")).digest()


def signed(signer: int, text: bytes, token: bytes) -> bool:
    """Whether a token is that node's under that text.

    >>> signed(3, b"yes", sign(3, b"yes")), signed(4, b"yes", sign(3, b"yes"))
    (True, False)
    """
    return 0 <= signer < 1 << 32 and sign(signer, text) == token


class DolevStrong(ReliableBroadcaster):
    """Synchronous authenticated broadcast in f + 1 rounds (Dolev and Strong, 1983).

    A value is believed in round r if it carries the signatures of r nodes, the broadcaster's first;
    whoever believes it in time signs it and passes it on. After f + 1 rounds all correct nodes
    believe the same values, and deliver if there is exactly one. A shot costs up to (n - 1)^2
    payloads, and bears any number of liars, but every delay must stay below `round_s`.

    Knobs: `round_s` in seconds; `tolerated` (up to n - 2; -1: (n - 1) / 3, as its asynchronous
    rivals); those of `ReliableBroadcaster`.
    **Differs from the paper**: rounds are counted in slots of f + 1 rounds on the nodes' clocks,
    and a slot carries all shots that have come in since the last one; signatures are tokens.

    >>> DolevStrong(round_s=0.1, tolerated=2)
    DolevStrong(tolerated=2, round_s=0.1)
    """

    round_s: Positive = 0.05

    tolerates: ClassVar[tuple[str, ...]] = ("duplicate", "crash", "byzantine")
    resilience: ClassVar[tuple[int, int]] = (1, 2)

    @classmethod
    def liars_of(cls, n: int, tolerated: int) -> int:
        return super().liars_of(n, max(0, (n - 1) // 3) if tolerated < 0 and n > 1 else tolerated)

    def start(self) -> None:
        super().start()
        self.slot_s = (self.f + 1) * self.round_s
        self.waiting: list[bytes] = []
        # slot -> digest -> (first index, payloads)
        self.believed: dict[int, dict[bytes, tuple[int, tuple[bytes, ...]]]] = {}

    @rpc
    def broadcast(self, payload: bytes) -> None:
        self.next_shot()
        self.waiting.append(payload)

    async def main(self) -> None:
        slot = int(self.clock() / self.slot_s)
        while True:
            slot += 1
            await self.sleep(max(0.0, slot * self.slot_s - self.clock()))
            self.decide(slot - 1)
            if self.waiting:
                payloads, self.waiting = tuple(self.waiting), []
                self.believe(slot, self.sent - len(payloads) + 1, payloads, (), ())

    @rpc
    def relay(
        self, slot: int, index: int, payloads: tuple[bytes, ...], signers: tuple[int, ...],
        tokens: tuple[bytes, ...], sender: int,
    ) -> None:  # fmt: skip
        """A value with the signatures under it."""
        text = text_of(slot, index, payloads)
        late = self.clock() > slot * self.slot_s + len(signers) * self.round_s
        if late or len(set(signers)) != len(signers) or len(signers) != len(tokens):
            self.refuse("late" if late else "malformed")
        elif not signers or signers[0] != self.broadcaster or signers[-1] != sender:
            self.refuse("stranger")
        elif any(len(payload) > self.most_B for payload in payloads):
            self.refuse("oversized")
        elif not all(map(signed, signers, [text] * len(signers), tokens)):
            self.refuse("forged")
        else:
            self.believe(slot, index, payloads, signers, tokens)

    def believe(
        self, slot: int, index: int, payloads: tuple[bytes, ...], signers: tuple[int, ...],
        tokens: tuple[bytes, ...],
    ) -> None:  # fmt: skip
        """Note a value, and pass it on with one's own signature while others can still use it."""
        text = text_of(slot, index, payloads)
        known = self.believed.setdefault(slot, {})
        # Two values already prove that the broadcaster lies; a third adds nothing.
        if text in known or len(known) > 1 or self.id in signers:
            self.refuse("repeated")
            return
        known[text] = (index, payloads)
        if len(signers) > self.f:
            return
        signers, tokens = (*signers, self.id), (*tokens, sign(self.id, text))
        for peer in self.peers:
            if peer not in signers:
                self.say(PAYLOAD, peer, DolevStrong.relay, slot, index, payloads, signers, tokens)
        self.rounds += 1

    def decide(self, slot: int) -> None:
        """At the end of a slot: deliver its value if it is the only one."""
        known = self.believed.pop(slot, {})
        if len(known) != 1:
            return
        ((index, payloads),) = known.values()
        for place, payload in enumerate(payloads, index):
            if place == self.delivered + 1:
                self.deliver(place, payload)


def text_of(slot: int, index: int, payloads: tuple[bytes, ...]) -> bytes:
    """What is signed: the slot, the first index and the hash of each payload."""
    made = hashlib.sha256(f"{slot} {index}".encode())
    for payload in payloads:
        made.update(hashlib.sha256(payload).digest())
    return made.digest()
