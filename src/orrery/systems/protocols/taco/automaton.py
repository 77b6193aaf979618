"""The model: threshold automata, their rules, and the properties that are asked of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import gcd

from orrery.base.errors import SpecError, UsageError, did_you_mean
from orrery.systems.protocols.taco.forms import (
    TRUE,
    Atom,
    Formula,
    Linear,
    atoms,
    holds,
    names,
)

Values = Mapping[str, int]


class AutomatonError(SpecError):
    """A threshold automaton or a property is off; `path` says where."""


class UnsupportedProperty(UsageError):
    """A checker cannot judge this property or this class of automaton; the message says which."""


@dataclass(frozen=True)
class Rule:
    """`name: source -> target when guard do {…}`: what one process may do in one step.

    `changes` adds to shared variables; `resets` sets them to nought. A step that would bring a
    variable below nought cannot be taken.
    """

    name: str
    source: str
    target: str
    guard: Formula = TRUE
    changes: tuple[tuple[str, int], ...] = ()
    resets: tuple[str, ...] = ()

    @property
    def delta(self) -> dict[str, int]:
        return dict(self.changes)

    @property
    def idle(self) -> bool:
        """Whether it changes nothing."""
        return self.source == self.target and not self.changes and not self.resets


@dataclass(frozen=True)
class Case:
    """One way to break a property: a start in which `before` holds, and later `bad`."""

    before: Formula
    bad: Formula


@dataclass(frozen=True)
class Property:
    """A named safety property: in no run does any of `cases` come true."""

    name: str
    text: str
    cases: tuple[Case, ...]
    # Why it cannot be judged, where it is well formed but outside the fragment.
    refused: str = ""


@dataclass(frozen=True)
class Automaton:
    """Processes that count messages: locations, shared counters, parameters, rules, properties.

    All counters and parameters are whole numbers from nought. A configuration says how many
    processes are in each location and what each shared variable is; a rule moves one process.
    """

    name: str
    parameters: tuple[str, ...]
    shared: tuple[str, ...]
    locations: tuple[str, ...]
    assumptions: Formula
    inits: Formula
    rules: tuple[Rule, ...]
    properties: tuple[Property, ...] = ()
    # What follows is worked out once, from what stands above.
    live_rules: tuple[Rule, ...] = field(default=(), init=False, compare=False, repr=False)
    guard_forms: tuple[Linear, ...] = field(default=(), init=False, compare=False, repr=False)
    why_not_monotone: str = field(default="", init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        _check_names(self)
        for rule in self.rules:
            _check_rule(self, rule)
        _only(self, "assumptions", self.assumptions, self.parameters)
        known = (*self.parameters, *self.shared, *self.locations)
        _only(self, "inits", self.inits, known)
        for each in self.properties:
            for case in each.cases:
                _only(self, f"specifications.{each.name}", case.before, known)
                _only(self, f"specifications.{each.name}", case.bad, known)
        live = tuple(rule for rule in self.rules if not rule.idle)
        object.__setattr__(self, "live_rules", live)
        object.__setattr__(self, "guard_forms", _guard_forms(self))
        object.__setattr__(self, "why_not_monotone", _why_not_monotone(self))

    def property_named(self, name: str) -> Property:
        """A property by name; of one alone, "" will do."""
        if not self.properties:
            raise AutomatonError(self.name, "has no specifications", "add one to check")
        if not name and len(self.properties) == 1:
            return self.properties[0]
        for each in self.properties:
            if each.name == name:
                return each
        known = [each.name for each in self.properties]
        raise UsageError(f"{self.name} has no property {name!r}; {did_you_mean(name, known)}")

    @property
    def monotone(self) -> bool:
        """Whether each guard changes its truth at most once in a run."""
        return not self.why_not_monotone

    def start_values(self, values: Values) -> bool:
        """Whether a configuration (with its parameters) may be the first of a run."""
        return bool(holds(self.assumptions, values) and holds(self.inits, values))

    def with_assumptions(self, assumptions: Formula, name: str = "") -> Automaton:
        """The same automaton under another resilience condition."""
        return replace(self, assumptions=assumptions, name=name or self.name)

    def with_rule(self, rule: Rule) -> Automaton:
        """The same automaton with the rule of this name replaced."""
        rules = tuple(rule if each.name == rule.name else each for each in self.rules)
        return replace(self, rules=rules)


@dataclass(frozen=True)
class Split:
    """An atom as `sign * (scale * form >= threshold)`, the form in lowest terms.

    With `rises` the atom is scale * form >= threshold; otherwise it is the negation of that.
    A form without terms means that the atom is about parameters alone.
    """

    form: Linear
    scale: int
    threshold: Linear
    rises: bool


def split_atom(automaton: Automaton, atom: Atom) -> Split:
    """Part an atom of a guard into what is counted and the threshold that it is held against."""
    counted = atom.form.only(automaton.shared)
    rest = atom.form - counted
    if not counted.terms:
        return Split(Linear(), 1, rest.times(-1), True)
    divisor = gcd(*(factor for _, factor in counted.terms))
    rises = counted.terms[0][1] > 0
    if rises:
        form = Linear(tuple((name, k // divisor) for name, k in counted.terms))
        return Split(form, divisor, rest.times(-1), True)
    # counted = -divisor * form, so the atom is divisor * form <= rest, that is,
    # not (divisor * form >= rest + 1).
    form = Linear(tuple((name, -k // divisor) for name, k in counted.terms))
    return Split(form, divisor, rest + Linear.number(1), False)


def form_delta(form: Linear, rule: Rule) -> int:
    """By how much a rule raises a form, resets aside."""
    return sum(factor * rule.delta.get(name, 0) for name, factor in form.terms)


def _guard_forms(automaton: Automaton) -> tuple[Linear, ...]:
    """The forms over shared variables that guards compare with thresholds, in lowest terms."""
    found: dict[Linear, None] = {}
    for rule in automaton.live_rules:
        for atom in atoms(rule.guard):
            split = split_atom(automaton, atom)
            if split.form.terms:
                found[split.form] = None
    return tuple(found)


def _why_not_monotone(automaton: Automaton) -> str:
    """Which rule takes a count down, or "" where none does."""
    for rule in automaton.live_rules:
        if rule.resets:
            return f"rule {rule.name} resets {rule.resets[0]}"
        for name, amount in rule.changes:
            if amount < 0:
                return f"rule {rule.name} decrements {name}"
        for form in automaton.guard_forms:
            if form_delta(form, rule) < 0:
                return f"rule {rule.name} takes {form} down"
    return ""


# -- what an automaton must be


def _check_names(automaton: Automaton) -> None:
    if not automaton.locations:
        raise AutomatonError(f"{automaton.name}.locations", "is empty", "declare at least one")
    seen: dict[str, str] = {}
    for kind in ("parameters", "shared", "locations"):
        for name in getattr(automaton, kind):
            if name in seen:
                where = f"{automaton.name}.{kind}"
                problem = f"{name!r} is declared under {seen[name]} already"
                raise AutomatonError(where, problem, "give each its own name")
            seen[name] = kind
    for kind in ("rules", "properties"):
        listed = [each.name for each in getattr(automaton, kind)]
        for name in listed:
            if listed.count(name) > 1:
                where = f"{automaton.name}.{kind}"
                raise AutomatonError(where, f"two are named {name!r}", "number each once")


def _check_rule(automaton: Automaton, rule: Rule) -> None:
    path = f"{automaton.name}.rules.{rule.name}"
    for place in (rule.source, rule.target):
        if place not in automaton.locations:
            fix = did_you_mean(place, automaton.locations)
            raise AutomatonError(path, f"there is no location {place!r}", fix)
    _only(automaton, f"rules.{rule.name}.when", rule.guard, automaton.shared + automaton.parameters)
    for name in (*rule.delta, *rule.resets):
        if name not in automaton.shared:
            fix = did_you_mean(name, automaton.shared)
            raise AutomatonError(f"{path}.do", f"{name!r} is no shared variable", fix)


def _only(automaton: Automaton, path: str, formula: Formula, known: tuple[str, ...]) -> None:
    for name in names(formula):
        if name not in known:
            where = f"{automaton.name}.{path}"
            raise AutomatonError(where, f"{name!r} may not be used", did_you_mean(name, known))
