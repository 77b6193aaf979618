"""What must never happen in a run, and a history of views for the laws of policies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from orrery.base.rand import Stream
from orrery.base.violation import Violation
from orrery.check.conservation import exactly_once
from orrery.models.requests import Request, Target
from orrery.systems.serve.problems.llm_parallelism.plans import Placed, Plan, all_plans
from orrery.systems.serve.problems.llm_parallelism.ports import ClusterView, InstanceView

if TYPE_CHECKING:
    from orrery.systems.serve.problems.llm_parallelism import LLMParallelism, Log


def faults_of(log: Log) -> list[Violation]:
    """A request lost or answered twice, cut short or out of time; memory or layout wrong."""
    found = list(exactly_once(
        [each.id for each in log.requests], [each.id for each in log.fared]
    ))  # fmt: skip
    asked = {each.id: each for each in log.requests}
    for each in log.fared:
        request = asked.get(each.id)
        if request is None:
            continue
        if each.output_tokens != request._output_tokens:
            text = f"request {each.id} made {each.output_tokens} of {request._output_tokens} tokens"
            found.append(Violation(kind="cut_short", message=text))
        if not request.arrival_s <= each.first_s <= each.last_s:
            found.append(Violation(kind="out_of_time", message=f"request {each.id}: {each}"))
    found += [Violation(kind="books", message=text) for text in log.faults]
    return found


class Straight:
    """Step times on a straight line, for views: a table keeps what it has looked up, this nothing.

    About those of a 30B-class model: 16 ms to read the weights, 90 us for a prompt token.
    """

    def __init__(self, tp: int) -> None:
        self.tp = tp

    def seconds(self, prefill: Sequence[tuple[int, int]], decodes: int, decode_kv: int) -> float:
        """Seconds of a step."""
        tokens = decodes + sum(new for new, _ in prefill)
        return (16e-3 + 90e-6 * tokens + 60e-9 * decode_kv) / self.tp + 4e-3


def trial_views(
    problem: LLMParallelism, rng: Stream
) -> Iterator[tuple[str, tuple[Any, ...], Any]]:  # fmt: skip
    """Clusters that begin, idle, crowd and lose GPUs; requests of both tiers; nothing at all."""
    tiers = problem.tiers()
    costs = {tp: Straight(tp) for tp in (1, 2, 4, 8)}
    capacity = {1: 269_000, 2: 789_000, 4: 1_829_000, 8: 3_908_000}

    def request(at: int) -> Request:
        tier = tiers[rng.below(2)]
        return Request(at, 0.2 * at, 1 + rng.below(3000), 1 + rng.below(300), kind=tier.name,
                       priority=tier.priority, target=Target(tier.ttft_s, tier.tpot_s))  # fmt: skip

    for step in range(24):
        blocks = (4, 2, 1) if step % 3 == 1 else (8,)
        plans = all_plans(blocks, 8)
        plan = plans[rng.below(len(plans))]
        views, first = [], 0
        for number, (role, tp) in enumerate(plan.kinds):
            view = InstanceView(number, Placed(role, tp, first), capacity[tp], costs[tp], 2048)
            first += tp
            view.decodes = rng.below(40)
            view.decode_kv = view.kv_tokens = view.decodes * (1 + rng.below(2000))
            view.waiting = rng.below(5)
            view.waiting_tokens = view.waiting * 1000
            view.running = {0: view.decodes // 2, 1: view.decodes - view.decodes // 2}
            view.queued, view.now_s = {0: view.waiting_tokens}, 2.0 * step
            views.append(view)
        some = request(step)
        yield "arrived", (some, 2.0 * step), lambda answer: answer is None
        yield "rank", (some, views[0]), lambda answer: isinstance(answer, tuple) and len(answer) > 0
        fronts = [view for view in views if view.role != "D"]
        yield "route", (some, fronts), _one_of(fronts)
        yield "route", (some, []), lambda answer: answer == -1
        behind = [view for view in views if view.role != "P"]
        yield "hand_over", (some, behind), _one_of(behind)
        yield "hand_over", (some, []), lambda answer: answer == -1
        yield "chunk", (some, views[0], 100 * rng.below(3)), lambda answer: answer >= 0
        yield "takes", (some, views[-1]), lambda answer: isinstance(answer, bool)
        yield "finished", (some, some._output_tokens, True, 2.0 * step), lambda a: a is None
        seen = ClusterView(
            2.0 * step, None if step == 0 else plan, blocks, plans, tiers, costs,
            capacity, (rng.below(9), rng.below(9)), tuple(views), _costs_little,
        )  # fmt: skip
        yield "plan", (seen,), _among(plans)


def _costs_little(plan: Plan) -> float:
    return 0.1 * plan.gpus


def _one_of(views: list[InstanceView]) -> Any:
    allowed = {view.index for view in views} or {-1}
    return lambda answer: answer in allowed


def _among(plans: tuple[Plan, ...]) -> Any:
    return lambda answer: answer is None or answer in plans


__all__ = ["faults_of", "trial_views"]
