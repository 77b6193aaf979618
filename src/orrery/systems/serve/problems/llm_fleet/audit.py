"""An independent validator: re-checks memory, SLO, supply and demand of a plan.

It shares no arithmetic with the planners: it counts GPUs one by one, adds weights up parameter by
parameter, and replays each chosen template alone, with other requests than those that set its rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from orrery.base.violation import Violation
from orrery.models.replica import drain
from orrery.models.specs import WEIGHT_B, ModelSpec, spec
from orrery.systems.serve.problems.llm_fleet.market import Demand, Market, Need
from orrery.systems.serve.problems.llm_fleet.port import Plan
from orrery.systems.serve.problems.llm_fleet.rates import (
    FEWEST,
    MOST,
    SPAN_S,
    WARM,
    in_role,
    most_context,
    on_time,
    replica_of,
    requests_at,
)
from orrery.systems.serve.problems.llm_fleet.replay import replay
from orrery.systems.serve.problems.llm_fleet.strategy import MEMORY_SHARE, Strategy
from orrery.systems.serve.problems.llm_fleet.templates import Template
from orrery.world.hardware import accelerator

# A rate is found on a few hundred requests; on others the share that is met may be this much less.
OTHER_REQUESTS = 0.05
SLACK = 1e-5


def audit(
    plan: Plan, market: Market, demand: Demand, templates: Sequence[Template], *,
    slo: bool = True, seed: int = 7,
) -> list[Violation]:  # fmt: skip
    """What is wrong with a plan; empty when nothing is. `slo` also replays what it chose."""
    known = {each.id: each for each in templates}
    found: list[Violation] = []
    for name, count in plan.counts.items():
        if name not in known:
            found.append(_wrong("unknown_template", f"{name!r} is on no list"))
        elif isinstance(count, bool) or not isinstance(count, int) or count < 1:
            found.append(_wrong("bad_count", f"{count!r} replicas of {name!r}"))
    if found:
        return found
    found += _supply(plan, market, known)
    found += _demand(plan, demand, known)
    for name in plan.counts:
        strategy = known[name].strategy
        if strategy is not None:
            found += memory_faults(strategy, _context(demand, strategy.model))
            if slo:
                found += _slo(known[name], demand, seed)
    return found


def _wrong(kind: str, message: str) -> Violation:
    return Violation(kind=kind, message=message)


def _context(demand: Demand, model: str) -> int:
    return max((most_context(n.promise.workload) for n in demand if n.model == model), default=0)


# -- supply and demand


def _supply(plan: Plan, market: Market, known: Mapping[str, Template]) -> Iterator[Violation]:
    taken: dict[str, int] = {}
    for name, count in plan.counts.items():
        for gpu, each in known[name].gpus:
            taken[gpu] = taken.get(gpu, 0) + each * count
    there = {offer.name: offer for offer in market.offers}
    cost = 0.0
    for gpu, count in taken.items():
        if gpu not in there:
            yield _wrong("no_such_gpu", f"{count} of {gpu!r}, which nobody offers")
            continue
        if count > there[gpu].available:
            yield _wrong("oversold", f"{count} of {gpu}, {there[gpu].available} available")
        cost += count * there[gpu].price_per_h
    if cost > market.budget_per_h * (1 + SLACK) + SLACK:
        yield _wrong("over_budget", f"{cost:.2f} an hour, {market.budget_per_h:.2f} allowed")
    if abs(cost - plan.cost_per_h) > SLACK * max(cost, 1.0):
        yield _wrong("wrong_cost", f"says {plan.cost_per_h:.6f} an hour, costs {cost:.6f}")


def _demand(plan: Plan, demand: Demand, known: Mapping[str, Template]) -> Iterator[Violation]:
    for need in demand:
        mine = [(known[n], k) for n, k in plan.counts.items() if known[n].model == need.model]
        prompts = math.fsum(each.prompts_per_s * count for each, count in mine)
        answers = math.fsum(each.answers_per_s * count for each, count in mine)
        can, slack = min(prompts, answers), SLACK * max(need.rate_per_s, 1.0)
        said = plan.served.get(need.model, 0.0)
        if said > can + slack or said > need.rate_per_s + slack:
            yield _wrong("boast", f"{need.model}: says {said:.6f}/s, can do {can:.6f}/s")
        if plan.aim == "cost" and can < need.rate_per_s - slack:
            yield _wrong("unmet_demand", f"{need.model}: {can:.6f}/s of {need.rate_per_s:.6f}/s")


# -- memory


def memory_faults(strategy: Strategy, context: int) -> list[Violation]:
    """What does not fit: weights and the cache of the longest request on each stage's devices."""
    model, found = spec(strategy.model), []
    layers = sum(stage.layers for stage in strategy.stages)
    if layers != model.layers:
        found.append(_wrong("wrong_layers", f"{strategy.text}: {layers} of {model.layers} layers"))
    for at, stage in enumerate(strategy.stages):
        if model.heads % stage.tp:
            found.append(_wrong("wrong_split", f"{strategy.text}: {model.heads} heads"))
        ends = (at == 0) + (at == len(strategy.stages) - 1)
        need_B = _weights_B(model, stage.layers, stage.tp, ends)
        need_B += context * _cache_B(model, stage.layers, stage.tp)
        room_B = accelerator(stage.gpu).memory_B * MEMORY_SHARE
        if need_B > room_B:
            found.append(_wrong(
                "out_of_memory", f"{strategy.text}: stage {at} needs {need_B / 2**30:.1f} GiB on "
                f"each {stage.gpu}, which has {room_B / 2**30:.1f}"))  # fmt: skip
    return found


