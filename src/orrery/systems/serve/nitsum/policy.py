"""Nitsum: the degree of tensor parallelism is changed while tiers of requests are served."""

from __future__ import annotations

from collections.abc import Sequence

from orrery.base.errors import KnobError
from orrery.models.requests import Request
from orrery.parts import Count, Fraction, Positive
from orrery.systems.serve.nitsum.estimate import Demand, Watch
from orrery.systems.serve.nitsum.goodput import FEW, LEAST_CHUNK, Model
from orrery.systems.serve.problems.llm_parallelism.plans import Plan
from orrery.systems.serve.problems.llm_parallelism.ports import (
    ClusterView,
    InstanceView,
    Moves,
    Parallelism,
    prompt_token_s,
)

# A request that cannot meet its target any more goes behind all that can.
LOST = 9.0
# What is ahead in a queue takes so many times as long as it would alone, and this share of the
# target for the first token is kept in reserve.
HASTE, SPARE = 1.1, 0.05
# A change costs so many seconds of goodput besides what the GPUs stand still: queues are upset.
UPSET_S = 0.3
# Where requests like these have come only lately, what the next seconds would cost counts too.
SOON_S = 10.0
# Whoever waits for less than the first share of the target is safe in a change; beyond the second
# it is late after one.
SAFE, RISKY = 0.3, 0.7
# Tiers come in order: an interactive request in time is worth so many of the background.
FIRST = 2.0
# The demand is looked at as estimated, with this weight, and so many standard errors above and
# below (which is exact for polynomials up to the fifth degree); so many plans at most.
MIDDLE, FAR = 2 / 3, 3**0.5
LIKELY = 100


