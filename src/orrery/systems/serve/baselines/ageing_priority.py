"""Priorities that rise with waiting."""

from __future__ import annotations

from collections.abc import Sequence

from orrery.models.requests import Running
from orrery.parts import Positive
from orrery.systems.serve.baselines.queueing import Queueing


class AgeingPriority(Queueing):
    """Lets in requests by priority, but nobody waits longer than `age_limit_s` for a younger one.

    A request gains one priority for each `age_s` that it waits (Kleinrock's accumulating priority,
    1964). One that is older than `age_limit_s` goes before all younger ones.
    """

    age_s: Positive = 1.0
    age_limit_s: Positive = 10.0

    def order(self, waiting: Sequence[Running], now_s: float) -> Sequence[Running]:
        def rank(seq: Running) -> tuple[int, float, float, int]:
            waited_s = now_s - seq.arrived_s
            old = waited_s >= self.age_limit_s
            level = 0.0 if old else seq.request.priority - waited_s / self.age_s
            return (0 if old else 1, level, seq.arrived_s, seq.request.id)

        return sorted(waiting, key=rank)

    def steady(self, view: object) -> bool:
        """The order changes with time alone, so every step is planned anew while anyone waits."""
        return not view.waiting  # type: ignore[attr-defined]


__all__ = ["AgeingPriority"]
