"""AICB and SimAI workloads as task graphs, for all their ranks or folded to the ranks that differ.

A workload file tells what one rank does, so thousands of ranks do the same. Ranks that have the
same program, the same links, and whose groups and neighbours look the same in turn, behave the
same: they form the classes of an equitable partition, found by colour refinement (Weisfeiler and
Leman, 1968), and one rank of each class is enough. One slow NIC among 9,216 makes about a hundred
classes.
"""

from __future__ import annotations

import itertools
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from orrery.inputs.aicb import GROUPS, AicbWorkload
from orrery.models.taskgraph.graph import FREE, SIDE, GraphError, TaskGraph
from orrery.models.taskgraph.schedules import SCHEDULES
from orrery.models.taskgraph.tiling import Program, Tile, tile
from orrery.world import World
from orrery.world.wiring import IslandWiring

Ints = npt.NDArray[np.int64]
FORWARD, INPUT_GRAD, WEIGHT_GRAD = range(3)
NEXT, PREVIOUS = 0, 1
# The generator writes 1 ns where a row has no work of its own.
NO_WORK_NS = 1


def from_aicb(
    workload: AicbWorkload, world: World | None = None, *,
    schedule: Literal["interleaved", "1f1b", "gpipe", "flat"] = "interleaved", fold: bool = True,
) -> TaskGraph:  # fmt: skip
    """The training step of a workload on its ranks, which are the first nodes of the world.

    `schedule` puts the micro-batches of the file through its pipeline stages; "flat" runs the rows
    as SimAI does, all forward and then all backward, each stage for itself. Collectives of the
    forward pass and the input gradient hold up what follows; those of the weight gradient do not.
    With `fold`, ranks that behave alike are folded; the world says whose links differ.

    Differs from SimAI: the pipeline is scheduled here, where SimAI adds a bubble by formula; the
    embedding is on the first stage and the output on the last, where the file has both; update
    times after a collective are left out.
    """
    if world is not None and world.size < workload.gpus:
        raise GraphError("world", f"has {world.size} nodes for {workload.gpus} GPUs",
                         "give a larger world")  # fmt: skip
    grid = np.arange(workload.gpus).reshape(workload.pp, workload.dp, workload.tp)
    rows = _groups(workload, grid)
    linear = schedule == "flat"
    programs = [_program(workload, stage, schedule) for stage in range(workload.pp)]
    if fold:
        colour = _classes(workload, grid, rows, world, linear)
    else:
        colour = np.arange(workload.gpus)
    return _graph(workload, grid, rows, colour, programs, fold)


