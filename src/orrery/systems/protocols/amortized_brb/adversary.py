"""How nodes lie in this protocol; `Byzantine(strategies=("subset",))` in a world attaches one.

Each strategy bends what an otherwise honest node sends or hears. None of them can forge the sender
of a message, and none can find two payloads with one hash.
"""

from __future__ import annotations

from typing import Any

from orrery.parts.byzantine import Liar, Message, Strategy
from orrery.systems.protocols.amortized_brb.chain import GENESIS, chained, digest_of


def lie_for(payload: bytes) -> bytes:
    """Another payload; doing it twice gives the first one back."""
    return bytes([payload[0] ^ 1]) + payload[1:] if payload else payload


class TwoStories(Strategy):
    """Tells the last f nodes (a share `p` < 1: so many of all) a second stream of payloads.

    Everything said to them is put into the terms of the second story, and what they say is put back
    into those of the first. So the node votes, states readiness and serves payloads on both chains,
    each side hears one consistent story, and several such nodes collude.
    """

    def __init__(self, liar: Liar) -> None:
        super().__init__(liar)
        count = round(liar.p * liar.size) if liar.p < 1 else (liar.size - 1) // 3
        self.second = frozenset(range(liar.size - count, liar.size))
        self.words: dict[bytes, bytes] = {}  # hashes of one story -> those of the other
        self.heads = (GENESIS, GENESIS)
        self.told = 0

    def on_send(self, message: Message) -> list[Message]:
        self.learn(message)
        return [self.put(message) if message.dst in self.second else message]

    def on_receive(self, message: Message) -> list[Message]:
        self.learn(message)
        return [self.put(message) if message.src in self.second else message]

    def learn(self, message: Message) -> None:
        """Follow both chains from the shots of the first story."""
        if message.method != "shot" or message.args[0] != self.told + 1:
            return
        index, payload = message.args
        self.told = index
        digests = (digest_of(payload), digest_of(lie_for(payload)))
        heads = tuple(
            chained(index, head, digest) for head, digest in zip(self.heads, digests, strict=True)
        )
        for first, second in (digests, heads):
            self.words[first], self.words[second] = second, first
        self.heads = heads  # type: ignore[assignment]

    def put(self, message: Message) -> Message:
        """The message in the terms of the other story."""
        payload = message.method in ("shot", "give")
        args = tuple(self.word(arg, payload) for arg in message.args)
        return message._replace(args=args)

    def word(self, arg: Any, payload: bool) -> Any:
        if not isinstance(arg, bytes):
            return arg
        return lie_for(arg) if payload else self.words.get(arg, arg)


class Subset(Strategy):
    """A broadcaster that sends its payloads to the first nodes only, and not to the last ones.

    To so many that a quorum of votes is just reached, or to a share `p` < 1 of the peers.
    """

    def __init__(self, liar: Liar) -> None:
        super().__init__(liar)
        others = [peer for peer in range(liar.size) if peer != liar.me]
        quorum = (liar.size + (liar.size - 1) // 3) // 2 + 1
        self.to = others[: round(liar.p * len(others)) if liar.p < 1 else quorum - 1]

    def on_send(self, message: Message) -> list[Message]:
        return [] if message.method == "shot" and message.dst not in self.to else [message]


class StopAfter(Strategy):
    """A broadcaster that falls silent after one of its first shots, which only some receive."""

    def __init__(self, liar: Liar) -> None:
        super().__init__(liar)
        self.last = 1 + liar.rng.below(3)
        self.stopped = False

    def on_send(self, message: Message) -> list[Message]:
        if message.method == "shot":
            self.stopped = self.stopped or message.args[0] > self.last
            if message.args[0] == self.last and self.liar.rng.below(2):
                return []
        return [] if self.stopped else [message]


class VoteTwice(Strategy):
    """Votes for two payloads at each index, in an order of chance, to everybody."""

    def on_send(self, message: Message) -> list[Message]:
        if message.method != "vote":
            return [message]
        index, before, digest, *news = message.args
        other = message._replace(args=(index, before, digest_of(digest), *news))
        return [other, message] if self.liar.rng.below(2) else [message, other]


class Fork(Strategy):
    """A broadcaster that begins its chain again, with other payloads, after its second shot.

    Half of the peers hear the new chain before the second shot of the old one.
    """

    def __init__(self, liar: Liar) -> None:
        super().__init__(liar)
        self.first: dict[int, Message] = {}

    def on_send(self, message: Message) -> list[Message]:
        if message.method != "shot":
            return [message]
        if message.args[0] == 1:
            self.first[message.dst] = message
        if message.args[0] != 2 or message.dst not in self.first:
            return [message]
        again = [
            old._replace(args=(old.args[0], lie_for(old.args[1])))
            for old in (self.first[message.dst], message)
        ]
        return [*again, message] if message.dst % 2 else [message, *again]


class Garbage(Strategy):
    """Serves other bytes than those that were asked for."""

    def on_send(self, message: Message) -> list[Message]:
        if message.method != "give":
            return [message]
        index, payload = message.args
        return [message._replace(args=(index, lie_for(payload) or b"\x00"))]


class Shun(Strategy):
    """Holds payloads and votes for them, but serves nobody."""

    def on_send(self, message: Message) -> list[Message]:
        return [] if message.method == "give" else [message]


class Greedy(Strategy):
    """Throws away every payload, so that it goes on to ask every holder for it."""

    def on_receive(self, message: Message) -> list[Message]:
        return [] if message.method in ("shot", "give") else [message]


STRATEGIES: dict[str, type[Strategy]] = {
    "two_stories": TwoStories,
    "subset": Subset,
    "stop_after": StopAfter,
    "vote_twice": VoteTwice,
    "fork": Fork,
    "garbage": Garbage,
    "shun": Shun,
    "greedy": Greedy,
}
