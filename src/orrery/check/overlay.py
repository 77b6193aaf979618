"""Overlays: who owns a key, is the ring one ring, can everybody be reached.

Node identifiers are whole numbers of an identifier space of `bits` bits, as in Chord and Kademlia.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence

from orrery.base.errors import SpecError
from orrery.check.violation import Violation


def successor(key: int, nodes: Sequence[int]) -> int:
    """The owner of a key on a ring: the first node at or after it, round the top."""
    after = [node for node in nodes if node >= key]
    return min(after) if after else min(nodes)


def nearest_xor(key: int, nodes: Sequence[int]) -> int:
    """The owner of a key by the XOR metric."""
    return min(nodes, key=lambda node: node ^ key)


OWNERS: dict[str, Callable[[int, Sequence[int]], int]] = {
    "successor": successor,
    "xor": nearest_xor,
}


def lookups(
    answers: Iterable[tuple[int, int, int | None]],
    nodes: Iterable[int],
    owner: str | Callable[[int, Sequence[int]], int] = "successor",
) -> list[Violation]:
    """Every lookup found the owner that a scan of all live nodes finds. O(lookups x nodes).

    Answers are (asking node, key, owner found or None); `owner` is "successor", "xor" or a function
    of a key and all live nodes.
    """
    live = sorted(set(nodes))
    if not live:
        raise SpecError("nodes", "there is no live node", "give at least one")
    if isinstance(owner, str) and owner not in OWNERS:
        raise SpecError("owner", f"{owner!r} is unknown", f"use one of {sorted(OWNERS)}")
    rule = OWNERS[owner] if isinstance(owner, str) else owner
    found = []
    for asking, key, answer in answers:
        right = rule(key, live)
        if answer == right:
            continue
        evidence = {"from": asking, "key": key, "found": answer, "owner": right}
        if answer is None:
            text = f"the lookup of {key} from {asking} found nobody; {right} owns it"
            found.append(Violation("no_owner", text, evidence))
        else:
            text = f"the lookup of {key} from {asking} found {answer}; {right} owns it"
            found.append(Violation("wrong_owner", text, evidence))
    return found


def ring(
    successors: Mapping[int, int],
    live: Iterable[int],
    predecessors: Mapping[int, int | None] | None = None,
) -> list[Violation]:
    """The live nodes form one cycle in the order of their identifiers. O(n log n).

    Each node must point to the next live identifier; that alone makes one cycle of all of them. A
    wrong pointer is named by what it does: to a dead node, past somebody, or backwards.
    """
    order = sorted(set(live))
    alive = set(order)
    found = []
    for place, node in enumerate(order):
        right = order[(place + 1) % len(order)]
        got = successors.get(node)
        evidence = {"node": node, "successor": got, "right": right}
        if got is None:
            found.append(Violation("no_successor", f"{node} has no successor", evidence))
        elif got not in alive:
            text = f"{node} points to {got}, which is not alive"
            found.append(Violation("dead_successor", text, evidence))
        elif got != right:
            skipped = (bisect_left(order, got) - place - 1) % len(order)
            text = f"{node} points to {got} and skips {skipped} live nodes, {right} first"
            found.append(Violation("wrong_successor", text, evidence))
        if predecessors is not None and predecessors.get(node) != order[place - 1]:
            text = (
                f"{node} takes {predecessors.get(node)} for the node before, not {order[place - 1]}"
            )
            evidence = {"node": node, "predecessor": predecessors.get(node)}
            found.append(Violation("wrong_predecessor", text, evidence))
    return found


def reachable(
    edges: Mapping[int, Iterable[int]], live: Iterable[int], root: int | None = None
) -> list[Violation]:
    """Every live node can be reached from the root, or, without one, from every other.

    Without a root it is enough that any one node reaches all and all reach it. O(nodes + edges).
    """
    nodes = sorted(set(live))
    if not nodes:
        return []
    alive = set(nodes)
    if root is not None and root not in alive:
        raise SpecError("root", f"{root} is not alive", "give a live node or None")
    start = nodes[0] if root is None else root
    forward: dict[int, list[int]] = {node: [] for node in nodes}
    backward: dict[int, list[int]] = {node: [] for node in nodes}
    for node in nodes:
        for other in edges.get(node, ()):
            if other in alive:
                forward[node].append(other)
                backward[other].append(node)
    there = _flood(start, forward)
    found = [
        Violation("unreachable", f"{node} cannot be reached from {start}", (start, node))
        for node in nodes
        if node not in there
    ]
    if root is None:
        back = _flood(start, backward)
        found += [
            Violation("unreachable", f"{start} cannot be reached from {node}", (node, start))
            for node in nodes
            if node not in back
        ]
    return found


def _flood(start: int, edges: Mapping[int, list[int]]) -> set[int]:
    seen = {start}
    todo = [start]
    while todo:
        for other in edges[todo.pop()]:
            if other not in seen:
                seen.add(other)
                todo.append(other)
    return seen
