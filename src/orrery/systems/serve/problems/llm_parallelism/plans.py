"""Plans: partitions of GPUs into instances, where they lie, and which weights a GPU then keeps.

GPUs have positions in a line. An instance of degree t takes t positions from a multiple of t on (a
buddy block), and the GPU at position p keeps the slice number reverse(p mod t) of t, with the bits
reversed. So the slice of a GPU at a higher degree lies inside its slice at a lower one, whatever
block it is in: raising the degree moves no weight, lowering it moves only what is missing.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from orrery.base.errors import SpecError

ROLES = {"M": "mixed", "P": "prefill", "D": "decode"}
_WORD = re.compile(r"([MPD])([0-9]{1,4})(?:x([0-9]{1,4}))?")
Interval = tuple[float, float]


class Kind(NamedTuple):
    """One instance of a plan: M (both phases), P (prompts) or D (answers), and its degree."""

    role: str
    tp: int


class Plan(msgspec.Struct, frozen=True):
    """Instances of some kinds, in a fixed order.

    >>> Plan.parse("M4 M1x4").gpus
    8
    >>> str(Plan((Kind("D", 4), Kind("P", 2), Kind("P", 2))))
    'P2x2 D4'
    """

    kinds: tuple[Kind, ...]

    def __post_init__(self) -> None:
        ordered = tuple(
            sorted((Kind(*each) for each in self.kinds), key=lambda k: ("MPD".find(k[0]), -k[1]))
        )
        for role, tp in ordered:
            if role not in ROLES:
                fix = "give M, P or D"
                raise SpecError("plan.role", f"{role!r} is refused", fix)
            if tp < 1 or tp & (tp - 1):
                raise SpecError("plan.tp", f"{tp} is refused", "give a power of two")
        roles = {role for role, _ in ordered}
        if roles in ({"P"}, {"D"}):
            fix = "give both P and D, or M"
            raise SpecError("plan", f"only {ROLES[ordered[0].role]} instances", fix)
        msgspec.structs.force_setattr(self, "kinds", ordered)

    @classmethod
    def parse(cls, text: str) -> Plan:
        """A plan from its text: "M2x4" is four mixed instances of two GPUs each."""
        kinds: list[Kind] = []
        for word in text.split():
            found = _WORD.fullmatch(word)
            if found is None:
                fix = 'write role, degree and count, such as "M2x4" or "P2x2 D4"'
                raise SpecError("plan", f"{word!r:.40} is refused", fix)
            role, tp, count = found.groups()
            kinds += [Kind(role, int(tp))] * int(count or 1)
        if not kinds:
            raise SpecError("plan", "is empty", 'write one, such as "M2x4"')
        return cls(tuple(kinds))

    @property
    def gpus(self) -> int:
        """GPUs that it takes."""
        return sum(tp for _, tp in self.kinds)

    @property
    def split(self) -> bool:
        """Whether prompts and answers have instances of their own."""
        return any(role != "M" for role, _ in self.kinds)

    def counts(self) -> Counter[Kind]:
        """How many instances of each kind."""
        return Counter(self.kinds)

    def __str__(self) -> str:
        counts = self.counts()
        return " ".join(f"{k.role}{k.tp}" + (f"x{n}" if n > 1 else "") for k, n in counts.items())


# -- which plans there are


@functools.cache
def partitions(gpus: int, most: int) -> tuple[tuple[int, ...], ...]:
    """All ways to write a number of GPUs as powers of two of at most `most`, largest first.

    >>> partitions(4, 8)
    ((4,), (2, 2), (2, 1, 1), (1, 1, 1, 1))
    """
    if gpus == 0:
        return ((),)
    found = []
    size = 1 << (min(gpus, most).bit_length() - 1)
    while size:
        found += [(size, *rest) for rest in partitions(gpus - size, size)]
        size //= 2
    return tuple(found)


@functools.cache
def all_plans(blocks: tuple[int, ...], most: int, split: bool = True) -> tuple[Plan, ...]:
    """Every plan for free blocks of these sizes: all mixed, or all split between the phases."""
    sizes = _tilings(blocks, most)
    found = [Plan(tuple(Kind("M", tp) for tp in each)) for each in sizes]
    if split:
        kinds: dict[tuple[Kind, ...], None] = {}
        for each in sizes:
            counts = Counter(each)
            for first in _shares(tuple(sorted(counts.items(), reverse=True))):
                number = sum(first.values())
                if 0 < number < len(each):
                    kinds[tuple(
                        Kind(role, tp)
                        for tp, n in sorted(counts.items(), reverse=True)
                        for role, many in (("P", first[tp]), ("D", n - first[tp]))
                        for _ in range(many)
                    )] = None  # fmt: skip
        found += [Plan(each) for each in kinds]
    return tuple(found)


def _tilings(blocks: tuple[int, ...], most: int) -> list[tuple[int, ...]]:
    """Partitions that fit into the blocks: each block is cut by itself."""
    found: dict[tuple[int, ...], None] = {(): None}
    for block in blocks:
        found = {
            tuple(sorted((*have, *part), reverse=True)): None
            for have in found
            for part in partitions(block, most)
        }
    return list(found)


def _shares(counts: tuple[tuple[int, int], ...]) -> Iterator[dict[int, int]]:
    """How many of each size are given away: every way to do it."""
    if not counts:
        yield {}
        return
    (size, number), *rest = counts
    for part in range(number + 1):
        for others in _shares(tuple(rest)):
            yield {size: part, **others}


# -- where they lie


class Placed(NamedTuple):
    """An instance of a plan and the first of its positions."""

    role: str
    tp: int
    first: int

    @property
    def kind(self) -> Kind:
        return Kind(self.role, self.tp)

    @property
    def positions(self) -> range:
        return range(self.first, self.first + self.tp)


def free_blocks(free: Sequence[bool], most: int) -> list[tuple[int, int]]:
    """(first, size) of the largest buddy blocks of positions that are free."""
    found, at = [], 0
    while at < len(free):
        size = most
        while size > 1 and (at % size or at + size > len(free) or not all(free[at : at + size])):
            size //= 2
        if size > 1 or free[at]:
            found.append((at, size))
        at += size
    return found


def place(
    plan: Plan, old: Sequence[Placed], alive: Sequence[bool], held: Sequence[float], most: int
) -> list[Placed] | None:
    """Where the instances of a plan go, so that little moves; None when they do not fit.

    `held` is the share of the weights that each position has. Instances that stay as they are keep
    their place; the rest goes, largest first, where the least is missing.
    """
    need = plan.counts()
    keep: list[Placed] = []
    for each in old:
        if need[each.kind] > 0 and all(alive[p] for p in each.positions):
            need[each.kind] -= 1
            keep.append(each)
    keep.sort(key=lambda each: (-each.tp, each.first))
    while True:
        found = _fill(plan, keep, old, alive, held, most)
        if found is not None or not keep:
            return found
        keep.pop()


def _fill(
    plan: Plan, keep: Sequence[Placed], old: Sequence[Placed], alive: Sequence[bool],
    held: Sequence[float], most: int,
) -> list[Placed] | None:  # fmt: skip
    free, need, found = list(alive), plan.counts(), list(keep)
    for each in keep:
        need[each.kind] -= 1
        for p in each.positions:
            free[p] = False
    before = {(each.tp, each.first) for each in old}
    rest = sorted(need.elements(), key=lambda kind: (-kind.tp, "MPD".find(kind.role)))
    for role, tp in rest:
        best: tuple[float, bool, int, int] | None = None
        for begin, size in free_blocks(free, most):
            for first in range(begin, begin + size, tp) if size >= tp else ():
                missing = sum(max(1 / tp - held[p], 0.0) for p in range(first, first + tp))
                mark = (round(missing, 9), (tp, first) not in before, size, first)
                best = mark if best is None or mark < best else best
        if best is None:
            return None
        found.append(Placed(role, tp, best[3]))
        for p in found[-1].positions:
            free[p] = False
    return sorted(found, key=lambda each: each.first)


def slice_of(position: int, tp: int) -> Interval:
    """The share of heads and columns that a GPU has at a degree, as an interval of [0, 1).

    >>> slice_of(3, 1), slice_of(3, 2), slice_of(3, 4)
    ((0.0, 1.0), (0.5, 1.0), (0.75, 1.0))
    """
    number, rest, bits = 0, position % tp, tp.bit_length() - 1
    for _ in range(bits):
        number, rest = number * 2 + rest % 2, rest // 2
    return number / tp, (number + 1) / tp


def overlap(a: Interval, b: Interval) -> float:
    """The length of what two intervals share."""
    return max(min(a[1], b[1]) - max(a[0], b[0]), 0.0)


__all__ = [
    "ROLES", "Interval", "Kind", "Placed", "Plan", "all_plans", "free_blocks", "overlap",
    "partitions", "place", "slice_of",
]  # fmt: skip
