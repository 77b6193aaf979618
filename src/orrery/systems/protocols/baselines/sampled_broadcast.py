"""Probabilistic reliable broadcast: each node listens to small random samples of the others."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from typing import Any, ClassVar

from orrery.parts import Positive, rpc
from orrery.systems.protocols.baselines.dolev_strong import sign, signed
from orrery.systems.protocols.problems.reliable_broadcast import (
    PAYLOAD,
    REQUEST,
    VOTE,
    ReliableBroadcaster,
)

ECHO, READY = "echo", "ready"


class SampledBroadcast(ReliableBroadcaster):
    """Reliable broadcast with samples of O(log n) nodes (Guerraoui et al., "Contagion", 2019).

    Payloads, signed by the broadcaster, spread by gossip. Each node draws three samples of
    `factor` * ln n others and subscribes to them: it says *ready* when enough of its echo sample
    echo one hash or enough of its ready sample are ready for it, and delivers when enough of its
    delivery sample are ready. The shares are Bracha's, taken of the sample with oneself. A shot
    costs O(n log n) payloads and hashes; with a small probability, which falls with `factor`, a
    sample holds too many liars and a guarantee fails. Samples of all are Bracha's protocol.

    Knobs: `factor`, the size of the samples and of the gossip's fan-out over ln n; `recover_s` in
    seconds, after which a payload that gossip missed is asked for; those of `ReliableBroadcaster`.
    **Differs from the paper**: echoes hold hashes, and gossip alone carries payloads; one size
    serves all samples; signatures are tokens (see `dolev_strong`); the samples are drawn once.

    >>> SampledBroadcast(factor=3.0)
    SampledBroadcast(factor=3.0)
    """

    factor: Positive = 5.0
    recover_s: Positive = 0.02

    tolerates: ClassVar[tuple[str, ...]] = ("duplicate", "reorder", "crash", "pause", "byzantine")

    def start(self) -> None:
        super().start()
        self.size = min(self.n - 1, max(1, math.ceil(self.factor * math.log(self.n + 1))))
        bad = self.size // 3
        self.echo_share = (self.size + 1 + bad) // 2 + 1
        self.ready_share, self.deliver_share = bad + 1, 2 * bad + 1
        peers = self.peers
        self.gossip_to = self.rng.sample(peers, self.size)
        self.samples = {
            ECHO: set(self.rng.sample(peers, self.size)),
            READY: set(self.rng.sample(peers, self.size)),
            "deliver": set(self.rng.sample(peers, self.size)),
        }
        self.listeners: dict[str, dict[int, None]] = {ECHO: {}, READY: {}}
        self.said: dict[tuple[str, int], bytes] = {}  # (kind, index) -> the one digest
        self.payloads: dict[tuple[int, bytes], bytes] = {}
        self.heard: dict[tuple[str, int, bytes], dict[int, None]] = {}
        self.spoke: dict[tuple[str, int, int], None] = {}
        self.certain: dict[int, bytes] = {}
        self.served: dict[tuple[int, int], None] = {}

    async def main(self) -> None:
        for peer in sorted(self.samples[ECHO]):
            self.say(VOTE, peer, SampledBroadcast.subscribe, ECHO)
        for peer in sorted(self.samples[READY] | self.samples["deliver"]):
            self.say(VOTE, peer, SampledBroadcast.subscribe, READY)

    @rpc
    def subscribe(self, kind: str, sender: int) -> None:
        """The sender wants to hear one's echoes, or one's readies; old ones too."""
        if kind not in self.listeners or sender in self.listeners[kind]:
            self.refuse("repeated" if kind in self.listeners else "malformed")
            return
        self.listeners[kind][sender] = None
        for (said, index), digest in self.said.items():
            if said == kind:
                self.say(VOTE, sender, SampledBroadcast.hear, kind, index, digest)

    # -- gossip

    @rpc
    def broadcast(self, payload: bytes) -> None:
        index = self.next_shot()
        self.spread(index, payload, sign(self.id, _text(index, payload)))

    @rpc
    def shot(self, index: int, payload: bytes, token: bytes, sender: int) -> None:
        """A payload with the broadcaster's signature, from whomever."""
        if index < 1 or (ECHO, index) in self.said:
            return  # gossip comes several times
        if len(payload) > self.most_B:
            self.refuse("oversized")
        elif not signed(self.broadcaster, _text(index, payload), token):
            self.refuse("forged")
        else:
            self.spread(index, payload, token)

    def spread(self, index: int, payload: bytes, token: bytes) -> None:
        digest = hashlib.sha256(payload).digest()
        self.payloads[index, digest] = payload
        for peer in self.gossip_to:
            self.say(PAYLOAD, peer, SampledBroadcast.shot, index, payload, token)
        self.speak(ECHO, index, digest)
        self.weigh(index, digest)

    # -- samples

    def speak(self, kind: str, index: int, digest: bytes) -> None:
        """Tell one's listeners, once for each kind and index."""
        if (kind, index) not in self.said:
            self.said[kind, index] = digest
            self.rounds += 1
            for peer in self.listeners[kind]:
                self.say(VOTE, peer, SampledBroadcast.hear, kind, index, digest)

    @rpc
    def hear(self, kind: str, index: int, digest: bytes, sender: int) -> None:
        """An echo or a ready of a member of a sample."""
        if kind not in self.listeners or index < 1:
            self.refuse("malformed")
        elif (kind, index, sender) in self.spoke:
            self.refuse("repeated")
        else:
            self.spoke[kind, index, sender] = None
            self.heard.setdefault((kind, index, digest), {})[sender] = None
            self.weigh(index, digest)

    def count(self, sample: str, kind: str, index: int, digest: bytes) -> int:
        """How many of a sample, and oneself, have said so."""
        who: Iterable[int] = self.heard.get((kind, index, digest), ())
        own = self.said.get((kind, index)) == digest
        return own + sum(peer in self.samples[sample] for peer in who)

    def weigh(self, index: int, digest: bytes) -> None:
        if (READY, index) not in self.said and (
            self.count(ECHO, ECHO, index, digest) >= self.echo_share
            or self.count(READY, READY, index, digest) >= self.ready_share
        ):
            self.speak(READY, index, digest)
        enough = self.count("deliver", READY, index, digest) >= self.deliver_share
        if enough and index not in self.certain:
            self.certain[index] = digest
            if (index, digest) not in self.payloads:
                self.spawn(self.seek(index, digest))
        self.settle()

    def settle(self) -> None:
        """Deliver, in order, all that is certain and held."""
        while True:
            index = self.delivered + 1
            payload = self.payloads.get((index, self.certain.get(index, b"")))
            if payload is None:
                return
            self.deliver(index, payload)

    # -- payloads that gossip did not bring

    async def seek(self, index: int, digest: bytes) -> None:
        """Ask those who are ready, one after another."""
        asked: dict[int, None] = {}
        while True:
            await self.sleep(self.recover_s)
            ready = self.heard.get((READY, index, digest), {})
            left = [peer for peer in ready if peer not in asked]
            if (index, digest) in self.payloads or not left:
                return
            asked[left[0]] = None
            self.note_request(index)
            self.say(REQUEST, left[0], SampledBroadcast.want, index, digest)

    @rpc
    def want(self, index: int, digest: bytes, sender: int) -> None:
        """A request for a payload; each requester is served once for an index."""
        payload = self.payloads.get((index, digest))
        if payload is None or (index, sender) in self.served:
            self.refuse("greedy" if payload is not None else "unknown")
            return
        self.served[index, sender] = None
        self.say(PAYLOAD, sender, SampledBroadcast.give, index, payload)

    @rpc
    def give(self, index: int, payload: bytes, sender: int) -> None:
        """An answer to a request; what does not fit its hash is thrown away."""
        digest = hashlib.sha256(payload).digest()
        if self.certain.get(index) != digest:
            self.refuse("garbage")
            return
        self.payloads.setdefault((index, digest), payload)
        self.settle()


def _text(index: int, payload: bytes) -> bytes:
    text: Any = hashlib.sha256(str(index).encode() + b" " + payload)
    return bytes(text.digest())
