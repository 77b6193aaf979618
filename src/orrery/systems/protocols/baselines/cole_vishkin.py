"""Cole-Vishkin: a 3-colouring of a directed cycle in log* n + O(1) rounds, with early output.

Colours are handled as *sets of what they may be*, since a node outputs as soon as its ball leaves
only one final colour. A set of colours below 64 is a 64-bit mask, so the same arithmetic serves
one node (Python numbers) and a million (NumPy).
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from orrery.base.errors import UsageError
from orrery.systems.protocols.problems.local_rounds.graph import (
    Ints,
    LocalGraph,
    check_rows,
    id_bits,
)
from orrery.systems.protocols.problems.local_rounds.port import (
    LocalAlgorithm,
    Payload,
    State,
)

Masks = npt.NDArray[np.uint64]
MOST_BITS = 32
LAST = 6  # colours left when the iteration ends
SPAN = 3  # the reduction to 3 colours has three steps, so it reads so far to either side
ONE = np.uint64(1)


def sizes(bits: int) -> tuple[int, ...]:
    """How many colours there are before and after each iteration, down to at most six.

    >>> sizes(32), sizes(17), sizes(3)
    ((4294967296, 64, 12, 8, 6), (131072, 34, 12, 8, 6), (8, 6))
    """
    if not 1 <= bits <= MOST_BITS:
        raise UsageError(f"identifiers of {bits} bits; Cole-Vishkin here takes 1 to {MOST_BITS}")
    found = [1 << bits]
    while found[-1] > LAST:
        found.append(2 * (found[-1] - 1).bit_length())
    return tuple(found)


def step(mine: int, next_one: int) -> int:
    """The lowest bit in which two colours differ, as 2 * place + my bit there."""
    place = ((mine ^ next_one) & -(mine ^ next_one)).bit_length() - 1
    return 2 * place + (mine >> place & 1)


@functools.cache
def differing() -> Masks:
    """[a, i]: the set of colours below 64 whose lowest difference from a is bit i."""
    found = np.zeros((64, 6), dtype=np.uint64)
    for a in range(64):
        for b in range(64):
            if a != b:
                found[a, step(a, b) // 2] |= ONE << np.uint64(b)
    return found


def step_one(mine: int, theirs: int, size: int) -> int:
    """`step` on sets: every colour that some pair of different colours gives."""
    table, found = differing(), 0
    for a in range(size):
        if mine >> a & 1:
            for i in range(6):
                if theirs & int(table[a, i]):
                    found |= 1 << (2 * i + (a >> i & 1))
    return found


def step_sets(mine: Masks, theirs: Masks, size: int) -> Masks:
    """`step_one` on arrays."""
    table = differing()
    found = np.zeros_like(mine)
    for a in range(size):
        has = (mine >> np.uint64(a)) & ONE
        if not has.any():
            continue
        for i in range((size - 1).bit_length()):
            hit = has * ((theirs & table[a, i]) != 0)
            found |= hit << np.uint64(2 * i + (a >> i & 1))
    return found


def step_known(mine: Ints, theirs: Masks, size: int) -> Masks:
    """`step_sets` where one's own colour is known: a look at a table for each bit."""
    table = differing()
    found = np.zeros_like(theirs)
    for i in range((size - 1).bit_length()):
        hit = ((theirs & table[mine, i]) != 0).astype(np.uint64)
        found |= hit << (2 * i + (mine >> i & 1)).astype(np.uint64)
    return found


def step_exact(mine: Ints, theirs: Ints) -> Ints:
    """`step` on arrays of known colours."""
    differ = mine ^ theirs
    place = np.log2((differ & -differ).astype(np.float64)).astype(np.int64)
    return 2 * place + (mine >> place & 1)


def any_next(id: int, bits: int) -> int:
    """What the first iteration may give for a known identifier before an unknown one."""
    return sum(1 << (2 * i + (id >> i & 1)) for i in range(bits))


@functools.cache
def top(size: int) -> int:
    """The set of all colours."""
    return (1 << size) - 1


@functools.cache
def free_sets(colour: int) -> npt.NDArray[np.uint8]:
    """[left, right]: what a node of this colour may turn to, given the sets of its neighbours."""
    found = np.zeros((64, 64), dtype=np.uint8)
    for left in range(LAST):
        for right in range(LAST):
            if colour in (left, right):
                continue  # neighbours never have equal colours
            free = min({0, 1, 2} - {left, right})
            lefts = np.arange(64)[:, None] >> left & 1
            rights = np.arange(64)[None, :] >> right & 1
            found |= ((lefts & rights) << free).astype(np.uint8)
    return found


