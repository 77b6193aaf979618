"""The synchronous protocol as a machine without clock or network: exact consensus on one bit.

A turn for each set F of f suspects, in a fixed order. A turn has f + 2 super-rounds, in which
everybody's bit is flooded under signatures, and one more, in which the source S_F that F leaves
floods its verdict. A super-round has as many rounds as a message may need hops.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from orrery.parts.byzantine import Message, Strategy, pass_through
from orrery.systems.protocols.directed_byzantine_auth.conditions import Turn, farthest, turns
from orrery.systems.protocols.problems.digraphs import Digraph, bits, mask_of
from orrery.systems.protocols.problems.signing import Keys

BIT, VERDICT = "bit", "verdict"


class Statement(NamedTuple):
    """That `origin` says `value`, and who has signed that: the origin first, then its relays."""

    kind: str
    turn: int
    origin: int
    value: int
    signers: tuple[int, ...]
    tokens: tuple[bytes, ...]


class When(NamedTuple):
    """Where a round stands: in which turn, which super-round (from 1), and whether it ends one."""

    turn: int
    step: int
    first: bool
    last: bool


class Plan(NamedTuple):
    """What all nodes know of a run: the graph, the turns, and when which round is."""

    graph: Digraph
    f: int
    turns: tuple[Turn, ...]
    hops: int
    rounds: tuple[When, ...]  # C(n, f) (f + 3) n of them, or fewer hops for n

    @classmethod
    def of(cls, graph: Digraph, f: int, tight: bool = False) -> Plan:
        """The plan for a graph; `tight`: super-rounds no longer than the graph needs."""
        made = turns(graph, f)
        hops = farthest(graph, f) if tight else graph.n
        return cls(graph, f, made, hops, _rounds(len(made), f + 3, hops))


@functools.lru_cache(maxsize=256)
def _rounds(turns: int, steps: int, hops: int) -> tuple[When, ...]:
    """Every round of a plan; all nodes share them."""
    return tuple(
        When(turn, step, hop == 0, hop == hops - 1)
        for turn in range(turns) for step in range(1, steps + 1) for hop in range(hops)
    )  # fmt: skip


def text_of(kind: str, turn: int, origin: int, value: int) -> bytes:
    """What is signed; the turn is in it, so that old signatures are worth nothing later."""
    return b"%s %d %d %d" % (kind.encode(), turn, origin, value)


class ExactMachine:
    """One node's side of the synchronous protocol.

    In each round: `news` is sent to all, what arrives is given to `take`, and `close` ends it.
    `counted` says why statements were thrown away. A statement is checked in O(signers).
    """

    def __init__(self, me: int, plan: Plan, value: int, keys: Keys) -> None:
        self.me = me
        self.plan = plan
        self.value = value
        self.keys = keys
        self.counted: dict[str, int] = {}
        self.said: list[tuple[str, int, int, int]] = []  # under one's own signature
        self.taken: list[tuple[str, int, int, int]] = []  # for the word of others
        self.fresh: list[Statement] = []
        self.heard: dict[tuple[int, int], None] = {}  # (origin, value) that are accepted
        self.verdicts: dict[tuple[int, int], None] = {}

    def news(self, number: int) -> tuple[Statement, ...]:
        """What this node tells everybody in a round."""
        when = self.plan.rounds[number]
        if when.first and when.step == 1:
            self.heard, self.verdicts = {(self.me, self.value): None}, {}
            self.fresh = [self._own(BIT, when.turn, self.value)]
        made, self.fresh = tuple(self.fresh), []
        return made

    def take(self, number: int, statements: Iterable[Statement]) -> None:
        """Hear what one neighbour told in a round."""
        when = self.plan.rounds[number]
        turn = self.plan.turns[when.turn]
        if when.step == self.plan.f + 3:
            for each in statements:
                self._take_verdict(when.turn, turn, each)
            return
        members = turn.core | turn.suspects
        for each in statements:
            if (each.origin, each.value) in self.heard:
                self._count("repeated")  # before its signatures are looked at: that is cheaper
            elif self._sound(BIT, when.turn, each):
                if members >> self.me & 1 and not self._in_time(when.step, members, each):
                    self._count("late")
                    continue
                self.heard[each.origin, each.value] = None
                self.taken.append(each[:4])
                self.fresh.append(self._signed_too(each) if members >> self.me & 1 else each)

    def close(self, number: int) -> None:
        """End a round: decide what a turn's end asks for."""
        when = self.plan.rounds[number]
        if not when.last:
            return
        turn, f = self.plan.turns[when.turn], self.plan.f
        inside = turn.core >> self.me & 1
        if when.step == f + 2:
            self.fresh = []
            if inside:
                ones = sum(value for _, value in self.heard)
                zeros = len(self.heard) - ones
                self.value = int(ones > f and zeros <= f)
                self.verdicts[self.me, self.value] = None
                self.fresh = [self._own(VERDICT, when.turn, self.value)]
        elif when.step == f + 3:
            self.fresh = []
            votes = [sum(1 for _, value in self.verdicts if value == bit) for bit in (0, 1)]
            if not inside and (votes[0] > f) != (votes[1] > f):
                self.value = int(votes[1] > f)

    # -- within

    def _in_time(self, step: int, members: int, each: Statement) -> bool:
        """Whether so many members have signed that, of those who did, one passes it on in time."""
        return (mask_of(each.signers) & members).bit_count() >= step - 1

    def _take_verdict(self, number: int, turn: Turn, each: Statement) -> None:
        if (each.origin, each.value) in self.verdicts:
            self._count("repeated")
        elif self._sound(VERDICT, number, each):
            if not turn.core >> each.origin & 1:
                self._count("stranger")
                return
            self.verdicts[each.origin, each.value] = None
            self.taken.append(each[:4])
            self.fresh.append(each)

    def _own(self, kind: str, turn: int, value: int) -> Statement:
        token = self.keys.sign(text_of(kind, turn, self.me, value))
        self.said.append((kind, turn, self.me, value))
        return Statement(kind, turn, self.me, value, (self.me,), (token,))

    def _signed_too(self, each: Statement) -> Statement:
        if self.me in each.signers:
            return each
        token = self.keys.sign(text_of(*each[:4]))
        return each._replace(signers=(*each.signers, self.me), tokens=(*each.tokens, token))

    def _sound(self, kind: str, turn: int, each: Statement) -> bool:
        """Whether a statement has the right form and every signature under it is good."""
        signers = each.signers
        if (each.kind, each.turn) != (kind, turn):
            self._count("stale")
            return False
        shaped = (
            each.value in (0, 1)
            and 0 < len(signers) == len(each.tokens) == len(set(signers))
            and signers[0] == each.origin
            and all(0 <= signer < self.plan.graph.n for signer in signers)
        )
        if not shaped:
            self._count("malformed")
            return False
        text = text_of(*each[:4])
        for signer, token in zip(signers, each.tokens, strict=True):
            if not self.keys.good(signer, text, token):
                self._count("forged")
                return False
        return True

    def _count(self, why: str) -> None:
        self.counted[why] = self.counted.get(why, 0) + 1


