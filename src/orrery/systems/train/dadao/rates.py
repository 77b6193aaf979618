"""How often each edge of a graph should gossip: the rates that need the fewest messages.

Gossip is sufficient when 2 chi_1 chi_2 <= 1, where chi_1 and chi_2 are those of the Laplacian whose
weights are the rates. Rates of any shape can be scaled until that is an equality; the shape decides
how many messages it takes, sum(rates) * sqrt(2 chi_1 chi_2).

For given bounds on both, the cheapest rates are a semidefinite program:

    minimise sum(w)   subject to   Laplacian(w) >= I - 11'/n,   resistance_e(w) <= r,   w >= 0

It is solved here by an interior-point method of our own (a log-det barrier, Newton's steps, a path
of weights), and r is swept: a golden-section search, as the optimum falls and rises again with it.
A Newton step takes O(m^3) for m edges.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from orrery.base.errors import PartError
from orrery.systems.train.problems.gossip_graphs import Graph, incidence, spectrum

Floats = npt.NDArray[np.float64]

MOST_EDGES = 600
WORTH = 1.01  # a saving below this is not worth unequal clocks
GAP = 1e-7  # relative gap at which the path ends
NEAR = 0.02  # on the logarithm of r; the cost is flat at its least, and off by its square
FAR = 1e3  # by which a bound is loose
GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


def cost_of(graph: Graph, rates: Floats) -> float:
    """Meetings that all edges have in a unit of time, once the rates are scaled to suffice."""
    numbers = spectrum(graph, rates)
    return float(np.sum(rates)) * math.sqrt(2.0 * numbers.chi_1 * numbers.chi_2)


def sufficient(graph: Graph, rates: Floats) -> Floats:
    """The same shape of rates, scaled until 2 chi_1 chi_2 = 1."""
    numbers = spectrum(graph, rates)
    return rates * math.sqrt(2.0 * numbers.chi_1 * numbers.chi_2)


def uniform_rates(graph: Graph) -> Floats:
    """One rate for all edges, just sufficient."""
    return sufficient(graph, np.ones(len(graph.edges))) if graph.edges else np.zeros(0)


@lru_cache(maxsize=32)
def _optimised(graph: Graph) -> tuple[float, ...]:
    even = np.ones(len(graph.edges))
    numbers = spectrum(graph)
    # Where one of the two bounds is very loose, the other alone decides; nothing lies beyond.
    usual = 2.0 * numbers.chi_2 / numbers.chi_1
    best = (cost_of(graph, even), even)
    ends = []
    for far in (FAR, 1.0 / FAR):
        rates = cheapest(graph, usual / far)
        best = min(best, (cost_of(graph, rates), rates), key=lambda pair: pair[0])
        numbers = spectrum(graph, rates)
        ends.append(math.log(2.0 * numbers.chi_2 / numbers.chi_1))
    best = _searched(graph, min(ends), max(ends), best)
    if cost_of(graph, even) < WORTH * best[0]:
        return tuple(uniform_rates(graph))
    return tuple(sufficient(graph, best[1]))


def _searched(graph: Graph, low: float, high: float, best: tuple[float, Floats]) -> Any:
    """The cheapest rates for bounds between exp(low) and exp(high), by golden section."""

    def trial(log_r: float) -> tuple[float, Floats]:
        found = cheapest(graph, math.exp(log_r))
        return cost_of(graph, found), found

    if high - low <= NEAR:
        return best
    inner = [high - GOLDEN * (high - low), low + GOLDEN * (high - low)]
    tried = [trial(log_r) for log_r in inner]
    while True:
        best = min(best, *tried, key=lambda pair: pair[0])
        if high - low <= NEAR:
            return best
        if tried[0][0] < tried[1][0]:
            high, inner = inner[1], [inner[1] - GOLDEN * (inner[1] - low), inner[0]]
            tried = [trial(inner[0]), tried[0]]
        else:
            low, inner = inner[0], [inner[1], inner[0] + GOLDEN * (high - inner[0])]
            tried = [tried[1], trial(inner[1])]


def optimised_rates(graph: Graph) -> Floats:
    """The rates that need the fewest messages; uniform ones where unequal ones save under 1 %."""
    if len(graph.edges) > MOST_EDGES:
        raise PartError(
            f'rates = "optimised" with {len(graph.edges)} edges: the program takes at most '
            f'{MOST_EDGES}; give rates = "uniform"'
        )
    return np.array(_optimised(graph)) if len(graph.edges) > 1 else uniform_rates(graph)


def cheapest(graph: Graph, r: float) -> Floats:
    """The least sum of rates with Laplacian >= I - 11'/n and no edge's resistance above r."""
    if not 0 < r < math.inf:
        raise PartError(f"resistance bound {r}: give a finite number above 0")
    columns = incidence(graph)
    numbers = spectrum(graph)
    even = 2.0 * max(numbers.chi_1, 2.0 * numbers.chi_2 / r)
    rates = np.full(len(graph.edges), even)
    barriers = graph.nodes - 1 + 2 * len(graph.edges)
    weight = barriers / float(rates.sum())
    while True:
        rates = _centre(columns, rates, r, weight)
        if barriers / weight < GAP * float(rates.sum()):
            return rates
        weight *= 8.0


def _barrier(columns: Floats, rates: Floats, r: float, weight: float) -> float:
    """The function whose minimum is on the central path; infinite outside."""
    if rates.min() <= 0:
        return math.inf
    n = len(columns)
    mean = np.full((n, n), 1.0 / n)
    whole = (columns * rates) @ columns.T
    values = np.linalg.eigvalsh(whole + 2.0 * mean - np.eye(n))
    if values[0] <= 0:
        return math.inf
    resistances = ((np.linalg.inv(whole + mean) @ columns) * columns).sum(axis=0)
    if resistances.max() >= r:
        return math.inf
    return float(
        weight * rates.sum() - np.log(values).sum() - np.log(r - resistances).sum()
        - np.log(rates).sum()
    )  # fmt: skip


def _centre(columns: Floats, rates: Floats, r: float, weight: float) -> Floats:
    """Newton's method with backtracking from an inner point to the centre for this weight."""
    n = len(columns)
    mean = np.full((n, n), 1.0 / n)
    here = _barrier(columns, rates, r, weight)
    for _ in range(60):
        whole = (columns * rates) @ columns.T
        above = columns.T @ np.linalg.inv(whole + 2.0 * mean - np.eye(n)) @ columns
        through = columns.T @ np.linalg.inv(whole + mean) @ columns
        slack = 1.0 / (r - np.diag(through))
        squares = through**2
        slope = weight - np.diag(above) - squares @ slack - 1.0 / rates
        bend = (
            above**2 + (squares * slack**2) @ squares
            + 2.0 * through * ((through * slack) @ through) + np.diag(rates**-2.0)
        )  # fmt: skip
        step = -np.linalg.solve(bend, slope)
        decrement = float(-slope @ step)
        # Of a large barrier, smaller differences are rounding.
        if decrement < 1e-11 * (1.0 + abs(here)):
            break
        size = 1.0
        while size > 1e-6:
            there = _barrier(columns, rates + size * step, r, weight)
            if there <= here - 0.25 * size * decrement:
                break
            size /= 2.0
        else:
            break  # rounding is all that is left to gain
        rates, here = rates + size * step, there
    return rates


__all__ = ["cheapest", "cost_of", "optimised_rates", "sufficient", "uniform_rates"]
