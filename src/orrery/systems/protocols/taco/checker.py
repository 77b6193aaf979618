"""TACO: proves or refutes safety of threshold automata for every number of processes at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

from orrery.base.errors import InternalError, UsageError
from orrery.parts import Count
from orrery.systems.protocols.problems.property_verification import Verifier
from orrery.systems.protocols.taco import library
from orrery.systems.protocols.taco.acs import check_acs
from orrery.systems.protocols.taco.answer import (
    SAFE,
    UNKNOWN,
    UNSAFE,
    UNSATISFIABLE,
    Answer,
)
from orrery.systems.protocols.taco.automaton import Automaton, Property, UnsupportedProperty
from orrery.systems.protocols.taco.segments import Walk
from orrery.systems.protocols.taco.smt import check_smt
from orrery.systems.protocols.taco.solver import OutOfBudget, Solver
from orrery.systems.protocols.taco.trace import Counterexample, why_bogus
from orrery.systems.protocols.taco.zcs import check_zcs

Method = Literal["auto", "all", "smt", "zcs", "acs"]
Check = Callable[[Automaton, Property, Solver], Counterexample | None]
CHECKS: dict[str, Check] = {"smt": check_smt, "zcs": check_zcs, "acs": check_acs}


class Taco(Verifier):
    """Proves or refutes safety properties of threshold automata for every number of processes.

    Paper: "TACO: A Toolsuite for the Verification of Threshold Automata", 2026.

    How it works. An automaton has locations, shared message counters, parameters under a resilience
    condition, and rules with linear thresholds as guards; a property is a formula such as
    `(V1 == 0) -> [](AC == 0)`. Three procedures answer:

    - `smt`: where counts only grow, a run with k guards falls into k + 1 stretches; one formula of
      linear arithmetic speaks for all runs and all parameters.
    - `zcs`: counts become intervals between thresholds, for each order of thresholds that the
      assumptions allow; locations become empty or not. Backward from the bad states, then every
      abstract path, shortest first, is held against the solver.
    - `acs`: the same with whole numbers of processes, by smallest vectors; it refuses properties
      that are broken only where a location is empty.

    Where a rule resets or decrements a counter, `smt` refuses, and `zcs` and `acs` are
    semi-decisions: what the abstraction excludes is safe, what a real path reaches is unsafe, and
    when the budget is spent the verdict is `unknown`. A counterexample gives the parameters, the
    start and a schedule, and is checked against the plain semantics before it is handed out.

    Knobs: `method`, "auto" (smt where it may, then zcs), "all" (every procedure that takes the
    question; a disagreement is an error) or one of "smt", "zcs", "acs"; `budget`, the solver's
    resource units for one procedure on one question (a core does about 1e5 to 1e6 of them in a
    second).

    Cost: the formula of `smt` has O(k (rules + locations)) variables; the paths of `zcs` and `acs`
    are at most the chains of the product of the intervals, exponential in the number of thresholds.

    **Differs from the paper.** ZCS keeps its sets as antichains of cubes, not as BDDs. A path is a
    sequence of interval contexts in which the firings within a context are counted, not a sequence
    of single rules; for growing counts this makes both searches complete. ZCS and ACS share the
    graph of contexts and the search over paths, and differ in what they keep of the locations.
    Before the paths, the balance of all firings rules out contexts in which none can end badly. The
    time-out is a budget of solver work, so that a verdict does not depend on how busy the machine
    is. Liveness and the TLA+ front end are not covered: such properties are refused by name.

    >>> from orrery.systems.protocols.taco import library
    >>> Taco()(library.automaton("strb"), "unforgeability").verdict
    'safe'
    """

    method: Method = "auto"
    budget: Count = 10_000_000

    def __call__(self, automaton: Automaton, name: str = "") -> Answer:
        asked = asked_property(automaton, name)
        void = self._void(automaton)
        if void:
            return Answer(UNSATISFIABLE, reason=void)
        if self.method == "all":
            return self._all(automaton, asked)
        if self.method == "auto":
            return self._one("smt" if automaton.monotone else "zcs", automaton, asked)
        return self._one(self.method, automaton, asked)

    def _void(self, automaton: Automaton) -> str:
        """Why there is no run at all, or ""."""
        solver = Solver()
        walk = Walk(solver, automaton)
        core = solver.fresh()
        core.add(*(each >= 0 for each in walk.parameters.values()))
        core.add(solver.formula(automaton.assumptions, walk.parameters))
        if not solver.check(core):
            return f"no parameters meet the assumptions of {automaton.name}"
        core.add(*walk.start())
        if not solver.check(core):
            return f"no configuration meets the inits of {automaton.name} under its assumptions"
        return ""

    def _one(self, method: str, automaton: Automaton, asked: Property) -> Answer:
        solver = Solver(self.budget)
        procedure = method if automaton.monotone else f"{method} (semi-decision)"
        try:
            found = CHECKS[method](automaton, asked, solver)
        except OutOfBudget:
            verdict, run = UNKNOWN, None
            reason = f"{procedure} spent its budget of {self.budget} units; raise budget"
        else:
            verdict, run = (SAFE, None) if found is None else (UNSAFE, found)
            reason = f"{procedure}, {solver.checks} checks"
        if run is not None:
            bogus = why_bogus(automaton, asked, run)
            if bogus:
                raise InternalError(f"{procedure} on {automaton.name}.{asked.name}: {bogus}: {run}")
        return Answer(
            verdict, run, reason, ((procedure, verdict),), work=solver.checks, units=solver.spent
        )

    def _all(self, automaton: Automaton, asked: Property) -> Answer:
        """Every procedure that takes the question; those that decide must agree."""
        made: list[Answer] = []
        refusals = []
        for method in CHECKS:
            try:
                made.append(self._one(method, automaton, asked))
            except UnsupportedProperty as refusal:
                refusals.append(str(refusal))
        if not made:
            raise UnsupportedProperty("; ".join(refusals))
        procedures = tuple(pair for answer in made for pair in answer.procedures)
        words = sorted({answer.verdict for answer in made} - {UNKNOWN})
        if len(words) > 1:
            raise InternalError(f"on {automaton.name}.{asked.name} the procedures differ: "
                                f"{dict(procedures)}")  # fmt: skip
        runs = [answer.counterexample for answer in made if answer.counterexample is not None]
        shortest = min(runs, key=lambda run: len(run.schedule)) if runs else None
        reason = "; ".join([*(answer.reason for answer in made), *refusals])
        return Answer(
            words[0] if words else UNKNOWN, shortest, reason, procedures,
            work=sum(answer.work for answer in made), units=sum(answer.units for answer in made),
        )  # fmt: skip

    def reference(self, automaton: Automaton, name: str = "") -> Answer:
        """Enumeration of every run for small parameters; enough for the automata of `samples`."""
        from orrery.systems.protocols.baselines.explicit_state import ExplicitState

        found = ExplicitState(most_n=4)(automaton, name)
        return Answer(SAFE) if found.verdict == UNKNOWN else found

    def samples(self, rng: Any) -> Iterable[tuple[Any, ...]]:
        yield library.automaton("strb"), "unforgeability"
        yield library.automaton("strb"), "may_accept"
        yield library.automaton("frb"), "unforgeability"
        yield library.automaton("nbac"), "agreement"
        yield library.automaton("strb"), "no such property"


def asked_property(automaton: Automaton, name: str) -> Property:
    """The property of that name, if it can be judged at all."""
    if not isinstance(automaton, Automaton):
        raise UsageError(f"{automaton!r:.40} is no automaton; read one with parse(text)")
    if not isinstance(name, str):
        raise UsageError(f"property {name!r:.40} is no name; give the name of a specification")
    asked = automaton.property_named(name)
    if asked.refused:
        raise UnsupportedProperty(
            f"{automaton.name}.{asked.name} cannot be judged: {asked.refused}; "
            "state it as (start) -> [](invariant)"
        )
    return asked
