"""Who is let into a shared endpoint next, when nobody knows how long the answers will be?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from orrery.base.errors import KnobError, UsageError
from orrery.base.rand import Stream
from orrery.base.violation import Violation
from orrery.check.conservation import exactly_once
from orrery.inputs.draws import exponentials, uniforms
from orrery.models.device import Efficiency
from orrery.models.ports import Batch, EngineView, Hit, Scheduler
from orrery.models.replica import Replica
from orrery.models.requests import Request, Running, Target
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
from orrery.systems.serve.problems import tenant_loads as loads
from orrery.systems.serve.problems.clocked import play_out
from orrery.systems.serve.problems.figures import times
from orrery.systems.serve.problems.tenant_desk import (
    Desk,
    LinearSteps,
    Log,
    errors_of,
    overtaken,
)
from orrery.world import World
from orrery.world.hardware import Accelerator, machine

Range = tuple[Positive, Positive]
CATEGORIES = ("summary", "chat", "code", "reasoning")


class LLMTenants(Problem):
    """Let requests of several tenants into one replica, on estimates of their answers that drift.

    The scheduler sees the queue, the batch and the free blocks, as in `LLMBatching`, and with each
    request (`Offer`) the length of its answer as it was estimated at admission. It is told how long
    finished answers were (`Scheduler.finished`). One that is a `Gatekeeper` may refuse a request at
    the door, and its own expectations are measured.

    The engine: `slots`, requests in a batch at most; a step takes a + b x tokens + c x context,
    with a = weights / memory rate, b = 2 x parameters / arithmetic rate, c = KV bytes of a token /
    memory rate, of the world's accelerator (data sheet, times the fractions that kernels reach).
    For Llama-3.1-8B on an L4 (300 GB/s, 121 TFLOP/s): a = 66.9 ms, b = 0.170 ms, c = 0.546 us.
    The load: `workload`, drift (generated), lengths (generators like Azure's and Mooncake's traces)
    or traces (under the folder `data`); or `trace`, any file. `loads`, arrivals as shares of the
    capacity, alternating every `phase_s`; `tenants`, the kinds ("tenant/category"), `shares` of the
    traffic, `floods`, factors of tenants who send more than that, on top; `priorities` of tenants.
    The drift: `drift`, true length / estimate of each kind; `turned`, the same after the share
    `turn_at` of the requests; `noise`, sigma of the lognormal; `estimates` and `prompts`, ranges.
    `cancels`, the share of requests whose client leaves; `age_limit_s`, for the audit of ages.

    >>> LLMTenants().constants()[0] > 0.05
    True
    """

    model: str = "Llama-3.1-8B"
    slots: Count = 16
    workload: Literal["drift", "lengths", "traces"] = "drift"
    data: str = ""
    trace: str = ""
    requests: Count = 400
    loads: Range = (0.7, 1.3)
    phase_s: Positive = 120.0
    tenants: tuple[str, ...] = CATEGORIES
    shares: tuple[NonNegative, ...] = ()
    floods: dict[str, Positive] = {}
    priorities: dict[str, Whole] = {}
    drift: tuple[Positive, ...] = (0.5, 0.8, 1.5, 3.0)
    turned: tuple[Positive, ...] = (1.5, 3.0, 0.5, 0.8)
    turn_at: Fraction = 0.5
    noise: NonNegative = 0.4
    estimates: Range = (50.0, 400.0)
    prompts: Range = (100.0, 1000.0)
    most_prompt: Count = 4096
    cancels: Fraction = 0.0
    age_limit_s: Positive = 60.0
    ttft_s: Positive = 10.0
    tpot_s: Positive = 0.1
    blocks: Whole = 0
    block_tokens: Count = 16

    port: ClassVar[type] = Scheduler
    metrics: ClassVar[Mapping[str, Metric]] = {
        "latency_p50_s": Metric("s", "lower", "from arrival to the last token"),
        "latency_p95_s": Metric("s", "lower", "from arrival to the last token"),
        "latency_p99_s": Metric("s", "lower", "from arrival to the last token"),
        "latency_mean_s": Metric("s", "lower", "from arrival to the last token"),
        "ttft_p50_s": Metric("s", "lower", "from arrival to the first token"),
        "ttft_p99_s": Metric("s", "lower", "from arrival to the first token"),
        "worst_tenant_p95_s": Metric("s", "lower", "latency of the tenant that fares worst"),
        "attainment": Metric("", "higher", "share of requests that met ttft_s and tpot_s"),
        "mae_tokens": Metric("", "lower", "mean absolute error of expected answer lengths"),
        "rmse_tokens": Metric("", "lower", "root mean square error of expected answer lengths"),
        "given_mae_tokens": Metric("", "lower", "the same error of the estimates as given"),
        "given_rmse_tokens": Metric("", "lower", "the same error of the estimates as given"),
        "overtaken": Metric("", "lower", "times that one past the age limit was overtaken"),
        "tokens_per_s": Metric("1/s", "higher", "made"),
        "busy": Metric("", "higher", "share of the time that the device computed"),
        "refused": Metric("", "lower", "share of requests refused at the door"),
        "cancelled": Metric("", "", "share of requests whose client left"),
        "preemptions": Metric("", "lower", "requests that lost their blocks"),
    }

    def world(self) -> World:
        return World.lan(1, machine=machine("server").replace(accelerators=("L4",)))

    # -- the engine

    def device(self, world: World | None = None) -> Accelerator:
        """The accelerator of the replica."""
        found = (world or self.world()).machine_of(0).accelerators
        if not found:
            raise UsageError("node 0 has no accelerator to serve on; take a world with one")
        return found[0]

    def constants(self, world: World | None = None) -> tuple[float, float, float]:
        """a, b and c of the step time, in seconds."""
        model, device, reached = spec(self.model), self.device(world), Efficiency()
        memory_Bps = device.memory_Bps * reached.memory
        flops = device.flops(model.dtype) * reached.gemm
        return (
            model.weight_bytes() / memory_Bps, 2.0 * model.params / flops,
            model.kv_bytes_per_token() / memory_Bps,
        )  # fmt: skip

    def capacity_per_s(self, prompt: float, output: float, world: World | None = None) -> float:
        """Requests a second of these mean lengths that full batches serve."""
        fixed_s, token_s, kv_s = self.constants(world)
        context = self.slots * (prompt + output / 2)
        step_s = fixed_s + token_s * self.slots + kv_s * context
        return 1.0 / (prompt * token_s + output * step_s / self.slots)

    def replica(self, part: Scheduler, world: World | None = None) -> Replica:
        """A new replica with a new scheduler like the part; the engine bounds its batch."""
        model, device = spec(self.model), self.device(world)
        fits = model.kv_tokens_that_fit(device.memory_B, Layout(tp=1), share=0.9)
        most = getattr(part, "max_seqs", None)
        bound = {} if most is None else {"max_seqs": min(most, self.slots)}
        blocks = self.blocks or fits // self.block_tokens
        if blocks < 1:
            problem = f"{self.model} leaves no room for a cache on {device.name}"
            raise KnobError("LLMTenants.model", problem, "take a smaller one, or a larger device")
        return Replica(
            LinearSteps(*self.constants(world)), part.with_knobs(**bound), blocks=blocks,
            block_tokens=self.block_tokens,
        )  # fmt: skip

    # -- the load

    def kinds(self) -> tuple[str, ...]:
        """The kinds of request that come."""
        return self.tenants if self.workload == "drift" else tuple(loads.FILES)

    def _shares(self) -> tuple[float, ...]:
        """Shares of the traffic: as told, equal, or as large as the traces are."""
        kinds, drifts = self.kinds(), self.workload == "drift"
        for name in ("shares", "drift", "turned"):
            given = getattr(self, name)
            if len(given) != len(kinds) and (given if name == "shares" else drifts):
                problem = f"{len(given)} numbers for {len(kinds)} kinds"
                raise KnobError(f"LLMTenants.{name}", problem, "give one a kind")
        tenants = [loads.tenant_of(kind) for kind in kinds]
        for tenant, factor in self.floods.items():
            if tenant not in tenants or factor < 1:
                raise KnobError("LLMTenants.floods", f"{tenant!r} x {factor}",
                                f"give a factor of 1 or more to one of {tenants}")  # fmt: skip
        return self.shares or ((1.0,) * len(kinds) if drifts else loads.SIZES)

    def offers(self, seed: int, world: World | None = None) -> list[loads.Offer]:
        """The requests of a seed."""
        for name in ("estimates", "prompts"):
            low, high = getattr(self, name)
            if low > high:
                raise KnobError(f"LLMTenants.{name}", f"{low} is above {high}", "swap them")
        if self.trace:
            made, arrival_s = loads.from_trace(self.trace, self.requests)
            return made.offers(arrival_s, self.priorities)
        shares = self._shares()
        if self.workload == "drift":
            made = loads.drifting(
                self.requests, seed, kinds=self.tenants, shares=shares, drift=self.drift,
                turned=self.turned, turn_at=self.turn_at, noise=self.noise,
                estimates=self.estimates, prompts=self.prompts,
            )  # fmt: skip
        else:
            data = (self.data or ".") if self.workload == "traces" else ""
            made = loads.real_lengths(
                self.requests, seed, shares=shares, most_prompt=self.most_prompt, data=data
            )
        capacity = self.capacity_per_s(made.prompt.mean(), made.output.mean(), world)
        rates = (self.loads[0] * capacity, self.loads[1] * capacity)
        arrival_s = loads.alternating(len(made), rates, self.phase_s, seed)
        for tenant, factor in self.floods.items():
            made, arrival_s = loads.flooded(made, arrival_s, tenant, factor, seed)
        return made.offers(arrival_s, self.priorities)

    def leaves(self, offers: Sequence[loads.Offer], seed: int) -> list[tuple[float, int]]:
        """(when, which) clients give up: after an exponential time of a mean answer's length."""
        if not self.cancels:
            return []
        who = uniforms(Stream(seed, "tenants", "cancel"), len(offers)) < self.cancels
        wait = exponentials(Stream(seed, "tenants", "patience"), len(offers))
        mean_s = self.constants()[0] * float(np.mean([each._output_tokens for each in offers]))
        return [(offers[i].arrival_s + wait[i] * mean_s, i) for i in np.flatnonzero(who).tolist()]

    def desk(self, part: Scheduler, seed: int, world: World | None = None) -> Desk:
        """Everything that a run needs but a clock."""
        offers = self.offers(seed, world)
        return Desk(offers, self.replica(part, world), self.leaves(offers, seed))

    # -- the run

    async def drive(self, driver: Driver) -> Log:
        desk = self.desk(driver.part, driver.rng.getrandbits(32), self.__dict__.get("place"))
        await play_out(driver, desk)
        return desk.end()

    def host(self, part: Any, world: World) -> Mapping[str, Any]:
        self.device(world)
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
        found = {k: v for k, v in times(log.served).items() if k in self.metrics}
        count, seconds = max(len(log.offers), 1), max(log.seconds, 1e-9)
        target = Target(self.ttft_s, self.tpot_s)
        met = sum(target.met(each.ttft_s, each.tpot_s) for each in log.served)
        by_tenant: dict[str, list[float]] = {}
        for each in log.served:
            by_tenant.setdefault(loads.tenant_of(each.kind), []).append(each.latency_s)
        # Requests from which the estimate was made say nothing about how good it is.
        profiled = self.workload != "drift" and len(log.offers) > loads.PROFILED
        _, told, given = errors_of(log, loads.PROFILED if profiled else 0)
        if len(told) and not self.trace:
            found |= {
                "mae_tokens": float(np.abs(told).mean()),
                "rmse_tokens": float(np.sqrt((told**2).mean())),
                "given_mae_tokens": float(np.abs(given).mean()),
                "given_rmse_tokens": float(np.sqrt((given**2).mean())),
            }
        worst = (float(np.quantile(each, 0.95)) for each in by_tenant.values())
        return found | {
            "worst_tenant_p95_s": max(worst, default=0.0), "attainment": met / count,
            "overtaken": float(len(overtaken(log.served, self.age_limit_s))),
            "tokens_per_s": log.made / seconds, "busy": log.busy_s / seconds,
            "refused": len(log.refused) / count, "cancelled": len(log.cancelled) / count,
            "preemptions": float(log.preemptions),
        }  # fmt: skip

    def views(self, rng: Stream) -> Iterator[tuple[str, tuple[Any, ...], Any]]:
        """A history for the laws of policies: empty, waiting, full, and answers that end."""
        kinds = (*self.tenants, "stranger")
        for step in range(30):
            waiting = [] if step % 7 == 0 else _some(rng, kinds, 1000 * step, rng.below(12))
            running = [] if step % 5 == 0 else _some(rng, kinds, 1000 * step + 500, rng.below(6))
            for seq in running:
                seq.computed, seq.blocks_held = seq.request.prompt_tokens, 64
                seq.generated = seq.planned = 1
            view = Seen(2.0 * step, waiting, running, rng.below(200), self.block_tokens,
                        lambda seq: Hit(0, 0), lambda seq: seq.blocks_held)  # fmt: skip
            yield "next_batch", (view,), _judge(view)
            if running:
                yield "finished", (running[0], 2.0 * step + 1), lambda answer: answer is None


