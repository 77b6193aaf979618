"""Real time: the run's common clock, wake-ups finer than a millisecond, and clocks that lie."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from orrery.base.rand import Stream
from orrery.engines.processes.spec import Counters, RunSpec
from orrery.world import ClockDrift, ClockJump, ClockSkew

_TFD_NONBLOCK, _TFD_CLOEXEC, _CLOCK_MONOTONIC, _TFD_ABSTIME = 0o4000, 0o2000000, 1, 1


class _Timerspec(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long), ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long), ("value_ns", ctypes.c_long),
    )  # fmt: skip


class Alarm:
    """Calls back at a monotonic time.

    Event loops round their timers up to a millisecond, which would double the latency of a LAN.
    On Linux a timer descriptor wakes the loop within tens of microseconds; elsewhere the loop's own
    timer has to do.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, fire: Callable[[], None]) -> None:
        self._loop = loop
        self._fire = fire
        self._due_ns = 0
        self._handle: asyncio.TimerHandle | None = None
        self._fd = -1
        if sys.platform == "linux":
            self._libc = ctypes.CDLL(None, use_errno=True)
            if hasattr(self._libc, "timerfd_create"):
                flags = _TFD_NONBLOCK | _TFD_CLOEXEC
                self._fd = int(self._libc.timerfd_create(_CLOCK_MONOTONIC, flags))
        if self._fd >= 0:
            loop.add_reader(self._fd, self._ring)

    def set(self, due_ns: int) -> None:
        """Ring at `due_ns` of the monotonic clock; an earlier time replaces a later one."""
        if self._due_ns and self._due_ns <= due_ns:
            return
        self._due_ns = due_ns
        if self._fd >= 0:
            spec = _Timerspec(0, 0, due_ns // 1_000_000_000, max(due_ns % 1_000_000_000, 1))
            self._libc.timerfd_settime(self._fd, _TFD_ABSTIME, ctypes.byref(spec), None)
            return
        if self._handle is not None:
            self._handle.cancel()
        wait_s = max(due_ns - time.monotonic_ns(), 0) / 1e9
        self._handle = self._loop.call_later(wait_s, self._ring)

    def _ring(self) -> None:
        if self._fd >= 0:
            try:
                os.read(self._fd, 8)
            except BlockingIOError:
                return
        self._due_ns = 0
        self._handle = None
        self._fire()

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1


class SkewedClock:
    """What `clock()` answers on one node: true time bent by the world's clocks and its faults.

    The reading is a function of true time alone, so a restarted process goes on with the clock of
    its predecessor, as a real machine would.
    """

    def __init__(self, spec: RunSpec, node: int, counters: Counters) -> None:
        world = spec.world
        rng = Stream(spec.seed, node, "clock")
        self._counters = counters
        self._skew_s = rng.uniform(-world.clocks.skew_s, world.clocks.skew_s)
        self._drift = rng.uniform(-world.clocks.drift, world.clocks.drift)
        self._faults: list[tuple[int, Any]] = [
            (place, fault)
            for place, fault in enumerate(spec.faults)
            if isinstance(fault, (ClockSkew, ClockDrift, ClockJump))
            and node in world.targets(fault)
        ]

    def read(self, now_s: float) -> float:
        reading = self._skew_s + (1.0 + self._drift) * now_s
        for place, fault in self._faults:
            if now_s < fault.at_s:
                continue
            self._counters.fire(place)
            if isinstance(fault, ClockJump):
                reading += fault.jump_s
            elif isinstance(fault, ClockDrift):
                end_s = now_s if fault.until_s is None else min(now_s, fault.until_s)
                reading += fault.drift * (end_s - fault.at_s)
            elif fault.during(now_s):
                reading += fault.skew_s
        return reading
