"""Sequential consistency against the definition: every interleaving of small histories is tried."""

from __future__ import annotations

from itertools import permutations

import pytest

from orrery.base.errors import SpecError
from orrery.base.rand import Stream
from orrery.check import History, Register, sequentially_consistent


def by_definition(h: History) -> bool:
    """Some order of the certain and some of the indefinite operations keeps every process's own."""
    ops = [op for op in h if op.state != "fail"]
    sure = [op for op in ops if op.state == "ok"]
    loose = [op for op in ops if op.state != "ok"]
    for pick in range(1 << len(loose)):
        chosen = sure + [op for n, op in enumerate(loose) if pick >> n & 1]
        for order in permutations(chosen):
            place = {op.index: n for n, op in enumerate(order)}
            if any(
                a.process == b.process and a.call < b.call and a.state == "ok"
                and place[a.index] > place[b.index]
                for a in chosen for b in chosen
            ):  # fmt: skip
                continue
            state: dict = {}
            for op in order:
                if op.f == "write":
                    state[op.key] = op.value
                elif op.state == "ok" and state.get(op.key) != op.result:
                    break
            else:
                return True
    return False


def test_small_histories_agree_with_the_definition():
    rng = Stream(3, "test", "sequential")
    tally = [0, 0]
    for _ in range(500):
        h = History()
        for _ in range(2 + rng.below(4)):
            f = rng.choice(["read", "write"])
            op = h.invoke(
                rng.below(2), f, rng.choice("xy"), 1 + rng.below(2) if f == "write" else None
            )
            how = rng.choices(["ok", "unknown", "fail"], weights=[8, 1, 1])[0]
            if how == "ok":
                h.ok(op, rng.choice([None, 1, 2]) if f == "read" else None)
            else:
                getattr(h, how)(op)
        truth = by_definition(h)
        verdict = sequentially_consistent(h)
        assert verdict.ok is truth, "\n".join(map(str, h))
        if not truth:
            assert not by_definition(History.of(verdict.violation.evidence))
        tally[truth] += 1
    assert min(tally) > 80


def test_stale_reads_are_sequentially_consistent_in_order():
    h = History()
    h.ok(h.invoke(1, "write", "x", 1))
    h.ok(h.invoke(2, "read", "x"), None)
    h.ok(h.invoke(2, "read", "x"), 1)
    assert sequentially_consistent(h, Register()).ok is True


def test_a_bad_budget_is_named():
    with pytest.raises(SpecError, match="budget"):
        sequentially_consistent(History(), budget=-5)
