"""The problem `llm_elastic`: how does a pool of instances share out phases, classes and gaps?

Online and offline jobs, with and without images, come to a service before a pool of instances.
The policy says which instance encodes, prefills and decodes, where each job goes, and who may use
what online jobs leave free.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

from orrery.base.errors import KnobError, UsageError
from orrery.base.rand import Stream
from orrery.base.violation import Violation
from orrery.models.requests import Target
from orrery.models.specs import spec
from orrery.models.weights import Layout
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
from orrery.systems.serve.problems.clocked import play_out
from orrery.systems.serve.problems.llm_elastic import loads
from orrery.systems.serve.problems.llm_elastic.audit import METRICS, Log, faults_of, figures
from orrery.systems.serve.problems.llm_elastic.device import DeviceWork, device_of
from orrery.systems.serve.problems.llm_elastic.pool import Plan, Pool
from orrery.systems.serve.problems.llm_elastic.ports import (
    ElasticPolicy,
    InstanceView,
    Job,
    Placement,
    PoolView,
    Profile,
    roles_fault,
)
from orrery.world import Crash, World

__all__ = [
    "ElasticPolicy", "InstanceView", "Job", "LLMElastic", "Log", "Placement", "Pool", "PoolView",
    "Profile", "faults_of", "figures", "some_view",
]  # fmt: skip

HOST_Bps = 25e9  # PCIe 4.0 x16 as measured copies reach it, of 31.5 GB/s; our assumption
_devices = functools.lru_cache(maxsize=32)(device_of)


class LLMElastic(Problem):
    """Serve online and offline jobs on a pool of instances whose roles may change.

    The pool: every node of the world is an instance of `model` on `tp` devices (0: all that it
    has), with experts over `ep`; steps take what rooflines of the data sheet say, plus what the
    policy's engine adds (`device.Synchronous`, unless it brings another one). `memory_share`,
    `host_GB` (memory for evicted blocks), `block_tokens`; `skew`, the busiest rank's expert load
    over the mean.
    The load: `workload` is conv, code, reasoning, flip (windows of code and of reasoning by turns,
    `rates`, `window_s`), images, texts, mixed, prefixes or even (`prompt`, `output`); `requests` at
    `rate_per_s`; `wave`, peak over trough of a sinusoid of `wave_s` (0: flat). `offline`, the
    workload of an endless backlog for the first `seconds` (empty: none). `data`, a folder with
    Azure's and ServeGen's data in place of generators. Targets: `ttft_s`, `tpot_s`.
    The service: `tick_s` between decisions on roles, `report_s` between reports of caches,
    `heartbeat_s`, and `detect_s`, the bound on noticing a death. `sample`, jobs of another seed
    that a policy may rehearse with. `real` runs instances with a small model of their own.

    >>> LLMElastic().blocks_of(LLMElastic().world()) > 10000
    True
    """

    model: str = "Qwen3-8B"
    tp: Whole = 0
    ep: Count = 1
    skew: Positive = 1.0
    memory_share: Fraction = 0.9
    host_GB: NonNegative = 32.0
    block_tokens: Count = 16
    blocks: Whole = 0
    workload: Literal[
        "conv", "code", "reasoning", "flip", "images", "texts", "mixed", "prefixes", "even"
    ] = "conv"
    data: str = ""
    requests: Count = 160
    rate_per_s: Positive = 16.0
    prompt: Count = 1024
    output: Count = 256
    most_output: Count = 2000
    wave: NonNegative = 0.0
    wave_s: Positive = 120.0
    rates: tuple[Positive, Positive] = (20.0, 6.0)
    window_s: Positive = 30.0
    offline: str = ""
    seconds: Positive = 120.0
    ttft_s: Positive = 1.0
    tpot_s: Positive = 0.05
    tick_s: Positive = 1.0
    report_s: Positive = 2.0
    heartbeat_s: Positive = 0.25
    detect_s: Positive = 1.0
    sample: Whole = 160
    real: bool = False

    port: ClassVar[type] = ElasticPolicy
    metrics: ClassVar[Mapping[str, Metric]] = METRICS

    def world(self) -> World:
        from orrery.world import worlds

        # Of the catalogue's devices the A100 is nearest to the accelerators of the paper (Ascend
        # 910B: about 0.3 PFLOP/s in half precision, 64 GB); their data sheets are not in it.
        return worlds.get("a100_pod:1,True")

    @property
    def target(self) -> Target:
        return Target(self.ttft_s, self.tpot_s)

    def axes(self, by: str) -> Mapping[str, Sequence[float]]:
        """More and fewer jobs, stricter and laxer targets."""
        return {
            "rate_per_s": [self.rate_per_s * factor for factor in (0.5, 2.0, 4.0)],
            "tpot_s": [self.tpot_s * factor for factor in (0.5, 2.0)],
        }

    # -- the pool

    def device(self, world: World) -> DeviceWork:
        """The device work of an instance."""
        found = world.machine_of(0).accelerators
        if not found:
            raise UsageError("node 0 has no accelerator to serve on; take a world such as a100_pod")
        return _devices(self.model, found[0], self.tp or len(found), self.ep, self.skew)

    def blocks_of(self, world: World) -> int:
        """Blocks of an instance's cache."""
        if self.blocks:
            return self.blocks
        device = self.device(world)
        fits = spec(self.model).kv_tokens_that_fit(
            device.accelerator.memory_B, device.layout, share=self.memory_share
        )
        if fits < self.block_tokens:
            problem = f"{self.model} leaves no room for a cache on {device.accelerator.name}"
            raise KnobError("LLMElastic.model", problem, "take a smaller one, or more devices")
        return fits // self.block_tokens

    def plan(self, world: World) -> Plan:
        """Sizes, rates and periods of the pool."""
        if self.detect_s < 2 * self.heartbeat_s:
            fix = f"give at least two periods, {2 * self.heartbeat_s}"
            raise KnobError("LLMElastic.detect_s", f"{self.detect_s} s is too short", fix)
        device, machine = self.device(world), world.machine_of(0)
        kv_B = device.model.kv_bytes_per_token(device.layout) * device.layout.tp
        rate_Bps = machine.nic_Bps or world.network.bandwidth_Bps or machine.disk.read_Bps
        weights_B = device.model.weight_bytes(Layout(tp=device.layout.tp, ep=device.layout.ep))
        return Plan(
            world.size, device, self.blocks_of(world), self.block_tokens,
            int(self.host_GB * 1e9 / (kv_B * self.block_tokens)), rate_Bps, HOST_Bps,
            world.network.latency_s, self.tick_s, self.report_s, self.heartbeat_s, self.detect_s,
            weights_B * device.layout.tp / rate_Bps, self.seconds if self.offline else 0.0,
        )  # fmt: skip

    # -- the load

    def jobs(self, seed: int) -> list[Job]:
        """The online jobs of a seed."""
        if self.workload == "flip":
            return loads.flipping_jobs(
                self.seconds, seed, rates=self.rates, window_s=self.window_s, target=self.target,
                data=self.data, most_output=self.most_output,
            )  # fmt: skip
        return loads.steady_jobs(
            self.workload, self.requests, seed, rate_per_s=self.rate_per_s, wave=self.wave,
            period_s=self.wave_s, target=self.target, block_tokens=self.block_tokens,
            data=self.data, most_output=self.most_output, even=(self.prompt, self.output),
        )  # fmt: skip

    def backlog(self, first: int, seed: int) -> Iterator[Job] | None:
        """Offline jobs without end, where there are any."""
        if not self.offline:
            return None
        known = ("conv", "code", "reasoning", "even")
        if self.offline not in known:
            fix = f"give one of {', '.join(known)}, or nothing"
            raise KnobError("LLMElastic.offline", f"{self.offline!r} is unknown", fix)
        return loads.backlog_of(first, seed, self.offline, self.most_output)

    # -- the run

    def pool(
        self, part: ElasticPolicy, seed: int, world: World | None = None, rehearsing: bool = False
    ) -> Pool:
        """Everything that a run needs but a clock."""
        place = world or self.world()
        plan, jobs = self.plan(place), self.jobs(seed)
        if not jobs:
            raise KnobError("LLMElastic.requests", "no job comes", "give a longer time or rate")
        longest = max(job.prompt_tokens + job._output_tokens for job in jobs)
        if longest > plan.blocks * plan.block_tokens:
            problem = f"a job of {longest} tokens, a cache of {plan.blocks * plan.block_tokens}"
            raise KnobError("LLMElastic.blocks", problem, "give more, or lower most_output")
        rehearse = None if rehearsing or not self.sample else self._rehearsal(seed, place)
        part.start()
        steps = part.steps(plan.device)
        profile = Profile(
            steps.seconds, plan.device.encode_s, plan.move_s, plan.load_s, plan.count, plan.blocks,
            plan.block_tokens, self.target, rehearse,
        )  # fmt: skip
        part.begin(profile)
        return Pool(
            plan, part, jobs, profile, backlog=self.backlog(len(jobs), seed),
            crashes=[] if rehearsing else crashes_of(place),
        )  # fmt: skip

    def _rehearsal(self, seed: int, world: World) -> Any:
        """Serves jobs of another seed with a policy: what profiling before a launch would tell."""
        asked = self.with_knobs(requests=self.sample, offline="", wave=0.0)

        def rehearse(part: ElasticPolicy) -> float:
            log = asked.pool(part, seed + 10_007, world, rehearsing=True).play()
            return figures(log, self.target)["goodput_per_s"]

        return rehearse

    def play(self, part: ElasticPolicy, seed: int, world: World | None = None) -> Log:
        """A run without an engine: what `run` gives, for studies."""
        log = self.pool(part, seed, world).play()
        log.detect_s = self.detect_s
        return log

    def host(self, part: Any, world: World) -> Mapping[str, Any]:
        self.__dict__["place"] = world
        if self.real:
            return {"node": part.instance()}
        self.plan(world)
        # A fault needs a node to hit, though the modelled instances are in the driver.
        return {"node": part.instance()} if world.faults else {}

    async def drive(self, driver: Driver) -> Log:
        world: World = self.__dict__["place"]
        seed = driver.rng.getrandbits(30)
        if self.real:
            from orrery.systems.serve.problems.llm_elastic.really import Front

            return await Front(driver, driver.part, self).run(seed)
        pool = self.pool(driver.part, seed, world)
        await play_out(driver, pool)
        log = pool.end()
        log.detect_s = self.detect_s
        return log

    def check(self, outcome: Outcome) -> list[Violation]:
        log = outcome.driven
        return faults_of(log) if isinstance(log, Log) else []

    def measure(self, outcome: Outcome) -> dict[str, float]:
        log = outcome.driven
        return figures(log, self.target) if isinstance(log, Log) else {}

    def views(self, rng: Stream) -> Iterator[tuple[str, tuple[Any, ...], Any]]:
        """A history for the laws: nobody there, all idle, some full, some gone."""
        yield "begin", (some_profile(),), lambda answer: answer is None
        for turn in range(24):
            view = some_view(rng, 0 if turn % 8 == 0 else 3 + rng.below(6), turn)
            yield "roles", (view,), lambda answer, view=view: not roles_fault(answer, view)
            shown = {each.index for each in view.instances}
            for phase in "EPD":
                able = {each.index for each in view.able(phase)} or {-1}
                job = Job(turn, turn * 1.0, 1 + rng.below(900), 5, blocks=(3, 4 + rng.below(3)),
                          image_tokens=rng.below(2) * 300)  # fmt: skip
                yield "place", (job, phase, view), _judge(able if shown else {-1}, shown)
            if shown:
                yield "heard", (view.instances[0].index, [3, 4, 5], [4]), lambda a: a is None
            if turn % 9 == 5:
                yield "died", (view.instances[0].index,), lambda a: a is None


