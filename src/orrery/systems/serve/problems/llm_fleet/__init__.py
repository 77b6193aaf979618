"""Which GPUs should be bought, and how should every replica of several models run on them?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

import msgspec

from orrery.base.errors import KnobError
from orrery.base.rand import Stream
from orrery.base.violation import Violation
from orrery.parts import Driver, Fraction, Metric, NonNegative, Outcome, Positive, Problem
from orrery.parts import Whole as WholeNumber
from orrery.systems.serve.problems.llm_fleet.audit import audit
from orrery.systems.serve.problems.llm_fleet.market import (
    Demand,
    Market,
    Need,
    Offer,
    check_demand,
    price_list,
)
from orrery.systems.serve.problems.llm_fleet.port import Plan, Planner
from orrery.systems.serve.problems.llm_fleet.rates import Target95
from orrery.systems.serve.problems.llm_fleet.replay import Fared, replay
from orrery.systems.serve.problems.llm_fleet.scenarios import Scenario, draw, most_scale, scaled
from orrery.systems.serve.problems.llm_fleet.templates import Template, Templates
from orrery.world import World

# What the scenarios of the claims are about; the defaults of the problem are fewer, to be quick.
MODELS = ("Llama-3.1-8B", "Qwen2.5-32B", "Llama-3.1-70B")
GPUS = (
    "L4", "A10", "L40S", "RTX-PRO-6000", "A100-40-SXM", "A100-80-SXM", "H100-SXM", "H200",
)  # fmt: skip
Some = Annotated[tuple[NonNegative, ...], msgspec.Meta(min_length=1)]


class Epoch(msgspec.Struct, frozen=True):
    """One plan: what was asked, what ran before, what was chosen, how its requests fared."""

    market: Market
    demand: Demand
    running: dict[str, int]
    plan: Plan
    fared: tuple[Fared, ...]

    def moved(self) -> tuple[int, int]:
        """(replicas started, replicas stopped)."""
        names = [*self.plan.counts, *(n for n in self.running if n not in self.plan.counts)]
        change = [self.plan.counts.get(n, 0) - self.running.get(n, 0) for n in names]
        return sum(max(each, 0) for each in change), sum(max(-each, 0) for each in change)


class Log(msgspec.Struct, frozen=True):
    """All that a run left behind."""

    templates: Templates
    epochs: tuple[Epoch, ...]


class LLMFleet(Problem):
    """Buy GPUs on a market and choose how every replica of several models runs on them.

    A planner is shown offers (price, supply), the demand for each model, all templates that a
    replica may be (GPUs, tensor or pipeline split, role, limit of the batch, with the throughput
    that virtual-time replays gave them) and what runs now. It answers with counts of templates.
    Each plan is audited, then replayed whole: Poisson arrivals at the planned rate, with lengths
    like those of the Azure traces.

    models, rates_per_s   what is served, requests a second each; `mix` varies them by the seed
    gpus                  offers of the dated price table, which is our assumption
    price_spread          prices vary by so much either way
    tight, tightest       the probability that an offer is capped, and the highest such cap
    plenty                offers without a cap
    factors               the demand of each epoch, as a multiple; a plan is made for each
    vanish                an offer that is gone in the last epoch
    scarce                over 0: the demand is so many times what the supply could serve
    budget_per_h          dollars an hour at most; 0: no limit
    workload, ttft_s, tpot_s   the lengths, and what users were promised (95 % of requests)
    replays               requests of a model in the replay of a plan at most; 0: no replay
    """

    models: tuple[str, ...] = ("Llama-3.1-8B", "Llama-3.1-70B")
    gpus: tuple[str, ...] = ("L4", "L40S", "A100-80-SXM", "H100-SXM")
    rates_per_s: Some = (20.0, 4.0)
    mix: Fraction = 0.5
    price_spread: Fraction = 0.3
    tight: Fraction = 0.5
    tightest: WholeNumber = 8
    plenty: tuple[str, ...] = ("L40S", "A100-80-SXM")
    factors: Annotated[tuple[Positive, ...], msgspec.Meta(min_length=1)] = (1.0, 2.0)
    vanish: str = ""
    scarce: NonNegative = 0.0
    budget_per_h: NonNegative = 0.0
    workload: str = "azure-conv"
    ttft_s: Positive = 2.0
    tpot_s: Positive = 0.1
    replays: WholeNumber = 160
    span_s: Positive = 40.0

    trial: ClassVar[Mapping[str, Any]] = {"replays": 40}
    port: ClassVar[type] = Planner
    metrics: ClassVar[Mapping[str, Metric]] = {
        "cost_per_h": Metric("$/h", "lower", "of the first plan"),
        "last_cost_per_h": Metric("$/h", "lower", "of the last plan"),
        "goodput_per_s": Metric("1/s", "higher", "requests that the first plan serves in time"),
        "last_goodput_per_s": Metric("1/s", "higher", "the same of the last plan"),
        "unserved": Metric("", "lower", "share of all demand that no plan served"),
        "attainment": Metric("", "higher", "share of replayed requests on time; least of a model"),
        "gpus": Metric("", "lower", "bought by the first plan"),
        "replicas": Metric("", "", "run by the first plan"),
        "started": Metric("", "lower", "replicas started after the first plan"),
        "stopped": Metric("", "lower", "replicas stopped after the first plan"),
        "templates": Metric("", "", "that a replica may be"),
        "columns": Metric("", "lower", "integer variables of the largest program solved on-line"),
        "nodes": Metric("", "lower", "branch-and-bound nodes of all solves"),
        "gap": Metric("", "lower", "proven bound on how much better a plan could be"),
        "bound_by": Metric("", "", "resources named as limits of the goodput"),
    }

    def world(self) -> World:
        return World.lan(1)  # the fleet is bought, not given: the world only keeps the time

    def host(self, part: Any, world: World) -> Mapping[str, Any]:
        self._check_knobs()
        return {}

    # -- the question

    def promise(self) -> Target95:
        """What users were promised."""
        return Target95(self.workload, self.ttft_s, self.tpot_s)

    def _check_knobs(self) -> None:
        price_list(self.gpus)
        check_demand([Need(model, 1.0, self.promise()) for model in self.models])
        if len(self.rates_per_s) != len(self.models):
            raise KnobError("LLMFleet.rates_per_s", f"{len(self.rates_per_s)} numbers for "
                            f"{len(self.models)} models", "give one a model")  # fmt: skip
        unknown = [name for name in (*self.plenty, self.vanish) if name and name not in self.gpus]
        if unknown:
            fix = f"name some of {', '.join(self.gpus)}"
            raise KnobError("LLMFleet.plenty, vanish", f"no offer {unknown[0]!r}", fix)

    def scenario(self, seed: int) -> Scenario:
        """The market, the demand and the templates of a seed."""
        self._check_knobs()
        found = draw(
            self.models, self.gpus, self.rates_per_s, self.promise(), seed,
            price_spread=self.price_spread, tight=self.tight, tightest=self.tightest,
            plenty=() if self.scarce else self.plenty, mix=self.mix,
        )  # fmt: skip
        market, demand = found.market, found.demand
        if self.scarce:
            demand = scaled(demand, self.scarce * most_scale(found.templates, market, demand))
        if self.budget_per_h:
            market = market.changed(budget_per_h=self.budget_per_h)
        return Scenario(market, demand, found.templates)

    def asked(self, scenario: Scenario) -> Iterator[tuple[Market, Demand]]:
        """The market and the demand of each epoch."""
        for at, factor in enumerate(self.factors):
            market = scenario.market
            if self.vanish and at == len(self.factors) - 1:
                market = market.changed(available={self.vanish: 0})
            yield market, scaled(scenario.demand, factor)

    # -- the run

    def play(
        self, planner: Planner, scenario: Scenario, seed: int
    ) -> Iterator[tuple[Epoch, float]]:
        """Each epoch, with the virtual seconds of its replay."""
        known = {each.id: each for each in scenario.templates}
        running: dict[str, int] = {}
        for at, (market, demand) in enumerate(self.asked(scenario)):
            plan = planner.plan(market, demand, scenario.templates, dict(running))
            fared = tuple(self._fared(plan, known, demand, seed + at)) if self.replays else ()
            yield (
                Epoch(market, demand, running, plan, fared),
                max((each.seconds for each in fared), default=0.0),
            )
            running = dict(plan.counts)

    def _fared(
        self, plan: Plan, known: Mapping[str, Template], demand: Demand, seed: int
    ) -> Iterator[Fared]:
        if any(name not in known for name in plan.counts):
            return  # the audit says so
        for need in demand:
            asked = msgspec.structs.replace(need, rate_per_s=plan.served.get(need.model, 0.0))
            yield replay(plan.counts, known, asked, seed=seed + 1, span_s=self.span_s,
                         most=self.replays)  # fmt: skip

    async def drive(self, driver: Driver) -> Log:
        planner: Planner = driver.part
        planner.start()
        epochs = []
        seed = driver.rng.getrandbits(30)
        begin_s = driver.now
        await driver.sleep(1e-3)
        # The replicas are modelled, so on a real clock there is nothing to wait for.
        virtual = abs(driver.now - begin_s - 1e-3) < 1e-9
        scenario = self.scenario(seed)
        for epoch, seconds in self.play(planner, scenario, seed):
            epochs.append(epoch)
            driver.emit(plan=epoch.plan.counts, cost_per_h=epoch.plan.cost_per_h)
            if virtual:
                await driver.sleep(seconds)
        return Log(scenario.templates, tuple(epochs))

    def check(self, outcome: Outcome) -> list[Violation]:
        log = outcome.driven
        return faults_of(log) if isinstance(log, Log) else []

    def measure(self, outcome: Outcome) -> dict[str, float]:
        log = outcome.driven
        return figures(log) if isinstance(log, Log) else {}

    # -- for the laws of policies

    def views(self, rng: Stream) -> Iterator[tuple[str, tuple[Any, ...], Any]]:
        """Markets that are ample, scarce or poor, also with nothing to choose; made-up rates."""
        market = price_list(("L4", "L40S", "H200"))
        demand = (Need("Llama-3.1-8B", 5.0), Need("Llama-3.1-70B", 2.0))
        templates = tuple(
            Template(f"{model} {gpu} {count}", model, ((gpu, count),), rate, rate)
            for model in ("Llama-3.1-8B", "Llama-3.1-70B")
            for gpu in market.names
            for count in (1, 2)
            for rate in [round(0.2 + rng.random() * count, 3)]
        )
        few = market.changed(available=dict.fromkeys(market.names, 2))
        poor = market.changed(budget_per_h=5.0)
        for place, asked, listed in (
            (market, (), templates), (market, demand, ()), (market, demand, templates),
            (few, demand, templates), (poor, demand, templates),
        ):  # fmt: skip
            yield "plan", (place, asked, listed, {}), _legal(place, asked, listed)
        runs = {templates[0].id: 2, templates[-1].id: 1}
        yield "plan", (market, demand, templates, runs), _legal(market, demand, templates)


def _legal(market: Market, demand: Demand, templates: Templates) -> Any:
    def legal(answer: Plan) -> bool:
        return isinstance(answer, Plan) and not audit(answer, market, demand, templates, slo=False)

    return legal


def faults_of(log: Log) -> list[Violation]:
    """What must never happen: a plan that does not fit or boasts, a request lost."""
    found: list[Violation] = []
    for epoch in log.epochs:
        found += audit(epoch.plan, epoch.market, epoch.demand, log.templates, slo=False)
        for each in epoch.fared:
            if each.answered != each.sent:
                text = f"{each.model}: {each.answered} of {each.sent} requests were answered"
                found.append(Violation(kind="lost_requests", message=text))
            found += [Violation(kind="cache_books", message=text) for text in each.faults]
    return found


def figures(log: Log) -> dict[str, float]:
    """The metrics of a run."""
    first, last = log.epochs[0], log.epochs[-1]
    size = {each.id: sum(count for _, count in each.gpus) for each in log.templates}
    wanted = sum(need.rate_per_s for epoch in log.epochs for need in epoch.demand)
    served = sum(epoch.plan.goodput_per_s for epoch in log.epochs)
    moves = [epoch.moved() for epoch in log.epochs[1:]]
    counts = first.plan.counts
    gap = max(epoch.plan.gap for epoch in log.epochs)
    fared = [each.attainment for epoch in log.epochs for each in epoch.fared]
    return {
        "cost_per_h": first.plan.cost_per_h, "last_cost_per_h": last.plan.cost_per_h,
        "goodput_per_s": first.plan.goodput_per_s, "last_goodput_per_s": last.plan.goodput_per_s,
        "unserved": max(1 - served / wanted, 0.0) if wanted else 0.0,
        "gpus": float(sum(size.get(name, 0) * count for name, count in counts.items())),
        "replicas": float(sum(counts.values())),
        "started": float(sum(up for up, _ in moves)),
        "stopped": float(sum(down for _, down in moves)),
        "templates": float(len(log.templates)),
        "columns": float(max(epoch.plan.columns for epoch in log.epochs)),
        "nodes": float(sum(epoch.plan.nodes for epoch in log.epochs)),
        "bound_by": float(len(last.plan.binding)),
        **({"attainment": min(fared)} if fared else {}),
        **({"gap": gap} if gap < float("inf") else {}),
    }  # fmt: skip


__all__ = [
    "GPUS", "MODELS", "Demand", "Epoch", "LLMFleet", "Log", "Market", "Need", "Offer",
    "Plan", "Planner", "Target95", "Template", "faults_of", "figures", "price_list",
]  # fmt: skip
