"""Stop the job and try every pair of ranks: a network benchmark as a diagnosis."""

from __future__ import annotations

from orrery.base.errors import DeadlineExceeded
from orrery.parts import Count, Positive
from orrery.systems.resilience.problems.training_job import JobRank
from orrery.systems.resilience.problems.watcher import Report, Watcher


class PairwiseSweep(Watcher):
    """When a step is late, stops the job and sends arrays between all pairs of ranks.

    As `nccl-tests` are run pair by pair on a suspected cluster. Every rank has one partner at a
    time, so n ranks take n - 1 rounds (the circle method). A rank most of whose pairs are slow has
    a sick NIC; a single slow pair is a sick link. Ranks that compute slowly, or that disagree about
    an operation, carry arrays as well as any and are not found; and the job is lost.

    Knobs: `factor` times the median step is late; `quiet_s` without a step is a hang; `numbers` of
    a trial's array and `trial_s`, its limit; `slow`, how many times the median a slow pair takes;
    `learn`, steps before the first alarm; `look_s`, how often it looks.

    Differs from the paper: there is none; it is the usual craft.

    >>> [len(pairs) for pairs in rounds(range(4))]
    [2, 2, 2]
    """

    factor: Positive = 1.25
    quiet_s: Positive = 120.0
    numbers: Count = 512
    trial_s: Positive = 30.0
    slow: Positive = 3.0
    learn: Count = 4
    look_s: Positive = 10.0
    counts_steps = True

    async def watch(self) -> None:
        known: list[float] = []
        while True:
            await self.sleep(self.look_s)
            late = bool(self.steps) and self.clock() - self.stepped_s > self.quiet_s
            for _, row in self.ended_steps():
                took_s = max(row.values())
                usual_s = sorted(known)[len(known) // 2] if known else took_s
                late = late or (len(known) >= self.learn and took_s > self.factor * usual_s)
                known.append(took_s)
            if late:
                self.say(await self.sweep())
                return

    async def sweep(self) -> Report:
        """Stop the job and try all pairs."""
        for rank in self.ranks:
            self.tell(rank, JobRank.halt)
        await self.sleep(self.look_s)
        found: dict[tuple[int, int], float] = {}
        trials = 0
        for pairs in rounds(self.ranks):
            took = await self.all(*(self._trial(*pair) for pair in pairs))
            found.update(zip(pairs, took, strict=True))
            trials += len(pairs)
        self.emit(trials=trials)
        return judged(found, self.slow)

    async def _trial(self, one: int, other: int) -> float:
        try:
            async with self.deadline(self.trial_s + self.answer_s):
                took_s: float = await self.ask(
                    one, JobRank.trial, other, self.numbers, self.trial_s
                )
                return took_s
        except DeadlineExceeded:
            return self.trial_s


def rounds(ranks: range) -> list[list[tuple[int, int]]]:
    """All pairs in rounds in which nobody has two partners: the circle method."""
    places: list[int | None] = [*ranks]
    if len(places) % 2:
        places.append(None)
    half, found = len(places) // 2, []
    for _ in range(len(places) - 1):
        pairs = zip(places[:half], reversed(places[half:]), strict=True)
        found.append([(a, b) for a, b in pairs if a is not None and b is not None])
        places = [places[0], places[-1], *places[1:-1]]
    return found


def judged(took: dict[tuple[int, int], float], slow: float) -> Report:
    """Who is to blame for the slow pairs.

    >>> judged({(0, 1): 9.0, (0, 2): 9.0, (1, 2): 1.0, (1, 3): 1.0, (2, 3): 1.0, (0, 3): 9.0}, 3.0)
    Report(ailment='slow_nic', ranks=(0,), why='3 of its pairs are slow')
    """
    # The lower quarter: where one rank of few is sick, half of the pairs may be.
    usual_s = sorted(took.values())[len(took) // 4]
    bad = [pair for pair, took_s in took.items() if took_s > slow * usual_s]
    counts: dict[int, int] = {}
    for pair in bad:
        for rank in pair:
            counts[rank] = counts.get(rank, 0) + 1
    if not bad:
        return Report("insufficient_data", (), "all pairs are alike")
    if len(bad) == 1:
        return Report("slow_link", tuple(sorted(bad[0])), "the only slow pair")
    worst = max(counts, key=lambda rank: (counts[rank], -rank))
    return Report("slow_nic", (worst,), f"{counts[worst]} of its pairs are slow")
