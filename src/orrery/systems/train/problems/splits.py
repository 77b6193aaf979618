"""`Split`: who has which rows and which heads when attention is cut both ways at once.

Ranks form groups, and the groups a ring. The rows of a sequence are cut over the groups (context
parallelism), and within a group over its members; the heads are cut over the members of each group
(head parallelism). Nothing need be even: a rank may have many rows and no head, or the reverse.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

from orrery.base.errors import PartError
from orrery.models.attention import Block, Blocks, Layout
from orrery.parts.collectives import part_items

Groups = tuple[tuple[int, ...], ...]


class Split(NamedTuple):
    """Groups in the order of the ring, and the rows and the heads of Q of each rank."""

    groups: Groups
    rows: tuple[int, ...]
    heads: tuple[int, ...]

    def group_rows(self) -> tuple[int, ...]:
        """The rows of each group.

        >>> even_split(12, 4, 4, 2).group_rows()
        (6, 6)
        """
        return tuple(sum(self.rows[rank] for rank in group) for group in self.groups)

    def place_of(self, rank: int) -> int:
        """The place in the ring of a rank's group."""
        return next(place for place, group in enumerate(self.groups) if rank in group)


class Route(NamedTuple):
    """Heads `first` to `last` (exclusive) of K and V that go from a rank to one in the next group.

    >>> Route(0, 1, 2, 4).heads
    2
    """

    source: int
    target: int
    first: int
    last: int

    @property
    def heads(self) -> int:
        return self.last - self.first


def check_split(split: Split, tokens: int, heads: int, size: int) -> None:
    """Refuse a split that leaves out or repeats a rank, a row or a head."""
    members = sorted(rank for group in split.groups for rank in group)
    if members != list(range(size)) or not all(split.groups):
        raise PartError(f"a split has the groups {split.groups}; put each of {size} ranks in one")
    if len(split.rows) != size or len(split.heads) != size:
        raise PartError(f"a split has {len(split.rows)} counts of rows and {len(split.heads)} of "
                        f"heads; give one for each of {size} ranks")  # fmt: skip
    if min(split.rows) < 0 or sum(split.rows) != tokens:
        raise PartError(f"a split has {sum(split.rows)} rows of {tokens}; give each row to a rank")
    for group in split.groups:
        counts = [split.heads[rank] for rank in group]
        if min(counts) < 0 or sum(counts) != heads:
            raise PartError(f"the group {group} has the heads {counts}; together they must be the "
                            f"{heads} of the model")  # fmt: skip


def even_split(tokens: int, heads: int, size: int, wide: int) -> Split:
    """A mesh: neighbours in groups of `wide`, rows even over all, heads even over each group.

    `wide` = 1 is context parallelism alone, `wide` = size head parallelism alone. The last group
    may be smaller.

    >>> even_split(10, 4, 4, 2)
    Split(groups=((0, 1), (2, 3)), rows=(3, 3, 2, 2), heads=(2, 2, 2, 2))
    """
    groups = tuple(tuple(range(at, min(at + wide, size))) for at in range(0, size, wide))
    counts = [count for group in groups for count in part_items(heads, len(group))]
    return Split(groups, tuple(part_items(tokens, size)), tuple(counts))


def in_proportion(total: int, weights: Sequence[float]) -> list[int]:
    """Whole numbers with a given sum, as near to the weights as largest remainders bring them.

    >>> in_proportion(10, [2.0, 1.0, 0.0])
    [7, 3, 0]
    """
    whole = sum(weights)
    if not whole > 0:
        return list(part_items(total, len(weights)))
    exact = [total * weight / whole for weight in weights]
    counts = [int(share) for share in exact]
    by_rest = sorted(range(len(exact)), key=lambda i: (counts[i] - exact[i], i))
    for i in by_rest[: total - sum(counts)]:
        counts[i] += 1
    return counts


# -- where rows stand


@functools.lru_cache(maxsize=64)
def group_blocks(split: Split, causal: bool) -> tuple[Blocks, ...]:
    """The blocks of each group.

    Under a causal mask a group has an early and a late run, the same distance from either end, so
    that its visible pairs are in proportion to its rows however long the others are; so they are
    in every step of the ring. Without a mask it has one run.
    """
    tokens, early, made = sum(split.rows), 0, []
    late = tokens
    for count in split.group_rows():
        first = count // 2 if causal else count
        blocks = [Block(0, early, early + first)]
        early += first
        if causal:
            blocks.append(Block(0, late - (count - first), late))
            late -= count - first
        made.append(tuple(block for block in blocks if block.stop > block.start))
    return tuple(made)


