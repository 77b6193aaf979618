"""Dolev and Strong's broadcast from every node at once: exact consensus on complete graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from orrery.parts import Positive, rpc
from orrery.systems.protocols.problems.digraphs import Digraph
from orrery.systems.protocols.problems.directed_rounds import RoundNode
from orrery.systems.protocols.problems.signing import Scheme, keys_for


class Signed(NamedTuple):
    """That `origin` has a bit, with the signatures of those who believed it, the origin first."""

    origin: int
    value: int
    signers: tuple[int, ...]
    tokens: tuple[bytes, ...]


def text_of(origin: int, value: int) -> bytes:
    """What is signed."""
    return b"dolev-strong %d %d" % (origin, value)


class DolevStrongConsensus(RoundNode):
    """Authenticated consensus in f + 1 rounds where everybody hears everybody (Dolev, Strong 1983).

    Every node broadcasts its bit: a bit is believed in round r with r signatures, the origin's
    first, and passed on with one more. After f + 1 rounds all hold the same beliefs, take 0 for an
    origin with none or two, and decide for the majority. Without faults n (n - 1)^2 bits travel.

    Knobs: `signature`, as in `DirectedAuth`; those of `RoundNode`.
    **Differs from the paper**: n broadcasts side by side, and a majority on top, which needs
    n > 2 f; nodes sign the bit and not the chain.

    >>> from orrery.systems.protocols.problems.digraphs import complete, ring
    >>> [DolevStrongConsensus().suits(g, 2) for g in (complete(5), complete(4), ring(5))]
    [True, False, False]
    """

    signature: Scheme = "auto"
    round_s: Positive = 0.3  # rounds are few, so they may be long

    tolerates: ClassVar[tuple[str, ...]] = ("duplicate", "reorder", "crash", "byzantine")

    def suits(self, graph: Digraph, f: int) -> bool:
        return len(graph.links) == graph.n * (graph.n - 1) and graph.n > 2 * f

    def total(self) -> int:
        self.keys = keys_for(self, self.signature)
        self.believed: dict[tuple[int, int], None] = {}
        self.fresh: list[Signed] = []
        bit = int(self.value)
        self._believe(Signed(self.id, bit, (), ()))
        return self.tolerated + 1

    def news(self, number: int) -> tuple[Signed, ...] | None:
        told, self.fresh = tuple(self.fresh), []
        return told or None

    @rpc
    def hear(self, number: int, news: tuple[Signed, ...], sender: int) -> None:
        """Signed bits of a round."""
        self.keep(number, news, sender)

    def shout(self, method: Callable[..., Any], *args: Any) -> None:
        """Nobody is told what it has signed itself."""
        number, news = args
        for peer in self.out:
            told = tuple(each for each in news if peer not in each.signers)
            if told:
                self.tell(peer, method, number, told)

    def take(self, number: int, sender: int, news: tuple[Signed, ...]) -> None:
        for each in news[: 4 * self.graph.n]:
            if (each.origin, each.value) in self.believed:
                self.refuse("repeated")
            elif self._sound(number, each):
                self._believe(each)

    def _sound(self, number: int, each: Signed) -> bool:
        signers = each.signers
        shaped = each.value in (0, 1) and len(signers) == len(each.tokens) == len(set(signers))
        if not shaped or not signers or signers[0] != each.origin or len(signers) > self.graph.n:
            self.refuse("malformed")
            return False
        if len(signers) <= number:
            self.refuse("late")
            return False
        text = text_of(each.origin, each.value)
        if not all(map(self.keys.good, signers, [text] * len(signers), each.tokens)):
            self.refuse("forged")
            return False
        return True

    def _believe(self, each: Signed) -> None:
        self.believed[each.origin, each.value] = None
        if self.id not in each.signers:
            token = self.keys.sign(text_of(each.origin, each.value))
            each = each._replace(signers=(*each.signers, self.id), tokens=(*each.tokens, token))
        self.fresh.append(each)

    def result(self) -> float:
        ones = sum((v, 1) in self.believed and (v, 0) not in self.believed
                   for v in range(self.graph.n))  # fmt: skip
        return float(2 * ones > self.graph.n)
