"""Broadcast: validity, agreement, no creation, no duplication, FIFO, causal and total order.

A run is given as one log a node: what it broadcast and delivered, in its own order, as pairs
``("broadcast", message)`` and ``("deliver", message)``. Messages are hashable and each is broadcast
once, so a message stands for its broadcast. `correct` names the nodes that neither crashed nor
lied; left out, all did well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from orrery.base.errors import SpecError
from orrery.check.agreement import prefix_consistent
from orrery.check.violation import Violation

Node = Hashable
Logs = Mapping[Node, Sequence[tuple[str, Any]]]


def _deliveries(logs: Logs, correct: Collection[Node] | None = None) -> dict[Node, list[Any]]:
    return {
        node: [message for what, message in log if what == "deliver"]
        for node, log in logs.items()
        if correct is None or node in correct
    }


def _senders(logs: Logs) -> dict[Any, tuple[Node, int]]:
    """Each message's sender and its number among that sender's; refuses malformed logs."""
    senders: dict[Any, tuple[Node, int]] = {}
    for node, log in logs.items():
        count = 0
        for what, message in log:
            if what == "broadcast":
                if message in senders:
                    raise SpecError(
                        f"logs[{node!r}]",
                        f"the message {message!r} is broadcast twice",
                        "make messages unique, for example (sender, number)",
                    )
                senders[message] = (node, count)
                count += 1
            elif what != "deliver":
                raise SpecError(f"logs[{node!r}]", f"{what!r}", 'use "broadcast" or "deliver"')
    return senders


def validity(logs: Logs, correct: Collection[Node] | None = None) -> list[Violation]:
    """A correct node delivers whatever it broadcasts. O(events)."""
    delivered = {node: set(got) for node, got in _deliveries(logs).items()}
    return [
        Violation("not_delivered", f"{node!r} never delivered its own {message!r}", (node, message))
        for message, (node, _) in _senders(logs).items()
        if (correct is None or node in correct) and message not in delivered[node]
    ]


def agreement(
    logs: Logs, correct: Collection[Node] | None = None, uniform: bool = False
) -> list[Violation]:
    """What one correct node delivers, every correct node delivers (totality). O(nodes x messages).

    `uniform`: what any node delivers, even one that crashed afterwards, all correct nodes deliver.
    """
    deliveries = _deliveries(logs, correct)
    witness: dict[Any, Node] = {}
    for node, got in (_deliveries(logs) if uniform else deliveries).items():
        for message in got:
            witness.setdefault(message, node)
    found = []
    for node, got in deliveries.items():
        have = set(got)
        for message, who in witness.items():
            if message not in have:
                text = f"{who!r} delivered {message!r}, but {node!r} never did"
                found.append(Violation("missed", text, {"message": message, "nodes": (who, node)}))
    return found


def integrity(logs: Logs, correct: Collection[Node] | None = None) -> list[Violation]:
    """No correct node delivers what nobody broadcast, or anything twice. O(events)."""
    senders = _senders(logs)
    found = []
    for node, got in _deliveries(logs, correct).items():
        have: set[Any] = set()
        for message in got:
            if message not in senders:
                text = f"{node!r} delivered {message!r}, which nobody broadcast"
                found.append(Violation("created", text, (node, message)))
            if message in have:
                text = f"{node!r} delivered {message!r} twice"
                found.append(Violation("duplicated", text, (node, message)))
            have.add(message)
    return found


def _first_gap(have: set[int], start: int) -> int:
    while start in have:
        start += 1
    return start


def fifo_order(logs: Logs, correct: Collection[Node] | None = None) -> list[Violation]:
    """A node delivers a sender's messages in the order of sending, skipping none. O(events)."""
    senders = _senders(logs)
    by_number = {place: message for message, place in senders.items()}
    found = []
    for node, got in _deliveries(logs, correct).items():
        have: dict[Node, set[int]] = {}
        low: dict[Node, int] = {}
        for message in got:
            if message not in senders:
                continue
            sender, number = senders[message]
            have.setdefault(sender, set()).add(number)
            before = low.get(sender, 0)
            low[sender] = _first_gap(have[sender], before)
            if low[sender] < number:
                skipped = by_number[(sender, low[sender])]
                text = f"{node!r} delivered {message!r} before the earlier {skipped!r}"
                evidence = {"node": node, "delivered": message, "missing": skipped}
                found.append(Violation("fifo", text, evidence))
    return found


