"""Faults planted in linear attention over many ranks: each must be seen by the checker."""

from __future__ import annotations

import numpy as np
import pytest

from orrery import World, run
from orrery.base.errors import KnobError, PartError
from orrery.models.linear_attention import Step
from orrery.systems.collectives.baselines.lasp2 import LASP2
from orrery.systems.collectives.problems.long_linear_attention import LongLinearAttention
from orrery.systems.collectives.zeco import ZeCO

SMALL = LongLinearAttention(tokens=70)


class NoDecay(ZeCO):
    """Passes states on as if nothing decayed in its own rows."""

    async def incoming(self, step, reverse):
        return await super().incoming(Step(0 * step.log_decay, step.added), reverse)


class OneLate(ZeCO):
    """Gives the state that it sends instead of the one that came."""

    async def incoming(self, step, reverse):
        state = await super().incoming(step, reverse)
        return np.exp(step.log_decay)[..., None] * state + step.added


class SameWay(ZeCO):
    """Runs the scan of the gradient forwards too."""

    async def incoming(self, step, reverse):
        return await super().incoming(step, False)


class MixedBlocks(ZeCO):
    """Puts the blocks of the state together in the wrong order."""

    blocks = 4

    def _joined(self, blocks):
        return super()._joined(blocks[::-1])


class TooMany(LASP2):
    """Combines also its own step."""

    def _combined(self, steps):
        return super()._combined([*steps, *steps[-1:]])


class DecayGradientLost(ZeCO):
    """Forgets what the state that leaves does to the gradient of the decay."""

    async def backward(self, dout):
        dq, dk, dv, dg = await super().backward(dout)
        return dq, dk, dv, dg * 0


@pytest.mark.parametrize(
    "part",
    [NoDecay(), OneLate(), SameWay(), MixedBlocks(), TooMany(), DecayGradientLost()],
    ids=lambda part: type(part).__name__,
)
def test_wrong_values_are_seen(part):
    made = run(part, problem=SMALL, world=World.lan(4))
    assert {violation.kind for violation in made.violations} == {"wrong_value"}


def test_sending_more_than_a_state_is_seen():
    class Chatty(ZeCO):
        async def incoming(self, step, reverse):
            if self.rank + 1 < self.size and not reverse:
                self.post(self.rank + 1, "gossip", step.added)
            return await super().incoming(step, reverse)

    assert run(ZeCO(), problem=SMALL, world=World.lan(3)).metrics["sent_states"] == 1.0
    assert run(Chatty(), problem=SMALL, world=World.lan(3)).metrics["sent_states"] == 2.0


def test_a_silent_rank_is_a_violation_and_no_hang():
    class Silent(ZeCO):
        async def incoming(self, step, reverse):
            if self.rank == 1:
                await self.event().wait()
            return await super().incoming(step, reverse)

    problem = SMALL.with_knobs(patience_s=0.5)
    made = run(Silent(), problem=problem, world=World.lan(4), until_s=30.0)
    lost = {violation.node for violation in made.violations if violation.kind == "rank_lost"}
    assert {2, 3} <= lost


@pytest.mark.parametrize("counts", [[70], [71, -1, 0], [1, 2, 3]])
def test_shares_that_do_not_add_up_are_refused(counts):
    class Careless(ZeCO):
        def shares(self, job, size, world):
            return counts

    with pytest.raises(PartError, match="Careless.shares gives"):
        run(Careless(), problem=SMALL, world=World.lan(3))


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ({"heads": 0}, "LongLinearAttention.heads"),
        ({"tokens": -1}, "LongLinearAttention.tokens"),
        ({"tokens": 1 << 30}, "set sized=True"),
        ({"tokens_per_rank": 1 << 30}, "set sized=True"),
        ({"chunk": 0}, "LongLinearAttention.chunk"),
        ({"strength": -1.0}, "LongLinearAttention.strength"),
        ({"strength": float("nan")}, "LongLinearAttention.strength"),
        ({"decay": "strong"}, "LongLinearAttention.decay"),
        ({"efficiency": 0.0}, "efficiency: 0 would never end"),
        ({"key_dims": 4}, "did you mean"),
    ],
)
def test_bad_input_is_named(knobs, says):
    with pytest.raises(KnobError, match=says):
        run(ZeCO(), problem=LongLinearAttention(**knobs), world=World.lan(2))


def test_sized_mode_on_real_processes_is_no_result():
    made = run(ZeCO(), problem=SMALL.with_knobs(sized=True), world=World.lan(2),
               engine="processes", until_s=30.0)  # fmt: skip
    assert "no_values" in {violation.kind for violation in made.violations}
