"""One training step as a task graph: the passes of the schedule on the links of a world.

Each pass is one task of compute, followed by its messages over each group (tensor, context,
expert) with all their bytes at once; what the single calls cost besides their bytes is added to the
compute. Activations travel between stages, gradients between replicas, and the optimiser comes
last. The executor shares links where messages meet.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from orrery.models.ops import Op
from orrery.models.specs import WEIGHT_B, ModelSpec
from orrery.models.taskgraph.graph import FREE, MAIN, SIDE, TaskGraph
from orrery.models.taskgraph.schedules import Step
from orrery.models.taskgraph.tiling import Program, Tile, tile
from orrery.models.training import work
from orrery.models.training.efficiency import TrainingEfficiency
from orrery.models.training.links import NEXT, PREVIOUS, SLOTS, LinkCosts, Ranks
from orrery.models.training.plan import TrainingPlan

# Into so many buckets the last backward pass hands over its gradients, where these overlap.
BUCKETS = 8


class Pass(msgspec.Struct, frozen=True):
    """One pass of a chunk: seconds of its kernels, seconds of its calls, bytes by group."""

    kernels_s: float
    calls_s: float
    messages: tuple[tuple[str, str, float], ...]
    links_s: float  # what the bytes take on the links alone

    @property
    def seconds(self) -> float:
        """The pass alone on its links."""
        return self.kernels_s + self.calls_s + self.links_s


class StepGraph:
    """Makes the graph of one step of a plan in a world."""

    def __init__(
        self, model: ModelSpec, plan: TrainingPlan, ranks: Ranks, costs: LinkCosts,
        efficiency: TrainingEfficiency,
    ) -> None:  # fmt: skip
        self.model, self.plan, self.ranks = model, plan, ranks
        self.costs, self.efficiency = costs, efficiency
        self.split = plan.schedule == "zero_bubble"
        self._passes: dict[tuple[Any, ...], Pass] = {}
        self._at: dict[tuple[Any, ...], Pass] = {}
        # A rank sends its share of the tensor group's activations to the next stage. Without
        # sequence parallelism the receivers gather the shares (Narayanan et al., 2021).
        row_B = plan.tokens(model) * model.hidden * WEIGHT_B[model.dtype]
        self.sent_B = row_B / plan.tp

    # -- what a pass costs

    def cost(self, direction: str, stage: int, chunk: int, rank: int) -> Pass:
        """The cost of a pass on a rank's device, as fast as the device is when healthy."""
        at = (direction, stage, chunk, rank)
        if at not in self._at:
            self._at[at] = self._like(direction, stage, chunk, rank)
        return self._at[at]

    def _like(self, direction: str, stage: int, chunk: int, rank: int) -> Pass:
        """The same for all passes of as many layers of each kind, with the same ends."""
        plan, model = self.plan, self.model
        ends = (stage == 0 and chunk == 0, stage == plan.pp - 1 and chunk == plan.chunks - 1)
        key = (direction, *plan.kinds(model, stage, chunk), *ends, int(self.ranks.kind[rank]))
        found = self._passes.get(key)
        if found is None:
            if direction == "F":
                done = work.forward(model, plan, stage, chunk)
            else:
                part = "weight" if direction == "W" else ("input" if self.split else "B")
                done = work.backward(model, plan, stage, chunk, part)
            found = self._passes[key] = self._price(done, rank)
        return found

    def _price(self, done: work.Work, rank: int) -> Pass:
        device = self.ranks.device_of[rank]
        kernels_s = self.efficiency.total_s(done.kernels, device)
        cover_s = self.efficiency.total_s(
            [each for each in done.kernels if work.of_weights(each.op)], device
        )
        calls_s = links_s = 0.0
        total: dict[tuple[str, str], float] = {}
        # What the gradients of weights do not cover of the messages beside them is left over.
        beside_s = sum(self._alone_s(each, rank) for each in done.hidden)
        left = max(0.0, 1.0 - cover_s / beside_s) if beside_s else 0.0
        known = [(each, 1.0) for each in done.messages] + [(each, left) for each in done.hidden]
        for (slot, op, size_B, count), share in known:
            nodes = self.ranks.members(slot, rank)
            if len(nodes) == 1 or not share:
                continue
            alpha_s, hop_s, beta_s = self.costs.parts(op, nodes, size_B)
            calls_s += (alpha_s + hop_s) * count * share
            links_s += beta_s * count * share
            if (slot, op) not in total:
                calls_s -= alpha_s  # the executor counts it once
            total[slot, op] = total.get((slot, op), 0.0) + size_B * count * share
        messages = tuple((slot, op, size_B) for (slot, op), size_B in total.items())
        return Pass(kernels_s, max(calls_s, 0.0), messages, links_s)

    def _alone_s(self, message: work.Message, rank: int) -> float:
        nodes = self.ranks.members(message.slot, rank)
        if len(nodes) == 1:
            return 0.0
        return sum(self.costs.parts(message.op, nodes, message.size_B)) * message.calls

    def update_s(self, stage: int, rank: int) -> float:
        """The update of the weights by the optimiser, on a device of a stage."""
        plan, model = self.plan, self.model
        params = work.params_of(model, plan, stage)
        own = dense = params["layers"] + params["ends"]
        if plan.sharded_optimizer:
            own = dense / (plan.dp * plan.cp) + params["experts"] / len(self._expert_group(rank))
        else:
            own = dense + params["experts"]
        moved_B = own * work.optimiser_bytes(plan, model)
        op = Op("optimiser", plan.optimizer, read_B=moved_B, dtype="fp32")
        return self.efficiency.seconds(op, self.ranks.device_of[rank])

    def _expert_group(self, rank: int) -> tuple[int, ...]:
        return self.ranks.members("dp_ep", rank)

    # -- the program of a rank

    def program(self, stage: int, rank: int) -> Program:
        """What the ranks of a stage do that are as fast as this one."""
        plan, program = self.plan, Program()
        steps = plan.steps(stage)
        final = {step.chunk: step for step in steps if step.direction == ("W" if self.split
                                                                           else "B")}  # fmt: skip
        exchanges: list[int] = []
        last: list[int] = []
        for step in steps:
            closing = final.get(step.chunk) == step
            last, made = self._pass(program, stage, rank, step, closing)
            exchanges += made
        self._finish(program, stage, rank, last, exchanges)
        return program

    def _pass(
        self, program: Program, stage: int, rank: int, step: Step, closing: bool
    ) -> tuple[list[int], list[int]]:
        plan = self.plan
        cost = self.cost(step.direction, stage, step.chunk, rank)
        forward, where = step.direction == "F", step.chunk * plan.pp + stage
        end = plan.pp * plan.chunks - 1
        tag = 2 * step.micro_batch * (end + 2) + (0 if forward else 1)
        after: list[int] = []
        if plan.pp > 1 and step.direction != "W" and (where > 0 if forward else where < end):
            after = self._receive(program, step, forward, tag + 2 * (where + (not forward)))
        pieces = self._pieces(stage, step.chunk) if closing else 1
        exchanges: list[int] = []
        for _ in range(pieces):
            after = self._work(program, cost, rank, step, after, pieces)
            if closing and plan.overlap_gradients:
                exchanges += self._exchange(program, stage, step.chunk, after, pieces)
        if plan.pp > 1 and step.direction != "W" and (where < end if forward else where > 0):
            slot = NEXT if forward else PREVIOUS
            stream = FREE if plan.overlap_sends else MAIN
            program.send(slot, self.sent_B, tag=tag + 2 * (where + forward), after=after,
                         stream=stream, name=f"send {step.direction}")  # fmt: skip
        return after, exchanges

    def _receive(self, program: Program, step: Step, forward: bool, tag: int) -> list[int]:
        slot = PREVIOUS if forward else NEXT
        got = program.recv(slot, self.sent_B, tag=tag, name=f"recv {step.direction}")
        if self.plan.tp == 1 or self.plan.sequence_parallel:
            return [got]
        size_B = self.sent_B * self.plan.tp
        return [program.collective("all_gather", SLOTS.index("tp"), size_B, name="gather",
                                   stream=MAIN, after=[got])]  # fmt: skip

    def _work(
        self, program: Program, cost: Pass, rank: int, step: Step, after: list[int], pieces: int
    ) -> list[int]:
        seconds = cost.kernels_s * float(self.ranks.slow[rank]) + cost.calls_s
        name = f"{step.direction} {step.chunk}"
        after = [program.compute(seconds / pieces, name=name, after=after)]
        for slot, op, size_B in cost.messages:
            after = [program.collective(op, SLOTS.index(slot), size_B / pieces, stream=MAIN,
                                        name=slot, after=after)]  # fmt: skip
        return after

    def _pieces(self, stage: int, chunk: int) -> int:
        plan = self.plan
        alone = plan.dp * plan.cp == 1 or not plan.overlap_gradients
        return 1 if alone else max(1, min(BUCKETS, sum(plan.kinds(self.model, stage, chunk))))

    # -- gradients and the update

    def _gradients(self, stage: int) -> dict[str, float]:
        """Bytes of gradients by the slot of those who share them."""
        params = work.params_of(self.model, self.plan, stage)
        wide = WEIGHT_B[self.plan.gradient_dtype]
        found = {"dp": (params["layers"] + params["ends"]) * wide,
                 "dp_ep": params["experts"] * wide}  # fmt: skip
        return {slot: size_B for slot, size_B in found.items() if size_B and self._wide(slot) > 1}

    def _wide(self, slot: str) -> int:
        return int(self.ranks.rows[slot].shape[1])

    def _exchange(
        self, program: Program, stage: int, chunk: int, after: list[int], pieces: int
    ) -> list[int]:
        op = "reduce_scatter" if self.plan.sharded_optimizer else "all_reduce"
        parts = pieces * self.plan.chunks if chunk >= 0 else 1
        return [
            program.collective(op, SLOTS.index(slot), size_B / parts, stream=SIDE,
                               name="gradients", after=after)
            for slot, size_B in self._gradients(stage).items()
        ]  # fmt: skip

    def _finish(
        self, program: Program, stage: int, rank: int, last: list[int], exchanges: list[int]
    ) -> None:
        plan, model = self.plan, self.model
        if not plan.overlap_gradients:
            exchanges = self._exchange(program, stage, -1, last, 1)
        if model.tied and plan.pp > 1 and stage in (0, plan.pp - 1):
            size_B = -(-model.vocab // plan.tp) * model.hidden * WEIGHT_B[plan.gradient_dtype]
            exchanges.append(program.collective(
                "all_reduce", SLOTS.index("ends"), size_B, stream=SIDE, name="embedding",
                after=last))  # fmt: skip
        seconds = self.update_s(stage, rank) * float(self.ranks.slow[rank])
        update = program.compute(seconds, name="update", after=[*last, *exchanges])
        if plan.sharded_optimizer:
            narrow, wide = WEIGHT_B[model.dtype], WEIGHT_B[plan.gradient_dtype]
            for slot, size_B in self._gradients(stage).items():
                program.collective("all_gather", SLOTS.index(slot), size_B * narrow / wide,
                                   stream=MAIN, name="weights", after=[update])  # fmt: skip

    # -- all ranks

    def graph(self, fold: bool) -> TaskGraph:
        """The graph of all ranks, or of one rank of each class of ranks that behave alike."""
        ranks, plan = self.ranks, self.plan
        colour = ranks.classes(fold)
        rep = np.unique(colour, return_index=True)[1]
        table, groups, nodes, names = self._tables(colour, rep)
        along = ranks.grid.reshape(plan.pp, -1)
        stage, place = ranks.stage[rep], rep % along.shape[1]
        peers = np.stack([colour[along[(stage + 1) % plan.pp, place]],
                          colour[along[(stage - 1) % plan.pp, place]]], axis=1)  # fmt: skip
        # Ranks of one stage that are as fast as each other share a program.
        same: dict[tuple[int, float, int], list[int]] = {}
        for one, rank in enumerate(rep.tolist()):
            key = (int(ranks.stage[rank]), float(ranks.slow[rank]), int(ranks.kind[rank]))
            same.setdefault(key, []).append(one)
        tiles = []
        for (at, _, _), members in same.items():
            mine = np.array(members)
            tiles.append(Tile(self.program(at, int(rep[mine[0]])), mine, table[mine], peers[mine]))
        more: dict[str, Any] = {}
        if fold:
            more = {"group_nodes": nodes, "node_class": self._node_class(colour)}
        return tile(
            tiles, ranks=len(rep), groups=groups, group_names=names, weight=np.bincount(colour),
            node=rep, source=self.model.name, **more,
        )  # fmt: skip

    def _node_class(self, colour: Any) -> Any:
        known = np.zeros(self.ranks.world.size, np.int64)
        known[: len(colour)] = colour
        return known

    def _tables(self, colour: Any, rep: Any) -> tuple[Any, Any, Any, Any]:
        table = np.zeros((len(rep), len(SLOTS)), np.int64)
        known: dict[tuple[Any, ...], int] = {}
        groups: list[tuple[int, ...]] = []
        nodes: list[tuple[int, ...]] = []
        names: list[str] = []
        for one, rank in enumerate(rep.tolist()):
            for slot, name in enumerate(SLOTS):
                members = np.array(self.ranks.members(name, rank))
                inside = colour[members]
                key = (name, *np.sort(inside).tolist())
                if key not in known:
                    known[key] = len(groups)
                    groups.append(tuple(dict.fromkeys(inside.tolist())))
                    nodes.append(tuple(members.tolist()))
                    names.append(f"{name} {members[0]}")
                table[one, slot] = known[key]
        return table, tuple(groups), tuple(nodes), tuple(names)


__all__ = ["Pass", "StepGraph"]
