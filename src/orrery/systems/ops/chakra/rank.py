"""`TraceRank`: one rank of a replay on an engine, with timed compute and real messages."""

from __future__ import annotations

import functools
from typing import Any

import msgspec
import numpy as np

from orrery.base.rand import Stream
from orrery.models.taskgraph.graph import COLLECTIVE, FREE, OPS, RECV, SEND, TaskGraph
from orrery.models.taskgraph.network import Costs
from orrery.models.taskgraph.traces import from_traces, read_traces
from orrery.models.taskgraph.transformer import TransformerJob, transformer_step
from orrery.parts import NonNegative, Whole, Worker, rpc
from orrery.parts.worker import RankLost
from orrery.world import World

Job = dict[str, int | float | str]
# All ranks begin together, this long after the last of them was ready.
LEAD_S = 0.002


def job_of(job: Job) -> TransformerJob:
    """A job from its table of knobs; an unknown field is refused."""
    from orrery.base.errors import KnobError

    try:
        made = msgspec.convert(dict(job), TransformerJob)
    except msgspec.ValidationError as failure:
        raise KnobError("job", f"{failure}", "see TransformerJob") from None
    made.check()
    return made


def graph_of(traces: str, job: Job, spread: float, draw: int) -> TaskGraph:
    """The graph of a folder of traces, or of a job; durations are spread by a draw."""
    # Text is the key, since a table cannot be one.
    return _graph_of(traces, msgspec.json.encode(job, order="deterministic"), spread, draw)


@functools.lru_cache(maxsize=4)
def _graph_of(traces: str, job: bytes, spread: float, draw: int) -> TaskGraph:
    if traces:
        graph = from_traces(read_traces(traces)).without_communication_times()
    else:
        graph = transformer_step(job_of(msgspec.json.decode(job)))
    if not spread:
        return graph
    rng = Stream(draw, "trace_replay", "durations").numpy()
    factor = 1 + spread * (rng.random(len(graph)) - 0.5)
    # Whole nanoseconds, the step of virtual time, so that nothing is rounded on the way.
    return graph.with_durations(np.round(graph.duration_s * factor * 1e9) / 1e9)


def timed(graph: TaskGraph, world: World) -> TaskGraph:
    """The same graph with the world's times for work that has none, in whole nanoseconds."""
    work = np.round(Costs(world).work_s(graph) * 1e9) / 1e9
    return graph.with_durations(np.where(np.isnan(graph.duration_s), work, graph.duration_s))


