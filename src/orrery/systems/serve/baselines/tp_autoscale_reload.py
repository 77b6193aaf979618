"""Two pools of fixed degrees that grow and shrink at each other's expense, with full reloads."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import ClassVar

from orrery.base.errors import KnobError
from orrery.models.requests import Request
from orrery.parts import Count, Fraction, Positive
from orrery.systems.serve.problems.llm_parallelism.plans import Kind, Plan
from orrery.systems.serve.problems.llm_parallelism.ports import (
    ClusterView,
    InstanceView,
    Moves,
    Parallelism,
    least_loaded,
)


class TPAutoscaleReload(Parallelism):
    """Instances of a fast and of a slow kind are started and stopped as attainment tells.

    An autoscaler of today on a fixed budget: interactive requests go to the fast pool, background
    to the slow one. When fewer interactive requests than `low` meet their targets, an instance of
    the fast kind replaces slow ones; when nearly all do and the background waits, it is the other
    way. A new instance drains its GPUs first and reads all its weights from disk.

    fast_tp, slow_tp   degrees of the pools; fast, how many fast instances there are at first
    low, high          attainment below which the fast pool grows, above which it may shrink
    waiting            background requests in queues that count as too many
    cool_s             time between two changes
    """

    fast_tp: Count = 4
    slow_tp: Count = 1
    fast: Count = 1
    low: Fraction = 0.8
    high: Fraction = 0.97
    waiting: Count = 20
    cool_s: Positive = 15.0

    moves: ClassVar[Moves] = Moves("disk", "drain")

    def start(self) -> None:
        if self.fast_tp < self.slow_tp:
            problem = f"{self.fast_tp} is below slow_tp {self.slow_tp}"
            raise KnobError("TPAutoscaleReload.fast_tp", problem, "swap them")
        self.seen: deque[bool] = deque(maxlen=100)
        self.count = self.fast
        self.changed_s = 0.0

    def finished(self, request: Request, tokens: int, met: bool, now_s: float) -> None:
        if request.priority == 0:
            self.seen.append(met)

    def plan(self, view: ClusterView) -> Plan | None:
        if not view.plans:
            return None
        gpus = sum(view.blocks)
        most = sum(block // self.fast_tp for block in view.blocks)
        if view.plan is not None:
            wanted = self._wanted(view, most)
            if wanted == self.count:
                return None
            self.count = wanted
            self.changed_s = view.now_s
        fast = min(self.count, most)
        rest = gpus - fast * self.fast_tp
        kinds = [Kind("M", self.fast_tp)] * fast + [Kind("M", self.slow_tp)] * (
            rest // self.slow_tp
        )
        kinds += [Kind("M", 1)] * (rest % self.slow_tp)
        found = Plan(tuple(kinds)) if kinds else None
        return found if found in view.plans else None

    def _wanted(self, view: ClusterView, most: int) -> int:
        if view.now_s - self.changed_s < self.cool_s or len(self.seen) < 20:
            crowded = view.backlog[-1] > self.waiting and not self.seen
            return max(self.count - 1, 0) if crowded and view.now_s > self.cool_s else self.count
        share = sum(self.seen) / len(self.seen)
        if share < self.low and self.count < most:
            self.seen.clear()
            return self.count + 1
        if share > self.high and view.backlog[-1] > self.waiting and self.count > 0:
            self.seen.clear()
            return self.count - 1
        return self.count

    def route(self, request: Request, instances: Sequence[InstanceView]) -> int:
        wanted = self.fast_tp if request.priority == 0 else self.slow_tp
        pool = [each for each in instances if each.tp == wanted]
        return least_loaded(pool or instances)


__all__ = ["TPAutoscaleReload"]
