"""Ragged columns and block ids: lists of many lengths kept in two flat arrays.

Row i of a ragged column is `ids[starts[i]:starts[i + 1]]`. Block ids are *chained*: one id stands
for one content after one prefix, so an id has one place and one predecessor wherever it occurs.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]

# A direct table of first places is quicker than sorting while ids are about as dense as this.
DENSE = 16


def gather(ids: I64, starts: I64, index: npt.NDArray[np.intp]) -> tuple[I64, I64]:
    """The rows `index` of a ragged column, as a ragged column.

    >>> ids, starts = gather(np.array([5, 6, 7]), np.array([0, 1, 3]), np.array([1, 0]))
    >>> ids.tolist(), starts.tolist()
    ([6, 7, 5], [0, 2, 3])
    """
    lengths = np.diff(starts)[index]
    made = np.zeros(len(index) + 1, np.int64)
    np.cumsum(lengths, out=made[1:])
    places = np.repeat(starts[:-1][index] - made[:-1], lengths) + np.arange(made[-1])
    return ids[places], made


def flat(rows: list[list[int]]) -> tuple[I64, I64]:
    """Rows as a ragged column; an OverflowError says that an id does not fit 64 bits.

    >>> flat([[1, 2], [], [3]])[1].tolist()
    [0, 2, 2, 3]
    """
    starts = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=starts[1:])
    ids = np.fromiter((each for row in rows for each in row), np.int64, int(starts[-1]))
    return ids, starts


def first_places(ids: I64) -> I64:
    """For each place, the first place that holds the same id.

    >>> first_places(np.array([7, 9, 7])).tolist()
    [0, 1, 0]
    """
    if not len(ids):
        return np.zeros(0, np.int64)
    low, high = int(ids.min()), int(ids.max())
    if high - low < DENSE * len(ids) + 1024:
        table = np.zeros(high - low + 1, np.int64)
        # Written from the back, so that the first place of an id is the one that stays.
        table[ids[::-1] - low] = np.arange(len(ids) - 1, -1, -1)
        return table[ids - low]
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    return first[inverse].astype(np.int64)


def numbered(ids: I64) -> I64:
    """The ids renamed 0, 1, 2 ... in the order in which they first occur.

    >>> numbered(np.array([70, 90, 70])).tolist()
    [0, 1, 0]
    """
    first = first_places(ids)
    fresh = first == np.arange(len(ids))
    return (np.cumsum(fresh) - 1)[first]


def unchained(ids: I64, starts: I64) -> int:
    """A place whose id stood elsewhere after another prefix; -1 when the ids are chained."""
    if not len(ids):
        return -1
    rows = np.diff(starts)
    depth = np.arange(len(ids)) - np.repeat(starts[:-1], rows)
    before = np.empty(len(ids), np.int64)
    before[1:] = ids[:-1]
    before[starts[:-1][rows > 0]] = 0  # the head of a row has no predecessor
    first = first_places(ids)
    wrong = (depth != depth[first]) | (before != before[first])
    return int(wrong.argmax()) if wrong.any() else -1


def chain_blocks(ids: I64, starts: I64) -> I64:
    """Chained ids from ids that name only the content of a block.

    >>> chain_blocks(np.array([4, 4, 4]), np.array([0, 2, 3])).tolist()
    [0, 1, 0]
    """
    named: dict[tuple[int, int], int] = {}
    made: list[int] = []
    plain = ids.tolist()
    for begin, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        before = -1
        for each in plain[begin:end]:
            before = named.setdefault((before, each), len(named))
            made.append(before)
    return np.array(made, np.int64)
