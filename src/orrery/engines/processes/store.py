"""The object store: kept by the parent, so it outlives every node; reached by the control line.

The parent handles one request at a time, which makes a conditional put atomic. The world's
latencies and bandwidth are waited for at the node's side, unless the run is raw.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from orrery.base.errors import PartError
from orrery.engines.processes.kernel import Kernel
from orrery.engines.processes.tasks import Call
from orrery.world import World

Request = Callable[[Call, str, str, bytes, str | None], None]


class Shelves:
    """The objects themselves, with versions as tags, and what the requests cost."""

    def __init__(self, world: World) -> None:
        self._prices = world.store
        self._objects: dict[str, tuple[bytes, str]] = {}
        self._version = 0
        self.gets = 0
        self.puts = 0

    def serve(self, op: str, key: str, data: bytes, tag: str | None) -> Any:
        """Do one request."""
        if op == "get":
            self.gets += 1
            return self._objects.get(key)
        if op == "list":
            self.gets += 1
            return sorted(name for name in self._objects if name.startswith(key))
        self.puts += 1
        if op == "put_if":
            now = self._objects.get(key)
            if (now[1] if now else None) != tag:
                return None
        self._version += 1
        self._objects[key] = (data, str(self._version))
        return str(self._version)

    def bill(self, seconds: float) -> float:
        """Requests, and storage of what is there for as long as the run took."""
        stored_GB = sum(len(data) for data, _ in self._objects.values()) / 1e9
        months = seconds / (30 * 24 * 3600)
        requests = self.gets * self._prices.get_price + self.puts * self._prices.put_price
        return float(requests + stored_GB * months * self._prices.storage_price_per_GB_month)


class StoreDoor:
    """What `self.store` is on a node."""

    def __init__(self, kernel: Kernel, world: World, raw: bool, request: Request) -> None:
        self._kernel = kernel
        self._figures = world.store
        self._raw = raw
        self._request = request

    async def get(self, key: str) -> tuple[bytes, str] | None:
        await self._wait(self._figures.get_latency_s, 0)
        found = await self._ask("get", key)
        if found is None:
            return None
        await self._wait(0.0, len(found[0]))
        return bytes(found[0]), str(found[1])

    async def put(self, key: str, data: bytes) -> str:
        await self._wait(self._figures.put_latency_s, len(data))
        return str(await self._ask("put", key, bytes(data)))

    async def put_if(self, key: str, data: bytes, tag: str | None) -> str | None:
        """Put only if the object still has this tag (None: only if there is none)."""
        if not self._figures.conditional_put:
            raise PartError("this world's store has no conditional put; set store.conditional_put")
        await self._wait(self._figures.put_latency_s, len(data))
        made = await self._ask("put_if", key, bytes(data), tag)
        return None if made is None else str(made)

    async def list(self, prefix: str = "") -> list[str]:
        await self._wait(self._figures.get_latency_s, 0)
        return list(await self._ask("list", prefix))

    async def _ask(self, op: str, key: str, data: bytes = b"", tag: str | None = None) -> Any:
        if not isinstance(key, str):
            raise PartError(f"store: the key {key!r} is not text")
        call = Call(self._kernel, busy=True)
        self._request(call, op, key, data, tag)
        return await call.wait()

    async def _wait(self, latency_s: float, size_B: int) -> None:
        wait_s = latency_s + size_B / self._figures.bandwidth_Bps
        if self._raw or wait_s <= 0:
            return
        call = Call(self._kernel)
        due_ns = self._kernel.now_ns() + int(wait_s * 1e9)
        self._kernel.call_at(due_ns, lambda: call.resolve(None))
        await call.wait()
