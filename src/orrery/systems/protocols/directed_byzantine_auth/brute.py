"""The conditions word for word, with sets and all quantifiers: the reference for the fast ones.

Nothing here is shared with the fast checkers but the list of links. Exponential; for n <= 7.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from orrery.systems.protocols.problems.digraphs import Digraph

Nodes = frozenset[int]


def reaches(graph: Digraph, without: Nodes) -> dict[int, Nodes]:
    """For each node outside the set, those outside it with a path to the node that avoids it.

    By the transitive closure of Roy, Floyd and Warshall.
    """
    left = [v for v in range(graph.n) if v not in without]
    joined = {(a, b) for a, b in graph.links if a not in without and b not in without}
    joined |= {(v, v) for v in left}
    for k, a, b in itertools.product(left, repeat=3):
        if (a, k) in joined and (k, b) in joined:
            joined.add((a, b))
    return {v: frozenset(u for u in left if (u, v) in joined) for v in left}


def fault_sets(n: int, f: int) -> Iterator[Nodes]:
    """Every set of at most f of n nodes."""
    for size in range(min(f, n) + 1):
        for chosen in itertools.combinations(range(n), size):
            yield frozenset(chosen)


def synchronous(graph: Digraph, f: int) -> bool:
    """|reach_u(F) & reach_v(F)| >= f + 1 for every F of f nodes and all u, v outside it."""
    for without in itertools.combinations(range(graph.n), f):
        found = reaches(graph, frozenset(without))
        for u, v in itertools.product(found, repeat=2):
            if len(found[u] & found[v]) < f + 1:
                return False
    return True


def one_source(graph: Digraph, f: int) -> bool:
    """The other form: each F leaves exactly one source component, and it has f + 1 nodes."""
    for without in itertools.combinations(range(graph.n), f):
        found = reaches(graph, frozenset(without))
        components = {frozenset(u for u in found if u in found[v] and v in found[u]) for v in found}
        sources = [each for each in components if all(found[v] <= each for v in each)]
        if len(sources) != 1 or len(sources[0]) < f + 1:
            return False
    return True


def asynchronous(graph: Digraph, f: int) -> bool:
    """|reach_u(F_u) & reach_v(F_v)| >= f + 1 for all F_u, F_v of at most f nodes, and all u, v."""
    found = [reach for without in fault_sets(graph.n, f) for reach in
             reaches(graph, without).values()]  # fmt: skip
    return all(len(one & other) >= f + 1 for one in found for other in found)