def reduced(sets: list[Any]) -> Any:
    """The set of final colours of the middle of seven, after classes 5, 4 and 3 have moved."""
    for colour in (5, 4, 3):
        table = free_sets(colour)
        sets = [
            ((mid | 1 << colour) ^ 1 << colour) | (mid >> colour & 1) * table[left, right]
            for left, mid, right in zip(sets, sets[1:], sets[2:], strict=False)
        ]
    return sets[0]


class ColeVishkin(LocalAlgorithm):
    """3-colour a directed cycle by comparing bits with the successor (Cole and Vishkin, 1986).

    In one iteration a colour of b bits becomes one of about log2 b bits: the place of the lowest
    bit in which it differs from the successor's, and that bit. Six colours are left after log* n +
    O(1) iterations; then classes 5, 4 and 3 move in turn to the least free colour. The final
    colour depends on the nodes from 3 before to 3 + iterations after, so all is known after 3 +
    iterations rounds, and a node outputs in the first round in which its ball leaves one colour.

    What is not yet known is kept as a set of colours, iteration by iteration. Each set holds what
    some pair of sets before it can give, so an output is never wrong, but a set may be too large:
    where two unknowns depend on one another, a node may speak later than its ball would allow.

    Differs from the paper: the message-passing form of Goldberg, Plotkin and Shannon (1988) in
    place of the parallel machine; the early output is ours. Identifiers have at most 32 bits.

    >>> from orrery.systems.protocols.problems.local_rounds import cycle, lockstep
    >>> lockstep(ColeVishkin(), cycle(5, np.array([2, 0, 3, 1, 4])))
    [[(1, 2)], [(0, 1)], [(2, 2)], [(1, 1)], [(2, 1)]]
    """

    task: ClassVar[str] = "colouring"
    cycles_only: ClassVar[bool] = True

    def bound(self, n: int, bits: int) -> int | None:
        return len(sizes(bits)) - 1 + SPAN

    # -- messages: rows of (identifier, set after each iteration) from ahead, identifiers behind

    def begin(self, state: State) -> None:
        if state.me.degree != 2:
            raise UsageError(
                f"a node with {state.me.degree} neighbours; Cole-Vishkin needs a cycle"
            )
        state.behind = ()  # identifiers of the nodes before, nearest first
        state.ahead = ()  # rows of the nodes after, nearest first
        self._decide(state)

    def send(self, state: State, port: int) -> Payload:
        if port == 0:
            return ((state.me.id, *state.behind[: SPAN - 1]),)
        return (state.row, *state.ahead[: SPAN - 1])

    def take(self, state: State, inbox: list[Payload]) -> None:
        state.ahead, (state.behind,) = inbox
        self._decide(state)

    def _decide(self, state: State) -> None:
        all_sizes = sizes(state.me.bits)
        after = state.ahead[0] if state.ahead else ()
        state.row = after = _row(state.me.id, after, all_sizes)
        if state.said:
            return
        sets = [after[-1]]
        for id in state.behind:
            after = _row(id, after, all_sizes)
            sets.insert(0, after[-1])
        sets = [top(all_sizes[-1])] * (SPAN - len(state.behind)) + sets
        sets += [row[-1] for row in state.ahead]
        sets += [top(all_sizes[-1])] * (2 * SPAN + 1 - len(sets))
        final = int(reduced(sets))
        if final & (final - 1) == 0:
            state.speak(final.bit_length() - 1)

    # -- the same as a function of the ball, with plain sets

    def ball(self, ball: Any) -> int | None:
        names = self._walk(ball)
        all_sizes = sizes(ball.bits)
        known: dict[tuple[int, int], set[int]] = {}
        turns = len(all_sizes) - 1
        sets = [
            self._possible(ball, names, place, turns, all_sizes, known)
            for place in range(-SPAN, SPAN + 1)
        ]
        for colour in (5, 4, 3):
            sets = [_moved(colour, *three) for three in zip(sets, sets[1:], sets[2:], strict=False)]
        return min(sets[0]) if len(sets[0]) == 1 else None

    def _walk(self, ball: Any) -> dict[int, int]:
        """The nodes by their place: 0 the centre, then ahead (positive) and behind (negative)."""
        names = {0: ball.centre}
        for far in range(ball.radius):
            names[far + 1] = ball.neighbours(names[far])[0]
            names[-far - 1] = ball.neighbours(names[-far])[1]
        return names

    def _possible(
        self, ball: Any, names: dict[int, int], place: int, turn: int,
        all_sizes: tuple[int, ...], known: dict[tuple[int, int], set[int]],
    ) -> set[int]:  # fmt: skip
        """The colours that the node at a place may have after `turn` iterations."""
        if place not in names:
            return set(range(all_sizes[turn]))
        if (place, turn) in known:
            return known[place, turn]
        id = ball.id(names[place])
        if turn == 0:
            found = {id}
        elif turn == 1 and place + 1 not in names:
            found = {2 * i + (id >> i & 1) for i in range(ball.bits)}
        else:
            mine = self._possible(ball, names, place, turn - 1, all_sizes, known)
            theirs = self._possible(ball, names, place + 1, turn - 1, all_sizes, known)
            found = {step(a, b) for a in mine for b in theirs if a != b}
        known[place, turn] = found
        return found

    # -- arrays

    def arrays(self, graph: LocalGraph) -> tuple[Ints, Ints]:
        """O(n) for each of the at most 7 rounds."""
        if not graph.cycle:
            raise UsageError("Cole-Vishkin needs a cycle; make one with cycle(n, ids)")
        outputs, rounds = coloured(graph.ids[None, :], graph.bits)
        return outputs[0], rounds[0]

    def many(self, ids: Ints, key: int = 0) -> Ints:
        rows = check_rows(ids)
        return coloured(rows, max(id_bits(rows.shape[1]), int(rows.max()).bit_length()))[1]


