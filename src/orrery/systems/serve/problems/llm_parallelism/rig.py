"""The hardware of a run in numbers: GPUs, links, disk, step times, and what moving costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from orrery.base.errors import KnobError, UsageError
from orrery.models.specs import spec
from orrery.models.steps import steps_for
from orrery.models.tables import data_home
from orrery.models.weights import Layout
from orrery.systems.serve.problems.llm_parallelism.plans import Placed, overlap, slice_of
from orrery.world import World
from orrery.world.hardware import Accelerator


class Rig(msgspec.Struct, frozen=True):
    """What a cluster computes with.

    gpus, per_machine   positions, and how many of them share a machine and its fast links
    memory_B            of a GPU that weights and cache may use
    link_Bps, nic_Bps   one direction of a GPU's fast link, and of its way to other machines
    disk_Bps            of a machine's disk
    steps, costs        step times by degree: for running, and for policies to look at
    weight_B            bytes of weights on a GPU, by degree
    kv_B                bytes of one token's keys and values in the whole model
    capacity            tokens of cache of an instance, by degree
    """

    gpus: int
    per_machine: int
    most_tp: int
    memory_B: float
    link_Bps: float
    nic_Bps: float
    disk_Bps: float
    steps: Mapping[int, Any]
    costs: Mapping[int, Any]
    weight_B: Mapping[int, int]
    kv_B: int
    capacity: Mapping[int, int]
    measured: bool

    def capacity_with(self, tp: int, weight_B: float) -> int:
        """Tokens that fit on instances of a degree beside so many bytes of weights on each GPU."""
        return max(int((self.memory_B - weight_B) * tp / self.kv_B), 0)

    def share(self, tp: int) -> float:
        """Bytes of weights at a degree; 0 for a GPU that has none (tp = 0)."""
        return float(self.weight_B[tp]) if tp else 0.0

    def extrapolated(self) -> int:
        """Steps beyond the measured tables, since these were read."""
        return sum(steps.extrapolated for steps in self.steps.values())

    def rate_Bps(self, a: Placed, b: Placed) -> float:
        """Between two instances: as fast as the smaller one's links are."""
        near = a.first // self.per_machine == b.first // self.per_machine
        return min(a.tp, b.tp) * (self.link_Bps if near else self.nic_Bps)

    def load_s(self, tp: int, gpus: int) -> float:
        """Seconds to read whole shards from disk onto so many GPUs of one machine.

        Each byte of the model is read once from the disk, however many GPUs want it.
        """
        whole = float(self.weight_B[tp]) * min(tp, gpus)
        return whole / self.disk_Bps + self.weight_B[tp] / self.link_Bps


def rig_of(
    world: World, model: str, tables: str, gpus: int, memory_share: float, most_tp: int
) -> Rig:
    """The rig of a world; named errors for a world without GPUs, or with too few."""
    if not world.machine_of(0).accelerators:
        raise UsageError("node 0 has no accelerator to serve on; take a world such as h200_pod:1")
    machine, device = world.machine_of(0), world.machine_of(0).accelerators[0]
    each = len(machine.accelerators)
    have = sum(len(world.machine_of(n).accelerators) for n in range(world.size))
    if gpus > have:
        problem = f"{gpus} GPUs of a world that has {have}"
        raise KnobError("LLMParallelism.gpus", problem, "give fewer, or a larger world")
    known, degree = spec(model), min(most_tp, each, gpus)
    degree = 1 << (degree.bit_length() - 1)
    degree = min(degree, known.kv_heads)
    degrees = [1 << i for i in range(degree.bit_length())]
    memory_B = memory_share * device.memory_B
    weights = {tp: known.weight_bytes(Layout(tp=tp)) for tp in degrees}
    fitting = [tp for tp in degrees if weights[tp] < memory_B]
    if not fitting:
        fix = "take a smaller one, or larger GPUs"
        raise KnobError("LLMParallelism.model", f"{model} does not fit on {device.name}", fix)
    kv_B = known.kv_bytes_per_token(Layout(tp=1))

    steps, costs = (
        {tp: _steps(model, device, tp, tables, use) for tp in fitting} for use in ("run", "look")
    )
    link_Bps = device.link_Bps or machine.nic_Bps or world.network.bandwidth_Bps
    nic_Bps = (machine.nic_Bps or world.network.bandwidth_Bps) / each
    return Rig(
        gpus=gpus, per_machine=each, most_tp=fitting[-1], memory_B=memory_B,
        link_Bps=float(link_Bps), nic_Bps=float(nic_Bps), disk_Bps=float(machine.disk.read_Bps),
        steps=steps, costs=costs, weight_B={tp: weights[tp] for tp in fitting}, kv_B=kv_B,
        capacity={tp: int((memory_B - weights[tp]) * tp / kv_B) for tp in fitting},
        measured=bool(getattr(steps[fitting[0]], "measured", True)),
    )  # fmt: skip


_STEPS: dict[tuple[str, ...], Any] = {}


def _steps(model: str, device: Accelerator, tp: int, tables: str, use: str) -> Any:
    """Step times, made once: reading tables takes longer than a run. Looking is not running."""
    home = data_home() if tables == "auto" else ""
    key = (model, repr(device), str(tp), tables, home, use)
    if key not in _STEPS:
        _STEPS[key] = steps_for(model, device, tp, tables=tables or None)
    return _STEPS[key]


class Cut(msgspec.Struct, frozen=True):
    """How the cache of a request goes from one instance to another, as shares of its bytes.

    come   by position: what lands there; `send` what it gives to others; `free` what it can drop
    once all has landed; `moved` the sum of what moves, which no other cut can undercut
    """

    come: Mapping[int, float]
    send: Mapping[int, float]
    free: Mapping[int, float]
    moved: float


def recut(old: Placed, new: Placed) -> Cut:
    """Keys and values by heads: what each GPU has, needs, gets and gives."""
    come: dict[int, float] = {}
    send: dict[int, float] = {}
    free: dict[int, float] = {}
    for q in new.positions:
        need = slice_of(q, new.tp)
        mine = slice_of(q, old.tp) if q in old.positions else (0.0, 0.0)
        come[q] = need[1] - need[0] - overlap(need, mine)
        if not come[q]:
            continue
        for s in old.positions:
            # The slices of one instance are disjoint, so what others give is not what q has.
            part = overlap(need, slice_of(s, old.tp)) if s != q else 0.0
            if part:
                send[s] = send.get(s, 0.0) + part
    for s in old.positions:
        kept = overlap(slice_of(s, old.tp), slice_of(s, new.tp)) if s in new.positions else 0.0
        free[s] = 1 / old.tp - kept
    return Cut(come, send, free, sum(come.values()))


__all__ = ["Cut", "Rig", "recut", "rig_of"]
