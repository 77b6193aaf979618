"""Linearizability of a register whose written values are unique, in O(n log n).

Gibbons and Korach ("Testing shared memories", 1997): a read names its write, so the operations of
one value form a cluster, and in a linearisation the clusters stand one after another. Let a cluster
have `f`, its first return, and `s`, its last call. Cluster X must stand before Y exactly when
f(X) < s(Y), and such an order exists exactly when no two clusters must each stand before the other.

A successful compare-and-swap binds two values: the new one follows the old one with nothing in
between. So values joined by swaps form a *block*, whose inner order is fixed; blocks take the place
of clusters, and the theorem holds for them word for word, since it looks only at f and s.

Indefinite operations: one that nobody observed is left out, because leaving it out never hurts; one
that was observed did happen and returns after everything. Reads without an answer say nothing. The
exception is a swap that was *refused*: an unobserved write may explain it (see `refusals`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from orrery.check.history import OPEN, History
from orrery.check.violation import Violation

START = -1
"""Stands for the write of the initial value, which returned before everything."""


class Block:
    """Values joined by swaps, in their only order, with the first return and the last call."""

    __slots__ = ("first_op", "first_ret", "groups", "last_call", "last_op")

    def __init__(self) -> None:
        self.groups: list[tuple[int, Any, list[int]]] = []  # the writer, its value, its readers
        self.first_ret, self.first_op = OPEN + 1, START
        self.last_call, self.last_op = -3, START


class UniqueRegister:
    """The operations of one register sorted by value; `solve` says whether they can be ordered."""

    def __init__(self, history: History, indices: Iterable[int], start: Any) -> None:
        self.history, self.start = history, start
        self.calls, self.rets = history.order()
        self.reads: dict[Any, list[int]] = {}
        self.swaps: list[int] = []  # that happened, or may have happened
        self.refused: list[int] = []
        self.writes: list[int] = []  # plain writes that happened or may have happened
        self.writer: dict[Any, int] = {}
        self.aborted: dict[Any, int] = {}
        self.written_twice: set[Any] = set()
        self.demand: dict[Any, int] = {}  # an observed value, and who observed it
        self.blocks: list[Block] = []
        self._sort(indices)

    def _sort(self, indices: Iterable[int]) -> None:
        fs, states = self.history.fs, self.history.states
        values, results = self.history.values, self.history.results
        for i in indices:
            f, state = fs[i], states[i]
            if f == "read":
                if state == "ok":
                    self.reads.setdefault(results[i], []).append(i)
                continue
            new = values[i] if f == "write" else values[i][1]
            if state == "fail":
                self.aborted.setdefault(new, i)
            elif f == "cas" and state == "ok" and results[i] is not None and not results[i]:
                self.refused.append(i)
            else:
                (self.writes if f == "write" else self.swaps).append(i)
                if new in self.writer:
                    self.written_twice.add(new)
                self.writer[new] = i

    def new_value(self, i: int) -> Any:
        """The value that a write or swap puts there."""
        value = self.history.values[i]
        return value if self.history.fs[i] == "write" else value[1]

    def expected(self, i: int) -> Any:
        """The value that a swap must find."""
        return self.history.values[i][0]

    def is_unique(self) -> bool:
        """Whether every observed value has one writer, so that the algorithm applies."""
        if any(self.expected(i) == self.new_value(i) for i in self.swaps):
            return False
        observed: set[Any] = set(self.reads)
        observed.update(self.expected(i) for i in self.swaps)
        observed.update(self.expected(i) for i in self.refused)
        if self.start in observed and self.start in self.writer:
            return False
        return not (observed & self.written_twice)

    # -- who observed what

    def phantom(self) -> Violation | None:
        """A value that somebody observed and nobody can have written; holds for any values."""
        states = self.history.states
        demand = {value: readers[0] for value, readers in self.reads.items()}
        for i in self.swaps:
            if states[i] == "ok":
                demand.setdefault(self.expected(i), i)
        self.demand = demand
        for value, who in demand.items():
            if value != self.start and value not in self.writer:
                return self._unwritten(value, who)
        return None

    def _unwritten(self, value: Any, who: int) -> Violation:
        if value in self.aborted:
            text = f"the value {value!r} was observed, but its write failed"
            return self.report("aborted_read", text, [who, self.aborted[value]])
        text = f"the value {value!r} was observed, but nobody wrote it"
        return self.report("phantom_read", text, [who])

    def _close_demand(self) -> Violation | None:
        """Add what observed indefinite swaps must have found, and so on backwards."""
        todo = list(self.demand)
        states, fs = self.history.states, self.history.fs
        while todo:
            value = todo.pop()
            if value == self.start:
                continue
            if value not in self.writer:
                return self._unwritten(value, self.demand[value])
            i = self.writer[value]
            if fs[i] == "cas" and states[i] != "ok" and self.expected(i) not in self.demand:
                self.demand[self.expected(i)] = i
                todo.append(self.expected(i))
        return None

    def happened(self, i: int) -> bool:
        """Whether a write or swap certainly took effect: it was acknowledged or observed."""
        return self.history.states[i] == "ok" or self.new_value(i) in self.demand

    # -- the algorithm

    def solve(self) -> Violation | None:
        """A violation, or None when the operations other than refused swaps can be ordered."""
        return self._close_demand() or self._link() or self._zones()

    def _link(self) -> Violation | None:
        """Build the blocks and check their inner order."""
        taker: dict[Any, int] = {}
        for i in self.swaps:
            if not self.happened(i):
                continue
            old = self.expected(i)
            if old in taker:
                text = f"two swaps both replaced {old!r}, which was written once"
                return self.report("cas_fork", text, [taker[old], i])
            taker[old] = i
        used = 0
        heads = [START, *(i for i in self.writes if self.happened(i))]
        for head in heads:
            block = Block()
            self.blocks.append(block)
            writer: int | None = head
            while writer is not None:
                value = self.start if writer == START else self.new_value(writer)
                used += writer != START and writer != head
                # An unobserved value may have several writers, and then nobody reads or swaps it.
                block.groups.append((writer, value, self.reads.get(value, [])))
                writer = taker.get(value)
            bad = self._inner_order(block)
            if bad:
                return bad
        if used < len(taker):
            reached = {w for block in self.blocks for w, _, _ in block.groups}
            loop = next(i for i in taker.values() if i not in reached)
            text = "swaps replace each other's values in a ring that no write began"
            return self.report("cas_cycle", text, [loop])
        return None

    def _inner_order(self, block: Block) -> Violation | None:
        """Check that nothing in the block ended before something earlier in it began."""
        calls, rets = self.calls, self.rets
        for writer, _, readers in block.groups:
            call, ret = (-2, -1) if writer == START else (calls[writer], rets[writer])
            if ret < block.last_call:
                return self._inverted(block.last_op, writer)
            if ret < block.first_ret:
                block.first_ret, block.first_op = ret, writer
            if call > block.last_call:
                block.last_call, block.last_op = call, writer
            before_call, before_op = block.last_call, block.last_op
            for i in readers:
                if rets[i] < before_call:
                    return self._inverted(before_op, i)
                if rets[i] < block.first_ret:
                    block.first_ret, block.first_op = rets[i], i
                if calls[i] > block.last_call:
                    block.last_call, block.last_op = calls[i], i
        return None

    def _inverted(self, earlier: int, later: int) -> Violation:
        """`later` must follow `earlier` in the order of values, yet it ended before that began."""
        h = self.history
        if h.fs[later] == "read" and self.writer.get(h.results[later]) == earlier:
            text = f"a read got {h.results[later]!r} before its write began"
            return self.report("future_read", text, [earlier, later])
        if h.fs[earlier] == "read":
            text = f"a read got {h.results[earlier]!r} after a swap had replaced it"
            return self.report("stale_read", text, [earlier, later])
        text = "an operation ended before the swap or write that it builds on began"
        return self.report("cas_order", text, [earlier, later])

    def _zones(self) -> Violation | None:
        """Look for two blocks each of which must stand before the other."""
        blocks = self.blocks
        forward = sorted(
            (b.first_ret, n) for n, b in enumerate(blocks) if b.first_ret < b.last_call
        )
        for (_, n), (begin, m) in pairwise(forward):
            if begin < blocks[n].last_call:
                nested = blocks[m].last_call < blocks[n].last_call
                return self._tangled(blocks[n], blocks[m], "stale_read" if nested else "inversion")
        begins = [begin for begin, _ in forward]
        for block in blocks:
            if block.first_ret < block.last_call:
                continue
            at = bisect_left(begins, block.last_call) - 1
            if at >= 0 and block.first_ret < blocks[forward[at][1]].last_call:
                return self._tangled(blocks[forward[at][1]], block, "stale_read")
        return None

    def _tangled(self, one: Block, two: Block, kind: str) -> Violation:
        was, now = self._named(one), self._named(two)
        if kind == "stale_read":
            text = f"{was} was there before and after {now}, which came and went in between"
        else:
            text = f"some saw {was} before {now}, others {now} before {was}"
        return self.report(kind, text, [one.first_op, one.last_op, two.first_op, two.last_op])

    @staticmethod
    def _named(block: Block) -> str:
        return repr(block.groups[0][1])

    # -- evidence

    def report(self, kind: str, text: str, indices: Iterable[int]) -> Violation:
        """A violation whose evidence, checked alone, is still a violation.

        So a read brings its write, a swap the write of what it replaced, and an indefinite
        operation somebody who observed it.
        """
        h = self.history
        chosen: set[int] = set()
        todo = [i for i in indices if i != START]
        while todo:
            i = todo.pop()
            if i in chosen:
                continue
            chosen.add(i)
            needs: list[Any] = []
            if h.fs[i] == "read":
                needs.append(h.results[i])
            elif h.states[i] != "fail":
                if h.fs[i] == "cas":
                    needs.append(self.expected(i))
                if h.states[i] != "ok" and self.new_value(i) in self.demand:
                    todo.append(self.demand[self.new_value(i)])
            todo += [self.writer[value] for value in needs if value in self.writer]
        evidence = tuple(h[i] for i in sorted(chosen, key=lambda i: self.calls[i]))
        key = h.keys[evidence[0].index]
        return Violation(kind, (f"key {key!r}: " if key is not None else "") + text, evidence)
