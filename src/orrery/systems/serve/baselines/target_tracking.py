"""As many replicas as keep each at a target load."""

from __future__ import annotations

import math

from orrery.models.ports import Autoscaler, FleetView
from orrery.parts import Fraction, NonNegative, Positive


class TargetTracking(Autoscaler):
    """Keeps the unfinished requests of a replica near a target, as Kubernetes' autoscaler does.

    It wants ceil(on x load / target) replicas, where load is requests per replica that serves, and
    changes nothing while load is within `tolerance` of the target. Going down, it takes the largest
    number that was wanted in the last `settle_s` seconds, so that a short lull switches nothing
    off. Both rules, and their usual values (10 %, five minutes), are those of the Horizontal Pod
    Autoscaler; ours settles within a minute, since virtual days are short.

    >>> view = FleetView(0.0, on=2, starting=0, least=1, most=8, outstanding=96, waiting=0,
    ...                  arrivals_per_s=0.0, kv_use=0.0)
    >>> scaler = TargetTracking(target=16)
    >>> scaler.start()
    >>> scaler.replicas(view)
    6
    """

    target: Positive = 16.0
    tolerance: Fraction = 0.1
    settle_s: NonNegative = 60.0

    def start(self) -> None:
        self.wishes: list[tuple[float, int]] = []

    def replicas(self, view: FleetView) -> int:
        have = view.on + view.starting
        load = view.outstanding / max(view.on, 1)
        wish = have
        if abs(load / self.target - 1.0) > self.tolerance:
            wish = math.ceil(view.outstanding / self.target)
        wish = min(max(wish, view.least), view.most)
        self.wishes = [
            (at_s, each) for at_s, each in self.wishes if view.now_s - at_s < self.settle_s
        ]  # fmt: skip
        self.wishes.append((view.now_s, wish))
        return wish if wish >= have else min(have, max(each for _, each in self.wishes))


__all__ = ["TargetTracking"]
