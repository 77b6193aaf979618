"""Reads .ta files in the style of ByMC and TACO: recursive descent, errors with line and column.

The grammar is that of ByMC's threshold automata with TACO's additions: `ta`, `skel` or
`thresholdAutomaton`; `shared`, `parameters`, `define`, `assumptions`, `locations`, `inits`,
`rules`, `specifications`; `x' == x + 1` or `x' := x + 1`; `reset(x)`; `unchanged(x, y)`.
The counts in brackets after a section's name are read and not used. `local` is read and not used.
"""

from __future__ import annotations

from collections.abc import Callable

from orrery.base.errors import did_you_mean
from orrery.systems.protocols.taco.automaton import Automaton, AutomatonError, Property, Rule
from orrery.systems.protocols.taco.forms import (
    FALSE,
    TRUE,
    Formula,
    Linear,
    both,
    compare,
)
from orrery.systems.protocols.taco.lexer import SyntaxFault, Token, words
from orrery.systems.protocols.taco.temporal import Moment, property_of

COMPARISONS = ("==", "!=", "<=", ">=", "<", ">")
SECTIONS = ("assumptions", "locations", "inits", "rules", "specifications")
DEEPEST = 100


def parse(text: str, file: str = "automaton.ta") -> Automaton:
    """The automaton that a text describes; a fault names file, line and column.

    >>> parse("ta A { parameters n; locations {L: [0];} inits {L == n;} }").locations
    ('L',)
    """
    if not isinstance(text, str):
        raise SyntaxFault(file, 1, 1, f"{text!r:.40} is no text", "give the text of a .ta file")
    return _Parser(words(text, file), file).automaton()


