"""Unordered immediate observation: anonymous agents that can only look, and count to k."""

from __future__ import annotations

import functools

from orrery.systems.protocols.baselines.presburger_population import number_atoms, truth
from orrery.systems.protocols.problems.languages import Formula, parse
from orrery.systems.protocols.problems.population_agent import MeetingAgent
from orrery.systems.protocols.problems.population_tables import Label, Protocol


class CountingPopulation(MeetingAgent):
    """Anonymous agents that only observe, and count to a threshold (Angluin et al., 2007).

    All that hold the letter stand on level 1; who sees another on its own level climbs one level,
    and level k is reached iff there are k of them. Who sees that tells everybody it meets. For
    k = 1 this is a one-way epidemic, 2 (n - 1) H(n - 1) meetings on average from one source. These
    are all that unordered immediate observation decides: boolean combinations of `#a >= k`.

    Knobs: `period_s`, the mean time between the meetings that an agent begins; `patience_s`, after
    which a lost question is repeated. Differs from the paper: meetings take time, so an agent that
    waits for an answer refuses others.

    >>> CountingPopulation().protocol("#a >= 3", "ab").kind
    'IO-PP'
    """

    def protocol(self, language: str, alphabet: str) -> Protocol:
        return compile_levels(language, alphabet)


@functools.lru_cache(maxsize=64)
def compile_levels(text: str, alphabet: str) -> Protocol:
    """The one-way anonymous protocol of a formula over thresholds."""
    atoms: list[Formula] = []
    formula = number_atoms(parse(text), atoms, ("at_least",), "IO-PP")

    def rule(side: int, me: Label, other: Label) -> tuple[Label, Label]:
        seen = zip(atoms, me, other, strict=True)
        return tuple(_observe(atom[2], p, q) for atom, p, q in seen), other

    def output(label: Label) -> bool:
        return truth(formula, [known for _, known in label])

    initial = {
        c: tuple((int(c == letter), int(c == letter) >= k) for _, letter, k in atoms)
        for c in alphabet
    }
    return Protocol(name=text, initial=initial, rule=rule, output=output, order="")


def _observe(k: int, me: tuple[int, bool], other: tuple[int, bool]) -> tuple[int, bool]:
    level, known = me
    if 1 <= level < k and level == other[0]:
        level += 1
    return level, known or other[1] or level >= k
