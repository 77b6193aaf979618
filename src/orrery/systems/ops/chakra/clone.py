"""Statistical clones: a trace like the recorded one that gives nothing of it away but its shape.

`describe` keeps, for each type of task, so many quantiles of its durations, and the shape of the
graph: kinds, dependencies, groups, sizes to two digits. Tasks whose names differ in numbers only
are of one type. Names, times and single durations are left behind. `statistical_clone` draws
durations anew from the quantiles, one from each of as many equal slices as there are tasks of that
type, so that quantiles match also where tasks are few.
"""

from __future__ import annotations

import re

import msgspec
import numpy as np

from orrery.base.rand import Stream
from orrery.models.taskgraph.graph import Floats, GraphError, Ints, TaskGraph

QUANTILES = 65


class Statistics(msgspec.Struct, frozen=True):
    """What leaves a site: quantiles of durations by type, and a graph without durations."""

    shape: TaskGraph
    type: Ints
    quantiles: Floats  # type x QUANTILES, in seconds
    counts: Ints


def describe(graph: TaskGraph, quantiles: int = QUANTILES) -> Statistics:
    """The statistics of a recorded graph; a type is a kind, a collective, a size and a name.

    The name of a type is replaced by a number. Types with one task keep its duration, which is
    then no statistic: merge such traces, or leave them out, where that matters.
    """
    if isinstance(quantiles, bool) or not isinstance(quantiles, int) or quantiles < 2:
        raise GraphError("quantiles", f"{quantiles!r:.40} is refused", "give at least 2")
    if np.isnan(graph.duration_s).any():
        task = int(np.flatnonzero(np.isnan(graph.duration_s))[0])
        raise GraphError(f"task {task}", "has no duration", "give a recorded graph")
    words: dict[str, int] = {}
    plain = [words.setdefault(re.sub(r"[0-9.]+", "", name), len(words)) for name in graph.names]
    keys = np.stack([graph.kind, graph.op, np.array(plain)[graph.name], _rounded(graph.size_B)],
                    axis=1)  # fmt: skip
    _, kind = np.unique(keys, axis=0, return_inverse=True)
    kind = kind.reshape(-1)
    count = int(kind.max()) + 1 if len(kind) else 0
    table = np.zeros((count, quantiles))
    levels = np.linspace(0.0, 1.0, quantiles)
    for one in range(count):
        # Steps, not slopes: a time between two clusters of times is one that never was.
        table[one] = np.quantile(graph.duration_s[kind == one], levels, method="inverted_cdf")
    shape = msgspec.structs.replace(
        graph, duration_s=np.full(len(graph), np.nan), size_B=_rounded(graph.size_B),
        name=kind.astype(np.int32), names=tuple(f"type {one}" for one in range(count)) or ("",),
        source="", group_names=tuple(f"{_word(name)} {i}" for i, name in
                                     enumerate(graph.group_names)),
    )  # fmt: skip
    return Statistics(shape, kind, table, np.bincount(kind, minlength=count))


def _word(name: str) -> str:
    """The kind of a group ("dp"), without its number."""
    return name.split()[0] if name.split() else "group"


def _rounded(size_B: Floats) -> Floats:
    """Sizes to two digits."""
    found = np.zeros(len(size_B))
    some = size_B > 0
    step = 10.0 ** (np.floor(np.log10(size_B[some])) - 1)
    found[some] = np.round(size_B[some] / step) * step
    return found


def statistical_clone(statistics: Statistics, seed: int = 0) -> TaskGraph:
    """A graph of the same shape whose durations are drawn from the quantiles."""
    rng = Stream(seed, "chakra", "clone").numpy()
    drawn = np.zeros(len(statistics.shape))
    last = statistics.quantiles.shape[1] - 1
    for one, count in enumerate(statistics.counts.tolist()):
        slices = (np.arange(count) + rng.random(count)) / count
        values = statistics.quantiles[one][np.round(slices * last).astype(np.int64)]
        drawn[statistics.type == one] = rng.permutation(values)
    return statistics.shape.with_durations(drawn)
