"""`estimate`: time, memory, energy and money of one training step of a plan in a world."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from orrery.models.specs import ModelSpec, spec
from orrery.models.taskgraph.executor import replay
from orrery.models.taskgraph.graph import COLLECTIVE, COMPUTE, TaskGraph
from orrery.models.taskgraph.longest import critical_path
from orrery.models.training.efficiency import TrainingEfficiency, default_efficiency
from orrery.models.training.graph import StepGraph
from orrery.models.training.links import LinkCosts, Ranks, foldable
from orrery.models.training.memory import StageMemory, memory_of
from orrery.models.training.plan import TrainingPlan
from orrery.models.training.work import hardware_flops, model_flops
from orrery.world import Slow, World


class Estimate(msgspec.Struct, frozen=True):
    """What a step costs; seconds of `parts` are those of the busiest stage.

    seconds    from the first pass to the end of the update
    bubble     share of the passes' time in which the busiest stage waits
    mfu, hfu   floating-point operations that the model needs, and that are done, over the peak
    parts      compute, messages inside passes, bubble, exchange and update after the passes
    notes      what is assumed beyond what was measured
    """

    seconds: float
    bubble: float
    mfu: float
    hfu: float
    tokens_per_s: float
    parts: dict[str, float]
    memory: tuple[StageMemory, ...]
    device_B: int
    devices: int
    dollars_per_h: float | None
    tasks: int
    notes: tuple[str, ...]

    @property
    def memory_B(self) -> float:
        """Bytes on the fullest device."""
        return max(each.total_B for each in self.memory)

    @property
    def fits(self) -> bool:
        """Whether every stage fits its device."""
        return self.memory_B <= self.device_B

    @property
    def dollars(self) -> float | None:
        """Money of one step, where the world's machines have prices."""
        return None if self.dollars_per_h is None else self.dollars_per_h * self.seconds / 3600


def estimate(
    model: ModelSpec | str, plan: TrainingPlan, world: World, *,
    efficiency: TrainingEfficiency | None = None, contention: bool = True, fold: bool | None = None,
) -> Estimate:  # fmt: skip
    """Run one step of a plan in a world.

    The world has one rank on each node (`rank_per_gpu=True`), and rank r is node r. Its links may
    differ, and `Slow` faults stretch what their nodes compute. Ranks that behave alike are folded
    where the world's links allow it; `fold=False` runs them all.

    >>> from orrery.world import worlds
    >>> plan = TrainingPlan(tp=8, micro_batch=4, global_batch=4, recompute="full")
    >>> round(estimate("Megatron-22B", plan, worlds.a100_pod(1, rank_per_gpu=True)).mfu, 1)
    0.4
    """
    made = step_graph(model, plan, world, efficiency=efficiency, fold=fold)
    graph = made.graph(foldable(world) if fold is None else fold)
    times = replay(graph, made.costs, contention=contention)
    return _told(made, graph, times.start_s, times.end_s)


def step_graph(
    model: ModelSpec | str, plan: TrainingPlan, world: World, *,
    efficiency: TrainingEfficiency | None = None, fold: bool | None = None,
) -> StepGraph:  # fmt: skip
    """What makes the graph of a step; `.graph(fold)` gives it, `.costs` prices it."""
    found = plan.of(spec(model) if isinstance(model, str) else model)
    share = efficiency or default_efficiency()
    return StepGraph(found, plan, Ranks(plan, world), LinkCosts(world, share), share)


def critical_step_s(
    model: ModelSpec | str, plan: TrainingPlan, world: World, *,
    efficiency: TrainingEfficiency | None = None, fold: bool | None = None,
) -> float:  # fmt: skip
    """The same step by the longest chain of tasks, with no clock and no shared links."""
    made = step_graph(model, plan, world, efficiency=efficiency)
    graph = made.graph(foldable(world) if fold is None else fold)
    return critical_path(graph, made.costs).seconds


def _told(made: StepGraph, graph: TaskGraph, start_s: Any, end_s: Any) -> Estimate:
    plan, model, ranks = made.plan, made.model, made.ranks
    seconds = float(end_s.max())
    name = np.array(graph.names)[graph.name]
    after = np.isin(name, ("update", "weights", "gradients", "embedding"))
    passes_end_s = float(end_s[~after].max())
    took_s = end_s - start_s
    work_s = np.bincount(graph.rank, np.where((graph.kind == COMPUTE) & ~after, took_s, 0.0))
    calls = (graph.kind == COLLECTIVE) & ~after
    links_s = np.bincount(graph.rank, np.where(calls, took_s, 0.0))
    busiest = int(np.argmax(work_s + links_s))
    update_s = float(took_s[(name == "update") & (graph.rank == busiest)].sum())
    idle_s = passes_end_s - float(work_s[busiest] + links_s[busiest])
    peak = sum(each.peak_flops(model.dtype) for each in ranks.device_of)
    machines = [ranks.world.machine_of(node) for node in range(plan.devices)]
    prices = [machine.price_per_h for machine in machines]
    tokens = plan.global_batch * plan.length(model)
    return Estimate(
        seconds=seconds, bubble=idle_s / passes_end_s if passes_end_s else 0.0,
        # Fused attention skips the pairs that the mask hides; unfused attention computes all.
        mfu=model_flops(model, plan, plan.attention == "fused") / peak / seconds,
        hfu=hardware_flops(model, plan) / peak / seconds,
        tokens_per_s=tokens / seconds,
        parts={
            "compute_s": float(work_s[busiest]), "messages_s": float(links_s[busiest]),
            "bubble_s": idle_s, "exchange_s": seconds - passes_end_s - update_s,
            "update_s": update_s,
        },
        memory=tuple(memory_of(model, plan)),
        device_B=min(each.memory_B for each in ranks.device_of), devices=plan.devices,
        dollars_per_h=None if None in prices else float(sum(p for p in prices if p is not None)),
        tasks=len(graph), notes=_notes(made),
    )  # fmt: skip


def _notes(made: StepGraph) -> tuple[str, ...]:
    notes = []
    names = sorted({each.name for each in made.ranks.device_of})
    other = [name for name in names if name != made.efficiency.device]
    if other and made.efficiency.device:
        notes.append(f"efficiencies are those of {made.efficiency.device}; {', '.join(other)} is "
                     "assumed to reach the same shares")  # fmt: skip
    ignored = sorted({fault.kind for fault in made.ranks.world.faults
                      if not isinstance(fault, Slow)})  # fmt: skip
    if ignored:
        notes.append(f"one step knows no {', '.join(ignored)}; see expected_run")
    if made.plan.of(made.model).experts:
        notes.append("tokens are spread evenly over the experts")
    return tuple(notes)


__all__ = ["Estimate", "critical_step_s", "estimate", "step_graph"]