@functools.lru_cache(maxsize=64)
def split_layout(split: Split, causal: bool) -> Layout:
    """The blocks of each rank: those of its group, cut in the order of the members."""
    shards: list[Blocks] = [()] * len(split.rows)
    for group, blocks in zip(split.groups, group_blocks(split, causal), strict=True):
        left = list(blocks)
        for rank in group:
            want, mine = split.rows[rank], []
            while want:
                document, start, stop = left[0]
                cut = min(start + want, stop)
                mine.append(Block(document, start, cut))
                want -= cut - start
                left = left[1:] if cut == stop else [Block(document, cut, stop), *left[1:]]
            shards[rank] = tuple(mine)
    return tuple(shards)


# -- which heads


@functools.lru_cache(maxsize=256)
def head_ranges(groups: Groups, heads: tuple[int, ...]) -> tuple[slice, ...]:
    """The heads of Q of each rank: runs in the order of its group's members."""
    found = [slice(0, 0)] * len(heads)
    for group in groups:
        at = 0
        for rank in group:
            found[rank] = slice(at, at + heads[rank])
            at += heads[rank]
    return tuple(found)


def kv_range(mine: slice, share: int) -> slice:
    """The heads of K and V that serve some heads of Q, of which `share` have one in common.

    >>> kv_range(slice(3, 5), 4)
    slice(0, 2, None)
    """
    if mine.stop == mine.start:
        return slice(mine.start // share, mine.start // share)
    return slice(mine.start // share, -(-mine.stop // share))


@functools.lru_cache(maxsize=256)
def routes(groups: Groups, heads: tuple[int, ...], share: int) -> tuple[Route, ...]:
    """Which rank hands on K and V to which of the next group: every taker gets each head once.

    The giver of a head is, of those who have it, the one that has most heads of Q in common.
    """
    return _routes(groups, heads, share, each_giver=False)


@functools.lru_cache(maxsize=256)
def returns(groups: Groups, heads: tuple[int, ...], share: int) -> tuple[Route, ...]:
    """The same for gradients of K and V: every giver's share of a head goes to one taker only.

    Several ranks may have a head of K and V, each with the gradient from its own heads of Q; what
    they hand on is added up, so no share may go to two.
    """
    return _routes(groups, heads, share, each_giver=True)


def _routes(
    groups: Groups, heads: tuple[int, ...], share: int, *, each_giver: bool
) -> tuple[Route, ...]:
    if len(groups) < 2:
        return ()
    ranges, found = head_ranges(groups, heads), list[Route]()
    holders = [_holders(group, ranges, share) for group in groups]
    for place, givers in enumerate(groups):
        after = (place + 1) % len(groups)
        asking, asked = (givers, after) if each_giver else (groups[after], place)
        for rank in asking:
            mine = kv_range(ranges[rank], share)
            for head in range(mine.start, mine.stop):
                # Of equals, the first.
                common = [(_common(ranges[rank], ranges[peer], head, share), -at, peer)
                          for at, peer in enumerate(holders[asked][head])]  # fmt: skip
                other = max(common)[2]
                pair = (rank, other) if each_giver else (other, rank)
                last = found[-1] if found else None
                if last and last[:2] == pair and last.last == head:
                    found[-1] = last._replace(last=head + 1)
                else:
                    found.append(Route(*pair, head, head + 1))
    return tuple(found)


def _holders(group: tuple[int, ...], ranges: Sequence[slice], share: int) -> dict[int, list[int]]:
    """Who of a group has each head of K and V."""
    found: dict[int, list[int]] = {}
    for rank in group:
        mine = kv_range(ranges[rank], share)
        for head in range(mine.start, mine.stop):
            found.setdefault(head, []).append(rank)
    return found


def _common(one: slice, two: slice, head: int, share: int) -> int:
    """Heads of Q that two ranks have in common among those that a head of K and V serves."""
    low, high = head * share, (head + 1) * share
    return max(min(one.stop, two.stop, high) - max(one.start, two.start, low), 0)


__all__ = [
    "Groups", "Route", "Split", "check_split", "even_split", "group_blocks", "head_ranges",
    "in_proportion", "kv_range", "returns", "routes", "split_layout",
]  # fmt: skip
