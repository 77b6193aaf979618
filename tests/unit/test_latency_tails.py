"""Latencies with long tails: a log-normal factor for each message and transfer."""

from __future__ import annotations

import numpy as np
import pytest

from orrery import Node, World, rpc, run
from orrery.base.errors import WorldError


class Pings(Node):
    """Node 0 sends to node 1 and hears when it came, by message or by transfer."""

    bulk: bool = False
    times: int = 400

    @rpc
    async def hi(self, sent_s: float) -> None:
        self.emit(took_s=self.now - sent_s)

    async def main(self):
        for _ in range(self.times if self.id == 0 else 0):
            if self.bulk:
                began_s = self.now
                await self.transfer(1, np.zeros(1))
                self.emit(took_s=self.now - began_s)
            else:
                self.tell(1, Pings.hi, self.now)
                await self.sleep(1.0)


def took(world, **knobs):
    made = run(Pings(**knobs), world=world, seed=3)
    return np.array([r.values["took_s"] for r in made.records])


@pytest.mark.parametrize("bulk", [False, True])
@pytest.mark.parametrize("sigma", [0.5, 1.0])
def test_the_median_stays_and_the_tail_is_as_wide_as_said(bulk, sigma):
    seen = took(World.lan(2, latency_s=0.01, jitter=0.0, latency_sigma=sigma), bulk=bulk)
    assert np.median(seen) == pytest.approx(0.01, rel=0.15)
    assert np.log(seen).std() == pytest.approx(sigma, rel=0.12)
    plain = took(World.lan(2, latency_s=0.01, jitter=0.0), bulk=bulk)
    assert plain.std() < 1e-6


def test_a_world_without_tails_is_the_world_it_was():
    plain = World.lan(3)
    assert plain.hash == "c6fb790fe9c1b803"
    assert World.from_data(plain.to_data()).network.latency_sigma == 0.0
    assert World.lan(3, latency_sigma=0.5).hash != plain.hash
    with pytest.raises(WorldError, match="latency_sigma"):
        World.lan(3, latency_sigma=-1.0)


def test_tails_are_real_on_processes():
    world = World.lan(2, latency_s=0.004, jitter=0.0, latency_sigma=1.0)
    made = run(Asks(), world=world, engine="processes", seed=3)
    seen = np.array([r.values["took_s"] for r in made.records])
    # Two log-normal ways; the machine adds, and takes nothing away.
    assert len(seen) == 40 and seen.min() < 0.008 and seen.max() > 0.012


class Asks(Node):
    @rpc
    async def hi(self) -> None:
        pass

    async def main(self):
        for _ in range(40 if self.id == 0 else 0):
            began_s = self.now
            await self.ask(1, Asks.hi)
            self.emit(took_s=self.now - began_s)
