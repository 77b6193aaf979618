"""Explicit-state enumeration: every configuration of every run, for small fixed parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from orrery.base.errors import UsageError
from orrery.parts import Count
from orrery.systems.protocols.problems.property_verification import Verifier
from orrery.systems.protocols.taco import library
from orrery.systems.protocols.taco.answer import UNKNOWN, UNSAFE, UNSATISFIABLE, Answer
from orrery.systems.protocols.taco.automaton import (
    Automaton,
    Property,
    UnsupportedProperty,
    split_atom,
)
from orrery.systems.protocols.taco.forms import All, Atom, Formula, atoms, holds
from orrery.systems.protocols.taco.trace import Counterexample

Rows = npt.NDArray[np.int64]
# A counter that no saturation bounds is followed up to here, and the search says so.
MOST_COUNT = 64


class ExplicitState(Verifier):
    """Enumerates every reachable configuration for all parameters up to `most_n`.

    The classic of model checking (Clarke and Emerson, 1981; Queille and Sifakis, 1982), breadth
    first, with counters in place of processes, so that processes in one location are one number.
    It finds a shortest violation where there is a small one, and can never prove: without a
    violation the answer is `unknown`. Counts that only grow are held at the largest threshold,
    beyond which no guard can tell them apart.

    Knobs: `most_n`, the largest value of any parameter; `most_states` for one valuation, after
    which it gives up on it. Cost: up to C(n + L - 1, L - 1) placements of n processes in L
    locations, times the values of the counters.
    Differs from the papers: safety only, no temporal logic.

    >>> from orrery.systems.protocols.taco import library
    >>> str(ExplicitState()(library.automaton("strb"), "may_accept").counterexample)
    'n = 1, t = 0, f = 0; start: V1 = 1; then rules 0 2'
    """

    most_n: Count = 5
    most_states: Count = 1_000_000

    def __call__(self, automaton: Automaton, name: str = "") -> Answer:
        asked = asked_of(automaton, name)
        states, tried, cut = 0, 0, False
        for parameters in valuations(automaton, self.most_n):
            tried += 1
            search = Search(automaton, asked, parameters, self.most_states)
            found = search.run()
            states, cut = states + search.states, cut or search.cut
            if found is not None:
                return Answer(UNSAFE, found, f"{states} states", (("explicit", UNSAFE),), states)
        if not tried:
            said = f"no parameters up to {self.most_n} meet the assumptions of {automaton.name}"
            return Answer(UNSATISFIABLE, reason=said)
        said = f"no violation up to {self.most_n} in {states} states" + (", cut short" * cut)
        return Answer(UNKNOWN, None, said, (("explicit", UNKNOWN),), states)

    def reference(self, automaton: Automaton, name: str = "") -> Answer:
        """The same, one configuration at a time, in plain Python."""
        from orrery.systems.protocols.taco.trace import breaks, fire, may_fire

        asked = asked_of(automaton, name)
        tried = False
        for parameters in valuations(automaton, self.most_n):
            tried = True
            for start in starts(automaton, parameters):
                first = {**parameters, **start}
                seen, todo = {tuple(first.values())}, [first]
                while todo:
                    here = todo.pop()
                    if breaks(asked, first, here):
                        return Answer(UNSAFE)
                    for rule in automaton.live_rules:
                        if may_fire(rule, here):
                            after = fire(rule, here)
                            if tuple(after.values()) not in seen:
                                seen.add(tuple(after.values()))
                                todo.append(after)
        return Answer(UNKNOWN if tried else UNSATISFIABLE)

    def samples(self, rng: Any) -> Iterable[tuple[Any, ...]]:
        yield library.automaton("strb"), "unforgeability"
        yield library.automaton("naive_voting"), "agreement"
        yield library.automaton("frb"), "may_deliver"
        yield library.automaton("strb"), "no such property"


def asked_of(automaton: Automaton, name: str) -> Property:
    """The property of that name, if it can be judged by reachability."""
    if not isinstance(automaton, Automaton):
        raise UsageError(f"{automaton!r:.40} is no automaton; read one with parse(text)")
    asked = automaton.property_named(name)
    if asked.refused:
        said = f"{automaton.name}.{asked.name} cannot be judged: {asked.refused}"
        raise UnsupportedProperty(said + "; state it as (start) -> [](invariant)")
    return asked


def valuations(automaton: Automaton, most: int) -> Iterator[dict[str, int]]:
    """Every valuation of the parameters up to `most` under the assumptions, small ones first."""
    every = product(range(most + 1), repeat=len(automaton.parameters))
    for each in sorted(every, key=lambda values: max(values, default=0)):
        parameters = dict(zip(automaton.parameters, each, strict=True))
        if holds(automaton.assumptions, parameters):
            yield parameters


# -- where runs begin


def starts(automaton: Automaton, parameters: dict[str, int]) -> Iterator[dict[str, int]]:
    """Every first configuration for these parameters."""
    names = [*automaton.locations, *automaton.shared]
    demands = [each for each in _parts(automaton.inits) if isinstance(each, Atom)]
    most = _bounds(automaton, names, demands, parameters)
    yield from _assign(automaton, names, most, demands, dict(parameters), 0)


def _parts(formula: Formula) -> tuple[Formula, ...]:
    return formula.parts if isinstance(formula, All) else (formula,)


def _bounds(
    automaton: Automaton, names: list[str], demands: list[Atom], parameters: dict[str, int]
) -> dict[str, int]:
    """How large each count can be at the start, from the demands that bound it from above."""
    most: dict[str, int] = {}
    for _ in names:
        for atom in demands:
            raising = [(k, name) for name, k in atom.form.terms if k > 0 and name not in parameters]
            if any(name not in most for _, name in raising):
                continue
            known = {name: parameters.get(name, 0) for name in atom.form.names}
            room = atom.form.value(known) + sum(k * most[name] for k, name in raising)
            for name, factor in atom.form.terms:
                if factor < 0 and name not in parameters:
                    most[name] = min(most.get(name, room), max(room // -factor, 0))
    for name in names:
        if name not in most:
            raise UsageError(
                f"the inits of {automaton.name} leave {name} without a bound, so its starts cannot "
                f"be enumerated; add {name} == 0 or a sum such as {name} == n - f"
            )
    return most


def _assign(
    automaton: Automaton, names: list[str], most: dict[str, int], demands: list[Atom],
    values: dict[str, int], at: int,
) -> Iterator[dict[str, int]]:  # fmt: skip
    for atom in demands:
        # The best that the names not yet given could still do for the demand.
        best = atom.form.constant + sum(
            k * (values[n] if n in values else most[n] if k > 0 else 0) for n, k in atom.form.terms
        )
        if best < 0:
            return
    if at == len(names):
        if holds(automaton.inits, values):
            yield {name: values[name] for name in names}
        return
    for count in range(most[names[at]] + 1):
        values[names[at]] = count
        yield from _assign(automaton, names, most, demands, values, at + 1)
    del values[names[at]]


# -- the search


class Search:
    """Breadth first over the configurations of one valuation, level by level in arrays."""

    def __init__(
        self, automaton: Automaton, asked: Property, parameters: dict[str, int], most_states: int
    ) -> None:
        self.automaton, self.asked, self.parameters = automaton, asked, parameters
        self.most_states = most_states
        self.names = (*automaton.locations, *automaton.shared)
        self.column = {name: i for i, name in enumerate(self.names)}
        self.states = 0
        self.cut = False
        self.starts = list(starts(automaton, parameters))
        self.caps = {name: self._cap(name) for name in automaton.shared}

    def _cap(self, name: str) -> int | None:
        """The value at which a counter may be held without anyone noticing, or None."""
        if any(rule.delta.get(name, 0) < 0 for rule in self.automaton.rules):
            return None
        formulas = [rule.guard for rule in self.automaton.rules]
        formulas += [part for case in self.asked.cases for part in (case.before, case.bad)]
        most = 0
        for atom in (atom for formula in formulas for atom in atoms(formula)):
            if name not in atom.form.names:
                continue
            split = split_atom(self.automaton, atom)
            counted = set(atom.form.names) - set(self.parameters)
            if counted - set(self.automaton.shared) or any(k < 0 for _, k in split.form.terms):
                return None
            most = max(most, split.threshold.value(self.parameters))
        start = max((each[name] for each in self.starts), default=0)
        return max(most, start) + 1

    def run(self) -> Counterexample | None:
        """A shortest run that breaks the property, or None."""
        for case in self.asked.cases:
            first = [
                [each[name] for name in self.names]
                for each in self.starts
                if holds(case.before, {**self.parameters, **each})
            ]
            if first:
                found = self._levels(np.array(first, dtype=np.int64), case.bad)
                if found is not None:
                    return found
        return None

    def _levels(self, rows: Rows, bad: Formula) -> Counterexample | None:
        radix = self._radix(rows)
        levels = [(rows, np.full(len(rows), -1), np.full(len(rows), -1))]
        seen = np.sort(rows @ radix)
        self.states += len(rows)
        while len(rows):
            broken = np.flatnonzero(np.broadcast_to(holds(bad, self._values(rows)), len(rows)))
            if len(broken):
                return self._trace(levels, int(broken[0]))
            rows, parents, rules = self._next(rows)
            keys, first = np.unique(rows @ radix, return_index=True)
            place = np.searchsorted(seen, keys)
            fresh = (place == len(seen)) | (seen[np.minimum(place, len(seen) - 1)] != keys)
            chosen = first[fresh]
            rows, parents, rules = rows[chosen], parents[chosen], rules[chosen]
            seen = np.sort(np.concatenate([seen, keys[fresh]]))
            levels.append((rows, parents, rules))
            self.states += len(rows)
            if len(seen) > self.most_states:
                self.cut = True
                return None
        return None

    def _radix(self, rows: Rows) -> Rows:
        """Factors that turn a configuration into one number of its own."""
        crowd = int(rows[:, : len(self.automaton.locations)].sum(axis=1).max()) + 1
        sizes = [crowd] * len(self.automaton.locations)
        for name in self.automaton.shared:
            cap = self.caps[name]
            sizes.append(MOST_COUNT + 1 if cap is None else cap + 1)
        total, factors = 1, []
        for size in sizes:
            factors.append(total)
            total *= size
        if total >= 1 << 62:
            raise UsageError(
                f"{self.automaton.name} with {self.parameters} has too many configurations to be "
                "numbered; give a smaller most_n"
            )
        return np.array(factors, dtype=np.int64)

    def _values(self, rows: Rows) -> dict[str, Any]:
        return {**self.parameters, **{name: rows[:, i] for name, i in self.column.items()}}

    def _next(self, rows: Rows) -> tuple[Rows, Rows, Rows]:
        values = self._values(rows)
        none = np.zeros(0, dtype=np.int64)
        made, parents, rules = [rows[:0]], [none], [none]
        for number, rule in enumerate(self.automaton.live_rules):
            able = (values[rule.source] >= 1) & holds(rule.guard, values)
            for name, amount in rule.changes:
                able = able & (values[name] + amount >= 0)
            who = np.flatnonzero(able)
            after = rows[who].copy()
            after[:, self.column[rule.source]] -= 1
            after[:, self.column[rule.target]] += 1
            for name, amount in rule.changes:
                cap = self.caps[name]
                after[:, self.column[name]] += amount
                if cap is not None:
                    np.minimum(after[:, self.column[name]], cap, out=after[:, self.column[name]])
            for name in rule.resets:
                after[:, self.column[name]] = 0
            kept = np.ones(len(who), dtype=bool)
            for name, cap in self.caps.items():
                if cap is None:
                    kept &= after[:, self.column[name]] <= MOST_COUNT
            self.cut = self.cut or not bool(kept.all())
            made.append(after[kept])
            parents.append(who[kept])
            rules.append(np.full(int(kept.sum()), number))
        return np.concatenate(made), np.concatenate(parents), np.concatenate(rules)

    def _trace(self, levels: list[tuple[Rows, Rows, Rows]], at: int) -> Counterexample:
        schedule = []
        for _, parents, rules in reversed(levels[1:]):
            schedule.append(self.automaton.live_rules[int(rules[at])].name)
            at = int(parents[at])
        start = levels[0][0][at].tolist()
        return Counterexample(
            tuple(self.parameters.items()),
            tuple(zip(self.names, start, strict=True)),
            tuple(reversed(schedule)),
        )