def lockstep(
    machines: Sequence[ExactMachine], liars: Mapping[int, Sequence[Strategy]] | None = None
) -> list[int]:
    """All machines of a graph in one loop without an engine, some bent by strategies; their values.

    >>> from orrery.systems.protocols.problems.digraphs import complete
    >>> from orrery.systems.protocols.problems.signing import TokenKeys
    >>> plan = Plan.of(complete(3), 1)
    >>> lockstep([ExactMachine(v, plan, v % 2, TokenKeys(v)) for v in range(3)])
    [0, 0, 0]
    """
    plan, bent = machines[0].plan, liars or {}
    inbox: dict[int, list[tuple[int, tuple[Statement, ...]]]] = {}
    for number, when in enumerate(plan.rounds):
        opens = when.first and when.step == 1
        for machine in machines:
            news = machine.news(number) if opens or machine.fresh else ()
            for peer in bits(plan.graph.out[machine.me]) if news else ():
                told = [Message(machine.me, peer, "hear", (number, news))]
                if machine.me in bent:
                    told = pass_through(bent[machine.me], told[0])
                for each in told:
                    inbox.setdefault(each.args[0], []).append((peer, each.args[1]))
        for peer, news in inbox.pop(number, ()):
            machines[peer].take(number, news)
        for machine in machines if when.last else ():
            machine.close(number)
    return [machine.value for machine in machines]
