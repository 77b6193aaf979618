"""The asynchronous protocol as a machine without clock or network: values that draw together.

A round: flood one's signed value; when for some set F of f nodes all of reach_me(F) are heard,
flood the signed list of what was heard as a report; when for some F' all of reach_me(F') have
reported, throw out who signed two values (d of them), trim the f - d lowest and highest of the
rest, and move to the middle. Two fault-free nodes share the report of a third, whose median lies
inside what either keeps; so their new values differ by half of the old range at most.
"""

from __future__ import annotations

import hashlib
import math
import struct
from typing import NamedTuple

from orrery.systems.protocols.directed_byzantine_auth.conditions import waits
from orrery.systems.protocols.problems.digraphs import Digraph
from orrery.systems.protocols.problems.signing import Keys


class Said(NamedTuple):
    """That a node has this value in the round, under its signature."""

    origin: int
    value: float
    token: bytes


class Report(NamedTuple):
    """All that a node had heard when it went on, under its signature."""

    origin: int
    heard: tuple[Said, ...]
    token: bytes


class Flood(NamedTuple):
    """What goes to every neighbour next: one value or one report of a round."""

    number: int
    said: Said | None
    report: Report | None


def value_text(number: int, origin: int, value: float) -> bytes:
    """What is signed under a value."""
    return b"value %d %d " % (number, origin) + struct.pack(">d", value)


def report_text(number: int, origin: int, heard: tuple[Said, ...]) -> bytes:
    """What is signed under a report: a digest of its list."""
    made = hashlib.sha256(b"report %d %d" % (number, origin))
    for each in heard:
        made.update(b"%d " % each.origin + struct.pack(">d", each.value) + each.token)
    return made.digest()


class Book:
    """What was heard in one round."""

    def __init__(self) -> None:
        self.said: dict[int, list[Said]] = {}  # by origin; a second value convicts it
        self.reports: dict[int, Report] = {}
        self.have = 0  # origins with a value, one bit each
        self.told = 0  # origins with a report


class ApproximateMachine:
    """One node's side of the asynchronous protocol, for a given number of rounds.

    `begin`, `take_said` and `take_report` give what is to be flooded. After its last round a node
    has `decided`, and goes on relaying for the others.
    """

    def __init__(
        self, me: int, graph: Digraph, f: int, value: float, rounds: int, keys: Keys
    ) -> None:
        self.me, self.graph, self.f = me, graph, f
        self.rounds = rounds
        self.keys = keys
        self.wanted = waits(graph, f, me)
        self.values = [float(value)]  # one's own, by round
        self.books: dict[int, Book] = {}
        self.reported = False
        self.decided = rounds == 0
        self.counted: dict[str, int] = {}
        self.said: list[tuple[str, int, int, float]] = []  # under one's own signature
        self.taken: list[tuple[str, int, int, float]] = []  # for the word of others

    @property
    def number(self) -> int:
        """The round that this node is in, from 0."""
        return len(self.values) - 1

    @property
    def value(self) -> float:
        """The newest value of this node."""
        return self.values[-1]

    def begin(self) -> list[Flood]:
        """Open the first round."""
        return [] if self.decided else [*self._open(), *self._go_on()]

    def take_said(self, number: int, said: Said) -> list[Flood]:
        """Hear a value; what is new is passed on."""
        if not self._learn(number, said):
            return []
        return [Flood(number, said, None), *self._go_on()]

    def take_report(self, number: int, report: Report) -> list[Flood]:
        """Hear a report; the first one of each origin is passed on."""
        n = self.graph.n
        if not (0 <= number < self.rounds and 0 <= report.origin < n):
            self._count("malformed")
            return []
        book = self._book(number)
        if report.origin in book.reports:
            self._count("repeated")
            return []
        text = report_text(number, report.origin, report.heard)
        if len(report.heard) > 2 * n:
            self._count("malformed")
            return []
        if not self.keys.good(report.origin, text, report.token):
            self._count("forged")
            return []
        if not all(self._known(number, said) or self._sound(number, said) for said in report.heard):
            return []  # one rotten entry spoils it: a fault-free node would not have passed it on
        for said in report.heard:
            self._keep(number, said)
        book.reports[report.origin] = report
        book.told |= 1 << report.origin
        self.taken.append(("report", number, report.origin, float(len(report.heard))))
        return [Flood(number, None, report), *self._go_on()]

    # -- within

    def _open(self) -> list[Flood]:
        """Flood one's own value of a new round."""
        token = self.keys.sign(value_text(self.number, self.me, self.value))
        own = Said(self.me, self.value, token)
        self._keep(self.number, own)
        self.said.append(("value", self.number, self.me, self.value))
        self.reported = False
        return [Flood(self.number, own, None)]

    def _report(self, book: Book) -> list[Flood]:
        """Flood the list of what was heard."""
        heard = tuple(each for origin in sorted(book.said) for each in book.said[origin])
        token = self.keys.sign(report_text(self.number, self.me, heard))
        report = Report(self.me, heard, token)
        book.reports[self.me] = report
        book.told |= 1 << self.me
        self.said.append(("report", self.number, self.me, float(len(heard))))
        self.reported = True
        return [Flood(self.number, None, report)]

    def _go_on(self) -> list[Flood]:
        """Pass from values to reports, and to the next rounds, as far as what was heard allows."""
        out: list[Flood] = []
        while not self.decided:
            book = self._book(self.number)
            got = book.told if self.reported else book.have
            if not any(want & ~got == 0 for want in self.wanted):
                break
            if not self.reported:
                out += self._report(book)
                continue
            self.values.append(self._middle(book))
            self.decided = self.number == self.rounds
            if not self.decided:
                out += self._open()
        return out

    def _middle(self, book: Book) -> float:
        kept = sorted(each[0].value for each in book.said.values() if len(each) == 1)
        convicted = len(book.said) - len(kept)
        trim = max(0, self.f - convicted)
        kept = kept[trim : len(kept) - trim]
        if not kept:  # only where the graph violates the condition
            return self.value
        return kept[0] / 2 + kept[-1] / 2

    def _book(self, number: int) -> Book:
        book = self.books.get(number)
        if book is None:
            book = self.books[number] = Book()
        return book

    def _learn(self, number: int, said: Said) -> bool:
        """Keep a value that is new, sound and not the third of its origin."""
        if not 0 <= number < self.rounds or self._known(number, said):
            self._count("repeated" if 0 <= number < self.rounds else "malformed")
            return False
        return self._sound(number, said) and self._keep(number, said)

    def _known(self, number: int, said: Said) -> bool:
        known = self._book(number).said.get(said.origin, ())
        return any(each.value == said.value for each in known)

    def _sound(self, number: int, said: Said) -> bool:
        if not (0 <= said.origin < self.graph.n and math.isfinite(said.value)):
            self._count("malformed")
            return False
        if not self.keys.good(said.origin, value_text(number, *said[:2]), said.token):
            self._count("forged")
            return False
        return True

    def _keep(self, number: int, said: Said) -> bool:
        book = self._book(number)
        known = book.said.setdefault(said.origin, [])
        if len(known) > 1 or any(each.value == said.value for each in known):
            return False
        known.append(said)
        if said.origin != self.me:
            self.taken.append(("value", number, said.origin, said.value))
        book.have |= 1 << said.origin
        return True

    def _count(self, why: str) -> None:
        self.counted[why] = self.counted.get(why, 0) + 1
