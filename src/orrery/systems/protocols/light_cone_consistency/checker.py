"""The judge: every model of the table, the strongest, the next one up and what refutes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from orrery.base.rand import Stream
from orrery.check import History
from orrery.parts import Count
from orrery.systems.protocols.light_cone_consistency import readability
from orrery.systems.protocols.light_cone_consistency.brute import exists
from orrery.systems.protocols.light_cone_consistency.cone import Cone
from orrery.systems.protocols.light_cone_consistency.coordinates import (
    NAMED,
    Config,
    next_stronger,
    strongest,
)
from orrery.systems.protocols.light_cone_consistency.existence import explains
from orrery.systems.protocols.light_cone_consistency.traces import Finding, Trace, place
from orrery.systems.protocols.problems.history_cases import Case, case_of, random_case
from orrery.systems.protocols.problems.history_model import HistoryJudge, Judgement

Decide = Callable[[Cone, Config], bool | None]


class LightCone(HistoryJudge):
    """Places a history or a trace in the coordinates (C, O, R, F) and names the model.

    "Light Cone Consistency: Closure, Ordering, and the Single-Observer Boundary",
    arXiv 2605.09114v2, 2026.

    Messages form a causal graph that grows; an observer sees a part of it, in an order. C says
    which dependencies of a visible write have to be visible, O how the visible writes are
    ordered. A *history* (what clients asked and were told) is judged by whether views exist that
    explain every answer: `judge(case)`. A *trace* (with the views that replicas really had) is
    judged directly, in near-linear time: `judge.place(trace)`. Either way the answer is the
    strongest configuration, the nearest named model, and operations that refute the next one.

    Costs for n operations: sorted orders O(n) masks of n bits; one log for each observer a few
    passes of that for each; one log for all (sequential, linearizable) is NP-hard and ends, as
    None, after `budget` states. Values written more than once multiply this by the number of
    maps from reads to writes, at most 4,096.

    Knobs: `budget` (states of the search), `shrink` (operations up to which a counter-example is
    made minimal by leaving out one operation at a time), `coupling` (whether the rule for who
    reads whose data counts the closure that an order supplies; off, the two parts are compared
    alone).

    **Differs from the paper.** We had its abstract, not its formulas: the definitions are ours.
    A configuration's order is a *sort* or a *log*; only a log supplies closure. `grow` relates
    two views of one observer and is left out of the order of readability, which speaks of single
    views. Timeliness R has three values (never, settled, real time), F is the register. Causality
    counts what was read, not all that was visible at the time.

    >>> from orrery.systems.protocols.problems.history_cases import case_of
    >>> stale = case_of([(0, "write", "x", 1), (1, "read", "x", None)])
    >>> told = LightCone()(stale)
    >>> told.nearest, told.next_stronger, told.counterexample
    ('sequential', 'linearizable', (0, 1))
    """

    budget: Count = 200_000
    shrink: Count = 40
    coupling: bool = True

    def __call__(self, case: Case) -> Judgement:
        """Judge a history; see the class."""
        return self._judge(case, lambda cone, config: explains(cone, config, self.budget))

    def reference(self, case: Case) -> Judgement:
        """The same by trying out every order and every view (at most five writes)."""
        return self._judge(case, exists)

    def samples(self, rng: Stream) -> Iterable[tuple[Case]]:
        """An empty history, and small random ones."""
        yield (case_of([]),)
        for _ in range(12):
            yield (random_case(rng, 2 + rng.below(4), processes=2),)

    def verdicts(self, case: Case) -> dict[str, bool | None]:
        """Every named model, without the search for a counter-example."""
        cone = Cone(case)
        return {name: explains(cone, config, self.budget) for name, config in NAMED.items()}

    def holds(self, case: Case, config: Config) -> bool | None:
        """Whether a history can be explained by one configuration, named or not."""
        return explains(Cone(case), config, self.budget)

    def place(self, trace: Trace) -> Finding:
        """Judge a trace with views: the strongest coordinates and what breaks the next ones."""
        return place(trace)

    def exceptions(self, table: str) -> list[str]:
        """Pairs of configurations against the published dichotomy, each with its witness."""
        return readability.exceptions(table)

    def misread(self, events: int, rng: Stream, graphs: int) -> list[str]:
        """Pairs that the symbolic rule gets wrong on random graphs of that many events."""
        return readability.misread(events, rng, graphs, coupling=self.coupling)

    # -- histories

    def _judge(self, case: Case, decide: Decide) -> Judgement:
        cone = Cone(case)
        verdicts = {name: decide(cone, config) for name, config in NAMED.items()}
        held = {name for name, said in verdicts.items() if said}
        failed = {name for name, said in verdicts.items() if said is False}
        best = strongest(held)
        above = next_stronger(held, failed)
        nearest = best[0] if best else ""
        return Judgement(
            verdicts=verdicts, strongest=best, nearest=nearest,
            coordinates=str(NAMED[nearest]) if nearest else "",
            next_stronger=above,
            counterexample=self._shrunk(case, NAMED[above], decide) if above else (),
        )  # fmt: skip

    def _shrunk(self, case: Case, config: Config, decide: Decide) -> tuple[int, ...]:
        """Operations that refute a configuration by themselves, none of them needless.

        Reads go first, then writes that no remaining read needs; long histories are first cut to
        the shortest prefix that already fails.
        """
        kept = _prefix(case, config, decide)
        if len(kept) > self.shrink:
            return tuple(kept)
        h = case.history
        for f in ("read", "write"):
            for i in [i for i in kept if h.fs[i] == f]:
                fewer = [other for other in kept if other != i]
                needed = {(h.keys[r], h.results[r]) for r in fewer if h.fs[r] == "read"}
                if f == "write" and (h.keys[i], h.values[i]) in needed:
                    continue
                if decide(Cone(_part(case, fewer)), config) is False:
                    kept = fewer
        return tuple(kept)


def _part(case: Case, kept: list[int]) -> Case:
    """The case with some operations only; the settled marks follow."""
    ops = [case.history[i] for i in kept]
    by_call = sorted(range(len(kept)), key=lambda n: ops[n].call)
    marks = {new for new, n in enumerate(by_call) if kept[n] in case.settled}
    return Case(History.of(ops), frozenset(marks))


def _prefix(case: Case, config: Config, decide: Decide) -> list[int]:
    """The shortest prefix (by calls, with every write that it reads) that fails, by halving."""
    h = case.history
    calls = h.order()[0]
    whole = sorted((i for i in range(len(h)) if h.states[i] != "fail"), key=calls.__getitem__)
    low, high = 0, len(whole)

    def upto(n: int) -> list[int]:
        needed = {(h.keys[i], h.results[i]) for i in whole[:n] if h.fs[i] == "read"}
        later = [i for i in whole[n:]
                 if h.fs[i] == "write" and (h.keys[i], h.values[i]) in needed]  # fmt: skip
        return whole[:n] + later

    if config.time == "settled":
        return whole
    while high - low > 1:
        middle = (low + high) // 2
        if decide(Cone(_part(case, upto(middle))), config) is False:
            high = middle
        else:
            low = middle
    return upto(high)
