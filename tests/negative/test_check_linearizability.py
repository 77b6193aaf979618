"""Planted violations of linearizability and sequential consistency: each kind must be found."""

from __future__ import annotations

import pytest

from orrery.check import (
    CasRegister,
    Counter,
    History,
    Mutex,
    Queue,
    Register,
    SetModel,
    Stack,
    linearizable,
    sequentially_consistent,
)


def play(*steps) -> History:
    """A history from (process, f, value, result) tuples, one after another; "?" is unknown.

    A step ("call", process, f, value) only calls; ("end", process, result) ends that one.
    """
    h, waiting = History(), {}
    for step in steps:
        if step[0] == "call":
            waiting[step[1]] = h.invoke(step[1], step[2], "x", step[3])
        elif step[0] == "end":
            end(h, waiting.pop(step[1]), step[2])
        else:
            process, f, value, result = step
            end(h, h.invoke(process, f, "x", value), result)
    return h


def end(h: History, op: int, result) -> None:
    if result == "?":
        h.unknown(op)
    elif result == "!":
        h.fail(op)
    else:
        h.ok(op, result)


PLANTED = {
    "phantom_read": (Register(), play((1, "read", None, 9))),
    "aborted_read": (Register(), play((1, "write", 1, "!"), (1, "read", None, 1))),
    "future_read": (Register(), play((1, "read", None, 1), (2, "write", 1, None))),
    "stale_read": (
        Register(),
        play((1, "write", 1, None), (1, "write", 2, None), (2, "read", None, 1)),
    ),
    "inversion": (
        Register(),
        play(
            ("call", 1, "write", 1),
            ("call", 2, "write", 2),
            (3, "read", None, 1),
            (3, "read", None, 2),
            (4, "read", None, 1),
            ("end", 1, None),
            ("end", 2, None),
            (4, "read", None, 2),
        ),
    ),
    "cas_fork": (
        CasRegister(),
        play((1, "write", 1, None), (1, "cas", (1, 2), True), (2, "cas", (1, 3), True)),
    ),
    "cas_cycle": (
        CasRegister(),
        play(
            ("call", 1, "cas", (1, 2)),
            ("call", 2, "cas", (2, 1)),
            ("end", 1, True),
            ("end", 2, True),
        ),
    ),
    "cas_order": (
        CasRegister(),
        play((1, "cas", (1, 2), True), (2, "cas", (None, 1), True)),
    ),
    "wrong_refusal": (
        CasRegister(),
        play((1, "write", 1, None), (2, "cas", (1, 2), False), (1, "read", None, 1)),
    ),
    "not_linearizable": (
        Register(),
        play(
            (1, "write", 1, None),
            (1, "read", None, 1),
            (1, "write", 2, None),
            (1, "write", 1, None),
            (2, "read", None, 2),
        ),
    ),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_each_kind_is_found_and_its_evidence_convicts(kind):
    model, h = PLANTED[kind]
    verdict = linearizable(h, model)
    assert verdict.ok is False and verdict.violation.kind == kind
    assert verdict.violations == [verdict.violation] and not verdict
    again = History.of(verdict.violation.evidence)
    assert linearizable(again, model).ok is False


def test_more_ways_to_be_wrong_with_indefinite_operations():
    # A value that came back after another was seen, though its write was indefinite.
    h = play((1, "write", 1, "?"), (2, "read", None, 1), (3, "write", 2, None),
             (2, "read", None, 2), (2, "read", None, 1))  # fmt: skip
    assert linearizable(h).violation.kind == "stale_read"
    # An indefinite swap that was observed must have found its expected value.
    h = play((1, "cas", (7, 8), "?"), (2, "read", None, 8))
    verdict = linearizable(h, CasRegister())
    assert verdict.violation.kind == "phantom_read" and len(verdict.violation.evidence) == 2
    # A chain read backwards.
    h = play((1, "write", 1, None), (1, "cas", (1, 2), None), (2, "read", None, 1))
    assert linearizable(h, CasRegister()).violation.kind == "stale_read"


def test_a_refusal_explained_only_by_a_hidden_write_is_not_a_violation():
    steps = [(1, "write", 1, None), (2, "write", 5, "?"), (3, "cas", (1, 2), False)]
    assert linearizable(play(*steps), CasRegister()).ok is True
    assert linearizable(play(*steps[::2]), CasRegister()).ok is False


WRONG = {
    "queue order": (Queue(), [("enqueue", 1, None), ("enqueue", 2, None), ("dequeue", None, 2)]),
    "queue lost": (Queue(), [("enqueue", 1, None), ("dequeue", None, None)]),
    "queue twice": (Queue(), [("enqueue", 1, None), ("dequeue", None, 1), ("dequeue", None, 1)]),
    "stack order": (Stack(), [("push", 1, None), ("push", 2, None), ("pop", None, 1)]),
    "lost update": (Counter(), [("add", 1, None), ("fetch_add", 1, 1), ("read", None, 1)]),
    "same ticket": (Counter(), [("fetch_add", 1, 0), ("fetch_add", 1, 0)]),
    "lost element": (SetModel(), [("add", "p", None), ("contains", "p", False)]),
    "wrong read": (SetModel(), [("add", "p", None), ("add", "q", None), ("read", None, ["p"])]),
    "two holders": (Mutex(), [("acquire", "a", True), ("acquire", "b", True)]),
    "not the holder": (Mutex(), [("acquire", "a", True), ("release", "b", True)]),
    "refused while free": (Mutex(), [("acquire", "a", False)]),
}


@pytest.mark.parametrize("name", WRONG)
def test_other_objects(name):
    model, steps = WRONG[name]
    h = play(*((1, *step) for step in steps))
    verdict = linearizable(h, model)
    assert verdict.ok is False
    assert linearizable(History.of(verdict.violation.evidence), model).ok is False


def test_evidence_of_a_search_leaves_out_needless_looks():
    steps = [(1, "write", 1, None), *[(1, "read", None, 1)] * 5]
    steps += [(1, "write", 2, None), (1, "write", 1, None), (2, "read", None, 2)]
    verdict = linearizable(play(*steps))
    assert [op.f for op in verdict.violation.evidence] == ["write", "write", "write", "read"]
    assert verdict.violation.kind == "not_linearizable"


def test_sequential_consistency():
    h = play((1, "write", 1, None), (1, "read", None, None))
    verdict = sequentially_consistent(h)
    assert verdict.ok is False and verdict.violation.kind == "not_sequential"
    assert sequentially_consistent(History.of(verdict.violation.evidence)).ok is False
    h = play((1, "write", 1, None), (2, "write", 2, None), (3, "read", None, 1),
             (3, "read", None, 2), (4, "read", None, 2), (4, "read", None, 1))  # fmt: skip
    assert sequentially_consistent(h).ok is False
    # Dekker's test: across keys, each key alone would be fine.
    h = History()
    h.ok(h.invoke(1, "write", "x", 1))
    h.ok(h.invoke(2, "write", "y", 1))
    h.ok(h.invoke(1, "read", "y"), None)
    h.ok(h.invoke(2, "read", "x"), None)
    assert sequentially_consistent(h).ok is False
    assert sequentially_consistent(h, budget=2).ok is None
