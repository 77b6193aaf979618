"""What a verifier answers: a verdict, its counterexample, and how it came about."""

from __future__ import annotations

from dataclasses import dataclass, field

from orrery.systems.protocols.taco.trace import Counterexample

SAFE, UNSAFE, UNKNOWN, UNSATISFIABLE = "safe", "unsafe", "unknown", "unsatisfiable"
VERDICTS = (SAFE, UNSAFE, UNKNOWN, UNSATISFIABLE)


@dataclass(frozen=True)
class Answer:
    """The verdict on one property; two answers are equal when their verdicts are.

    `unsatisfiable` says that no parameters meet the assumptions, so that there are no runs at all.
    `procedures` lists (procedure, verdict) of each that was tried; `work` counts what the answer
    cost: checks of the solver, states of an enumeration, walks of a simulation.
    """

    verdict: str
    counterexample: Counterexample | None = field(default=None, compare=False)
    reason: str = field(default="", compare=False)
    procedures: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    work: int = field(default=0, compare=False)
    units: int = field(default=0, compare=False)
