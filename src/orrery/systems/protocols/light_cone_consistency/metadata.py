"""Detection = prevention: which retained metadata tell that an order turned causality round?

A run is a causal graph and the order in which an observer applied some of its events. What the
observer retains is, for each event in that order, its key and what the scheme attaches. A scheme
detects all inversions when no two runs with the same retained state differ in whether one
occurred; otherwise two such runs are shown. A scheme that detects also prevents: held back until
its metadata say that all it depends on was applied, no event is applied too early.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

import msgspec

from orrery.base.errors import SpecError, did_you_mean
from orrery.systems.protocols.light_cone_consistency.readability import Graph, closed, graphs

Past = list[frozenset[int]]


class Run(NamedTuple):
    """A graph, the key of each event, and the order in which an observer applied some of them."""

    graph: Graph
    keys: tuple[int, ...]
    applied: tuple[int, ...]


class Answer(msgspec.Struct, kw_only=True):
    """What exhaustive small runs say of a scheme."""

    scheme: str
    runs: int
    inverted: int
    detects: bool
    prevents: bool
    twins: tuple[Run, Run] | None = None  # equal retained state; the first inverted, not the second


def past_of(graph: Graph) -> Past:
    """The causal past of each event."""
    n = len(graph.sessions)
    pairs = set(graph.reads)
    pairs |= {(d, e) for d, e in itertools.combinations(range(n), 2)
              if graph.sessions[d] == graph.sessions[e]}  # fmt: skip
    found = closed(pairs, n)
    return [frozenset(d for d in range(n) if (d, e) in found) for e in range(n)]


def is_inverted(past: Past, applied: tuple[int, ...]) -> bool:
    """Whether an event was applied before one of its causal past."""
    return any(later in past[e] for at, e in enumerate(applied) for later in applied[at + 1 :])


# -- what the schemes attach to an event


def _none(graph: Graph, keys: tuple[int, ...], past: Past, e: int) -> Hashable:
    return ()


def _scalar(graph: Graph, keys: tuple[int, ...], past: Past, e: int) -> Hashable:
    depth: list[int] = []
    for each in range(e + 1):
        depth.append(1 + max((depth[d] for d in past[each]), default=0))
    return (graph.sessions[e], depth[e])


def _version(graph: Graph, keys: tuple[int, ...], past: Past, e: int) -> Hashable:
    return 1 + sum(keys[d] == keys[e] for d in past[e])


def _vector(graph: Graph, keys: tuple[int, ...], past: Past, e: int) -> Hashable:
    counts = [0] * (max(graph.sessions) + 1)
    for d in (*past[e], e):
        counts[graph.sessions[d]] += 1
    while len(counts) > 1 and counts[-1] == 0:
        counts.pop()  # sessions that it has not heard of are not retained
    return (graph.sessions[e], tuple(counts))


def _full(graph: Graph, keys: tuple[int, ...], past: Past, e: int) -> Hashable:
    return (_name(graph, e), frozenset(_name(graph, d) for d in past[e]))


def _name(graph: Graph, e: int) -> tuple[int, int]:
    """An event's own name: its session, and its number there."""
    session = graph.sessions[e]
    return session, sum(graph.sessions[d] == session for d in range(e))


Attach = Callable[[Graph, tuple[int, ...], Past, int], Hashable]
SCHEMES: dict[str, Attach] = {
    "none": _none, "scalar clock": _scalar, "per-key version": _version,
    "vector clock": _vector, "full dependencies": _full,
}  # fmt: skip


# -- exhaustive runs


def scenes(events: int, keys: int = 2) -> Iterator[tuple[Graph, tuple[int, ...], Past]]:
    """Every graph of up to so many events, with every choice of keys, and the past of its events.

    The first event has the first key: other names of the keys give the same runs.
    """
    for n in range(1, events + 1):
        for graph in graphs(n):
            past = past_of(graph)
            for rest in itertools.product(range(keys), repeat=n - 1):
                yield graph, (0, *rest), past


def orders(n: int) -> list[tuple[int, ...]]:
    """Every order in which an observer may have applied some of n events."""
    return [s for k in range(1, n + 1) for s in itertools.permutations(range(n), k)]


def examine(scheme: str, events: int = 3, keys: int = 2) -> Answer:
    """Try a scheme on every run: detect, and if so prevent; else two runs it cannot tell apart."""
    if scheme not in SCHEMES:
        raise SpecError("scheme", f"{scheme!r}", did_you_mean(str(scheme), SCHEMES))
    attach = SCHEMES[scheme]
    # For each retained state the first sound and the first inverted run that leaves it.
    states: dict[Hashable, list[Run | None]] = {}
    count = wrong = 0
    twins: tuple[Run, Run] | None = None
    prevents = True
    for graph, named, past in scenes(events, keys):
        tags = [(named[e], attach(graph, named, past, e)) for e in range(len(named))]
        for applied in orders(len(named)):
            bad = is_inverted(past, applied)
            count, wrong = count + 1, wrong + bad
            pair = states.setdefault(tuple(tags[e] for e in applied), [None, None])
            if pair[bad] is None:
                pair[bad] = Run(graph, named, applied)
            if twins is None and pair[0] is not None and pair[1] is not None:
                twins = (pair[1], pair[0])
            prevents = prevents and twins is None and prevented(scheme, past, tags, applied)
    return Answer(scheme=scheme, runs=count, inverted=wrong, detects=twins is None,
                  prevents=prevents, twins=twins)  # fmt: skip


def prevented(
    scheme: str, past: Past, tags: list[tuple[int, Hashable]], arrived: tuple[int, ...]
) -> bool:
    """Whether holding events back by their metadata keeps causality, and loses nothing.

    The events come as they arrived, then whatever had not. The buffer sees only the metadata; a
    scheme that does not name what an event depends on has nothing to wait for.
    """
    rest = tuple(e for e in range(len(tags)) if e not in arrived)
    waiting: list[int] = []
    applied: list[int] = []
    for e in (*arrived, *rest):
        waiting.append(e)
        while ready := [
            w for w in waiting if _ready(scheme, tags[w][1], [tags[a][1] for a in applied])
        ]:
            applied.append(ready[0])
            waiting.remove(ready[0])
    return not waiting and not is_inverted(past, tuple(applied))


def _ready(scheme: str, tag: Any, applied: list[Any]) -> bool:
    """Whether, by the metadata alone, all that an event depends on has been applied."""
    if scheme == "full dependencies":
        _, needs = tag
        return bool(needs <= {name for name, _ in applied})
    if scheme == "vector clock":
        session, counts = tag
        have = [0] * len(counts)
        for other, _ in applied:
            if other < len(have):
                have[other] += 1
        return all(have[s] >= c - (s == session) for s, c in enumerate(counts))
    return True
