"""The problem of naming what a history keeps: which consistency models hold, and which do not.

The port is a routine that judges one case. The problem makes random cases from the seed, asks the
part, and holds each verdict against classical checkers of one model each. Two further questions
are put only to parts that order whole configurations: whether their rule for who can read whose
data is right (`readability`), and whether that order splits into its two parts as published
(`dichotomy`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import msgspec

from orrery.base.errors import PartError
from orrery.base.rand import Stream
from orrery.base.violation import Violation
from orrery.parts import Count, Driver, Metric, Outcome, Problem, Routine
from orrery.systems.protocols.problems.history_cases import Case, random_case
from orrery.world import World

MODELS = (
    "linearizable", "sequential", "causal", "pram", "read_your_writes", "monotonic_reads",
    "monotonic_writes", "writes_follow_reads", "eventual",
)  # fmt: skip
"""The models that every judge decides."""


class Judgement(msgspec.Struct, kw_only=True):
    """What a judge says of a case: each model True, False, or None where its bound was reached.

    A judge with coordinates also gives the strongest models that hold, the nearest named one, the
    next stronger one that fails, and operations that refute it by themselves.
    """

    verdicts: dict[str, bool | None]
    strongest: tuple[str, ...] = ()
    nearest: str = ""
    coordinates: str = ""
    next_stronger: str = ""
    counterexample: tuple[int, ...] = ()


class HistoryJudge(Routine):
    """The port: `judge(case)` gives a `Judgement`."""

    def __call__(self, case: Case) -> Judgement:
        raise PartError(f"{type(self).__name__} judges nothing; write __call__(case)")

    def exceptions(self, table: str) -> list[str]:
        """Pairs of configurations against the published dichotomy, each with its witness."""
        raise PartError(f"{type(self).__name__} orders no configurations; ask for histories")

    def misread(self, events: int, rng: Stream, graphs: int) -> list[str]:
        """Pairs of configurations that a rule gets wrong on random graphs of that many events."""
        raise PartError(f"{type(self).__name__} orders no configurations; ask for histories")


class Tally(msgspec.Struct):
    """What a run of the problem found."""

    cases: int = 0
    verdicts: int = 0
    wrong: list[str] = []
    undecided: int = 0
    kept: int = 0
    exceptions: list[str] = []


class HistoryModel(Problem):
    """Which consistency models does a history keep?

    >>> HistoryModel(cases=5).cases
    5
    """

    port: ClassVar[type] = HistoryJudge
    unique_outcome: ClassVar[bool] = True
    metrics: ClassVar[Mapping[str, Metric]] = {
        "agreement": Metric("", "higher", "share of verdicts equal to the classical checker's"),
        "decided": Metric("", "higher", "share of verdicts that were given within their bounds"),
        "kept": Metric("", "", "share of verdicts that say the model holds"),
        "exceptions": Metric("", "lower", "pairs of configurations against the published order"),
    }

    ask: Literal["histories", "readability", "dichotomy"] = "histories"
    table: Literal["all", "logs"] = "all"
    cases: Count = 40
    ops: Count = 7
    processes: Count = 3
    keys: Count = 2

    def world(self) -> World:
        """One machine: nothing is sent."""
        return World.lan(1)

    async def drive(self, driver: Driver) -> Tally:
        """Ask the part; each case is drawn from the seed alone."""
        tally = Tally()
        rng = Stream.keyed(driver.rng.word())
        if self.ask == "dichotomy":
            tally.exceptions = driver.part.exceptions(self.table)
        elif self.ask == "readability":
            tally.exceptions = driver.part.misread(2 + rng.below(3), rng, self.cases)
        else:
            for _ in range(self.cases):
                size = 2 + rng.below(max(1, self.ops - 1))
                case = random_case(rng, size, self.processes, self.keys)
                self._compare(tally, case, driver.part(case))
        return tally

    def _compare(self, tally: Tally, case: Case, told: Judgement) -> None:
        # The oracle is a part of this room like any other; it is fetched where it is needed,
        # because it inherits from the port above.
        from orrery.systems.protocols.baselines.classical_checkers import ClassicalCheckers

        truth = ClassicalCheckers()(case).verdicts
        tally.cases += 1
        for model in MODELS:
            said = told.verdicts.get(model)
            tally.verdicts += 1
            tally.undecided += said is None
            tally.kept += said is True
            if said is not None and truth[model] is not None and said != truth[model]:
                ops = "; ".join(str(op) for op in case.history)
                tally.wrong.append(f"{model}: said {said}, is {truth[model]}: {ops}")

    def check(self, outcome: Outcome) -> list[Violation]:
        """A wrong verdict, or an exception to the published order."""
        tally = outcome.driven
        if not isinstance(tally, Tally):
            return [Violation(kind="unfinished", message="the cases were not all judged")]
        found = [Violation(kind="wrong_verdict", message=text) for text in tally.wrong]
        kind = "misread" if self.ask == "readability" else "not_reproduced"
        return found + [Violation(kind=kind, message=text) for text in tally.exceptions]

    def measure(self, outcome: Outcome) -> dict[str, float]:
        """How many verdicts agree, were decided, and say that a model holds."""
        tally = outcome.driven
        if not isinstance(tally, Tally):
            return {}
        all_verdicts = max(1, tally.verdicts)
        return {
            "agreement": 1.0 - len(tally.wrong) / all_verdicts,
            "decided": 1.0 - tally.undecided / all_verdicts,
            "kept": tally.kept / all_verdicts,
            "exceptions": float(len(tally.exceptions)),
        }

    def decisions(self, outcome: Outcome) -> Any:
        """The counts, which no engine may change."""
        tally = outcome.driven
        return msgspec.to_builtins(tally) if isinstance(tally, Tally) else None
