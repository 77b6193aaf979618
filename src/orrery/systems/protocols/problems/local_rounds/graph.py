"""Graphs with identifiers: the input of a LOCAL algorithm, as flat arrays."""

from __future__ import annotations

import copy
import functools
import itertools

import numpy as np
import numpy.typing as npt

from orrery.base.errors import UsageError
from orrery.base.rand import GOLDEN, Stream, block, key_of

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
MOST_NODES = 20_000_000


class LocalGraph:
    """A connected graph whose nodes have distinct identifiers and a private random tape each.

    `targets[offsets[v]:offsets[v + 1]]` are the neighbours of v in the order of its ports. On a
    cycle port 0 leads to the successor and port 1 to the predecessor. Identifiers lie in
    0..2**bits - 1. Draw number i of the tape of v is a mix of `tapes[v]` and i.
    """

    def __init__(self, offsets: Ints, targets: Ints, ids: Ints, key: int = 0,
                 *, cycle: bool = False, bits: int = 0) -> None:  # fmt: skip
        self.n = len(offsets) - 1
        self.offsets = offsets
        self.targets = targets
        self.ids = check_ids(ids, self.n)
        self.cycle = cycle
        self.bits = max(bits, id_bits(self.n), int(self.ids.max()).bit_length())
        self.tapes = block(key, 0, self.n)

    def neighbours(self, v: int) -> list[int]:
        """The neighbours of v, by port."""
        return self._lists[v]

    @functools.cached_property
    def _lists(self) -> list[list[int]]:
        flat = self.targets.tolist()
        ends = self.offsets.tolist()
        return [flat[ends[v] : ends[v + 1]] for v in range(self.n)]

    @functools.cached_property
    def sources(self) -> Ints:
        """The node at the near end of every port."""
        return np.repeat(np.arange(self.n), np.diff(self.offsets))

    def distances(self, centre: int) -> list[int]:
        """The distance of every node from `centre`; -1 where there is no path."""
        found = [-1] * self.n
        found[centre] = 0
        edge = [centre]
        while edge:
            beyond = []
            for v in edge:
                for u in self._lists[v]:
                    if found[u] < 0:
                        found[u] = found[v] + 1
                        beyond.append(u)
            edge = beyond
        return found

    def changed_ids(self, ids: Ints) -> LocalGraph:
        """The same graph and tapes with other identifiers."""
        made = copy.copy(self)
        made.ids = check_ids(ids, self.n)
        made.bits = max(self.bits, int(made.ids.max()).bit_length())
        return made

    def changed(self, ids: Ints, tapes: Words, more: list[tuple[int, int]]) -> LocalGraph:
        """The same graph with other identifiers and tapes, and with more edges at the last ports.

        The ports that were there keep their numbers, so that nothing changes for a node that
        gets no new edge.
        """
        lists = [list(each) for each in self._lists] if more else self._lists
        for a, b in more:
            lists[a].append(b)
            lists[b].append(a)
        made = from_lists(lists, ids, cycle=self.cycle and not more, bits=self.bits)
        made.tapes = tapes
        return made


def id_bits(n: int) -> int:
    """The bits of the identifiers 0..n - 1."""
    return max(1, (n - 1).bit_length())


def check_ids(ids: Ints, n: int) -> Ints:
    """The identifiers as an array, or an error: as many as nodes, whole, distinct, not negative."""
    made = np.asarray(ids)
    if made.shape != (n,) or made.dtype.kind not in "iu":
        what = f"ids has shape {made.shape} and type {made.dtype}"
        raise UsageError(f"{what}; give {n} whole numbers")
    made = made.astype(np.int64)
    if n and made.min() < 0:
        raise UsageError(f"ids holds {made.min()}; identifiers begin at 0")
    if len(np.unique(made)) != n:
        raise UsageError("ids repeats a number; in the LOCAL model identifiers are distinct")
    return made


def cycle(n: int, ids: Ints, key: int = 0, *, bits: int = 0) -> LocalGraph:
    """A cycle of n >= 3 nodes: port 0 leads on, port 1 back.

    >>> cycle(4, np.arange(4)).neighbours(0)
    [1, 3]
    """
    if isinstance(n, bool) or not isinstance(n, int) or not 3 <= n <= MOST_NODES:
        raise UsageError(f"a cycle of n={n!r} nodes; give 3 to {MOST_NODES:,}")
    places = np.arange(n)
    targets = np.empty(2 * n, dtype=np.int64)
    targets[0::2] = (places + 1) % n
    targets[1::2] = (places - 1) % n
    return LocalGraph(2 * np.arange(n + 1), targets, ids, key, cycle=True, bits=bits)


def many_cycles(ids: Ints, key: int = 0) -> LocalGraph:
    """One cycle for each row of identifiers, side by side in one graph (which is not connected).

    Rows are moved apart, so that all identifiers differ and keep their order within a row. Good
    for algorithms that only compare neighbours.
    """
    rows = check_rows(ids)
    count, n = rows.shape
    if count * n > MOST_NODES:
        raise UsageError(f"{count} cycles of {n} nodes; give at most {MOST_NODES:,} nodes in all")
    first = np.repeat(np.arange(count) * n, n)
    place = np.tile(np.arange(n), count)
    targets = np.empty(2 * count * n, dtype=np.int64)
    targets[0::2] = first + (place + 1) % n
    targets[1::2] = first + (place - 1) % n
    apart = (rows + (int(rows.max()) + 1) * np.arange(count)[:, None]).ravel()
    return LocalGraph(2 * np.arange(count * n + 1), targets, apart, key)


