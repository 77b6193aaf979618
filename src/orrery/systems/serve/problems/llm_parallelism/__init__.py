"""Into which instances should a fixed number of GPUs be divided, from one minute to the next?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np

from orrery.base.errors import KnobError
from orrery.base.rand import Stream
from orrery.base.violation import Violation
from orrery.models.requests import Request
from orrery.parts import (
    Count,
    Driver,
    Fraction,
    Metric,
    NonNegative,
    Outcome,
    Positive,
    Problem,
    Whole,
)
from orrery.systems.serve.problems.llm_parallelism import loads
from orrery.systems.serve.problems.llm_parallelism.audit import faults_of, trial_views
from orrery.systems.serve.problems.llm_parallelism.cluster import Cluster, Fared
from orrery.systems.serve.problems.llm_parallelism.plans import Kind, Placed, Plan, all_plans
from orrery.systems.serve.problems.llm_parallelism.ports import (
    ClusterView,
    InstanceView,
    Moves,
    Parallelism,
    Tier,
)
from orrery.systems.serve.problems.llm_parallelism.rig import Rig, rig_of
from orrery.world import DeviceLoss, World

Rates = Annotated[tuple[NonNegative, ...], msgspec.Meta(min_length=1)]


class Log(msgspec.Struct):
    """All that a run left behind."""

    requests: list[Request]
    fared: list[Fared]
    faults: list[str]
    changes: list[tuple[float, str]]
    numbers: dict[str, float]


class LLMParallelism(Problem):
    """Divide GPUs into instances (role, tensor-parallel degree) while tiers of requests change.

    Instances are modelled at the level of steps: continuous batching with chunked prompts, a cache
    with preemption, prompts handed from P to D instances, and moves from plan to plan that cost
    what they cost on the world's links and disks.

    model, tables   step times from measured op tables ("auto": where there are any), else rooflines
    gpus            how many; an instance takes 1, 2, 4, … up to `most_tp` of one machine
    lengths         whose lengths each tier's requests have: conv or code, of the Azure traces
    interactive_per_s, background_per_s   arrivals in the windows, by turns
    window_s, windows                     how long, how many
    ttft_s, tpot_s  what users of each tier expect: 0.5 s and 50 tokens a second in a chat, 10 s
                    and 5 tokens a second in the background (our choice)
    control_s       how often the policy may change the plan
    regroup_s       what any change costs besides: new process groups, graphs (our assumption)
    split           whether plans with instances of their own for prompts and answers are allowed
    data            a folder with the real traces ($ORRERY_DATA); empty: generators like them

    >>> str(LLMParallelism().cluster_plans()[0])
    'M8'
    """

    model: str = "Qwen3-32B"
    tables: str = "auto"
    gpus: Count = 8
    most_tp: Count = 8
    memory_share: Fraction = 0.9
    chunk_tokens: Count = 2048
    most_seqs: Count = 256
    lengths: tuple[str, str] = ("conv", "code")
    interactive_per_s: Rates = (30.0, 2.0)
    background_per_s: Rates = (1.0, 30.0)
    window_s: Positive = 20.0
    windows: Count = 2
    ttft_s: tuple[Positive, Positive] = (0.5, 10.0)
    tpot_s: tuple[Positive, Positive] = (0.02, 0.2)
    control_s: Positive = 2.0
    regroup_s: NonNegative = 0.1
    split: bool = True
    data: str = ""
    most_tokens: Count = 32_768
    first_window: Whole = 0

    trial: ClassVar[Mapping[str, Any]] = {"window_s": 6.0}
    port: ClassVar[type] = Parallelism
    metrics: ClassVar[Mapping[str, Metric]] = {
        "goodput_per_s": Metric("1/s", "higher", "requests that met both targets of their tier"),
        "attainment": Metric("", "higher", "share of requests that met both targets"),
        "interactive_attainment": Metric("", "higher", "the same of interactive requests"),
        "background_attainment": Metric("", "higher", "the same of background requests"),
        "interactive_ttft_p95_s": Metric("s", "lower", "to the first token"),
        "interactive_tpot_p95_s": Metric("s", "lower", "of each further token"),
        "changes": Metric("", "", "changes of the plan"),
        "moved": Metric("", "", "running requests that moved with their cache"),
        "recomputed": Metric("", "lower", "times that a request's cache was computed again"),
        "weight_GB": Metric("", "lower", "weights that went from GPU to GPU"),
        "disk_GB": Metric("", "lower", "weights read from disk"),
        "kv_GB": Metric("", "lower", "caches that moved because of a change"),
        "gpu_down_s": Metric("s", "lower", "GPU-seconds between old and new instances"),
        "fullest": Metric("", "lower", "largest share of a GPU's memory in use during a change"),
        "busy": Metric("", "higher", "share of the GPUs' time that they computed"),
        "extrapolated": Metric("", "lower", "steps beyond the measured tables"),
    }

    def world(self) -> World:
        from orrery.world import worlds

        return worlds.get(f"h200_pod:{-(-self.gpus // 8)}")

    def axes(self, by: str) -> Mapping[str, tuple[float, ...]]:
        """Windows that are shorter and longer, and dearer changes."""
        return {"window_s": (self.window_s / 2, self.window_s * 3), "regroup_s": (0.5, 2.0)}

    # -- the question

    def tiers(self) -> tuple[Tier, ...]:
        """The two tiers."""
        return tuple(
            Tier(name, self.ttft_s[at], self.tpot_s[at], at)
            for at, name in enumerate(("interactive", "background"))
        )

    def rig(self, world: World | None = None) -> Rig:
        """The hardware in numbers."""
        return rig_of(world or self.world(), self.model, self.tables, self.gpus, self.memory_share,
                      self.most_tp)  # fmt: skip

    def requests(self, seed: int) -> list[Request]:
        """The requests of a seed."""
        rates = (self.interactive_per_s, self.background_per_s)
        turned = [tuple(_turned(each, self.first_window)) for each in rates]
        return loads.requests_of(
            self.tiers(), self.lengths, turned, window_s=self.window_s, windows=self.windows,
            seed=seed, data=self.data, most_tokens=self.most_tokens,
        )  # fmt: skip

    def cluster(
        self, part: Parallelism, seed: int, world: World | None = None,
        requests: list[Request] | None = None, rig: Rig | None = None, free: bool = False,
    ) -> Cluster:  # fmt: skip
        """Everything that a run needs but a clock."""
        world = world or self.world()
        rig = rig or self.rig(world)
        asked = self.requests(seed) if requests is None else requests
        if self.most_tokens > 0.9 * min(rig.capacity.values()):
            fix = f"give at most {int(0.9 * min(rig.capacity.values()))}, or a most_tp of less"
            raise KnobError("LLMParallelism.most_tokens", f"{self.most_tokens} do not fit", fix)
        policy = part.with_knobs()
        if policy.foresees:
            policy.foresee(self, asked, rig)  # type: ignore[attr-defined]
        return Cluster(
            rig, policy, asked, self.tiers(), control_s=self.control_s,
            chunk_tokens=self.chunk_tokens, most_seqs=self.most_seqs, regroup_s=self.regroup_s,
            split=self.split, losses=losses_of(world, rig),
        )  # fmt: skip

    def cluster_plans(self) -> tuple[Plan, ...]:
        """Every plan for GPUs that all work."""
        most = min(self.most_tp, 8, self.gpus)
        most = 1 << (most.bit_length() - 1)
        whole, rest = divmod(self.gpus, most)
        blocks = [most] * whole + [
            1 << i for i in reversed(range(rest.bit_length())) if rest >> i & 1
        ]
        return all_plans(tuple(blocks), most, self.split)

    def horizon_s(self) -> float:
        """How long requests come."""
        return self.window_s * self.windows

    # -- the run

    async def drive(self, driver: Driver) -> Log:
        cluster = self.cluster(driver.part, driver.rng.getrandbits(30), self.__dict__.get("place"))
        begin_s = driver.now
        await driver.sleep(1e-3)
        # The instances are modelled, so on a real clock there is nothing to wait for.
        virtual = abs(driver.now - begin_s - 1e-3) < 1e-9
        begin_s, told = driver.now, 0
        while (due_s := cluster.next_s()) < float("inf"):
            cluster.play(due_s + 1.0)
            for when_s, plan in cluster.transitions.log[told:]:
                driver.emit(plan=plan, at_s=when_s)
            told = len(cluster.transitions.log)
            if virtual:
                await driver.sleep(max(begin_s + due_s + 1.0 - driver.now, 0.0))
        return log_of(cluster)

    def host(self, part: Any, world: World) -> Mapping[str, Any]:
        rig_of(world, self.model, self.tables, self.gpus, self.memory_share, self.most_tp)
        self.__dict__["place"] = world
        return {}

    def check(self, outcome: Outcome) -> list[Violation]:
        log = outcome.driven
        return faults_of(log) if isinstance(log, Log) else []

    def measure(self, outcome: Outcome) -> dict[str, float]:
        log = outcome.driven
        return self.figures(log) if isinstance(log, Log) else {}

    def figures(self, log: Log) -> dict[str, float]:
        """The metrics of a log."""
        met = sum(each.met for each in log.fared)
        found = {
            **log.numbers, "goodput_per_s": met / self.horizon_s(),
            "attainment": met / max(len(log.requests), 1),
            "recomputed": float(sum(each.restarts for each in log.fared)),
        }  # fmt: skip
        for tier in self.tiers():
            mine = [each for each in log.fared if each.tier == tier.priority]
            if mine:
                share = sum(each.met for each in mine) / len(mine)
                found[f"{tier.name}_attainment"] = share
        first = [each for each in log.fared if each.tier == 0]
        if first:
            found["interactive_ttft_p95_s"] = float(np.quantile([e.ttft_s for e in first], 0.95))
            found["interactive_tpot_p95_s"] = float(np.quantile([e.tpot_s for e in first], 0.95))
        return found

    def by_window(self, log: Log) -> np.ndarray:
        """Goodput of the requests that came in each window."""
        found = np.zeros(self.windows)
        for each in log.fared:
            if each.met:
                found[min(int(each.arrival_s // self.window_s), self.windows - 1)] += 1
        return found / self.window_s

    def views(self, rng: Stream) -> Iterator[tuple[str, tuple[Any, ...], Any]]:
        """A history for the laws of policies."""
        return trial_views(self, rng)


def _turned(rates: tuple[float, ...], by: int) -> Iterator[float]:
    return (rates[(at + by) % len(rates)] for at in range(len(rates)))


def losses_of(world: World, rig: Rig) -> list[tuple[float, int]]:
    """(when, position) of the GPUs that the world's faults take for good."""
    found: list[tuple[float, int]] = []
    for fault in world.faults:
        if isinstance(fault, DeviceLoss):
            nodes = fault.node if isinstance(fault.node, tuple) else (fault.node,)
            known = [node for node in nodes if isinstance(node, int)]
            found += [(fault.at_s, node * rig.per_machine + fault.device) for node in known]
    return [(at_s, position) for at_s, position in found if position < rig.gpus]


