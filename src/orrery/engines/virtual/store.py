"""The object store in virtual time: one for the world, safe from every crash.

A request takes the store's latency and its bytes over the store's bandwidth. It takes effect at the
store half a latency before the answer arrives, whether or not the node that asked still lives then,
so a node that crashes in the middle of a put cannot know whether it happened. Puts are atomic; the
tag of an object changes with each put. Faults of links and NICs do not reach the store.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from orrery.base.errors import PartError, WorldError
from orrery.base.units import to_ns

if TYPE_CHECKING:
    from orrery.engines.virtual.engine import Engine

# 730 hours, as cloud price lists count a month.
MONTH_NS = 730 * 3600 * 10**9


class Store:
    """The world's store, as every node sees it through `self.store`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._spec = engine.world.store
        self._objects: dict[str, tuple[bytes, str]] = {}
        self._version = 0
        self._bytes = 0
        self._since_ns = 0
        self._byte_ns = 0
        self.gets = 0
        self.puts = 0

    def of(self, host: Any) -> Store:
        return self

    # -- what a part calls

    async def get(self, key: str) -> tuple[bytes, str] | None:
        """The object and its tag, or None where there is none."""
        self._check_key(key)
        self.gets += 1
        found = await self._request(0, self._spec.get_latency_s, lambda: self._objects.get(key))
        # The bytes come after the store has answered, so that the answer is of one moment.
        if found is not None:
            await self._request(len(found[0]), 0.0, lambda: None)
        return found  # type: ignore[no-any-return]

    async def put(self, key: str, data: bytes) -> str:
        """Replace the object; gives its new tag."""
        data = self._check_data(key, data)
        self.puts += 1
        tag: str = await self._request(
            len(data), self._spec.put_latency_s, lambda: self._set(key, data)
        )
        return tag

    async def put_if(self, key: str, data: bytes, tag: str | None) -> str | None:
        """Put only where the object still has this tag (None: where there is no object).

        Gives the new tag, or None when the condition failed.
        """
        data = self._check_data(key, data)
        if not self._spec.conditional_put:
            raise WorldError(
                "store.conditional_put", "is false: this store has no put_if", "set it to true"
            )
        self.puts += 1

        def swap() -> str | None:
            held = self._objects.get(key)
            return self._set(key, data) if (held[1] if held else None) == tag else None

        new: str | None = await self._request(len(data), self._spec.put_latency_s, swap)
        return new

    async def list(self, prefix: str = "") -> builtins.list[str]:
        """The keys that begin with the prefix, in order; priced like a put, as clouds do."""
        if not isinstance(prefix, str):
            raise PartError(f"store.list({prefix!r:.80}): give text")
        self.puts += 1
        keys: list[str] = await self._request(
            0, self._spec.get_latency_s,
            lambda: sorted(key for key in self._objects if key.startswith(prefix)),
        )  # fmt: skip
        return keys

    # -- how it works

    async def _request(self, size_B: int, latency_s: float, act: Callable[[], Any]) -> Any:
        kernel = self._engine.kernel
        answered = self._engine.kernel_module.Event(kernel)
        transfer_ns = to_ns(size_B / self._spec.bandwidth_Bps)
        back_ns = to_ns(latency_s) // 2
        there_ns = to_ns(latency_s) - back_ns

        def arrive() -> None:
            result = act()
            kernel.call_at(kernel.now + back_ns, lambda: answered.set((result,)))

        kernel.call_at(kernel.now + there_ns + transfer_ns, arrive)
        (result,) = await answered.wait()
        return result

    def _set(self, key: str, data: bytes) -> str:
        self._settle()
        held = self._objects.get(key)
        self._bytes += len(data) - (len(held[0]) if held else 0)
        self._version += 1
        tag = f"v{self._version}"
        self._objects[key] = (data, tag)
        return tag

    def _settle(self) -> None:
        now = self._engine.kernel.now
        self._byte_ns += self._bytes * (now - self._since_ns)
        self._since_ns = now

    def _check_key(self, key: str) -> None:
        if not isinstance(key, str) or not key or len(key) > 1024:
            raise PartError(f"store: {key!r:.80} is not a key; give 1 to 1024 characters")

    def _check_data(self, key: str, data: bytes) -> bytes:
        self._check_key(key)
        if not isinstance(data, bytes | bytearray | memoryview):
            raise PartError(f"store: {key!r} was given a {type(data).__name__}; give bytes")
        return bytes(data)

    # -- money

    def bill(self) -> float:
        """The price of all requests and of the bytes held over time."""
        self._settle()
        spec = self._spec
        gigabyte_months = self._byte_ns / 1e9 / MONTH_NS
        return (
            self.gets * spec.get_price
            + self.puts * spec.put_price
            + gigabyte_months * spec.storage_price_per_GB_month
        )
