"""Planted violations of the session guarantees."""

from __future__ import annotations

from orrery.check import History
from orrery.check.sessions import (
    monotonic_reads,
    monotonic_writes,
    read_your_writes,
    session_guarantees,
    writes_follow_reads,
)


def play(*steps) -> History:
    h = History()
    for process, f, value in steps:
        op = h.invoke(process, f, "x", value if f == "write" else None)
        h.ok(op, value if f == "read" else None)
    return h


def kinds(found) -> list[str]:
    return [violation.kind for violation in found]


def test_read_your_writes():
    h = play(("a", "write", 1), ("a", "read", None))
    assert kinds(session_guarantees(h)) == ["forgot_own_write"]
    h = play(("a", "write", 1), ("a", "write", 2), ("a", "read", 1))
    assert kinds(read_your_writes(h)) == ["forgot_own_write"]
    h = play(("b", "write", 1), ("a", "write", 2), ("a", "read", 1))
    assert read_your_writes(h) == []  # Nothing tells which is newer ...
    assert kinds(read_your_writes(h, {"x": [1, 2]})) == ["forgot_own_write"]  # ... but the store.
    h = play(
        ("b", "write", 1), ("a", "write", 2), ("a", "read", 1), ("c", "read", 1), ("c", "read", 2)
    )
    found = read_your_writes(h)
    assert kinds(found) == ["forgot_own_write"] and len(found[0].evidence) == 4


def test_monotonic_reads():
    writes = [("w", "write", 1), ("v", "write", 2)]
    h = play(*writes, ("a", "read", 1), ("a", "read", 2), ("a", "read", 1))
    assert kinds(monotonic_reads(h)) == ["read_went_back"]
    h = play(*writes, ("a", "read", 1), ("a", "read", 2), ("b", "read", 2), ("b", "read", 1))
    assert kinds(monotonic_reads(h)) == ["read_went_back"]
    h = play(*writes, ("a", "read", 2), ("a", "read", 1))
    assert kinds(monotonic_reads(h, {"x": [1, 2]})) == ["read_went_back"]
    assert kinds(monotonic_reads(play(("a", "read", 5)), {"x": [1]})) == ["phantom_read"]


def test_monotonic_writes():
    h = play(("w", "write", 1), ("w", "write", 2), ("a", "read", 2), ("a", "read", 1))
    assert kinds(monotonic_writes(h)) == ["writes_swapped"]
    assert kinds(monotonic_writes(h, {"x": [2, 1]})) == ["writes_swapped"]
    assert monotonic_writes(h, {"x": [1, 2]}) == []


def test_writes_follow_reads():
    h = play(
        ("w", "write", 1), ("a", "read", 1), ("a", "write", 2), ("b", "read", 2), ("b", "read", 1)
    )
    assert kinds(writes_follow_reads(h)) == ["write_before_read"]
    assert kinds(writes_follow_reads(h, {"x": [2, 1]})) == ["write_before_read"]
    assert writes_follow_reads(h, {"x": [1, 2]}) == []
