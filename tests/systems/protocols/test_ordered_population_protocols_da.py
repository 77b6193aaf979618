"""The DA test: known verdicts, the identity as it is written, and another library's automata."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from orrery.base.rand import Stream
from orrery.systems.protocols.ordered_population_protocols import Dfa, dfa_of, in_da
from orrery.systems.protocols.ordered_population_protocols.regular import Monoid, minimal

ID = "ordered-population-protocols"


def words(alphabet: str, longest: int):
    for n in range(1, longest + 1):
        yield from map("".join, itertools.product(alphabet, repeat=n))


def identity_holds(monoid: Monoid) -> bool:
    """(xyz)^w y (xyz)^w = (xyz)^w for all x, y, z, as it is written."""
    rows = monoid.rows
    size, width = rows.shape
    base = width ** np.arange(width)
    codes = np.sort(rows @ base)
    assert len(np.unique(codes)) == size
    for y in rows:
        for x in rows:
            xy = y[x]
            power = rows[:, xy]  # (xyz)[s] = z[y[x[s]]], for every z at once
            for _ in range(12):  # repeated squaring passes through e for aperiodic ones ...
                power = np.take_along_axis(power, power, axis=1)
            whole = power
            twice = np.take_along_axis(whole, whole, axis=1)
            while not (twice == whole).all():  # ... and groups need their order: go on by one
                step = np.take_along_axis(power, whole, axis=1)
                done = (twice == whole).all(axis=1)
                whole = np.where(done[:, None], whole, step)
                twice = np.take_along_axis(whole, whole, axis=1)
            eye = np.take_along_axis(whole, y[whole], axis=1)
            if (eye != whole).any():
                return False
    return True


KNOWN = {
    ("(ab)*", "ab"): False, ("(aa)*", "ab"): False, ("(aa)*", "a"): False, ("a*b*", "ab"): True,
    (".*a.*", "ab"): True, (".*ab.*", "ab"): True, (".*ab.*", "abc"): False, ("a.*", "ab"): True,
    (".*aa.*", "ab"): False, ("a.*b", "ab"): True, ("(a|b)*", "ab"): True, ("(ab|b)*", "ab"): False,
    ("[bc]*a[ab]*", "abc"): True, (".*a.b.*", "ab"): False,
}  # fmt: skip


@pytest.mark.works_when(ID, 2)
@pytest.mark.parametrize("expression, alphabet", KNOWN)
def test_known_verdicts_and_the_reference_monoid(expression, alphabet):
    verdict = in_da(expression, alphabet)
    assert verdict.inside is KNOWN[expression, alphabet]
    assert identity_holds(Monoid(dfa_of(expression, alphabet))) is verdict.inside


def random_dfa(rng: Stream) -> Dfa:
    size = 1 + rng.below(5)
    step = tuple((rng.below(size), rng.below(size)) for _ in range(size))
    finals = frozenset(s for s in range(size) if rng.random() < 0.5)
    return Dfa(alphabet="ab", step=step, finals=finals)


@pytest.mark.works_when(ID, 2)
def test_random_automata_agree_with_the_identity():
    rng = Stream(1, "test", "dfa")
    seen = {True: 0, False: 0}
    for _ in range(100):
        dfa = minimal(random_dfa(rng))
        inside = in_da(dfa).inside
        seen[inside] += 1
        assert identity_holds(Monoid(dfa)) is inside, dfa
    assert min(seen.values()) >= 20, seen


def test_the_witness_of_a_no_is_one():
    for expression in ("(ab)*", "(aa)*", ".*aa.*"):
        verdict, dfa = in_da(expression), dfa_of(expression)
        e, y = verdict.idempotent, verdict.y
        assert _leads(dfa, e) == _leads(dfa, e + e)
        assert _leads(dfa, e + y + e) != _leads(dfa, e)


def _leads(dfa: Dfa, word: str) -> list[int]:
    ends = []
    for state in range(len(dfa.step)):
        for letter in word:
            state = dfa.step[state][dfa.alphabet.index(letter)]
        ends.append(state)
    return ends


def test_minimal_automata_are_those_of_automata_lib():
    fa = pytest.importorskip("automata.fa.dfa", reason="automata-lib is not installed")
    nfa = pytest.importorskip("automata.fa.nfa")
    for expression, alphabet in KNOWN:
        theirs = fa.DFA.from_nfa(
            nfa.NFA.from_regex(expression, input_symbols=set(alphabet)), minify=True
        )
        ours = dfa_of(expression, alphabet)
        # Theirs may leave the dead state out.
        assert len(ours.step) - len(theirs.states) in (0, 1), expression
        for word in words(alphabet, 4):
            assert ours.accepts(word) == theirs.accepts_input(word), (expression, word)
