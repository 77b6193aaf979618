"""Histories to judge: every small one up to renaming, and random larger ones from lossy replicas.

A case is a history and the reads that were issued after all writes had been delivered; what those
answer is all that eventual consistency can be judged by on a finite history.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence

import msgspec

from orrery.base.errors import SpecError
from orrery.base.rand import Stream
from orrery.check import History

START = None
"""What a key holds before its first write."""

Plain = tuple[int, str, str, int | None]
"""One operation in short: process, "read" or "write", key, value."""


class Case(msgspec.Struct, frozen=True):
    """A history, and the numbers of its reads that were issued after all writes were delivered."""

    history: History
    settled: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        # A history orders its events when first asked; asked here, judging it changes nothing.
        if isinstance(self.history, History):
            self.history.order()

    def check(self) -> None:
        """Refuse what is no case, naming the field and the fix."""
        if not isinstance(self.history, History):
            raise SpecError("case.history", f"{self.history!r:.60} is no History", "give a History")
        for i, f in enumerate(self.history.fs):
            if f not in ("read", "write"):
                fix = 'consistency models of registers know "read" and "write"'
                raise SpecError(f"operation {i}.f", f"{f!r}", fix)
        for i in self.settled:
            known = isinstance(i, int) and 0 <= i < len(self.history)
            if not known or self.history.fs[i] != "read":
                fix = "name reads of the history by their numbers"
                raise SpecError("case.settled", f"{i!r} is no read of the history", fix)


def case_of(
    ops: Sequence[Plain],
    settled: Sequence[int] = (),
    events: Sequence[int] | None = None,
) -> Case:
    """A case from short operations; `events` lists each operation's place twice: call, return.

    Without `events` the operations follow one another in the order given.

    >>> len(case_of([(0, "write", "x", 1), (1, "read", "x", 1)]).history)
    2
    """
    history = History()
    number: dict[int, int] = {}
    for i in events if events is not None else [i for i in range(len(ops)) for _ in "cr"]:
        process, f, key, value = ops[i]
        if i not in number:
            number[i] = history.invoke(process, f, key, value if f == "write" else None)
        else:
            history.ok(number[i], value if f == "read" else None)
    return Case(history, frozenset(number[i] for i in settled))


# -- all small histories


def small_histories(lengths: Sequence[int], keys: int = 2) -> Iterator[tuple[Plain, ...]]:
    """All histories of processes with these numbers of operations, up to renaming.

    Keys, and the values of each key, are named in the order in which they first appear (0 is the
    initial value), so values may be written twice, written as the initial one, or read though
    nobody wrote them. Of two histories that differ by the names of equally long processes one is
    given.
    """
    owner = [p for p, length in enumerate(lengths) for _ in range(length)]
    for shape in _shapes(len(owner), keys):
        if _is_first(shape, lengths, keys):
            yield tuple(
                (p, f, f"k{key}", value or START)
                for p, (f, key, value) in zip(owner, shape, strict=True)
            )


Shape = tuple[tuple[str, int, int], ...]


def _shapes(n: int, keys: int) -> Iterator[Shape]:
    def grow(ops: Shape, tops: tuple[int, ...]) -> Iterator[Shape]:
        if len(ops) == n:
            yield ops
            return
        for key in range(min(len(tops) + 1, keys)):
            top = tops[key] if key < len(tops) else 0
            for f, value in itertools.product(("read", "write"), range(top + 2)):
                after = list(tops) + [0] * (key + 1 - len(tops))
                after[key] = max(top, value)
                yield from grow((*ops, (f, key, value)), tuple(after))

    yield from grow((), ())


def _is_first(shape: Shape, lengths: Sequence[int], keys: int) -> bool:
    """Whether no renaming of equally long processes gives an earlier shape."""
    at = [0, *itertools.accumulate(lengths)]
    lines = [shape[at[p] : at[p + 1]] for p in range(len(lengths))]
    for order in itertools.permutations(range(len(lines))):
        if all(len(lines[p]) == lengths[q] for q, p in enumerate(order)):
            other = _renamed([op for p in order for op in lines[p]])
            if other < shape:
                return False
    return True


def _renamed(ops: Sequence[tuple[str, int, int]]) -> Shape:
    names: dict[int, int] = {}
    values: dict[int, dict[int, int]] = {}
    made = []
    for f, key, value in ops:
        at = names.setdefault(key, len(names))
        known = values.setdefault(at, {0: 0})
        made.append((f, at, known.setdefault(value, len(known))))
    return tuple(made)


@functools.lru_cache(maxsize=32)
def overlaps(lengths: tuple[int, ...]) -> list[tuple[int, ...]]:
    """One order of calls and returns for each way in which operations can precede one another.

    >>> len(overlaps((1, 1))), len(overlaps((2, 2)))
    (3, 19)
    """
    at = [0, *itertools.accumulate(lengths)]
    bag = [p for p, length in enumerate(lengths) for _ in range(2 * length)]
    found: dict[frozenset[tuple[int, int]], tuple[int, ...]] = {}
    for order in sorted(set(itertools.permutations(bag))) if len(bag) < 9 else ():
        done = [0] * len(lengths)
        events: list[int] = []
        before: set[tuple[int, int]] = set()
        shut: list[int] = []
        for p in order:
            op = at[p] + done[p] // 2
            if done[p] % 2 == 0:
                before.update((other, op) for other in shut)
            else:
                shut.append(op)
            done[p] += 1
            events.append(op)
        found.setdefault(frozenset(before), tuple(events))
    return list(found.values())


def settled_choices(ops: Sequence[Plain]) -> Iterator[tuple[int, ...]]:
    """Every way in which the last reads of each process may follow the delivery of all writes."""
    tails: list[list[tuple[int, ...]]] = []
    for p in sorted({op[0] for op in ops}):
        mine = [i for i, op in enumerate(ops) if op[0] == p]
        tail: tuple[int, ...] = ()
        choices = [tail]
        while mine and ops[mine[-1]][1] == "read":
            tail = (mine.pop(), *tail)
            choices.append(tail)
        tails.append(choices)
    for choice in itertools.product(*tails):
        yield tuple(i for tail in choice for i in tail)


# -- random larger ones


def random_case(rng: Stream, ops: int, processes: int = 3, keys: int = 2, fresh: float = 0.9,
                disorder: float = 0.5) -> Case:  # fmt: skip
    """A history of sessions that read from replicas which apply writes in their own order.

    `disorder` is the chance that a replica puts a write anywhere but last, and that a session
    changes its replica; `fresh` that a written value is new. In one history of three the reads
    answer anything at all that was written; in another every process has a replica of its own, to
    which the writes of each other process come in their order, but late. So some histories keep
    every promise, and for each promise some break it and keep the weaker ones.
    """
    pick = rng.random()
    if pick < 1 / 3:
        return _wild_case(rng, ops, processes, keys, fresh)
    if pick < 2 / 3:
        return _fifo_case(rng, ops, processes, keys)
    logs: list[list[tuple[int, int]]] = [[] for _ in range(2)]  # (key, value) as applied
    waiting: list[list[tuple[int, int]]] = [[] for _ in range(2)]
    home = [p % 2 for p in range(processes)]
    made: list[Plain] = []
    count = 0
    for _ in range(ops):
        p, key = rng.below(processes), rng.below(keys)
        if rng.random() < 0.5 * disorder:
            home[p] = 1 - home[p]
        if rng.random() < 0.5:
            count = count + 1 if count == 0 or rng.random() < fresh else count
            made.append((p, "write", f"k{key}", count))
            for at in range(2):
                if at == home[p] and rng.random() >= 0.3 * disorder:
                    logs[at].append((key, count))
                else:
                    waiting[at].append((key, count))
        else:
            seen = [value for k, value in logs[home[p]] if k == key]
            made.append((p, "read", f"k{key}", seen[-1] if seen else START))
        for at in range(2):
            while waiting[at] and rng.random() < 0.5:
                n = rng.below(len(waiting[at])) if rng.random() < disorder else 0
                item = waiting[at].pop(n)
                spot = len(logs[at]) if rng.random() >= 0.3 * disorder else rng.below(
                    len(logs[at]) + 1)  # fmt: skip
                logs[at].insert(spot, item)
    settled = _random_tail(rng, made)
    return case_of(made, settled, _random_overlap(rng, made))


def _wild_case(rng: Stream, ops: int, processes: int, keys: int, fresh: float) -> Case:
    """Operations whose reads answer any value that is written to the key, before or after."""
    made: list[Plain] = []
    values: dict[str, list[int | None]] = {f"k{key}": [START] for key in range(keys)}
    count = 0
    for _ in range(ops):
        p, key = rng.below(processes), f"k{rng.below(keys)}"
        if rng.random() < 0.5:
            count = count + 1 if count == 0 or rng.random() < fresh else count
            values[key].append(count)
            made.append((p, "write", key, count))
        else:
            made.append((p, "read", key, START))
    made = [(p, f, key, rng.choice(values[key]) if f == "read" else v) for p, f, key, v in made]
    return case_of(made, _random_tail(rng, made), _random_overlap(rng, made))


def _fifo_case(rng: Stream, ops: int, processes: int, keys: int) -> Case:
    """Reads from a replica of one's own, fed by a queue from each other process."""
    state: list[dict[str, int]] = [{} for _ in range(processes)]
    inbox: dict[tuple[int, int], list[tuple[str, int]]] = {
        (p, q): [] for p in range(processes) for q in range(processes) if p != q
    }
    made: list[Plain] = []
    for number in range(1, ops + 1):
        p, key = rng.below(processes), f"k{rng.below(keys)}"
        for queue in (q for (_, to), q in inbox.items() if to == p):
            while queue and rng.random() < 0.6:
                got, value = queue.pop(0)
                state[p][got] = value
        # To have read something and then to write is what makes one write depend on another.
        if rng.random() < (0.7 if made and made[-1][0] == p and made[-1][1] == "read" else 0.35):
            made.append((p, "write", key, number))
            state[p][key] = number
            for q in range(processes):
                if q != p:
                    inbox[p, q].append((key, number))
        else:
            made.append((p, "read", key, state[p].get(key, START)))
    return case_of(made, _random_tail(rng, made), _random_overlap(rng, made))


def _random_tail(rng: Stream, ops: Sequence[Plain]) -> tuple[int, ...]:
    chosen: list[int] = []
    for p in sorted({op[0] for op in ops}):
        for i in reversed([i for i, op in enumerate(ops) if op[0] == p]):
            if ops[i][1] != "read" or rng.random() < 0.4:
                break
            chosen.append(i)
    return tuple(chosen)


def _random_overlap(rng: Stream, ops: Sequence[Plain]) -> list[int]:
    """Calls in the order given; each return comes soon after, before the process calls again."""
    events: list[int] = []
    pending: list[int] = []
    for i, op in enumerate(ops):
        for other in list(pending):
            if ops[other][0] == op[0] or rng.random() < 0.5:
                pending.remove(other)
                events.append(other)
        events.append(i)
        pending.append(i)
    return events + pending
