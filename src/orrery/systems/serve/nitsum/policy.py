"""Nitsum: the degree of tensor parallelism is changed while tiers of requests are served."""

from __future__ import annotations

from collections.abc import Sequence

from orrery.base.errors import KnobError
from orrery.models.requests import Request
from orrery.parts import Count, Fraction, Positive
from orrery.systems.serve.nitsum.estimate import Demand, Watch
from orrery.systems.serve.nitsum.goodput import Model
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
# A gain of this share is clear, and followed at the second look; a smaller one at the sixth.
CLEAR, QUICK, PATIENT = 0.15, 2, 6
# Fewer prompt tokens than this are not worth a step.
LEAST_CHUNK = 32


class Nitsum(Parallelism):
    """Serves tiers of requests on fixed GPUs by changing tensor parallelism while it runs.

    "Nitsum: Serving Tiered LLM Requests with Adaptive Tensor Parallelism", 2026. A higher degree
    makes each token sooner, a lower one leaves room for more instances; which is better changes
    with the mix of tiers. Every few seconds the controller estimates what each tier asks for, goes
    through all partitions of the GPUs into instances (role, degree) with a model of goodput in
    closed form, charges what the change would cost, and changes if that pays. Weights lie nested:
    raising the degree moves none, lowering it fetches only what is missing, from other GPUs, while
    the old instances serve on. Running requests take their caches along, cut anew by heads. Queues
    go by tier, then by least slack; the background gets steps that interactive users do not feel.

    adapt        off: the first plan stays (`fixed`, or equal mixed instances of two GPUs)
    reuse        off: weights are read from disk whole; migrate off: instances drain before a change
    fixed        the first plan, such as "P2x2 D4"
    shortest_s, longest_s   over how long arrivals are counted: longer while they agree
    horizon_s    how long a better plan is expected to stay better
    hysteresis   by what share a plan must be better
    margin       the share of the target for tokens that steps may take
    guess_tokens the length of answers before any has ended
    leftover     off: background prompts are computed in whole chunks, whoever else is there

    A decision costs O(plans); there are 78 plans for 8 GPUs and 931 for 16.

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
    hysteresis: Fraction = 0.05
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
        self.first_busy = 0.0
        self.wishes = 0
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
        model = self.model(view, demands)
        best, most = None, -1.0
        for plan in view.plans:
            value = model.total(plan)
            if value > most:
                best, most = plan, value
        now = model.total(view.plan) if view.plan in view.plans else 0.0
        if best is None or best == view.plan:
            self.wishes = 0
            return None
        lost = view.downtime_s(best) / max(view.plan.gpus, 1) * now
        gain = (most - now) * self.horizon_s - lost
        if most < (1 + self.hysteresis) * now or gain <= 0:
            self.wishes = 0
            return None
        # An estimate of a moment is not followed: the wish must last, the longer the less it gains.
        self.wishes += 1
        enough = PATIENT if most < (1 + CLEAR) * now else QUICK
        if self.wishes < enough and self.decided and view.plan in view.plans:
            return None
        self.wishes, self.decided = 0, True
        return best

    def _first(self, view: ClusterView) -> Plan:
        """Before anything is known: equal mixed instances of two GPUs, or as near as can be."""

        def likeness(plan: Plan) -> tuple[bool, float]:
            return plan.split, sum(abs(tp - 2) for _, tp in plan.kinds) / len(plan.kinds)

        return min(view.plans, key=likeness)

    def demand(self, view: ClusterView) -> tuple[Demand, ...]:
        """The demand of each tier: what comes, and what waits, spread over the horizon."""
        found = []
        for tier in view.tiers:
            each = self.watch(tier.priority).demand(view.now_s, float(self.guess_tokens))
            if tier.priority and view.backlog[tier.priority]:
                # What waits must be done within the target too.
                more = max(view.backlog[tier.priority] - each.rate_per_s, 0.0) / tier.ttft_s
                each = each._replace(rate_per_s=each.rate_per_s + 0.5 * more)
            found.append(each)
        prompts = found[0].rate_per_s * found[0].prompt
        speed = sum(1 / prompt_token_s(each.cost) for each in view.instances if each.role != "D")
        self.first_busy = min(prompts / speed, 0.9) if speed else 0.0
        return tuple(found)

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


__all__ = ["Nitsum"]
