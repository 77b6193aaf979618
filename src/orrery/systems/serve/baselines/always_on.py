"""Every replica, always."""

from __future__ import annotations

from orrery.models.ports import Autoscaler, FleetView
from orrery.parts import Whole


class AlwaysOn(Autoscaler):
    """Keeps a fixed number of replicas on: all that there are, unless `count` says how many.

    What an autoscaler must be as quick as, and cheaper than.
    """

    count: Whole = 0

    def replicas(self, view: FleetView) -> int:
        return self.count or view.most


__all__ = ["AlwaysOn"]
