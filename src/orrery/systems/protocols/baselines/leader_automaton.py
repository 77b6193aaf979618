"""One leader reads all letters in order with a finite automaton, and tells everybody."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from orrery.base.errors import DeadlineExceeded, UsageError
from orrery.parts import Positive, rpc
from orrery.systems.protocols.ordered_population_protocols.regular import dfa_of
from orrery.systems.protocols.problems.languages import Formula, parse
from orrery.systems.protocols.problems.population_agent import Look, PopulationAgent

FILE = "letter"


class LeaderAutomaton(PopulationAgent):
    """A leader that runs a finite automaton over the line: the first node asks the others in turn.

    The yardstick for agents without identifiers: 2 (n - 1) questions, each with its answer, and the
    word is decided; but the leader must know everybody's name and place, and all wait for it.
    It decides regular languages: expressions in quotes, thresholds, remainders and combinations.

    Knobs: `period_s`, the pause before each question; `patience_s`, after which an unanswered one
    is repeated. This is textbook material and follows no particular paper.

    >>> LeaderAutomaton().accepts("'(ab)*' & #a >= 2", "ab")
    """

    period_s: Positive = 0.1
    patience_s: Positive = 0.5

    tolerates: ClassVar[tuple[str, ...]] = (
        "drop", "duplicate", "reorder", "restart", "pause", "partition",
    )  # fmt: skip

    def accepts(self, language: str, alphabet: str) -> None:
        Tracker(parse(language), alphabet)

    def settled(self, language: str, alphabet: str, states: list[str]) -> bool:
        return all(state.endswith(("yes", "no")) for state in states)

    def start(self) -> None:
        self.told: tuple[str, str, str] | None = None
        self.verdict: bool | None = None
        self.questions = 0

    @rpc
    async def place(self, letter: str, language: str, alphabet: str) -> None:
        if self.told is None:
            await self.disk.write(FILE, msgspec.json.encode((letter, language, alphabet)))
            await self.disk.fsync(FILE)
            self.told = (letter, language, alphabet)

    @rpc
    async def letter(self) -> str:
        """This node's letter, or nothing while it has none."""
        return self.told[0] if self.told else ""

    @rpc
    async def hear(self, verdict: bool) -> None:
        """The leader's verdict."""
        if verdict != self.verdict:
            self.verdict = verdict
            self.emit(says=verdict)

    @rpc
    async def look(self, hold: bool) -> Look:
        word = "" if self.verdict is None else "yes" if self.verdict else "no"
        state = f"{self.told[0]} {word}" if self.told else ""
        return Look(0, state, bool(self.verdict), self.questions, False)

    async def main(self) -> None:
        if self.disk.exists(FILE):
            kept = await self.disk.read(FILE)
            if kept:
                self.told = msgspec.json.decode(kept, type=tuple[str, str, str])
        if self.id == 0:
            await self.lead()
        elif self.incarnation:
            # It missed the verdict, perhaps; the leader knows whether there is one.
            await self.asked(0, LeaderAutomaton.remind)

    async def lead(self) -> None:
        while self.told is None:
            await self.sleep(0.01)
        first, language, alphabet = self.told
        tracker = Tracker(parse(language), alphabet)
        tracker.read(first)
        for node in self.peers:
            while not (letter := await self.asked(node, LeaderAutomaton.letter)):
                await self.sleep(0.01)
            tracker.read(letter)
        verdict = tracker.says()
        await self.hear(verdict)
        for node in self.peers:
            await self.asked(node, LeaderAutomaton.hear, verdict)

    @rpc
    async def remind(self, sender: int) -> None:
        """Tell the verdict again to one who has just restarted."""
        if self.verdict is not None:
            self.spawn(self.asked(sender, LeaderAutomaton.hear, self.verdict))

    async def asked(self, node: int, method: Any, *args: Any) -> Any:
        """Ask until there is an answer."""
        self.questions += 1
        await self.sleep(self.period_s)
        while True:
            try:
                async with self.deadline(self.patience_s):
                    return await self.ask(node, method, *args)
            except DeadlineExceeded:
                continue


class Tracker:
    """A finite automaton for a formula, read one letter at a time: one state for each atom."""

    def __init__(self, formula: Formula, alphabet: str) -> None:
        self.word, self.rest = formula[0], formula[1:]
        self.alphabet, self.state = alphabet, 0
        self.inside: list[Tracker] = []
        if self.word in ("and", "or", "not"):
            self.inside = [Tracker(one, alphabet) for one in self.rest]
        elif self.word == "regex":
            self.dfa = dfa_of(self.rest[0], alphabet)
        elif self.word not in ("at_least", "modulo"):
            raise UsageError(
                f"a leader's automaton does not take {self.word!r}; give a regular expression in "
                "quotes, #a >= k or #a % m = r"
            )

    def read(self, letter: str) -> None:
        """One letter more."""
        for one in self.inside:
            one.read(letter)
        if self.word == "regex":
            self.state = self.dfa.step[self.state][self.alphabet.index(letter)]
        elif self.word == "at_least":
            self.state = min(self.rest[1], self.state + (letter == self.rest[0]))
        elif self.word == "modulo":
            self.state = (self.state + (letter == self.rest[0])) % self.rest[1]

    def says(self) -> bool:
        """Whether what was read so far is in the language."""
        if self.word == "regex":
            return self.state in self.dfa.finals
        if self.word == "at_least":
            return self.state >= self.rest[1]
        if self.word == "modulo":
            return bool(self.state == self.rest[2])
        said = [one.says() for one in self.inside]
        return not said[0] if self.word == "not" else all(said) if self.word == "and" else any(said)
