"""Linear forms over names, and Boolean formulas whose atoms say that a form is not negative.

All numbers are whole, so every comparison becomes `form >= 0`: a < b is b - a - 1 >= 0, and
a == b is two of them. One kind of atom keeps guards, assumptions and properties simple.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any


@dataclass(frozen=True, slots=True)
class Linear:
    """A sum of whole multiples of names, and a constant.

    >>> str(Linear.of("n") - Linear.of("t").times(2) - Linear.number(1))
    'n - 2*t - 1'
    """

    terms: tuple[tuple[str, int], ...] = ()
    constant: int = 0

    @classmethod
    def make(cls, terms: Mapping[str, int], constant: int = 0) -> Linear:
        """In normal form: names in order, none with a factor of nought."""
        return cls(tuple(sorted((k, v) for k, v in terms.items() if v)), constant)

    @classmethod
    def of(cls, name: str) -> Linear:
        return cls(((name, 1),))

    @classmethod
    def number(cls, value: int) -> Linear:
        return cls((), value)

    def __add__(self, other: Linear) -> Linear:
        terms = dict(self.terms)
        for name, factor in other.terms:
            terms[name] = terms.get(name, 0) + factor
        return Linear.make(terms, self.constant + other.constant)

    def __sub__(self, other: Linear) -> Linear:
        return self + other.times(-1)

    def times(self, factor: int) -> Linear:
        terms = {name: factor * k for name, k in self.terms}
        return Linear.make(terms, factor * self.constant)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.terms)

    def only(self, names: Iterable[str]) -> Linear:
        """The terms with these names, without the constant."""
        keep = set(names)
        return Linear(tuple(term for term in self.terms if term[0] in keep))

    def value(self, values: Mapping[str, Any]) -> Any:
        """The number (or array) that it has under a valuation."""
        total: Any = self.constant
        for name, factor in self.terms:
            total = total + factor * values[name]
        return total

    def __str__(self) -> str:
        text = ""
        for name, factor in sorted(self.terms, key=lambda term: (term[1] < 0, term[0])):
            sign = "-" if factor < 0 else "+"
            body = name if abs(factor) == 1 else f"{abs(factor)}*{name}"
            text += f" {sign} {body}" if text else ("-" if factor < 0 else "") + body
        if self.constant or not text:
            sign = "-" if self.constant < 0 else "+"
            text += f" {sign} {abs(self.constant)}" if text else str(self.constant)
        return text


@dataclass(frozen=True, slots=True)
class Atom:
    """`form >= 0`."""

    form: Linear

    def __str__(self) -> str:
        left = {name: k for name, k in self.form.terms if k > 0}
        right = {name: -k for name, k in self.form.terms if k < 0}
        constant = self.form.constant
        low, high = Linear.make(left, max(constant, 0)), Linear.make(right, max(-constant, 0))
        return f"{low} >= {high}"


@dataclass(frozen=True, slots=True)
class All:
    """Every part is true; of none, true."""

    parts: tuple[Formula, ...] = ()

    def __str__(self) -> str:
        return " && ".join(_inner(part) for part in self.parts) or "true"


@dataclass(frozen=True, slots=True)
class Any_:
    """Some part is true; of none, false."""

    parts: tuple[Formula, ...] = ()

    def __str__(self) -> str:
        return " || ".join(_inner(part) for part in self.parts) or "false"


Formula = Atom | All | Any_
TRUE, FALSE = All(), Any_()
# A property with more cases than this is refused rather than expanded for ever.
MOST_CASES = 4096


def _inner(part: Formula) -> str:
    return f"({part})"


def not_negative(form: Linear) -> Formula:
    """`form >= 0`, or its truth where that is plain: every name stands for a number from nought."""
    factors = [factor for _, factor in form.terms]
    if form.constant >= 0 and all(factor > 0 for factor in factors):
        return TRUE
    if form.constant < 0 and all(factor < 0 for factor in factors):
        return FALSE
    return Atom(form)


def compare(left: Linear, sign: str, right: Linear) -> Formula:
    """A comparison as atoms.

    >>> str(compare(Linear.of("x"), "<", Linear.of("n")))
    'n >= x + 1'
    """
    more, less, one = left - right, right - left, Linear.number(1)
    match sign:
        case ">=":
            return not_negative(more)
        case ">":
            return not_negative(more - one)
        case "<=":
            return not_negative(less)
        case "<":
            return not_negative(less - one)
        case "==":
            return both(not_negative(more), not_negative(less))
        case _:
            return either(not_negative(more - one), not_negative(less - one))


def both(*parts: Formula) -> Formula:
    """The conjunction, flattened."""
    flat: list[Formula] = []
    for part in parts:
        flat += part.parts if isinstance(part, All) else (part,)
    if FALSE in flat:
        return FALSE
    unique = tuple(dict.fromkeys(flat))
    return unique[0] if len(unique) == 1 else All(unique)


def either(*parts: Formula) -> Formula:
    """The disjunction, flattened."""
    flat: list[Formula] = []
    for part in parts:
        flat += part.parts if isinstance(part, Any_) else (part,)
    if TRUE in flat:
        return TRUE
    unique = tuple(dict.fromkeys(flat))
    return unique[0] if len(unique) == 1 else Any_(unique)


def negate(formula: Formula) -> Formula:
    """The opposite, with the negation inside the atoms."""
    if isinstance(formula, Atom):
        return not_negative(formula.form.times(-1) - Linear.number(1))
    if isinstance(formula, All):
        return either(*(negate(part) for part in formula.parts))
    return both(*(negate(part) for part in formula.parts))


def atoms(formula: Formula) -> tuple[Atom, ...]:
    """Its atoms, each once, in order."""
    if isinstance(formula, Atom):
        return (formula,)
    found: dict[Atom, None] = {}
    for part in formula.parts:
        found.update(dict.fromkeys(atoms(part)))
    return tuple(found)


def names(formula: Formula) -> tuple[str, ...]:
    """The names that occur in it, each once, in order."""
    return tuple(dict.fromkeys(name for atom in atoms(formula) for name in atom.form.names))


def holds(formula: Formula, values: Mapping[str, Any]) -> Any:
    """Whether it is true under a valuation; arrays of values give arrays of answers."""
    if isinstance(formula, Atom):
        return formula.form.value(values) >= 0
    truth: Any = isinstance(formula, All)
    for part in formula.parts:
        one = holds(part, values)
        truth = truth & one if isinstance(formula, All) else truth | one
    return truth


def cases(formula: Formula) -> list[tuple[Atom, ...]]:
    """Its disjunctive normal form: lists of atoms, one of which is true as a whole."""
    if isinstance(formula, Atom):
        return [(formula,)]
    if isinstance(formula, Any_):
        return _few([case for part in formula.parts for case in cases(part)])
    split = [cases(part) for part in formula.parts]
    size = 1
    for part in split:
        size *= len(part)
    if size > MOST_CASES:
        raise OverflowError(size)
    return _few([tuple(dict.fromkeys(sum(way, ()))) for way in product(*split)])


def _few(found: list[tuple[Atom, ...]]) -> list[tuple[Atom, ...]]:
    if len(found) > MOST_CASES:
        raise OverflowError(len(found))
    return list(dict.fromkeys(found))
