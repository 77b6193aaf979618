"""The problem `property_verification`: does a threshold automaton keep its properties for every n?

The port is `Verifier`, a routine: an automaton and the name of a property give an `Answer`. The
questions come from a library of classic algorithms, and from a generator for as many random
automata as are asked for. The checker trusts nobody: a counterexample must follow the plain
semantics to a bad configuration, what is called safe must survive enumeration for small parameters,
and where the literature knows the verdict, the answer may not contradict it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from orrery.base.errors import InternalError, KnobError, PartError, did_you_mean
from orrery.base.rand import Stream
from orrery.base.violation import Violation
from orrery.parts import Count, Driver, Metric, Outcome, Problem, Routine, Whole
from orrery.systems.protocols.taco import library
from orrery.systems.protocols.taco.answer import (
    SAFE,
    UNKNOWN,
    UNSAFE,
    UNSATISFIABLE,
    VERDICTS,
    Answer,
)
from orrery.systems.protocols.taco.automaton import Automaton, UnsupportedProperty
from orrery.systems.protocols.taco.generate import random_automaton
from orrery.systems.protocols.taco.trace import why_bogus
from orrery.world import World


class Verifier(Routine):
    """The port: `verifier(automaton, name)` gives an `Answer` on the property of that name."""

    def __call__(self, automaton: Automaton, name: str = "") -> Answer:
        raise PartError(f"{type(self).__name__} has no __call__(automaton, name); write it")


class PropertyVerification(Problem):
    """Judge every property of some classic automata, and of random ones.

    Knobs: `automata`, names from the library; `drawn`, how many random automata besides, and
    `drawn_extended`, how many with resets or decrements; `most_n`, up to which parameters the
    checker enumerates what was called safe.

    >>> PropertyVerification(automata=("strb",)).questions(seed=0)[0][0]
    'strb.unforgeability'
    """

    automata: tuple[str, ...] = ("strb", "naive_voting", "tickets")
    drawn: Whole = 1
    drawn_extended: Whole = 0
    most_n: Count = 3

    trial: ClassVar[Mapping[str, Any]] = {"automata": ("naive_voting",)}
    port: ClassVar[type] = Verifier
    unique_outcome: ClassVar[bool] = True
    metrics: ClassVar[Mapping[str, Metric]] = {
        "decided": Metric("", "higher", "share of the questions answered safe or unsafe"),
        "proved": Metric("", "higher", "share of the questions answered safe, for every n"),
        "refuted": Metric("", "", "share of the questions answered unsafe, with a run"),
        "procedures": Metric("", "higher", "different procedures that decided some question"),
        "steps": Metric("", "lower", "mean length of the counterexamples"),
        "refused": Metric("", "lower", "share of the questions that were refused by name"),
    }

    def world(self) -> World:
        return World.lan(1)

    def host(self, part: Any, world: World) -> Mapping[str, Any]:
        for name in self.automata:
            if name not in library.names():
                fix = did_you_mean(name, library.names())
                raise KnobError("PropertyVerification.automata", f"no automaton {name!r}", fix)
        return super().host(part, world)

    def questions(self, seed: int) -> list[tuple[str, Automaton, str, str]]:
        """(label, automaton, property, known verdict or "") of each question of a run."""
        found = [
            (f"{name}.{asked}", library.automaton(name), asked, verdict)
            for name in self.automata
            for asked, verdict in library.expected(name).items()
        ]
        for i, (label, automaton) in enumerate(self._drawn(seed)):
            found.append((f"{label} {i}.drawn", automaton, "drawn", ""))
        return found

    def _drawn(self, seed: int) -> Iterator[tuple[str, Automaton]]:
        rng = Stream(seed, "property_verification", "automata")
        for i in range(self.drawn + self.drawn_extended):
            extended = i >= self.drawn
            yield "extended" if extended else "drawn", random_automaton(rng, extended=extended)

    async def drive(self, driver: Driver) -> list[Any]:
        # The seed of the run decides the draw; the driver's stream is the same in every engine.
        seed = driver.rng.getrandbits(32)
        answers: list[Any] = []
        for label, automaton, name, known in self.questions(seed):
            try:
                answer = driver.part(automaton, name)
            except (UnsupportedProperty, InternalError) as failure:
                # A refusal is an honest answer; an internal error is a violation, see `check`.
                answers.append((label, automaton, name, known, None, failure))
            else:
                answers.append((label, automaton, name, known, answer, None))
        return answers

    def check(self, outcome: Outcome) -> list[Violation]:
        found: list[Violation] = []
        for label, automaton, name, known, answer, failure in outcome.driven or ():
            if isinstance(failure, InternalError):
                found.append(Violation(kind="verifier_broke", message=f"{label}: {failure}"))
            if answer is not None:
                wrong = self.wrong(automaton, name, known, answer)
                if wrong:
                    kind, message = wrong
                    found.append(Violation(kind=kind, message=f"{label}: {message}"))
        return found

    def wrong(
        self, automaton: Automaton, name: str, known: str, answer: Answer
    ) -> tuple[str, str] | None:
        """What is wrong with an answer, as (kind, sentence), or None."""
        asked = automaton.property_named(name)
        if answer.verdict not in VERDICTS:
            return "no_verdict", f"answers {answer.verdict!r}; known: {', '.join(VERDICTS)}"
        if answer.verdict == UNSAFE:
            if answer.counterexample is None:
                return "no_counterexample", "unsafe, but no run is given"
            bogus = why_bogus(automaton, asked, answer.counterexample)
            if bogus:
                return "bogus_counterexample", bogus
        if known in (SAFE, UNSAFE) and answer.verdict not in (known, UNKNOWN):
            return "wrong_verdict", f"answers {answer.verdict}, and it is known to be {known}"
        if answer.verdict in (SAFE, UNSATISFIABLE):
            from orrery.systems.protocols.baselines.explicit_state import ExplicitState

            seen = ExplicitState(most_n=self.most_n)(automaton, name)
            if seen.verdict == UNSAFE:
                said = f"answers {answer.verdict}, yet this run breaks it: {seen.counterexample}"
                return "missed_violation", said
        return None

    def measure(self, outcome: Outcome) -> dict[str, float]:
        rows = outcome.driven or []
        answers = [row[4] for row in rows if row[4] is not None]
        count = max(len(rows), 1)
        verdicts = [answer.verdict for answer in answers]
        runs = [a.counterexample for a in answers if a.counterexample is not None]
        procedures = {
            procedure
            for answer in answers
            for procedure, verdict in answer.procedures
            if verdict in (SAFE, UNSAFE)
        }
        return {
            "decided": (verdicts.count(SAFE) + verdicts.count(UNSAFE)) / count,
            "proved": verdicts.count(SAFE) / count,
            "refuted": verdicts.count(UNSAFE) / count,
            "procedures": float(len(procedures)),
            "steps": sum(len(run.schedule) for run in runs) / len(runs) if runs else 0.0,
            "refused": (len(rows) - len(answers)) / count,
        }

    def decisions(self, outcome: Outcome) -> dict[str, str]:
        """The verdict on each question."""
        rows = outcome.driven or []
        return {row[0]: row[4].verdict if row[4] is not None else "refused" for row in rows}
