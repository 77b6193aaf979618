"""Histories: recording, order, joining, JSON lines."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orrery.base.errors import CodecError, SpecError
from orrery.check import History, linearizable
from orrery.check.generate import linearizable_history
from orrery.check.history import OPEN
from orrery.check.values import freeze, from_plain, to_plain


def test_ends_and_order():
    h = History()
    a = h.invoke("a", "write", "x", [1, 2], 0.0)
    b = h.invoke("b", "read", "x", None, 0.1)
    h.ok(b, (1, 2), 0.2)
    h.unknown(a, 0.3)
    c = h.invoke("a", "read", "x", time_s=0.3)
    assert [op.state for op in h] == ["unknown", "ok", "open"]
    assert h[a].value == (1, 2) and h[a].ret is None and h[a].ret_s == 0.3
    assert (h[b].call, h[b].ret, h[c].call) == (1, 2, 4)
    assert h.order()[1] == [OPEN, 2, OPEN]


def test_events_recorded_late_are_ordered_by_time():
    h = History()
    a = h.invoke("a", "write", "x", 1, 5.0)
    h.ok(a, None, 6.0)
    b = h.invoke("b", "read", "x", None, 1.0)
    h.ok(b, None, 2.0)
    assert h[b].ret < h[a].call
    assert linearizable(h)


def test_a_recorded_value_cannot_change_afterwards():
    h = History()
    value = [1]
    op = h.invoke("a", "write", "x", value)
    value.append(2)
    assert h[op].value == (1,)


def test_merged_histories_count_ties_as_concurrent():
    one, two = History(), History()
    one.ok(one.invoke("a", "write", "x", 1, 0.0), None, 1.0)
    two.ok(two.invoke("b", "read", "x", None, 1.0), None, 2.0)
    assert linearizable(History.merged([one, two]))
    two = History()
    two.ok(two.invoke("b", "read", "x", None, 1.5), None, 2.0)
    assert linearizable(History.merged([one, two])).ok is False


def test_json_lines_carry_everything():
    h = linearizable_history(300, clients=4, keys=3, swaps=0.2, failed=0.05, seed=3)
    h.invoke("z", "write", ("k", 1), frozenset({b"\x00", 2.5, float("inf")}))
    again = History.from_jsonl(h.to_jsonl())
    assert list(again) == list(h)
    assert again.to_jsonl() == h.to_jsonl()


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.binary()
    | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(plain)
@settings(max_examples=100, deadline=None)
def test_values_survive_json(value):
    frozen = freeze(value)
    assert from_plain(to_plain(frozen)) == frozen
    hash(frozen)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "line 1"),
        ("[1]", "line 1"),
        ('{"op": 0}', "'type' is missing"),
        ('{"op": 0, "type": "what"}', "invoke, ok, fail or unknown"),
        ('{"op": 0, "type": "ok", "time_s": 1}', "never invoked"),
        ('\n{"op": 0, "type": "invoke", "process": 1, "f": "", "time_s": 0}', "line 2: f"),
        ('{"op": 0, "type": "invoke", "process": null, "f": "read", "time_s": 0}', "process"),
        ('{"op": 0, "type": "invoke", "process": 1, "f": "read", "time_s": -1}', "time_s"),
        ('{"op": 0, "type": "invoke", "process": 1, "f": "r", "time_s": 0, "value": NaN}', "NaN"),
        ('{"op": [], "type": "invoke", "process": 1, "f": "read", "time_s": 0}', "line 1"),
    ],
)
def test_bad_lines_are_named(text, says):
    with pytest.raises(CodecError, match=says):
        History.from_jsonl(text)


def test_misuse_of_recording_is_named():
    h = History()
    op = h.invoke("a", "read", "x", None, 1.0)
    with pytest.raises(SpecError, match="still waits"):
        h.invoke("a", "read", "x")
    with pytest.raises(SpecError, match="before the call"):
        h.ok(op, 1, 0.5)
    for bad in (float("nan"), float("inf"), -1.0, "1", True):
        with pytest.raises(SpecError, match="time_s"):
            h.ok(op, 1, bad)
    assert h[op].state == "open" and len(h) == 1
    h.ok(op, 1)
    with pytest.raises(SpecError, match="already ended"):
        h.fail(op)
    with pytest.raises(SpecError, match="no operation of this history"):
        h.ok(7)
    with pytest.raises(SpecError, match="NaN"):
        h.invoke("b", "write", "x", [float("nan")])
    with pytest.raises(SpecError, match="process"):
        h.invoke(None, "read")
    with pytest.raises(CodecError, match="no JSON form"):
        to_plain(object())


def test_generated_histories_are_reproducible_and_mixed():
    h = linearizable_history(2000, swaps=0.3, reads=0.3, failed=0.05, seed=9)
    assert (
        h.to_jsonl()
        == linearizable_history(2000, swaps=0.3, reads=0.3, failed=0.05, seed=9).to_jsonl()
    )
    assert h.to_jsonl() != linearizable_history(2000, swaps=0.3, reads=0.3, failed=0.05).to_jsonl()
    assert {"ok", "fail", "unknown"} <= set(h.states) and {"read", "write", "cas"} == set(h.fs)
    assert len(linearizable_history(0)) == 0
    for bad in ({"operations": -1}, {"clients": 0}, {"keys": 0}, {"reads": 1.5}, {"failed": -0.1},
                {"indefinite": float("nan")}):  # fmt: skip
        with pytest.raises(SpecError):
            linearizable_history(**({"operations": 10} | bad))
