"""How many replicas should be on?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from orrery.base.rand import Stream
from orrery.inputs import Diurnal
from orrery.inputs.workload import Workload
from orrery.models.ports import Autoscaler, FleetView, ReplicaView
from orrery.models.requests import Request
from orrery.parts import Count, Driver, Fraction, NonNegative, Positive
from orrery.systems.serve.problems.cluster import ServingProblem
from orrery.systems.serve.problems.views import Views
from orrery.world import World


class LLMScaling(ServingProblem):
    """Switch replicas of a language model on and off while the traffic rises and falls.

    Each replica has one device (`tp`). Requests come at `rate_per_s` on average, with a swing of
    `swing` around it and a period of `period_s`: a day made short. They go to the replica with the
    fewest unfinished ones. A replica that is switched on loads its weights first.
    """

    model: str = "Llama-3.1-8B"
    tp: Count = 1
    requests: Count = 1500
    # Eight H100 take about 64 a second of Azure-like conversations with an 8B model.
    rate_per_s: NonNegative = 32.0
    swing: Fraction = 0.8
    period_s: Positive = 30.0

    trial: ClassVar[Mapping[str, Any]] = {"requests": 400}
    port: ClassVar[type] = Autoscaler

    def world(self) -> World:
        from orrery.world import worlds

        return worlds.get("h100_pod:8")

    def load(self, seed: int) -> Workload:
        found = super().load(seed)
        if not self.rate_per_s or not self.swing:
            return found
        times = Diurnal(
            rate_per_s=self.rate_per_s, swing=self.swing, period_s=self.period_s,
            peak_s=self.period_s / 2,
        )  # fmt: skip
        return found.with_arrivals(times, seed)

    def new_scaler(self, part: Any) -> Autoscaler | None:
        made: Autoscaler = type(part)(**part.changed_knobs())
        return made

    def choose_of(self, driver: Driver) -> Callable[[Request, Sequence[ReplicaView]], int]:
        return lambda request, replicas: min(replicas, key=lambda each: each.outstanding).index

    def views(self, rng: Stream) -> Views:
        """Clusters in a lull, in a rush, and while replicas begin."""
        for step in range(60):
            on, starting = rng.below(9), rng.below(3)
            if step % 7 == 0:
                on = starting = 0  # all have died
            outstanding = rng.below(1 + 40 * (step % 5))
            view = FleetView(
                10.0 * step, on, starting, 1, 12, outstanding, rng.below(1 + outstanding),
                0.1 * rng.below(300), rng.random(),
            )  # fmt: skip
            yield "replicas", (view,), lambda answer: isinstance(answer, int) and answer >= 0


__all__ = ["LLMScaling"]
