"""Faults planted in attention over a spread sequence: each must be seen by the checker."""

from __future__ import annotations

import numpy as np
import pytest

from orrery import World, run
from orrery.base.errors import KnobError, PartError
from orrery.models import attention
from orrery.models.attention import Block, Partial
from orrery.systems.collectives.baselines.ring_attention import RingAttention
from orrery.systems.collectives.baselines.ulysses import Ulysses
from orrery.systems.collectives.problems.long_attention import LongAttention
from orrery.systems.collectives.tokenring import TokenRing

SMALL = {"documents": (21, 12), "heads": 2, "head_dim": 8, "tokens": 0}


class Averaging(TokenRing):
    """Takes the mean of partial results instead of weighing them."""

    async def merge(self, a, b):
        if a is None or b is None:
            return b if a is None else a
        return Partial((a.out + b.out) / 2, np.logaddexp(a.lse, b.lse))


class Forgetting(TokenRing):
    """Leaves the last result out."""

    def arrivals(self):
        return range(1, max(self.size - 1, 1))


class Misdelivering(TokenRing):
    """Merges the results of two equal ranks in each other's place."""

    async def _output_from(self, rank):
        found = await super()._output_from(rank)
        return None if found is None else Partial(found.out[::-1], found.lse)


class Blind(TokenRing):
    """Knows nothing of documents and masks."""

    async def attend(self, q, k, v, queries, keys):
        return attention.attend(q, k, v)


class HalfGradient(RingAttention):
    """Sends the gradients of K and V on without what it adds to them."""

    async def _add_to_travelling(self, lane, step, blocks, dk, dv):
        if step == 0:
            return dk, dv
        return await self._travelling(lane, step - 1, blocks)


class WrongHeads(Ulysses):
    """Gives the output of its heads to the neighbouring heads."""

    async def forward(self, q, k, v):
        return np.roll(await super().forward(q, k, v), 1, axis=1)


class NotANumber(TokenRing):
    """Divides by the weight of nothing."""

    async def forward(self, q, k, v):
        out = await super().forward(q, k, v)
        return out * np.float32("nan")


@pytest.mark.parametrize(
    "part",
    [Averaging(), Forgetting(), Misdelivering(), HalfGradient(), WrongHeads(), NotANumber()],
    ids=lambda part: type(part).__name__,
)
def test_wrong_values_are_seen(part):
    made = run(part, problem=LongAttention(**SMALL, causal=False), world=World.lan(4))
    assert {violation.kind for violation in made.violations} == {"wrong_value"}


def test_a_missing_mask_is_seen():
    problem = LongAttention(tokens=24, heads=2, head_dim=8, backward=False)
    made = run(Blind(balance=False), problem=problem.with_knobs(causal=False), world=World.lan(3))
    assert made.violations == []
    made = run(Blind(), problem=problem, world=World.lan(3))
    assert {violation.kind for violation in made.violations} == {"wrong_value"}


def test_bf16_is_not_taken_for_fp32():
    class Rounding(TokenRing):
        async def forward(self, q, k, v):
            out = await super().forward(q, k, v)
            return attention.from_wire(attention.to_wire(out, "bf16"))

    made = run(Rounding(), problem=LongAttention(**SMALL), world=World.lan(3))
    assert {violation.kind for violation in made.violations} == {"wrong_value"}
    allowed = LongAttention(**SMALL, tolerance=1e-2)
    assert run(Rounding(), problem=allowed, world=World.lan(3)).violations == []


def test_a_silent_rank_is_a_violation_and_no_hang():
    class Silent(TokenRing):
        async def forward(self, q, k, v):
            if self.rank == 1:
                await self.event().wait()
            return await super().forward(q, k, v)

    problem = LongAttention(**SMALL, patience_s=0.5)
    made = run(Silent(), problem=problem, world=World.lan(3), until_s=30.0)
    lost = {violation.node for violation in made.violations if violation.kind == "rank_lost"}
    assert lost == {0, 2}


def test_a_parcel_of_another_size_is_named():
    class Greedy(TokenRing):
        def layout(self, job, size, world):
            shards = list(super().layout(job, size, world))
            if self.__dict__.get("over") is not None and self.rank == 1:
                shards[1] = (*shards[1], Block(0, 0, 1))  # only this rank believes so
            return tuple(shards)

    with pytest.raises(PartError, match="the ranks disagree on the layout"):
        run(Greedy(), problem=LongAttention(**SMALL), world=World.lan(3))


@pytest.mark.parametrize(
    "blocks",
    [
        ((Block(0, 0, 20),), (Block(1, 0, 12),)),
        ((Block(0, 0, 21), Block(1, 0, 12)), (Block(0, 3, 4),)),
    ],
    ids=["a row is missing", "a row stands twice"],
)
def test_a_layout_that_is_no_partition_is_refused(blocks):
    class Careless(TokenRing):
        def layout(self, job, size, world):
            return blocks

    with pytest.raises(PartError, match="layout: row"):
        run(Careless(), problem=LongAttention(**SMALL), world=World.lan(2))


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ({"heads": 4, "kv_heads": 3}, "kv_heads: 3 does not divide heads = 4"),
        ({"heads": 0}, "LongAttention.heads"),
        ({"tokens": -1}, "LongAttention.tokens"),
        ({"tokens": float("nan")}, "LongAttention.tokens"),
        ({"tokens": 1 << 22}, "set sized=True"),
        ({"documents": (4, -1)}, "LongAttention.documents"),
        ({"documents": "all"}, "LongAttention.documents"),
        ({"dtype": "fp8"}, "LongAttention.dtype"),
        ({"efficiency": 0.0}, "efficiency: 0 would never end"),
        ({"efficiency": 1.5}, "LongAttention.efficiency"),
        ({"head": 4}, "did you mean"),
        ({"rounds": 0}, "LongAttention.rounds"),
        ({"patience_s": 0.0}, "LongAttention.patience_s"),
    ],
)  # fmt: skip
def test_bad_input_is_named(knobs, says):
    with pytest.raises(KnobError, match=says):
        run(TokenRing(), problem=LongAttention(**knobs), world=World.lan(2))


def test_a_stranger_is_refused():
    from orrery.systems.collectives import Ring

    with pytest.raises(PartError, match="inherit from SequenceAttention"):
        run(Ring(), problem=LongAttention(), world=World.lan(2))


def test_sized_mode_on_real_processes_is_no_result():
    made = run(TokenRing(), problem=LongAttention(**SMALL, sized=True), world=World.lan(2),
               engine="processes", until_s=30.0)  # fmt: skip
    assert "no_values" in {violation.kind for violation in made.violations}
