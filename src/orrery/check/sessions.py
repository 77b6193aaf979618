"""Session guarantees (Terry et al., 1994) on registers whose written values are unique.

Each guarantee says that a session's operations agree with the order of a key's versions. If the
store can tell that order, pass it as `versions` (each key's values, oldest first): the check is
then exact. Otherwise the order is inferred from what sessions saw, taking their reads (and for
`read_your_writes` their writes) as made in order. A violation is then a ring of observations that
no order of versions can satisfy; some violations may stay hidden.

Sessions are processes in the order of their calls; only acknowledged operations bind. Each key is
judged alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from orrery.base.errors import SpecError
from orrery.check.graphs import components, path
from orrery.check.history import History, Operation
from orrery.check.violation import Violation

Versions = Mapping[Any, Sequence[Any]]
Pair = tuple[Operation, Operation]
Rule = Callable[[list[Operation]], list[Pair]]


def read_your_writes(
    history: History, versions: Versions | None = None, start: Any = None
) -> list[Violation]:
    """A session's read of a key is at least as new as its own last write there. O(n log n)."""
    return _judge(history, "forgot_own_write", _own_writes, (_reads, _writes), versions, start)


def monotonic_reads(
    history: History, versions: Versions | None = None, start: Any = None
) -> list[Violation]:
    """A session's reads of a key never go back to an older version. O(n log n)."""
    return _judge(history, "read_went_back", _reads, (), versions, start)


def monotonic_writes(
    history: History, versions: Versions | None = None, start: Any = None
) -> list[Violation]:
    """A session's writes to a key become versions in the order they were made. O(n log n)."""
    return _judge(history, "writes_swapped", _writes, (_reads,), versions, start)


def writes_follow_reads(
    history: History, versions: Versions | None = None, start: Any = None
) -> list[Violation]:
    """A session's write to a key is newer than what the session read there before. O(n log n)."""
    return _judge(history, "write_before_read", _after_reads, (_reads,), versions, start)


def session_guarantees(
    history: History, versions: Versions | None = None, start: Any = None
) -> list[Violation]:
    """All four guarantees."""
    rules = (read_your_writes, monotonic_reads, monotonic_writes, writes_follow_reads)
    return [found for rule in rules for found in rule(history, versions, start)]


# -- what each guarantee says of one session on one key: the first version is not the newer one


def _reads(ops: list[Operation]) -> list[Pair]:
    return list(pairwise(op for op in ops if op.f == "read"))


def _writes(ops: list[Operation]) -> list[Pair]:
    return list(pairwise(op for op in ops if op.f == "write"))


def _own_writes(ops: list[Operation]) -> list[Pair]:
    return _after(ops, "write", "read")


def _after_reads(ops: list[Operation]) -> list[Pair]:
    return _after(ops, "read", "write")


def _after(ops: list[Operation], first: str, then: str) -> list[Pair]:
    """Each operation `then` with the last operation `first` before it."""
    last: Operation | None = None
    pairs = []
    for op in ops:
        if op.f == first:
            last = op
        elif op.f == then and last is not None:
            pairs.append((last, op))
    return pairs


def _version(op: Operation) -> Any:
    return op.result if op.f == "read" else op.value


# -- judging


def _sessions(history: History, start: Any) -> dict[Any, dict[Hashable, list[Operation]]]:
    """Acknowledged operations by key and process; refuses values that are written twice."""
    groups: dict[Any, dict[Hashable, list[Operation]]] = {}
    written: dict[Any, set[Any]] = {}
    for op in sorted(history, key=lambda op: op.call):
        if op.f not in ("read", "write"):
            raise SpecError(
                f"operation {op.index}.f", f"{op.f!r}", 'session guarantees know "read", "write"'
            )
        if op.f == "write" and op.state != "fail":
            values = written.setdefault(op.key, {start})
            if op.value in values:
                raise SpecError(
                    f"operation {op.index}.value",
                    f"{op.value!r} is already a version of {op.key!r}",
                    "write unique values, none equal to the initial one",
                )
            values.add(op.value)
        if op.state == "ok":
            groups.setdefault(op.key, {}).setdefault(op.process, []).append(op)
    return groups


def _judge(
    history: History,
    kind: str,
    rule: Rule,
    helpers: Sequence[Rule],
    versions: Versions | None,
    start: Any,
) -> list[Violation]:
    found = []
    for key, by_process in _sessions(history, start).items():
        sessions = list(by_process.values())
        if versions is not None:
            found += _by_versions(kind, rule, sessions, key, versions.get(key, ()), start)
        else:
            found += _by_inference(kind, rule, helpers, sessions, key, start)
    return found


def _by_versions(
    kind: str,
    rule: Rule,
    sessions: list[list[Operation]],
    key: Any,
    order: Sequence[Any],
    start: Any,
) -> list[Violation]:
    age = {start: -1} | {value: n for n, value in enumerate(order)}
    found = []
    for ops in sessions:
        known = []
        for op in ops:
            if _version(op) in age:
                known.append(op)
            elif op.f == "read":
                text = f"key {key!r}: {op} read what is no version of it"
                found.append(Violation("phantom_read", text, (op,)))
        # A write that never became a version was overwritten or lost; it bounds nothing.
        for before, after in rule(known):
            if age[_version(after)] < age[_version(before)]:
                found.append(_broken(kind, key, before, after, (before, after)))
    return found


def _by_inference(
    kind: str,
    rule: Rule,
    helpers: Sequence[Rule],
    sessions: list[list[Operation]],
    key: Any,
    start: Any,
) -> list[Violation]:
    own = [pair for ops in sessions for pair in rule(ops)]
    seen = [pair for ops in sessions for helper in helpers for pair in helper(ops)]
    # Observations that contradict one another say nothing about the order of versions.
    if _tangle(seen, _graph(seen, start)) is not None:
        seen = []
    graph = _graph(own + seen, start)
    pair = _tangle(own, graph)
    if pair is None:
        return []
    before, after = pair
    walk = path(graph, _version(after), _version(before)) or []
    witness = {(_version(a), _version(b)): (a, b) for a, b in reversed(own + seen)}
    evidence = [before, after]
    for step in pairwise(walk):
        evidence += [op for op in witness.get(step, ()) if op not in evidence]
    return [_broken(kind, key, before, after, tuple(evidence))]


def _graph(pairs: list[Pair], start: Any) -> dict[Any, dict[Any, None]]:
    """Versions, each with those that must be newer; the initial one is older than all."""
    graph: dict[Any, dict[Any, None]] = {start: {}}
    for before, after in pairs:
        old, new = _version(before), _version(after)
        graph.setdefault(new, {})
        if old != new:
            graph.setdefault(old, {})[new] = None
    graph[start] |= dict.fromkeys(value for value in graph if value != start)
    return graph


def _tangle(pairs: list[Pair], graph: dict[Any, dict[Any, None]]) -> Pair | None:
    """The first pair that lies on a ring of the graph."""
    part = components(graph)
    for before, after in pairs:
        old, new = _version(before), _version(after)
        if old != new and part[old] == part[new]:
            return before, after
    return None


def _broken(
    kind: str, key: Any, before: Operation, after: Operation, evidence: tuple[Operation, ...]
) -> Violation:
    text = f"key {key!r}: {before}, then {after}, which is older"
    return Violation(kind, text, evidence)
