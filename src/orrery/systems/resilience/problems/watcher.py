"""`Watcher`: the port of finding what makes communication hang or crawl; and the tree it lives in.

Watchers run on machines of their own, in a tree above the ranks: each hears a bounded number of
ranks or of other watchers. What runs at a rank is the recorder that the watcher gives it, and the
heart-beat that this makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Literal

import msgspec

from orrery.base.errors import DeadlineExceeded, PartError
from orrery.parts import Count, Node, NonNegative, Positive, Whole, Worker, rpc
from orrery.systems.resilience.problems.flight import Dump, Recorder

Ailment = Literal[
    "crashed", "stopped", "stuck", "skipped", "size_mismatch", "op_mismatch", "hung_link",
    "slow_compute", "periodic_compute", "slow_nic", "slow_link", "insufficient_data", "unknown",
]  # fmt: skip
# A wait in a collective, or in a pipe between two ranks.
Hint = Literal["hang", "wait", "pipe", "send", "silent"]
# How many operations a recorder keeps.
RING = 128


class Sign(msgspec.Struct, array_like=True):
    """Something odd about one rank, with the number by which signs of a kind are ranked.

    `votes`: how many ranks say so of the same communicator.
    """

    hint: Hint
    rank: int
    score: float
    comm: str = ""
    peer: int = -1
    votes: int = 1


class Beat(msgspec.Struct, array_like=True):
    """A heart-beat: of one rank, or of all below one watcher. Its size is bounded."""

    heard: int
    signs: list[Sign]


class Report(msgspec.Struct, frozen=True):
    """What was found: the ailment and the ranks that have it (two where it is a link)."""

    ailment: Ailment
    ranks: tuple[int, ...]
    why: str = ""


class Heap(msgspec.Struct, frozen=True):
    """A tree of watchers over ranks with at most `fan_in` below each; depth is logarithmic.

    >>> Heap(fan_in=4, levels=levels(16, 4)).parent_of_rank(5)
    1
    """

    fan_in: int
    levels: tuple[int, ...]  # watchers at each level, those above the ranks first; the last is 1

    # So many watchers stand there for one job, which may be more than the tree has.
    nodes: int = 0

    @property
    def root(self) -> int:
        """The place of the root."""
        return sum(self.levels) - 1

    def parent_of_rank(self, rank: int) -> int:
        """The place of the watcher that hears a rank."""
        return rank // self.fan_in

    def parent_of(self, place: int) -> int | None:
        """The place of the watcher above a watcher; None above the root."""
        first = 0
        for size in self.levels:
            if place < first + size:
                above = first + size + (place - first) // self.fan_in
                return above if place != self.root else None
            first += size
        raise PartError(f"place={place}: the tree has {self.root + 1} watchers")


def levels(ranks: int, fan_in: int) -> tuple[int, ...]:
    """How many watchers each level needs.

    >>> levels(256, 16), levels(4096, 16), levels(4, 16)
    ((16, 1), (256, 16, 1), (1,))
    """
    if fan_in < 2:
        raise PartError(f"fan_in={fan_in}: give at least 2, or the tree has no end")
    found = [-(-ranks // fan_in)]
    while found[-1] > 1:
        found.append(-(-found[-1] // fan_in))
    return tuple(found)


def tree_over(ranks: int, watchers: int) -> Heap:
    """The tree of the smallest fan-in that so many watchers can make."""
    for fan_in in range(2, max(ranks, 2) + 1):
        shape = levels(ranks, fan_in)
        if sum(shape) <= watchers:
            return Heap(fan_in, shape, watchers)
    raise PartError(f"{watchers} watchers for {ranks} ranks; give at least 1")


class Watched(Worker):
    """A rank whose communication is noted; it answers watchers even while its job hangs."""

    def recorder(self) -> Recorder:
        """What notes the operations of this rank."""
        raise PartError(f"{type(self).__name__} has no recorder(); give the one of its watcher")

    @rpc
    async def dump(self, last: int) -> Dump:
        """What is going on here, with so many of the latest operations."""
        return self.recorder().dump(last)


class Watcher(Node):
    """Watches the communication of a job and says which rank makes it hang or crawl.

    A subclass writes `watch()`, which runs at the root of the tree and calls `self.say(report)`,
    and perhaps `recorder_for`, what it notes at a rank. Knobs: `job_ranks`, how many ranks one job
    has (0: all there are; the problem sets it); `heartbeat_s` between two heart-beats of a rank
    (0: none); `tries` and `answer_s`, how often and how long a rank is asked before it counts as
    silent.
    """

    # Whether ranks tell the root of each step that they have ended.
    counts_steps: ClassVar[bool] = False

    job_ranks: Whole = 0
    heartbeat_s: NonNegative = 0.0
    tries: Count = 8
    answer_s: Positive = 1.5

    def start(self) -> None:
        self.reports: list[Report] = []
        self.gone: set[int] = set()
        self.signs: list[Sign] = []
        self.parent = -1
        # By rank the last step that it ended, and by step and rank how long it took.
        self.steps: dict[int, int] = {}
        self.times: dict[int, dict[int, float]] = {}
        self.stepped_s = 0.0
        self.whole = 0
        self.begin()

    def begin(self) -> None:
        """Make the state of a run."""

    # -- where

    def tree_for(self, ranks: Sequence[int], watchers: Sequence[int]) -> Heap:
        """The tree over one job, of several with equal shares of the watchers."""
        size = self.job_ranks or len(ranks)
        return tree_over(size, len(watchers) // max(len(ranks) // size, 1))

    def settle(self) -> None:
        """Find out where this watcher stands: `ranks` of its job, `place`, `tree`."""
        everyone, watchers = self.members("rank"), self.members("watcher")
        size = self.job_ranks or len(everyone)
        self.tree = self.tree_for(everyone, watchers)
        job, self.place = divmod(self.id - watchers[0], self.tree.nodes)
        self.ranks = range(everyone[0] + job * size, everyone[0] + (job + 1) * size)

    def recorder_for(self, rank: int, clock: Callable[[], float]) -> Recorder:
        """What notes the operations of a rank; it runs there."""
        return Recorder(rank, clock, RING)

    def beat_of(self, recorder: Recorder) -> Beat:
        """The heart-beat of a rank; it is made there."""
        return Beat(1, [])

    # -- life

    async def main(self) -> None:
        self.settle()
        above = self.tree.parent_of(self.place) if self.place <= self.tree.root else None
        if above is not None:
            await self.relay(self.id - self.place + above)
        elif self.place == self.tree.root:
            await self.watch()

    async def relay(self, parent: int) -> None:
        """What a watcher below the root does; left alone, it passes each sign up at once."""
        self.parent = parent

    async def watch(self) -> None:
        """What the root does."""
        raise PartError(f"{type(self).__name__} has no watch(); write what the root does")

    def say(self, report: Report) -> None:
        """Report something, once."""
        if report not in self.reports:
            self.reports.append(report)
            self.emit(ailment=report.ailment, blamed=report.ranks, why=report.why)

    def ended_steps(self) -> Iterator[tuple[int, dict[int, float]]]:
        """The steps that all ranks have ended since this was last asked: (step, time by rank)."""
        while len(self.times.get(self.whole + 1, {})) == len(self.ranks):
            self.whole += 1
            yield self.whole, self.times.pop(self.whole)

    # -- asking

    async def dump_of(self, rank: int, last: int = 0) -> Dump | None:
        """What a rank tells of itself; None when it gives no answer, however often it is asked."""
        if rank in self.gone:
            return None
        for _ in range(self.tries):
            try:
                async with self.deadline(self.answer_s):
                    found: Dump = await self.ask(rank, Watched.dump, last)
                    return found
            except DeadlineExceeded:
                continue
        return None

    async def dumps_of(self, ranks: Sequence[int], last: int = 0) -> dict[int, Dump | None]:
        """The same of several ranks at once."""
        found = await self.all(*(self.dump_of(rank, last) for rank in ranks))
        return dict(zip(ranks, found, strict=True))

    # -- what others tell

    @rpc
    async def beat(self, beat: Beat, sender: int) -> None:
        """A heart-beat from below; left alone, signs are kept at the root."""
        if beat.signs and self.parent >= 0:
            self.tell(self.parent, Watcher.beat, beat)
        self.signs += beat.signs

    @rpc
    async def stepped(self, step: int, took_s: float, sender: int) -> None:
        """A rank has ended a step."""
        self.steps[sender] = step
        self.times.setdefault(step, {})[sender] = took_s
        self.stepped_s = self.clock()

    @rpc
    async def exited(self, rank: int) -> None:
        """The launcher saw the process of a rank end, as the parent of a process does."""
        self.gone.add(rank)
        self.say(Report("crashed", (rank,), "its process has ended"))

    @rpc
    async def found(self) -> Report | None:
        """The first report, if there is one."""
        return self.reports[0] if self.reports else None
