"""A training step of a transformer from a description of its parallelism.

Ranks are numbered tensor-parallel first, then data-parallel, then by pipeline stage (the order of
Megatron-LM); expert-parallel groups are neighbours along the data-parallel axis. Bytes follow
Shoeybi et al. (2019) and Narayanan et al. (2021): four all-reduces of the activations for each
layer and micro-batch among tensor-parallel ranks, activations and their gradients between stages,
one all-reduce of the gradients among replicas, and for experts four all-to-alls.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import numpy as np

from orrery.models.taskgraph.graph import MAIN, SIDE, GraphError, TaskGraph
from orrery.models.taskgraph.schedules import SCHEDULES, Step
from orrery.models.taskgraph.tiling import Program, Tile, tile

TP, DP, EP, DP_EP = range(4)
NEXT, PREVIOUS = 0, 1


class TransformerJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A transformer and how its training is spread.

    `micro_batch` is in sequences; `dtype_B` are the bytes of an activation, `grad_B` those of a
    gradient. With `experts` > 0 every layer's MLP is a mixture of so many, `top_k` of them for each
    token, spread over `ep` ranks. `layer_s`, if given, is the forward time of one layer on one
    rank (the backward pass takes twice that); else the world's roofline decides by flops and bytes.
    """

    layers: int = 8
    hidden: int = 1024
    sequence: int = 1024
    vocabulary: int = 32000
    dp: int = 1
    tp: int = 1
    pp: int = 1
    ep: int = 1
    experts: int = 0
    top_k: int = 2
    micro_batches: int = 1
    micro_batch: int = 1
    chunks: int = 1
    schedule: Literal["gpipe", "1f1b", "interleaved"] = "1f1b"
    dtype_B: int = 2
    grad_B: int = 4
    layer_s: float | None = None

    def check(self) -> None:
        """Refuse a description that does not add up, with the fix."""
        for name in ("layers", "hidden", "sequence", "vocabulary", "dp", "tp", "pp", "ep", "top_k",
                     "micro_batches", "micro_batch", "chunks", "dtype_B", "grad_B"):  # fmt: skip
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise GraphError(f"job.{name}", f"{value!r:.40} is refused", "give at least 1")
        if self.layers % (self.pp * self.chunks):
            raise GraphError("job.layers", f"{self.layers} do not split over {self.pp} stages x "
                             f"{self.chunks} chunks", "give a multiple")  # fmt: skip
        if self.hidden % self.tp:
            raise GraphError("job.tp", f"{self.tp} does not divide hidden = {self.hidden}",
                             "give a divisor")  # fmt: skip
        if self.ep > 1 and not self.experts:
            raise GraphError("job.ep", f"{self.ep} with no experts", "set experts")
        if self.experts and (self.dp % self.ep or self.experts % self.ep):
            raise GraphError("job.ep", f"{self.ep} must divide dp = {self.dp} and experts = "
                             f"{self.experts}", "give a divisor of both")  # fmt: skip
        if self.schedule not in SCHEDULES:
            raise GraphError("job.schedule", f"{self.schedule!r:.40}", f"one of {[*SCHEDULES]}")
        if self.layer_s is not None and not self.layer_s >= 0:
            raise GraphError("job.layer_s", f"{self.layer_s!r:.40}", "give seconds >= 0")

    @property
    def ranks(self) -> int:
        """How many ranks take part."""
        return self.dp * self.tp * self.pp

    @property
    def activation_B(self) -> int:
        """Bytes of one micro-batch between two layers."""
        return self.micro_batch * self.sequence * self.hidden * self.dtype_B

    def parameters(self, stage: int) -> tuple[int, int]:
        """(dense, of experts) parameters that one rank of a stage holds."""
        h, t = self.hidden, self.tp
        layers = self.layers // self.pp
        # Attention 4 h^2 + 4 h, MLP 8 h^2 + 5 h, two norms of 2 h; what tensor parallelism splits
        # is rounded up, as frameworks pad.
        attention = -(-(4 * h * h + 3 * h) // t) + h + 4 * h
        mlp = -(-(8 * h * h + 4 * h) // t) + h
        dense = layers * attention
        expert = 0
        if self.experts:
            dense += layers * h * self.experts  # the router
            expert = layers * (self.experts // self.ep) * mlp
        else:
            dense += layers * mlp
        if stage == 0:
            dense += -(-self.vocabulary * h // t) + self.sequence * h
        if stage == self.pp - 1:
            dense += -(-self.vocabulary * h // t) + 2 * h
        return dense, expert


def rank_of(job: TransformerJob, stage: int, replica: int, shard: int) -> int:
    """The rank of a place in the grid."""
    return shard + job.tp * (replica + job.dp * stage)


def transformer_step(job: TransformerJob) -> TaskGraph:
    """One training step of the job, as a graph.

    >>> transformer_step(TransformerJob(layers=2, hidden=64, sequence=8, dp=2)).ranks
    2
    """
    job.check()
    grid = np.arange(job.ranks).reshape(job.pp, job.dp, job.tp)
    groups: list[tuple[int, ...]] = []
    names: list[str] = []
    table = np.zeros((job.ranks, 4), np.int64)
    blocks = grid.reshape(job.pp, job.dp // job.ep, job.ep, job.tp)
    kinds = (
        ("tp", TP, grid.reshape(-1, job.tp)),
        ("dp", DP, grid.transpose(0, 2, 1).reshape(-1, job.dp)),
        ("ep", EP, blocks.transpose(0, 1, 3, 2).reshape(-1, job.ep)),
        ("dp_ep", DP_EP, blocks.transpose(0, 2, 3, 1).reshape(-1, job.dp // job.ep)),
    )
    for name, slot, rows in kinds:
        for row in rows:
            table[row, slot] = len(groups)
            groups.append(tuple(row.tolist()))
            names.append(f"{name} {row[0]}")
    tiles = []
    for stage in range(job.pp):
        ranks = grid[stage].reshape(-1)
        peers = np.stack([grid[(stage + 1) % job.pp].reshape(-1),
                          grid[(stage - 1) % job.pp].reshape(-1)], axis=1)  # fmt: skip
        tiles.append(Tile(stage_program(job, stage), ranks, table[ranks], peers))
    return tile(tiles, ranks=job.ranks, groups=tuple(groups), group_names=tuple(names),
                source=f"{job}")  # fmt: skip


def stage_program(job: TransformerJob, stage: int) -> Program:
    """What every rank of a stage does in one step."""
    program = Program()
    schedule = SCHEDULES[job.schedule]
    last: list[int] = []
    for step in schedule(stage, job.pp, job.micro_batches, job.chunks):
        last = _pass(job, program, stage, step)
    dense, expert = job.parameters(stage)
    if job.dp > 1:
        program.collective("all_reduce", DP, dense * job.grad_B, name="grads", after=last)
    if expert and job.dp > job.ep:
        program.collective("all_reduce", DP_EP, expert * job.grad_B, name="expert grads",
                           after=last)  # fmt: skip
    return program


def _pass(job: TransformerJob, program: Program, stage: int, step: Step) -> list[int]:
    """One pass: take what comes in, work through the layers, send on."""
    forward = step.direction == "F"
    where = step.chunk * job.pp + stage  # the place of this chunk among all chunks
    final = job.pp * job.chunks - 1
    comes = where > 0 if forward else where < final
    goes = where < final if forward else where > 0
    after: list[int] = []
    # The tag names the pass and the boundary, so that messages of two chunks never mix.
    tag = 2 * (step.micro_batch * job.chunks * job.pp) + (0 if forward else 1)
    if comes and job.pp > 1:
        boundary = where if forward else where + 1
        slot = PREVIOUS if forward else NEXT
        after = [program.recv(slot, job.activation_B, tag=tag + 2 * boundary,
                              name=f"recv {step.direction}{step.micro_batch}")]  # fmt: skip
    for layer in range(job.layers // (job.pp * job.chunks)):
        after = _layer(job, program, step, layer, forward, after)
    if where == final:
        after = _head(job, program, step, after)
    if goes and job.pp > 1:
        boundary = where + 1 if forward else where
        slot = NEXT if forward else PREVIOUS
        program.send(slot, job.activation_B, tag=tag + 2 * boundary, after=after,
                     name=f"send {step.direction}{step.micro_batch}")  # fmt: skip
    return after


def _layer(
    job: TransformerJob, program: Program, step: Step, layer: int, forward: bool, after: list[int]
) -> list[int]:
    h, t = job.hidden, job.tp
    tokens = job.micro_batch * job.sequence
    times = 1 if forward else 2
    label = f"{step.direction}{step.micro_batch}.{step.chunk} layer {layer}"
    # Attention: 8 h^2 flops a token in its matrices and 4 s h in scores; the MLP: 16 h^2.
    attention = times * tokens * (8 * h * h + 4 * job.sequence * h) / t
    mlp = times * tokens * 16 * h * h * (job.top_k if job.experts else 1) / t
    for part, flops, weights in (("attention", attention, 4), ("mlp", mlp, 8)):
        if part == "mlp" and job.experts and job.ep > 1:
            after = [_exchange(job, program, label, after)]
        program_bytes = times * (weights * h * h / t + 4 * tokens * h) * job.dtype_B
        duration: dict[str, Any] = {"flops": flops, "bytes": program_bytes}
        if job.layer_s is not None:
            share = flops / (attention + mlp)
            duration = {"duration_s": times * job.layer_s * share}
        after = [program.compute(name=f"{part} {label}", stream=MAIN, after=after, **duration)]
        if part == "mlp" and job.experts and job.ep > 1:
            after = [_exchange(job, program, label, after)]
        if job.tp > 1:
            after = [program.collective("all_reduce", TP, job.activation_B, stream=SIDE,
                                        name=f"tp {part} {label}", after=after)]  # fmt: skip
    return after


def _exchange(job: TransformerJob, program: Program, label: str, after: list[int]) -> int:
    size_B = job.activation_B * job.top_k
    return program.collective("all_to_all", EP, size_B, stream=SIDE, name=f"experts {label}",
                              after=after)  # fmt: skip


def _head(job: TransformerJob, program: Program, step: Step, after: list[int]) -> list[int]:
    """The output layer, on the last chunk only."""
    times = 1 if step.direction == "F" else 2
    tokens = job.micro_batch * job.sequence
    flops = times * 2 * tokens * job.hidden * job.vocabulary / job.tp
    nbytes = times * job.hidden * job.vocabulary / job.tp * job.dtype_B
    if job.layer_s is not None:
        per_layer = tokens * (24 * job.hidden**2 + 4 * job.sequence * job.hidden) / job.tp
        known: dict[str, Any] = {"duration_s": job.layer_s * flops / per_layer}
    else:
        known = {"flops": flops, "bytes": nbytes}
    name = f"head {step.direction}{step.micro_batch}"
    return [program.compute(name=name, stream=MAIN, after=after, **known)]


def collective_bytes(job: TransformerJob) -> dict[str, float]:
    """Bytes of all collectives of a step, by group, as closed formulas (no graph is made)."""
    per_call = job.activation_B
    calls = 4 * job.layers * job.micro_batches * job.dp
    found = {"tp": float(calls * per_call) if job.tp > 1 else 0.0, "dp": 0.0, "ep": 0.0}
    for stage in range(job.pp):
        dense, expert = job.parameters(stage)
        if job.dp > 1:
            found["dp"] += float(job.tp * dense * job.grad_B)
        if expert and job.dp > job.ep:
            found["dp"] += float(job.tp * job.ep * expert * job.grad_B)
    if job.experts and job.ep > 1:
        exchanges = 4 * job.layers * job.micro_batches * job.tp * job.dp // job.ep
        found["ep"] = float(exchanges * per_call * job.top_k)
    boundaries = job.pp * job.chunks - 1 if job.pp > 1 else 0
    found["pp"] = float(2 * boundaries * job.micro_batches * job.dp * job.tp * per_call)
    return found
