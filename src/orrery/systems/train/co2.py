"""CO2: local steps, with the average of the round before running behind them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from orrery.base.errors import DeadlineExceeded, PartError, Refused
from orrery.parts import Count, Fraction, NonNegative, Positive, Whole, rpc
from orrery.parts.collectives import Array, part_items
from orrery.parts.worker import RankLost
from orrery.systems.train import Trainer
from orrery.world import World

AVERAGE = "average of a round"
FINAL = "final weights"


class Average(NamedTuple):
    """What the replicas moved by in a round, on average: the stamp says in which."""

    round: int
    mean: Array
    members: tuple[int, ...]
    tries: int = 0


class LeftOut(NamedTuple):
    """The others have gone on without this rank."""

    round: int


class CO2(Trainer):
    """Train in rounds of local steps; average each round behind the steps of the next.

    Sun et al., "CO2: efficient distributed training with full communication-computation overlap",
    ICLR 2024. All replicas begin round t at one iterate z_t and take `every` local steps to x_i.
    The average d_t of x_i - z_t is then under way while round t + 1 computes. At the end of round t
    the average d_{t-1} has arrived and moves the iterate:

        m <- clip(outer_momentum m + d_{t-1});   z_{t+1} = z_t + outer_rate gap m

    `gap` is the staleness penalty 1 / max(1, |z_t - z_{t-2}| / |z_{t-1} - z_{t-2}|): the farther
    the iterates have moved on since d was measured, the smaller the step. After the last round the
    last average is waited for, so that nothing is lost. If the average takes no longer than a
    round, nothing is ever waited for but that.

    `every` 0 plans it: the time of the first step is measured, the time of a ring all-reduce comes
    from the bandwidth of the world, and a round is as many steps as hide it.

    An average that does not come within `patience_s` is asked from the others, who keep their last
    two; where nobody has it, it is made once more among the ranks that answer. Stamps keep it from
    being applied twice. A rank that has crashed is done without, as long as more than half remain;
    when it comes back, it takes the final weights.

    Knobs: `every`, local steps in a round (0: planned); `slack`, by which a planned round exceeds
    the time of the average; `delay`, whether the average is one round late (off: it is waited
    for); `outer_rate`; `outer_momentum`; `penalty`, whether a stale step is made smaller; `clip`,
    the most that an element of the outer momentum may be, in units of the weights (0: no bound);
    `replica`, how many neighbouring ranks train one replica synchronously; `zero`, whether these
    split weights and state among them (ZeRO); `tries` to get an average; `optimiser`.

    In a round a rank sends 2 (n - 1)/n of what it owns. Its state is the weights, the optimiser's,
    and three outer vectors, divided by `replica` with `zero`.

    Differs from the paper: the formula of the penalty, the rule of a round, the planner and the
    retries are ours. With `zero` a replica gathers the whole model before a step and not layer by
    layer, and a rank that is lost for good ends the training.

    >>> CO2().delay, CO2().penalty
    (True, True)
    """

    every: Whole = 0
    slack: Positive = 1.25
    delay: bool = True
    outer_rate: Positive = 0.7
    outer_momentum: Fraction = 0.2
    penalty: bool = True
    clip: NonNegative = 0.05
    replica: Count = 1
    zero: bool = False
    tries: Count = 5

    def start(self) -> None:
        super().start()
        if self.size % self.replica:
            raise PartError(
                f"replica = {self.replica} does not divide {self.size} ranks; every replica needs "
                "as many"
            )
        place = self.rank % self.replica
        first = self.rank - place
        self.mates = tuple(range(first, first + self.replica))
        self.owners = tuple(range(place, self.size, self.replica))
        whole: Array = self.weights
        self.owned = _part(whole.size, place, self.replica) if self.zero else slice(0, whole.size)
        self.outer: Array = whole[self.owned].copy()  # z, of which a rank of ZeRO keeps its part
        self.momentum: Array = np.zeros_like(self.outer)
        self.last_move: Array = np.zeros_like(self.outer)
        self.last_length = self.gap = 0.0
        self.applied = -1
        self.kept: dict[int, Average] = {}
        self.inside = True

    async def train(self) -> None:
        if self.incarnation:
            await self._follow()
            return
        try:
            await self._rounds()
        except _Left:
            await self._follow()

    async def _rounds(self) -> None:
        own = self.outer.copy()
        number, began_s, coming, every = 0, self.now, None, self.every
        self.taken_in_round = 0
        for step in self.steps():
            asked_s = self.now
            own = await self._step(own)
            self.taken_in_round += 1
            if not every:
                every = await self._plan(self.now - asked_s)
            if self.taken_in_round < every and step < self.training.steps:
                continue
            worked_s = self.now - began_s
            if self.delay:
                before, coming = coming, self.spawn(self._average(number, own - self.outer))
            else:
                before = self.spawn(self._average(number, own - self.outer))
            used = None if before is None else await self._apply(await before)
            self._tell_round(number, used, worked_s, self.now - began_s - worked_s)
            own = self.outer.copy()
            number, began_s, self.taken_in_round = number + 1, self.now, 0
        if coming is not None:
            used = await self._apply(await coming)
            self._tell_round(number, used, 0.0, self.now - began_s)
        self.weights = await self._whole(self.outer)
        self.emit(state_B=self.state_B(), every=every)

    def _tell_round(
        self, number: int, used: Average | None, worked_s: float, waited_s: float
    ) -> None:
        self.emit(
            round=number, used=-1 if used is None else used.round, tries=used.tries if used else 0,
            steps=self.taken_in_round, worked_s=worked_s, waited_s=waited_s,
            members=len(used.members) if used else len(self.owners),
        )  # fmt: skip

    # -- a step of a replica

    async def _step(self, own: Array) -> Array:
        """The weights that this rank owns after one step of its replica."""
        self.weights = await self._whole(own)
        gradient = await self.gradient()
        if self.replica > 1:
            node = self.group(self.mates, "replica")
            if self.zero:
                gradient = await node.reduce_scatter(gradient, tag="gradient") / self.replica
                # Between the steps a rank holds nothing but its part.
                self.weights = own
            else:
                gradient = await node.mean(gradient, tag="gradient")
        return self.inner.step(own, gradient.astype(own.dtype, copy=False))

    async def _whole(self, own: Array) -> Array:
        """The weights of the replica, gathered where its ranks have parts."""
        if not self.zero or self.replica == 1:
            return own.copy()
        return np.concatenate(await self.group(self.mates, "replica").all_gather(own, tag="whole"))

    def state_B(self) -> int:
        """Bytes of weights, optimiser state and outer state that this rank keeps between steps."""
        held = [self.outer, self.outer, self.momentum, self.last_move]
        held += [v for v in self.inner.state().values() if isinstance(v, np.ndarray)]
        return sum(array.nbytes for array in held)

    # -- the outer step

    async def _apply(self, found: Average | LeftOut | RankLost) -> Average:
        """Move the iterate by an average, once."""
        if isinstance(found, RankLost):
            raise found
        if isinstance(found, LeftOut):
            raise _Left
        if found.round != self.applied + 1:
            raise PartError(
                f"the average of round {found.round} is here when that of round "
                f"{self.applied + 1} is due; each is applied once, in order"
            )
        self.applied = found.round
        self.momentum = self.outer_momentum * self.momentum + found.mean
        if self.clip and self.outer_momentum:
            self.momentum = np.clip(self.momentum, -self.clip, self.clip)
        factor = 1.0 / max(1.0, self.gap) if self.penalty and self.delay else 1.0
        move = (self.outer_rate * factor * self.momentum).astype(self.outer.dtype)
        lengths = await self._lengths(move, move + self.last_move)
        self.gap = lengths[1] / self.last_length if self.last_length > 0 else 0.0
        self.last_move, self.last_length = move, lengths[0]
        self.outer = self.outer + move
        return found

    async def _lengths(self, *vectors: Array) -> list[float]:
        """The lengths of vectors, of which a rank of ZeRO has its parts."""
        if not (self.penalty and self.delay):
            return [0.0] * len(vectors)
        squares = np.array([np.dot(v, v) for v in vectors], np.float64)
        if self.zero and self.replica > 1:
            squares = await self.group(self.mates, "replica").sum(squares, tag="lengths")
        return [float(x) for x in np.sqrt(squares)]

    # -- averages that may get lost

    async def _average(self, number: int, moved: Array) -> Average | LeftOut | RankLost:
        """The mean over the owners; an error is given back, for whoever asks for the value."""
        members = self.members_now()
        for attempt in range(self.tries):
            try:
                mean = await self._reduce(members, f"round {number} try {attempt}", moved)
                return self._keep(Average(number, mean, members, attempt))
            except RankLost as error:
                lost = error
            found = await self._from_another(number, attempt)
            if found is not None:
                return found if isinstance(found, LeftOut) else self._keep(found)
            members = await self._present()
        return lost

    async def _reduce(self, members: tuple[int, ...], name: str, moved: Array) -> Array:
        # A new name for each try: what a former one left behind must not be taken for this one's.
        return await self.group(members, name).mean(moved)

    def members_now(self) -> tuple[int, ...]:
        """Who took part in the last average that is known."""
        return self.kept[max(self.kept)].members if self.kept else self.owners

    def _keep(self, average: Average) -> Average:
        self.kept[average.round] = average
        self.kept.pop(average.round - 2, None)
        return average

    async def _from_another(self, number: int, attempt: int) -> Average | LeftOut | None:
        """An average that some other owner has got; None where nobody says so."""
        for rank in self.owners:
            if rank == self.rank:
                continue
            peer = self.fellows()[rank]
            try:
                async with self.deadline(self.patience_s):
                    members = await self.ask(peer, CO2.tell_average, self.id, number)
                    if members and self.rank not in members:
                        return LeftOut(number)
                    if members:
                        mean = await self.receive(peer, f"{AVERAGE} {number}")
                        return Average(number, np.array(mean), tuple(members), attempt + 1)
            except (DeadlineExceeded, Refused):
                continue
        return None

    async def _present(self) -> tuple[int, ...]:
        """The owners that answer; all of them where too few do, or none may be done without."""
        if self.replica > 1:
            return self.owners
        found = await self.answering(self.owners, CO2.takes_part)
        # Two halves that cannot see each other must not both go on.
        return found if 2 * len(found) > len(self.owners) else self.owners

    @rpc
    async def takes_part(self) -> bool:
        """Whether this rank trains, and does not merely wait for what comes out."""
        return self.inside and not self.over.is_set()

    @rpc
    async def tell_average(self, who: int, number: int) -> tuple[int, ...]:
        """Who made the average of a round, which then follows as a transfer; () if not had."""
        average = self.kept.get(number)
        if average is None:
            # Who asks for a round that is long past has been done without.
            return self.members_now() if number < self.applied else ()
        if self.fellows().index(who) in average.members:
            tag = f"{AVERAGE} {number}"
            self.spawn(self.transfer(who, average.mean, tag, self.training.scale))
        return average.members

    async def _follow(self) -> None:
        """Take no further part; wait for the end and take the weights that came out."""
        self.inside = False
        while True:
            for peer in self.peers:
                try:
                    async with self.deadline(self.patience_s):
                        if await self.ask(peer, CO2.give_final, self.id):
                            self.weights = np.array(await self.receive(peer, FINAL))
                            return
                except (DeadlineExceeded, Refused):
                    continue
            await self.sleep(self.patience_s)

    @rpc
    async def give_final(self, who: int) -> bool:
        """Whether this rank has trained to the end; its weights then follow as a transfer."""
        if self.over.is_set() and self.inside:
            self.spawn(self.transfer(who, self.weights, FINAL, self.training.scale))
            return True
        return False

    # -- planning

    async def _plan(self, step_s: float) -> int:
        """Steps of a round, the same at all ranks: the quickest one must hide the average."""
        quickest_s = float((await self.min(np.array([step_s]), tag="plan"))[0])
        nodes = [self.fellows()[rank] for rank in self.owners]
        model_B = self.outer.nbytes * self.training.scale
        return plan(quickest_s, self.slack * average_s(self.world, nodes, model_B))


class _Left(Exception):
    """The others have gone on without this rank."""


def plan(step_s: float, average_s: float) -> int:
    """The fewest steps that take as long as an average, and at least one.

    >>> plan(0.1, 0.25), plan(0.1, 0.0)
    (3, 1)
    """
    if not (math.isfinite(average_s) and average_s >= 0 and step_s >= 0):
        raise PartError(f"a step of {step_s} s, an average of {average_s} s: give both in seconds")
    if step_s == 0:
        return 1  # a step that takes no time hides nothing, however many there are
    return max(1, math.ceil(average_s / step_s - 1e-9))


def average_s(world: World, nodes: list[int], model_B: float) -> float:
    """Seconds of a ring all-reduce among nodes, alone in this world.

    2 (n - 1) steps, each with a latency and an n-th of the bytes over the slowest link.

    >>> average_s(World.lan(4, latency_s=0.0, bandwidth_Bps=1e6), [0, 1, 2, 3], 4e6)
    6.0
    """
    n = len(nodes)
    if n < 2:
        return 0.0
    wiring = world.wiring()
    hops = [(nodes[i], nodes[(i + 1) % n]) for i in range(n)]
    slowest_Bps = min(min(wiring.capacity_Bps[list(wiring.bulk_path(*hop))]) for hop in hops)
    latency_s = max(wiring.latency(*hop) for hop in hops)
    return 2 * (n - 1) * (latency_s + model_B / n / float(slowest_Bps))


def _part(items: int, place: int, size: int) -> slice:
    """The part of a vector that a rank of a replica keeps, as `reduce_scatter` cuts it."""
    sizes: Any = part_items(items, size)
    begin = sum(sizes[:place])
    return slice(begin, begin + sizes[place])
