"""The ratchet: data that pass through a weak store never regain what they lost there.

A store takes views of the data and the dependencies that came with them, and shows to the next
store any view that it admits *by the dependencies it knows*. It hands on only the kinds of
dependency that it keeps itself; the rest are gone. The level of the data after each store is not
read off the labels of the stores: all views that the chain can show are put into one trace, and
the checker says which closures hold.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec

from orrery.base.errors import SpecError
from orrery.base.rand import Stream
from orrery.systems.protocols.light_cone_consistency.readability import (
    Graph,
    closed,
    random_graph,
    views,
)
from orrery.systems.protocols.light_cone_consistency.traces import (
    Finding,
    Look,
    Trace,
    Write,
    place,
)
from orrery.systems.protocols.problems.history_cases import Case, case_of

KINDS = ("session", "reads")


class Store(msgspec.Struct, frozen=True):
    """A stop of the data: which dependencies it keeps, and (a fault) whether it hands on others."""

    keeps: frozenset[str]
    hands_on_all: bool = False

    def __str__(self) -> str:
        return "+".join(kind for kind in KINDS if kind in self.keeps) or "no closure"


class Stage(msgspec.Struct):
    """The data after one store: what is known, every view that can be shown, and the level."""

    store: Store
    known: dict[str, frozenset[tuple[int, int]]]
    shown: list[tuple[int, ...]]
    finding: Finding

    @property
    def level(self) -> frozenset[str]:
        """The dependencies that the checker finds kept in every view, both ways: there, and in
        order."""
        found = self.finding
        kept = {kind for kind in KINDS if kind in found.closure
                and f"refines {kind}" not in found.broken}  # fmt: skip
        return frozenset(kept)


def migrate(graph: Graph, stores: Sequence[Store]) -> list[Stage]:
    """Take the data of a graph through the stores; the first one knows every dependency."""
    if not stores:
        raise SpecError("stores", "there are none", "give at least one store")
    n = len(graph.sessions)
    pairs = itertools.combinations(range(n), 2)
    session = frozenset((d, e) for d, e in pairs if graph.sessions[d] == graph.sessions[e])
    # A session's later writes depend on its earlier reads as well.
    reads = frozenset(graph.reads) | {
        (d, later) for d, e in graph.reads for (e2, later) in session if e2 == e and d != later
    }
    known = {"session": session, "reads": reads}
    stages: list[Stage] = []
    for store in stores:
        if not store.hands_on_all:
            known = {kind: known[kind] if kind in store.keeps else frozenset() for kind in KINDS}
        bound = frozenset().union(*(known[kind] for kind in KINDS if kind in store.keeps))
        shown = _shown(n, bound)
        # The very same views need no second look.
        same = bool(stages) and stages[-1].shown == shown
        finding = stages[-1].finding if same else place(as_trace(graph, shown))
        stages.append(Stage(store, known, shown, finding))
    return stages


def _shown(n: int, bound: frozenset[tuple[int, int]]) -> list[tuple[int, ...]]:
    """Every view that is whole and in order by the known dependencies."""
    pairs = closed(bound, n)
    mask = sum(1 << d * n + e for d, e in pairs)
    all_views = views(n)
    fine = ((all_views.missing | all_views.inverted) & mask) == 0
    return [s for s, ok in zip(all_views.sequences, fine, strict=True) if ok]


def as_trace(graph: Graph, shown: Sequence[tuple[int, ...]]) -> Trace:
    """Views of a graph as a trace: every view is what a new observer saw."""
    reads: dict[int, list[int]] = {}
    for d, e in graph.reads:
        reads.setdefault(e, []).append(d)
    writes = tuple(
        Write(session, f"k{w}", tuple(reads.get(w, ()))) for w, session in enumerate(graph.sessions)
    )
    first = max(graph.sessions, default=-1) + 1
    looks = tuple(Look(first + at, at, len(view)) for at, view in enumerate(shown))
    return Trace(writes, tuple(shown), looks)


def as_case(graph: Graph, view: tuple[int, ...]) -> Case:
    """One view of a graph as a client history: the writers' sessions, and an observer's reads.

    The observer reads the last entry of the view first and then every other key, so that whatever
    the view lacks is missed after something that depends on it was seen.
    """
    ops: list[tuple[int, str, str, int | None]] = []
    for e, session in enumerate(graph.sessions):
        ops += [(session, "read", f"k{d}", d + 1) for d, two in graph.reads if two == e]
        ops.append((session, "write", f"k{e}", e + 1))
    observer = max(graph.sessions, default=-1) + 1
    for e in (*reversed(view), *(e for e in range(len(graph.sessions)) if e not in view)):
        ops.append((observer, "read", f"k{e}", e + 1 if e in view else None))
    return case_of(ops)


def random_chain(rng: Stream, events: int = 4, stores: int = 4) -> tuple[Graph, list[Store]]:
    """A random graph and stores with random closures; the first keeps everything."""
    choices = [frozenset(c) for k in range(3) for c in itertools.combinations(KINDS, k)]
    chain = [Store(frozenset(KINDS))]
    chain += [Store(rng.choice(choices)) for _ in range(stores - 1)]
    return random_graph(rng, events), chain


def rises(stages: Sequence[Stage]) -> list[str]:
    """Where the measured level rose from one stage to the next; the ratchet says nowhere."""
    found = []
    for at, (old, new) in enumerate(itertools.pairwise(stages)):
        if not new.level <= old.level:
            more = ", ".join(sorted(new.level - old.level))
            found.append(f"store {at + 1} ({new.store}) regained {more}")
    return found
