"""xLLM: the service and the engine of an elastic pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from orrery.base.errors import KnobError
from orrery.models.ports import Scheduler
from orrery.parts import Count, Fraction, Node, Positive
from orrery.systems.serve.problems.llm_elastic.device import DeviceWork, Synchronous
from orrery.systems.serve.problems.llm_elastic.paced import PACE
from orrery.systems.serve.problems.llm_elastic.ports import (
    ElasticPolicy,
    InstanceView,
    Job,
    Placement,
    PoolView,
    Profile,
    least_loaded,
)
from orrery.systems.serve.xllm import epd
from orrery.systems.serve.xllm.elastic import OnlineFirst
from orrery.systems.serve.xllm.kvindex import GlobalIndex, placed
from orrery.systems.serve.xllm.overlap import Pipelined
from orrery.systems.serve.xllm.roles import CHUNK, RoleKeeper


class XLLM(ElasticPolicy):
    """Serves online, offline and multimodal jobs on one elastic pool, with an engine that overlaps.

    "xLLM Technical Report", 2025.

    How it works. *Service.* Online jobs go first on every instance and take blocks and seats from
    offline jobs, which fill the gaps and are paused or evicted as online load grows (`elastic.py`).
    Instances have roles and change them as the measured ratio of prompt to output load moves,
    without a restart; who only waits there is placed anew, who decodes leaves with its cache
    (`roles.py`). Which of encode, prefill and decode share an instance is chosen by rehearsing a
    sample of the workload on every grouping (`epd.py`). A global index of cached prefixes, fed by
    reports of the instances, weighs a hit against what waits, and lets blocks be copied between
    instances; when an instance dies its blocks are forgotten, its jobs go on elsewhere with the
    tokens that they have made (`kvindex.py`). *Engine.* The host plans step t + 1 under step t, two
    micro-batches hide messages, a few parametrised graphs fit every shape (`overlap.py`); keys and
    values lie in virtually contiguous spaces over pages on demand (`xtensor.py`); drafts are
    verified in one step and change no token (`speculation.py`); experts are copied and moved by
    their live counts, with weights switched in two phases (`eplb.py`, `swap.py`).

    Knobs. `grouping`, which phases share instances ("auto": by rehearsal), `share`, instances of
    each group (empty: even); `adaptive` roles (off: as dealt), `memory_s` of the measured load,
    `slack` in instances, `moves` at a time; `colocate` (off: no offline jobs), `gap`, share of
    tpot_s up to which offline work may stretch a step, `keep_share` of blocks that offline jobs
    leave free; `hit_weight` of cached prefixes (0: off), `fetches`, whether blocks are copied from
    other instances; `pipelined` (off: the synchronous engine, which switches all of the engine's
    gains off), `graph`, `micro_batches`; `paced`, keep every step within the target of a token;
    `max_seqs`, `max_tokens` of a step.

    Costs: a placement is O(instances + blocks of the prompt), a decision on roles O(instances log
    seats), a rehearsal one run of the sample for each of O(instances^2) layouts.

    **Differs from the paper.** Only its abstract was at hand, so all details above are our reading.
    The pool is modelled: steps take what rooflines say of an A100, not of an Ascend NPU, and the
    engine's pipelines are a model of time, with one published profile of another engine as the
    host's share. Speculation, the memory manager, the weight swap and the instances that are killed
    are real, on small models, on CPUs; speculation and expert balance do not enter the modelled
    step times (`skew` of the problem stands for the latter). An offline job runs whole on one
    instance. A prefill instance gives its blocks back when it sends them, not when they arrive.

    >>> XLLM(pipelined=False).changed_knobs()
    {'pipelined': False}
    """

    grouping: Literal["auto", "EPD", "EP-D", "E-PD", "ED-P", "E-P-D"] = "EPD"
    share: tuple[Count, ...] = ()
    adaptive: bool = True
    memory_s: Positive = 6.0
    slack: Positive = 0.9
    moves: Count = 2
    colocate: bool = True
    gap: Fraction = 0.7
    keep_share: Fraction = 0.15
    hit_weight: Fraction = 1.0
    fetches: bool = True
    pipelined: bool = True
    graph: Literal["adaptive", "buckets", "eager"] = "adaptive"
    micro_batches: bool = True
    paced: bool = False
    max_seqs: Count = 256
    max_tokens: Count = 2048

    migrates = True

    def start(self) -> None:
        self.index = GlobalIndex()
        self.profile: Profile | None = None
        self.keeper: RoleKeeper | None = None
        self.chosen = (self.grouping if self.grouping != "auto" else "EPD", self.share)
        self.token_s = 1e-4

    # -- before the run

    def begin(self, profile: Profile) -> None:
        self.profile = profile
        self.token_s = profile.seconds(((CHUNK, 0),), 0, 0) / CHUNK
        if self.grouping == "auto" and profile.rehearse is not None:
            self.chosen = epd.choose(profile.instances, self._rehearsal(profile.rehearse))
        groups = epd.GROUPINGS[self.chosen[0]]
        if self.chosen[1] and len(self.chosen[1]) != len(groups):
            fix = f"give one number for each of {', '.join(groups)}, or none"
            raise KnobError("XLLM.share", f"{self.chosen[1]} for {self.chosen[0]}", fix)
        if len(groups) == 2 and self.adaptive:
            self.keeper = RoleKeeper(profile, *groups, memory_s=self.memory_s, slack=self.slack,
                                     moves=self.moves)  # fmt: skip

    def _rehearsal(self, rehearse: Any) -> Any:
        def goodput(grouping: str, share: tuple[int, ...]) -> float:
            part = self.with_knobs(grouping=grouping, share=share, adaptive=False)
            return float(rehearse(part))

        return goodput

    def steps(self, device: DeviceWork) -> Any:
        if not self.pipelined:
            return Synchronous(device)
        return Pipelined(device, micro=self.micro_batches, graph=self.graph)

    def scheduler(self, profile: Profile) -> Scheduler:
        made = OnlineFirst(
            max_seqs=self.max_seqs, max_tokens=self.max_tokens, gap=self.gap,
            keep_share=self.keep_share, total_blocks=profile.blocks,
            pace_s=PACE * profile.target.tpot_s if self.paced else 0.0,
        )  # fmt: skip
        made.profile = profile
        return made

    # -- roles

    def roles(self, view: PoolView) -> list[str]:
        count, (grouping, share) = len(view), self.chosen
        if not count:
            return []
        groups = epd.GROUPINGS[grouping]
        if len(groups) > count:
            return ["EPD"] * count
        begun = all(each.role for each in view.instances)
        if self.keeper is not None and (begun or not share):
            return self.keeper.split(view)
        if sum(share) != count:
            share = epd.proportional(count, (1.0,) * len(groups))
        return epd.dealt(grouping, share)

    # -- places

    def place(self, job: Job, phase: str, view: PoolView) -> Placement:
        able = view.able(phase)
        if not able:
            return Placement(-1)
        if phase == "E":
            return Placement(min(able, key=lambda v: (v.encode_s, *least_loaded(v))).index)
        if phase == "D":
            return Placement(min(able, key=lambda v: (v.kv_tokens + 64 * v.decodes, v.index)).index)
        if self.profile is None:
            return Placement(min(able, key=least_loaded).index)
        return placed(job, able, self.index, self.profile, self.token_s,
                      hit_weight=self.hit_weight, fetches=self.fetches)  # fmt: skip

    def wants_offline(self, instance: InstanceView, view: PoolView) -> bool:
        return self.colocate and instance.offline_waiting < 2

    # -- caches and deaths

    def heard(self, instance: int, got: Sequence[int], lost: Sequence[int]) -> None:
        self.index.heard(instance, got, lost)

    def died(self, instance: int) -> None:
        self.index.died(instance)

    def instance(self) -> Node:
        from orrery.systems.serve.xllm.node import XInstance

        return XInstance()


__all__ = ["XLLM"]
