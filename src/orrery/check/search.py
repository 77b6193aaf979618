"""The search for a linearisation of one object (Wing and Gong 1993, as improved by Lowe 2017).

Operations are tried in every order that real time allows, with two savings. A configuration (which
operations are done, in which state) is visited once. An operation that only looks, and is legal
now, is done at once, because doing it later can never help. (A write of the value already there is
not such a one: it may be needed later.) The worst case is exponential in the operations that
overlap, so the search stops at a budget and then says that it does not know.
"""

from __future__ import annotations

from typing import Any

import msgspec

from orrery.check.history import OPEN, Operation
from orrery.check.models import Model


class Search(msgspec.Struct, frozen=True):
    """What a search found: ok is True, False or None; `stuck_at` is the return never passed."""

    ok: bool | None
    explored: int
    stuck_at: int = -1


class _Line:
    """The events in order as a doubly linked list; operations are lifted out and put back."""

    def __init__(self, ops: list[Operation]) -> None:
        events: list[tuple[int, int, int]] = []
        for i, op in enumerate(ops):
            events.append((op.call, 0, i))
            if op.state == "ok":
                events.append((OPEN if op.ret is None else op.ret, 1, i))
        events.sort()
        # Node 0 is the head; node k is event k - 1; the last node is the tail.
        size = len(events) + 2
        self.next = list(range(1, size + 1))
        self.prev = list(range(-1, size - 1))
        self.tail = size - 1
        self.owner = [-1, *(i for _, _, i in events), -1]
        self.is_call = [False, *(kind == 0 for _, kind, _ in events), False]
        self.place = [-1, *(at for at, _, _ in events), OPEN]
        self.ret_node = [0] * len(ops)
        for node, (_, kind, i) in enumerate(events, 1):
            if kind:
                self.ret_node[i] = node

    def lift(self, call: int) -> None:
        ret = self.ret_node[self.owner[call]]
        for node in (call, ret) if ret else (call,):
            before, after = self.prev[node], self.next[node]
            self.next[before], self.prev[after] = after, before

    def put_back(self, call: int) -> None:
        ret = self.ret_node[self.owner[call]]
        for node in (ret, call) if ret else (call,):
            before, after = self.prev[node], self.next[node]
            self.next[before] = self.prev[after] = node


def search(ops: list[Operation], model: Model, budget: int) -> Search:
    """Look for a linearisation of the operations of one object; failed ones must be left out."""
    # Acknowledged operations are numbered by their calls. All below `low` are done, and `window`
    # holds the bits from there on, so a configuration stays small however long the history is.
    ops = sorted(ops, key=lambda op: (op.state != "ok", op.call))
    line = _Line(ops)
    certain = sum(op.state == "ok" for op in ops)
    looks = [op.state == "ok" and model.only_looks(op.f, op.result) for op in ops]
    apply, agrees = model.apply, model.agrees
    state: Any = model.initial()
    low = window = maybe = explored = 0
    stuck_at = -1
    seen: set[tuple[int, int, int, Any]] = set()
    # Each entry: the node lifted, the configuration before, and whether there was no choice.
    stack: list[tuple[int, int, int, int, Any, bool]] = []
    node = line.next[0]
    while low < certain:
        back = False
        if line.is_call[node]:
            if explored >= budget:
                return Search(None, explored)
            explored += 1
            i = line.owner[node]
            op = ops[i]
            after, answer = apply(state, op.f, op.value)
            # An indefinite operation without effect here is better kept for later.
            if not (agrees(op.f, answer, op.result) if i < certain else after != state):
                node = line.next[node]
                continue
            config = _with(i, certain, low, window, maybe, after)
            if config not in seen:
                seen.add(config)
                stack.append((node, low, window, maybe, state, looks[i]))
                low, window, maybe, state = config
                line.lift(node)
                node = line.next[0]
            elif looks[i]:
                back = True
            else:
                node = line.next[node]
        else:
            # A return is reached whose operation is not done: this order is dead.
            stuck_at = max(stuck_at, line.place[node])
            back = True
        while back:
            if not stack:
                return Search(False, explored, stuck_at)
            node, low, window, maybe, state, back = stack.pop()
            line.put_back(node)
            if not back:
                node = line.next[node]
    return Search(True, explored)


def _with(
    i: int, certain: int, low: int, window: int, maybe: int, state: Any
) -> tuple[int, int, int, Any]:
    """The configuration after operation i is done."""
    if i >= certain:
        return low, window, maybe | (1 << (i - certain)), state
    window |= 1 << (i - low)
    while window & 1:
        window >>= 1
        low += 1
    return low, window, maybe, state


def guided(ops: list[Operation], model: Model, rank: dict[int, int], budget: int) -> Search:
    """The same search with a hint: the order to try first, as a rank for each operation's index.

    Where the hint is right but for a few places, the search stays near them, since the last choice
    is undone first. What only looks is tried before all else, as it costs no choice.
    """
    ops = sorted(ops, key=lambda op: (op.state != "ok", op.call))
    line = _Line(ops)
    certain = sum(op.state == "ok" for op in ops)
    looks = [op.state == "ok" and model.only_looks(op.f, op.result) for op in ops]
    ranks = [-1 if looks[i] else rank.get(op.index, OPEN) for i, op in enumerate(ops)]
    config: tuple[int, int, int, Any] = (0, 0, 0, model.initial())
    seen: set[tuple[int, int, int, Any]] = set()
    explored, stuck_at = 0, -1
    nodes, at = _callable(line, ranks)
    # Each entry: the choices, how many were tried, the configuration, and the node lifted to it.
    stack: list[tuple[list[int], int, tuple[int, int, int, Any], int]] = []
    tried = 0
    while config[0] < certain:
        if tried == len(nodes):
            stuck_at = max(stuck_at, at)
            if not stack:
                return Search(False, explored, stuck_at)
            nodes, tried, config, lifted = stack.pop()
            line.put_back(lifted)
            continue
        if explored >= budget:
            return Search(None, explored)
        explored += 1
        node = nodes[tried]
        tried += 1
        i = line.owner[node]
        low, window, maybe, state = config
        after, answer = model.apply(state, ops[i].f, ops[i].value)
        if i >= certain:
            legal = after != state
        else:
            legal = model.agrees(ops[i].f, answer, ops[i].result)
        if not legal:
            continue
        following = _with(i, certain, low, window, maybe, after)
        if looks[i]:
            tried = len(nodes)  # There is no better choice than a look that is legal.
        if following not in seen:
            seen.add(following)
            stack.append((nodes, tried, config, node))
            line.lift(node)
            config, tried = following, 0
            nodes, at = _callable(line, ranks)
    return Search(True, explored)


def _callable(line: _Line, ranks: list[int]) -> tuple[list[int], int]:
    """The calls before the first return still to come, by rank, and the place of that return."""
    nodes = []
    node = line.next[0]
    while line.is_call[node]:
        nodes.append(node)
        node = line.next[node]
    nodes.sort(key=lambda call: ranks[line.owner[call]])
    return nodes, line.place[node]
