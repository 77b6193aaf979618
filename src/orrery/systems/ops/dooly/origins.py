"""Where a dimension comes from: products and sums of named sizes, and numbers that remember them.

A symbol is a field of the model's configuration (hidden, heads ...), a setting of the engine
(block_tokens) or a size of the request batch (tokens, rows ...). An `Origin` is a polynomial over
symbols. A `Size` is an int that carries its origin through arithmetic, so code that computes shapes
in plain Python labels them by running.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from orrery.base.errors import SpecError

# Sizes that a batch of requests sets: all tokens of a step, rows that are sampled, decodes and
# their context, tokens of a prompt chunk, tokens before it and with it, blocks and their room.
REQUEST = (
    "tokens", "rows", "decodes", "context", "new", "past", "reach",
    "chunk_blocks", "chunk_room", "group_blocks", "group_room",
)  # fmt: skip
# How much could be held; a kernel's time does not depend on it.
CAPACITY = ("blocks", "max_context", "positions")

Monomial = tuple[tuple[str, int], ...]


class Origin:
    """A polynomial over symbols with whole or fractional factors; exponents may be negative.

    >>> h, d = Origin.of("heads"), Origin.of("head_dim")
    >>> str(h * d / 2), (h * d).value({"heads": 6, "head_dim": 10})
    ('1/2*head_dim*heads', 60)
    """

    __slots__ = ("terms", "text")

    def __init__(self, terms: Mapping[Monomial, Fraction]) -> None:
        self.terms = {k: v for k, v in sorted(terms.items()) if v}
        self.text = " + ".join(_text(k, v) for k, v in self.terms.items()) or "0"

    @classmethod
    def of(cls, name: str) -> Origin:
        """One symbol."""
        return cls({((name, 1),): Fraction(1)})

    @classmethod
    def number(cls, value: int | Fraction) -> Origin:
        """A constant."""
        return cls({(): Fraction(value)})

    def __add__(self, other: Origin) -> Origin:
        made = dict(self.terms)
        for key, value in other.terms.items():
            made[key] = made.get(key, Fraction(0)) + value
        return Origin(made)

    def __sub__(self, other: Origin) -> Origin:
        return self + other * Origin.number(-1)

    def __mul__(self, other: Origin) -> Origin:
        made: dict[Monomial, Fraction] = {}
        for a, x in self.terms.items():
            for b, y in other.terms.items():
                key = _join(a, b, 1)
                made[key] = made.get(key, Fraction(0)) + x * y
        return Origin(made)

    def __truediv__(self, other: Origin | int) -> Origin | None:
        """The quotient, or None where it is no polynomial."""
        if isinstance(other, int):
            return self * Origin.number(Fraction(1, other))
        if len(other.terms) == 1:
            ((key, factor),) = other.terms.items()
            return Origin({_join(a, key, -1): x / factor for a, x in self.terms.items()})
        # A sum may divide a product of itself with a monomial: try those that could be it.
        lead, factor = next(iter(other.terms.items()), ((), Fraction(1)))
        for key, value in self.terms.items():
            guess = Origin({_join(key, lead, -1): value / factor})
            if guess * other == self:
                return guess
        return None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Origin) and self.text == other.text

    def __hash__(self) -> int:
        return zlib.crc32(self.text.encode())

    @property
    def symbols(self) -> tuple[str, ...]:
        """The names in it."""
        return tuple(sorted({name for key in self.terms for name, _ in key}))

    @property
    def kind(self) -> str:
        """request, config, capacity or constant."""
        names = self.symbols
        if any(name in REQUEST for name in names):
            return "request"
        if not names:
            return "constant"
        return "capacity" if all(name in CAPACITY for name in names) else "config"

    def value(self, sizes: Mapping[str, int]) -> int | Fraction:
        """The number for given sizes."""
        total = Fraction(0)
        for key, factor in self.terms.items():
            part = factor
            for name, power in key:
                if name not in sizes:
                    raise SpecError(f"origin.{name}", "no size is given", f"give {self.symbols}")
                part *= Fraction(sizes[name]) ** power
            total += part
        return int(total) if total.denominator == 1 else total

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Origin({self})"


def _join(a: Monomial, b: Monomial, sign: int) -> Monomial:
    powers = dict(a)
    for name, power in b:
        powers[name] = powers.get(name, 0) + sign * power
    return tuple(sorted((name, power) for name, power in powers.items() if power))


def _text(key: Monomial, factor: Fraction) -> str:
    parts = [name if power == 1 else f"{name}^{power}" for name, power in key]
    return "*".join(([str(factor)] if factor != 1 or not parts else []) + parts)


def parse(text: str) -> Origin:
    """The origin that `str` wrote.

    >>> parse("1/2*head_dim*heads + -1*rows") == parse("-1*rows + 1/2*heads*head_dim")
    True
    """
    total = Origin({})
    try:
        for term in text.split(" + "):
            made = Origin.number(1)
            for part in term.split("*"):
                name, _, power = part.partition("^")
                if name[:1].isalpha():
                    made = made * Origin({((name, int(power or 1)),): Fraction(1)})
                else:
                    made = made * Origin.number(Fraction(part))
            total = total + made
    except (ValueError, ZeroDivisionError):
        raise SpecError("origin", f"{text!r:.60} does not parse", "give what str wrote") from None
    return total


class Book:
    """Every origin that was met, in order: what a size that lost its label may stand for."""

    def __init__(self) -> None:
        self.origins: dict[str, Origin] = {}

    def note(self, origin: Origin) -> None:
        """Remember an origin."""
        self.origins.setdefault(str(origin), origin)

    def size(self, name: str, value: int) -> Size:
        """A number that carries a symbol."""
        return Size(value, Origin.of(name), self)


class Size(int):
    """An int that knows where it comes from, and tells its book of every number made from it."""

    origin: Origin
    book: Book

    def __new__(cls, value: int, origin: Origin, book: Book) -> Size:
        made = super().__new__(cls, value)
        made.origin, made.book = origin, book
        book.note(origin)
        return made

    def _made(self, value: int, origin: Origin | None) -> int:
        if origin is None or not isinstance(value, int):
            return value
        return Size(value, origin, self.book)

    def __add__(self, other: Any) -> Any:
        return self._with(other, int.__add__, Origin.__add__)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._with(other, int.__sub__, Origin.__sub__)

    def __mul__(self, other: Any) -> Any:
        return self._with(other, int.__mul__, Origin.__mul__)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        if not isinstance(other, int) or not other or int(self) % int(other):
            return int.__floordiv__(self, other)
        return self._with(other, int.__floordiv__, Origin.__truediv__)

    def _with(self, other: Any, number: Any, symbol: Any) -> Any:
        value = number(int(self), other)
        if value is NotImplemented or isinstance(other, bool):
            return value
        theirs = other.origin if isinstance(other, Size) else Origin.number(other)
        return self._made(value, symbol(self.origin, theirs))


__all__ = ["CAPACITY", "REQUEST", "Book", "Origin", "Size", "parse"]
