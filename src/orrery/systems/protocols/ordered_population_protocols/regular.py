"""From a regular expression to the question whether IO-PP[<] can decide it: the DA test.

Expression -> nondeterministic automaton -> subset construction -> minimal automaton -> its
transition monoid, which is the syntactic monoid -> the identity (xyz)^w y (xyz)^w = (xyz)^w.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from orrery.base.errors import UsageError

Rows = npt.NDArray[np.int64]
MOST_STATES = 64
MOST_ELEMENTS = 200_000


class Dfa(msgspec.Struct, frozen=True, kw_only=True):
    """A complete deterministic automaton: `step[state][letter]`, state 0 is the first."""

    alphabet: str
    step: tuple[tuple[int, ...], ...]
    finals: frozenset[int]

    def accepts(self, word: str) -> bool:
        """Run it."""
        at = 0
        for letter in word:
            at = self.step[at][self.alphabet.index(letter)]
        return at in self.finals

    def check(self) -> None:
        """Refuse an automaton with holes."""
        size = len(self.step)
        if not size or not self.alphabet or len(set(self.alphabet)) != len(self.alphabet):
            raise UsageError("Dfa: give at least one state and an alphabet without repeats")
        for state, row in enumerate(self.step):
            if len(row) != len(self.alphabet) or not all(0 <= to < size for to in row):
                raise UsageError(f"Dfa.step[{state}] = {row}: one state 0..{size - 1} a letter")
        if not all(0 <= final < size for final in self.finals):
            raise UsageError(f"Dfa.finals: {sorted(self.finals)} names a state that is not there")


class DaVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a language is in DA; if not, words e and y with e idempotent, e = xyz, eye != e."""

    inside: bool
    elements: int
    idempotent: str = ""
    y: str = ""


# -- expression to automaton


class _Nfa:
    """Thompson's construction, read by recursive descent."""

    def __init__(self, text: str, alphabet: str) -> None:
        self.text, self.alphabet, self.at = text, alphabet, 0
        self.free: list[set[int]] = []
        self.moves: list[dict[str, int]] = []
        self.start, self.end = self.either()
        if self.at < len(text):
            raise self.wrong("an operator or the end")

    def wrong(self, wanted: str) -> UsageError:
        got = repr(self.text[self.at]) if self.at < len(self.text) else "the end"
        return UsageError(f"expression {self.text!r}: {got} at place {self.at}; expected {wanted}")

    def state(self) -> int:
        self.free.append(set())
        self.moves.append({})
        return len(self.free) - 1

    def peek(self) -> str:
        return self.text[self.at] if self.at < len(self.text) else ""

    def either(self) -> tuple[int, int]:
        start, end = self.state(), self.state()
        while True:
            first, last = self.joined()
            self.free[start].add(first)
            self.free[last].add(end)
            if self.peek() != "|":
                return start, end
            self.at += 1

    def joined(self) -> tuple[int, int]:
        start = last = self.state()
        while self.peek() not in ("", "|", ")"):
            first, end = self.repeated()
            self.free[last].add(first)
            last = end
        return start, last

    def repeated(self) -> tuple[int, int]:
        first, last = self.single()
        while self.peek() in ("*", "+", "?") and self.peek():
            sign = self.text[self.at]
            self.at += 1
            start, end = self.state(), self.state()
            self.free[start].add(first)
            self.free[last].add(end)
            if sign in "*+":
                self.free[last].add(first)
            if sign in "*?":
                self.free[start].add(end)
            first, last = start, end
        return first, last

    def single(self) -> tuple[int, int]:
        letter = self.peek()
        if letter == "(":
            self.at += 1
            inside = self.either()
            if self.peek() != ")":
                raise self.wrong(")")
            self.at += 1
            return inside
        letters = self.letters(letter)
        start, end = self.state(), self.state()
        self.moves[start] = dict.fromkeys(letters, end)
        return start, end

    def letters(self, letter: str) -> str:
        if letter == "[":
            close = self.text.find("]", self.at)
            chosen = self.text[self.at + 1 : close] if close > 0 else ""
            if not chosen or any(c not in self.alphabet for c in chosen):
                raise self.wrong(f"letters of {self.alphabet!r} and ]")
            self.at = close + 1
            return chosen
        if letter != "." and (letter not in self.alphabet or not letter):
            raise self.wrong(f"a letter of {self.alphabet!r}, . [ or (")
        self.at += 1
        return self.alphabet if letter == "." else letter

    def closed(self, states: set[int]) -> frozenset[int]:
        todo, found = list(states), set(states)
        while todo:
            for to in self.free[todo.pop()] - found:
                found.add(to)
                todo.append(to)
        return frozenset(found)


