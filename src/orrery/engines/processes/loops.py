"""Event loops: which kind, where to run one, how to end one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def new_loop() -> asyncio.AbstractEventLoop:
    """An event loop: uvloop's where it is installed, else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def outside_loops(work: Callable[[], T]) -> T:
    """Call `work` where no event loop runs: here, or in a thread beside one (a notebook)."""
    if not _in_a_loop():
        return work()
    found: list[Any] = []

    def call() -> None:
        try:
            found.append((work(), None))
        except BaseException as error:
            found.append((None, error))

    thread = threading.Thread(target=call, name="orrery-processes", daemon=True)
    thread.start()
    thread.join()
    value, error = found[0]
    if error is not None:
        raise error
    return value  # type: ignore[no-any-return]


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def settle(loop: asyncio.AbstractEventLoop) -> None:
    """Let cancelled work of the loop end before the loop is closed."""
    left = [task for task in asyncio.all_tasks(loop) if task is not asyncio.current_task()]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await loop.shutdown_default_executor()
    await asyncio.sleep(0)
