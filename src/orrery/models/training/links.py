"""The ranks of a plan on the nodes of a world: groups, links with their efficiency, classes.

Ranks are numbered tensor parallel first, then context, data, and by stage last (the order of
Megatron-LM); rank r is node r. Ranks that do the same on links that are alike, with groups and
neighbours that are alike in turn, end at the same times: one rank of each such class is run. They
are found by colour refinement, as for workload files.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from orrery.base.errors import SpecError
from orrery.models.device import Device
from orrery.models.taskgraph.network import RING_STEPS, Costs
from orrery.models.training.efficiency import TrainingEfficiency
from orrery.models.training.plan import TrainingPlan
from orrery.world import Slow, World
from orrery.world.wiring import IslandWiring, Wiring

Ints = npt.NDArray[np.int64]
SLOTS = ("tp", "cp", "ep", "dp", "dp_ep", "ends")
NEXT, PREVIOUS = 0, 1


class LinkCosts(Costs):
    """The costs of messages in a world whose links reach a share of their data sheet."""

    def __init__(self, world: World, efficiency: TrainingEfficiency) -> None:
        super().__init__(world)
        self.share = efficiency
        near = 2 * world.size
        inside = isinstance(self.wiring, IslandWiring)
        scale = np.full(len(self.capacity_Bps), efficiency.network)
        if inside:
            scale[near:] = efficiency.link
        self.capacity_Bps = self.capacity_Bps * scale

    def parts(self, op: str, nodes: tuple[int, ...], size_B: float) -> tuple[float, float, float]:
        """(latency, what rings add to it, seconds of the bytes) of a collective alone."""
        load = self.collective(op, nodes, size_B)
        steps = RING_STEPS.get(op, 1) * (len(nodes) - 1) if op in RING_STEPS else 1
        beta_s = load.alone_s(self.capacity_Bps) - load.alpha_s
        return load.alpha_s, steps * self.share.hop_s if len(nodes) > 1 else 0.0, beta_s


class Ranks:
    """The ranks of a plan in a world: who is with whom, and how fast each is."""

    def __init__(self, plan: TrainingPlan, world: World) -> None:
        plan.check_devices(_devices(world))
        self.plan, self.world = plan, world
        count = plan.devices
        self.grid = np.arange(count).reshape(plan.pp, plan.dp, plan.cp, plan.tp)
        self.rows = self._groups()
        self.slow = slow_factors(world, count)
        self.device_of = [_device(world, node) for node in range(count)]
        kinds = list(dict.fromkeys(each.accelerator for each in self.device_of))
        self.kind = np.array([kinds.index(each.accelerator) for each in self.device_of])
        self.stage = np.repeat(np.arange(plan.pp), count // plan.pp)

    def _groups(self) -> dict[str, Ints]:
        plan, grid = self.plan, self.grid
        across = max(plan.ep, plan.tp)
        flat = grid.reshape(plan.pp, -1, across)
        ends = np.stack([grid[0].reshape(-1), grid[-1].reshape(-1)], axis=1)
        middle = grid[1:-1].reshape(-1, 1)
        found = {
            "tp": grid.reshape(-1, plan.tp),
            "cp": grid.transpose(0, 1, 3, 2).reshape(-1, plan.cp),
            "ep": flat.reshape(-1, across),
            "dp": grid.reshape(plan.pp, -1, plan.tp).transpose(0, 2, 1).reshape(
                -1, plan.dp * plan.cp),
            "dp_ep": flat.transpose(0, 2, 1).reshape(-1, flat.shape[1]),
        }  # fmt: skip
        # Only the first and the last stage share the embedding; others stand alone in this slot.
        self.alone = middle
        found["ends"] = ends if plan.pp > 1 else grid.reshape(-1, 1)
        return found

    def members(self, slot: str, rank: int) -> tuple[int, ...]:
        """The ranks of a rank's group, in ring order."""
        rows = self.rows[slot]
        found = np.flatnonzero((rows == rank).any(axis=1))
        return tuple(rows[found[0]].tolist()) if found.size else (rank,)

    def classes(self, fold: bool) -> Ints:
        """The class of each rank; without folding, each is its own."""
        count = self.plan.devices
        if not fold:
            return np.arange(count)
        wiring = self.world.wiring()
        capacity = wiring.capacity_Bps
        marks = [self.stage, self.slow, self.kind, capacity[0 : 2 * count : 2],
                 capacity[1 : 2 * count : 2]]  # fmt: skip
        island = 1
        if isinstance(wiring, IslandWiring):
            island, first = wiring.island, 2 * self.world.size
            marks.append(capacity[first : first + 2 * count : 2])
        colour = _numbered(np.stack(marks, axis=1))
        shapes = {
            name: _numbered(rows // island - rows[:, :1] // island)
            for name, rows in self.rows.items()
        }
        along = self.grid.reshape(self.plan.pp, -1)
        while True:
            looks = [colour, *self._looks(colour, shapes)]
            by_stage = colour[along]
            looks += [np.roll(by_stage, -1, axis=0).reshape(-1),
                      np.roll(by_stage, 1, axis=0).reshape(-1)]  # fmt: skip
            refined = _numbered(np.stack(looks, axis=1))
            if refined.max() == colour.max():
                return refined
            colour = refined

    def _looks(self, colour: Ints, shapes: dict[str, Ints]) -> list[Ints]:
        found = []
        for name, rows in self.rows.items():
            inside = np.sort(colour[rows], axis=1)
            look = _numbered(np.concatenate([inside, shapes[name][:, None]], axis=1))
            mine = np.full(self.plan.devices, -1)
            mine[rows] = look[:, None]
            found.append(mine)
        return found


def foldable(world: World) -> bool:
    """Whether ranks may be folded: links that belong to one node each."""
    return type(world.wiring()) in (Wiring, IslandWiring)


def slow_factors(world: World, count: int) -> npt.NDArray[np.float64]:
    """By how much computing is slower on each node, by the `Slow` faults of the world."""
    factors = np.ones(count)
    for fault in world.faults:
        if not isinstance(fault, Slow):
            continue
        if not isinstance(fault.node, int | tuple):
            raise SpecError("Slow.node", f"{fault.node!r} is refused", "name the slow ranks")
        nodes = (fault.node,) if isinstance(fault.node, int) else fault.node
        for node in nodes:
            if node < count:
                factors[node] *= fault.factor
    return factors


def _devices(world: World) -> int:
    most = max(len(machine.accelerators) for machine in world.machines.values())
    if most > 1:
        fix = "give one rank for each device, such as worlds.a100_pod(8, rank_per_gpu=True)"
        raise SpecError("world.machines", f"a machine has {most} accelerators", fix)
    return world.size


def _device(world: World, node: int) -> Device:
    machine = world.machine_of(node)
    if not machine.accelerators:
        fix = "give machines with one, such as those of worlds.h100_pod(8, rank_per_gpu=True)"
        raise SpecError("world.machines", f"node {node} has no accelerator", fix)
    return Device(machine.accelerators[0])


def _numbered(rows: Any) -> Ints:
    """Equal rows get equal numbers, in the order of their first row."""
    _, first, number = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    order = np.empty(len(first), np.int64)
    order[np.argsort(first)] = np.arange(len(first))
    return order[number.reshape(-1)]


__all__ = ["NEXT", "PREVIOUS", "SLOTS", "LinkCosts", "Ranks", "foldable", "slow_factors"]
