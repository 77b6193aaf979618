"""How many requests a second a plan would serve within their targets: a model in closed form.

Interactive requests come first. Those that compute prompts are a queue with several servers; the
chance to wait longer than the target leaves is that of the exponential tail of such queues. Those
that make answers carry as many at once as the step time allows within the target. In mixed
instances a prompt stops the answers of the others, as often as a Poisson process comes. What is
left of the time serves the background.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from orrery.systems.serve.nitsum.estimate import Demand
from orrery.systems.serve.problems.llm_parallelism.plans import Plan
from orrery.systems.serve.problems.llm_parallelism.ports import Tier

# Nothing is planned to be busier than this.
FULL = 0.985
# The batch of answers fluctuates: on average it may be so full.
STEADY = 0.87
# How fast the share in time falls with the share of tokens that can be made, beyond what can.
COLLAPSE = 4
# Waits, as a share of those in a queue that serves one by one.
TOGETHER = 0.3
# An instance that carries fewer interactive answers than this is left to the background.
FEW = 8


class Speeds(NamedTuple):
    """What one degree does for the demand of the moment.

    token_s       of a prompt token in full chunks
    prompts_s     of each typical interactive prompt alone
    carries       answers at once within the interactive target; makes, their tokens a second
    carries_late  the same within the background's target; makes_late
    step_s        of a step that makes a few tokens
    """

    token_s: float
    prompts_s: tuple[float, ...]
    carries: int
    makes: float
    carries_late: int
    makes_late: float
    step_s: float


class Model:
    """Goodput of plans for the demand of two tiers.

    Every number about a degree is computed once; a plan then costs some additions.
    """

    def __init__(
        self, tiers: Sequence[Tier], demands: Sequence[Demand], costs: Mapping[int, Any],
        capacity: Mapping[int, int], chunk_tokens: int, most_seqs: int, margin: float = 0.97,
    ) -> None:  # fmt: skip
        self.first, self.later = demands[0], demands[-1]
        self.tiers, self.margin, self.chunk_tokens = tiers, margin, chunk_tokens
        self.most_seqs = most_seqs
        self.speeds = {tp: self._speed(costs[tp], capacity[tp]) for tp in costs}
        self._mixed: dict[tuple[int, float, float], tuple[float, float]] = {}
        self.costs = costs

    def _speed(self, cost: Any, capacity: int) -> Speeds:
        full_s = cost.seconds([(self.chunk_tokens, 0)], 0, 0)
        prompts_s = tuple(cost.seconds([(max(round(p), 1), 0)], 0, 0) for p in self.first.prompts)
        both = self.first.rate_per_s * self.first.answer + self.later.rate_per_s * self.later.answer
        weight = self.first.rate_per_s * self.first.answer / both if both else 1.0
        context = weight * (self.first.prompt + self.first.answer / 2)
        context += (1 - weight) * (self.later.prompt + self.later.answer / 2)
        context = max(round(context), 1)
        most = max(min(self.most_seqs, int(0.95 * capacity / context)), 1)
        found = []
        for tier in (self.tiers[0], self.tiers[-1]):
            count = most_within(cost, context, self.margin * tier.tpot_s, most)
            makes = count / cost.seconds([], count, count * context) if count else 0.0
            found += [count, makes]
        step_s = cost.seconds([], 4, 4 * context)
        return Speeds(full_s / self.chunk_tokens, prompts_s, *found, step_s)

    def goodput_per_s(self, plan: Plan) -> tuple[float, float]:
        """(interactive, background) requests a second within their targets."""
        return self._split(plan) if plan.split else self._whole(plan)

    def total(self, plan: Plan) -> float:
        """Requests a second within their targets."""
        return sum(self.goodput_per_s(plan))

    # -- prompts and answers apart

    def _split(self, plan: Plan) -> tuple[float, float]:
        tokens = makes = makes_late = only_late = 0.0
        servers = 0
        for role, tp in plan.kinds:
            speed = self.speeds[tp]
            if role == "P":
                tokens += 1 / speed.token_s
                servers += 1
            else:
                makes += STEADY * speed.makes
                makes_late += FULL * speed.makes_late
                only_late += 0.0 if speed.carries else FULL * speed.makes_late
        first, later = self.first, self.later
        admitted = min(first.rate_per_s, FULL * tokens / first.prompt)
        early = self._on_time(plan, admitted * first.prompt / tokens, servers)
        left_tokens = max(FULL * tokens - admitted * first.prompt, 0.0)
        wanted = first.rate_per_s * first.answer
        # Where the interactive pace can be kept the others' tokens come at that pace. Where more
        # is wanted than can be made, steps become longer for all, and most are late.
        kept = wanted <= makes
        if not kept:
            early *= (makes / wanted) ** COLLAPSE
        left_made = (max(makes - wanted, 0.0) + only_late) if kept else makes_late - wanted
        late = min(later.rate_per_s, left_tokens / later.prompt, max(left_made, 0.0) / later.answer)
        return admitted * early, late

    def _on_time(self, plan: Plan, busy: float, servers: int) -> float:
        """The share of interactive prompts computed within the target, of those that come."""
        target_s = self.tiers[0].ttft_s
        kinds = [tp for role, tp in plan.kinds if role != "D"]
        total = sum(1 / self.speeds[tp].token_s for tp in kinds)
        found = 0.0
        for tp in kinds:
            speed = self.speeds[tp]
            share = 1 / speed.token_s / total
            step_s = self.chunk_tokens * speed.token_s
            found += share * _in_time(speed.prompts_s, busy, servers, target_s, step_s)
        return found

    # -- mixed instances

    def _whole(self, plan: Plan) -> tuple[float, float]:
        """Interactive requests go to those that keep their pace, the rest gets the others."""
        degrees = [tp for _, tp in plan.kinds]
        mine: list[int] = []
        if self.first.rate_per_s > 0:
            mine = [tp for tp in degrees if self.speeds[tp].carries >= FEW] or degrees
        others = list(degrees)
        for tp in mine:
            others.remove(tp)
        weights = [1 / self.speeds[tp].token_s for tp in mine]
        alone = sum(FULL / self.speeds[tp].token_s / self.later.prompt * self._decode_share(tp)
                    for tp in others)  # fmt: skip
        first = late = 0.0
        for tp, weight in zip(mine, weights, strict=True):
            share = self.first.rate_per_s * weight / sum(weights)
            rest = max(self.later.rate_per_s - alone, 0.0) * weight / sum(weights)
            served = self._one(tp, share, rest)
            first += served[0]
            late += served[1]
        return first, min(late + alone, self.later.rate_per_s)

    def _decode_share(self, tp: int) -> float:
        """The share of the time left for prompts when background answers are made besides."""
        speed = self.speeds[tp]
        if not speed.makes_late:
            return 0.0
        prompt_s = self.later.prompt * speed.token_s
        return prompt_s / (prompt_s + self.later.answer / speed.makes_late)

    def _one(self, tp: int, rate: float, rest: float) -> tuple[float, float]:
        """One mixed instance with so many interactive requests, and others at most."""
        key = (tp, round(rate, 6), round(rest, 6))
        if key not in self._mixed:
            self._mixed[key] = self._mixed_now(tp, rate, rest)
        return self._mixed[key]

    def _mixed_now(self, tp: int, rate: float, rest: float) -> tuple[float, float]:
        speed, first, later = self.speeds[tp], self.first, self.later
        target = self.tiers[0]
        prompt_s = first.prompt * speed.token_s
        pace_s = self._pace_s(tp, rate * first.answer * target.tpot_s)
        busy = min(rate * (prompt_s + speed.step_s * 0.5), 0.999)
        step_s = self.chunk_tokens * speed.token_s
        in_time = _in_time(speed.prompts_s, busy, 1, target.ttft_s, step_s)
        # A step with a prompt makes a token for everybody else too.
        keeps = _keeps_pace(
            first.answers, pace_s, target.tpot_s, rate, max(prompt_s - 0.5 * pace_s, 1e-4)
        )
        left = max(self.margin * (1 - rate * prompt_s) - pace_s / target.tpot_s, 0.0)
        late = min(rest, left / (later.prompt * speed.token_s))
        return rate * in_time * keeps, late

    def _pace_s(self, tp: int, at_once: float) -> float:
        count = max(round(at_once), 1)
        context = max(round(self.first.prompt + self.first.answer / 2), 1)
        return float(self.costs[tp].seconds([], count, count * context))


def _in_time(
    prompts_s: Sequence[float], busy: float, servers: int, target_s: float, step_s: float
) -> float:
    """The chance that wait and prompt fit the target, in a queue with several servers."""
    mean = sum(prompts_s) / len(prompts_s)
    square = sum(p * p for p in prompts_s) / len(prompts_s)
    busy = min(busy, 0.999)
    waits = busy ** math.sqrt(2 * (servers + 1)) / max(busy, 1e-9) if busy > 0 else 0.0
    waits = min(waits * busy, 1.0) if servers > 1 else busy
    # Prompts that wait are computed several at once, which shortens the queue when it is long.
    spread_s = TOGETHER * square / (2 * mean) / (servers * (1 - busy))
    total = 0.0
    for prompt_s in prompts_s:
        # The step under way must end first, and the prompt shares its own with others.
        slack_s = target_s - prompt_s - busy * step_s
        if slack_s > 0:
            total += 1 - waits * math.exp(-slack_s / max(spread_s, 1e-9))
    return max(total, 0.0) / len(prompts_s)


def _keeps_pace(
    answers: Sequence[float], pace_s: float, target_s: float, rate: float, prompt_s: float
) -> float:
    """The chance that the prompts of others leave an answer its pace."""
    total = 0.0
    for tokens in answers:
        allowed = tokens * (target_s - pace_s) / max(prompt_s, 1e-9)
        expected = rate * tokens * target_s
        if allowed <= 0:
            continue
        if expected <= 0:
            total += 1.0
            continue
        score = (allowed + 0.5 - expected) / math.sqrt(expected)
        total += 0.5 * (1 + math.erf(score / math.sqrt(2)))
    return total / len(answers)


def most_within(cost: Any, context: int, limit_s: float, most: int) -> int:
    """How many answers can be made at once with steps within a limit; at most `most`."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if cost.seconds([], middle, middle * context) <= limit_s:
            low = middle
        else:
            high = middle - 1
    return low


__all__ = ["Model", "Speeds", "most_within"]
