"""A real tensor-parallel engine in miniature, whose degree changes while it generates."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np

from orrery.base.errors import KnobError
from orrery.base.rand import Stream
from orrery.parts import Count, NonNegative, Positive, Worker, rpc
from orrery.parts.worker import RankLost
from orrery.systems.serve.nitsum.shards import Cache, Shape, Weights, forward

Degrees = Annotated[tuple[Count, ...], msgspec.Meta(min_length=1)]
Numbers = Annotated[tuple[Annotated[int, msgspec.Meta(ge=0)], ...], msgspec.Meta(min_length=1)]
Block = tuple[int, ...]
Trip = tuple[int, int, int]


class Job:
    """A request on a rank: its tokens so far, and its units of the cache, if they are here."""

    def __init__(self, prompt: list[int]) -> None:
        self.prompt, self.made = prompt, list[int]()
        self.cache: Cache = {}

    def copy(self) -> Job:
        """As it is now; arrays of a cache are never changed, only replaced by longer ones."""
        other = Job(self.prompt)
        other.made, other.cache = list(self.made), dict(self.cache)
        return other

    def cut(self, made: int) -> None:
        """Go back to so many tokens; all but the last that was made are in the cache."""
        seen = len(self.prompt) + made - 1 if made else 0
        self.made = self.made[:made]
        self.cache = {key: kv[:, :seen] for key, kv in self.cache.items()} if made else {}


class TPRanks(Worker):
    """Generates for several requests on ranks that regroup: degrees[0], then degrees[1], …

    Each rank keeps the weight units of its slice. Before a change to a lower degree it fetches the
    units that it lacks from ranks that have them, while the old instances go on making tokens; a
    change to a higher degree fetches nothing. Then every request's cache goes, cut anew by heads,
    layer by layer, to the ranks that take it over, and a request goes on as soon as its last layer
    has landed, while others still travel. What was there before is dropped once all have said that
    everything has landed. If a rank is lost, the others go back to the last layout on which all
    were agreed (or on, if one of them has dropped it): whole instances keep their requests, those
    of a broken one begin again elsewhere.

    degrees     one after the other; powers of two up to the number of ranks
    tokens      made by every request under each of them; under the last one until it has them all
    requests, prompt_tokens
    model_seed  the weights; step_s, the time of a step beside the messages
    """

    degrees: Degrees = (1, 2, 4, 1)
    tokens: Numbers = (5, 5, 5, 5)
    requests: Count = 6
    prompt_tokens: Count = 7
    model_seed: int = 3
    step_s: NonNegative = 0.002
    hold_s: NonNegative = 0.0
    patience_s: Positive = 5.0

    # -- what every rank knows

    def start(self) -> None:
        if len(self.tokens) != len(self.degrees):
            problem = f"{len(self.tokens)} numbers for {len(self.degrees)} degrees"
            raise KnobError("TPRanks.tokens", problem, "give one a degree")
        self.epoch = 0  # changes that are complete here
        self.jobs: dict[int, Job] = {}
        self.saved: dict[int, Job] | None = None  # as they were before a change under way
        self.tasks: list[Any] = []
        self.loads = 0
        self.at_loss = self.event()

    def _prepare(self) -> None:
        size = self.size
        units = 1 << max((size - 1).bit_length(), 2)
        for degree in self.degrees:
            if degree & (degree - 1) or degree > size or size % degree:
                fix = f"give powers of two that divide {size} ranks"
                raise KnobError("TPRanks.degrees", f"{degree} is refused", fix)
        self.shape = Shape(heads=units, inner=16 * units, vocab=16 * units, units=units)
        first = self.degrees[0]
        mine = self.shape.units_of(self.rank, first)
        self.shard = Weights(self.shape, self.model_seed, mine)
        self.layout = self._blocks(first)
        self.homes = {r: self.layout[r % len(self.layout)] for r in range(self.requests)}
        for number, home in self.homes.items():
            if self.rank in home:
                self.jobs[number] = self._new_job(number)

    def _new_job(self, number: int) -> Job:
        return Job(prompt_of(self.shape, self.model_seed, number, self.prompt_tokens))

    def _blocks(self, degree: int) -> tuple[Block, ...]:
        return tuple(tuple(range(at, at + degree)) for at in range(0, self.size, degree))

    def goal(self, stage: int) -> int:
        """Tokens that a request has at the end of a stage."""
        return sum(self.tokens[: stage + 1])

    async def main(self) -> None:
        self._prepare()
        try:
            await self.first(self._generate(), self.at_loss.wait())
            lost = self.at_loss.is_set()
        except RankLost:
            lost = True
            self._alarm()
        if lost:
            for task in self.tasks:
                task.cancel()
            await self._recover()
        for number in sorted(self.jobs):
            job = self.jobs[number]
            self.emit(request=number, tokens=job.made, home=list(self.homes[number]))
        self.emit(
            layout=[list(block) for block in self.layout], units=sorted(self.shard.have),
            epoch=self.epoch, loads=self.loads,
        )  # fmt: skip

    def _alarm(self) -> None:
        """Tell all that one is gone, so that they stop at about the same time."""
        self.at_loss.set()
        for node in self.fellows():
            if node != self.id:
                self.tell(node, TPRanks.one_is_lost)

    async def _watched(self, doing: Awaitable[Any]) -> None:
        """Something that goes on besides: if a rank is lost in it, it never ends."""
        try:
            await doing
        except RankLost:
            self._alarm()
            await self.event().wait()

    def _besides(self, doing: Awaitable[Any]) -> Any:
        task = self.spawn(self._watched(doing))
        self.tasks.append(task)
        return task

    @rpc
    async def one_is_lost(self) -> None:
        """Another rank has noticed that one is gone."""
        self.at_loss.set()

    # -- making tokens

    async def _generate(self) -> None:
        await self._serve(self.goal(0), self.layout, {})
        for stage in range(1, len(self.degrees)):
            await self._change(stage)

    async def _serve(self, goal: int, layout: Sequence[Block], landing: dict[int, Any],
                     name: str = "") -> None:  # fmt: skip
        """Make tokens until every request here has so many; `landing` are those still under way.

        Every rank of an instance takes the same steps: a request that travels joins at the step
        that has its number in the order, when its last layer is here.
        """
        block = next(each for each in layout if self.rank in each)
        units = self.shape.units_of(self.rank, len(block))
        group = self.group(block, name or f"epoch {self.epoch}") if len(block) > 1 else None

        async def add(x: np.ndarray) -> np.ndarray:
            return x if group is None else await group.sum(x)

        async def join(parts: np.ndarray) -> np.ndarray:
            if group is None:
                return parts
            found = await group.all_gather(parts)
            places = [u for rank in block for u in self.shape.units_of(rank, len(block))]
            whole = np.concatenate(found)
            return whole[np.argsort(places)]

        waiting = [number for number in sorted(self.jobs) if number in landing]
        ready = [number for number in sorted(self.jobs) if number not in landing]
        while True:
            if waiting:
                number = waiting.pop(0)
                await landing[number]
                ready.append(number)
            work = [self.jobs[n] for n in ready if len(self.jobs[n].made) < goal]
            if not work and not waiting:
                return
            if work:
                fed = [(job.made[-1:] if job.cache else job.prompt + job.made, job.cache)
                       for job in work]  # fmt: skip
                if self.step_s:
                    await self.sleep(self.step_s)
                made = await forward(self.shard, units, fed, add, join)
                for job, token in zip(work, made, strict=True):
                    job.made.append(token)

    # -- from one degree to the next

    async def _change(self, stage: int) -> None:
        old, degree = self.layout, self.degrees[stage]
        new = self._blocks(degree)
        # Half of this stage's tokens are made under the old layout while weights come.
        ahead = self.goal(stage - 1) + self.tokens[stage] // 2
        fetch = self._besides(self._fetch(old, new, stage))
        await self._serve(ahead, old, {})
        await fetch
        if self.hold_s:
            await self.sleep(self.hold_s)  # gives a fault a moment to hit the middle of a change
        landing = self._migrate(old, new, stage)
        await self._serve(self.goal(stage), new, landing, f"stage {stage}")
        for task in list(self.tasks):
            await task
        self.tasks.clear()
        # Nobody drops what it had before everybody has what it needs.
        await self.barrier(tag=f"done {stage}")
        self._settle(new)

    def _settle(self, new: Sequence[Block]) -> None:
        block = next(each for each in new if self.rank in each)
        self.layout, self.homes = tuple(new), self._next_homes(new)
        self.shard.keep(self.shape.units_of(self.rank, len(block)))
        mine = set(self.shape.units_of(self.rank, len(block)))
        for job in self.jobs.values():
            job.cache = {key: kv for key, kv in job.cache.items() if key[1] in mine}
        self.saved = None
        self.epoch += 1

    def _next_homes(self, new: Sequence[Block]) -> dict[int, Block]:
        """Who takes over which request: the instance around it, or by turns those inside it."""
        found, turns = {}, dict[Block, int]()
        for number, home in sorted(self.homes.items()):
            near = [block for block in new if set(block) & set(home)]
            turn = turns.get(home, 0)
            found[number] = near[turn % len(near)]
            turns[home] = turn + 1
        return found

    async def _fetch(self, old: Sequence[Block], new: Sequence[Block], stage: int) -> None:
        """Send the units that others lack, take those that this rank lacks; layer by layer."""
        before = {rank: len(block) for block in old for rank in block}
        then = {rank: len(block) for block in new for rank in block}
        sends = []
        for taker in sorted(then):
            has = set(self.shape.units_of(taker, before[taker]))
            for unit in self.shape.units_of(taker, then[taker]):
                if unit in has:
                    continue
                giver = giver_of(self.shape, before, unit, taker)
                for layer in range(self.shape.layers + 1):
                    tag = f"w{stage}.{unit}.{layer}"
                    if self.rank == giver:
                        flat = self.shard.flat[layer, unit]
                        sends.append(self._besides(self.send(taker, flat, tag=tag)))
                    elif self.rank == taker:
                        self.shard.flat[layer, unit] = await self.recv(giver, tag=tag)
        for task in sends:
            await task

    def _migrate(self, old: Sequence[Block], new: Sequence[Block], stage: int) -> dict[int, Any]:
        """Set every cache on its way; for each request that comes here, what to wait for."""
        landing: dict[int, Any] = {}
        after = self._next_homes(new)
        self.saved = {number: job.copy() for number, job in self.jobs.items()}
        jobs: dict[int, Job] = {}
        for number in sorted(self.homes):
            home, goes = self.homes[number], after[number]
            trips = trips_of(self.shape, home, goes)
            if self.rank in home and trips:
                self._besides(self._give(number, home, goes, trips, stage))
            if self.rank in goes:
                jobs[number] = self.jobs.get(number) or self._new_job(number)
                if trips:
                    taking = self._take(jobs[number], number, home, trips, stage)
                    landing[number] = self._besides(taking)
        self.jobs = jobs
        return landing

    async def _give(
        self, number: int, home: Block, goes: Block, trips: Sequence[Trip], stage: int
    ) -> None:
        """Tokens so far to ranks that know nothing of a request, then its units in layer order."""
        assert self.saved is not None
        job = self.saved[number]
        if self.rank == home[0]:
            for taker in goes:
                if taker not in home:
                    await self.send(taker, np.array(job.made), tag=f"t{stage}.{number}")
        for layer in range(self.shape.layers):
            for unit, giver, taker in trips:
                if giver == self.rank:
                    kv = job.cache[layer, unit]
                    await self.send(taker, kv, tag=f"k{stage}.{number}.{unit}.{layer}")

    async def _take(
        self, job: Job, number: int, home: Block, trips: Sequence[Trip], stage: int
    ) -> None:
        if self.rank not in home:
            sent = await self.recv(home[0], tag=f"t{stage}.{number}")
            job.made = [int(token) for token in sent]
        for layer in range(self.shape.layers):
            for unit, giver, taker in trips:
                if taker == self.rank:
                    tag = f"k{stage}.{number}.{unit}.{layer}"
                    job.cache[layer, unit] = await self.recv(giver, tag=tag)

    # -- when a rank is lost

    async def _recover(self) -> None:
        """Agree on a layout that holds without the lost ranks, mend it, and go on to the end."""
        everybody = list(self._ranks().nodes)
        group = await self.survivors("recovery")
        alive = [rank for rank, node in enumerate(everybody) if node in group.nodes]
        epochs = await group.all_gather(np.array([self.epoch]))
        newest = int(max(each[0] for each in epochs))
        if self.epoch < newest:
            # Another rank has gone over, so everything that this one needs has landed here too.
            self._settle(self._blocks(self.degrees[newest]))
        elif self.saved is not None:
            self.jobs, self.saved = self.saved, None
        before = {rank: len(block) for block in self.layout for rank in block}
        self.shard.keep(self.shape.units_of(self.rank, before[self.rank]))
        whole = [block for block in self.layout if set(block) <= set(alive)]
        single = [(rank,) for rank in alive if not any(rank in block for block in whole)]
        await self._mend(group, alive, before, [block[0] for block in single])
        new = tuple(sorted([*whole, *single]))
        homes = {n: home for n, home in self.homes.items() if home in whole}
        astray = [number for number in self.homes if number not in homes]
        homes |= {number: new[at % len(new)] for at, number in enumerate(sorted(astray))}
        kept = {n: job for n, job in self.jobs.items() if n not in astray}
        self.jobs = kept | {n: self._new_job(n) for n in astray if self.rank in homes[n]}
        self.layout, self.homes = new, homes
        await self._same_tokens(kept)
        self.emit(restarted=sorted(n for n in astray if self.rank in homes[n]))
        await self._serve(self.goal(len(self.degrees) - 1), new, {}, "recovered")

    async def _mend(
        self, group: Any, alive: list[int], before: dict[int, int], takers: list[int]
    ) -> None:
        """Ranks of broken instances become instances of their own: they fetch what they lack."""
        have = {rank: size for rank, size in before.items() if rank in alive}
        sends = []
        for taker in takers:
            for unit in range(self.shape.units):
                if unit in self.shape.units_of(taker, before[taker]):
                    continue
                giver = giver_of(self.shape, have, unit, taker)
                if giver < 0:
                    if self.rank == taker:  # nobody has it any more
                        self.shard.load(unit)
                        self.loads += 1
                    continue
                for layer in range(self.shape.layers + 1):
                    tag = f"m{unit}.{layer}"
                    if self.rank == giver:
                        flat = self.shard.flat[layer, unit]
                        place = alive.index(taker)
                        sends.append(self.spawn(group.send(place, flat, tag=tag)))
                    elif self.rank == taker:
                        flat = await group.recv(alive.index(giver), tag=tag)
                        self.shard.flat[layer, unit] = flat
        for task in sends:
            await task

    async def _same_tokens(self, kept: dict[int, Job]) -> None:
        """Ranks of an instance were cut off at different points of a step: all go back to one."""
        block = next(each for each in self.layout if self.rank in each)
        numbers = sorted(kept)
        counts = np.array([len(kept[n].made) for n in numbers])
        if len(block) > 1 and numbers:
            counts = await self.group(block, "recovery tokens").min(counts)
        for number, count in zip(numbers, counts, strict=True):
            kept[number].cut(int(count))


def prompt_of(shape: Shape, seed: int, number: int, tokens: int) -> list[int]:
    """The prompt of a request."""
    stream = Stream(seed, "nitsum prompt", str(number))
    return [stream.below(shape.vocab) for _ in range(tokens + number % 3)]


def giver_of(shape: Shape, degrees: dict[int, int], unit: int, taker: int) -> int:
    """Which rank gives a unit to another: by turns those that have it; -1 when none has."""
    having = [rank for rank in sorted(degrees)
              if rank != taker and unit in shape.units_of(rank, degrees[rank])]  # fmt: skip
    return having[taker % len(having)] if having else -1


def trips_of(shape: Shape, home: Block, goes: Block) -> list[Trip]:
    """(unit, from, to) of every unit of a cache that must move, and no other."""
    owner = {unit: rank for rank in home for unit in shape.units_of(rank, len(home))}
    found: list[Trip] = []
    for taker in goes:
        has = set(shape.units_of(taker, len(home))) if taker in home else set()
        lacks = [unit for unit in shape.units_of(taker, len(goes)) if unit not in has]
        found += [(unit, owner[unit], taker) for unit in lacks]
    return found


__all__ = ["Job", "TPRanks", "giver_of", "prompt_of", "trips_of"]
