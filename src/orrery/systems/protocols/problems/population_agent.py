"""Agents of a population as nodes: meetings that are atomic although messages are not.

The theory lets two agents change in one instant. Here an agent that begins a meeting freezes: it
sends its state and refuses everybody until the answer has come. The asked agent computes both new
states at that moment, keeps what it answered, and answers a repeated question the same way. So a
meeting happens exactly once, and at one moment, whatever is lost, doubled, late or restarted. Who
restarts first tells all others to forget its old questions, and learns which of theirs are old.
Freezing matters: seen with a delay, immediate observation would decide fewer languages (Angluin,
Aspnes, Eisenstat, Ruppert 2007).
"""

from __future__ import annotations

import functools
import zlib
from typing import Any, ClassVar

import msgspec
import numpy as np

from orrery.base.errors import DeadlineExceeded, PartError
from orrery.parts import Node, Positive, rpc
from orrery.systems.protocols.problems.population_graph import stays
from orrery.systems.protocols.problems.population_tables import (
    EARLIER,
    LATER,
    Label,
    Protocol,
)

BUSY = ""
SLOTS = ("state0", "state1")
# An agent numbers its meetings; each life begins far above the one before.
LIFE = 1 << 32


@functools.lru_cache(maxsize=65536)
def to_text(label: Label) -> str:
    """A local state as text, the same in every process."""
    return msgspec.json.encode(label).decode()


@functools.lru_cache(maxsize=65536)
def from_text(text: str) -> Label:
    """A local state from its text: JSON's lists become tuples again."""
    return _frozen(msgspec.json.decode(text.encode()))


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


class Kept(msgspec.Struct):
    """What an agent keeps on its disk: its state, its open question, and its last answers."""

    language: str = ""
    alphabet: str = ""
    state: str = ""
    version: int = 0
    met: int = 0
    number: int = 0
    asked: int = -1  # whom the open question was put to; -1: nobody
    answers: dict[int, tuple[int, str]] = {}


class Look(msgspec.Struct, frozen=True):
    """What an agent shows of itself: `open` while it waits for the answer of a meeting."""

    version: int
    state: str
    says: bool
    met: int
    open: bool


class PopulationAgent(Node):
    """The port of `Stabilisation`: `place` gives an agent its letter, `look` shows it.

    An agent's place in the line is its id. `settled` is asked of the part itself, with the states
    of all agents at one moment: whether no fair run can leave this consensus any more.
    """

    @rpc
    async def place(self, letter: str, language: str, alphabet: str) -> None:
        """Begin with this letter; said again until it is heard."""
        raise PartError(f"{type(self).__name__} has no place(letter, …); write how it begins")

    @rpc
    async def look(self, hold: bool) -> Look:
        """Show the state; with `hold`, begin no meeting until told to go on."""
        raise PartError(f"{type(self).__name__} has no look(hold); show its state")

    def settled(self, language: str, alphabet: str, states: list[str]) -> bool:
        """Whether this configuration can only keep its consensus."""
        raise PartError(f"{type(self).__name__} has no settled(…); say when it is stable")

    def accepts(self, language: str, alphabet: str) -> None:
        """Refuse a language that this kind of agent cannot decide."""


