"""The first code of a Ray worker, sent by value: it finds Orrery before anything of it is named.

A worker that somebody else's cluster starts knows nothing of this process's search path, so the
class cannot be looked up by its module there. It imports nothing at its top for the same reason.
"""

from __future__ import annotations

from typing import Any


class Stagehand:
    """An actor: sets the search path, then hosts nodes until it is killed."""

    def __init__(self, paths: list[str]) -> None:
        import sys

        sys.path[:] = [*paths, *(path for path in sys.path if path not in paths)]

    async def prepare(self, spec: bytes, code: bytes) -> int:
        """Bring the code and read the run, which takes a second; gives the process's number."""
        import os

        from orrery.engines.ray.stage import prepare

        prepare(spec, code)
        return os.getpid()

    async def begin(self, prepared: int, orders: bytes) -> None:
        """Host the nodes of one group from now on; Ray calls it once `prepared` is there."""
        from orrery.engines.ray.stage import begin

        await begin(orders)


def call(paths: list[str], code: bytes, name: str, data: bytes) -> Any:
    """A task: call the function `module:name` with the bytes that it understands."""
    import importlib
    import sys

    sys.path[:] = [*paths, *(path for path in sys.path if path not in paths)]
    importlib.import_module("orrery.engines.ray.code").bring(code)
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)(data)
