"""`JobRank`: one rank of a training job in tensor, pipeline and data parallel groups.

A step is one forward and one backward pass of a micro-batch through the stages of a pipeline, with
an all-reduce in the tensor group after each, and an all-reduce of the gradients in the data group
at the end. What a rank computes takes a modelled time in virtual time and is real arithmetic on
processes; arrays stand for larger ones by their scale. A rank may be made to misbehave.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec
import numpy as np

from orrery.base.rand import Stream
from orrery.parts import Count, DeadlineExceeded, Fraction, NonNegative, Whole, cost, rpc
from orrery.parts.collectives import Array
from orrery.parts.worker import Task
from orrery.systems.resilience.problems.flight import Communicator, Recorder
from orrery.systems.resilience.problems.watcher import Watched, Watcher

Misstep = Literal["", "skip", "size", "op", "stuck", "periodic"]
# Lengths of the arrays that stand for activations, their gradients and the weights' gradients.
FORWARD, BACKWARD, GRADIENT = 16, 24, 512
LONG_S = 1e8  # no rank gives up by itself


class Layout(msgspec.Struct, frozen=True):
    """How ranks are laid out: tensor groups side by side, then stages, then replicas.

    >>> Layout(2, 2, 2).at(5)
    (1, 0, 1)
    """

    tp: int
    pp: int
    dp: int

    @property
    def size(self) -> int:
        """The ranks of one job."""
        return self.tp * self.pp * self.dp

    def at(self, rank: int) -> tuple[int, int, int]:
        """(place in the tensor group, stage, replica) of a rank."""
        return rank % self.tp, rank // self.tp % self.pp, rank // (self.tp * self.pp)

    def rank(self, t: int, p: int, d: int) -> int:
        """The rank at a place."""
        return (d * self.pp + p) * self.tp + t

    def groups(self, rank: int) -> dict[str, list[int]]:
        """The ranks of each group that a rank is in."""
        t, p, d = self.at(rank)
        return {
            "tp": [self.rank(i, p, d) for i in range(self.tp)],
            "pp": [self.rank(t, i, d) for i in range(self.pp)],
            "dp": [self.rank(t, p, i) for i in range(self.dp)],
        }


@cost(flops=lambda tile, times, flops: flops)
def grind(tile: Array, times: int, flops: float) -> Array:
    """So many products of a small matrix with itself; the modelled flops are given beside."""
    for _ in range(times):
        tile = tile @ tile
        tile = tile / (1.0 + np.abs(tile).max())
    return tile


class JobRank(Watched):
    """A rank that trains for ever, with a recorder round its communication.

    Knobs: `watch`, the watcher whose recorder and heart-beat run here; `tp`, `pp`, `dp`; `step_s`,
    the modelled time that the stages compute in a step, one after another; `grinds`, the real
    products in each half of it; `pace_s`, how long each half waits for its data; `jitter`, the
    sigma by which a rank's time varies (log-normal), and `batch_spread`, by how much the batches of
    replicas differ from step to step; `missteps`, by node what it does wrong and from when on, with
    `factor` (how many times longer it computes) and `period` (in steps); `data_seed`; `width`, how
    many numbers an array has for each that it would have.
    """

    watch: Watcher = Watcher()
    tp: Count = 2
    pp: Count = 2
    dp: Count = 2
    step_s: NonNegative = 20.0
    pace_s: NonNegative = 0.0
    grinds: Whole = 0
    jitter: NonNegative = 0.02
    batch_spread: Fraction = 0.3
    missteps: dict[str, tuple[Misstep, float]] = {}
    factor: NonNegative = 2.0
    period: Count = 3
    data_seed: Whole = 0
    width: Count = 1
    patience_s = LONG_S
    training: Task = Task()

    def start(self) -> None:
        self._recorder: Recorder | None = None
        self.halted = False
        self.done_wrong = False
        self.sick_steps = 0
        self.step = 0
        self.tile = np.eye(24, dtype=np.float32) * np.float32(0.5) + np.float32(0.01)

    def recorder(self) -> Recorder:
        if self._recorder is None:
            clock: Callable[[], float] = self.clock
            self._recorder = self.watch.recorder_for(self.id, clock)
        return self._recorder

    async def main(self) -> None:
        layout = Layout(self.tp, self.pp, self.dp)
        job, mine = divmod(self.rank, layout.size)
        base = job * layout.size
        recorder = self.recorder()
        self.comms = {
            name: Communicator(self, recorder, [base + r for r in ranks], f"{name}.{min(ranks)}")
            for name, ranks in layout.groups(mine).items()
        }  # fmt: skip
        _, self.p, self.d = layout.at(mine)
        self.job = job
        self.misstep, self.at_s = self.missteps.get(str(self.id), ("", 0.0))
        watchers: Any = self.members("watcher")
        tree = self.watch.tree_for(self.members("rank"), watchers)  # type: ignore[arg-type]
        first = watchers[0] + job * tree.nodes
        if self.watch.heartbeat_s:
            self.spawn(self._beats(first + tree.parent_of_rank(mine)))
        while not self.halted:
            began_s = self.clock()
            await self._step()
            self.step += 1
            if self.watch.counts_steps:
                took_s = self.clock() - began_s
                self.tell(first + tree.root, Watcher.stepped, self.step, took_s)

    async def _beats(self, parent: int) -> None:
        """Tell the watcher above how this rank fares, for ever."""
        period_s = self.watch.heartbeat_s
        await self.sleep(self.rng.random() * period_s)
        while True:
            self.tell(parent, Watcher.beat, self.watch.beat_of(self.recorder()))
            await self.sleep(period_s)

    # -- one step

    async def _step(self) -> None:
        batch = Stream(self.data_seed, f"{self.job} {self.d}", f"batch {self.step}").uniform(
            1.0 - self.batch_spread, 1.0 + self.batch_spread
        )
        pipe, last = self.comms["pp"], self.pp - 1
        forward, backward = self._array(FORWARD), self._array(BACKWARD)
        if self.p > 0:
            await pipe.recv("forward_in", self.p - 1, forward.nbytes, "f")
        await self._compute(batch / 3.0)
        await self._reduce("tp", forward)
        if self.p < last:
            await pipe.send("forward_out", self.p + 1, forward, "f")
            await pipe.recv("backward_in", self.p + 1, backward.nbytes, "b")
        await self._compute(batch * 2.0 / 3.0)
        await self._reduce("tp", backward)
        if self.p > 0:
            await pipe.send("backward_out", self.p - 1, backward, "b")
        await self._reduce("dp", self._array(GRADIENT))

    def _array(self, numbers: int) -> Array:
        return np.ones(numbers * self.width, np.float32)

    @property
    def _is_sick(self) -> bool:
        return bool(self.misstep) and self.now >= self.at_s

    async def _compute(self, part: float) -> None:
        seconds = self.step_s * part / self.pp * self.rng.lognormvariate(0.0, self.jitter)
        times = self.grinds
        if self._is_sick:
            if self.misstep == "stuck":
                # A lock that is never released, a file system that never answers.
                await self.event().wait()
            if self._slow_now():
                seconds, times = seconds * self.factor, round(times * self.factor)
        flops = seconds * self.world.machine_of(self.id).cpu_flops
        await self.compute(grind, self.tile, times, flops)
        if self.pace_s:
            await self.sleep(self.pace_s)

    def _slow_now(self) -> bool:
        if self.misstep != "periodic":
            return False
        if not self.sick_steps:
            self.sick_steps = self.step + 1
        return (self.step + 1 - self.sick_steps) % self.period == 0

    async def _reduce(self, name: str, array: Array) -> None:
        comm = self.comms[name]
        if len(comm.nodes) < 2:
            return
        kind = "all_reduce"
        # A skipped operation of the data group would be made up for by the next, which is alike.
        wrong = ("skip", "size", "op") if name == "tp" else ("size", "op")
        if self._is_sick and not self.done_wrong and self.misstep in wrong:
            self.done_wrong = True
            if self.misstep == "skip":
                return
            if self.misstep == "size":
                array = np.ones(array.size + 5, np.float32)
            else:
                kind = "all_gather"
        await comm.collective(name, kind, array)

    @rpc
    async def sum_up(self) -> None:
        """Tell what the recorder cost, when the run is over."""
        recorder = self.recorder()
        self.emit(probe=(recorder.spent_s / max(self.clock(), 1e-9), self.step))

    # -- for watchers that stop a job

    @rpc
    async def halt(self) -> None:
        """End the job after the present step."""
        self.halted = True

    @rpc
    async def trial(self, peer: int, numbers: Count, limit_s: float) -> float:
        """Seconds to send a peer so many numbers and have them back; `limit_s` if it fails."""
        began_s = self.clock()
        try:
            async with self.deadline(limit_s):
                array = np.ones(numbers, np.float32)
                await self.transfer(peer, array, "trial", self.training.scale)
                await self.ask(peer, JobRank.echo, self.id, numbers)
                await self.receive(peer, "echo")
        except DeadlineExceeded:
            return limit_s
        return self.clock() - began_s

    @rpc
    async def echo(self, peer: int, numbers: Count) -> None:
        """Take what a peer sent for a trial and send as much back."""
        await self.receive(peer, "trial")
        await self.transfer(peer, np.ones(numbers, np.float32), "echo", self.training.scale)