def log_of(cluster: Cluster) -> Log:
    """What a cluster that has played leaves behind."""
    moves, rig = cluster.transitions, cluster.rig
    last_s = max([each.last_s for each in cluster.fared], default=0.0)
    faults = [*cluster.faults, *moves.layout_faults()]
    busy_s = cluster.gpu_busy_s
    for each in cluster.live.values():
        busy_s += each.busy_s * each.placed.tp
        if not each.empty or each.view.kv_tokens:
            faults.append(f"instance {each.index} keeps {each.view.kv_tokens} tokens for nobody")
    numbers = {
        "changes": float(max(len(moves.log) - 1, 0)), "moved": float(moves.moved),
        "weight_GB": moves.weight_B / 1e9, "disk_GB": moves.disk_B / 1e9,
        "kv_GB": moves.kv_B / 1e9, "gpu_down_s": max(moves.gpu_down_s, 0.0),
        "fullest": moves.fullest, "busy": busy_s / max(last_s * rig.gpus, 1e-9),
        "extrapolated": float(rig.extrapolated() - cluster.extrapolated_before),
    }  # fmt: skip
    return Log(list(cluster.requests), cluster.fared, faults, moves.log, numbers)


__all__ = [
    "Cluster", "ClusterView", "Fared", "InstanceView", "Kind", "LLMParallelism", "Log", "Moves",
    "Parallelism", "Placed", "Plan", "Rig", "Tier", "faults_of", "log_of",
]  # fmt: skip
