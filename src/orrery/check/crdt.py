"""Replicated data types: convergence, monotone growth, and the laws of a merge.

Strong eventual consistency (Shapiro, Preguica, Baquero and Zawirski, 2011): replicas that have seen
the same set of updates, in whatever order, are in equal states.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from orrery.check.violation import Violation

Equal = Callable[[Any, Any], bool]


def strong_eventual(
    observations: Iterable[tuple[Hashable, Iterable[Hashable], Any]],
    equal: Equal = operator.eq,
) -> list[Violation]:
    """Equal sets of updates seen give equal states; observations are (node, updates, state).

    O(observations + updates seen).
    """
    first: dict[frozenset[Hashable], tuple[Hashable, Any]] = {}
    found = []
    for node, updates, state in observations:
        seen = frozenset(updates)
        who, other = first.setdefault(seen, (node, state))
        if not equal(state, other):
            text = f"{who!r} and {node!r} saw the same {len(seen)} updates and differ"
            evidence = {"nodes": (who, node), "states": (other, state)}
            found.append(Violation("diverged", text, evidence))
    return found


def converged(states: Mapping[Hashable, Any], equal: Equal = operator.eq) -> list[Violation]:
    """All replicas are equal at the end. O(nodes)."""
    found = []
    first: tuple[Hashable, Any] | None = None
    for node, state in states.items():
        if first is None:
            first = (node, state)
        elif not equal(state, first[1]):
            text = f"at the end {first[0]!r} and {node!r} differ"
            evidence = {"nodes": (first[0], node), "states": (first[1], state)}
            found.append(Violation("not_converged", text, evidence))
    return found


def monotone(
    states: Sequence[Any], at_most: Callable[[Any, Any], bool] = operator.le
) -> list[Violation]:
    """Each state is at least the one before, in the order `at_most` of the lattice. O(states)."""
    return [
        Violation("shrank", f"state {n + 1} is not above state {n}", {"before": a, "after": b})
        for n, (a, b) in enumerate(pairwise(states))
        if not at_most(a, b)
    ]


def merge_laws(
    merge: Callable[[Any, Any], Any],
    samples: Sequence[Any],
    *,
    equal: Equal = operator.eq,
    at_most: Callable[[Any, Any], bool] | None = None,
) -> list[Violation]:
    """A merge is commutative, associative, idempotent and leaves its inputs alone. O(samples^3).

    With `at_most`, the merge must also be an upper bound of both. Each broken law is reported once,
    with the first samples that break it.
    """
    broken: dict[str, Violation] = {}

    def expect(holds: bool, kind: str, text: str, *inputs: Any) -> None:
        if not holds and kind not in broken:
            broken[kind] = Violation(kind, text, tuple(copy.deepcopy(inputs)))

    def join(a: Any, b: Any) -> Any:
        # Merges may write into their arguments by mistake, so they never get the samples.
        left, right = copy.deepcopy(a), copy.deepcopy(b)
        joined = copy.deepcopy(merge(left, right))
        untouched = equal(left, a) and equal(right, b)
        expect(untouched, "merge_mutates", "merge changed one of its inputs", a, b)
        return joined

    for a in samples:
        expect(equal(join(a, a), a), "not_idempotent", "merge(a, a) is not a", a)
    for a in samples:
        for b in samples:
            ab = join(a, b)
            same = equal(ab, join(b, a))
            expect(same, "not_commutative", "merge(a, b) is not merge(b, a)", a, b)
            if at_most is not None:
                above = at_most(a, ab) and at_most(b, ab)
                expect(above, "not_upper_bound", "merge(a, b) is not above both", a, b)
            for c in samples:
                same = equal(join(ab, c), join(a, join(b, c)))
                text = "merge(merge(a, b), c) is not merge(a, merge(b, c))"
                expect(same, "not_associative", text, a, b, c)
    return list(broken.values())