class Nitsum(Parallelism):
    """Serves tiers of requests on fixed GPUs by changing tensor parallelism while it runs.

    "Nitsum: Serving Tiered LLM Requests with Adaptive Tensor Parallelism", 2026. A higher degree
    makes each token sooner, a lower one leaves room for more instances; which is better changes
    with the mix of tiers. Every few seconds the controller estimates what each tier asks for, and
    how surely, and goes through all partitions of the GPUs into instances (role, degree) with a
    model of goodput in closed form, in the mean over what the demand may be. It adds up what
    staying has cost against the best plan and changes when that exceeds what the change would
    cost; at once where other requests come than before and staying would soon cost as much.
    Weights lie nested: raising the degree moves none, lowering it fetches only what is missing,
    from other GPUs, while the old instances serve on. Running requests take their caches along,
    cut anew by heads. Queues go by tier, then by least slack; the background gets steps that
    interactive users do not feel.

    adapt        off: the first plan stays (`fixed`, or equal mixed instances of two GPUs)
    reuse        off: weights are read from disk whole; migrate off: instances drain before a change
    fixed        the first plan, such as "P2x2 D4"
    shortest_s, longest_s   over how long arrivals are counted: longer while they agree
    horizon_s    how long a better plan is expected to stay better
    hysteresis   by what share a plan must be better for staying to cost anything
    margin       the share of the target for tokens that steps may take
    guess_tokens the length of answers before any has ended
    leftover     off: background prompts are computed in whole chunks, whoever else is there

    A decision costs O(plans); there are 78 plans for 8 GPUs and 931 for 16. The constants of the
    controller and of its model were chosen on the requests of seeds 11 to 20.

    **Differs from the paper**: only its abstract was at hand. The nested layout, the migration by
    heads, the goodput model, the controller and the scheduling are our design. Plans are all mixed
    or all split, not both. Requests that cannot meet their target any more are served last, which
    is best for goodput and hard on them. Traffic of a change does not slow the steps beside it.
    The GPUs are modelled; the layout and the moves are also real, in `TPRanks`.

    >>> from orrery.systems.serve.problems.llm_parallelism.plans import Plan
    >>> Nitsum(fixed="P2x2 D4").how().weights
    'peers'
    """

    adapt: bool = True
    reuse: bool = True
    migrate: bool = True
    fixed: str = ""
    shortest_s: Positive = 3.0
    longest_s: Positive = 48.0
    horizon_s: Positive = 60.0
    hysteresis: Fraction = 0.01
    margin: Fraction = 0.97
    guess_tokens: Count = 200
    leftover: bool = True

    def how(self) -> Moves:
        return Moves("peers" if self.reuse else "disk", "migrate" if self.migrate else "drain")

    def start(self) -> None:
        self.fixed_plan = Plan.parse(self.fixed) if self.fixed else None
        if self.margin <= 0.1:
            raise KnobError("Nitsum.margin", f"{self.margin} leaves no time", "give 0.5 to 1")
        if self.shortest_s > self.longest_s:
            problem = f"{self.shortest_s} s is above longest_s {self.longest_s}"
            raise KnobError("Nitsum.shortest_s", problem, "swap them")
        self.watches: dict[int, Watch] = {}
        self.targets: dict[int, tuple[float, float]] = {}
        self.last: dict[int, Demand] = {}
        self.first_busy = 0.0
        self.regret = self.looked_s = 0.0
        self.decided = False

    # -- what comes

    def watch(self, tier: int) -> Watch:
        """What is known of a tier."""
        found = self.watches.get(tier)
        if found is None:
            found = self.watches[tier] = Watch(self.shortest_s, self.longest_s)
        return found

    def arrived(self, request: Request, now_s: float) -> None:
        self.watch(request.priority).arrived(request.prompt_tokens, now_s)
        if request.target is not None:
            self.targets[request.priority] = (request.target.ttft_s, request.target.tpot_s)

    def finished(self, request: Request, tokens: int, met: bool, now_s: float) -> None:
        self.watch(request.priority).finished(tokens)

    # -- which plan

    def plan(self, view: ClusterView) -> Plan | None:
        if not view.plans:
            return None
        if self.fixed_plan is not None and view.plan is None:
            return self.fixed_plan if self.fixed_plan in view.plans else None
        if view.plan is None:
            return self._first(view)
        demands = self.demand(view)
        if not self.adapt:
            return None
        if not any(each.rate_per_s for each in demands):
            return None
        values = self.values(view, demands)
        best = max(values, key=lambda plan: values[plan])
        most, now = values[best], values.get(view.plan, 0.0)
        since_s, self.looked_s = view.now_s - self.looked_s, view.now_s
        # What staying has cost so far, beyond what is not worth a change.
        self.regret = max(self.regret + (most - (1 + self.hysteresis) * now) * since_s, 0.0)
        if best == view.plan or not self.regret:
            return None
        paused_s = view.downtime_s(best) / max(view.plan.gpus, 1) + UPSET_S
        lost = paused_s * now
        if (most - now) * self.horizon_s <= lost:
            return None
        # An estimate of a moment is not followed: one changes when staying has cost as much as the
        # change will, or soon would where requests like these have come only lately. Nothing
        # speaks for the very first plan, so that one need not have cost anything.
        owed = self.regret
        if any(self.watch(tier.priority).changed(view.now_s) for tier in view.tiers):
            owed += (most - now) * SOON_S
        if self.decided and owed < lost + self._at_risk(view):
            return None
        self.regret, self.decided = 0.0, True
        return best

    def _at_risk(self, view: ClusterView) -> float:
        """Requests that wait so long already that the pause of a change would make them late."""
        found = 0.0
        for tier in view.tiers[1:]:
            prompt = max(self.last[tier.priority].prompt, 1.0)
            for each in view.instances:
                tokens = each.queued.get(tier.priority, 0)
                wait_s = tokens * prompt_token_s(each.cost)
                risk = (wait_s / tier.ttft_s - SAFE) / (RISKY - SAFE)
                found += min(max(risk, 0.0), 1.0) * tokens / prompt
        return found

    def values(self, view: ClusterView, demands: Sequence[Demand]) -> dict[Plan, float]:
        """What plans are worth, in the mean over what the demand may be; of many, the best."""
        known = self.model(view, demands)
        worth = {plan: _worth(known, plan) for plan in view.plans}
        likely = sorted(worth, key=lambda plan: -worth[plan])[:LIKELY]
        if view.plan in worth and view.plan not in likely:
            likely.append(view.plan)
        found = {plan: MIDDLE * worth[plan] for plan in likely}
        for far in (-FAR, FAR):
            other = known.unsure(far)
            for plan in likely:
                found[plan] += (1 - MIDDLE) / 2 * _worth(other, plan)
        return found

    def _first(self, view: ClusterView) -> Plan:
        """Before anything is known: equal mixed instances of two GPUs, or as near as can be."""

        def likeness(plan: Plan) -> tuple[bool, float]:
            return plan.split, sum(abs(tp - 2) for _, tp in plan.kinds) / len(plan.kinds)

        return min(view.plans, key=likeness)

    def demand(self, view: ClusterView) -> tuple[Demand, ...]:
        """The demand of each tier: what comes, and what waits, spread over the horizon."""
        found = []
        for tier in view.tiers:
            running = sum(one.running.get(tier.priority, 0) for one in view.instances)
            watch = self.watch(tier.priority)
            each = watch.demand(view.now_s, float(self.guess_tokens), running)
            if tier.priority:
                # What waits and is not lost yet must be done within the target too.
                waits = sum(one.queued.get(tier.priority, 0) for one in view.instances)
                more = max(waits / each.prompt - each.rate_per_s, 0.0) / tier.ttft_s
                each = each._replace(rate_per_s=each.rate_per_s + 0.5 * more)
            found.append(each)
        self.first_busy = self._busy(view, found[0])
        self.last = {tier.priority: each for tier, each in zip(view.tiers, found, strict=True)}
        return tuple(found)

    def _busy(self, view: ClusterView, first: Demand) -> float:
        """The share of the time that interactive prompts take where they are computed."""
        limit_s = self.margin * view.tiers[0].tpot_s
        context = round(FEW * (first.prompt + first.answer / 2))
        fronts = [each for each in view.instances if each.role != "D"]
        # Mixed instances that cannot keep the pace of a few answers are sent none.
        mine = [each for each in fronts
                if each.role == "P" or each.cost.seconds([], FEW, context) <= limit_s]  # fmt: skip
        speed = sum(1 / prompt_token_s(each.cost) for each in mine or fronts)
        return min(first.rate_per_s * first.prompt / speed, 0.9) if speed else 0.0

    def model(self, view: ClusterView, demands: Sequence[Demand]) -> Model:
        """The model of goodput for a demand."""
        return Model(view.tiers, demands, view.costs, view.capacity, view.chunk_tokens,
                     view.most_seqs, self.margin)  # fmt: skip

    # -- which instance, which order

    def route(self, request: Request, instances: Sequence[InstanceView]) -> int:
        """Where the prompt is computed first; mixed instances also by how crowded they are."""
        best, least = -1, float("inf")
        tier, tokens = request.priority, request.prompt_tokens
        for each in instances:
            per_token_s = prompt_token_s(each.cost)
            load_s = (each.ahead(tier) + tokens) * per_token_s
            if each.role != "P":
                load_s += self._crowded_s(request, each, per_token_s)
            if load_s < least:
                best, least = each.index, load_s
        return best

    def _crowded_s(self, request: Request, each: InstanceView, per_token_s: float) -> float:
        """What sharing a mixed instance costs: slower answers, or time taken from interactive."""
        cost_s = 8.0 * each.decodes * per_token_s
        full = each.kv_tokens / max(each.capacity, 1)
        if full > 0.9:
            cost_s += 10.0 * (full - 0.9)
        if request.priority == 0:
            tpot_s = request.target.tpot_s if request.target is not None else 1.0
            step_s = each.cost.seconds([], each.decodes + 1, each.decode_kv + request.prompt_tokens)
            if step_s > self.margin * tpot_s:
                cost_s += 10.0 * (step_s / tpot_s)
        elif each.running.get(0):
            cost_s += 0.2 + 0.02 * each.running[0]
        return cost_s

    def hand_over(self, request: Request, instances: Sequence[InstanceView]) -> int:
        """The instance whose steps stay within the target with one more, the fullest such one."""
        best, least = -1, (True, float("inf"))
        tpot_s = request.target.tpot_s if request.target is not None else 1.0
        for each in instances:
            step_s = each.cost.seconds(
                [], each.decodes + 1, each.decode_kv + request.prompt_tokens + each.decodes
            )
            late = step_s > self.margin * tpot_s
            mark = (late, step_s / tpot_s + max(each.kv_tokens / max(each.capacity, 1) - 0.9, 0.0))
            if mark < least:
                best, least = each.index, mark
        return best

    def takes(self, request: Request, instance: InstanceView) -> bool:
        """Background answers wait where one more would break the pace of interactive ones."""
        some = instance.running.get(0, 0)
        if request.priority == 0 or not some or 0 not in self.targets or not self.leftover:
            return True
        limit_s = self.margin * self.targets[0][1]
        cost, count, kv = instance.cost, instance.decodes, instance.decode_kv
        if cost.seconds([], count + 1, kv + request.prompt_tokens) <= limit_s:
            return True
        # Where they would be late anyway there is nothing to protect.
        return bool(cost.seconds([], some, kv * some // count) > limit_s)

    def rank(self, request: Request, instance: InstanceView) -> tuple[float, ...]:
        """Tiers in order, least slack first in each; whoever is lost already goes last."""
        if request.target is None:
            return (float(request.priority), request.arrival_s)
        per_token_s = prompt_token_s(instance.cost)
        own_s = request.prompt_tokens * per_token_s
        slack = request.arrival_s + request.target.ttft_s - own_s
        ahead_s = instance.ahead(request.priority) * self._token_s(instance, request.priority)
        # Who would be in time by a hair is late when anybody else comes: that is lost too.
        begins_s = max(instance.now_s, request.arrival_s) + HASTE * ahead_s
        if begins_s > slack - SPARE * request.target.ttft_s:
            return (LOST + request.priority, request.arrival_s)
        return (float(request.priority), slack)

    def chunk(self, request: Request, instance: InstanceView, chosen: int) -> int:
        """Whole chunks for the first tier; for others what its users do not feel."""
        whole = instance.chunk_tokens
        if request.priority == 0 or not self.leftover or 0 not in self.targets:
            return whole
        ttft_s, _ = self.targets[0]
        per_token_s = prompt_token_s(instance.cost)
        if instance.role == "P" or not instance.running.get(0):
            # An interactive prompt that comes now waits for the end of this step.
            fits = int(0.2 * ttft_s / per_token_s)
            return max(min(whole, max(fits, 64)) - chosen, 0)
        fits = min(self._beside(instance), whole) - chosen
        return fits if fits >= LEAST_CHUNK else 0

    def _token_s(self, instance: InstanceView, tier: int) -> float:
        """Seconds of a prompt token of a tier, with what goes before it taken into account."""
        per_token_s = prompt_token_s(instance.cost)
        if not tier or not self.leftover:
            return per_token_s
        if instance.role == "P" or not instance.running.get(0):
            return per_token_s / max(1 - self.first_busy, 0.1)
        fits = self._beside(instance)
        _, tpot_s = self.targets.get(0, (1.0, 1.0))
        return max(tpot_s / fits if fits >= LEAST_CHUNK else 1.0, per_token_s)

    def _beside(self, instance: InstanceView) -> int:
        """Prompt tokens that a step can take while interactive answers keep their pace."""
        _, tpot_s = self.targets.get(0, (1.0, 1.0))
        step_s = instance.cost.seconds([], instance.decodes, instance.decode_kv)
        spare_s = self.margin * tpot_s * (1 - self.first_busy) - step_s
        return int(spare_s / prompt_token_s(instance.cost))

    def yields(self, request: Request, instance: InstanceView) -> bool:
        return request.priority == 0


def _worth(model: Model, plan: Plan) -> float:
    first, late = model.goodput_per_s(plan)
    return FIRST * first + late


__all__ = ["Nitsum"]
