"""Consensus and replicated logs: agreement, validity, integrity, termination, leaders, prefixes.

Nodes are any hashable names. `decisions` maps a node to everything it decided, in order, so that a
node that changes its mind is seen. `correct` names the nodes whose behaviour counts; left out, all
nodes do (then agreement is *uniform*: it also binds nodes that crash later).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

from orrery.base.errors import SpecError
from orrery.check.violation import Violation

Node = Hashable


def agreement(
    decisions: Mapping[Node, Sequence[Any]], correct: Collection[Node] | None = None
) -> list[Violation]:
    """No two nodes decide differently. O(decisions)."""
    first: tuple[Node, Any] | None = None
    found = []
    for node, values in decisions.items():
        if correct is not None and node not in correct:
            continue
        for value in values[:1]:
            if first is None:
                first = (node, value)
            elif value != first[1]:
                text = f"{first[0]!r} decided {first[1]!r}, but {node!r} decided {value!r}"
                found.append(Violation("disagreement", text, (first, (node, value))))
    return found


def integrity(
    decisions: Mapping[Node, Sequence[Any]], correct: Collection[Node] | None = None
) -> list[Violation]:
    """Every node decides at most once. O(decisions)."""
    return [
        Violation(
            "decided_twice",
            f"{node!r} decided {len(values)} times: {values[0]!r}, then {values[1]!r}",
            {"node": node, "values": tuple(values)},
        )
        for node, values in decisions.items()
        if len(values) > 1 and (correct is None or node in correct)
    ]


def validity(
    proposals: Mapping[Node, Any],
    decisions: Mapping[Node, Sequence[Any]],
    correct: Collection[Node] | None = None,
    rule: str = "proposed",
) -> list[Violation]:
    """Every decided value is allowed by the proposals. O(proposals x decisions) at worst.

    Rule "proposed": some node proposed it (crash faults). Rule "unanimous": when all correct nodes
    propose the same, only that is decided (Byzantine faults, where a liar may propose anything).
    """
    if rule not in ("proposed", "unanimous"):
        raise SpecError("rule", f"{rule!r} is unknown", 'use "proposed" or "unanimous"')
    # Values need not be hashable, so membership is tested by equality over distinct proposals.
    allowed: list[Any] = []
    for node, value in proposals.items():
        counts = rule == "proposed" or correct is None or node in correct
        if counts and value not in allowed:
            allowed.append(value)
    if rule == "unanimous" and len(allowed) != 1:
        return []
    found = []
    for node, values in decisions.items():
        if correct is not None and node not in correct:
            continue
        for value in values:
            if value not in allowed:
                text = f"{node!r} decided {value!r}, which is not among the proposals allowed"
                evidence = {"node": node, "value": value, "allowed": tuple(allowed)}
                found.append(Violation("invalid_decision", text, evidence))
    return found


def termination(
    decisions: Mapping[Node, Sequence[Any]], correct: Collection[Node]
) -> list[Violation]:
    """Every correct node decided by the end of the run. O(nodes)."""
    return [
        Violation("no_decision", f"{node!r} is correct and never decided", (node,))
        for node in correct
        if not decisions.get(node)
    ]


def consensus(
    proposals: Mapping[Node, Any],
    decisions: Mapping[Node, Sequence[Any]],
    correct: Collection[Node] | None = None,
    *,
    rule: str = "proposed",
    must_terminate: bool = True,
    uniform: bool = True,
) -> list[Violation]:
    """All four properties of consensus at once.

    `uniform` also binds the decisions of nodes that are not in `correct` (they crashed); turn it
    off for Byzantine nodes, whose decisions mean nothing.
    """
    bound = None if uniform else correct
    found = agreement(decisions, bound)
    found += validity(proposals, decisions, bound if rule == "proposed" else correct, rule)
    found += integrity(decisions, bound)
    if must_terminate:
        found += termination(decisions, list(proposals) if correct is None else correct)
    return found


def prefix_consistent(logs: Mapping[Node, Sequence[Any]]) -> list[Violation]:
    """Of any two logs one is a prefix of the other: one total order. O(total length).

    It is enough to compare each log with the longest one.
    """
    if not logs:
        return []
    longest = max(logs, key=lambda node: len(logs[node]))
    reference = logs[longest]
    found = []
    for node, log in logs.items():
        for index, (mine, theirs) in enumerate(zip(log, reference, strict=False)):
            if mine != theirs:
                text = f"at {index}, {node!r} has {mine!r} and {longest!r} has {theirs!r}"
                evidence = {"index": index, "logs": ((node, mine), (longest, theirs))}
                found.append(Violation("log_fork", text, evidence))
                break
    return found


def state_machine_safety(
    applied: Mapping[Node, Sequence[tuple[int, Any]]], first_index: int | None = None
) -> list[Violation]:
    """No two nodes apply different commands at one index, and each applies in order, without gaps.

    `applied` maps a node to (index, command) pairs as it applied them. With `first_index` every
    node must begin there; without it a node may begin anywhere (from a snapshot). O(entries).
    """
    found = []
    chosen: dict[int, tuple[Node, Any]] = {}
    for node, entries in applied.items():
        expected = first_index
        for index, command in entries:
            if expected is not None and index != expected:
                kind = "applied_again" if index < expected else "gap"
                text = f"{node!r} applied index {index} when {expected} was due"
                evidence = {"node": node, "index": index, "due": expected}
                found.append(Violation(kind, text, evidence))
            expected = index + 1
            who, other = chosen.setdefault(index, (node, command))
            if other != command:
                text = f"at {index}, {who!r} applied {other!r} and {node!r} applied {command!r}"
                evidence = {"index": index, "applied": ((who, other), (node, command))}
                found.append(Violation("unsafe_apply", text, evidence))
    return found


def one_leader_per_term(leaders: Iterable[tuple[Any, Node]]) -> list[Violation]:
    """At most one node ever leads a term; pairs are (term, node), in any order. O(pairs)."""
    known: dict[Any, Node] = {}
    reported: set[tuple[Any, Node]] = set()
    found = []
    for term, node in leaders:
        other = known.setdefault(term, node)
        if other != node and (term, node) not in reported:
            reported.add((term, node))
            text = f"{other!r} and {node!r} both led term {term!r}"
            found.append(Violation("two_leaders", text, {"term": term, "leaders": (other, node)}))
    return found
