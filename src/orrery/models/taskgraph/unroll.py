"""Collectives step by step: each one as the messages that its algorithm sends.

A collective as one event knows its bytes and latencies, but not that its first step may begin
before the last rank has come, nor how its steps meet other traffic. `unroll` replaces it by its
messages, as the default collectives of a `Worker` send them: rings for all-reduce, all-gather and
reduce-scatter, direct exchange for the others. The graph grows by 2 n tasks a step and member.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from orrery.models.taskgraph.graph import (
    COLLECTIVE,
    COLUMNS,
    COMPUTE,
    FREE,
    OPS,
    RECV,
    SEND,
    Ints,
    TaskGraph,
    make_graph,
)
from orrery.parts.collectives import part_items

# The tags of unrolled messages lie above any that a trace may use.
FIRST_TAG = 1 << 40


class Unrolled(NamedTuple):
    """The longer graph, and for each task of the old one where it begins and ends in it."""

    graph: TaskGraph
    enter: Ints
    leave: Ints


class _Hop(NamedTuple):
    """One message of a collective: places in the group, bytes, and what it waits for."""

    source: int
    target: int
    size_B: int
    after: int  # the place of a hop whose arrival at the source it waits for, or -1
    order: int  # the hop that the target receives before this one, or -1


def hops(op: str, count: int, size_B: int, root: int = 0) -> list[_Hop]:
    """The messages of one collective of `count` members."""
    if count == 1:
        return []
    if op in ("all_reduce", "all_gather", "reduce_scatter", "reduce_scatter_block"):
        return _ring(op, count, size_B)
    parts = part_items(size_B, count)
    share = -(-size_B // count)
    pairs: list[tuple[int, int, int]]
    if op == "all_to_all":
        pairs = [(i, (i + k) % count, parts[(i + k) % count]) for i in range(count)
                 for k in range(1, count)]  # fmt: skip
    elif op in ("broadcast", "scatter"):
        pairs = [(root, i, size_B if op == "broadcast" else parts[i]) for i in range(count)
                 if i != root]  # fmt: skip
    elif op in ("reduce", "gather"):
        pairs = [(i, root, size_B if op == "reduce" else share) for i in range(count) if i != root]
    else:
        return _dissemination(count)
    return [_Hop(a, b, size, -1, -1) for a, b, size in pairs]


def _dissemination(count: int) -> list[_Hop]:
    """A barrier: in step k a rank tells the one 2**k places on (Hensgen et al., 1988)."""
    found: list[_Hop] = []
    distance = 1
    while distance < count:
        first = len(found) - count  # where the step before begins
        for me in range(count):
            # The hop of the step before that arrived here was sent from distance / 2 places back.
            heard = first + (me - distance // 2) % count if first >= 0 else -1
            there = (me + distance) % count
            earlier = first + (there - distance // 2) % count if first >= 0 else -1
            found.append(_Hop(me, there, 0, heard, earlier))
        distance *= 2
    return found


def _ring(op: str, count: int, size_B: int) -> list[_Hop]:
    parts = part_items(size_B, count)
    if op == "all_gather":
        parts = [-(-size_B // count)] * count
    rounds = {"all_reduce": 2 * (count - 1)}.get(op, count - 1)
    found: list[_Hop] = []
    for step in range(rounds):
        for me in range(count):
            # In the first half part me - 1 - step moves on; in the second, part me - step.
            second = op == "all_gather" or step >= count - 1
            turn = step - (count - 1) if op == "all_reduce" and second else step
            part = (me - turn) % count if second else (me - 1 - turn) % count
            # What a rank sends on is what the rank before it has just sent.
            before = (step - 1) * count + (me - 1) % count if step else -1
            earlier = (step - 1) * count + me if step else -1
            found.append(_Hop(me, (me + 1) % count, parts[part], before, earlier))
    return found


def unroll(graph: TaskGraph, most: int) -> Unrolled:
    """The graph with the collectives of groups of up to `most` members as messages."""
    size = len(graph)
    chosen = (graph.kind == COLLECTIVE) & np.isnan(graph.duration_s)
    small = np.array([len(members) <= most for members in graph.groups] or [False])
    chosen &= small[np.maximum(graph.group, 0)]
    enter, leave = np.arange(size), np.arange(size)
    if graph.folded or not chosen.any():
        return Unrolled(graph, enter, leave)
    writer = _Writer(graph, chosen)
    writer.lay_out()
    return Unrolled(writer.graph(), writer.enter, writer.leave)


class _Writer:
    """Writes the longer graph: old tasks in their order, each chosen one as enter, hops, leave."""

    def __init__(self, graph: TaskGraph, chosen: Any) -> None:
        self.old = graph
        self.chosen = chosen
        # A chosen task becomes two that keep its place in its stream; its messages follow all.
        width = np.where(chosen, 2, 1)
        self.enter = np.cumsum(width) - width
        self.leave = self.enter + width - 1
        self.count = int(width.sum())
        self.rows: list[tuple[int, int, int, int, int, int]] = []
        self.extra: list[tuple[int, int]] = []

    def lay_out(self) -> None:
        graph = self.old
        calls: dict[tuple[int, int], list[int]] = {}
        numbers: dict[tuple[int, int], int] = {}
        for task in np.flatnonzero(graph.kind == COLLECTIVE).tolist():
            place = (int(graph.group[task]), int(graph.rank[task]))
            number = numbers.get(place, 0)
            numbers[place] = number + 1
            if self.chosen[task]:
                calls.setdefault((place[0], number), []).append(task)
        shapes: dict[tuple[Any, ...], list[_Hop]] = {}
        for turn, ((group, _), tasks) in enumerate(calls.items()):
            members = graph.groups[group]
            by_rank = {int(graph.rank[task]): task for task in tasks}
            ordered = [by_rank[rank] for rank in members]
            first = ordered[0]
            key = (OPS[graph.op[first]], len(members), int(graph.size_B[first]),
                   int(graph.tag[first]) % len(members))  # fmt: skip
            if key not in shapes:
                shapes[key] = hops(*key)
            self._call(ordered, members, shapes[key], FIRST_TAG + turn)

    def _call(self, tasks: list[int], members: tuple[int, ...], plan: list[_Hop], tag: int) -> None:
        base = self.count
        for k, hop in enumerate(plan):
            send, recv = base + 2 * k, base + 2 * k + 1
            a, b = members[hop.source], members[hop.target]
            # Messages of one pair under one tag match in order, as the algorithm sends them.
            self.rows.append((SEND, a, b, tag, hop.size_B, tasks[hop.source]))
            self.rows.append((RECV, b, a, tag, hop.size_B, tasks[hop.target]))
            before = base + 2 * hop.after + 1 if hop.after >= 0 else self.enter[tasks[hop.source]]
            earlier = base + 2 * hop.order + 1 if hop.order >= 0 else self.enter[tasks[hop.target]]
            self.extra += [
                (send, before), (recv, earlier),
                (self.leave[tasks[hop.source]], send), (self.leave[tasks[hop.target]], recv),
            ]  # fmt: skip
        self.count += 2 * len(plan)

    def graph(self) -> TaskGraph:
        old, chosen = self.old, self.chosen
        own = int(np.where(chosen, 2, 1).sum())
        source = np.repeat(np.arange(len(old)), np.where(chosen, 2, 1))
        split = chosen[source]
        columns: dict[str, Any] = {name: getattr(old, name)[source].copy() for name in COLUMNS}
        columns["kind"][split] = COMPUTE
        for name, value in (("duration_s", 0.0), ("size_B", 0.0), ("group", -1), ("op", -1)):
            columns[name][split] = value
        more = np.array(self.rows, np.int64).reshape(-1, 6)
        many = len(more)
        added: dict[str, Any] = {
            "kind": more[:, 0], "rank": more[:, 1], "peer": more[:, 2], "tag": more[:, 3],
            "size_B": more[:, 4], "stream": np.full(many, FREE), "op": np.full(many, -1),
            "duration_s": np.where(more[:, 0] == SEND, np.nan, 0.0), "group": np.full(many, -1),
            "flops": np.zeros(many), "bytes": np.zeros(many), "name": old.name[more[:, 5]],
        }  # fmt: skip
        joined = {name: np.concatenate([columns[name], added[name]]) for name in COLUMNS}
        owner = np.repeat(self.enter, np.diff(old.dep_starts))
        pairs = np.array(self.extra, np.int64).reshape(-1, 2)
        ends = np.flatnonzero(chosen)
        # Enter comes before leave also where the group is a single rank and sends nothing.
        after = np.concatenate([owner, pairs[:, 0], self.leave[ends]])
        before = np.concatenate([self.leave[old.deps], pairs[:, 1], self.enter[ends]])
        order = np.argsort(after, kind="stable")
        starts = np.zeros(own + many + 1, np.int64)
        np.cumsum(np.bincount(after, minlength=own + many), out=starts[1:])
        return make_graph(
            joined, names=old.names, dep_starts=starts, deps=before[order], groups=old.groups,
            group_names=old.group_names, ranks=old.ranks, weight=old.weight, node=old.node,
            source=old.source,
        )  # fmt: skip
