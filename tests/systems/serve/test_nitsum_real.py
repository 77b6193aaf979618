"""Nitsum's moves for real: a tensor-parallel transformer whose degree changes as it generates."""

from __future__ import annotations

from itertools import pairwise

import pytest

from orrery import World, run
from orrery.base.errors import KnobError, PartError, UsageError
from orrery.systems.serve.nitsum.ranks import TPRanks, giver_of, prompt_of, trips_of
from orrery.systems.serve.nitsum.shards import Shape, reference
from orrery.systems.serve.problems.llm_parallelism.plans import slice_of
from orrery.world import Crash

SHAPE = Shape()
REQUESTS, PROMPT, SEED = 6, 7, 3


def undisturbed(count):
    """The tokens of every request, made by one process one request at a time."""
    prompts = [prompt_of(SHAPE, SEED, n, PROMPT) for n in range(REQUESTS)]
    return {n: reference(SHAPE, SEED, prompt, count) for n, prompt in enumerate(prompts)}


def play(engine="virtual", crash=None, part=TPRanks, **knobs):
    """(run, tokens of each request as every rank has them, (layout, units) of each rank)."""
    world = World.lan(4)
    if crash is not None:
        world = world.with_faults(Crash(node=crash[0], at_s=crash[1]))
    made = run(part(**knobs), world=world, engine=engine, seed=1, until_s=40.0)
    assert made.violations == []
    tokens, layouts = {}, {}
    for record in made.records:
        if "tokens" in record.values:
            got = tuple(record.values["tokens"])
            tokens.setdefault(record.values["request"], set()).add(got)
        if "layout" in record.values:
            layouts[record.node] = (record.values["layout"], record.values["units"])
    return made, tokens, layouts


def agree(tokens, count):
    """Whether every rank has exactly the undisturbed tokens of all requests."""
    return tokens == {n: {tuple(each)} for n, each in undisturbed(count).items()}


