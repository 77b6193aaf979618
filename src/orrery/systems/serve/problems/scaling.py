"""Replicas that are switched on and off while requests come: states, loading, draining.

A replica is `off`, `starting` (it loads its weights), `on`, or `draining` (it gets no more requests
and goes off when it has answered those it has). An `Autoscaler` is asked at regular times how many
should be on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orrery.base.errors import PartError
from orrery.models.ports import Autoscaler, FleetView

if TYPE_CHECKING:
    from orrery.systems.serve.problems.cluster import Front

OFF, STARTING, ON, DRAINING = "off", "starting", "on", "draining"


class Fleet:
    """Which replicas are on, and since when."""

    def __init__(
        self, nodes: list[int], scaler: Autoscaler | None, least: int, every_s: float
    ) -> None:
        self.scaler, self.every_s = scaler, every_s
        self.nodes = nodes
        self.least = min(max(least, 1), len(nodes)) if scaler else len(nodes)
        self.states = {
            node: ON if place < self.least else OFF for place, node in enumerate(nodes)
        }  # fmt: skip
        self.since_s = {node: 0.0 for node, state in self.states.items() if state == ON}
        self.used_s = dict.fromkeys(nodes, 0.0)
        self.starts = 0
        self.arrived = 0
        if scaler is not None:
            scaler.start()

    def wanted(self, node: int) -> bool:
        """Whether a replica that comes up should load its weights and serve."""
        return self.states[node] in (ON, STARTING)

    def serves(self, node: int) -> bool:
        """Whether requests may be sent there."""
        return self.states[node] == ON

    def set(self, node: int, state: str, now_s: float) -> None:
        """Change a state, and keep count of the time that a machine is paid for."""
        before = self.states[node]
        if before == OFF and state != OFF:
            self.since_s[node] = now_s
        elif state == OFF and before != OFF:
            self.used_s[node] += now_s - self.since_s.pop(node)
        self.states[node] = state

    def paid_s(self, node: int, now_s: float) -> float:
        """Seconds for which a replica was not off."""
        return self.used_s[node] + (now_s - self.since_s.get(node, now_s))

    def count(self, state: str) -> int:
        return sum(each == state for each in self.states.values())

    # -- the loop

    async def run(self, front: Front) -> None:
        """Ask the autoscaler again and again, and do what it says."""
        driver, before = front.driver, 0
        assert self.scaler is not None
        while True:
            await driver.sleep(self.every_s)
            self._settle(front)
            views = {n: front.plan.replicas[n].view for n in self.nodes if n not in front.down}
            on = [n for n in views if self.states[n] == ON]
            view = FleetView(
                now_s=driver.now, on=len(on), starting=self.count(STARTING), least=self.least,
                most=len(self.nodes), outstanding=sum(views[n].outstanding for n in views),
                waiting=sum(views[n].waiting for n in views),
                arrivals_per_s=(self.arrived - before) / self.every_s,
                kv_use=max((views[n].kv_use for n in on), default=0.0),
            )  # fmt: skip
            before = self.arrived
            self._obey(front, views, _checked(self.scaler, view))

    def _settle(self, front: Front) -> None:
        """What has answered all that it had goes off."""
        for node in self.nodes:
            if self.states[node] != DRAINING:
                continue
            if node in front.down or not front.plan.replicas[node].view.outstanding:
                self.set(node, OFF, front.driver.now)
                front.switch_off(node)

    def _obey(self, front: Front, views: dict[int, Any], wanted: int) -> None:
        now_s = front.driver.now
        have = self.count(ON) + self.count(STARTING)
        draining = [node for node in self.nodes if self.states[node] == DRAINING]
        off = [node for node in self.nodes if self.states[node] == OFF and node not in front.down]
        # A replica that still drains has its weights, so it comes back at once.
        for node in draining[: max(wanted - have, 0)]:
            self.set(node, ON, now_s)
            have += 1
        for node in off[: max(wanted - have, 0)]:
            self.set(node, STARTING, now_s)
            self.starts += 1
            front.driver.spawn(front.switch_on(node))
            have += 1
        spare = sorted(
            (views[node].outstanding, node) for node in views if self.states[node] == ON
        )  # fmt: skip
        for _, node in spare[: max(have - wanted, 0)]:
            self.set(node, DRAINING, now_s)


def _checked(scaler: Autoscaler, view: FleetView) -> int:
    """What the autoscaler says, within its bounds; a named error for what is no number."""
    wanted = scaler.replicas(view)
    if isinstance(wanted, bool) or not isinstance(wanted, int):
        raise PartError(
            f"{type(scaler).__name__}.replicas gave {wanted!r}; give a whole number of replicas"
        )
    return min(max(wanted, view.least), view.most)


__all__ = ["Fleet"]
