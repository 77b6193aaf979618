"""Scenarios: a market and a demand for a seed, with prices, supply and the mix of models drawn."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import msgspec
import numpy as np

from orrery.base.errors import UsageError
from orrery.base.rand import Stream
from orrery.systems.serve.problems.llm_fleet.market import (
    Demand,
    Market,
    Need,
    check_demand,
    price_list,
)
from orrery.systems.serve.problems.llm_fleet.program import solver
from orrery.systems.serve.problems.llm_fleet.rates import Target95
from orrery.systems.serve.problems.llm_fleet.templates import Templates, catalogue, rates, usage


class Scenario(msgspec.Struct, frozen=True):
    """What a planner is asked."""

    market: Market
    demand: Demand
    templates: Templates


@functools.lru_cache(maxsize=16)
def listed(models: tuple[str, ...], gpus: tuple[str, ...], promise: Target95) -> Templates:
    """All templates of models on offers; they do not depend on prices or supply."""
    demand = tuple(Need(model, 1.0, promise) for model in models)
    return catalogue(demand, price_list(gpus))


def draw(
    models: Sequence[str], gpus: Sequence[str], rates_per_s: Sequence[float], promise: Target95,
    seed: int, *, price_spread: float = 0.3, tight: float = 0.5, tightest: int = 8,
    plenty: Sequence[str] = (), mix: float = 0.5,
) -> Scenario:  # fmt: skip
    """A scenario of a seed.

    Prices vary by `price_spread` either way and demands by `mix`. Each offer is, with probability
    `tight`, capped at 0 to `tightest` GPUs, except those of `plenty`.
    """
    if len(rates_per_s) != len(models):
        raise UsageError(f"{len(rates_per_s)} rates for {len(models)} models; give one a model")
    market, stream = price_list(gpus), Stream(seed, "fleet", "scenario")
    prices, supply = {}, {}
    for offer in market.offers:
        factor = 1 + price_spread * (2 * stream.random() - 1)
        prices[offer.name] = round(offer.price_per_h * factor, 4)
        capped, cap = stream.random() < tight, stream.below(tightest + 1)
        if capped and offer.name not in plenty:
            supply[offer.name] = min(cap, offer.available)
        elif offer.name in plenty:
            supply[offer.name] = 100_000
    demand = [
        Need(model, round(rate * (1 + mix * (2 * stream.random() - 1)), 6), promise)
        for model, rate in zip(models, rates_per_s, strict=True)
    ]
    templates = listed(tuple(models), tuple(gpus), promise)
    market = market.changed(prices=prices, available=supply)
    return Scenario(market, check_demand(demand), templates)


def most_scale(templates: Templates, market: Market, demand: Demand) -> float:
    """By how much the demand could grow, all models alike, before the supply is spent.

    Fractions of replicas count, so a plan of whole replicas serves a little less.
    """
    use, rate = usage(templates, market), rates(templates)
    of = np.array([each.model for each in templates], dtype=object)
    n, rows, high = len(templates), [], []
    for column, cap in enumerate(market.caps):
        rows.append([*use[:, column], 0.0])
        high.append(cap)
    for need in demand:
        for side in (0, 1):
            rows.append([*(-rate[:, side] * (of == need.model)), need.rate_per_s])
            high.append(0.0)
    found = solver().linprog([0.0] * n + [-1.0], A_ub=np.array(rows), b_ub=high, method="highs")
    return float(-found.fun) if found.status == 0 else 0.0


def scaled(demand: Demand, factor: float) -> Demand:
    """The same demand, so many times as large."""
    return tuple(msgspec.structs.replace(n, rate_per_s=n.rate_per_s * factor) for n in demand)


__all__ = ["Scenario", "draw", "listed", "most_scale", "scaled"]
