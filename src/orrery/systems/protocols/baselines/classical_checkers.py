"""Classical checkers of named consistency models, each by its own textbook definition.

Linearizability and sequential consistency come from `orrery.check`. The others are written here,
as their authors defined them, over serialisations of operations and orders of versions.
"""

from __future__ import annotations

import graphlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from orrery.base.errors import SpecError
from orrery.base.rand import Stream
from orrery.check import History, Operation, linearizable, sequentially_consistent
from orrery.parts import Count
from orrery.systems.protocols.problems.history_cases import START, Case, case_of, random_case
from orrery.systems.protocols.problems.history_model import HistoryJudge, Judgement

ReadsFrom = dict[int, int | None]
Pairs = list[tuple[int, int]]


class ClassicalCheckers(HistoryJudge):
    """Judges nine models by nine separate checkers, one textbook definition each.

    Lamport (1979), Lipton and Sandberg (1988), Herlihy and Wing (1990), Terry et al. (1994),
    Ahamad et al. (1995), Vogels (2009). PRAM and causal memory ask for each process for an order
    of all writes and its own reads in which every read finds the last write; the orders are
    searched, with memory. Session guarantees ask for one order of versions. Eventual consistency,
    on a finite history: reads issued after all writes were delivered agree on a written value.
    In all of them a read may not depend on its own effects, and finds a value that was written.

    Knob: `budget`, the states of a search before it answers None. Exponential at worst.

    **Differs from the papers.** Values may be written more than once; then some choice of the
    writes that were read must do. An indefinite write that was read counts as a session of its own.

    >>> stale = case_of([(0, "write", "x", 1), (1, "read", "x", None)])
    >>> said = ClassicalCheckers()(stale).verdicts
    >>> said["linearizable"], said["sequential"]
    (False, True)
    """

    budget: Count = 200_000

    def __call__(self, case: Case) -> Judgement:
        case.check()
        rules: dict[str, Callable[[list[Operation], ReadsFrom], bool]] = {
            "causal": self._causal, "pram": self._pram, "read_your_writes": read_your_writes,
            "monotonic_reads": monotonic_reads, "monotonic_writes": monotonic_writes,
            "writes_follow_reads": writes_follow_reads,
            "eventual": lambda ops, _: eventual(ops, case.settled),
        }  # fmt: skip
        verdicts: dict[str, bool | None] = {
            "linearizable": linearizable(case.history, budget=self.budget).ok,
            "sequential": sequentially_consistent(case.history, budget=self.budget).ok,
        }
        ops = happened(case.history)
        maps = [source for source in reads_from(ops) if not circular(ops, source)]
        for name, rule in rules.items():
            try:
                verdicts[name] = any(rule(ops, source) for source in maps)
            except BudgetSpent:
                verdicts[name] = None
        return Judgement(verdicts=verdicts)

    def reference(self, case: Case) -> Judgement:
        """The same, with PRAM and causal memory by trying every permutation."""
        told = self(case)
        ops = happened(case.history)
        maps = [source for source in reads_from(ops) if not circular(ops, source)]
        for name, causal in (("pram", False), ("causal", True)):
            told.verdicts[name] = any(
                all(_any_permutation(*_serial_task(ops, source, p, causal)) for p in sessions(ops))
                for source in maps
            )
        return told

    def samples(self, rng: Stream) -> Iterable[tuple[Case]]:
        """An empty history, and small random ones."""
        yield (case_of([]),)
        for _ in range(8):
            yield (random_case(rng, 2 + rng.below(4), processes=2),)

    def _pram(self, ops: list[Operation], source: ReadsFrom) -> bool:
        return all(
            serialisable(*_serial_task(ops, source, p, False), self.budget) for p in sessions(ops)
        )

    def _causal(self, ops: list[Operation], source: ReadsFrom) -> bool:
        return all(
            serialisable(*_serial_task(ops, source, p, True), self.budget) for p in sessions(ops)
        )


class BudgetSpent(Exception):
    """The search went beyond its budget; never leaves this module."""


# -- reading a history


def happened(history: History) -> list[Operation]:
    """Acknowledged operations and indefinite writes that somebody read, by the order of calls."""
    seen = {(op.key, op.result) for op in history if op.f == "read" and op.state == "ok"}
    found = [
        op for op in history
        if op.state == "ok" or (op.f == "write" and op.state != "fail"
                                and (op.key, op.value) in seen)
    ]  # fmt: skip
    return sorted(found, key=lambda op: op.call)


def sessions(ops: list[Operation]) -> dict[Any, list[int]]:
    """The places of each process's operations; an indefinite write is a session of its own."""
    lines: dict[Any, list[int]] = {}
    for at, op in enumerate(ops):
        name = (op.process,) if op.state == "ok" else (op.process, at)
        lines.setdefault(name, []).append(at)
    return lines


def reads_from(ops: list[Operation]) -> Iterator[ReadsFrom]:
    """Every choice of a write (None: the initial state) for every read."""
    reads = [at for at, op in enumerate(ops) if op.f == "read"]
    choices: list[list[int | None]] = []
    for at in reads:
        mine: list[int | None] = [None] if ops[at].result is START else []
        mine += [
            w for w, op in enumerate(ops)
            if op.f == "write" and op.key == ops[at].key and op.value == ops[at].result
        ]  # fmt: skip
        choices.append(mine)
    for choice in itertools.product(*choices):
        yield dict(zip(reads, choice, strict=True))


