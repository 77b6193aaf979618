"""`EDiT`: the training loop, the sharded step and the synchronisation of a layer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from orrery.base.errors import PartError
from orrery.parts import Count, Fraction, NonNegative, Positive, Whole
from orrery.parts.collectives import Array, part_items
from orrery.parts.worker import RankLost
from orrery.systems.train.edit.members import OVER, LeftOut, Membership
from orrery.systems.train.edit.penalty import LEFT_OUT, Watch, shares, within
from orrery.systems.train.problems.trainer import digest


class EDiT(Membership):
    """Take local steps in small shard groups; synchronise the layers one by one when next used.

    Cheng et al., "EDiT: a local-SGD-based efficient distributed training method for large language
    models", ICLR 2025. The ranks form a mesh: `shard` neighbours hold one replica in parts (ZeRO),
    and the ranks with the same part form a sync group. For `every` steps only shard groups talk. In
    the forward pass after them, just before a layer is used, each rank's part of it takes

        D = sum_i w_i (theta_i - phi);   v <- outer_momentum v + D;
        phi <- phi + outer_rate (D + outer_momentum v);   theta <- phi

    over its sync group, while the layer before computes. The penalty sets w: a worker whose norm
    |theta_i - phi| scores above `limit` against its own past is left out, the others count by the
    softmax of minus the norm, and D is shortened to `clip`. If all are left out, the layer goes
    back to phi. A rank keeps phi and v besides its part: two vectors of 1/shard of the model.

    With `interval_s` (A-EDiT) time and not steps calls for a synchronisation: a fast worker takes
    more steps in it. Training ends when all workers together have taken their steps.

    A worker that is lost is done without from the next synchronisation on, if more than half stay,
    and gets the synchronised weights when it comes back (with `shard` 1; else its loss ends the
    training).

    Knobs: `every`, local steps; `interval_s`, seconds between synchronisations (0: go by steps);
    `shard`, ranks of a replica; `outer_rate`; `outer_momentum`; `penalty` (off: the plain mean);
    `limit`, in deviations; `alpha`, how quickly the statistics forget; `settle`, synchronisations
    before they judge; `clip`, the most that the norm of D may be (0: no bound); `overlap`, whether
    layers are synchronised behind the forward pass (off: all at once before it); `by_steps`,
    whether workers count by their steps as well; `least_steps` of all workers, below which a
    synchronisation waits for the next time; `warmup`, synchronous steps at first; `tries` to
    synchronise; `optimiser`.

    Differs from the paper: the statistics are corrected for their beginning; what happens when all
    are left out, and to those who are lost, is ours; a layer stays gathered from its forward to its
    backward pass.

    >>> EDiT().limit, EDiT().alpha, EDiT().outer_momentum
    (3.0, 0.02, 0.8)
    """

    every: Count = 16
    interval_s: NonNegative = 0.0
    shard: Count = 1
    outer_rate: Positive = 0.7
    outer_momentum: Fraction = 0.8
    penalty: bool = True
    limit: Positive = 3.0
    alpha: Fraction = 0.02
    settle: Count = 5
    clip: NonNegative = 10.0
    overlap: bool = True
    by_steps: bool = False
    least_steps: Whole = 0
    warmup: Whole = 0

    @property
    def counts_steps(self) -> bool:  # type: ignore[override]
        """Those who go by time take as many steps as they can."""
        return not self.interval_s

    def start(self) -> None:
        super().start()
        if self.size % self.shard:
            raise PartError(
                f"shard = {self.shard} does not divide {self.size} ranks; every replica needs as "
                "many"
            )
        self.place = self.rank % self.shard
        first = self.rank - self.place
        self.mates = tuple(range(first, first + self.shard))
        self.insiders = tuple(range(self.place, self.size, self.shard))
        self.replicas = len(self.insiders)
        self.layers = self.learning.layers()
        whole: Array = self.weights
        pieces = {name: _piece(where, self.place, self.shard)
                  for name, where in self.layers.items()}  # fmt: skip
        self.own: Array = np.concatenate([whole[piece] for piece in pieces.values()])
        ends = np.cumsum([0, *(piece.stop - piece.start for piece in pieces.values())])
        self.cuts = {name: slice(int(ends[i]), int(ends[i + 1])) for i, name in enumerate(pieces)}
        self.slow: Array = self.own.copy()
        self.speed: Array = np.zeros_like(self.own)
        self.watches = {name: Watch(self.alpha, self.settle) for name in pieces}
        self.done_in = dict.fromkeys(pieces, -1)
        self.step_counts: Array = np.ones(self.replicas)
        self.since = 0
        self.last_step_s = 0.0

    # -- the loop

    async def train(self) -> None:
        if self.incarnation:
            await self._come_back()
        else:
            for _ in range(min(self.warmup, self.training.steps)):
                await self._step(together=True)
            self.count, self.since = self.taken, 0
            self.total = self.taken * self.replicas
            self.slow = self.own.copy()
        while self.round != OVER:
            try:
                if await self._rounds():
                    break
            except LeftOut:
                await self._come_back()
        self.weights = await self._whole()
        self.emit(kept_B=self.kept_B(), extra_B=self.slow.nbytes + self.speed.nbytes)

    async def _come_back(self) -> None:
        if self.shard > 1:
            raise RankLost(self.rank, self.id, "coming back", self.patience_s)
        await self.join()
        self.since, self.synced_s = 0, self.now

    async def _rounds(self) -> bool:
        """Train until the end; True when it is reached."""
        self.synced_s = self.now
        while True:
            last = not self.interval_s and self.count >= self.training.steps
            if not (last or await self._due()):
                await self._step()
                continue
            counts = await self.meet(self.since)
            if counts.sum() < self.least_steps and not last:
                self.synced_s = self.now
                self.round += 1
                continue
            self.total += int(counts.sum())
            self.step_counts, self.since = counts, 0
            if self.interval_s:
                last = self.total >= self.training.steps * self.replicas
            if last:
                await self._synchronise_all()
                self._end_round(over=True)
                return True
            if self.overlap:
                await self._step(syncing=True)
            else:
                await self._synchronise_all()
                self._end_round()
                await self._step()

    def _end_round(self, over: bool = False) -> None:
        self.emit(sync=self.round, place=self.place, mark=digest(self.slow),
                  steps=int(self.step_counts.sum()), members=len(self.insiders))  # fmt: skip
        self.round += 1
        self.synced_s = self.now
        self.welcome_joiners(over)

    async def _due(self) -> bool:
        """Whether it is time to synchronise, the same for all ranks of a replica."""
        if not self.interval_s:
            return self.since >= self.every
        # A step that would end nearer to the time than the present moment is still taken.
        passed_s = self.now - self.synced_s + self.last_step_s / 2
        mine = self.since > 0 and passed_s >= self.interval_s
        if self.shard == 1:
            return mine
        key = f"{self.round} due {self.taken}"
        return bool((await self.exchange(self.mates, key, [float(mine)]))[0, 0])

    # -- a step of a replica

    async def _step(self, syncing: bool = False, together: bool = False) -> None:
        worked_s = self.busy_s
        if self.shard == 1 and not syncing:
            self.weights = self.own.copy()
            gradient = await self.gradient()
        else:
            gradient = await self._sharded_gradient(syncing)
        if together:  # ordinary synchronous training
            gradient = await self.group(self.insiders, "warm-up").mean(gradient, tag="gradient")
        self.own = self.inner.step(self.own, gradient.astype(self.own.dtype, copy=False))
        self.count += 1
        self.since += 1
        self.last_step_s = self.busy_s - worked_s  # what was waited for does not come again

    async def _sharded_gradient(self, syncing: bool) -> Array:
        """The mean gradient of the replica on this rank's part, layer by layer."""
        names = list(self.layers)
        self.weights = whole = np.zeros(sum(w.stop - w.start for w in self.layers.values()),
                                        self.own.dtype)  # fmt: skip
        coming: dict[str, Any] = {}
        scattered: dict[str, Any] = {}
        mates = self.group(self.mates, "replica")

        def ask(place: int) -> None:
            if place < len(names) and names[place] not in coming:
                coming[names[place]] = self.spawn(self._kept(self._ready(names[place], syncing)))

        async def ready(layer: str, where: slice) -> None:
            place = names.index(layer)
            ask(place)
            whole[where] = _value(await coming[layer])
            ask(place + 1)  # behind the arithmetic of this layer
            if place == len(names) - 1:
                super(EDiT, self)._look()
                if syncing:
                    self._end_round()

        def done(layer: str, where: slice, gradient: Array) -> None:
            scattered[layer] = self.spawn(
                self._kept(mates.reduce_scatter(gradient, tag=f"gradient {layer}"))
            )

        await self.gradient_by_layer(ready, done)
        parts = [_value(await scattered[name]) / self.shard for name in names]
        if self.shard > 1:
            self.weights = self.own  # between the steps a rank holds nothing but its part
        return np.concatenate(parts)

    def _look(self) -> None:
        # The weights of a replica in parts are whole only when its last layer is gathered.
        if self.shard == 1 and self.weights.any():
            super()._look()

    async def _ready(self, layer: str, syncing: bool) -> Array:
        """The whole of a layer, synchronised first where that is due."""
        if syncing:
            await self._synchronise(layer)
        mates = self.group(self.mates, "replica")
        parts = await mates.all_gather(self.own[self.cuts[layer]], tag=f"forward {layer}")
        return np.concatenate(parts)

    async def _whole(self) -> Array:
        return np.concatenate([await self._ready(name, False) for name in self.layers])

    async def _kept(self, work: Any) -> Any:
        """A value or the loss that came instead, for whoever asks for it later."""
        try:
            return await work
        except (RankLost, LeftOut) as error:
            return error

    def kept_B(self) -> int:
        """Bytes of weights and optimiser state that this rank keeps without the outer ones."""
        state = [v.nbytes for v in self.inner.state().values() if isinstance(v, np.ndarray)]
        return self.own.nbytes + sum(state)

    # -- synchronising

    async def _synchronise_all(self) -> None:
        done = await self.all(*(self._kept(self._synchronise(name)) for name in self.layers))
        for each in done:
            _value(each)

    async def _synchronise(self, layer: str) -> None:
        """Bring a layer of all replicas together."""
        cut, number = self.cuts[layer], self.round
        moved = self.own[cut] - self.slow[cut]
        norm = await self._norm(moved, f"{number} {layer} norm")
        if self.penalty:
            norm = self._judged(norm, layer)
        for attempt in range(self.tries):
            key = f"{number} {layer} {attempt}"
            try:
                mean = await self._combined(moved, norm, key)
                break
            except RankLost as error:
                if self.shard > 1 or attempt == self.tries - 1:
                    raise
                lost = error
            found = await self.layer_from_another(number, layer)
            if found is not None:
                self._set(layer, found[0], found[1])
                return
            self.insiders = await self.present(lost)
        if mean is None:
            self.emit(restored=layer, sync_of=number)
            self._set(layer, self.slow[cut], self.speed[cut])
            return
        if self.penalty and self.clip:
            length = await self._norm(mean, f"{number} {layer} length")
            mean = mean * mean.dtype.type(within(length, self.clip))
        speed = self.outer_momentum * self.speed[cut] + mean
        ahead = mean + self.outer_momentum * speed
        self._set(layer, self.slow[cut] + self.outer_rate * ahead, speed)

    def _judged(self, norm: float, layer: str) -> float:
        """The norm, or infinity where it is so unlike the former ones that it must not count."""
        score = self.watches[layer].score(norm, self.limit)
        if score <= self.limit:
            return norm
        worker = self.rank // self.shard
        self.log(f"worker {worker} is anomalous in layer {layer}: norm {norm:.4g}, {score:.1f} "
                 f"deviations above its own mean; left out of round {self.round}")  # fmt: skip
        self.emit(anomalous=worker, layer=layer, score=score, sync_of=self.round)
        return LEFT_OUT

    async def _combined(self, moved: Array, norm: float, key: str) -> Array | None:
        """The weighted mean of the members' moves; None where all are left out."""
        if not self.penalty:
            return np.asarray(await self.group(self.insiders, key).mean(moved))
        told = await self.exchange(self.insiders, f"{key} norms", [norm, self._steps_of_mine()])
        weights = shares(told[:, 0].tolist(), told[:, 1].tolist() if self.by_steps else None)
        if not weights.any():
            return None
        mine = weights[self.insiders.index(self.rank)]
        # What is left out may not even be finite, and nothing times that is not nothing.
        given = moved * moved.dtype.type(mine) if mine else np.zeros_like(moved)
        return np.asarray(await self.group(self.insiders, key).sum(given))

    def _steps_of_mine(self) -> float:
        if len(self.step_counts) != len(self.insiders):
            return 1.0
        return float(self.step_counts[self.insiders.index(self.rank)])

    async def _norm(self, part: Array, key: str) -> float:
        """The length of a layer's vector, of which the ranks of a replica have parts."""
        square = float(np.dot(part.astype(np.float64), part.astype(np.float64)))
        if self.shard > 1:
            square = float((await self.exchange(self.mates, key, [square])).sum())
        return math.sqrt(square) if square >= 0 else math.nan

    def _set(self, layer: str, slow: Array, speed: Array) -> None:
        cut = self.cuts[layer]
        # Whoever still holds the former arrays, as the optimiser does, must not see them change.
        self.slow, self.speed, self.own = (
            _with(whole, cut, part)
            for whole, part in ((self.slow, slow), (self.speed, speed), (self.own, slow))
        )
        self.done_in[layer] = self.round

    # -- what others may ask for

    def layer_of(self, number: int, layer: str) -> Array | None:
        if layer not in self.cuts or self.done_in[layer] < number:
            return None
        return np.stack([self.slow[self.cuts[layer]], self.speed[self.cuts[layer]]])

    def synchronised(self) -> Array:
        return np.stack([self.slow, self.speed])

    def take_over(self, state: Array) -> None:
        self.slow, self.speed = state[0].copy(), state[1].copy()
        self.own = self.slow.copy()


def _value(found: Any) -> Any:
    """A value that was kept; the loss that was kept instead is raised."""
    if isinstance(found, RankLost | LeftOut):
        raise found
    return found


def _with(whole: Array, cut: slice, part: Array) -> Array:
    changed = whole.copy()
    changed[cut] = part
    return changed


def _piece(where: slice, place: int, size: int) -> slice:
    """The part of a layer that a rank of a replica keeps, as `reduce_scatter` cuts it."""
    sizes = part_items(where.stop - where.start, size)
    begin = where.start + sum(sizes[:place])
    return slice(begin, begin + sizes[place])
