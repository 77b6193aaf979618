"""The compiler from ranker formulas to IO-PP[<]: candidates, marks and blame.

Every ranker of the formula, and every prefix of one, is followed by each agent whose letter fits
its last step. Such an agent is

    OUT        not in the region of the ranker (its letter fits, its place does not)
    CANDIDATE  believes that it is the ranker's place
    MARKED     has seen a better candidate (further left for X, further right for Y)
    BLAMED     was a candidate, and has learnt that it is not in the region

Whoever needs to know on which side of a ranker it stands takes that from the candidate that it saw
last. Beliefs about a prefix may be wrong for a while, so an agent may leave its region after having
marked others. That is mended by two rules: a marked agent becomes a candidate again when it sees a
blamed one (blame flag) or a worse candidate (conflict detection), and a blamed agent is out as soon
as it sees a candidate.

Why it settles: an agent leaves the set S = {candidates} u {blamed} only by seeing another member of
S, which stays. So S is never empty once anybody was in the region. When the prefix has settled, the
blamed are all outside and the candidates inside; the true place becomes a candidate by seeing
any other member of S, nobody can mark it, and everybody who sees it takes its final state. If the
region holds no fitting letter, only blamed agents are left in S, and they tell all that the ranker
is undefined. By induction over the steps this decides every boolean combination of rankers, their
letters and their order, which is all of FO2[<] (Weis and Immerman 2009) = DA.
"""

from __future__ import annotations

import functools
from typing import Any

from orrery.base.errors import UsageError
from orrery.systems.protocols.problems.languages import Formula, Ranker, letters_of, parse
from orrery.systems.protocols.problems.population_tables import EARLIER, Label, Protocol

OUT, CANDIDATE, MARKED, BLAMED = range(4)
UNKNOWN, BEFORE, AFTER, AT = range(4)
_SIGN = {"<": BEFORE, "=": AT, ">": AFTER}
MOST_STEPS = 8

Atom = tuple[Any, ...]