def least_bytes(degrees, made):
    """(weights, caches and tokens) that must move at each change, from the definition.

    Weights: units that a rank of the new layout needs and has not. Caches: the same for the units
    of each request, and the tokens so far for ranks that know nothing of it.
    """
    homes = {n: (n % (4 // degrees[0]), degrees[0]) for n in range(REQUESTS)}
    vocabulary = 8 * SHAPE.hidden * SHAPE.vocab // SHAPE.units
    unit_B = SHAPE.layers * SHAPE.unit_B() + vocabulary
    found = []
    for old, new in pairwise(degrees):
        lacking = sum(max(4 // new - 4 // old, 0) for _ in range(4))
        caches, turns, after = 0, {}, {}
        for n, (block, _) in sorted(homes.items()):
            first = block * old
            if new >= old:
                goes = first // new
            else:
                inside = old // new
                goes = first // new + turns.get(block, 0) % inside
                turns[block] = turns.get(block, 0) + 1
            after[n] = (goes, new)
            context = PROMPT + n % 3 + made - 1
            for rank in range(goes * new, goes * new + new):
                low, high = slice_of(rank, new)
                have = slice_of(rank, old) if first <= rank < first + old else (0, 0)
                both = max(min(high, have[1]) - max(low, have[0]), 0)
                units = round((high - low - both) * SHAPE.units)
                caches += units * SHAPE.layers * SHAPE.cache_B(context)
                caches += 0 if first <= rank < first + old else 8 * made
        homes = after
        found.append((lacking * unit_B, caches))
    return found


# -- 1: the same tokens, the fewest bytes


@pytest.mark.works_when("nitsum", 1)
@pytest.mark.parametrize("engine", ["virtual", "processes"])
def test_switching_in_mid_generation_changes_no_token(engine):
    made, tokens, layouts = play(engine)
    assert agree(tokens, 20)
    assert all(layout == [[0], [1], [2], [3]] for layout, _ in layouts.values())
    assert all(units == [0, 1, 2, 3] for _, units in layouts.values())
    # The engine counts the same traffic on sockets as in virtual time.
    assert made.bytes == play("virtual")[0].bytes


@pytest.mark.works_when("nitsum", 1)
@pytest.mark.parametrize("degrees", [(1, 2), (2, 4), (1, 4), (4, 2), (4, 1), (1, 2, 4, 1)])
def test_what_moves_is_the_least_that_must(degrees):
    """Nothing is made between the changes, so a run of degree 1 has no other traffic than moves."""
    made = 20
    last = (made, *(0 for _ in degrees[1:]))
    moved = play(degrees=degrees, tokens=last)[0].bytes
    served = play(degrees=degrees[:1], tokens=(made,))[0].bytes
    stages = least_bytes(degrees, made)
    assert moved - served == sum(weights + caches for weights, caches in stages)
    for (weights, _), old, new in zip(stages, degrees, degrees[1:], strict=False):
        assert (weights == 0) == (new > old), "raising the degree moves no weight"


@pytest.mark.works_when("nitsum", 1)
@pytest.mark.parametrize("degrees", [(4, 1, 2, 4), (2, 1, 4, 2), (1, 4, 1, 4)])
def test_any_order_of_degrees_gives_the_same_tokens(degrees):
    assert agree(play(degrees=degrees, tokens=(3, 4, 6, 3))[1], 16)


def test_weights_come_while_the_old_layout_serves():
    """Half of a stage's tokens are made before the change, under the old degree."""
    calm = play(degrees=(4, 1), tokens=(4, 8))[0]
    late = play(degrees=(4, 1), tokens=(8, 4))[0]
    # Tokens made at degree 4 cost messages, those at degree 1 none: 4 + 8/2 and 8 + 4/2 of them.
    assert calm.bytes < late.bytes


# -- 5: a rank dies in the middle of a change


@pytest.mark.works_when("nitsum", 5)
@pytest.mark.parametrize("node", [0, 1, 3])
@pytest.mark.parametrize("at_s", [0.005, 0.05, 0.1, 0.15])
def test_a_lost_rank_leaves_a_layout_that_holds(node, at_s):
    made, tokens, layouts = play(crash=(node, at_s), patience_s=0.5, hold_s=0.03)
    check_survivors(made, tokens, layouts, node)


def check_survivors(made, tokens, layouts, dead):
    assert agree(tokens, 20), "every request, also those that began again"
    assert sorted(layouts) == [rank for rank in range(4) if rank != dead]
    (layout,) = {str(layout) for layout, _ in layouts.values()}
    ranks = [rank for block in layouts[(dead + 1) % 4][0] for rank in block]
    assert sorted(ranks) == sorted(layouts), layout
    for rank, (blocks, units) in layouts.items():
        mine = next(block for block in blocks if rank in block)
        assert units == list(SHAPE.units_of(rank, len(mine)))
    assert any(record.values["restarted"] for record in made.records
               if "restarted" in record.values)  # fmt: skip


@pytest.mark.slow
@pytest.mark.works_when("nitsum", 5)
@pytest.mark.parametrize("at_s", [0.3, 0.8])
def test_sigkill_of_a_rank_in_a_change_on_processes(at_s):
    """Each change holds for 0.4 s, so that the signal hits one of the first two."""
    made, tokens, layouts = play("processes", (2, at_s), patience_s=1.5, hold_s=0.4)
    check_survivors(made, tokens, layouts, 2)


# -- bad input, small pieces


def test_knobs_that_cannot_be_are_refused_with_the_fix():
    for knobs in ({"degrees": (3,), "tokens": (5,)}, {"degrees": (8,), "tokens": (5,)},
                  {"degrees": (1, 2), "tokens": (5,)}):  # fmt: skip
        with pytest.raises((KnobError, PartError), match="TPRanks"):
            play(**knobs)
    for knobs in ({"degrees": ()}, {"degrees": (0,)}, {"tokens": (-1,)}, {"requests": 0}):
        with pytest.raises(KnobError):
            TPRanks(**knobs)
    with pytest.raises(UsageError, match="power of two"):
        Shape(units=3)


def test_trips_and_givers():
    assert trips_of(SHAPE, (0, 1), (0, 1)) == []
    assert trips_of(SHAPE, (0,), (0, 1)) == [(2, 0, 1), (3, 0, 1)]
    assert giver_of(SHAPE, {0: 4, 1: 4}, 0, 1) == 0
    assert giver_of(SHAPE, {1: 4}, 0, 1) == -1
