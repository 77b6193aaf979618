"""Formulas with `[]` and `<>`, and the safety properties that can be read off them.

A property is broken by a run of the opposite formula. Where that opposite is "a start of this kind,
and at some later time this", checking it is a question of reachability. What needs more (a run that
goes on for ever, two moments apart) is kept with the reason why it is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from orrery.systems.protocols.taco.automaton import Case, Property
from orrery.systems.protocols.taco.forms import (
    FALSE,
    TRUE,
    Formula,
    both,
    either,
    negate,
)


@dataclass(frozen=True, slots=True)
class Moment:
    """A temporal formula: `kind` is "now", "both", "either", "always" or "eventually"."""

    kind: str
    now: Formula = TRUE
    parts: tuple[Moment, ...] = ()

    @classmethod
    def of(cls, formula: Formula) -> Moment:
        return cls("now", formula)

    @classmethod
    def both(cls, *parts: Moment) -> Moment:
        if all(part.kind == "now" for part in parts):
            return cls.of(both(*(part.now for part in parts)))
        return cls("both", parts=parts)

    @classmethod
    def either(cls, *parts: Moment) -> Moment:
        if all(part.kind == "now" for part in parts):
            return cls.of(either(*(part.now for part in parts)))
        return cls("either", parts=parts)

    def always(self) -> Moment:
        return self if self.kind == "always" else Moment("always", parts=(self,))

    def eventually(self) -> Moment:
        return self if self.kind == "eventually" else Moment("eventually", parts=(self,))

    def opposite(self) -> Moment:
        """The negation, with time turned: not always is eventually not."""
        if self.kind == "now":
            return Moment.of(negate(self.now))
        turned = {"both": "either", "either": "both", "always": "eventually"}
        kind = turned.get(self.kind, "always")
        return Moment(kind, parts=tuple(part.opposite() for part in self.parts))


class _Outside(Exception):
    """The formula is outside the fragment; the text says how."""


def property_of(name: str, text: str, formula: Moment) -> Property:
    """The property that a formula states; one outside the fragment carries why."""
    try:
        found = _cases(formula.opposite())
    except _Outside as reason:
        return Property(name, text, (), str(reason))
    return Property(name, text, tuple(case for case in found if case.before != FALSE))


def _cases(broken: Moment) -> list[Case]:
    """The ways in which a run can satisfy `broken`."""
    if broken.kind == "now":
        return [Case(broken.now, TRUE)]
    if broken.kind == "either":
        return [case for part in broken.parts for case in _cases(part)]
    if broken.kind == "eventually":
        return [Case(TRUE, _state(broken.parts[0]))]
    if broken.kind == "always":
        raise _Outside("it is a liveness property: it is broken only by a run without end")
    joined = [Case(TRUE, TRUE)]
    for part in broken.parts:
        joined = [_join(one, other) for one in joined for other in _cases(part)]
    return joined


def _join(one: Case, other: Case) -> Case:
    if one.bad != TRUE and other.bad != TRUE:
        raise _Outside("it is broken only by two moments of one run, in either order")
    bad = one.bad if other.bad == TRUE else other.bad
    return Case(both(one.before, other.before), bad)


def _state(moment: Moment) -> Formula:
    """A formula that speaks of one moment only."""
    if moment.kind == "now":
        return moment.now
    if moment.kind == "eventually":
        return _state(moment.parts[0])
    if moment.kind == "either":
        return either(*(_state(part) for part in moment.parts))
    if moment.kind == "always":
        raise _Outside("it is a liveness property: it is broken only by a run without end")
    raise _Outside("it is broken only by two moments of one run, one after the other")
