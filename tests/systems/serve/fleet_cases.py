"""Made-up fleets for the tests of planners: random templates on small markets."""

from __future__ import annotations

from orrery.base.rand import Stream
from orrery.systems.serve.problems.llm_fleet.market import Market, Need, price_list
from orrery.systems.serve.problems.llm_fleet.templates import Template

MODELS = ("Llama-3.1-8B", "Qwen2.5-32B", "Llama-3.1-70B")
GPUS = ("L4", "A10", "L40S", "H200")


def small_case(seed: int, most_gpus: int = 6):
    """A market of up to 4 types and 6 GPUs, up to 3 models, up to 40 templates each.

    Rates are drawn freely, so that large templates are often worse than small ones; every third
    template has one role only.
    """
    rng = Stream(seed, "coral", "case")
    gpus, models = GPUS[: 1 + rng.below(4)], MODELS[: 1 + rng.below(3)]
    market = price_list(gpus)
    prices = {name: round(0.5 + 4 * rng.random(), 3) for name in gpus}
    supply = dict.fromkeys(gpus, 0)
    for _ in range(most_gpus):
        supply[rng.choice(gpus)] += 1
    market = market.changed(prices=prices, available=supply)
    templates = []
    for model in models:
        for at in range(4 + rng.below(37)):
            use = {}
            for _ in range(1 + rng.below(3)):
                name = rng.choice(gpus)
                use[name] = use.get(name, 0) + 1
            rate = round(0.05 + rng.random() * sum(use.values()), 3)
            role = rng.below(6)
            templates.append(Template(
                f"{model} {at}", model, tuple(sorted(use.items())),
                0.0 if role == 0 else rate, 0.0 if role == 1 else rate,
            ))  # fmt: skip
    demand = tuple(Need(model, round(0.1 + 1.2 * rng.random(), 3)) for model in models)
    return market, demand, tuple(templates)


def tiny_market(**available: int) -> Market:
    """A market of the price list with supplies set."""
    names = {name.replace("_", "-"): count for name, count in available.items()}
    return price_list(tuple(names)).changed(available=names)


def brute_force(market, demand, templates) -> float | None:
    """The least cost by trying all counts; for a handful of templates."""
    caps = dict(zip(market.names, market.caps.tolist(), strict=True))
    best: list[float] = []

    def descend(at: int, left: dict[str, float], short: dict[str, list[float]], cost: float):
        if best and cost >= best[0]:
            return
        if all(max(each) <= 1e-9 for each in short.values()):
            best[:] = [cost]
            return
        if at == len(templates):
            return
        each = templates[at]
        count = 0
        while True:
            rest = {k: v - count * dict(each.gpus).get(k, 0) for k, v in left.items()}
            if min(rest.values()) < 0:
                return
            lack = dict(short)
            lack[each.model] = [
                lack[each.model][0] - count * each.prompts_per_s,
                lack[each.model][1] - count * each.answers_per_s,
            ]
            descend(at + 1, rest, lack, cost + count * each.price_per_h(market))
            count += 1

    descend(0, caps, {need.model: [need.rate_per_s] * 2 for need in demand}, 0.0)
    return best[0] if best else None


SIX_MODELS = (
    "Llama-3.1-8B", "Qwen2.5-14B", "Gemma-2-27B", "Qwen2.5-32B", "Mixtral-8x7B", "Llama-3.1-70B",
)  # fmt: skip


def large_case():
    """Six models on all 20 offers, with analytic rates: replays of all of it would take an hour."""
    from orrery.systems.serve.problems.llm_fleet.rates import guess_per_s
    from orrery.systems.serve.problems.llm_fleet.templates import catalogue

    market = price_list()
    demand = tuple(
        Need(model, rate)
        for model, rate in zip(SIX_MODELS, (60.0, 30.0, 12.0, 16.0, 20.0, 12.0), strict=True)
    )
    # Replays allow about 0.7 of the rate at which a replica would be busy all the time.
    templates = catalogue(demand, market, lambda s, p: round(0.7 * guess_per_s(s, p), 4))
    return market, demand, templates
