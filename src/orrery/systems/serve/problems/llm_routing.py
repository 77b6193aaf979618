"""Which replica should serve a request?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from orrery.base.rand import Stream
from orrery.models.ports import ReplicaView, Router
from orrery.models.requests import Request
from orrery.parts import Driver, NonNegative
from orrery.systems.serve.problems.cluster import ServingProblem
from orrery.systems.serve.problems.views import Views, routing_views


class LLMRouting(ServingProblem):
    """Send each request to one of many replicas of a language model, once and for ever.

    The router sees every replica as it is (`ReplicaView`): its queue, its batch, its cache. It does
    not see how long an answer will be. Replicas run vLLM's scheduler.
    """

    # About what eight DGX H100 take of Azure-like conversations with a 70B model.
    rate_per_s: NonNegative = 100.0

    trial: ClassVar[Mapping[str, Any]] = {"requests": 250}
    port: ClassVar[type] = Router

    def views(self, rng: Stream) -> Views:
        return routing_views(rng)

    def choose_of(self, driver: Driver) -> Callable[[Request, Sequence[ReplicaView]], int]:
        router: Router = driver.part
        router.start()
        return router.route


__all__ = ["LLMRouting"]
