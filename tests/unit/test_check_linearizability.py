"""Linearizability against the definition: every order of small histories is tried."""

from __future__ import annotations

import pytest

from orrery.base.errors import SpecError
from orrery.base.rand import Stream
from orrery.check import CasRegister, Counter, History, Mutex, Queue, Register, SetModel, Stack
from orrery.check.linearizability import linearizable, relevant
from orrery.check.search import search


def by_definition(history: History, model) -> bool:
    """Try every subset of the indefinite operations in every order; nothing is shared or saved."""
    ops = [op for op in history if op.state != "fail"]

    def grow(state, rest) -> bool:
        if all(op.state != "ok" for op in rest):
            return True
        for op in rest:
            others = [o for o in rest if o is not op]
            if any(o.state == "ok" and o.ret < op.call for o in others):
                continue
            after, answer = model.apply(state, op.f, op.value)
            if op.state == "ok" and not model.agrees(op.f, answer, op.result):
                continue
            if grow(after, others):
                return True
        return False

    return grow(model.initial(), ops)


def random_history(rng: Stream, cas: bool, unique: bool, size: int) -> History:
    """A small history, about half of them linearizable: intervals and answers at random."""
    h = History()
    spans = []
    for _ in range(size):
        a, b = rng.randrange(30), rng.randrange(30)
        spans.append((min(a, b), max(a, b) + 0.5))
    spans.sort()
    pool = list(range(1, size + 1)) if unique else [1, 2]
    fresh = 0
    events = []
    for n, (begin, end) in enumerate(spans):
        kind = rng.choice(["read", "read", "write", "cas", "cas"] if cas else ["read", "write"])
        value = None
        if kind != "read":
            fresh += 1
            value = fresh if unique else rng.choice(pool)
        if kind == "cas":
            value = (rng.choice([None, *pool[: fresh + 1]]), value)
        how = rng.choices(["ok", "unknown", "fail", "open"], weights=[75, 14, 6, 5])[0]
        result = None
        if kind == "read":
            result = rng.choice([None, *pool[: max(1, fresh)]])
        elif kind == "cas":
            result = rng.choice([True, True, False, None])
        events.append((begin, 0, n, (kind, value)))
        if how != "open":
            events.append((end, 1, n, (how, result)))
    number = {}
    for time_s, is_end, n, (what, value) in sorted(events, key=lambda e: e[:3]):
        if not is_end:
            number[n] = h.invoke(n, what, "x", value, time_s)
        elif what == "ok":
            h.ok(number[n], value, time_s)
        else:
            getattr(h, what)(number[n], time_s)
    return h


def agree(seed: int, count: int, model, cas: bool, unique: bool, size: int) -> tuple[int, int]:
    """Compare on many histories; gives how many were linearizable and how many were not."""
    rng = Stream(seed, "histories", f"{cas} {unique}")
    tally = [0, 0]
    for _ in range(count):
        h = random_history(rng, cas, unique, 2 + rng.randrange(size - 1))
        truth = by_definition(h, model)
        verdict = linearizable(h, model)
        assert verdict.ok is truth, "\n".join(map(str, h))
        ops = relevant(h, range(len(h)), model)
        assert search(ops, model, 10**6).ok is truth, "\n".join(map(str, h))
        tally[truth] += 1
        if not truth:
            again = History.of(verdict.violation.evidence)
            assert not by_definition(again, model), (verdict, "\n".join(map(str, h)))
            assert linearizable(again, model).ok is False
    return tally[1], tally[0]


@pytest.mark.parametrize("unique", [True, False])
def test_registers_agree_with_the_definition(unique):
    good, bad = agree(1, 2500, Register(), cas=False, unique=unique, size=7)
    assert good > 300 and bad > 300


@pytest.mark.parametrize("unique", [True, False])
def test_cas_registers_agree_with_the_definition(unique):
    good, bad = agree(2, 3000, CasRegister(), cas=True, unique=unique, size=7)
    assert good > 300 and bad > 300


def test_a_register_may_start_with_a_value():
    h = History()
    h.ok(h.invoke(1, "read", "x"), 0)
    assert linearizable(h, Register(0)).ok is True
    assert linearizable(h, Register()).ok is False


def test_keys_are_judged_apart():
    h = History()
    for key in "abc":
        h.ok(h.invoke(key, "write", key, 1))
        h.ok(h.invoke(key, "read", key), 1)
    assert linearizable(h)
    h.ok(h.invoke("z", "read", "b"), None)
    verdict = linearizable(h)
    assert verdict.ok is False and {op.key for op in verdict.violation.evidence} == {"b"}


def test_an_unknown_write_may_take_effect_much_later():
    h = History()
    w = h.invoke(1, "write", "x", 7, 0.0)
    h.unknown(w, 1.0)
    h.ok(h.invoke(2, "read", "x", None, 2.0), None, 3.0)
    h.ok(h.invoke(2, "read", "x", None, 4.0), 7, 5.0)
    assert linearizable(h)


def test_objects_other_than_registers():
    h = History()
    a, b = h.invoke(1, "enqueue", None, 1), h.invoke(2, "enqueue", None, 2)
    h.ok(a), h.ok(b)
    h.ok(h.invoke(1, "dequeue"), 2)
    h.ok(h.invoke(1, "dequeue"), 1)
    h.ok(h.invoke(1, "dequeue"), None)
    assert linearizable(h, Queue())

    h = History()
    h.ok(h.invoke(1, "push", None, 1))
    h.ok(h.invoke(1, "push", None, 2))
    h.ok(h.invoke(1, "pop"), 2)
    assert linearizable(h, Stack())

    h = History()
    a = h.invoke(1, "fetch_add", None, 5)
    h.ok(h.invoke(2, "fetch_add", None, 1), 5)
    h.ok(a, 0)
    h.ok(h.invoke(2, "read"), 6)
    assert linearizable(h, Counter())

    h = History()
    h.ok(h.invoke(1, "add", None, "p"))
    h.ok(h.invoke(1, "contains", None, "p"), True)
    h.ok(h.invoke(1, "read"), ["p"])
    h.ok(h.invoke(1, "remove", None, "p"))
    h.ok(h.invoke(1, "read"), [])
    assert linearizable(h, SetModel())

    h = History()
    h.ok(h.invoke(1, "acquire", None, "a"), True)
    h.ok(h.invoke(2, "acquire", None, "b"), False)
    h.ok(h.invoke(1, "release", None, "a"))
    h.ok(h.invoke(2, "acquire", None, "b"))
    assert linearizable(h, Mutex())


def test_beyond_the_budget_the_answer_is_unknown():
    h = History()
    ops = [h.invoke(n, "enqueue", None, n) for n in range(12)]
    for op in ops:
        h.ok(op)
    for n in [*range(10), 11, 12]:
        h.ok(h.invoke("r", "dequeue"), n)
    verdict = linearizable(h, Queue(), budget=500)
    assert verdict.ok is None and not verdict and verdict.violations == []
    assert verdict.explored == 500


def test_an_empty_history_is_linearizable():
    assert linearizable(History()).ok is True


def test_misuse_is_named():
    h = History()
    h.ok(h.invoke(1, "reed", "x"), 1)
    with pytest.raises(SpecError, match=r'operation 0\.f: .*did you mean "read"'):
        linearizable(h)
    with pytest.raises(SpecError, match="budget"):
        linearizable(History(), budget=-1)
    h = History()
    h.ok(h.invoke(1, "cas", "x", 1), True)
    with pytest.raises(SpecError, match="expected, new"):
        linearizable(h, CasRegister())
