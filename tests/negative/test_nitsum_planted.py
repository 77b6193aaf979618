"""Faults planted in Nitsum's layout, moves and books, which its tests must see."""

from __future__ import annotations

import numpy as np

from orrery import World, run
from orrery.systems.serve.nitsum import ranks, shards
from orrery.systems.serve.nitsum.ranks import TPRanks
from orrery.systems.serve.nitsum.shards import Shape, reference
from orrery.systems.serve.problems.llm_parallelism import LLMParallelism, faults_of, log_of
from orrery.systems.serve.problems.llm_parallelism import migrate as migrating
from orrery.systems.serve.problems.llm_parallelism.engine import Instance
from orrery.systems.serve.problems.llm_parallelism.plans import Plan
from orrery.systems.serve.problems.llm_parallelism.ports import Parallelism


def tokens_of(part):
    made = run(part, world=World.lan(4), seed=1, until_s=40.0)
    return {r.values["request"]: r.values["tokens"] for r in made.records if "tokens" in r.values}


def test_a_cache_cut_by_the_wrong_heads_is_seen_in_the_tokens(monkeypatch):
    """Two units change places on their way."""
    true = ranks.trips_of

    def swapped(shape, home, goes):
        return [(unit ^ 1 if giver == 0 and len(home) == 1 else unit, giver, taker)
                for unit, giver, taker in true(shape, home, goes)]  # fmt: skip

    async def kept(self, job, number, home, trips, stage):
        await take(self, job, number, home, trips, stage)
        for layer in range(self.shape.layers):
            for low in range(0, self.shape.units, 2):
                pair = (layer, low), (layer, low + 1)
                if all(key in job.cache for key in pair) and self.rank not in home:
                    a, b = pair
                    job.cache[a], job.cache[b] = job.cache[b], job.cache[a]

    take = TPRanks._take
    monkeypatch.setattr(TPRanks, "_take", kept)
    shape = Shape()
    prompt = ranks.prompt_of(shape, 3, 0, 7)
    found = tokens_of(TPRanks(degrees=(1, 2), tokens=(10, 10)))
    wrong = [n for n in found if found[n] != reference(shape, 3, ranks.prompt_of(shape, 3, n, 7),
                                                       20)]  # fmt: skip
    assert wrong and len(prompt) == 7
    assert swapped(shape, (0,), (0, 1)) != true(shape, (0,), (0, 1))


def test_slices_that_are_not_nested_cost_weights_when_the_degree_rises(monkeypatch):
    """Slices in the order of ranks: rank 1 has units 2, 3 of two, but unit 1 of four."""

    def plain(self, rank, degree):
        size = self.units // degree
        return range(rank % degree * size, (rank % degree + 1) * size)

    nested = run(TPRanks(degrees=(2, 4), tokens=(6, 0)), world=World.lan(4), seed=1).bytes
    monkeypatch.setattr(shards.Shape, "units_of", plain)
    made = run(TPRanks(degrees=(2, 4), tokens=(6, 0)), world=World.lan(4), seed=1).bytes
    assert made > nested + 10_000


# -- the books of the modelled cluster


class Turns(Parallelism):
    """Goes from one plan to the other and back."""

    texts: tuple[str, ...] = ("M4x2", "M1x8")

    def start(self):
        self.turn = -1

    def plan(self, view):
        self.turn += 1
        return Plan.parse(self.texts[self.turn % len(self.texts)])


def violations(until_s=float("inf"), **knobs):
    asked = {"interactive_per_s": (8.0,), "background_per_s": (6.0,), **knobs}
    problem = LLMParallelism(windows=1, window_s=20.0, control_s=1.0, tables="", **asked)
    return faults_of(log_of(problem.cluster(Turns(), 1).play(until_s)))


def test_a_request_forgotten_at_a_change_is_missed(monkeypatch):
    assert violations() == []
    true = Instance.clear

    def forgetful(self):
        carried, bare = true(self)
        return carried[:-1], bare

    monkeypatch.setattr(Instance, "clear", forgetful)
    # One that is lost keeps the run from ending by itself.
    assert any(each.kind == "lost" for each in violations(until_s=200.0))


def test_memory_that_overflows_in_a_move_is_seen(monkeypatch):
    """Nobody looks whether a cache fits before it comes."""
    tight = {"memory_share": 0.45, "most_tokens": 8192, "interactive_per_s": (20.0,)}
    assert violations(**tight) == []
    monkeypatch.setattr(migrating.Ledger, "fits", lambda self, cut, size_B: True)
    monkeypatch.setattr(Instance, "shrink", lambda self, capacity, now_s: [])
    monkeypatch.setattr(Instance, "room", lambda self: np.inf)
    found = violations(until_s=60.0, **tight)
    assert any("GPU" in each.message or "held more" in each.message for each in found)
