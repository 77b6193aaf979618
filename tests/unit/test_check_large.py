"""Large histories: proved without search, and one corrupted answer is found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from orrery.base.rand import Stream
from orrery.check import CasRegister, History, Register, linearizable
from orrery.check.generate import linearizable_history


@pytest.mark.parametrize("keys", [1, pytest.param(40, marks=pytest.mark.slow)])
def test_a_hundred_thousand_operations_are_proved_without_search(keys):
    h = linearizable_history(100_000, clients=20, keys=keys, indefinite=0.05, seed=keys)
    verdict = linearizable(h)
    assert verdict.ok is True and verdict.explored == 0


@pytest.mark.parametrize("indefinite", [0.0, 0.05])
def test_swaps_are_proved_near_linearly(indefinite):
    for seed in range(3):
        h = linearizable_history(8_000, reads=0.5, swaps=0.25, indefinite=indefinite, seed=seed)
        verdict = linearizable(h, CasRegister())
        assert verdict.ok is True and verdict.explored < 10 * len(h)


@contextmanager
def corrupted(h: History, index: int, result: object) -> Iterator[History]:
    """The history with one answer changed, for a while."""
    right = h.results[index]
    h.results[index] = result
    try:
        yield h
    finally:
        h.results[index] = right


def test_one_corrupted_read_of_many_is_found():
    h = linearizable_history(5_000, clients=20, keys=2, seed=4)
    rng = Stream(4, "test", "corrupt")
    reads = [op for op in h if op.f == "read" and op.state == "ok"]
    for op in rng.sample(reads, 25):
        # A version read at least a hundred events ago has long been replaced by others.
        old = [o.result for o in reads if o.ret < op.call - 100 and o.key == op.key]
        new = [o.result for o in reads if o.call > op.ret + 100 and o.key == op.key]
        for wrong in [*rng.sample(old, 1), *rng.sample(new, 1), "never written"]:
            if wrong is None or wrong == op.result:
                continue
            with corrupted(h, op.index, wrong) as bad:
                verdict = linearizable(bad)
            assert verdict.ok is False
            again = linearizable(History.of(verdict.violation.evidence))
            assert again.ok is False and len(verdict.violation.evidence) <= 6


def test_one_corrupted_swap_is_found():
    h = linearizable_history(3_000, reads=0.4, swaps=0.4, indefinite=0.02, seed=5)
    taken = {o.value[0] for o in h if o.f == "cas" and o.state == "ok" and o.result is True}
    flips = 0
    for op in h:
        refused = op.f == "cas" and op.state == "ok" and op.result is False
        if refused and op.value[0] in taken:
            # A second successful swap of a value that was written once forks the order of values.
            with corrupted(h, op.index, True) as bad:
                verdict = linearizable(bad, CasRegister(), budget=0)
            assert verdict.ok is False and verdict.violation.kind == "cas_fork"
            again = History.of(verdict.violation.evidence)
            assert linearizable(again, CasRegister()).ok is False
            flips += 1
    assert flips > 20


def test_a_register_with_another_start():
    h = linearizable_history(2_000, seed=6)
    assert linearizable(h, Register("other")).ok is False
