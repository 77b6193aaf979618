"""Who can read whose data honestly: a symbolic rule, and the brute force that it must equal.

B reads A's data honestly when every view that A can produce is admissible for B. A view is a
sequence of distinct events of a causal graph: a set, in an order. The rule needs only the two
configurations: B's closure (with what its order demands) lies within A's (with what its order
supplies), and A's order refines all that B's does. The brute force enumerates graphs and views.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from orrery.base.errors import SpecError, did_you_mean
from orrery.base.rand import Stream
from orrery.systems.protocols.light_cone_consistency.coordinates import REFINEMENTS, Config, Order

# `grow` relates two views of one observer, so it cannot be a coordinate of single views.
SINGLE = ("own", "session", "reads")
_SUBSETS = [frozenset(c) for n in range(4) for c in itertools.combinations(SINGLE, n)]
_ORDERS = [
    Order("local", form, name)  # type: ignore[arg-type]
    for form in ("sort", "log")
    for name in REFINEMENTS
]
TABLES: dict[str, list[Config]] = {
    # Every closure with every order.
    "all": [Config(closure, order) for closure in _SUBSETS for order in _ORDERS],
    # Orders that are logs, and keep either all of causality or none of it.
    "logs": [
        Config(closure, order) for closure in _SUBSETS for order in _ORDERS
        if order.form == "log" and order.refines in ("nothing", "causality")
    ],
}  # fmt: skip
MOST_EVENTS = 5


def readable(a: Config, b: Config, coupling: bool = True) -> bool:
    """Whether b reads a's data honestly, by the rule; without coupling, by the two parts alone."""
    if not coupling:
        return factored(a, b)
    return b.effective <= a.effective and b.order.kept <= a.order.kept


def factored(a: Config, b: Config) -> bool:
    """Whether a's closure and a's order, each taken alone, are at least b's."""
    return b.closure <= a.closure and readable(Config(order=a.order), Config(order=b.order))


def table(name: str) -> list[Config]:
    """A table of configurations by its name."""
    if name not in TABLES:
        raise SpecError("table", f"{name!r}", did_you_mean(str(name), TABLES))
    return TABLES[name]


# -- graphs and views


class Graph(NamedTuple):
    """Events 0..n-1 in an order that causality allows: the session of each, and who read whom."""

    sessions: tuple[int, ...]
    reads: tuple[tuple[int, int], ...]  # (one, two): two's session had read one before

    def relations(self) -> dict[str, int]:
        """Session order, reads and causality as masks of pairs, transitively closed."""
        n = len(self.sessions)
        pairs = list(itertools.combinations(range(n), 2))
        session = {(d, e) for d, e in pairs if self.sessions[d] == self.sessions[e]}
        reads = closed(self.reads, n)
        causal = closed(session | reads, n)
        found = {"session": session, "reads": reads, "causality": causal}
        return {name: sum(1 << d * n + e for d, e in them) for name, them in found.items()}


def closed(pairs: Iterable[tuple[int, int]], n: int) -> set[tuple[int, int]]:
    """The transitive closure of pairs (one, two) with one < two < n."""
    past: list[set[int]] = [set() for _ in range(n)]
    for one, two in sorted(pairs, key=lambda pair: pair[1]):
        past[two] |= past[one] | {one}
    return {(one, two) for two in range(n) for one in past[two]}


def graphs(n: int) -> Iterator[Graph]:
    """All causal graphs of n events: every split into sessions, every choice of reads."""
    if not 1 <= n <= MOST_EVENTS:
        raise SpecError("events", f"{n!r}", f"give 1 to {MOST_EVENTS}")
    pairs = list(itertools.combinations(range(n), 2))
    for sessions in _splits(n):
        for choice in itertools.product((False, True), repeat=len(pairs)):
            yield Graph(sessions, tuple(itertools.compress(pairs, choice)))