class _Parser:
    """One pass over the words; what is declared so far tells what a name means."""

    def __init__(self, tokens: list[Token], file: str) -> None:
        self.tokens, self.file, self.at, self.depth = tokens, file, 0, 0
        self.shared: dict[str, None] = {}
        self.parameters: dict[str, None] = {}
        self.locations: dict[str, None] = {}
        self.macros: dict[str, Linear] = {}

    # -- words

    @property
    def now(self) -> Token:
        return self.tokens[self.at]

    def fault(self, token: Token, problem: str, fix: str = "") -> SyntaxFault:
        return SyntaxFault(self.file, token.line, token.column, problem, fix)

    def take(self, text: str = "") -> Token:
        """The next word, which must be `text` where that is given."""
        token = self.now
        if text and token.text != text:
            raise self.fault(token, f"{token} stands where {text!r} must", f"write {text!r}")
        if token.kind == "end":
            raise self.fault(token, "the file ends too early", "close what is open")
        self.at += 1
        return token

    def skip(self, text: str) -> bool:
        """Pass over `text` if it is next."""
        if self.now.kind != "end" and self.now.text == text:
            self.at += 1
            return True
        return False

    def name(self, what: str) -> Token:
        if self.now.kind != "name":
            raise self.fault(self.now, f"{self.now} is no {what}", f"give the name of a {what}")
        return self.take()

    # -- the file

    def automaton(self) -> Automaton:
        if self.now.kind == "end":
            raise self.fault(self.now, "is empty", "write ta NAME { … }")
        if self.now.text not in ("ta", "skel", "thresholdAutomaton"):
            raise self.fault(self.now, f"begins with {self.now}", "write ta NAME { … }")
        self.take()
        title = self.name("automaton")
        self.take("{")
        parts: dict[str, list] = {section: [] for section in SECTIONS}
        while not self.skip("}"):
            self.part(parts)
        if self.now.kind != "end":
            raise self.fault(self.now, f"{self.now} follows the closing brace", "take it out")
        try:
            return Automaton(
                name=title.text, parameters=tuple(self.parameters), shared=tuple(self.shared),
                locations=tuple(self.locations), assumptions=both(*parts["assumptions"]),
                inits=both(*parts["inits"]), rules=tuple(parts["rules"]),
                properties=tuple(parts["specifications"]),
            )  # fmt: skip
        except AutomatonError as error:
            raise self.fault(title, f"{error.path}: {error.problem}", error.fix) from None

    def part(self, parts: dict[str, list]) -> None:
        token = self.take()
        read: dict[str, Callable[[], object]] = {
            "assumptions": lambda: self.constraint(self.parameters),
            "inits": lambda: self.constraint(self.parameters | self.shared | self.locations),
            "rules": self.rule, "specifications": self.specification,
            "locations": self.location,
        }  # fmt: skip
        if token.text in ("shared", "parameters", "local"):
            self.declare(token)
        elif token.text == "define":
            self.define()
        elif token.text in read:
            if self.skip("("):
                if self.now.kind == "number":
                    self.take()
                self.take(")")
            self.take("{")
            while not self.skip("}"):
                parts[token.text].append(read[token.text]())
                self.skip(";")
            self.skip(";")
        else:
            known = (*SECTIONS, "shared", "parameters", "local", "define")
            fix = did_you_mean(token.text, known)
            raise self.fault(token, f"{token} begins no part of an automaton", fix)

    def declare(self, kind: Token) -> None:
        while True:
            token = self.name("variable")
            self.fresh(token)
            if kind.text != "local":
                getattr(self, kind.text)[token.text] = None
            if not self.skip(","):
                break
        self.take(";")

    def fresh(self, token: Token) -> None:
        for known in (self.shared, self.parameters, self.locations, self.macros):
            if token.text in known:
                raise self.fault(token, f"{token} is declared already", "choose another name")

    def define(self) -> None:
        token = self.name("macro")
        self.fresh(token)
        if not self.skip("=="):
            self.take("=")
        self.macros[token.text] = self.sum(self.parameters | self.shared)
        self.take(";")

    def location(self) -> None:
        token = self.name("location")
        self.fresh(token)
        self.locations[token.text] = None
        self.take(":")
        self.take("[")
        while not self.skip("]"):
            self.take()
        self.take(";")

    # -- rules

    def rule(self) -> Rule:
        token = self.take()
        if token.kind not in ("number", "name"):
            raise self.fault(token, f"{token} is no rule", "write NUMBER: FROM -> TO when (…)")
        self.take(":")
        source = self.known(self.locations, "location")
        self.take("->")
        target = self.known(self.locations, "location")
        guard: Formula = TRUE
        if self.skip("when"):
            guard = self.constraint(self.parameters | self.shared, end="")
        changes: dict[str, int] = {}
        resets: list[str] = []
        if self.skip("do"):
            self.take("{")
            while not self.skip("}"):
                self.update(changes, resets)
        self.take(";")
        return Rule(token.text, source, target, guard, tuple(changes.items()), tuple(resets))

    def known(self, among: dict[str, None], what: str) -> str:
        token = self.name(what)
        if token.text not in among:
            raise self.fault(token, f"there is no {what} {token}", did_you_mean(token.text, among))
        return token.text

    def update(self, changes: dict[str, int], resets: list[str]) -> None:
        start = self.now
        if start.text in ("unchanged", "reset"):
            self.take()
            self.take("(")
            while True:
                name = self.known(self.shared, "shared variable")
                self.once(start, name, changes, resets)
                if start.text == "reset":
                    resets.append(name)
                if not self.skip(","):
                    break
            self.take(")")
        else:
            name = self.known(self.shared, "shared variable")
            self.once(start, name, changes, resets)
            self.take("'")
            if not self.skip(":="):
                self.take("==")
            made = self.sum(self.shared)
            if made == Linear.number(0):
                resets.append(name)
            elif made.terms == ((name, 1),):
                if made.constant:
                    changes[name] = made.constant
            else:
                fix = f"write {name}' == {name} + 1, or {name}' == 0"
                raise self.fault(start, f"{name}' == {made} is no step or reset", fix)
        self.take(";")

    def once(self, at: Token, name: str, changes: dict[str, int], resets: list[str]) -> None:
        if name in changes or name in resets:
            raise self.fault(at, f"{name!r} is updated twice in one rule", "keep one of them")

    # -- formulas without time

    def constraint(self, among: dict[str, None], end: str = ";") -> Formula:
        made = self.formula(among, timed=False)
        if end:
            self.take(end)
        return made.now

    # -- formulas, with or without time

    def specification(self) -> Property:
        token = self.name("property")
        self.take(":")
        begin = self.at
        known = self.parameters | self.shared | self.locations
        made = self.formula(known, timed=True)
        text = " ".join(each.text for each in self.tokens[begin : self.at])
        self.take(";")
        return property_of(token.text, text, made)

    def formula(self, among: dict[str, None], timed: bool) -> Moment:
        """implication, whose right side may be one again"""
        self.depth += 1
        if self.depth > DEEPEST:
            raise self.fault(self.now, f"is nested deeper than {DEEPEST}", "write it flatter")
        left = self.disjunction(among, timed)
        if self.now.text == "->":
            self.take()
            right = self.formula(among, timed)
            left = Moment.either(left.opposite(), right)
        self.depth -= 1
        return left

    def disjunction(self, among: dict[str, None], timed: bool) -> Moment:
        parts = [self.conjunction(among, timed)]
        while self.skip("||"):
            parts.append(self.conjunction(among, timed))
        return Moment.either(*parts) if len(parts) > 1 else parts[0]

    def conjunction(self, among: dict[str, None], timed: bool) -> Moment:
        parts = [self.unary(among, timed)]
        while self.skip("&&"):
            parts.append(self.unary(among, timed))
        return Moment.both(*parts) if len(parts) > 1 else parts[0]

    def unary(self, among: dict[str, None], timed: bool) -> Moment:
        token = self.now
        if self.skip("!"):
            return self.deeper(among, timed).opposite()
        if token.text in ("[]", "<>"):
            if not timed:
                raise self.fault(token, f"{token} stands outside a specification", "take it out")
            self.take()
            inner = self.deeper(among, timed)
            return inner.always() if token.text == "[]" else inner.eventually()
        if token.text in ("true", "false"):
            self.take()
            return Moment.of(TRUE if token.text == "true" else FALSE)
        if token.text == "(" and not self.is_sum():
            self.take("(")
            inner = self.formula(among, timed)
            self.take(")")
            return inner
        return Moment.of(self.comparison(among))

    def deeper(self, among: dict[str, None], timed: bool) -> Moment:
        self.depth += 1
        if self.depth > DEEPEST:
            raise self.fault(self.now, f"is nested deeper than {DEEPEST}", "write it flatter")
        inner = self.unary(among, timed)
        self.depth -= 1
        return inner

    def is_sum(self) -> bool:
        """Whether the bracket that opens here holds a sum, not a formula."""
        level, at = 0, self.at
        while self.tokens[at].kind != "end":
            text = self.tokens[at].text
            level += (text == "(") - (text == ")")
            if level == 0:
                return self.tokens[at + 1].text in (*COMPARISONS, "+", "-", "*")
            if text in (*COMPARISONS, "true", "false", "[]", "!", "&&", "||", "->"):
                return False
            at += 1
        return False

    def comparison(self, among: dict[str, None]) -> Formula:
        left = self.sum(among)
        sign = self.now
        if sign.text not in COMPARISONS:
            fix = f"use one of {' '.join(COMPARISONS)}"
            raise self.fault(sign, f"{sign} stands where a comparison must", fix)
        self.take()
        return compare(left, sign.text, self.sum(among))

    # -- sums

    def sum(self, among: dict[str, None]) -> Linear:
        total = self.term(among)
        while self.now.text in ("+", "-"):
            sign = 1 if self.take().text == "+" else -1
            total = total + self.term(among).times(sign)
        return total

    def term(self, among: dict[str, None]) -> Linear:
        made = self.factor(among)
        while self.now.text == "*":
            star = self.take()
            other = self.factor(among)
            if made.terms and other.terms:
                fix = "multiply by a number only"
                raise self.fault(star, f"({made}) * ({other}) is not linear", fix)
            made = other.times(made.constant) if not made.terms else made.times(other.constant)
        return made

    def factor(self, among: dict[str, None]) -> Linear:
        token = self.take()
        if token.text == "-":
            return self.factor(among).times(-1)
        if token.text == "(":
            self.depth += 1
            if self.depth > DEEPEST:
                raise self.fault(token, f"is nested deeper than {DEEPEST}", "write it flatter")
            made = self.sum(among)
            self.depth -= 1
            self.take(")")
            return made
        if token.kind == "number":
            return Linear.number(int(token.text))
        if token.text in self.macros:
            return self.macros[token.text]
        if token.kind == "name":
            if token.text in among:
                return Linear.of(token.text)
            fix = did_you_mean(token.text, [*among, *self.macros])
            raise self.fault(token, f"there is no {token} that could stand here", fix)
        raise self.fault(token, f"{token} stands where a number or a name must", "write one")
