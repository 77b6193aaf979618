"""A history as a light cone: operations, session order, reads-from, and causality as bit masks.

Bit i of a mask stands for operation i, so a set of operations is one Python integer and a union is
one machine-speed `|`. Causality of n operations takes n masks of n bits.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from orrery.base.errors import SpecError
from orrery.systems.protocols.problems.history_cases import START, Case

MOST_MAPS = 4096
"""Reads of values that were written more than once may come from several writes; this many
combinations are tried, and beyond it a verdict is None."""

MOST_OPERATIONS = 20_000
"""Beyond this many operations the masks would fill the memory; hand in a trace with views."""

INITIAL = -1


def bits(mask: int) -> Iterator[int]:
    """The places of a mask's bits, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class Cone:
    """The operations that happened, each after those of its session that came before.

    An indefinite write that somebody read did happen, at any time after its session's earlier
    operations; one that nobody read is left out, as is every read without an answer: leaving them
    out never makes a model fail.
    """

    def __init__(self, case: Case) -> None:
        case.check()
        h = case.history
        if len(h) > MOST_OPERATIONS:
            fix = f"give at most {MOST_OPERATIONS}, or a trace with views"
            raise SpecError("case.history", f"{len(h)} operations", fix)
        calls, rets = h.order()
        looked = {(h.keys[i], h.results[i]) for i in range(len(h))
                  if h.fs[i] == "read" and h.states[i] == "ok"}  # fmt: skip
        kept = [
            i for i in sorted(range(len(h)), key=calls.__getitem__)
            if h.states[i] == "ok" or (h.fs[i] == "write" and h.states[i] != "fail"
                                       and (h.keys[i], h.values[i]) in looked)
        ]  # fmt: skip
        self.index = kept
        self.n = len(kept)
        self.is_read = [h.fs[i] == "read" for i in kept]
        self.key: list[Any] = [h.keys[i] for i in kept]
        self.value: list[Any] = [h.results[i] if h.fs[i] == "read" else h.values[i] for i in kept]
        self.call = [calls[i] for i in kept]
        self.ret = [rets[i] for i in kept]
        self.settled = 0
        for at, i in enumerate(kept):
            self.settled |= (i in case.settled) << at
        self.session_before: list[int] = []  # the definite operation of the session before it
        self.process: list[Any] = [h.processes[i] for i in kept]
        last: dict[Any, int] = {}
        self.lines: dict[Any, list[int]] = {}
        for at, i in enumerate(kept):
            self.session_before.append(last.get(h.processes[i], -1))
            if h.states[i] == "ok":
                last[h.processes[i]] = at
                self.lines.setdefault(h.processes[i], []).append(at)
        self.writes = sum(1 << at for at in range(self.n) if not self.is_read[at])
        self.of_key: dict[Any, int] = {}
        for at in bits(self.writes):
            self.of_key[self.key[at]] = self.of_key.get(self.key[at], 0) | 1 << at

    def sources(self) -> list[list[int]]:
        """For each read the writes that it may come from; `INITIAL` is the state before all."""
        by_value: dict[tuple[Any, Any], list[int]] = {}
        for at in bits(self.writes):
            by_value.setdefault((self.key[at], self.value[at]), []).append(at)
        found = []
        for at in range(self.n):
            if self.is_read[at]:
                given = by_value.get((self.key[at], self.value[at]), [])
                found.append([INITIAL, *given] if self.value[at] is START else given)
        return found

    def maps(self) -> Iterator[dict[int, int]] | None:
        """Every map from reads to writes, or None when there are more than `MOST_MAPS`."""
        sources = self.sources()
        size = 1
        for choices in sources:
            size *= len(choices)
            if size > MOST_MAPS:
                return None
        reads = [at for at in range(self.n) if self.is_read[at]]
        return (dict(zip(reads, choice, strict=True)) for choice in itertools.product(*sources))

    def topological(self, source: dict[int, int]) -> list[int] | None:
        """All operations, each after its session and after what it read; None if in a ring."""
        before = [
            [d for d in (self.session_before[at], source.get(at, -1)) if d >= 0]
            for at in range(self.n)
        ]
        return topological(before)


def topological(before: list[list[int]]) -> list[int] | None:
    """An order in which each item follows those before it; None when there is none. O(edges)."""
    waits = [len(each) for each in before]
    after: list[list[int]] = [[] for _ in before]
    for at, each in enumerate(before):
        for d in each:
            after[d].append(at)
    ready = [at for at, count in enumerate(waits) if not count]
    order = []
    while ready:
        at = ready.pop()
        order.append(at)
        for other in after[at]:
            waits[other] -= 1
            if not waits[other]:
                ready.append(other)
    return order if len(order) == len(before) else None


def has_ring(before: dict[int, int]) -> bool:
    """Whether a relation given as masks of predecessors has a ring. O(n) mask operations."""
    done = 0
    for root in before:
        if done >> root & 1:
            continue
        path = 1 << root
        stack = [(root, before[root])]
        while stack:
            at, left = stack[-1]
            if left & path:
                return True
            left &= ~done
            if not left:
                stack.pop()
                path &= ~(1 << at)
                done |= 1 << at
                continue
            low = left & -left
            stack[-1] = (at, left ^ low)
            step = low.bit_length() - 1
            path |= low
            stack.append((step, before.get(step, 0)))
    return False