def _groups(workload: AicbWorkload, grid: Ints) -> dict[str, Ints]:
    """The ranks of every group, a row each, by kind."""
    pp, dp, tp = grid.shape
    blocks = grid.reshape(pp, dp // workload.ep, workload.ep, tp)
    return {
        "tp": grid.reshape(-1, tp),
        "dp": grid.transpose(0, 2, 1).reshape(-1, dp),
        "ep": blocks.transpose(0, 1, 3, 2).reshape(-1, workload.ep),
        "dp_ep": blocks.transpose(0, 2, 3, 1).reshape(-1, dp // workload.ep),
    }


# -- folding


def _classes(
    workload: AicbWorkload, grid: Ints, rows: dict[str, Ints], world: World | None, linear: bool
) -> Ints:
    """The class of every rank: refined until the groups of equal ranks have equal members."""
    count = grid.size
    island = 1
    marks = [np.zeros(count) if linear else np.repeat(np.arange(workload.pp), grid[0].size)]
    if world is not None:
        wiring = world.wiring()
        capacity = wiring.capacity_Bps
        marks += [capacity[0 : 2 * count : 2], capacity[1 : 2 * count : 2]]
        if isinstance(wiring, IslandWiring):
            island = wiring.island
            first = 2 * world.size
            marks += [capacity[first : first + 2 * count : 2]]
    colour = _numbered(np.stack(marks, axis=1))
    shapes = {name: _numbered(each // island - each[:, :1] // island) for name, each in
              rows.items()}  # fmt: skip
    while True:
        marks = [colour]
        for name, each in rows.items():
            inside = np.sort(colour[each], axis=1)
            look = _numbered(np.concatenate([inside, shapes[name][:, None]], axis=1))
            mine = np.empty(count, np.int64)
            mine[each] = look[:, None]
            marks.append(mine)
        if not linear:
            along = colour[grid]
            marks += [np.roll(along, -1, axis=0).reshape(-1), np.roll(along, 1, axis=0).reshape(-1)]
        refined = _numbered(np.stack(marks, axis=1))
        if refined.max() == colour.max():
            return refined
        colour = refined


def _numbered(rows: Any) -> Ints:
    """Equal rows get equal numbers, in the order of their first row."""
    _, first, number = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    order = np.empty(len(first), np.int64)
    order[np.argsort(first)] = np.arange(len(first))
    return order[number.reshape(-1)]


def _graph(
    workload: AicbWorkload, grid: Ints, rows: dict[str, Ints], colour: Ints,
    programs: list[Program], fold: bool,
) -> TaskGraph:  # fmt: skip
    classes = int(colour.max()) + 1
    rep = np.unique(colour, return_index=True)[1]
    own = {}
    for name, each in rows.items():
        own[name] = np.empty(grid.size, np.int64)
        own[name][each] = np.arange(len(each))[:, None]
    groups: list[tuple[int, ...]] = []
    nodes: list[tuple[int, ...]] = []
    names: list[str] = []
    table = np.zeros((classes, len(GROUPS)), np.int64)
    known: dict[tuple[Any, ...], int] = {}
    for one in range(classes):
        for slot, name in enumerate(GROUPS):
            members = rows[name][own[name][rep[one]]]
            inside = colour[members]
            key = (name, *np.sort(inside).tolist())
            if key not in known:
                known[key] = len(groups)
                groups.append(tuple(dict.fromkeys(inside.tolist())))
                nodes.append(tuple(members.tolist()))
                names.append(f"{name} {members[0]}")
            table[one, slot] = known[key]
    stages = rep // grid[0].size
    along = grid.reshape(grid.shape[0], -1)
    place = rep % grid[0].size
    peers = np.stack([colour[along[(stages + 1) % len(along), place]],
                      colour[along[(stages - 1) % len(along), place]]], axis=1)  # fmt: skip
    tiles = [
        Tile(program, np.flatnonzero(stages == stage), table[stages == stage],
             peers[stages == stage])
        for stage, program in enumerate(programs)
    ]  # fmt: skip
    more: dict[str, Any] = {}
    if fold:
        more = {"group_nodes": tuple(nodes), "node_class": colour}
    return tile(
        tiles, ranks=classes, groups=tuple(groups), group_names=tuple(names),
        weight=np.bincount(colour), node=rep, source=workload.source, **more,
    )  # fmt: skip


# -- what a stage does


class _Rank:
    """Writes the program of a rank: one thing after the other, but for messages and gradients."""

    def __init__(self, workload: AicbWorkload) -> None:
        self.workload = workload
        self.program = Program()
        self.last: list[int] = []

    def forward(self, rows: range) -> None:
        for row in rows:
            self._work(row, FORWARD)

    def backward(self, rows: range) -> None:
        for row in reversed(rows):
            self._work(row, INPUT_GRAD)
            self._work(row, WEIGHT_GRAD)

    def _work(self, row: int, phase: int) -> None:
        workload, program = self.workload, self.program
        took_ns = int(workload.compute_ns[row, phase])
        if took_ns > NO_WORK_NS:
            self.last = [program.compute(took_ns / 1e9, name=workload.name[row], stream=FREE,
                                         after=self.last)]  # fmt: skip
        op, size_B = workload.collective[row][phase], float(workload.size_B[row, phase])
        slot = GROUPS.index(workload.group[row][phase]) if op else 0
        if not op or not size_B:
            return
        waits = phase != WEIGHT_GRAD
        call = program.collective(op, slot, size_B, name=workload.name[row], after=self.last,
                                  stream=FREE if waits else SIDE)  # fmt: skip
        if waits:
            self.last = [call]

    def receive(self, slot: int, tag: int) -> None:
        size_B = self.workload.pp_comm_B
        self.last = [self.program.recv(slot, size_B, tag=tag, name="pp", after=self.last)]

    def send(self, slot: int, tag: int) -> None:
        size_B = self.workload.pp_comm_B
        self.program.send(slot, size_B, tag=tag, name="pp", after=self.last)


def _program(workload: AicbWorkload, stage: int, schedule: str) -> Program:
    rank = _Rank(workload)
    everything = range(len(workload))
    if schedule == "flat":
        rank.forward(everything)
        rank.backward(everything)
        return rank.program
    if schedule not in SCHEDULES:
        raise GraphError("schedule", f"{schedule!r:.40} is unknown", f"one of {[*SCHEDULES]}, flat")
    chunks = workload.vpp if schedule == "interleaved" else 1
    head, batches, tail = _batches(workload)
    pp = workload.pp
    final = pp * chunks - 1
    for step in SCHEDULES[schedule](stage, pp, workload.micro_batches, chunks):
        forward = step.direction == "F"
        where = step.chunk * pp + stage
        tag = 2 * (step.micro_batch * (final + 2)) + (0 if forward else 1)
        if pp > 1 and (where > 0 if forward else where < final):
            rank.receive(PREVIOUS if forward else NEXT, tag + 2 * (where + (not forward)))
        rows = _chunk(workload, batches[step.micro_batch], step.chunk, chunks, where, final)
        if forward:
            rank.forward(rows)
        else:
            rank.backward(rows)
        if pp > 1 and (where < final if forward else where > 0):
            rank.send(NEXT if forward else PREVIOUS, tag + 2 * (where + forward))
    rank.forward(tail)
    rank.backward(head)
    return rank.program


def _batches(workload: AicbWorkload) -> tuple[range, list[range], range]:
    """(rows before the micro-batches, those of each, rows after them)."""
    starts = [i for i, name in enumerate(workload.name) if name.startswith("embedding_layer")]
    count = workload.micro_batches
    lengths = {b - a for a, b in itertools.pairwise(starts)}
    if len(starts) != count or len(lengths) > 1:
        raise GraphError("schedule", f"{len(starts)} embedding rows for {count} micro-batches",
                         'use schedule="flat" for this file')  # fmt: skip
    length = lengths.pop() if lengths else _length_of_one(workload, starts[0])
    end = starts[-1] + length
    batches = [range(start, start + length) for start in starts]
    return range(starts[0]), batches, range(min(end, len(workload)), len(workload))


def _length_of_one(workload: AicbWorkload, start: int) -> int:
    """A single micro-batch ends with the output layer, or with the file."""
    final = [i for i, name in enumerate(workload.name) if name.startswith("final")]
    return (final[0] + 1 if final else len(workload)) - start


def _chunk(
    workload: AicbWorkload, batch: range, chunk: int, chunks: int, where: int, final: int
) -> range:
    """The rows of a chunk; the embedding goes to the first chunk of all, the output to the last."""
    first = batch[0] + 1
    last = batch[-1] + 1
    if workload.name[last - 1].startswith("final"):
        last -= 1
    if (last - first) % chunks:
        raise GraphError("schedule", f"{last - first} rows do not split into {chunks} chunks",
                         'use schedule="1f1b"')  # fmt: skip
    size = (last - first) // chunks
    start, stop = first + chunk * size, first + (chunk + 1) * size
    if where == 0:
        start -= 1
    if where == final:
        stop = batch[-1] + 1
    return range(start, stop)