def dfa_of(text: str, alphabet: str = "ab") -> Dfa:
    """The minimal automaton of an expression over letters, with . [] | * + ? and brackets."""
    if not isinstance(text, str) or len(text) > 500:
        raise UsageError("expression: give a text of at most 500 characters")
    if not alphabet or len(set(alphabet)) != len(alphabet):
        raise UsageError(f"alphabet={alphabet!r}: give different letters, at least one")
    try:
        nfa = _Nfa(text, alphabet)
    except RecursionError:
        raise UsageError("expression: brackets are nested too deeply") from None
    sets = [nfa.closed({nfa.start})]
    number = {sets[0]: 0}
    step: list[tuple[int, ...]] = []
    while len(step) < len(sets):
        now, row = sets[len(step)], []
        for letter in alphabet:
            to = nfa.closed({nfa.moves[s][letter] for s in now if letter in nfa.moves[s]})
            if to not in number:
                number[to] = len(sets)
                sets.append(to)
                if len(sets) > 50 * MOST_STATES:
                    raise UsageError("expression: its automaton is too large; simplify it")
            row.append(number[to])
        step.append(tuple(row))
    finals = frozenset(i for i, states in enumerate(sets) if nfa.end in states)
    return minimal(Dfa(alphabet=alphabet, step=tuple(step), finals=finals))


def minimal(dfa: Dfa) -> Dfa:
    """The smallest equal automaton (Moore's refinement), states in the order of first visit."""
    dfa.check()
    order, seen = [0], {0}
    for state in order:
        for to in dfa.step[state]:
            if to not in seen:
                seen.add(to)
                order.append(to)
    group = {state: int(state in dfa.finals) for state in order}
    while True:
        keys = {s: (group[s], *(group[to] for to in dfa.step[s])) for s in order}
        names: dict[tuple[int, ...], int] = {}
        fresh = {s: names.setdefault(keys[s], len(names)) for s in order}
        if len(set(fresh.values())) == len(set(group.values())):
            break
        group = fresh
    one = {fresh[s]: s for s in reversed(order)}
    step = tuple(tuple(fresh[to] for to in dfa.step[one[k]]) for k in range(len(one)))
    finals = frozenset(fresh[s] for s in order if s in dfa.finals)
    return Dfa(alphabet=dfa.alphabet, step=step, finals=finals)


# -- automaton to monoid


class Monoid:
    """The transition monoid of an automaton: `rows[i][state]` is where element i leads."""

    def __init__(self, dfa: Dfa) -> None:
        size = len(dfa.step)
        if size > MOST_STATES:
            raise UsageError(f"{size} states; the monoid is built for at most {MOST_STATES}")
        letters = [tuple(row[c] for row in dfa.step) for c in range(len(dfa.alphabet))]
        found: dict[tuple[int, ...], int] = {tuple(range(size)): 0}
        elements, self.words = [tuple(range(size))], [""]
        for place, row in enumerate(elements):
            for name, letter in zip(dfa.alphabet, letters, strict=True):
                made = tuple(letter[s] for s in row)
                if made not in found:
                    if len(elements) >= MOST_ELEMENTS:
                        raise UsageError(f"the monoid has more than {MOST_ELEMENTS} elements")
                    found[made] = len(elements)
                    elements.append(made)
                    self.words.append(self.words[place] + name)
        self.rows: Rows = np.array(elements, dtype=np.int64).reshape(len(elements), size)
        self.right = np.array([[found[tuple(x[s] for s in row)] for x in letters]
                               for row in elements])  # fmt: skip
        self.left = np.array([[found[tuple(row[s] for s in x)] for x in letters]
                              for row in elements])  # fmt: skip

    def idempotents(self) -> Rows:
        """The elements e with ee = e."""
        twice = np.take_along_axis(self.rows, self.rows, axis=1)
        return np.flatnonzero((twice == self.rows).all(axis=1))

    def above(self, element: int) -> npt.NDArray[np.bool_]:
        """Which y have this element in MyM: all from which it is reached by multiplying."""
        reached = np.zeros(len(self.rows), dtype=bool)
        reached[element] = True
        while True:
            wider = reached | reached[self.right].any(axis=1) | reached[self.left].any(axis=1)
            if (wider == reached).all():
                return reached
            reached = wider


def in_da(language: str | Dfa, alphabet: str = "ab") -> DaVerdict:
    """Whether a regular language is unambiguous star-free: its syntactic monoid is in DA.

    The identity over all x, y, z says: for every idempotent e and every y with e in MyM, eye = e.
    O(idempotents x elements x (states + depth)); the identity itself takes elements^3.
    """
    dfa = minimal(language) if isinstance(language, Dfa) else dfa_of(language, alphabet)
    monoid = Monoid(dfa)
    rows = monoid.rows
    for e in monoid.idempotents().tolist():
        row = rows[e]
        wrong = (row[rows[:, row]] != row).any(axis=1) & monoid.above(e)
        if wrong.any():
            y = int(np.flatnonzero(wrong)[0])
            return DaVerdict(inside=False, elements=len(rows), idempotent=monoid.words[e],
                             y=monoid.words[y])  # fmt: skip
    return DaVerdict(inside=True, elements=len(rows))
