"""Languages as short texts, and whether a word belongs to one: the truth for stabilisation.

A formula joins atoms by `!`, `&`, `|` and brackets. Atoms:

    Xa  Yb  XaYb     a ranker is defined. X goes right to the next such letter, Y goes left; the
                     first step comes from the end of the line: Xa is the first a, Yb the last b,
                     XaYb the last b before the first a. `.` is any letter, [ab] either of two.
    Xa < Yb          both are defined, and stand in this order (`<`, `=` or `>`)
    X.:a             the ranker is defined and stands on one of these letters
    #a >= 3  #a > #b  #a % 3 = 1      counts of letters
    '(ab)*'          a regular expression
    palindrome  anbncn                two languages that no finite automaton decides
"""

from __future__ import annotations

import functools
import re
from typing import Any

from orrery.base.errors import UsageError

Step = tuple[str, str]
Ranker = tuple[Step, ...]
Formula = tuple[Any, ...]

ALPHABET = "abc"
NAMED = ("palindrome", "anbncn")
MOST_TEXT = 2000
MOST_NUMBER = 100
_TOKEN = re.compile(
    r"\s*(?:(?P<ranker>(?:[XY](?:\[[a-z]+\]|[a-z.]))+)|(?P<name>palindrome|anbncn)"
    r"|'(?P<regex>[^']*)'|#(?P<count>[a-z])|(?P<number>\d+)|(?P<word>[a-z]+)"
    r"|(?P<op>>=|[!&|()<=>:%]))"
)


@functools.lru_cache(maxsize=256)
def parse(text: str) -> Formula:
    """A formula as nested tuples, or an error that names the place and the fix."""
    if not isinstance(text, str) or not text.strip():
        raise UsageError(f"language={text!r} is empty; for example '!(Xb < Ya)' for a*b*")
    if len(text) > MOST_TEXT:
        raise UsageError(f"language has {len(text)} characters; give at most {MOST_TEXT}")
    reader = _Reader(text)
    try:
        formula = reader.either()
    except RecursionError:
        raise UsageError("language: brackets are nested too deeply; flatten it") from None
    if reader.kind:
        raise reader.unexpected("the end")
    return formula


