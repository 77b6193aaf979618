"""What can be bought and what is wanted: offers of GPUs, demands for models."""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from orrery.base.errors import SpecError, did_you_mean
from orrery.models.specs import spec
from orrery.systems.serve.problems.llm_fleet.data import read_data
from orrery.systems.serve.problems.llm_fleet.rates import SERVICES, Target95
from orrery.world.hardware import accelerator


class Offer(msgspec.Struct, frozen=True):
    """GPUs of one kind in one cloud: what one costs an hour, and how many there are."""

    name: str
    price_per_h: float
    available: int
    accelerator: str = ""
    cloud: str = "a"
    source: str = ""

    @property
    def device(self) -> str:
        """Its name in the hardware catalogue."""
        return self.accelerator or self.name


class Market(msgspec.Struct, frozen=True):
    """All offers, and what may be spent in an hour."""

    offers: tuple[Offer, ...]
    budget_per_h: float = math.inf

    def __len__(self) -> int:
        return len(self.offers)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.offers)

    @property
    def prices(self) -> np.ndarray:
        return np.array([each.price_per_h for each in self.offers])

    @property
    def caps(self) -> np.ndarray:
        return np.array([each.available for each in self.offers], float)

    def check(self) -> Market:
        """Refuse what cannot be a market; the market itself."""
        if len(set(self.names)) != len(self.names):
            raise SpecError("market.offers", "two offers have one name", "name each once")
        for each in self.offers:
            path = f"market.{each.name}"
            _known(each.device)
            if not (math.isfinite(each.price_per_h) and each.price_per_h >= 0):
                fix = "give dollars an hour, 0 or more: pruning is lossless only then"
                raise SpecError(f"{path}.price_per_h", f"{each.price_per_h} is refused", fix)
            if type(each.available) is not int or each.available < 0:
                problem = f"{each.available} is refused"
                raise SpecError(f"{path}.available", problem, "give a whole number, 0 or more")
        if math.isnan(self.budget_per_h) or self.budget_per_h < 0:
            problem = f"{self.budget_per_h} is refused"
            raise SpecError("market.budget_per_h", problem, "give 0 or more")
        return self

    def changed(
        self, *, prices: Mapping[str, float] | None = None,
        available: Mapping[str, int] | None = None, budget_per_h: float | None = None,
    ) -> Market:  # fmt: skip
        """The same market with some prices, supplies or the budget set otherwise."""
        for name in (*(prices or ()), *(available or ())):
            if name not in self.names:
                raise SpecError("market", f"no offer {name!r}", did_you_mean(name, self.names))
        offers = tuple(
            msgspec.structs.replace(
                each, price_per_h=(prices or {}).get(each.name, each.price_per_h),
                available=(available or {}).get(each.name, each.available),
            )
            for each in self.offers
        )  # fmt: skip
        budget = self.budget_per_h if budget_per_h is None else budget_per_h
        return Market(offers, budget).check()

    def only(self, names: Iterable[str]) -> Market:
        """The market with these offers alone."""
        keep = set(names)
        return Market(tuple(each for each in self.offers if each.name in keep), self.budget_per_h)


@functools.cache
def _known(device: str) -> None:
    """Refuse a device that the hardware catalogue has not; each is looked up once."""
    accelerator(device)


class Need(msgspec.Struct, frozen=True):
    """So many requests a second for a model, and what was promised to its users."""

    model: str
    rate_per_s: float
    promise: Target95 = Target95()


Demand = tuple[Need, ...]


def check_demand(demand: Sequence[Need]) -> Demand:
    """Refuse what cannot be a demand; the demand as a tuple."""
    seen: set[str] = set()
    for at, each in enumerate(demand):
        path = f"demand[{at}]"
        spec(each.model)
        if each.model in seen:
            raise SpecError(f"{path}.model", f"{each.model} comes twice", "add the two rates up")
        seen.add(each.model)
        if not (math.isfinite(each.rate_per_s) and each.rate_per_s >= 0):
            raise SpecError(f"{path}.rate_per_s", f"{each.rate_per_s} is refused", "give 0 or more")
        promise = each.promise
        if promise.workload not in SERVICES:
            fix = did_you_mean(promise.workload, SERVICES)
            raise SpecError(f"{path}.workload", f"unknown {promise.workload!r}", fix)
        for name in ("ttft_s", "tpot_s"):
            value = getattr(promise, name)
            if not (math.isfinite(value) and value > 0):
                raise SpecError(f"{path}.{name}", f"{value} is refused", "give seconds > 0")
        if not 0 < promise.share < 1:
            raise SpecError(f"{path}.share", f"{promise.share} is refused", "give a part of 1")
    return tuple(demand)


@functools.cache
def _listed() -> dict[str, Offer]:
    rows = tomllib.loads(read_data("gpu_prices.toml").decode())["offers"]
    return {each.name: each for each in msgspec.convert(rows, list[Offer])}


def price_list(names: Sequence[str] = ()) -> Market:
    """The market of the dated price table, or some of its offers.

    >>> price_list(["L4"]).offers[0].price_per_h
    0.8
    """
    known = _listed()
    for name in names:
        if name not in known:
            raise SpecError("gpus", f"no offer {name!r}", did_you_mean(name, known))
    return Market(tuple(known[name] for name in names or known)).check()


__all__ = ["Demand", "Market", "Need", "Offer", "check_demand", "price_list"]