class TraceRank(Worker):
    """Replays the tasks of its rank: compute takes its time, messages and collectives are real.

    Knobs: `traces`, a folder of execution traces, or `job`, a `TransformerJob` as a table;
    `spread` and `draw` of the durations; `stretch`, by which compute times are multiplied.
    A task runs when all that it waits for is done; a lost rank is told and ends the replay.
    """

    traces: str = ""
    job: Job = {}
    spread: NonNegative = 0.0
    draw: Whole = 0
    stretch: NonNegative = 1.0

    def start(self) -> None:
        self.over = self.event()

    @rpc
    async def ended(self) -> bool:
        """Answers when this rank has done its tasks, or given up."""
        await self.over.wait()
        return True

    async def main(self) -> None:
        graph = graph_of(self.traces, self.job, self.spread, self.draw)
        if np.isnan(graph.duration_s[graph.kind < SEND]).any():
            graph = timed(graph, self.world)
        if self.rank >= graph.ranks:
            self.over.set()
            return
        try:
            everyone = self.group(range(graph.ranks), "replay")
            ready_s = await everyone.max(np.array([self.now]), tag="begin")
            await self.sleep(max(float(ready_s[0]) + LEAD_S - self.now, 0.0))
            began_s = self.now
            start, end, calls = await self._run(graph)
            self.emit(rank=self.rank, began_s=began_s, start_s=start, end_s=end, calls=calls)
        except RankLost as lost:
            self.emit(lost=lost.rank)
        self.over.set()

    async def _run(self, graph: TaskGraph) -> tuple[list[float], list[float], list[Any]]:
        tasks, waits, after = _own(graph, self.rank)
        start: dict[int, float] = {}
        end: dict[int, float] = {}
        calls: list[Any] = []
        done = self.queue()
        numbers = _call_numbers(graph, tasks)

        async def one(task: int) -> None:
            start[task] = self.now
            try:
                await self._do(graph, task, numbers, calls)
            except RankLost as lost:
                done.put(lost)
                return
            end[task] = self.now
            done.put(task)

        for task in tasks:
            if not waits[task]:
                self.spawn(one(task))
        for _ in tasks:
            ended = await done.get()
            if isinstance(ended, RankLost):
                raise ended
            for other in after.get(ended, ()):
                waits[other] -= 1
                if not waits[other]:
                    self.spawn(one(other))
        return [start[t] for t in tasks], [end[t] for t in tasks], calls

    async def _do(
        self, graph: TaskGraph, task: int, numbers: dict[int, int], calls: list[Any]
    ) -> None:
        kind, size = int(graph.kind[task]), int(graph.size_B[task])
        if kind == SEND:
            await self.send(int(graph.peer[task]), np.zeros(size, np.uint8),
                            tag=f"{graph.tag[task]}")  # fmt: skip
        elif kind == RECV:
            await self.recv(int(graph.peer[task]), tag=f"{graph.tag[task]}")
        elif kind == COLLECTIVE:
            group, number = int(graph.group[task]), numbers[task]
            calls.append((group, number, OPS[graph.op[task]], size))
            await self._collective(graph, task, group, number, size)
        else:
            await self.sleep(float(graph.duration_s[task]) * self.stretch)

    async def _collective(
        self, graph: TaskGraph, task: int, group: int, number: int, size: int
    ) -> None:
        members = graph.groups[group]
        ours = self.group(members, f"g{group}")
        tag, root = f"{number}", int(graph.tag[task]) % len(members)
        op = OPS[graph.op[task]]
        whole = np.zeros(size, np.uint8)
        share = whole[: -(-size // len(members))]
        match op:
            case "all_reduce":
                await ours.sum(whole, tag=tag)
            case "all_gather":
                await ours.all_gather(share, tag=tag)
            case "reduce_scatter" | "reduce_scatter_block":
                await ours.reduce_scatter(whole, tag=tag)
            case "all_to_all":
                await ours.all_to_all(whole, tag=tag)
            case "broadcast":
                await ours.broadcast(whole, root=root, tag=tag)
            case "reduce":
                await ours.reduce(whole, root=root, tag=tag)
            case "gather":
                await ours.gather(share, root=root, tag=tag)
            case "scatter":
                await ours.scatter(whole, root=root, tag=tag)
            case _:
                await ours.barrier(tag=tag)


def _own(graph: TaskGraph, rank: int) -> tuple[list[int], dict[int, int], dict[int, list[int]]]:
    """(the tasks of a rank, how much each waits for, who waits for each)."""
    tasks = np.flatnonzero(graph.rank == rank).tolist()
    waits = dict.fromkeys(tasks, 0)
    after: dict[int, list[int]] = {}
    last: dict[int, int] = {}
    for task in tasks:
        before = set(graph.deps_of(task))
        stream = int(graph.stream[task])
        if stream != FREE:
            if stream in last:
                before.add(last[stream])
            last[stream] = task
        waits[task] = len(before)
        for each in sorted(before):
            after.setdefault(each, []).append(task)
    return tasks, waits, after


def _call_numbers(graph: TaskGraph, tasks: list[int]) -> dict[int, int]:
    """Which call of its group each collective of a rank is."""
    counts: dict[int, int] = {}
    numbers = {}
    for task in tasks:
        if graph.kind[task] == COLLECTIVE:
            group = int(graph.group[task])
            numbers[task] = counts.get(group, 0)
            counts[group] = numbers[task] + 1
    return numbers
