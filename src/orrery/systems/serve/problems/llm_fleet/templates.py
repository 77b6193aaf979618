"""Stage 1 lists what a replica may be: every strategy on every multiset of GPUs that fits.

A template is a strategy with the GPUs it takes and the throughput it has under the promise. Its
two rates, of prompts and of answers, are what a plan adds up: a mixed replica gives both, one of a
single role gives one of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np

from orrery.base.errors import SpecError
from orrery.models.specs import spec
from orrery.models.weights import Layout
from orrery.systems.serve.problems.llm_fleet.market import Demand, Market, Need
from orrery.systems.serve.problems.llm_fleet.rates import (
    BLOCK_TOKENS,
    Target95,
    most_context,
    rate_of,
)
from orrery.systems.serve.problems.llm_fleet.strategy import (
    Stage,
    Strategy,
    balanced,
    kv_tokens,
)

TPS = (1, 2, 4, 8)
PIPE_TPS = (1, 2, 4)
LIMITS = (256, 64)
SPREAD = 4


class Template(msgspec.Struct, frozen=True):
    """What a replica may be.

    id           the strategy in words, with the cloud where that is not the first
    model        whose replica it is
    gpus         (offer, how many), each offer once, in order of the market
    prompts_per_s, answers_per_s   requests a second whose prompt, whose answer it computes in time
    strategy     how it runs; None for a made-up template
    """

    id: str
    model: str
    gpus: tuple[tuple[str, int], ...]
    prompts_per_s: float
    answers_per_s: float
    strategy: Strategy | None = None

    def price_per_h(self, market: Market) -> float:
        """What its GPUs cost an hour."""
        prices = dict(zip(market.names, market.prices.tolist(), strict=True))
        return sum(prices[name] * count for name, count in self.gpus)


Templates = tuple[Template, ...]


def check_templates(templates: Sequence[Template]) -> None:
    """Refuse templates that share an id, take no whole GPUs or have a rate that cannot be."""
    seen: set[str] = set()
    for each in templates:
        path = f"templates.{each.id}"
        if each.id in seen:
            raise SpecError(path, "comes twice", "give each template an id of its own")
        seen.add(each.id)
        for name, count in each.gpus:
            if type(count) is not int or count < 1:
                raise SpecError(f"{path}.gpus", f"{count!r} of {name}", "give 1 or more")
        for side in ("prompts_per_s", "answers_per_s"):
            value = getattr(each, side)
            if not (math.isfinite(value) and value >= 0):
                raise SpecError(f"{path}.{side}", f"{value} is refused", "give 0 or more")


def usage(templates: Sequence[Template], market: Market) -> np.ndarray:
    """GPUs of each offer (columns) that each template (rows) takes."""
    place = {name: at for at, name in enumerate(market.names)}
    made = np.zeros((len(templates), len(market)))
    for row, each in enumerate(templates):
        for name, count in each.gpus:
            if name not in place:
                fix = f"the market has {', '.join(market.names) or 'nothing'}"
                raise SpecError(f"templates.{each.id}", f"takes {name!r}", fix)
            made[row, place[name]] += count
    return made


def rates(templates: Sequence[Template]) -> np.ndarray:
    """The two rates (columns) of each template (rows)."""
    made = [(each.prompts_per_s, each.answers_per_s) for each in templates]
    return np.array(made, float).reshape(-1, 2)


# -- listing


def strategies(model: str, gpus: Sequence[str], context: int) -> Iterator[Strategy]:
    """Every strategy of a model on these kinds of device that can hold a request of that context.

    One stage of 1, 2, 4 or 8 devices in each role, mixed ones with two limits of the batch; and
    pipelines of two stages, of one kind or of two, with layers by the devices' speed. A replica has
    at most four times the devices that it needs: beyond that, more replicas do better.
    """
    whole = spec(model)
    shapes: list[tuple[tuple[Stage, ...], bool]] = []
    fewest: dict[str, int] = {}
    for gpu in gpus:
        one = [(Stage(gpu, tp, whole.layers),) for tp in TPS if _splits(model, tp)]
        fit = [each for each in one if kv_tokens(Strategy(model, each)) >= context]
        fewest[gpu] = fit[0][0].tp if fit else 2 * TPS[-1]
        shapes += [(each, True) for each in fit if each[0].tp <= SPREAD * fewest[gpu]]
    if not whole.first_dense and whole.layers > 1:
        pairs = list(itertools.combinations_with_replacement(gpus, 2))
        for (left, right), tp in itertools.product(pairs, PIPE_TPS):
            if not _splits(model, tp) or 2 * tp > SPREAD * min(fewest[left], fewest[right]):
                continue
            cut = balanced(model, [(left, tp), (right, tp)])
            if cut is not None:
                shapes.append((cut, False))
    for stages, roles in shapes:
        if kv_tokens(Strategy(model, stages)) < context:
            continue
        yield Strategy(model, stages, "mixed", LIMITS[0])
        if roles:
            yield from (Strategy(model, stages, "mixed", limit) for limit in LIMITS[1:])
            yield Strategy(model, stages, "prefill", LIMITS[0])
            yield Strategy(model, stages, "decode", LIMITS[0])


def _splits(model: str, tp: int) -> bool:
    try:
        Layout(tp=tp).check_fits(spec(model))
    except SpecError:
        return False
    return True


Rate = Callable[[Strategy, Target95], float]


def template_of(strategy: Strategy, offers: dict[str, str], rate_per_s: float) -> Template:
    """A strategy on the offers that stand for its kinds of device."""
    gpus: dict[str, int] = {}
    for device, count in strategy.devices.items():
        gpus[offers[device]] = count
    clouds = {name.partition("@")[2] for name in gpus} - {""}
    role = strategy.role
    return Template(
        id=strategy.text + "".join(f" @{cloud}" for cloud in sorted(clouds)),
        model=strategy.model, gpus=tuple(gpus.items()),
        prompts_per_s=0.0 if role == "decode" else rate_per_s,
        answers_per_s=0.0 if role == "prefill" else rate_per_s, strategy=strategy,
    )  # fmt: skip


def templates_of(need: Need, market: Market, rate: Rate = rate_of) -> Templates:
    """All templates of a model on a market, those that cannot keep the promise left out."""
    context = most_context(need.promise.workload) + BLOCK_TOKENS
    found: list[Template] = []
    for cloud in dict.fromkeys(each.cloud for each in market.offers):
        offers = {each.device: each.name for each in market.offers if each.cloud == cloud}
        for strategy in strategies(need.model, sorted(offers), context):
            made = rate(strategy, need.promise)
            if made > 0:
                found.append(template_of(strategy, offers, made))
    return tuple(found)


def catalogue(demand: Demand, market: Market, rate: Rate = rate_of) -> Templates:
    """The templates of all models."""
    return tuple(each for need in demand for each in templates_of(need, market, rate))


__all__ = [
    "Template", "Templates", "catalogue", "check_templates", "rates", "strategies", "template_of",
    "templates_of", "usage",
]  # fmt: skip
