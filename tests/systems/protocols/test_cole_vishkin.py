"""Cole-Vishkin: its number of iterations, proper colours, sets that never exclude the truth."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from orrery.systems.protocols.baselines import cole_vishkin as cv
from orrery.systems.protocols.baselines.cole_vishkin import ColeVishkin
from orrery.systems.protocols.problems.local_rounds import check_task, cycle, random_ids


def plain(ids: list[int], bits: int) -> list[int]:
    """The textbook algorithm with no sets and no early output."""
    n, colours = len(ids), list(ids)
    for _ in range(len(cv.sizes(bits)) - 1):
        colours = [cv.step(colours[v], colours[(v + 1) % n]) for v in range(n)]
    for top in (5, 4, 3):
        colours = [
            min({0, 1, 2} - {colours[v - 1], colours[(v + 1) % n]}) if c == top else c
            for v, c in enumerate(colours)
        ]
    return colours


def test_the_number_of_iterations_is_the_known_one():
    # From b bits to ceil(log2 b) + 1 bits each time: 4 iterations serve 9 to 32 bits.
    assert [len(cv.sizes(bits)) - 1 for bits in (2, 3, 4, 5, 8, 9, 16, 17, 32)] == [
        0, 1, 2, 3, 3, 4, 4, 4, 4,
    ]  # fmt: skip
    assert ColeVishkin().bound(10**6, 20) == 7


@pytest.mark.parametrize("n", [3, 5, 8, 33, 1000, 20_000])
def test_early_outputs_are_the_colours_of_the_textbook(n):
    graph = cycle(n, random_ids(n, n))
    outputs, rounds = ColeVishkin().arrays(graph)
    assert outputs.tolist() == plain(graph.ids.tolist(), graph.bits)
    assert check_task("colouring", graph, outputs) == []
    assert rounds.max() <= ColeVishkin().bound(n, graph.bits)


def earliest(ids: list[int], v: int, bits: int) -> int:
    """The least radius at which every completion by neighbours-distinct identifiers agrees."""
    n = len(ids)
    reach = len(cv.sizes(bits)) - 1 + cv.SPAN
    for radius in range(reach + 1):
        places = range(-cv.SPAN, reach + 1)
        unknown = [p for p in places if abs(p) > radius]
        found = set()
        for values in itertools.product(range(1 << bits), repeat=len(unknown)):
            line = {p: ids[(v + p) % n] for p in places} | dict(zip(unknown, values, strict=True))
            row = [line[p] for p in places]
            if any(a == b for a, b in itertools.pairwise(row)):
                continue
            found.add(_final(row, bits))
            if len(found) > 1:
                break
        if len(found) == 1:
            return radius
    raise AssertionError("the whole dependency cone must settle a colour")


def _final(row: list[int], bits: int) -> int:
    """The final colour of the node at place SPAN of a path."""
    for _ in range(len(cv.sizes(bits)) - 1):
        row = [cv.step(a, b) for a, b in itertools.pairwise(row)]
    for top in (5, 4, 3):
        row = [
            min({0, 1, 2} - {a, c}) if b == top else b
            for a, b, c in zip(row, row[1:], row[2:], strict=False)
        ]
    return row[0]


def late_nodes(seeds: range, nodes: range) -> int:
    """How many nodes speak later than their ball would allow; none may speak earlier.

    Three bits: one iteration, and completions few enough to try them all.
    """
    late = 0
    for seed in seeds:
        ids = random_ids(8, 100 + seed)
        _, rounds = ColeVishkin().arrays(cycle(8, ids))
        for v in nodes:
            best = earliest(ids.tolist(), v, 3)
            assert rounds[v] >= best
            late += int(rounds[v] > best)
    return late


def test_with_one_iteration_nodes_speak_as_soon_as_the_ball_settles_it():
    assert late_nodes(range(1), range(3)) == 0


@pytest.mark.slow
def test_the_same_on_many_cycles():
    assert late_nodes(range(4), range(8)) == 0


def test_sets_on_arrays_equal_sets_on_numbers():
    rng = np.random.default_rng(1)
    mine = rng.integers(1, 1 << 12, 200).astype(np.uint64)
    theirs = rng.integers(1, 1 << 12, 200).astype(np.uint64)
    both = cv.step_sets(mine, theirs, 12)
    for a, b, found in zip(mine.tolist(), theirs.tolist(), both.tolist(), strict=True):
        assert cv.step_one(a, b, 12) == found
        one = np.array([a.bit_length() - 1])
        known = cv.step_known(one, np.array([b], dtype=np.uint64), 12)
        assert int(known[0]) == cv.step_one(1 << int(one[0]), b, 12)
        pairs = itertools.product(range(12), range(12))
        want = {cv.step(x, y) for x, y in pairs if x != y and a >> x & 1 and b >> y & 1}
        assert found == sum(1 << each for each in want)
