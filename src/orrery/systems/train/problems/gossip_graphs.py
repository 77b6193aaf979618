"""Graphs on which nodes gossip, and the numbers that say how fast they can agree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from orrery.base.errors import KnobError

Floats = npt.NDArray[np.float64]
GraphName = Literal["ring", "grid", "star", "barbell", "complete", "cliques"]
Edges = tuple[tuple[int, int], ...]

MOST_NODES = 4096  # dense linear algebra beyond this would take minutes


class Graph(NamedTuple):
    """Nodes 0..nodes-1 and the pairs of them that may talk."""

    nodes: int
    edges: Edges

    def near(self, node: int) -> tuple[int, ...]:
        """The neighbours of a node, in order."""
        return tuple(sorted(a + b - node for a, b in self.edges if node in (a, b)))

    def without(self, *edges: tuple[int, int]) -> Graph:
        """The same graph with some edges taken out."""
        gone = {frozenset(edge) for edge in edges}
        return Graph(self.nodes, tuple(e for e in self.edges if frozenset(e) not in gone))


class Spectrum(NamedTuple):
    """What the weighted Laplacian of a graph says about gossip on it.

    `chi_1` is one over its least non-zero eigenvalue, `chi_2` half the largest effective resistance
    of an edge, `most` its largest eigenvalue. A single node has nothing to agree on.
    """

    chi_1: float
    chi_2: float
    most: float

    @property
    def condition(self) -> float:
        """Largest over least non-zero eigenvalue."""
        return max(self.chi_1 * self.most, 1.0)


@lru_cache(maxsize=64)
def graph_of(name: str, nodes: int) -> Graph:
    """The graph of that name with so many nodes.

    `cliques` are two cliques joined by one edge; `barbell` has a path of a third of the nodes
    between them; `grid` is the squarest one that has this number of nodes.

    >>> graph_of("ring", 4).edges
    ((0, 1), (1, 2), (2, 3), (0, 3))
    >>> len(graph_of("cliques", 12).edges)
    31
    """
    if not 1 <= nodes <= MOST_NODES:
        raise KnobError("graph", f"{nodes} nodes", f"give a world of 1 to {MOST_NODES} nodes")
    n, pairs = nodes, list[tuple[int, int]]()
    match name:
        case "ring":
            pairs = [(i, (i + 1) % n) for i in range(n)] if n > 2 else [(0, 1)][: n - 1]
        case "star":
            pairs = [(0, i) for i in range(1, n)]
        case "complete":
            pairs = _clique(range(n))
        case "grid":
            wide = n // max(k for k in range(1, math.isqrt(n) + 1) if n % k == 0)
            pairs = [(i, i + 1) for i in range(n) if (i + 1) % wide]
            pairs += [(i, i + wide) for i in range(n - wide)]
        case "cliques" | "barbell":
            bell = n // 2 if name == "cliques" else (n + 1) // 3
            right = bell if name == "cliques" else n - bell
            pairs = _clique(range(bell)) + _clique(range(right, n))
            pairs += [(i, i + 1) for i in range(max(bell - 1, 0), min(right, n - 1))]
        case _:
            raise KnobError("graph", f"{name!r} is not known", "give ring, grid, star, barbell, "
                            "complete or cliques")  # fmt: skip
    return Graph(n, tuple(dict.fromkeys((min(p), max(p)) for p in pairs)))


def _clique(members: Sequence[int]) -> list[tuple[int, int]]:
    return [(a, b) for i, a in enumerate(members) for b in members[i + 1 :]]


def incidence(graph: Graph) -> Floats:
    """One column for each edge: +1 at one end, -1 at the other."""
    found = np.zeros((graph.nodes, len(graph.edges)))
    for e, (a, b) in enumerate(graph.edges):
        found[a, e], found[b, e] = 1.0, -1.0
    return found


def laplacian(graph: Graph, rates: Sequence[float] | Floats | None = None) -> Floats:
    """The Laplacian, with a weight for each edge (one, where none are given)."""
    weights = np.ones(len(graph.edges)) if rates is None else np.asarray(rates, dtype=float)
    columns = incidence(graph)
    return (columns * weights) @ columns.T


@lru_cache(maxsize=256)
def _spectrum(graph: Graph, rates: tuple[float, ...] | None) -> Spectrum:
    if not graph.edges:
        if graph.nodes > 1:
            raise KnobError("graph", "has no edges", "give one that is connected")
        return Spectrum(1.0, 0.5, 1.0)
    values, vectors = np.linalg.eigh(laplacian(graph, rates))
    if values[1] <= 1e-12 * values[-1]:
        raise KnobError("graph", "is not connected", "join its parts, or take them one by one")
    # Each edge as seen in the eigenvectors; the first of those is the constant one.
    seen = vectors[:, 1:].T @ incidence(graph)
    resistances = (seen**2 / values[1:, None]).sum(axis=0)
    return Spectrum(1.0 / float(values[1]), 0.5 * float(resistances.max()), float(values[-1]))


def spectrum(graph: Graph, rates: Sequence[float] | Floats | None = None) -> Spectrum:
    """The numbers of a graph whose edges have these weights.

    >>> round(spectrum(graph_of("complete", 8)).chi_1, 6)
    0.125
    """
    return _spectrum(graph, None if rates is None else tuple(float(rate) for rate in rates))


__all__ = ["Edges", "Floats", "Graph", "GraphName", "Spectrum", "graph_of", "incidence",
           "laplacian", "spectrum"]  # fmt: skip
