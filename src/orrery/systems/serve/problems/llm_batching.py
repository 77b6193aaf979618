"""What should a replica compute in its next step?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from orrery.base.rand import Stream
from orrery.models.ports import Scheduler
from orrery.parts import Count, NonNegative
from orrery.systems.serve.problems.cluster import ServingProblem
from orrery.systems.serve.problems.views import Views, batching_views
from orrery.world import World


class LLMBatching(ServingProblem):
    """Choose, step by step, which requests of one replica compute how many tokens.

    The scheduler sees the queue, the batch and the free blocks (`EngineView`), and not how long an
    answer will be. The world's nodes are replicas that get the requests in turn; one by default.
    """

    model: str = "Llama-3.1-8B"
    tp: Count = 1
    # About what one H100 takes of Azure-like conversations with an 8B model.
    rate_per_s: NonNegative = 12.0

    trial: ClassVar[Mapping[str, Any]] = {"requests": 250}
    port: ClassVar[type] = Scheduler

    def views(self, rng: Stream) -> Views:
        return batching_views(rng)

    def world(self) -> World:
        from orrery.world import worlds

        return worlds.get("h100_pod:1")

    def new_scheduler(self, node: int) -> Scheduler:
        part: Any = self.__dict__["plan"].part
        return type(part)(**part.changed_knobs())


__all__ = ["LLMBatching"]
