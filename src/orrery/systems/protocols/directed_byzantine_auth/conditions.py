"""Which directed graphs allow consensus with signed messages: the two conditions, and witnesses.

Synchronous, exact: for every F of f nodes, what F leaves has a single source component S_F, and
|S_F| >= f + 1. Asynchronous, approximate: any two source components of what any two sets of f nodes
leave have f + 1 nodes in common. In terms of reaches these are |reach_u(F) & reach_v(F)| > f and
|reach_u(F_u) & reach_v(F_v)| > f; smaller sets F leave larger reaches, so only |F| = f counts.

O(C(n, f) n^2) words for the sources, and for the second one comparison of two words a pair of
distinct sources.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from orrery.base.errors import KnobError
from orrery.systems.protocols.problems.digraphs import Digraph, bits, subsets


class Flaw(NamedTuple):
    """Why a graph does not do: two sets of at most f nodes, and what they leave to two nodes."""

    without_u: int
    without_v: int
    reach_u: int
    reach_v: int

    @property
    def shared(self) -> int:
        """What both hear from."""
        return self.reach_u & self.reach_v


def check_f(n: int, f: int) -> None:
    """Refuse a number of liars that makes no sense."""
    if not 0 <= f < n:
        raise KnobError("tolerated", f"{f} liars among {n} nodes", f"give 0 to {n - 1}")


def synchronous_flaw(graph: Digraph, f: int) -> Flaw | None:
    """What breaks the synchronous condition: two sources, or a small one; None if nothing does."""
    check_f(graph.n, f)
    for without in subsets(graph.n, f):
        if graph.core(without).bit_count() > f:
            continue
        sources = graph.sources(without)
        small = min(sources, key=lambda mask: (mask.bit_count(), mask))
        other = next((mask for mask in sources if mask != small), small)
        return Flaw(without, without, small, other)
    return None


def asynchronous_flaw(graph: Digraph, f: int) -> Flaw | None:
    """What breaks the asynchronous condition: two reaches with at most f nodes in common."""
    check_f(graph.n, f)
    first: dict[int, int] = {}  # source component -> a set that leaves it
    for without in subsets(graph.n, f):
        for source in graph.sources(without):
            first.setdefault(source, without)
    found = sorted(first, key=lambda mask: (mask.bit_count(), mask))
    for i, one in enumerate(found):
        for other in found[i:]:
            if (one & other).bit_count() <= f:
                return Flaw(first[one], first[other], one, other)
    return None


def synchronous(graph: Digraph, f: int) -> bool:
    """Whether exact consensus is possible under synchrony.

    >>> from orrery.systems.protocols.problems.digraphs import complete, ring
    >>> synchronous(complete(5), 2), synchronous(complete(4), 2), synchronous(ring(5), 1)
    (True, False, False)
    """
    check_f(graph.n, f)
    return all(graph.core(without).bit_count() > f for without in subsets(graph.n, f))


def asynchronous(graph: Digraph, f: int) -> bool:
    """Whether approximate consensus is possible without synchrony.

    >>> from orrery.systems.protocols.problems.digraphs import complete
    >>> asynchronous(complete(7), 2), asynchronous(complete(6), 2)
    (True, False)
    """
    return asynchronous_flaw(graph, f) is None


class Turn(NamedTuple):
    """One iteration of the synchronous protocol: the suspects F, and the source S_F they leave."""

    suspects: int
    core: int


@functools.lru_cache(maxsize=4096)
def turns(graph: Digraph, f: int) -> tuple[Turn, ...]:
    """The iterations, in their fixed order. Where F leaves several sources, the first is taken:

    then the graph violates the condition, and the protocol runs on it only to be refuted.
    """
    check_f(graph.n, f)
    return tuple(
        Turn(without, graph.core(without) or graph.sources(without)[0])
        for without in subsets(graph.n, f)
    )


@functools.lru_cache(maxsize=4096)
def farthest(graph: Digraph, f: int) -> int:
    """The most links between a node of a source and any node that f others leave connected to it.

    So many rounds are enough for a super-round; n always are.
    """
    most = 1
    for without, core in turns(graph, f):
        for start in bits(core):
            most = max(most, *graph.steps(start, without).values())
    return most


@functools.lru_cache(maxsize=4096)
def waits(graph: Digraph, f: int, me: int) -> tuple[int, ...]:
    """The sets of nodes that `me` waits for in an asynchronous round: any one of them is enough."""
    found = {graph.reach(me, without) for without in subsets(graph.n, f) if not without >> me & 1}
    return tuple(sorted(found, key=lambda mask: (mask.bit_count(), mask)))