class RankerRule:
    """The rule of one formula: what an agent becomes when it sees another."""

    def __init__(self, formula: Formula, alphabet: str, repair: bool) -> None:
        self.alphabet, self.repair = alphabet, repair
        self.atoms: list[Atom] = []
        self.formula = self._number_atoms(formula)
        self.rankers: list[Ranker] = []
        for atom in self.atoms:
            for ranker in (atom[1], atom[3] if atom[0] == "compare" else ()):
                self._add(ranker)
        self.place = {ranker: k for k, ranker in enumerate(self.rankers)}
        self.parent = [self.place.get(ranker[:-1], -1) for ranker in self.rankers]
        self.fits = [self._letters(ranker) for ranker in self.rankers]
        # Who must know its side of a ranker: who may be the next step, and who is compared with it.
        self.sides: list[set[str]] = [set() for _ in self.rankers]
        for k, parent in enumerate(self.parent):
            if parent >= 0:
                self.sides[parent] |= self.fits[k]
        for atom in self.atoms:
            if atom[0] == "compare":
                self.sides[self.place[atom[3]]] |= self.fits[self.place[atom[1]]]

    def _add(self, ranker: Ranker) -> None:
        if len(ranker) > MOST_STEPS:
            raise UsageError(f"a ranker of {len(ranker)} steps; give at most {MOST_STEPS}")
        for end in range(1, len(ranker) + 1):
            if ranker[:end] not in self.rankers:
                self.rankers.append(ranker[:end])

    def _letters(self, ranker: Ranker) -> set[str]:
        letters = ranker[-1][1]
        return set(self.alphabet if letters == "." else letters)

    def _number_atoms(self, formula: Formula) -> Formula:
        """The formula over ("atom", i); counting a letter to k is a ranker of k steps."""
        match formula:
            case ("and" | "or" as word, left, right):
                return (word, self._number_atoms(left), self._number_atoms(right))
            case ("not", inside):
                return ("not", self._number_atoms(inside))
            case ("at_least", _, 0):
                return ("true",)
            case ("at_least", letter, least):
                formula = ("defined", (("X", letter),) * least)
            case ("more" | "modulo" | "named", *_):
                raise UsageError(
                    f"{formula[0]} is not an unambiguous star-free language, and IO-PP[<] decides "
                    "no other; use PP[+1], or an unordered protocol for counts"
                )
            case ("regex", text):
                raise UsageError(
                    f"'{text}' is a regular expression; in_da(…) says whether IO-PP[<] can decide "
                    "it, and the compiler takes it as a ranker formula, such as !(Xb < Ya) for a*b*"
                )
        if formula not in self.atoms:
            self.atoms.append(formula)
        return ("atom", self.atoms.index(formula))

    # -- agents

    def first(self, letter: str) -> Label:
        """The state that a letter begins in: rankers of one step have candidates at once."""
        marks = [
            CANDIDATE if letter in self.fits[k] and self.parent[k] < 0 else OUT
            for k in range(len(self.rankers))
        ]
        sides = [UNKNOWN] * len(self.rankers)
        said = [self._own(atom, letter, marks, sides) or False for atom in self.atoms]
        return (letter, tuple(marks), tuple(sides), tuple(said))

    def __call__(self, side: int, me: Label, other: Label) -> tuple[Label, Label]:
        letter, my_marks, my_sides, my_said = me
        marks, sides, said = list(my_marks), list(my_sides), list(my_said)
        theirs = other[1]
        for k in range(len(self.rankers)):
            if letter in self.fits[k]:
                marks[k] = self._observed(k, marks[k], theirs[k], side)
                if self.parent[k] >= 0:
                    marks[k] = self._placed(k, marks, sides)
            if letter in self.sides[k]:
                if marks[k] == CANDIDATE:
                    sides[k] = UNKNOWN  # its own place; what it saw before no longer counts
                elif theirs[k] == CANDIDATE:
                    sides[k] = AFTER if side == EARLIER else BEFORE
                elif theirs[k] == BLAMED:
                    sides[k] = UNKNOWN
        for i, atom in enumerate(self.atoms):
            own = self._own(atom, letter, marks, sides)
            told = self._own(atom, other[0], theirs, other[2]) if own is None else own
            if told is not None:
                said[i] = told
        return (letter, tuple(marks), tuple(sides), tuple(said)), other

    def _observed(self, k: int, mine: int, theirs: int, side: int) -> int:
        better = (side == EARLIER) == (self.rankers[k][-1][0] == "X")
        if mine == CANDIDATE and theirs == CANDIDATE and better:
            return MARKED
        if mine == BLAMED and theirs == CANDIDATE:
            return OUT
        # With one step nobody is ever misled, so there is nothing to mend.
        if mine == MARKED and self.repair and self.parent[k] >= 0:
            conflict = theirs == CANDIDATE and not better
            if conflict or theirs == BLAMED:
                return CANDIDATE
        return mine

    def _placed(self, k: int, marks: list[int], sides: list[int]) -> int:
        """The mark after asking whether the agent still stands in the region of the ranker."""
        parent = self.parent[k]
        stands = AT if marks[parent] == CANDIDATE else sides[parent]
        inside = stands == (AFTER if self.rankers[k][-1][0] == "X" else BEFORE)
        mark = marks[k]
        if inside:
            return CANDIDATE if mark in (OUT, BLAMED) else mark
        if mark == CANDIDATE:
            return BLAMED if self.repair else OUT
        return OUT if mark == MARKED else mark

    def _own(self, atom: Atom, letter: str, marks: Any, sides: Any) -> bool | None:
        """What a witness says of an atom; None from who is no witness."""
        mark = marks[self.place[atom[1]]]
        if mark not in (CANDIDATE, BLAMED):
            return None
        if mark == BLAMED:
            return False
        if atom[0] == "defined":
            return True
        if atom[0] == "letter":
            return letter in atom[2]
        k = self.place[atom[3]]
        stands = AT if marks[k] == CANDIDATE else sides[k]
        return bool(stands == _SIGN[atom[2]])

    def output(self, label: Label) -> bool:
        """What an agent in this state says."""
        return _truth(self.formula, label[3])


def _truth(formula: Formula, said: tuple[bool, ...]) -> bool:
    match formula:
        case ("atom", i):
            return said[i]
        case ("not", inside):
            return not _truth(inside, said)
        case ("and", left, right):
            return _truth(left, said) and _truth(right, said)
        case ("or", left, right):
            return _truth(left, said) or _truth(right, said)
    return True


@functools.lru_cache(maxsize=128)
def compile_rankers(text: str, alphabet: str = "ab", repair: bool = True) -> Protocol:
    """The IO-PP[<] protocol of a ranker formula; `repair=False` leaves blame and conflict out."""
    formula = parse(text)
    strange = sorted(set(letters_of(formula)) - set(alphabet))
    if strange:
        raise UsageError(f"language: letter {strange[0]!r} is not in the alphabet {alphabet!r}")
    rule = RankerRule(formula, alphabet, repair)
    initial = {letter: rule.first(letter) for letter in alphabet}
    return Protocol(name=text, initial=initial, rule=rule, output=rule.output)
