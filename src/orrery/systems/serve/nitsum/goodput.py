"""How many requests a second a plan would serve within their targets: a model in closed form.

Interactive requests come first. Those that compute prompts are a queue with several servers whose
work ahead falls off exponentially; whoever cannot be in time any more is left out, and long prompts
are that sooner than short ones, so a queue that is too full loses its long prompts and not all.
Those that make answers carry as many at once as the step time allows within the target. In mixed
instances a prompt stops the answers of the others, as often as a Poisson process comes. What is
left of the time serves the background; where that is too little, its longest prompts are left out.
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
# Where those too many can go elsewhere, it may be so full.
PACKED = 0.97
# How fast the share in time falls with the share of tokens that can be made, beyond what can.
COLLAPSE = 7
# Waits, as a share of those in a queue that serves one by one; chunks are never quite full.
TOGETHER, WASTE = 1.4, 1.05
# The share of left-over time that background prompts really get: of whole steps, and of steps
# beside interactive answers.
USED, BESIDE = 0.97, 0.8
# An instance that carries fewer interactive answers than this is left to the background.
FEW = 8
# Background prompts take at most this share of the interactive target for the first token.
STEP_SHARE = 0.2
# Fewer prompt tokens than this are not computed beside interactive answers.
LEAST_CHUNK = 32


class Speeds(NamedTuple):
    """What one degree does for the demand of the moment.

    prompts_s     of each typical interactive prompt alone
    works_s       of each of them where others fill up its chunks; their mean is first_s
    later_s       the same of a background prompt, in the mean
    token_s       of a prompt token; chunk_s, of a whole chunk; later_chunk_s, of a later one
    step_s        of a step that makes a few tokens
    carries       answers at once within the interactive target; makes, their tokens a second
    carries_late  the same within the background's target; makes_late
    """

    prompts_s: tuple[float, ...]
    works_s: tuple[float, ...]
    first_s: float
    later_s: float
    token_s: float
    chunk_s: float
    later_chunk_s: float
    step_s: float
    carries: int
    makes: float
    carries_late: int
    makes_late: float


class Prompts(NamedTuple):
    """What instances that only compute prompts do: shares in time and busy, and the rest."""

    in_time: float
    busy: float
    later_per_s: float


class Model:
    """Goodput of plans for the demand of two tiers.

    Every number about a degree is computed once; a plan then costs some additions.
    """

    def __init__(
        self, tiers: Sequence[Tier], demands: Sequence[Demand], costs: Mapping[int, Any],
        capacity: Mapping[int, int], chunk_tokens: int, most_seqs: int, margin: float = 0.97,
        speeds: Mapping[int, Speeds] | None = None,
    ) -> None:  # fmt: skip
        self.first, self.later = demands[0], demands[-1]
        self.tiers, self.margin, self.chunk_tokens = tiers, margin, chunk_tokens
        self.most_seqs, self.costs, self.capacity = most_seqs, costs, capacity
        self.speeds = speeds or {tp: self._speed(costs[tp], capacity[tp]) for tp in costs}
        self.context = max(round(self.first.prompt + self.first.answer / 2), 1)
        self._mixed: dict[tuple[int, float, int], tuple[float, float]] = {}
        self._prompts: dict[tuple[int, ...], Prompts] = {}

    def unsure(self, deviations: float) -> Model:
        """The model if as much more came as so many standard errors of the estimates are."""
        demands = [
            each._replace(rate_per_s=each.rate_per_s * max(1 + deviations * each.unsure, 0.1))
            for each in (self.first, self.later)
        ]
        return Model(self.tiers, demands, self.costs, self.capacity, self.chunk_tokens,
                     self.most_seqs, self.margin, self.speeds)  # fmt: skip

    def _speed(self, cost: Any, capacity: int) -> Speeds:
        first, later, chunk = self.first, self.later, self.chunk_tokens
        prompts_s = tuple(cost.seconds([(max(round(p), 1), 0)], 0, 0) for p in first.prompts)
        works_s = tuple(work_s(cost, p, chunk) for p in first.prompts)
        token_s = cost.seconds([(1024, 0)], 0, 0) / 1024
        fits = max(min(int(STEP_SHARE * self.tiers[0].ttft_s / token_s), chunk), 64)
        later_s = sum(work_s(cost, p, fits) for p in later.prompts) / len(later.prompts)
        both = first.rate_per_s * first.answer + later.rate_per_s * later.answer
        weight = first.rate_per_s * first.answer / both if both else 1.0
        context = weight * (first.prompt + first.answer / 2)
        context += (1 - weight) * (later.prompt + later.answer / 2)
        context = max(round(context), 1)
        most = max(min(self.most_seqs, int(0.95 * capacity / context)), 1)
        found: list[Any] = []
        for tier in (self.tiers[0], self.tiers[-1]):
            count = most_within(cost, context, self.margin * tier.tpot_s, most)
            makes = count / cost.seconds([], count, count * context) if count else 0.0
            found += [count, makes]
        chunk_s, step_s = cost.seconds([(chunk, 0)], 0, 0), cost.seconds([], 4, 4 * context)
        return Speeds(prompts_s, works_s, sum(works_s) / len(works_s), later_s, token_s, chunk_s,
                      fits * token_s, step_s, *found)  # fmt: skip

    def goodput_per_s(self, plan: Plan) -> tuple[float, float]:
        """(interactive, background) requests a second within their targets."""
        return self._split(plan) if plan.split else self._whole(plan)

    def total(self, plan: Plan) -> float:
        """Requests a second within their targets."""
        return sum(self.goodput_per_s(plan))

    def _background(self, room_per_s: float) -> float:
        """Background requests in time where so many usual ones fit: the longest are left out."""
        rate, prompts = self.later.rate_per_s, self.later.prompts
        if USED * room_per_s >= rate:
            return rate
        room, served = USED * room_per_s / rate * sum(prompts), 0.0
        for tokens in sorted(prompts):
            served += min(room / tokens, 1.0)
            room -= tokens
            if room <= 0:
                break
        return rate * served / len(prompts)

    # -- prompts and answers apart

    def _split(self, plan: Plan) -> tuple[float, float]:
        makes = makes_late = only_late = 0.0
        for role, tp in plan.kinds:
            if role != "P":
                speed = self.speeds[tp]
                makes += STEADY * speed.makes
                makes_late += FULL * speed.makes_late
                only_late += 0.0 if speed.carries >= FEW else FULL * speed.makes_late
        first, later = self.first, self.later
        prompts = self._prompting(tuple(tp for role, tp in plan.kinds if role == "P"))
        early = prompts.in_time
        wanted = first.rate_per_s * first.answer
        # Where the interactive pace can be kept the others' tokens come at that pace. Where more
        # is wanted than can be made, steps become longer for all, and most are late.
        kept = wanted <= makes
        if not kept and only_late:
            # Those too many go where nobody keeps the pace, and the others keep theirs.
            early *= min(makes / STEADY * PACKED / wanted, 1.0)
        elif not kept:
            early *= (makes / wanted) ** COLLAPSE
        left_made = (max(makes - wanted, 0.0) + only_late) if kept else makes_late - wanted
        room = max(FULL - prompts.busy, 0.0) * prompts.later_per_s
        late = min(self._background(room), max(left_made, 0.0) / later.answer)
        return first.rate_per_s * early, late

    def _prompting(self, degrees: tuple[int, ...]) -> Prompts:
        """Interactive prompts on instances that do nothing else, and what is left of these."""
        if degrees not in self._prompts:
            total = sum(1 / self.speeds[tp].first_s for tp in degrees)
            busy = self.first.rate_per_s / total
            early = used = 0.0
            later = sum(1 / self.speeds[tp].later_s for tp in degrees)
            # Between interactive prompts, steps of the background are under way.
            others = min(self.later.rate_per_s / later, max(1 - busy, 0.0))
            for tp in sorted(set(degrees)):
                speed = self.speeds[tp]
                share = degrees.count(tp) / speed.first_s / total
                slack_s = self.tiers[0].ttft_s - others * speed.later_chunk_s
                found = _in_time(speed, busy, len(degrees), slack_s)
                early, used = early + share * found[0], used + share * found[1]
            self._prompts[degrees] = Prompts(early, used, later)
        return self._prompts[degrees]

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
        # Requests go where prompts are fast, and where answers have ended soon.
        total = sum(self._draw(tp) for tp in mine)
        room = sum(FULL / self.speeds[tp].later_s * self._decode_share(tp) for tp in others)
        first = 0.0
        for tp in mine:
            share = self.first.rate_per_s * self._draw(tp) / total
            key = (tp, round(share, 9), len(mine))
            if key not in self._mixed:
                self._mixed[key] = self._mixed_now(tp, share, len(mine))
            first += self._mixed[key][0]
            room += self._mixed[key][1]
        return first, self._background(room)

    def _draw(self, tp: int) -> float:
        return 1 / (self.speeds[tp].first_s * self.speeds[tp].step_s)

    def _decode_share(self, tp: int) -> float:
        """The share of the time left for prompts when background answers are made besides."""
        speed = self.speeds[tp]
        if not speed.makes_late:
            return 0.0
        return speed.later_s / (speed.later_s + self.later.answer / speed.makes_late)

    def _mixed_now(self, tp: int, rate: float, servers: int) -> tuple[float, float]:
        """One of several mixed instances: interactive requests in time, room for usual others."""
        speed, first, target = self.speeds[tp], self.first, self.tiers[0]
        at_once = min(max(round(rate * first.answer * target.tpot_s), 1), self.most_seqs)
        pace_s = float(self.costs[tp].seconds([], at_once, at_once * self.context))
        busy = rate * (speed.first_s + speed.step_s * 0.5)
        in_time, used = _in_time(speed, busy, servers, target.ttft_s)
        # A step with a prompt makes a token for everybody else too.
        keeps = _keeps_pace(
            first.answers, pace_s, target.tpot_s, rate, max(speed.first_s - 0.5 * pace_s, 1e-4)
        )
        # Beside interactive answers the background gets what these do not feel, else all.
        alone = math.exp(-rate * first.answer * pace_s)
        left_s = self.margin * target.tpot_s * max(1 - rate * speed.first_s, 0.0) - pace_s
        fits, beside = int(left_s / speed.token_s), 0.0
        if fits >= LEAST_CHUNK:
            step_s = self.costs[tp].seconds([(fits, 0)], at_once, at_once * self.context)
            beside = BESIDE * min(fits * speed.token_s / step_s, 1.0)
        left = alone * self._decode_share(tp) + (1 - alone) * beside
        return rate * in_time * keeps, max(1 - used, 0.0) * left / speed.later_s


def work_s(cost: Any, tokens: float, chunk_tokens: int) -> float:
    """Seconds that a prompt takes of an instance whose chunks others fill up."""
    total, past = 0.0, 0
    while past < tokens:
        share = min((tokens - past) / chunk_tokens, 1.0)
        total += share * cost.seconds([(chunk_tokens, past)], 0, 0)
        past += chunk_tokens
    return total


def _in_time(speed: Speeds, busy: float, servers: int, target_s: float) -> tuple[float, float]:
    """(share of prompts in time, share of the time that they take) in a queue of several servers.

    The chance of work ahead falls off as an exponential does. Its rate follows from the load of
    those who would still be in time behind so much work: from the slack of the longest prompt on it
    is the load of the others, and so forth, so it ends even where more comes than can be done.
    """
    if busy <= 0:
        return 1.0, 0.0
    # The step under way must end first, and the prompt shares its own with others.
    busy *= WASTE
    step_s = min(busy, 1.0) * speed.chunk_s
    slacks = sorted(
        (target_s - alone_s - step_s, work) for alone_s, work in
        zip(speed.prompts_s, speed.works_s, strict=True)
    )  # fmt: skip
    total, squares = sum(speed.works_s), sum(work * work for work in speed.works_s)
    load = busy / total
    power = math.sqrt(2 * (servers + 1)) - 1
    waits = busy**power
    odds = waits * (1 - busy) / (1 - waits) if abs(1 - busy) > 1e-6 else 1 / power
    per_work = TOGETHER / (2 * servers)
    jump_s = per_work * squares / total
    density, reached_s, mass = odds / jump_s, 0.0, 1.0
    early = used = 0.0
    for slack_s, work in slacks:
        if slack_s > reached_s:
            jump_s = per_work * squares / total
            fall = (1 - load * total) / jump_s * (slack_s - reached_s)
            after = density * math.exp(min(max(-fall, -50.0), 50.0))
            width_s = slack_s - reached_s
            mass += (density - after) / fall * width_s if abs(fall) > 1e-9 else density * width_s
            density, reached_s = after, slack_s
            if density > 1e100:  # only ratios matter
                mass, early, used, density = (x / density for x in (mass, early, used, density))
        if slack_s > 0:
            early, used = early + mass, used + load * work * mass
        total, squares = max(total - work, 1e-12), max(squares - work * work, 1e-15)
    mass += density * jump_s
    early, used = early / mass / len(slacks), used / mass
    # Who is left out of a queue that is too full is so by length, and by chance.
    return (early, used) if busy <= 1 else (0.5 * (early + 1 / busy), 0.5 * (used + 1.0))


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


__all__ = ["Model", "Prompts", "Speeds", "most_within", "work_s"]
