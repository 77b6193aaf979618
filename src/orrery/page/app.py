"""What the handlers share: the store, the jobs, the guard, and tables of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from orrery.lab.store import Store
from orrery.page.guard import Guard
from orrery.page.jobs import Jobs

Made = TypeVar("Made")


class App:
    """One per server. A view keeps what must live between requests with `table`."""

    def __init__(self, guard: Guard, store: Store | None = None, *, jobs: Jobs | None = None):
        self.guard = guard
        self.store = store if store is not None else Store()
        self.jobs = jobs if jobs is not None else Jobs()
        self._tables: dict[str, Any] = {}
        self._lock = threading.Lock()

    def table(self, name: str, make: Callable[[], Made]) -> Made:
        """The table of a view, made at its first use (from any thread)."""
        with self._lock:
            if name not in self._tables:
                self._tables[name] = make()
            found: Made = self._tables[name]
            return found

    async def close(self) -> None:
        """End the children, and let each table that has a `close` put things away."""
        await self.jobs.close()
        for table in self._tables.values():
            closing = getattr(table, "close", None)
            if callable(closing):
                closing()
