"""Refused swaps against the definition, with many refusals and many indefinite writes."""

from __future__ import annotations

import pytest

from orrery.base.rand import Stream
from orrery.check import CasRegister, History, linearizable


def by_definition(history: History) -> bool:
    """Try every order of the operations, with or without each indefinite one."""

    def grow(state, rest) -> bool:
        if all(op.state != "ok" for op in rest):
            return True
        for op in rest:
            others = [o for o in rest if o is not op]
            if any(o.state == "ok" and o.ret < op.call for o in others):
                continue
            after, holds = state, True
            if op.f == "write":
                after = op.value
            elif op.f == "read":
                holds = op.result == state
            else:
                holds = op.value[0] != state
            if holds and grow(after, others):
                return True
        return False

    return grow(None, list(history))


def from_spans(spans) -> History:
    """A history from (begin, end or None, f, value, result); every swap in it was refused."""
    events = []
    for n, (begin, end, f, value, result) in enumerate(spans):
        events.append((begin, 0, n, (f, value)))
        if end is not None:
            events.append((end, 1, n, result))
    h, number = History(), {}
    for _, is_end, n, what in sorted(events, key=lambda event: event[:3]):
        if is_end:
            h.ok(number[n], what)
        else:
            number[n] = h.invoke(n, what[0], "x", what[1])
    return h


def test_many_refusals_agree_with_the_definition():
    rng = Stream(6, "test", "refusals")
    tally = [0, 0]
    for _ in range(2500):
        size, spans, fresh = 3 + rng.below(5), [], 0
        for _ in range(size):
            begin, end = sorted((rng.below(40), rng.below(40)))
            f = rng.choice(["write", "write", "cas", "cas", "cas", "read"])
            seen = rng.choice([None, *range(1, size // 2 + 1)])
            fresh += f != "read"
            value = {"read": None, "write": fresh, "cas": (seen, fresh)}[f]
            result = {"read": seen, "write": None, "cas": False}[f]
            lost = f == "write" and rng.random() < 0.25
            spans.append((begin, None if lost else end + 0.5, f, value, result))
        h = from_spans(spans)
        truth = by_definition(h)
        verdict = linearizable(h, CasRegister())
        assert verdict.ok is truth, "\n".join(map(str, h))
        if not truth:
            assert not by_definition(History.of(verdict.violation.evidence))
        tally[truth] += 1
    assert min(tally) > 500


TRAPS = {
    # The only hidden write that could explain the first refusals would block the last one.
    "a helper that some other refusal expects": [
        (0, 1, "cas", (2, 6), False),
        (2, 7, "cas", (None, 2), False),
        (3, None, "write", 1, None),
        (4, 5, "cas", (1, 5), False),
        (6, 8, "cas", (2, 4), False),
        (9, 10, "cas", (1, 3), False),
    ],
    # The value that stays too long is read again afterwards, so nothing can cut its stay short.
    "a value that is still in use": [
        (0, 2, "cas", (None, 4), False),
        (1, None, "write", 2, None),
        (3, None, "write", 3, None),
        (5, 6, "cas", (None, 5), False),
        (7, 8, "cas", (2, 1), False),
        (9, 11, "read", None, 2),
    ],
}


@pytest.mark.parametrize("name", TRAPS)
def test_helpers_are_not_used_where_they_cannot_help(name):
    h = from_spans(TRAPS[name])
    assert not by_definition(h)
    assert linearizable(h, CasRegister()).ok is False
