"""NoLoCo: local steps, then an outer step with one random partner; no collective at all."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from orrery.base.errors import DeadlineExceeded, Refused
from orrery.base.rand import Stream
from orrery.parts import Count, Fraction, NonNegative, Positive, Whole, rpc
from orrery.parts.collectives import Array
from orrery.parts.worker import RankLost
from orrery.systems.train import Trainer

CATCH_UP = "catch up"


class NoLoCo(Trainer):
    """Train many replicas that mix in random pairs, with a momentum that draws pairs together.

    Kolehmainen et al., "NoLoCo: no-all-reduce low communication training method for large models",
    2025. Replica i sets out from slow weights phi, takes `every` local steps to theta and has the
    outer gradient Delta = theta - phi. Then it meets one partner, the same for both by a
    permutation that each computes alone from `pair_seed` and the number of the round. They exchange
    (Delta, phi) and each takes

        delta <- momentum delta + rate mean(Delta) - coupling (phi - mean(phi))
        phi <- phi + delta

    where the means are over the pair. The last term keeps replicas near each other without anybody
    ever averaging over all.

    A partner who does not answer within `timeout_s` is done without: the replica goes on with its
    own Delta. When nothing has come for `ping_s`, it asks the partner for its round, and goes on at
    once if there is no answer, or if the partner is more than a round behind; else every replica
    would wait for a dead or slow one in turn, and the delays would spread. A replica that comes
    back from a crash asks another for the round and its slow weights and goes on from there.

    In one round a replica sends two models to one peer, and waits for one peer; a tree all-reduce
    waits for log2 n levels, each of them as slow as its slowest link.

    Knobs: `every`, local steps in a round; `outer_momentum`; `outer_rate`; `coupling`, the gamma of
    the paper (0 switches the mechanism off: averaged outer gradients alone); `pair_seed`;
    `timeout_s`, how long a partner is waited for; `ping_s`, after which it is asked where it is (0:
    never); `optimiser` of the local steps.

    Differs from the paper: the exact outer update is our rendering of its partial averaging; the
    timeout, the question and the return after a crash are ours; replicas are not pipelines, so
    there is no random routing between stages.

    >>> NoLoCo().coupling > 0
    True
    """

    every: Count = 20
    outer_momentum: Fraction = 0.5
    outer_rate: Positive = 0.7
    coupling: NonNegative = 0.5
    pair_seed: Whole = 1
    timeout_s: Positive = 30.0
    ping_s: NonNegative = 2.0

    agrees: ClassVar[bool] = False

    def start(self) -> None:
        super().start()
        self.slow: Array = self.weights.copy()
        self.delta: Array = np.zeros_like(self.slow)
        self.round = 0
        self.alone = 0

    async def train(self) -> None:
        # A group with a name lets a replica in again that has been away.
        self.pairs = self.group(range(self.size), "pairs")
        first = 1
        if self.incarnation:
            first = await self._catch_up() * self.every + 1
        self.weights = self.slow.copy()
        for step in range(first, self.training.steps + 1):
            await self.local_step()
            if step % self.every == 0 or step == self.training.steps:
                await self._outer_step()
        self.emit(alone=self.alone)

    async def _outer_step(self) -> None:
        moved = self.weights - self.slow
        mean, pull = moved, np.zeros_like(moved)
        began_s = self.now
        other = partner(self.rank, self.size, self.pair_seed, self.round)
        theirs = None if other is None else await self._exchange(other, moved)
        if theirs is not None:
            mean = (moved + theirs[0]) / 2
            pull = (self.slow - theirs[1]) / 2  # phi less the mean of the pair
        else:
            self.alone += 1
        self.delta = (
            self.outer_momentum * self.delta + self.outer_rate * mean - self.coupling * pull
        ).astype(self.slow.dtype)
        self.slow = self.slow + self.delta
        self.weights = self.slow.copy()
        self.round += 1
        self.emit(mixed_with=-1 if theirs is None else other, waited_s=self.now - began_s)

    async def _exchange(self, other: int, moved: Array) -> Any:
        """(Delta, phi) of the partner; None where it did not answer in time."""
        tag = f"round {self.round}"
        self.spawn(self._give(other, np.stack([moved, self.slow]), tag))
        try:
            async with self.deadline(self.timeout_s):
                _, theirs = await self.first(self.pairs.recv(other, tag=tag), self._gone(other))
                return theirs
        except (DeadlineExceeded, RankLost):
            return None

    async def _gone(self, other: int) -> None:
        """Ends when it is no use to wait for a partner: it is dead, or far behind."""
        if self.ping_s:
            await self.sleep(self.ping_s)
            try:
                async with self.deadline(self.ping_s):
                    if await self.ask(self.pairs.nodes[other], NoLoCo.where) < self.round - 1:
                        return
            except (DeadlineExceeded, Refused):
                return
        await self.event().wait()

    async def _give(self, other: int, both: Array, tag: str) -> None:
        try:
            await self.pairs.send(other, both, tag=tag)
        except RankLost:
            return  # a partner who is gone needs nothing

    @rpc
    async def where(self) -> int:
        """The round that this replica is in."""
        return self.round

    # -- coming back

    @rpc
    async def tell_round(self, who: int) -> int:
        """The round that this replica is in; its slow weights follow as a transfer."""
        self.spawn(self.transfer(who, self.slow, CATCH_UP, self.training.scale))
        return self.round

    async def _catch_up(self) -> int:
        """Take the round and the slow weights of the first replica that answers."""
        for peer in self.peers:
            try:
                async with self.deadline(self.timeout_s):
                    self.round = await self.ask(peer, NoLoCo.tell_round, self.id)
                    self.slow = np.array(await self.receive(peer, CATCH_UP))
                    return self.round
            except (DeadlineExceeded, Refused):
                continue
        return 0


def partner(rank: int, size: int, seed: int, round_number: int) -> int | None:
    """With whom a rank mixes in a round; None for the one who is left over."""
    return _pairs(size, seed, round_number).get(rank)


@lru_cache(maxsize=64)
def _pairs(size: int, seed: int, round_number: int) -> dict[int, int]:
    """Who mixes with whom: what every replica works out for itself is worked out once here."""
    rng = Stream(seed, "noloco", f"round {round_number}").numpy()
    order = rng.permutation(size).tolist()
    pairs = list(zip(order[::2], order[1::2], strict=False))
    return dict(pairs) | {b: a for a, b in pairs}


def stationary_variance(
    ranks: int, momentum: float, coupling: float, follow: float, noise: float
) -> float:
    """The variance of a number about the mean of the replicas, once it no longer changes.

    For outer gradients that, times the outer rate, are -follow (phi - optimum) plus independent
    noise of this deviation, as local SGD on a quadratic has them. The second moments of the
    deviations, E[phi^2], E[phi delta] and E[delta^2], obey a linear recursion, whose fixed point
    this is; infinite where there is none. Pairs are random among `ranks`.
    """
    # delta' = momentum delta - own phi_i - other phi_j + the pair's noise.
    own, other = (coupling + follow) / 2, (follow - coupling) / 2
    # Deviations add up to zero, so those of two different replicas correlate by -1/(n - 1).
    apart = -1.0 / (ranks - 1)
    mixed = own + other * apart
    squared = own**2 + other**2 + 2 * own * other * apart
    push = noise**2 * (ranks - 2) / (2 * ranks)  # a pair's mean noise, less the mean of all
    step = np.array([
        [1 - 2 * mixed + squared, 2 * momentum - 2 * momentum * mixed, momentum**2],
        [squared - mixed, momentum - 2 * momentum * mixed, momentum**2],
        [squared, -2 * momentum * mixed, momentum**2],
    ])  # fmt: skip
    if np.abs(np.linalg.eigvals(step)).max() >= 1.0:
        return float("inf")
    return float(np.linalg.solve(np.eye(3) - step, np.full(3, push))[0])