class _Reader:
    """A recursive descent over the tokens of a formula."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.kind, self.value, self.begins = "", "", 0
        self.advance()

    def advance(self) -> tuple[str, str]:
        had = (self.kind, self.value)
        self.begins = self.at
        if not self.text[self.at :].strip():
            self.kind = self.value = ""
            return had
        found = _TOKEN.match(self.text, self.at)
        if found is None or found.lastgroup is None:
            raise UsageError(
                f"language: cannot read {self.text[self.at :].strip()[:20]!r} at place {self.at}; "
                "a ranker is Xa or XaYb, a regular expression stands in single quotes"
            )
        self.kind, self.value, self.at = found.lastgroup, found[found.lastgroup], found.end()
        return had

    def unexpected(self, wanted: str) -> UsageError:
        got = repr(self.value) if self.kind else "the end"
        return UsageError(f"language: {got} at place {self.begins}; expected {wanted}")

    def takes(self, *values: str) -> str:
        return self.advance()[1] if self.kind == "op" and self.value in values else ""

    def need(self, kind: str, wanted: str) -> str:
        if self.kind != kind:
            raise self.unexpected(wanted)
        return self.advance()[1]

    def either(self) -> Formula:
        left = self.both()
        while self.takes("|"):
            left = ("or", left, self.both())
        return left

    def both(self) -> Formula:
        left = self.negated()
        while self.takes("&"):
            left = ("and", left, self.negated())
        return left

    def negated(self) -> Formula:
        if self.takes("!"):
            return ("not", self.negated())
        if self.takes("("):
            inside = self.either()
            if not self.takes(")"):
                raise self.unexpected(")")
            return inside
        return self.atom()

    def atom(self) -> Formula:
        kind, value = self.kind, self.value
        if kind not in ("ranker", "name", "regex", "count"):
            raise self.unexpected("an atom such as Xa, Xa < Yb, #a >= 2 or '(ab)*'")
        self.advance()
        if kind == "name":
            return ("named", value)
        if kind == "regex":
            return ("regex", value)
        if kind == "count":
            return self.counted(value)
        ranker = ranker_of(value)
        if self.takes(":"):
            return ("letter", ranker, self.need("word", "letters, as in X.:a"))
        compare = self.takes("<", "=", ">")
        if compare:
            return ("compare", ranker, compare, ranker_of(self.need("ranker", "a ranker")))
        return ("defined", ranker)

    def counted(self, letter: str) -> Formula:
        if self.takes("%"):
            modulus, _ = self.number(1), self.takes("=") or self.fail("=")
            return ("modulo", letter, modulus, self.number(0) % modulus)
        if self.takes(">="):
            return ("at_least", letter, self.number(0))
        if self.takes(">"):
            return ("more", letter, self.need("count", "#b"))
        raise self.unexpected(">=, > or %")

    def fail(self, wanted: str) -> str:
        raise self.unexpected(wanted)

    def number(self, least: int) -> int:
        value = int(self.need("number", "a number"))
        if not least <= value <= MOST_NUMBER:
            raise UsageError(f"language: {value} is out of range; give {least} to {MOST_NUMBER}")
        return value


def ranker_of(text: str) -> Ranker:
    """The steps of a ranker: "XaY[bc]" is (("X", "a"), ("Y", "bc"))."""
    steps = re.findall(r"([XY])(\[[a-z]+\]|[a-z.])", text)
    return tuple((way, letters.strip("[]")) for way, letters in steps)


def find(ranker: Ranker, word: str) -> int | None:
    """Where a ranker stands in a word, or None."""
    at: int | None = None
    for way, letters in ranker:
        if way == "X":
            places = range(0 if at is None else at + 1, len(word))
        else:
            places = range((len(word) if at is None else at) - 1, -1, -1)
        at = next((i for i in places if letters == "." or word[i] in letters), None)
        if at is None:
            return None
    return at


def contains(formula: Formula, word: str) -> bool:
    """Whether a word is in the language: the plain definition, one word at a time."""
    match formula:
        case ("or", left, right):
            return contains(left, word) or contains(right, word)
        case ("and", left, right):
            return contains(left, word) and contains(right, word)
        case ("not", inside):
            return not contains(inside, word)
        case ("defined", ranker):
            return find(ranker, word) is not None
        case ("letter", ranker, letters):
            at = find(ranker, word)
            return at is not None and word[at] in letters
        case ("compare", left, sign, right):
            i, j = find(left, word), find(right, word)
            if i is None or j is None:
                return False
            return i < j if sign == "<" else i > j if sign == ">" else i == j
        case ("at_least", letter, least):
            return word.count(letter) >= least
        case ("more", letter, than):
            return word.count(letter) > word.count(than)
        case ("modulo", letter, modulus, rest):
            return word.count(letter) % modulus == rest
        case ("regex", text):
            return _compiled(text).fullmatch(word) is not None
        case ("named", "palindrome"):
            return word == word[::-1]
    third = len(word) // 3
    return word == "a" * third + "b" * third + "c" * third


@functools.lru_cache(maxsize=256)
def _compiled(text: str) -> re.Pattern[str]:
    if not re.fullmatch(r"[a-z.|*+?()\[\]]*", text):
        raise UsageError(
            f"language: regular expression {text!r}: use letters . [] | * + ? ( ) only"
        )
    try:
        return re.compile(text)
    except re.error as failure:
        raise UsageError(f"language: regular expression {text!r}: {failure}") from None


def letters_of(formula: Formula) -> str:
    """The letters that a formula names, in order; a regular expression names those in its text."""
    found: set[str] = set()

    def walk(each: Any) -> None:
        match each:
            case ("regex", text):
                found.update(c for c in text if c.isalpha())
            case ("named", name):
                found.update("abc" if name == "anbncn" else "ab")
            case ("letter", ranker, letters):
                found.update(letters)
                walk(("defined", ranker))
            case ("defined", ranker):
                found.update(c for _, letters in ranker for c in letters if c != ".")
            case ("compare", left, _, right):
                walk(("defined", left))
                walk(("defined", right))
            case ("at_least", letter, _) | ("modulo", letter, _, _):
                found.add(letter)
            case ("more", letter, than):
                found.update((letter, than))
            case (_, *inside):
                for one in inside:
                    walk(one)

    walk(formula)
    return "".join(sorted(found))