def _clocks(logs: Logs, senders: Mapping[Any, tuple[Node, int]]) -> tuple[dict[Any, Any], Any]:
    """The causal past of each message as counts by sender; also a delivery that had no cause.

    Logs are played in causal order: a delivery waits until its broadcast has been played.
    """
    past: dict[Any, dict[Node, int]] = {}
    clock: dict[Node, dict[Node, int]] = {node: {} for node in logs}
    place = dict.fromkeys(logs, 0)
    waiting: dict[Any, list[Node]] = {}
    ready = deque(logs)
    while ready:
        node = ready.popleft()
        log, mine = logs[node], clock[node]
        while place[node] < len(log):
            what, message = log[place[node]]
            if what == "broadcast":
                past[message] = dict(mine)
                mine[node] = mine.get(node, 0) + 1
                ready.extend(waiting.pop(message, ()))
            elif message in senders:
                if message not in past:
                    waiting.setdefault(message, []).append(node)
                    break
                sender, number = senders[message]
                for other, count in past[message].items():
                    if count > mine.get(other, 0):
                        mine[other] = count
                mine[sender] = max(mine.get(sender, 0), number + 1)
            place[node] += 1
    stuck = next(((nodes[0], message) for message, nodes in waiting.items()), None)
    return past, stuck


def causal_order(logs: Logs, correct: Collection[Node] | None = None) -> list[Violation]:
    """A node delivers a message only after all that its sender had sent or delivered before it.

    O(deliveries x senders). A log in which a delivery comes before its own cause is reported as
    ``acausal``: no run can produce it.
    """
    senders = _senders(logs)
    by_number = {place: message for message, place in senders.items()}
    past, stuck = _clocks(logs, senders)
    if stuck is not None:
        text = f"{stuck[0]!r} delivered {stuck[1]!r} before it can have been broadcast"
        return [Violation("acausal", text, stuck)]
    found = []
    for node, got in _deliveries(logs, correct).items():
        have: dict[Node, set[int]] = {}
        low: dict[Node, int] = {}
        for message in got:
            if message not in senders:
                continue
            for other, count in past[message].items():
                low[other] = _first_gap(have.get(other, set()), low.get(other, 0))
                if low[other] < count:
                    missing = by_number[(other, low[other])]
                    text = f"{node!r} delivered {message!r} before its cause {missing!r}"
                    evidence = {"node": node, "delivered": message, "missing": missing}
                    found.append(Violation("causal", text, evidence))
                    break
            sender, number = senders[message]
            have.setdefault(sender, set()).add(number)
    return found


def total_order(
    logs: Logs, correct: Collection[Node] | None = None, gapless: bool = False
) -> list[Violation]:
    """One order of all messages agrees with every node's deliveries. O(deliveries).

    Stronger than comparing pairs of nodes: a ring through three nodes is found too. With `gapless`
    nodes may also skip nothing, so each node's deliveries are a prefix of the longest.
    """
    deliveries = _deliveries(logs, correct)
    if gapless:
        return prefix_consistent(deliveries)
    follows: dict[Any, dict[Any, Node]] = {}
    for node, got in deliveries.items():
        once = list(dict.fromkeys(got))
        for message in once:
            follows.setdefault(message, {})
        for before, after in pairwise(once):
            follows[before].setdefault(after, node)
    ring = _ring(follows)
    if ring is None:
        return []
    steps = tuple((a, b, follows[a][b]) for a, b in zip(ring, (*ring[1:], ring[0]), strict=True))
    text = "; ".join(f"{node!r} delivered {a!r} before {b!r}" for a, b, node in steps[:4])
    return [Violation("order", text, steps)]


def _ring(follows: Mapping[Any, Mapping[Any, Node]]) -> tuple[Any, ...] | None:
    """A ring in a graph, or None. What has no predecessor left is removed until nothing moves."""
    left = dict.fromkeys(follows, 0)
    for targets in follows.values():
        for target in targets:
            left[target] += 1
    free = [message for message, count in left.items() if count == 0]
    while free:
        message = free.pop()
        del left[message]
        for target in follows[message]:
            left[target] -= 1
            if left[target] == 0:
                free.append(target)
    if not left:
        return None
    # Everything left has a predecessor that is left, so walking backwards must close a ring.
    before = {b: a for a in left for b in follows[a] if b in left}
    at = next(iter(left))
    trail: dict[Any, int] = {}
    while at not in trail:
        trail[at] = len(trail)
        at = before[at]
    walk = list(trail)[trail[at] :]
    return tuple(reversed(walk))