def coloured(ids: Ints, bits: int) -> tuple[Ints, Ints]:
    """(colours, rounds) of many cycles, one in each row."""
    all_sizes = sizes(bits)
    last = len(all_sizes) - 1
    ends = _ends(ids, bits, all_sizes)  # by how many nodes ahead are known
    unknown = np.full(ids.shape, top(all_sizes[-1]), dtype=np.uint8)
    outputs = np.full(ids.shape, -1)
    rounds = np.full(ids.shape, -1, dtype=np.int64)
    for number in range(last + SPAN + 1):
        sets = [
            np.roll(ends[min(number - place, last)], -place, axis=1)
            if abs(place) <= number else unknown
            for place in range(-SPAN, SPAN + 1)
        ]  # fmt: skip
        final = reduced(sets)
        ready = (final & (final - 1) == 0) & (rounds < 0)
        outputs[ready] = np.log2(final[ready]).astype(np.int64)
        rounds[ready] = number
    return outputs, rounds


def _row(id: int, after: tuple[int, ...], all_sizes: tuple[int, ...]) -> tuple[int, ...]:
    """(identifier, set after iteration 1, 2, …) of a node from the row of its successor."""
    bits = all_sizes[0].bit_length() - 1
    if len(all_sizes) == 1:
        return (id, 1 << id)
    first = 1 << step(id, after[0]) if after else any_next(id, bits)
    row = [id, first]
    for turn in range(1, len(all_sizes) - 1):
        theirs = after[turn] if after else top(all_sizes[turn])
        row.append(step_one(row[turn], theirs, all_sizes[turn]))
    return tuple(row)


def _moved(colour: int, left: set[int], mid: set[int], right: set[int]) -> set[int]:
    found = mid - {colour}
    if colour in mid:
        found |= {
            min({0, 1, 2} - {a, b}) for a in left - {colour} for b in right - {colour}
        }  # fmt: skip
    return found


def _ends(ids: Ints, bits: int, all_sizes: tuple[int, ...]) -> list[npt.NDArray[np.uint8]]:
    """[d]: the sets after all iterations when d nodes ahead are known, of all nodes."""
    turns = len(all_sizes) - 1
    if not turns:
        return [(1 << ids).astype(np.uint8)]
    exact = [ids]  # the colours after each iteration
    for _ in range(turns):
        exact.append(step_exact(exact[-1], np.roll(exact[-1], -1, axis=1)))
    blind = np.zeros(ids.shape, dtype=np.uint64)
    for i in range(bits):
        blind |= ONE << (2 * i + (ids >> i & 1)).astype(np.uint64)
    rows: list[Masks] = [np.full(ids.shape, top(size), np.uint64) for size in all_sizes[1:]]
    ends = []
    for d in range(turns + 1):
        row = [ONE << exact[1].astype(np.uint64) if d else blind]
        for turn in range(1, turns):
            if d > turn:
                row.append(ONE << exact[turn + 1].astype(np.uint64))
                continue
            theirs = np.roll(rows[turn - 1], -1, axis=1) if d else rows[turn - 1]
            if d == turn:
                row.append(step_known(exact[turn], theirs, all_sizes[turn]))
            else:
                row.append(step_sets(row[-1], theirs, all_sizes[turn]))
        rows = row
        ends.append(row[-1].astype(np.uint8))
    return ends