class Seen(EngineView):
    """A view with a length: how many requests it shows."""

    def __len__(self) -> int:
        return len(self.waiting) + len(self.running)


def _some(rng: Stream, kinds: Sequence[str], first: int, count: int) -> list[Running]:
    return [
        Running(
            loads.Offer(first + at, 0.1 * at, 1 + rng.below(200), 2 + rng.below(200),
                        kind=rng.choice(kinds), estimate=float(rng.below(300)),
                        priority=rng.below(3)),
            0.1 * at,
        )
        for at in range(count)
    ]  # fmt: skip


def _judge(view: EngineView) -> Any:
    here = {seq.request.id for seq in (*view.waiting, *view.running)}

    def legal(answer: Batch) -> bool:
        named = [seq.request.id for seq in (*(seq for seq, _ in answer.work), *answer.preempt)]
        fits = all(1 <= tokens <= seq.missing for seq, tokens in answer.work)
        return fits and len(set(named)) == len(named) and set(named) <= here

    return legal


def faults_of(log: Log) -> list[Violation]:
    """What must never happen: a request lost, served twice, or refused in silence."""
    ended = [number for number, _ in log.refused] + log.cancelled
    found = list(exactly_once(
        [each.id for each in log.offers], [each.id for each in log.served], ended
    ))  # fmt: skip
    found += [
        Violation(kind="no_reason", message=f"request {number} was refused in silence")
        for number, reason in log.refused if not reason
    ]  # fmt: skip
    for each in log.served:
        offer: Request = log.offers[each.id]
        if each.output_tokens != offer._output_tokens:
            found.append(Violation(
                kind="cut_short", message=f"request {each.id} made {each.output_tokens} tokens of "
                f"{offer._output_tokens}"))  # fmt: skip
        if not offer.arrival_s <= each.started_s <= each.first_s <= each.last_s:
            found.append(Violation(kind="out_of_time", message=f"request {each.id}: {each}"))
    found += [Violation(kind="cache_books", message=text) for text in log.faults]
    return found


__all__ = ["CATEGORIES", "LLMTenants", "faults_of"]
