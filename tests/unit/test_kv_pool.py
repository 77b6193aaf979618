"""The pool of KV blocks: books that always balance, least recently used first."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orrery.base.errors import UsageError
from orrery.models.kv import BLANK, KVPool
from orrery.models.requests import Request


def test_equal_prefixes_share_blocks():
    pool = KVPool(4)
    assert pool.take(2)
    held = [pool.fill(1), pool.fill(2)]
    pool.hold([1, 2])
    assert pool.free == 2 and pool.alone(held) == 0
    pool.release(held)
    assert pool.free == 2, "another one still holds them"
    pool.release([1, 2])
    assert pool.free == 4 and pool.match([1, 2, 3]) == 2
    assert pool.faults() == []


def test_the_end_of_the_oldest_goes_first():
    pool = KVPool(3)
    for keys in ([1, 2], [3]):
        pool.take(len(keys))
        pool.release([pool.fill(key) for key in keys])
    pool.take(1)
    assert pool.match([1, 2]) == 1, "2 was freed before 1, as it is of less use"
    assert pool.match([3]) == 1
    pool.take(1)
    assert pool.match([1]) == 0 and pool.match([3]) == 1


def test_too_many_takes_nothing():
    pool = KVPool(2)
    assert not pool.take(3)
    assert pool.free == 2 and pool.faults() == []


def test_a_copy_of_content_that_is_there_has_no_key():
    pool = KVPool(2)
    pool.take(2)
    assert pool.fill(5) == 5 and pool.fill(5) == BLANK
    pool.release([5, BLANK])
    assert pool.faults() == [] and pool.match([5]) == 1


def test_without_caching_nothing_is_kept():
    pool = KVPool(2, caching=False)
    pool.take(1)
    assert pool.fill(5) == BLANK
    pool.release([BLANK])
    assert pool.match([5]) == 0


def test_a_crash_forgets_content_and_loses_no_block():
    pool = KVPool(2)
    pool.take(1)
    pool.release([pool.fill(5)])
    pool.forget()
    assert pool.match([5]) == 0 and pool.free == 2 and pool.faults() == []


@pytest.mark.parametrize(("blocks", "tokens"), [(0, 16), (-1, 16), (4, 0)])
def test_a_pool_of_nothing_is_refused(blocks, tokens):
    with pytest.raises(UsageError, match="at least one block"):
        KVPool(blocks, tokens)


def test_given_back_twice_is_seen():
    pool = KVPool(2)
    pool.take(1)
    pool.release([BLANK])
    pool.release([BLANK])
    assert pool.faults()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), max_size=60))
def test_the_books_balance_after_anything(steps):
    pool = KVPool(12)
    live = []
    for who, count in steps:
        keys = [100 * who + place for place in range(count)]
        hits = pool.match(keys)
        if count - hits <= pool.free - pool.idle(keys[:hits]):
            pool.hold(keys[:hits])
            assert pool.take(count - hits)
            live.append(keys[:hits] + [pool.fill(key) for key in keys[hits:]])
        elif live:
            pool.release(live.pop(0))
        assert pool.faults() == []
    for held in live:
        pool.release(held)
    assert pool.free == 12 and pool.blank == 0


def test_what_a_request_alone_has_comes_back_from_its_beginning():
    pool, mine = KVPool(10), Request(3, 0.0, 40, 5).own_key
    pool.take(6)
    pool.release_own(mine, 6, 5)
    assert pool.own(mine) == 5 and pool.free == 10
    pool.take(6)  # four that were never used, the one that was not full, and one of its own
    assert pool.own(mine) == 4 and pool.faults() == []
    pool.regain(mine, 3)
    assert pool.own(mine) == 0 and pool.free == 1 and pool.blank == 9 and pool.faults() == []


def test_own_keys_are_apart():
    keys = {Request(number, 0.0, 1, 1).own_key for number in range(50)}
    assert len(keys) == 50 and max(keys) < BLANK


@pytest.mark.parametrize(("prompt", "output"), [(0, 1), (1, 0), (-3, 1)])
def test_requests_of_nothing_are_refused(prompt, output):
    with pytest.raises(UsageError, match="at least 1"):
        Request(0, 0.0, prompt, output)