def _happens_before(ops: list[Operation], source: ReadsFrom) -> Pairs:
    pairs = [pair for line in sessions(ops).values() for pair in itertools.pairwise(line)]
    return pairs + [(w, r) for r, w in source.items() if w is not None]


def circular(ops: list[Operation], source: ReadsFrom) -> bool:
    """Whether some operation would depend on its own effects."""
    return not _orderable(_happens_before(ops, source))


def _orderable(pairs: Pairs) -> bool:
    sorter: graphlib.TopologicalSorter[int] = graphlib.TopologicalSorter()
    for one, two in pairs:
        sorter.add(two, one)
    try:
        sorter.prepare()
    except graphlib.CycleError:
        return False
    return True


# -- PRAM and causal memory


def _serial_task(
    ops: list[Operation], source: ReadsFrom, process: Any, causal: bool
) -> tuple[list[Operation], list[set[int]]]:
    """All writes and one process's reads, and for each what must stand before it."""
    lines = sessions(ops)
    mine = {at for at, op in enumerate(ops) if op.f == "write"} | set(lines[process])
    past: list[set[int]] = [set() for _ in ops]
    pairs = [pair for line in lines.values() for pair in itertools.combinations(line, 2)]
    if causal:
        pairs += [(w, r) for r, w in source.items() if w is not None]
    for _ in ops:  # as many rounds as the longest chain can have steps
        for one, two in pairs:
            past[two] |= past[one] | {one}
    names = sorted(mine)
    place = {at: n for n, at in enumerate(names)}
    return [ops[at] for at in names], [{place[d] for d in past[at] & mine} for at in names]


def serialisable(ops: list[Operation], before: list[set[int]], budget: int) -> bool:
    """Whether the operations can follow one another so that each read finds the last write."""
    first: tuple[frozenset[int], tuple[tuple[Any, Any], ...]] = (frozenset(), ())
    todo, known = [first], {first}
    while todo:
        done, state = todo.pop()
        if len(done) == len(ops):
            return True
        held = dict(state)
        for at, op in enumerate(ops):
            if at in done or not before[at] <= done:
                continue
            if op.f == "read":
                if held.get(op.key, START) != op.result:
                    continue
                after = state
            else:
                after = tuple(sorted({**held, op.key: op.value}.items(), key=repr))
            step = (done | {at}, after)
            if step not in known:
                if len(known) >= budget:
                    raise BudgetSpent
                known.add(step)
                todo.append(step)
    return False


def _any_permutation(ops: list[Operation], before: list[set[int]]) -> bool:
    if len(ops) > 7:
        raise SpecError("case.history", f"{len(ops)} operations", "the reference takes at most 7")
    for order in itertools.permutations(range(len(ops))):
        place = {at: n for n, at in enumerate(order)}
        if any(place[d] > place[at] for at in order for d in before[at]):
            continue
        held: dict[Any, Any] = {}
        for at in order:
            op = ops[at]
            if op.f == "write":
                held[op.key] = op.value
            elif held.get(op.key, START) != op.result:
                break
        else:
            return True
    return False


# -- session guarantees: one order of versions, older pairs first


def read_your_writes(ops: list[Operation], source: ReadsFrom) -> bool:
    """No read is older than any earlier write of its session to the key."""
    pairs: Pairs = []
    for line in sessions(ops).values():
        for n, r in enumerate(line):
            if ops[r].f != "read":
                continue
            own = [w for w in line[:n] if ops[w].f == "write" and ops[w].key == ops[r].key]
            got = source[r]
            if got is None and own:
                return False
            pairs += [(w, got) for w in own if got is not None and got != w]
    return _orderable(pairs)


def monotonic_reads(ops: list[Operation], source: ReadsFrom) -> bool:
    """The versions of a key that a session reads never grow older."""
    pairs: Pairs = []
    for line in sessions(ops).values():
        last: dict[Any, int] = {}
        for r in line:
            if ops[r].f != "read":
                continue
            got, old = source[r], last.get(ops[r].key)
            if got is None:
                if old is not None:
                    return False
                continue
            if old is not None and old != got:
                pairs.append((old, got))
            last[ops[r].key] = got
    return _orderable(pairs)


def monotonic_writes(ops: list[Operation], source: ReadsFrom) -> bool:
    """A session's writes become versions in the order in which they were made."""
    return _orderable([
        pair
        for line in sessions(ops).values()
        for pair in itertools.pairwise(at for at in line if ops[at].f == "write")
    ])  # fmt: skip


def writes_follow_reads(ops: list[Operation], source: ReadsFrom) -> bool:
    """A session's write is newer than every version that the session had read."""
    pairs: Pairs = []
    for line in sessions(ops).values():
        for r, w in itertools.combinations(line, 2):
            got = source.get(r)
            if got is not None and ops[w].f == "write":
                pairs.append((got, w))
    return all(one != two for one, two in pairs) and _orderable(pairs)


# -- eventual consistency


def eventual(ops: list[Operation], settled: frozenset[int]) -> bool:
    """Reads issued after all writes were delivered agree, on a value that was written."""
    found: dict[Any, set[Any]] = {}
    for op in ops:
        if op.f == "read" and op.index in settled:
            found.setdefault(op.key, set()).add(op.result)
    for key, values in found.items():
        written = {op.value for op in ops if op.f == "write" and op.key == key} or {START}
        if len(values) > 1 or not values <= written:
            return False
    return True