def check_rows(ids: Ints) -> Ints:
    """Rows of identifiers, one assignment each, or an error."""
    rows = np.asarray(ids)
    if rows.ndim != 2 or not len(rows) or rows.shape[1] < 3 or rows.dtype.kind not in "iu":
        what = f"shape {rows.shape}, type {rows.dtype}"
        raise UsageError(f"ids: {what}; give rows of 3 or more whole numbers")
    if (np.diff(np.sort(rows, axis=1), axis=1) == 0).any() or rows.min() < 0:
        raise UsageError("ids: identifiers of a row must be distinct and begin at 0")
    return rows.astype(np.int64)


def all_ids(n: int) -> Ints:
    """Every assignment of 0..n - 1 to a cycle up to rotation, which changes no time."""
    if isinstance(n, bool) or not isinstance(n, int) or not 3 <= n <= 9:
        raise UsageError(f"all assignments of n={n!r} nodes; give 3 to 9, or sample")
    rest = np.array(list(itertools.permutations(range(n - 1))), dtype=np.int64)
    return np.column_stack((np.full(len(rest), n - 1), rest))


def some_ids(n: int, samples: int, key: int) -> Ints:
    """So many uniformly random assignments of 0..n - 1, one in a row."""
    words = block(key, 0, n * samples).reshape(samples, n)
    return np.argsort(words, axis=1, kind="stable").astype(np.int64)


def from_lists(lists: list[list[int]], ids: Ints, key: int = 0, *, cycle: bool = False,
               bits: int = 0) -> LocalGraph:  # fmt: skip
    """A graph from the neighbours of every node; it must be simple, two-way and connected."""
    if not lists:
        raise UsageError("the graph is empty; give at least one node")
    sets = [set(each) for each in lists]
    for v, each in enumerate(lists):
        for u in each:
            if not 0 <= u < len(lists) or u == v or v not in sets[u]:
                raise UsageError(f"edge ({v}, {u}): give both ends, in 0..{len(lists) - 1}")
        if len(sets[v]) != len(each):
            raise UsageError(f"node {v} has two edges to one neighbour; give each once")
    offsets = np.concatenate(([0], np.cumsum([len(each) for each in lists]))).astype(np.int64)
    flat = np.array([u for each in lists for u in each], dtype=np.int64)
    made = LocalGraph(offsets, flat, ids, key, cycle=cycle, bits=bits)
    if -1 in made.distances(0):
        raise UsageError("the graph is not connected; a node would never see all others")
    return made


def random_graph(
    n: int, degree: float, rng: Stream, ids: Ints, key: int = 0, *, bits: int = 0
) -> LocalGraph:
    """A random tree and random further edges, about n * degree / 2 in all."""
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= 100_000:
        raise UsageError(f"a random graph of n={n!r} nodes; give 1 to 100,000")
    lists: list[list[int]] = [[] for _ in range(n)]
    seen: set[tuple[int, int]] = set()

    def join(a: int, b: int) -> None:
        pair = (min(a, b), max(a, b))
        if a != b and pair not in seen:
            seen.add(pair)
            lists[a].append(b)
            lists[b].append(a)

    for v in range(1, n):
        join(v, rng.below(v))
    for _ in range(max(0, round(n * degree / 2) - (n - 1))):
        join(rng.below(n), rng.below(n))
    for each in lists:
        rng.shuffle(each)
    return from_lists(lists, ids, key, bits=bits)


def random_ids(n: int, key: int) -> Ints:
    """A uniformly random assignment of 0..n - 1."""
    return np.argsort(block(key, 0, n), kind="stable").astype(np.int64)


def sorted_ids(n: int) -> Ints:
    """0..n - 1 in the order of the nodes: the longest chain for greedy algorithms."""
    return np.arange(n, dtype=np.int64)


@functools.cache
def worst_sum(m: int) -> int:
    """a(m): the largest sum of distances to the nearest larger identifier of m losers in a row.

    They stand between two larger ones, and the largest of them stands in the middle.

    >>> [worst_sum(m) for m in range(6)]
    [0, 1, 2, 4, 5, 7]
    """
    if m <= 0:
        return 0
    p = (m + 1) // 2
    return p + worst_sum(p - 1) + worst_sum(m - p)


def worst_sums(most: int) -> Ints:
    """a(0..most) by the full recursion, which tries every place of the largest identifier."""
    found = np.zeros(most + 1, dtype=np.int64)
    for m in range(1, most + 1):
        p = np.arange(1, m + 1)
        found[m] = np.max(np.minimum(p, m + 1 - p) + found[p - 1] + found[m - p])
    return found


def worst_ids(n: int, shift: int = 0) -> Ints:
    """The assignment that is worst for leader election: the largest one first, then middles.

    `shift` turns the cycle, which changes nothing for the nodes.
    """
    ids = np.zeros(n, dtype=np.int64)
    ids[0] = n - 1
    rank = n - 2
    rows = [(1, n - 1)] if n > 1 else []  # (first place, how many) of each row of losers
    while rows:
        below = []
        for first, m in rows:
            middle = first + (m + 1) // 2 - 1
            ids[middle] = rank
            rank -= 1
            if middle > first:
                below.append((first, middle - first))
            if first + m - 1 > middle:
                below.append((middle + 1, first + m - 1 - middle))
        rows = below
    return np.roll(ids, shift)


def mix(words: Words) -> Words:
    """SplitMix64's finaliser on an array; equal to `orrery.base.rand.mix64` word by word."""
    with np.errstate(over="ignore"):
        x = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def draws(tapes: Words, i: int) -> Words:
    """Draw number i of every tape."""
    with np.errstate(over="ignore"):
        return mix(tapes + np.uint64((i + 1) * GOLDEN & (1 << 64) - 1))


def instance_key(word: int, what: str) -> int:
    """The key of one purpose of an instance."""
    return key_of(word, "local_rounds", what)
