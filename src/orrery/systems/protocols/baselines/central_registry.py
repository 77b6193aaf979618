"""A central registry: one node knows all offers; everybody asks it."""

from __future__ import annotations

from typing import Any, ClassVar

from orrery.base.errors import DeadlineExceeded, Refused
from orrery.parts import Positive, Whole, rpc
from orrery.systems.protocols.problems.capability_records import CapabilityRecord
from orrery.systems.protocols.problems.directory_node import DirectoryNode


class CentralRegistry(DirectoryNode):
    """The plainest directory: publish to one node, ask one node.

    How it works: the node `registry` keeps every record until its end. A lookup is one question and
    one answer, so it costs two messages and one round trip, however many agents there are. When the
    registry is down nobody finds anything; when it comes back it is empty until the agents have
    published anew.

    Knobs: `registry`, the node (in a smaller world: the last one); `timeout_s`, how long it is
    waited for; those of every directory node (`replicas` means nothing here).

    Differs from registries in use: one machine, memory only, no standby.

    >>> CentralRegistry(registry=3).registry
    3
    """

    registry: Whole = 0
    timeout_s: Positive = 1.0

    # The loss of the registry for good is what it does not survive.
    tolerates: ClassVar[tuple[str, ...]] = ("duplicate", "reorder", "restart", "pause")

    def _home(self) -> int:
        return min(self.registry, len(self.peers))

    async def _put(self, record: CapabilityRecord) -> int:
        kept = await self._ask_home(CentralRegistry.keep, record)
        return 1 if kept else 0

    async def _get(self, key: int) -> list[CapabilityRecord]:
        return self._good(await self._ask_home(CentralRegistry.seek, key) or (), key)

    async def _ask_home(self, method: Any, *args: Any) -> Any:
        home = self._home()
        if home == self.id:
            return method(self, *args)
        try:
            async with self.deadline(self.timeout_s):
                return await self.ask(home, method, *args)
        except DeadlineExceeded:
            raise Refused(f"the registry, node {home}, does not answer") from None

    @rpc
    def keep(self, record: CapabilityRecord) -> bool:
        """Hold a record."""
        return self._store(record)

    @rpc
    def seek(self, key: int) -> tuple[CapabilityRecord, ...]:
        """What stands under a key."""
        return self._on_shelf(key)

    @rpc
    async def lookup(self, key: int) -> tuple[int, int]:
        return self._home(), 0

    @rpc
    async def leave(self) -> None:
        """Take one's offers back by no longer renewing them."""
        self.offers = {}

    @rpc
    async def join(self, via: int) -> None:
        """There is nothing to join."""
