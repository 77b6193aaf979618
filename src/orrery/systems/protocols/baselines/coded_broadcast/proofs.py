"""Merkle trees (Merkle, 1987): one hash stands for n fragments, and log2 n hashes prove one."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def leaf(fragment: bytes) -> bytes:
    """The hash of a fragment; the mark keeps it apart from an inner hash."""
    return hashlib.sha256(b"\x00" + fragment).digest()


def join(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def tree(fragments: Sequence[bytes]) -> list[list[bytes]]:
    """The levels from the leaves to the root; an odd level repeats its last hash."""
    levels = [[leaf(fragment) for fragment in fragments]]
    while len(levels[-1]) > 1:
        level = levels[-1]
        if len(level) % 2:
            level = [*level, level[-1]]
            levels[-1] = level
        levels.append([join(level[i], level[i + 1]) for i in range(0, len(level), 2)])
    return levels


def proof(levels: list[list[bytes]], place: int) -> tuple[bytes, ...]:
    """The hashes beside the way from a leaf to the root."""
    beside = []
    for level in levels[:-1]:
        beside.append(level[place ^ 1])
        place //= 2
    return tuple(beside)


def proves(root: bytes, place: int, n: int, fragment: bytes, beside: Sequence[bytes]) -> bool:
    """Whether a fragment stands at a place under a root of n fragments.

    >>> levels = tree([b"a", b"b", b"c"])
    >>> proves(levels[-1][0], 2, 3, b"c", proof(levels, 2))
    True
    """
    if not 0 <= place < n or len(beside) != (n - 1).bit_length():
        return False
    found = leaf(fragment)
    for other in beside:
        found = join(other, found) if place % 2 else join(found, other)
        place //= 2
    return found == root
