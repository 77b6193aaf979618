"""Faults planted in FCP and its plans: each must be seen."""

from __future__ import annotations

import numpy as np
import pytest
from tests.systems.train.fcp_runs import figures, long_tail, pod

from orrery import World, run
from orrery.models.attention import Partial
from orrery.models.shards import Block
from orrery.systems.collectives import LongAttention, Ulysses
from orrery.systems.train.fcp import FCP, Limits, Parcel, balance, faults, plan, stuck
from orrery.systems.train.fcp.rounds import Plan

BATCH = {"documents": (90, 7, 40), "heads": 2, "head_dim": 8, "tokens": 0}
LENGTHS = (900, 300, 20)


class Averaging(FCP):
    """Takes the mean of partial results instead of weighing them."""

    async def merge(self, a, b):
        return b if a is None else Partial((a.out + b.out) / 2, np.logaddexp(a.lse, b.lse))


class OneParcelShort(FCP):
    """Never attends to its last parcel."""

    async def attend(self, q, k, v, queries, keys):
        takes = self.planned.takes(self.rank)
        if takes and keys == takes[-1].blocks:
            await super().attend(q, k, v, queries, keys)
            return None
        return await super().attend(q, k, v, queries, keys)

    async def merge(self, a, b):
        return a if b is None else await super().merge(a, b)


class Keeping(FCP):
    """Keeps the gradients of fetched keys, and sends zeros back."""

    def post(self, peer, tag, *arrays):
        super().post(peer, tag, *(np.zeros_like(array) for array in arrays))


class WrongRows(FCP):
    """Adds what comes back to its rows in the wrong order."""

    def _add(self, which, blocks, more):
        super()._add(which, blocks, more[::-1] if which and len(blocks) < len(self.mine) else more)


@pytest.mark.works_when("fcp", 1)
@pytest.mark.parametrize("part", [Averaging, OneParcelShort, Keeping, WrongRows])
def test_wrong_values_are_seen(part):
    made = run(part(block_tokens=8), problem=LongAttention(**BATCH), world=World.lan(3))
    assert {violation.kind for violation in made.violations} == {"wrong_value"}
    right = run(FCP(block_tokens=8), problem=LongAttention(**BATCH), world=World.lan(3))
    assert right.violations == []


@pytest.mark.works_when("fcp", 2)
def test_dealing_blocks_without_their_cost_is_uneven():
    lengths = long_tail(1 << 20, 1.5, 1 << 17)
    blocks = [Block(d, at, min(at + 1024, n)) for d, n in enumerate(lengths)
              for at in range(0, n, 1024)]  # fmt: skip
    dealt = tuple(tuple(blocks[w * len(blocks) // 32 : (w + 1) * len(blocks) // 32])
                  for w in range(32))  # fmt: skip
    assert balance(dealt, lengths, True)["imbalance"] > 2
    assert balance(plan(lengths, 32, True, Limits()).layout, lengths, True)["imbalance"] < 1.05


@pytest.mark.works_when("fcp", 3)
def test_with_the_mechanism_off_there_is_no_lead():
    lengths = long_tail(16 << 15, 1.5, 1 << 16)
    mfu = [figures(part, lengths, pod(16))["mfu"]
           for part in (FCP(), FCP(anywhere=False), Ulysses())]  # fmt: skip
    assert mfu[0] > 1.13 * mfu[2] > mfu[2] > mfu[1]


# -- plans


def parts_of():
    made = plan(LENGTHS, 4, True, Limits(64), 64)
    assert faults(made, LENGTHS, True) == []
    return made, made.columns.copy()


def altered(made, columns, which=None):
    return Plan(made.layout, made.blocks, columns, made.which if which is None else which,
                made.first)  # fmt: skip


@pytest.mark.works_when("fcp", 4)
def test_two_receives_in_a_round_are_seen():
    made, columns = parts_of()
    target = int(columns[2, 0])
    both = np.flatnonzero(columns[2] == target)[:2]
    columns[0, both[1]] = columns[0, both[0]]
    found = faults(altered(made, columns), LENGTHS, True)
    assert any(f"worker {target} receives twice" in text for text in found)


@pytest.mark.works_when("fcp", 4)
def test_a_need_that_is_not_met_and_a_sender_that_lacks_its_block_are_seen():
    made, columns = parts_of()
    which = made.which.copy()
    which[0] = (which[0] + 1) % len(made.blocks)
    found = " ".join(faults(altered(made, columns, which), LENGTHS, True))
    assert "never gets" in found
    columns[1] = (columns[1] + 1) % 4
    assert "which it has not" in " ".join(faults(altered(made, columns), LENGTHS, True))


@pytest.mark.works_when("fcp", 4)
def test_orders_that_wait_for_each_other_are_seen():
    # Worker 0 sends to 2 first and 3 second, worker 1 the other way round; both targets wait for
    # the parcel that comes second.
    a, b = (Block(0, 0, 1),), (Block(0, 1, 2),)
    p02, p03, p12, p13 = (Parcel(r, s, t, k) for r, s, t, k in
                          ((0, 0, 2, a), (1, 0, 3, a), (1, 1, 2, b), (0, 1, 3, b)))  # fmt: skip
    sends = [[p02, p03], [p13, p12], [], []]
    assert stuck(sends, [[], [], [p02, p12], [p13, p03]]) == []
    assert stuck(sends, [[], [], [p12, p02], [p03, p13]]) == [0, 1, 2, 3]