class MeetingAgent(PopulationAgent):
    """An agent that runs the table of a protocol: meets a random other every `period_s` or so.

    A subclass writes `protocol(language, alphabet)`. Knobs: `period_s`, the mean time between two
    meetings that an agent begins; `patience_s`, after which an unanswered question is repeated.
    """

    period_s: Positive = 0.1
    patience_s: Positive = 0.5

    tolerates: ClassVar[tuple[str, ...]] = (
        "drop", "duplicate", "reorder", "restart", "pause", "partition",
    )  # fmt: skip

    def protocol(self, language: str, alphabet: str) -> Protocol:
        """The table that decides this language."""
        raise PartError(f"{type(self).__name__} has no protocol(language, alphabet); give a table")

    def accepts(self, language: str, alphabet: str) -> None:
        self.protocol(language, alphabet)

    def settled(self, language: str, alphabet: str, states: list[str]) -> bool:
        table = self.protocol(language, alphabet)
        numbers = np.array([table.number(from_text(text)) for text in states], dtype=np.int64)
        if table.consensus(numbers) is None:
            return False
        return table.silent(numbers) or (len(states) <= 64 and stays(table, numbers, 2000))

    # -- state

    def start(self) -> None:
        self.kept = Kept()
        self.table: Protocol | None = None
        self.frozen = True  # until the disk has been read
        self.read = False
        self.held = False
        self.refused: dict[int, int] = {}
        self.slot = 0

    async def recover(self) -> None:
        """Take up the newer of the two slots that is whole."""
        for slot in SLOTS:
            if not self.disk.exists(slot):
                continue
            data = await self.disk.read(slot)
            if len(data) > 4 and zlib.crc32(data[4:]) == int.from_bytes(data[:4], "little"):
                found = msgspec.json.decode(data[4:], type=Kept)
                if (found.version, found.number) >= (self.kept.version, self.kept.number):
                    self.kept, self.slot = found, 1 - SLOTS.index(slot)
        self.kept.number = max(self.kept.number, self.incarnation * LIFE)
        self.read = True
        if self.kept.state:
            self.table = self.protocol(self.kept.language, self.kept.alphabet)

    async def keep(self) -> None:
        """Write to the older slot, so that a torn write leaves the newer one whole."""
        data = msgspec.json.encode(self.kept)
        slot = SLOTS[self.slot]
        self.slot = 1 - self.slot
        await self.disk.write(slot, zlib.crc32(data).to_bytes(4, "little") + data)
        await self.disk.fsync(slot)

    def become(self, label: Label) -> None:
        """Take a new local state."""
        assert self.table is not None
        before, self.kept.state = self.kept.state, to_text(label)
        says = bool(self.table.output(label))
        if not before or says != bool(self.table.output(from_text(before))):
            self.emit(says=says)
        self.kept.version += 1

    @rpc
    async def place(self, letter: str, language: str, alphabet: str) -> None:
        while self.frozen and not self.kept.state:
            await self.sleep(self.period_s / 10)  # the disk may know the letter already
        if not self.kept.state:
            self.frozen = True
            self.table = self.protocol(language, alphabet)
            self.kept.language, self.kept.alphabet = language, alphabet
            self.become(self.table.labels[self.table.initial[letter]])
            await self.keep()
            self.frozen = False

    @rpc
    async def look(self, hold: bool) -> Look:
        self.held = hold
        kept = self.kept
        says = bool(kept.state and self.table and self.table.output(from_text(kept.state)))
        return Look(kept.version, kept.state, says, kept.met, self.frozen)

    # -- meetings

    async def main(self) -> None:
        await self.recover()
        if self.incarnation:
            await self.all(*(self.rejoin(peer) for peer in self.peers))
        if self.kept.asked >= 0:
            await self.finish()  # what the last life left open
        self.frozen = False
        while True:
            await self.sleep(self.rng.expovariate(1.0 / self.period_s))
            if self.frozen or self.held or not self.kept.state or not self.peers:
                continue
            peer = self.partner()
            if peer < 0:
                continue
            self.frozen = True
            self.kept.number += 1
            self.kept.asked = peer
            if self.table is not None and not self.table.one_way:
                await self.keep()  # the answer may change this agent, so it must be fetched
            await self.finish()
            self.frozen = False

    def partner(self) -> int:
        """Whom to meet: anybody, or a neighbour where only neighbours meet; -1 for nobody."""
        if self.table is None or self.table.order != "+1":
            return int(self.rng.choice(self.peers))
        peer = self.id + (1 if self.rng.random() < 0.5 else -1)
        return peer if peer in self.peers else -1

    async def finish(self) -> None:
        """Put the open question until it is answered, and take the answer."""
        while True:
            try:
                async with self.deadline(self.patience_s):
                    told = await self.ask(
                        self.kept.asked, MeetingAgent.meet, self.kept.number, self.kept.state
                    )
                break
            except DeadlineExceeded:
                continue
        self.kept.asked = -1
        if told not in (BUSY, self.kept.state):
            self.become(from_text(told))
            await self.keep()

    @rpc
    async def meet(self, number: int, state: str, sender: int) -> str:
        """The other's half of a meeting: both new states are made here, at once."""
        last, told = self.kept.answers.get(sender, (-1, BUSY))
        if number <= max(last, self.refused.get(sender, -1)):
            return told if number == last else BUSY
        if self.frozen or self.held or not self.kept.state or self.table is None:
            self.refused[sender] = number
            return BUSY
        self.frozen = True
        theirs, mine = self.outcome(from_text(state), from_text(self.kept.state), sender)
        changed = to_text(mine) != self.kept.state
        if changed:
            self.become(mine)
        self.kept.met += 1
        told = to_text(theirs)
        self.kept.answers[sender] = (number, told)
        if changed or not self.table.one_way:
            await self.keep()
        self.frozen = False
        return told

    async def rejoin(self, peer: int) -> None:
        """After a restart: no question from before it, of either side, may still take effect."""
        while True:
            try:
                async with self.deadline(self.patience_s):
                    number = await self.ask(peer, MeetingAgent.returned, self.incarnation)
                break
            except DeadlineExceeded:
                continue
        self.refused[peer] = max(number, self.refused.get(peer, -1))

    @rpc
    async def returned(self, life: int, sender: int) -> int:
        """Refuse what the sender asked in earlier lives; gives the number of one's own last."""
        self.refused[sender] = max(life * LIFE, self.refused.get(sender, -1))
        while not self.read:
            await self.sleep(self.period_s / 10)
        return self.kept.number

    def outcome(self, theirs: Label, mine: Label, sender: int) -> tuple[Label, Label]:
        """What a meeting makes of (the one who asked, me)."""
        assert self.table is not None
        if self.table.one_way:  # the asked one observes, since the asking one is frozen
            seen = self.table.one(EARLIER if sender < self.id else LATER, mine, theirs)
            return theirs, seen[0]
        if self.table.order and sender > self.id:
            first, second = self.table.one(LATER, mine, theirs)
            return second, first
        return self.table.one(LATER if self.id > sender else EARLIER, theirs, mine)
