"""Refused swaps of a register with unique values: was there a moment at which refusal was right?

A refused swap changes nothing; it only says that at some moment between its call and its return the
register did not hold what it expected. Given one linearisation of everything else, placed in time,
each refused swap can be judged alone. Two placements are tried (each operation as early, or as
late, as can be). Where an early placement still holds a value too long, an indefinite write that
nobody observed may have cut it short. What then remains is left to the search.
"""

from __future__ import annotations

from typing import Any

from orrery.check.history import OPEN
from orrery.check.models import Model
from orrery.check.search import Search, guided
from orrery.check.unique import START, Block, UniqueRegister
from orrery.check.violation import Violation


def wrong_refusal(register: UniqueRegister) -> Violation | None:
    """A swap refused while its expected value was certainly there, from call to return. O(n)."""
    calls, rets = register.calls, register.rets
    bounds = _certain_bounds(register)
    for i in register.refused:
        bound = bounds.get(register.expected(i))
        if bound is None:
            continue
        since, since_op, until, until_op = bound
        if since < calls[i] and rets[i] < until:
            text = f"a swap of {register.expected(i)!r} was refused while the register held it"
            return register.report("wrong_refusal", text, [i, since_op, until_op])
    return None


def _certain_bounds(register: UniqueRegister) -> dict[Any, tuple[int, int, int, int]]:
    """For each value: a time by which it was surely there, one until which it surely stayed."""
    calls, rets = register.calls, register.rets
    bounds = {}
    for block in register.blocks:
        for n, (writer, value, readers) in enumerate(block.groups):
            since, since_op = (-1, START) if writer == START else (rets[writer], writer)
            until, until_op = -1, START
            for i in readers:
                if rets[i] < since:
                    since, since_op = rets[i], i
                if calls[i] > until:
                    until, until_op = calls[i], i
            if n + 1 < len(block.groups):
                taker = block.groups[n + 1][0]
                if calls[taker] > until:
                    until, until_op = calls[taker], taker
            bounds[value] = (since, since_op, until, until_op)
    return bounds


def explained(register: UniqueRegister, model: Model, budget: int) -> Search:
    """Look for a linearisation that explains every refused swap, near one that explains the rest.

    O(n log n) when the placements or helpers suffice, else a search within the budget that starts
    from them. It leaves out indefinite operations that it does not use, so it only ever proves:
    the answer is True, or None for not found.
    """
    if not register.refused:
        return Search(True, 0)
    early = _early(register)
    blocked = _blocked(register, early)
    if not blocked or not _blocked(register, _late(register)):
        return Search(True, 0)
    helpers = _helpers(register, early, blocked)
    if len(helpers) == len(blocked):
        return Search(True, 0)
    rank: dict[int, int] = {}
    for block in _in_early_order(register):
        for writer, value, readers in block.groups:
            for i in (writer, *readers, helpers.get(value, START)):
                if i != START:
                    rank[i] = len(rank)
    ops = [register.history[i] for i in (*rank, *register.refused)]
    found = guided(ops, model, rank, budget)
    return found if found.ok else Search(None, found.explored)


class _Stay:
    """When a value is in the register: from `since` until `until`; `quiet` after its last use."""

    __slots__ = ("last_of_block", "quiet", "since", "until")

    def __init__(self, since: int, quiet: int, last_of_block: bool) -> None:
        self.since, self.quiet, self.last_of_block = since, quiet, last_of_block
        self.until = OPEN + 1


def _in_early_order(register: UniqueRegister) -> list[Block]:
    return sorted(register.blocks, key=lambda b: min(b.first_ret, b.last_call))


def _early(register: UniqueRegister) -> dict[Any, _Stay]:
    """Every operation as early as it can be, blocks by the lower end of their zone."""
    calls = register.calls
    stays: dict[Any, _Stay] = {}
    last: _Stay | None = None
    now = -2
    for block in _in_early_order(register):
        for n, (writer, value, readers) in enumerate(block.groups):
            now = since = now if writer == START else max(now, calls[writer])
            if last is not None:
                last.until = since
            for i in readers:
                now = max(now, calls[i])
            last = _Stay(since, now, n + 1 == len(block.groups))
            stays[value] = last
    return stays


def _late(register: UniqueRegister) -> dict[Any, _Stay]:
    """Every operation as late as it can be, blocks by the upper end of their zone."""
    rets = register.rets
    blocks = sorted(register.blocks, key=lambda b: max(b.first_ret, b.last_call), reverse=True)
    stays: dict[Any, _Stay] = {}
    now = OPEN + 1
    for block in blocks:
        for writer, value, readers in reversed(block.groups):
            until = now
            for i in readers:
                now = min(now, rets[i])
            quiet = now
            now = -2 if writer == START else min(now, rets[writer])
            stay = stays[value] = _Stay(now, quiet, False)
            stay.until = until
    return stays


def _blocked(register: UniqueRegister, stays: dict[Any, _Stay]) -> dict[Any, list[int]]:
    """The refused swaps, by expected value, whose whole time lies inside the stay of that value."""
    calls, rets = register.calls, register.rets
    blocked: dict[Any, list[int]] = {}
    for i in register.refused:
        stay = stays.get(register.expected(i))
        if stay is not None and stay.since < calls[i] and rets[i] < stay.until:
            blocked.setdefault(register.expected(i), []).append(i)
    return blocked


def _helpers(
    register: UniqueRegister, stays: dict[Any, _Stay], blocked: dict[Any, list[int]]
) -> dict[Any, int]:
    """For values that stay too long: an indefinite, unobserved operation that ends the stay.

    A swap can end only the value that it expects, a write any value; each helps once.
    """
    calls, rets = register.calls, register.rets
    expected = {register.expected(i) for i in register.refused}
    # A helper whose own value some refused swap expects could block that one, so it is not used.
    spare = [i for i in register.writes if _is_spare(register, i, expected)]
    spare.sort(key=lambda i: calls[i])
    swaps: dict[Any, int] = {}
    for i in register.swaps:
        if _is_spare(register, i, expected):
            swaps.setdefault(register.expected(i), i)
    # The tightest deadline takes the earliest helper: the usual exchange argument.
    jobs = [(min(rets[i] for i in ops), n) for n, ops in enumerate(blocked.values())]
    values = list(blocked)
    helpers: dict[Any, int] = {}
    taken = 0
    for deadline, n in sorted(jobs):
        stay, swap = stays[values[n]], swaps.get(values[n])
        if not stay.last_of_block or stay.quiet > deadline:
            continue
        if swap is not None and calls[swap] < deadline:
            helpers[values[n]] = swap
        elif taken < len(spare) and calls[spare[taken]] < deadline:
            helpers[values[n]] = spare[taken]
            taken += 1
    return helpers


def _is_spare(register: UniqueRegister, i: int, expected: set[Any]) -> bool:
    return not register.happened(i) and register.new_value(i) not in expected
