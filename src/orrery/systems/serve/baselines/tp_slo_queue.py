"""One degree for ever, but the queue knows what users were promised."""

from __future__ import annotations

from orrery.models.requests import Request
from orrery.systems.serve.baselines.tp_static import TPStatic
from orrery.systems.serve.problems.llm_parallelism.ports import InstanceView, prompt_token_s


class TPSloQueue(TPStatic):
    """Static instances whose queues serve the tier first, then the earliest deadline.

    SLO-aware queueing as in serving systems with deadlines (earliest deadline first within a
    class). A request that would be late if it began now goes behind those that are not, since
    serving it in time is impossible and would make others late.
    """

    def rank(self, request: Request, instance: InstanceView) -> tuple[float, ...]:
        if request.target is None:
            return (float(request.priority), request.arrival_s)
        due_s = request.arrival_s + request.target.ttft_s
        per_token_s = prompt_token_s(instance.cost)
        ahead_s = (instance.ahead(request.priority) + request.prompt_tokens) * per_token_s
        late = max(instance.now_s, request.arrival_s) + ahead_s > due_s
        return (9.0 if late else float(request.priority), due_s)

    def yields(self, request: Request, instance: InstanceView) -> bool:
        return request.priority == 0


__all__ = ["TPSloQueue"]
