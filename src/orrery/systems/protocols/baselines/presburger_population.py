"""Unordered population protocols: anonymous agents that add, compare and take remainders."""

from __future__ import annotations

import functools
from typing import Any

from orrery.base.errors import UsageError
from orrery.systems.protocols.problems.languages import Formula, parse
from orrery.systems.protocols.problems.population_agent import MeetingAgent
from orrery.systems.protocols.problems.population_tables import Label, Protocol

Cell = tuple[Any, ...]


class PresburgerPopulation(MeetingAgent):
    """Anonymous agents that decide Presburger predicates (Angluin et al., PODC 2004 and 2006).

    Thresholds `#a >= k` add up values to k; remainders `#a % m = r` gather the sum in ever fewer
    active agents, (n - 1)^2 meetings on average until one is left; the majority `#a > #b` is the
    exact one with four states (Draief and Vojnovic 2010; Mertzios et al. 2014), where a tie is a
    no. Boolean combinations run side by side. Anonymous agents decide no language that depends on
    the order of the letters (Angluin, Aspnes, Eisenstat, Ruppert 2007), and those are refused.

    Knobs: `period_s`, the mean time between the meetings that an agent begins; `patience_s`, after
    which a lost question is repeated. Differs from the papers: meetings take time, so an agent that
    waits for an answer refuses others.

    >>> PresburgerPopulation().protocol("#a > #b", "ab").kind
    'PP'
    """

    def protocol(self, language: str, alphabet: str) -> Protocol:
        return compile_counts(language, alphabet)


@functools.lru_cache(maxsize=64)
def compile_counts(text: str, alphabet: str) -> Protocol:
    """The two-way anonymous protocol of a formula over counts."""
    atoms: list[Formula] = []
    formula = number_atoms(parse(text), atoms, ("at_least", "modulo", "more"), "PP")

    def rule(side: int, me: Label, other: Label) -> tuple[Label, Label]:
        made = [_meet(a, p, q) for a, p, q in zip(atoms, me, other, strict=True)]
        return tuple(one for one, _ in made), tuple(two for _, two in made)

    def output(label: Label) -> bool:
        said = [_says(atom, cell) for atom, cell in zip(atoms, label, strict=True)]
        return truth(formula, said)

    initial = {c: tuple(_first(atom, c) for atom in atoms) for c in alphabet}
    return Protocol(name=text, initial=initial, rule=rule, output=output, order="", one_way=False)


def number_atoms(
    formula: Formula, atoms: list[Formula], known: tuple[str, ...], kind: str
) -> Formula:
    """The formula over ("atom", i); an atom beyond `known` is refused with the theorem."""
    if formula[0] in ("and", "or", "not"):
        parts = [number_atoms(one, atoms, known, kind) for one in formula[1:]]
        return (formula[0], *parts)
    if formula[0] not in known:
        what = {"PP": "Presburger predicates of the letters' counts",
                "IO-PP": "counting predicates (#a >= k and their combinations)"}[kind]  # fmt: skip
        raise UsageError(
            f"unordered {kind} decides exactly the {what} (Angluin, Aspnes, Eisenstat, Ruppert "
            f"2007), and {formula[0]!r} is none; use an ordered protocol"
        )
    if formula not in atoms:
        atoms.append(formula)
    return ("atom", atoms.index(formula))


def truth(formula: Formula, said: list[bool]) -> bool:
    """The value of a formula over numbered atoms."""
    if formula[0] == "atom":
        return said[formula[1]]
    if formula[0] == "not":
        return not truth(formula[1], said)
    values = (truth(one, said) for one in formula[1:])
    return all(values) if formula[0] == "and" else any(values)


def _first(atom: Formula, letter: str) -> Cell:
    if atom[0] == "at_least":
        value = min(int(letter == atom[1]), atom[2])
        return (value, value >= atom[2])
    if atom[0] == "modulo":
        return (True, int(letter == atom[1]) % atom[2])
    if atom[1] == atom[2]:
        return ("b",)
    return ("A" if letter == atom[1] else "B" if letter == atom[2] else "b",)


def _meet(atom: Formula, p: Cell, q: Cell) -> tuple[Cell, Cell]:
    if atom[0] == "at_least":
        total, reached = p[0] + q[0], p[1] or q[1] or p[0] + q[0] >= atom[2]
        # Values that cannot be put together stay where they are, so that the end is silent.
        still = 0 in (p[0], q[0]) or atom[2] in (p[0], q[0])
        kept = p[0] if still else min(total, atom[2])
        return (kept, reached), (total - kept, reached)
    if atom[0] == "modulo":
        if p[0] and q[0]:
            total = (p[1] + q[1]) % atom[2]
            return (True, total), (False, total)
        if p[0] or q[0]:
            value = p[1] if p[0] else q[1]
            return (p[0], value), (q[0], value)
        return p, q
    return _majority(p[0], q[0])


def _majority(p: str, q: str) -> tuple[Cell, Cell]:
    """Strong opinions cancel; strong ones turn weak ones; without any strong one, it is a tie."""
    if {p, q} in ({"A", "B"}, {"a", "b"}):
        return ("b",), ("b",)
    for strong, weak, turned in (("A", "b", "a"), ("B", "a", "b")):
        if (p, q) == (strong, weak):
            return (p,), (turned,)
        if (q, p) == (strong, weak):
            return (turned,), (q,)
    return (p,), (q,)


def _says(atom: Formula, cell: Cell) -> bool:
    if atom[0] == "at_least":
        return bool(cell[1])
    if atom[0] == "modulo":
        return bool(cell[1] == atom[3])
    return cell[0] in ("A", "a")
