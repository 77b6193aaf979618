"""The parent's place: the driver, and the shelves of the object store."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from orrery.engines.processes.place import Place
from orrery.engines.processes.spec import Counters, RunSpec
from orrery.engines.processes.store import Shelves, StoreDoor
from orrery.engines.processes.tasks import Call

if TYPE_CHECKING:
    from orrery.engines.processes.engine import ProcessEngine


class ParentPlace(Place):
    """Where the workload runs; no fault reaches it."""

    def __init__(
        self,
        spec: RunSpec,
        loop: asyncio.AbstractEventLoop,
        counters: Counters,
        engine: ProcessEngine,
    ) -> None:
        super().__init__(spec, spec.driver_group, 0, loop, counters)
        self._engine = engine
        self.part = engine.part
        self.shelves = Shelves(spec.world)
        self.store = StoreDoor(self.kernel, spec.world, spec.raw, self._serve)
        self.driver = self.add(spec.driver, spec.size)

    def _serve(self, call: Call, op: str, key: str, data: bytes, tag: str | None) -> None:
        call.resolve(self.shelves.serve(op, key, data, tag))

    def set_peers(self, peers: dict[int, tuple[str, int, int]]) -> None:
        for group, (host, port, bulk_port) in peers.items():
            self.post.net.set_address(group, host, port)
            self.bulk.set_address(group, host, bulk_port)

    # -- reports stay in this process

    def emit(self, time_s: float, node: int, values: dict[str, Any]) -> None:
        self._engine.reports.emit(time_s, node, values)

    def log(self, time_s: float, node: int, words: str) -> None:
        self._engine.reports.log(time_s, node, words)

    def fail(self, host: Any, error: BaseException) -> None:
        self._engine.blame_driver(error)

    def malformed(self, why: str) -> None:
        self._engine.reports.malformed(self.kernel.now_ns() / 1e9, why)

    def is_alive(self, node: int) -> bool:
        return node not in self._engine.nemesis.down
