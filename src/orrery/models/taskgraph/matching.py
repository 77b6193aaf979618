"""Matches what ranks do together: the calls of a collective, the ends of a message.

`faults` finds, before any replay, what would make one hang or lie: a rank that is missing, a group
whose members do not call alike, a send without a receive. `match` gives the *events* of a graph:
one for each collective as a whole and one for each other task, with what each event waits for.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from orrery.base.violation import Violation
from orrery.models.taskgraph.graph import (
    COLLECTIVE,
    FREE,
    OPS,
    RECV,
    SEND,
    GraphError,
    Ints,
    TaskGraph,
)


class Events(msgspec.Struct, frozen=True):
    """The events of a graph: who waits for whom, with collectives as single events.

    `event` gives the event of each task, `gate` the one that waits on its behalf (the same, or a
    helper), `task` one task of each event (of a collective, that of its first member). Events
    behind those in `task` are helpers, which take no time. Event e waits for
    before[starts[e]:starts[e+1]].
    """

    event: npt.NDArray[np.int32]
    gate: npt.NDArray[np.int32]
    task: Ints
    starts: Ints
    before: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.starts) - 1


def faults(graph: TaskGraph) -> list[Violation]:
    """What keeps a graph from being replayed, each named as what it is."""
    found = _missing_ranks(graph)
    gone = {int(v.node) for v in found if v.node is not None}
    found += _groups_that_differ(graph, gone)
    found += _unmatched_messages(graph, gone)
    return found


def refuse_faults(graph: TaskGraph) -> None:
    """Raise on the first fault."""
    found = faults(graph)
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise GraphError(f"graph ({found[0].kind})", found[0].message + more, "mend the traces")


def _missing_ranks(graph: TaskGraph) -> list[Violation]:
    """A rank that others count on and that has no task at all: its file is missing."""
    present = np.bincount(graph.rank, minlength=graph.ranks) > 0
    wanted = np.zeros(graph.ranks, bool)
    used = np.unique(graph.group[graph.kind == COLLECTIVE])
    for group in used:
        wanted[list(graph.groups[group])] = True
    ends = (graph.kind == SEND) | (graph.kind == RECV)
    wanted[graph.peer[ends]] = True
    return [
        Violation(kind="missing_rank", node=int(rank),
                  message=f"rank {rank} has no trace, and others communicate with it")
        for rank in np.flatnonzero(wanted & ~present)
    ]  # fmt: skip


def _groups_that_differ(graph: TaskGraph, gone: set[int]) -> list[Violation]:
    found = []
    for group, (members, calls) in enumerate(zip(graph.groups, _calls(graph), strict=True)):
        label = graph.group_names[group] or f"{group}"
        strangers = sorted(set(calls) - set(members))
        if strangers:
            told = f"group {label}: rank {strangers[0]} calls it and is no member"
            found.append(Violation(kind="mismatched_group", node=strangers[0], message=told))
        rows = {rank: calls.get(rank, _NONE) for rank in members if rank not in gone}
        if not rows or not calls:
            continue
        first = next(iter(rows))
        for rank, mine in rows.items():
            told = _difference(graph, rows[first], mine)
            if told:
                found.append(Violation(
                    kind="mismatched_group", node=rank,
                    message=f"group {label}: ranks {first} and {rank} differ: {told}"))  # fmt: skip
                break
    return found


_NONE: Ints = np.empty(0, np.int64)


def _difference(graph: TaskGraph, one: Ints, other: Ints) -> str:
    shared = min(len(one), len(other))
    for column, what in (("op", "kind"), ("size_B", "size")):
        values = getattr(graph, column)
        off = np.flatnonzero(values[one[:shared]] != values[other[:shared]])
        if off.size:
            k = int(off[0])
            a, b = values[one[k]], values[other[k]]
            shown = (OPS[a], OPS[b]) if column == "op" else (f"{a:g} B", f"{b:g} B")
            return f"call {k} has the {what} {shown[0]} and {shown[1]}"
    return "" if len(one) == len(other) else f"{len(one)} calls and {len(other)} calls"


def _calls(graph: TaskGraph) -> list[dict[int, Ints]]:
    """For each group, the tasks of each rank in the order of the graph."""
    tasks = np.flatnonzero(graph.kind == COLLECTIVE)
    order = np.lexsort((tasks, graph.rank[tasks], graph.group[tasks]))
    tasks = tasks[order]
    found: list[dict[int, Ints]] = [{} for _ in graph.groups]
    if not len(tasks):
        return found
    group, rank = graph.group[tasks], graph.rank[tasks]
    cuts = np.flatnonzero((np.diff(group) != 0) | (np.diff(rank) != 0)) + 1
    for piece in np.split(np.arange(len(tasks)), cuts):
        found[group[piece[0]]][int(rank[piece[0]])] = tasks[piece]
    return found


def _keyed(graph: TaskGraph, tasks: Ints, sender: bool) -> tuple[Ints, Ints]:
    """(tasks in order of channel, the number of each on its channel)."""
    rank, peer = graph.rank[tasks].astype(np.int64), graph.peer[tasks].astype(np.int64)
    source, target = (rank, peer) if sender else (peer, rank)
    order = np.lexsort((tasks, graph.tag[tasks], target, source))
    source, target, tag = source[order], target[order], graph.tag[tasks][order]
    new = np.ones(len(tasks), bool)
    new[1:] = (np.diff(source) != 0) | (np.diff(target) != 0) | (np.diff(tag) != 0)
    first = np.flatnonzero(new)
    number = np.arange(len(tasks)) - np.repeat(first, np.diff(np.append(first, len(tasks))))
    return tasks[order], number


def _channels(graph: TaskGraph, tasks: Ints, sender: bool) -> dict[tuple[int, int, int, int], int]:
    ordered, number = _keyed(graph, tasks, sender)
    keys = zip(graph.rank[ordered].tolist(), graph.peer[ordered].tolist(),
               graph.tag[ordered].tolist(), number.tolist(), strict=True)  # fmt: skip
    if sender:
        return {(a, b, t, k): task for (a, b, t, k), task in
                zip(keys, ordered.tolist(), strict=True)}  # fmt: skip
    return {(b, a, t, k): task for (a, b, t, k), task in zip(keys, ordered.tolist(), strict=True)}


def _unmatched_messages(graph: TaskGraph, gone: set[int]) -> list[Violation]:
    sends = _channels(graph, np.flatnonzero(graph.kind == SEND), True)
    recvs = _channels(graph, np.flatnonzero(graph.kind == RECV), False)
    found = []
    for kind, mine, other, word in (
        ("send_without_receive", sends, recvs, "receive"),
        ("receive_without_send", recvs, sends, "send"),
    ):
        for key, task in mine.items():
            if key in other or key[0] in gone or key[1] in gone:
                continue
            found.append(Violation(
                kind=kind, node=int(graph.rank[task]), evidence=task,
                message=f"{graph.label(task)}: message {key[3]} from rank {key[0]} to {key[1]} "
                        f"under tag {key[2]} has no {word}"))  # fmt: skip
            break
    for key, task in sends.items():
        pair = recvs.get(key)
        if pair is not None and graph.size_B[task] != graph.size_B[pair]:
            found.append(Violation(
                kind="mismatched_message", node=int(graph.rank[task]),
                message=f"{graph.label(task)} sends {graph.size_B[task]:g} B, rank {key[1]} "
                        f"expects {graph.size_B[pair]:g} B"))  # fmt: skip
            break
    return found


# -- events

# Who must have come before a member of a recorded collective can be done: all, the root, or nobody.
_FROM_ROOT = frozenset({OPS.index("broadcast"), OPS.index("scatter")})
_TO_ROOT = frozenset({OPS.index("reduce"), OPS.index("gather")})


def match(graph: TaskGraph) -> Events:
    """The events of a graph whose traces agree (see `faults`).

    A collective that the world times is one event. One with recorded times has an event for each
    member, since members end at different times, behind a helper event that waits for all who give.
    """
    size = len(graph)
    joined = np.arange(size, dtype=np.int64)
    recorded: list[tuple[tuple[int, ...], dict[int, Ints]]] = []
    for members, calls in zip(graph.groups, _calls(graph), strict=True):
        if not calls:
            continue
        tasks = np.concatenate([calls[rank] for rank in members])
        if not np.isnan(graph.duration_s[tasks]).any():
            recorded.append((members, calls))
            continue
        for rank in members[1:]:
            joined[calls[rank]] = calls[members[0]]
    leads, event = np.unique(joined, return_inverse=True)
    event = event.reshape(-1).astype(np.int32)
    gate, extra, count = _gates(graph, event, recorded, len(leads))
    owner = np.repeat(gate, np.diff(graph.dep_starts))
    edges = [(owner, event[graph.deps]), *extra]
    edges.append(_stream_edges(graph, gate, event))
    edges.append(_message_edges(graph, gate, event))
    after = np.concatenate([each[0] for each in edges])
    before = np.concatenate([each[1] for each in edges])
    apart = after != before
    after, before = after[apart], before[apart]
    order = np.argsort(after, kind="stable")
    starts = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(after, minlength=count), out=starts[1:])
    return Events(event, gate, leads, starts, before[order].astype(np.int32))


Edges = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]


def _gates(
    graph: TaskGraph, event: npt.NDArray[np.int32],
    recorded: list[tuple[tuple[int, ...], dict[int, Ints]]], count: int,
) -> tuple[npt.NDArray[np.int32], list[Edges], int]:  # fmt: skip
    """(the event that waits on behalf of each task, edges of helpers, the number of events)."""
    gate = event.copy()
    extra: list[Edges] = []
    for members, calls in recorded:
        table = np.stack([calls[rank] for rank in members])  # member x call
        ops, roots = graph.op[table[0]], graph.tag[table[0]] % len(members)
        rooted = np.isin(ops, list(_FROM_ROOT | _TO_ROOT))
        together = table[:, ~rooted]
        helper = np.arange(count, count + together.shape[1], dtype=np.int32)
        count += len(helper)
        gate[together] = helper
        extra.append((event[together].reshape(-1), np.tile(helper, len(members))))
        for call in np.flatnonzero(rooted).tolist():
            tasks, root = table[:, call], int(table[roots[call], call])
            own = np.arange(count, count + len(tasks), dtype=np.int32)
            join = np.int32(count + len(tasks))
            count += len(tasks) + 1
            gate[tasks] = own
            to_root = int(ops[call]) in _TO_ROOT
            gives = own if to_root else gate[[root]]
            takes = event[[root]] if to_root else event[tasks]
            extra += [(event[tasks], own), (np.full(len(gives), join), gives),
                      (takes, np.full(len(takes), join))]  # fmt: skip
    return gate, extra, count


def _stream_edges(
    graph: TaskGraph, gate: npt.NDArray[np.int32], event: npt.NDArray[np.int32]
) -> Edges:
    """Each task of a stream waits for the one before it there."""
    tasks = np.flatnonzero(graph.stream != FREE)
    if not len(tasks):
        return event[:0], event[:0]
    lane = graph.rank[tasks].astype(np.int64) * 256 + graph.stream[tasks]
    order = np.argsort(lane, kind="stable")
    tasks, lane = tasks[order], lane[order]
    same = np.flatnonzero(lane[1:] == lane[:-1])
    return gate[tasks[same + 1]], event[tasks[same]]


def _message_edges(
    graph: TaskGraph, gate: npt.NDArray[np.int32], event: npt.NDArray[np.int32]
) -> Edges:
    """A receive waits for its send."""
    sends, _ = _keyed(graph, np.flatnonzero(graph.kind == SEND), True)
    recvs, _ = _keyed(graph, np.flatnonzero(graph.kind == RECV), False)
    if len(sends) != len(recvs):
        raise GraphError("graph", "sends and receives do not match", "see faults(graph)")
    return gate[recvs], event[sends]
