"""Gossip SGD: after each step a replica averages with one random partner."""

from __future__ import annotations

from typing import ClassVar

from orrery.base.rand import Stream
from orrery.parts import Count
from orrery.systems.train.problems.trainer import Trainer


class GossipSGD(Trainer):
    """Average the weights with a random partner every `every` steps; nobody waits for all.

    Lian et al., "Asynchronous decentralized parallel stochastic gradient descent", ICML 2018
    (AD-PSGD), in its matched form: the partners of a round come from a permutation that everyone
    computes alone. An average of random pairs keeps (n - 2) / (2 (n - 1)) of the replicas' variance
    in expectation. With an odd number one replica has no partner in a round.

    Knobs: `every`, steps between two exchanges; `pair_seed`; `optimiser`.
    Differs from the paper: partners wait for each other; the paper's responder answers at once with
    what it has.

    >>> partner(0, 4, seed=1, round_number=0) in (1, 2, 3)
    True
    """

    every: Count = 1
    pair_seed: Count = 1

    agrees: ClassVar[bool] = False

    async def train(self) -> None:
        for step in self.steps():
            await self.local_step()
            if step % self.every == 0:
                await self._mix(step // self.every)

    async def _mix(self, round_number: int) -> None:
        other = partner(self.rank, self.size, self.pair_seed, round_number)
        if other is None:
            return
        _, theirs = await self.all(
            self.send(other, self.weights, tag="mix"), self.recv(other, tag="mix")
        )
        self.weights = (self.weights + theirs) / 2


def partner(rank: int, size: int, seed: int, round_number: int) -> int | None:
    """With whom a rank mixes in a round; None where it is left over."""
    order = Stream(seed, "pairs", f"round {round_number}").numpy().permutation(size).tolist()
    place = order.index(rank)
    other = place ^ 1
    return order[other] if other < size else None