def _judge(able: set[int], shown: set[int]) -> Any:
    return lambda answer: answer.instance in able and answer.fetch in shown | {-1}


def some_profile() -> Profile:
    """A made-up profile, for the laws."""
    return Profile(
        lambda prefill, decodes, kv: 0.01 + 1e-5 * (decodes + sum(new for new, _ in prefill)),
        lambda tokens: 1e-4 * tokens, lambda tokens: 1e-6 * tokens, lambda tokens: 1e-6 * tokens,
        4, 1000, 16, Target(1.0, 0.05), None,
    )  # fmt: skip


def some_view(rng: Stream, count: int, turn: int = 0) -> PoolView:
    """A made-up pool, some of whose instances are busy."""
    instances = []
    for index in range(count):
        view = InstanceView(index, 1000, 16, ("EP", "D", "EPD")[rng.below(3)])
        view.waiting, view.running = rng.below(9), rng.below(30)
        view.prefill_tokens, view.kv_tokens = rng.below(9000), rng.below(16000)
        view.free_blocks, view.decodes = 1000 - view.kv_tokens // 16, view.running
        view.encode_s, view.offline = 0.1 * rng.below(5), rng.below(3)
        instances.append(view)
    if instances:
        instances[0].role, instances[-1].role = "EP", "D"
    return PoolView(turn * 1.0, instances, 5000 * turn, 700 * turn, 0.1 * turn)


def crashes_of(world: World) -> Sequence[tuple[float, int, float]]:
    """(when, whom, until) of the world's crashes."""
    found = []
    for fault in world.faults:
        if isinstance(fault, Crash):
            if fault.node == "random":
                raise UsageError("a modelled pool needs to know whom a Crash hits; name the node")
            until_s = math.inf if fault.until_s is None else fault.until_s
            found += [(fault.at_s, node, until_s) for node in world.targets(fault)]
    return found
