"""All requests of a conversation to one replica."""

from __future__ import annotations

from collections.abc import Sequence

from orrery.models.ports import ReplicaView, Router
from orrery.models.requests import Request


class SessionSticky(Router):
    """Keeps a conversation where it began, as long as that replica is alive.

    The replica has the conversation so far in its cache. A new one begins where the fewest requests
    are unfinished. Requests outside of conversations are spread likewise.
    """

    def start(self) -> None:
        self.homes: dict[int, int] = {}

    def route(self, request: Request, replicas: Sequence[ReplicaView]) -> int:
        if not replicas:
            return -1
        alive = {each.index for each in replicas}
        home = self.homes.get(request.session, -1) if request.session >= 0 else -1
        if home not in alive:
            home = min(replicas, key=lambda each: each.outstanding).index
            if request.session >= 0:
                self.homes[request.session] = home
        return home


__all__ = ["SessionSticky"]
