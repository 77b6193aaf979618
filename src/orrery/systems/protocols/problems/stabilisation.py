"""The problem `stabilisation`: agents that meet at random must come to agree on one bit, for good.

Each agent holds one letter of a word; the question is whether the word is in a language. A run is
right when all agents say the right thing and can be proved never to change it: the driver holds
the population for a moment, reads all states, and asks the part whether that configuration is
stable. With `proof` the checker also explores every configuration that the word can reach.

The same protocols run without nodes in `population_runs` (a million agents, random schedules) and
are checked without schedules in `population_graph` (all fair runs of a short word).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from orrery.base.errors import DeadlineExceeded, KnobError, UsageError
from orrery.base.rand import Stream
from orrery.base.violation import Violation
from orrery.parts import (
    Driver,
    Metric,
    NonNegative,
    Outcome,
    Positive,
    Problem,
)
from orrery.systems.protocols.common import last_fault_end_s
from orrery.systems.protocols.problems.languages import contains, letters_of, parse
from orrery.systems.protocols.problems.population_agent import (
    Look,
    MeetingAgent,
    PopulationAgent,
)
from orrery.systems.protocols.problems.population_graph import decide
from orrery.systems.protocols.problems.population_tables import check_word
from orrery.world import World

__all__ = ["MeetingAgent", "PopulationAgent", "Stabilisation"]

ANY = "random"
PROOF_AGENTS = 8


def random_formula(rng: Stream, alphabet: str) -> str:
    """One or two random atoms over rankers of one or two steps, each perhaps negated."""

    def ranker() -> str:
        steps = 1 + rng.below(2)
        return "".join(rng.choice("XY") + rng.choice(alphabet) for _ in range(steps))

    def atom() -> str:
        kind = rng.below(3)
        first = ranker()
        text = (
            first if kind == 0
            else f"{first} {rng.choice('<=>')} {ranker()[:2]}" if kind == 1
            else f"{rng.choice('XY')}.:{rng.choice(alphabet)}"
        )  # fmt: skip
        return f"!({text})" if rng.random() < 0.5 else text

    first = atom()
    return first if rng.random() < 0.7 else f"{first} {rng.choice('&|')} {atom()}"


class Stabilisation(Problem):
    """Give each agent a letter and see whether all agree on the word's membership, for good.

    Knobs: `language`, a formula (see `languages`), or "random" for a ranker formula drawn from the
    seed; `alphabet`; `word`, one letter for each node, or "" for a random one; `poll_s`, how often
    the population is looked at; `budget_s`, after which the word is undecided, which is never
    right; `watch_s`, for how long the proved consensus is watched; `proof`, whether the checker
    also explores all configurations of the word (up to 8 agents).

    >>> Stabilisation(language="X.:a", word="abba").truth("X.:a", "abba")
    True
    """

    language: str = "#a >= 2"
    alphabet: str = "ab"
    word: str = ""
    poll_s: Positive = 0.5
    budget_s: Positive = 600.0
    watch_s: NonNegative = 0.5
    proof: bool = False

    port: ClassVar[type] = PopulationAgent
    unique_outcome: ClassVar[bool] = True
    metrics: ClassVar[Mapping[str, Metric]] = {
        "right": Metric("", "higher", "1 if the word was decided, and rightly"),
        "decided": Metric("", "higher", "1 if a stable consensus was proved within the budget"),
        "time_to_consensus_s": Metric("s", "lower", "until an agent last changed what it says"),
        "interactions": Metric("", "lower", "meetings until the consensus was proved"),
        "interactions_per_agent": Metric("", "lower", "the same for each agent"),
        "messages_per_agent": Metric("", "lower", "all messages, the driver's looks included"),
        "configurations": Metric("", "", "reachable ones of the word, where `proof` is set"),
    }

    def world(self) -> World:
        return World.lan(len(self.word) or 6)

    def truth(self, language: str, word: str) -> bool:
        """Whether the word is in the language, by the definition."""
        return contains(parse(language), word)

    def host(self, part: Any, world: World) -> Mapping[str, Any]:
        if not self.alphabet or not self.alphabet.isalpha() or not self.alphabet.islower():
            problem = f"{self.alphabet!r} is no alphabet"
            raise KnobError("Stabilisation.alphabet", problem, "give small letters, as ab")
        try:
            if self.language != ANY:
                strange = set(letters_of(parse(self.language))) - set(self.alphabet)
                if strange:
                    raise UsageError(f"letter {min(strange)!r} is not in {self.alphabet!r}")
                if isinstance(part, PopulationAgent):
                    part.accepts(self.language, self.alphabet)
            if self.word:
                check_word(self.word, self.alphabet)
        except UsageError as error:
            fix = "see orrery.systems.protocols.problems.languages"
            raise KnobError("Stabilisation.language", str(error), fix) from None
        if self.word and len(self.word) != world.size:
            problem = f"{len(self.word)} letters for {world.size} nodes"
            raise KnobError("Stabilisation.word", problem, "give one letter for each node, or none")
        if self.proof and world.size > PROOF_AGENTS:
            problem = f"a proof for {world.size} agents would take too long"
            raise KnobError("Stabilisation.proof", problem, f"use at most {PROOF_AGENTS} nodes")
        return super().host(part, world)

    # -- the workload

    async def drive(self, driver: Driver) -> dict[str, Any]:
        rng, size = driver.rng, len(driver.nodes)
        language = random_formula(rng, self.alphabet) if self.language == ANY else self.language
        word = self.word or "".join(rng.choice(self.alphabet) for _ in range(size))
        driver.emit(language=language, word=word)
        await driver.all(*(self._place(driver, n, word[n], language) for n in driver.nodes))
        calm_s = last_fault_end_s(driver.world)
        while driver.now < calm_s + self.budget_s:
            await driver.sleep(self.poll_s)
            first = await self._looks(driver, hold=True)
            second = await self._looks(driver, hold=True)
            done = driver.now >= calm_s and _quiet(first, second)
            if done and len({look.says for look in second}) == 1:
                states = [look.state for look in second]
                if driver.part.settled(language, self.alphabet, states):
                    return await self._watch(driver, second)
            await self._looks(driver, hold=False)
        return {"answer": None, "met": 0}

    async def _watch(self, driver: Driver, looks: list[Look]) -> dict[str, Any]:
        """A proof may be wrong where a node is: let it run on, and look once more."""
        met = sum(look.met for look in looks)
        await self._looks(driver, hold=False)
        await driver.sleep(self.watch_s)
        after = await self._looks(driver, hold=True)
        kept = all(look.says == looks[0].says for look in after)
        return {"answer": looks[0].says, "met": met, "kept": kept}

    async def _place(self, driver: Driver, node: int, letter: str, language: str) -> None:
        await _until_heard(driver, node, PopulationAgent.place, letter, language, self.alphabet)

    async def _looks(self, driver: Driver, hold: bool) -> list[Look]:
        asked = (_until_heard(driver, n, PopulationAgent.look, hold) for n in driver.nodes)
        return await driver.all(*asked)

    # -- the verdict

    def _told(self, outcome: Outcome) -> tuple[str, str, dict[str, Any]]:
        for record in outcome.records:
            if "word" in record.values:
                driven = outcome.driven or {"answer": None, "met": 0}
                return record.values["language"], record.values["word"], driven
        return self.language, self.word, {"answer": None, "met": 0}

    def check(self, outcome: Outcome) -> list[Violation]:
        language, word, driven = self._told(outcome)
        if not word:
            return [Violation("undecided", "the run ended before the word was given out", None)]
        right, found = self.truth(language, word), []
        if driven["answer"] is None:
            text = f"{word!r} in {language!r} is undecided after {outcome.seconds:g} s"
            found.append(Violation("undecided", text, word, time_s=outcome.seconds))
        elif driven["answer"] != right:
            text = f"all agents say {driven['answer']} of {word!r} in {language!r}"
            found.append(Violation("wrong_consensus", text, word, time_s=outcome.seconds))
        if not driven.get("kept", True):
            text = f"a consensus on {word!r} was proved stable and then left"
            found.append(Violation("left_consensus", text, word, time_s=outcome.seconds))
        if self.proof and isinstance(outcome.part, MeetingAgent):
            proved = decide(outcome.part.protocol(language, self.alphabet), word)
            if proved.answer != ("yes" if right else "no"):
                text = f"{word!r} in {language!r}: the configuration graph says {proved.answer}"
                found.append(Violation("not_proved", text, proved.lasso, time_s=outcome.seconds))
        return found

    def measure(self, outcome: Outcome) -> dict[str, float]:
        language, word, driven = self._told(outcome)
        answer, size = driven["answer"], outcome.world.size
        changes = [time_s for time_s, _, _ in outcome.emitted("says")]
        count = 0
        if self.proof and word and isinstance(outcome.part, MeetingAgent):
            count = decide(outcome.part.protocol(language, self.alphabet), word).configurations
        return {
            "right": float(answer is not None and answer == self.truth(language, word)),
            "decided": float(answer is not None),
            "time_to_consensus_s": max(changes, default=0.0),
            "interactions": float(driven["met"]),
            "interactions_per_agent": driven["met"] / size,
            "messages_per_agent": outcome.messages / size,
            "configurations": float(count),
        }

    def decisions(self, outcome: Outcome) -> dict[str, Any]:
        """The word and what was agreed on it."""
        language, word, driven = self._told(outcome)
        return {"language": language, "word": word, "answer": driven["answer"]}


def _quiet(first: list[Look], second: list[Look]) -> bool:
    """Whether all states were held at one moment: nothing changed between two readings."""
    same = zip(first, second, strict=True)
    return all(a == b and not b.open and b.state for a, b in same)


async def _until_heard(driver: Driver, node: int, method: Any, *args: Any) -> Any:
    """Ask again and again; a node may be down, paused or cut off for a while."""
    while True:
        try:
            async with driver.deadline(0.5):
                return await driver.ask(node, method, *args)
        except DeadlineExceeded:
            await driver.sleep(0.05)