def _splits(n: int) -> Iterator[tuple[int, ...]]:
    def grow(so_far: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(so_far) == n:
            yield so_far
            return
        for session in range(max(so_far, default=-1) + 2):
            yield from grow((*so_far, session))

    yield from grow(())


def random_graph(rng: Stream, n: int) -> Graph:
    """One causal graph of n events."""
    sessions: list[int] = []
    for _ in range(n):
        sessions.append(rng.below(max(sessions, default=-1) + 2))
    pairs = [pair for pair in itertools.combinations(range(n), 2) if rng.random() < 0.4]
    return Graph(tuple(sessions), tuple(pairs))


class Views(NamedTuple):
    """All sequences of distinct events, with what each leaves out and turns round."""

    sequences: list[tuple[int, ...]]
    present: npt.NDArray[np.int64]
    missing: npt.NDArray[np.int64]  # pairs (d, e) of which e is there and d is not
    inverted: npt.NDArray[np.int64]  # pairs (d, e) that stand as e, d


@functools.lru_cache(maxsize=8)
def views(n: int) -> Views:
    """Every view of n events: 5, 16, 65, 326 of them for n = 2, 3, 4, 5."""
    sequences = [s for k in range(n + 1) for s in itertools.permutations(range(n), k)]
    present, missing, inverted = [], [], []
    for s in sequences:
        place = {e: at for at, e in enumerate(s)}
        present.append(sum(1 << e for e in s))
        missing.append(sum(1 << d * n + e for e in s for d in range(n) if d not in place))
        inverted.append(sum(1 << d * n + e for e in s for d in s if place[d] > place[e]))
    arrays = (np.array(each, dtype=np.int64) for each in (present, missing, inverted))
    return Views(sequences, *arrays)


def admissible(graph: Graph, observer: int, configs: list[Config]) -> npt.NDArray[np.bool_]:
    """Which views each configuration admits, one row for each; an observer without events: -1."""
    n = len(graph.sessions)
    all_views, relations = views(n), graph.relations()
    own = sum(1 << e for e in range(n) if graph.sessions[e] == observer)
    whole = {name: (all_views.missing & relations[name]) == 0 for name in ("session", "reads")}
    whole["own"] = (all_views.present & own) == own
    upright = {name: (all_views.inverted & relations[name]) == 0 for name in relations}
    upright["nothing"] = np.ones(len(all_views.sequences), dtype=bool)
    rows = []
    for config in configs:
        row = upright[config.order.refines].copy()
        for name in config.effective:
            row &= whole[name]
        rows.append(row)
    return np.array(rows)


def contained(found: Iterable[Graph], configs: list[Config]) -> npt.NDArray[np.bool_]:
    """Brute force: whether a's views are among b's on each of the graphs, as a matrix [a, b]."""
    inside = np.ones((len(configs), len(configs)), dtype=bool)
    for graph in found:
        for observer in range(-1, max(graph.sessions) + 1):
            rows = admissible(graph, observer, configs).astype(np.float32)
            inside &= rows @ (1.0 - rows).T < 0.5
    return inside


def misread(events: int, rng: Stream, count: int, coupling: bool = True) -> list[str]:
    """Pairs that the rule gets wrong, judged on all graphs up to 3 events and random larger ones.

    The small graphs alone tell apart whatever differs in this table; the larger ones could only
    show that the rule promises too much.
    """
    configs = TABLES["all"]
    inside = _small_containment() & contained(
        (random_graph(rng, events) for _ in range(count)), configs
    )
    wrong = []
    for (i, a), (j, b) in itertools.product(enumerate(configs), repeat=2):
        said = readable(a, b, coupling)
        if said != inside[i, j]:
            wrong.append(f"the rule says {said}, brute force {not said}: [{b}] reads [{a}]")
    return wrong


@functools.lru_cache(maxsize=1)
def _small_containment() -> npt.NDArray[np.bool_]:
    small = [graph for n in (1, 2, 3) for graph in graphs(n)]
    return contained(small, TABLES["all"])


# -- the dichotomy


def unfactored(configs: list[Config]) -> list[tuple[Config, Config]]:
    """Pairs of which b reads a's data, though a's closure and order alone would not allow it."""
    pairs = itertools.product(configs, repeat=2)
    return [(a, b) for a, b in pairs if readable(a, b) != factored(a, b)]


def exceptions(name: str = "all") -> list[str]:
    """Where "the order splits exactly when O does not refine causality" fails, with witnesses.

    One line for each order: either it does not refine causality and yet some pair does not split,
    or it refines causality and yet every pair splits.
    """
    configs = table(name)
    by_order: dict[Order, list[tuple[Config, Config]]] = {c.order: [] for c in configs}
    for a, b in unfactored(configs):
        by_order[a.order].append((a, b))
    lines = []
    for order, pairs in by_order.items():
        if order.refines != "causality" and pairs:
            a, b = pairs[0]
            lines.append(
                f"O({order}) does not refine causality, yet {len(pairs)} pairs do not split; "
                f"first: [{b}] reads [{a}], for a's order rules out {_witness(a, b)}"
            )
        elif order.refines == "causality" and not pairs:
            lines.append(
                f"O({order}) refines causality, yet every pair splits: it supplies no closure "
                "and admits views with holes"
            )
    return lines


def _witness(a: Config, b: Config) -> str:
    """A view that a's closure alone admits and b does not: a's order is what rules it out."""
    loose = Config(a.closure)
    for n in range(1, 4):
        for graph in graphs(n):
            for observer in range(-1, max(graph.sessions) + 1):
                rows = admissible(graph, observer, [loose, b])
                at = np.flatnonzero(rows[0] & ~rows[1])
                if at.size:
                    return f"the view {views(n).sequences[int(at[0])]} of {tuple(graph)}"
    return "nothing"