def _weights_B(model: ModelSpec, layers: int, tp: int, ends: int) -> float:
    """Bytes of weights on one device: a share of the layers, and of the matrices at the ends."""
    total, outer = 0.0, 0.0
    for each in model.weights():
        width = WEIGHT_B[model.dtype_of(each)]
        if each.part in ("embedding", "head"):
            outer += each.total * width
        elif each.part in ("attention", "mlp", "norm"):
            total += each.total * width
    both = 1.0 if ends == 2 else 1.0 if model.tied and ends else ends / 2
    return (total * layers / model.layers + outer * both) / tp


def _cache_B(model: ModelSpec, layers: int, tp: int) -> float:
    width = WEIGHT_B[model.kv_dtype or model.dtype]
    if model.kv_lora_rank:
        return layers * (model.kv_lora_rank + model.qk_rope_dim) * width
    return layers * 2.0 * model.head_dim * max(model.kv_heads / tp, 1.0) * width


# -- the promise


def _slo(template: Template, demand: Demand, seed: int) -> list[Violation]:
    """Replay one replica at its own rate, with requests that it has not seen."""
    strategy = template.strategy
    need = next((each for each in demand if each.model == template.model), None)
    if need is None or strategy is None:
        return []
    rate = max(template.prompts_per_s, template.answers_per_s)
    alone = msgspec.structs.replace(template, prompts_per_s=rate, answers_per_s=rate)
    asked = msgspec.structs.replace(need, rate_per_s=rate)
    fared = role_replay(alone, asked, seed)
    least = need.promise.share - OTHER_REQUESTS
    if fared < least:
        text = f"{template.id}: {fared:.1%} on time at {rate:.3f}/s, {least:.0%} wanted"
        return [_wrong("slo_missed", text)]
    return []


def role_replay(template: Template, need: Need, seed: int) -> float:
    """The share of requests that one replica, alone at the rate of `need`, does in time."""
    strategy = template.strategy
    assert strategy is not None
    if strategy.role == "mixed":
        return replay({template.id: 1}, {template.id: template}, need, seed=seed).attainment
    count = int(min(max(need.rate_per_s * SPAN_S, FEWEST), MOST))
    coming = requests_at(need.promise.workload, need.rate_per_s, count, seed)
    served = drain(replica_of(strategy), [in_role(each, strategy.role) for each in coming])
    judged = [each for each in served if each.id >= int(count * WARM)]
    met = sum(on_time(each, need.promise.target, strategy.role) for each in judged)
    return met / len(judged)


__all__ = ["audit", "memory_faults", "role_replay"]
