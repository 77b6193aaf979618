"""Every order of deliveries of a small system, with equal states merged.

Coroutines cannot be copied, so each schedule is executed from the start: a run follows its prefix,
then takes the oldest message each time and notes the other choices as prefixes to try later. A
state seen before (nodes, waiting messages, parked coroutines) is not gone into again. A bound on
deviations from first-in-first-out makes larger systems reachable (delay-bounded search).

Work is (number of schedules) x (steps of one); memory is one hash for each state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from orrery.base.codec import encode
from orrery.base.errors import CodecError
from orrery.base.violation import Violation
from orrery.engines.virtual.chosen import TICK, Kernel
from orrery.engines.virtual.engine import Engine
from orrery.parts.problem import Outcome, Problem
from orrery.world import World


class Exploration(msgspec.Struct, kw_only=True):
    """What an exploration found. `complete` says that nothing was left out."""

    schedules: int  # runs that were executed
    states: int  # distinct states that were seen
    merged: int  # times that a run met a known state
    complete: bool
    violations: list[Violation]
    schedule: list[int] | None = None  # of the first violation: replay it with schedule=…


class _Pruned(Exception):
    """A run met a state that was explored before."""


def explore(
    roles: Mapping[str, Any],
    *,
    world: World,
    problem: Problem | None = None,
    part: Any = None,
    seed: int = 0,
    max_schedules: int = 100_000,
    deviations: int | None = None,
    timers: str = "last",
    check: Callable[[Outcome], list[Violation]] | None = None,
    stop_at_first: bool = True,
) -> Exploration:
    """Run all schedules (up to the bounds) and check each that comes to an end.

    `timers="last"` lets timers fire only when no message waits; `"any"` makes them a choice too.
    """
    judge = check or (problem.check if problem is not None else lambda outcome: [])
    seen: dict[bytes, int] = {}
    pending: list[tuple[int, ...]] = [()]
    found = Exploration(schedules=0, states=0, merged=0, complete=True, violations=[])
    while pending:
        if found.schedules >= max_schedules:
            found.complete = False
            break
        prefix = pending.pop()
        found.schedules += 1
        walker = _Walker(prefix, pending, seen, deviations, timers)
        engine = Engine(
            roles, world=world, problem=problem, part=part, seed=seed, kernel="chosen",
            choose=walker.choose,
        )  # fmt: skip
        try:
            outcome = engine.run()
        except _Pruned:
            engine.close()
            found.merged += 1
            continue
        bad = [*outcome.violations, *judge(outcome)]
        if bad:
            found.violations += bad
            if found.schedule is None:
                found.schedule = list(engine.kernel.choices)
            if stop_at_first:
                found.complete = False
                break
    found.states = len(seen)
    return found


class _Walker:
    """The chooser of one run: the prefix first, then the oldest, noting the alternatives."""

    def __init__(
        self,
        prefix: tuple[int, ...],
        pending: list[tuple[int, ...]],
        seen: dict[bytes, int],
        deviations: int | None,
        timers: str,
    ) -> None:
        self.prefix = prefix
        self.pending = pending
        self.seen = seen
        self.left = deviations
        self.timers = timers
        self.step = 0
        self.taken: list[int] = []

    def choose(self, kernel: Kernel) -> int:
        step, self.step = self.step, self.step + 1
        if step < len(self.prefix):
            pick = self.prefix[step]
            if pick != 0 and self.left is not None:
                self.left -= 1
        else:
            self._merge(kernel)
            pick = 0
            if self.left is None or self.left > 0:
                done = (*self.taken,)
                others = range(1, len(kernel.pool))
                self.pending.extend((*done, other) for other in reversed(others))
                if self.timers == "any" and kernel.times:
                    self.pending.append((*done, TICK))
        self.taken.append(pick)
        return pick

    def _merge(self, kernel: Kernel) -> None:
        print_ = fingerprint(kernel)
        if print_ is None:
            return
        left = -1 if self.left is None else self.left
        before = self.seen.get(print_)
        # A state met with more deviations left than before must be gone into again.
        if before is not None and (left == -1 or left <= before):
            raise _Pruned
        self.seen[print_] = left


def fingerprint(kernel: Kernel) -> bytes | None:
    """A hash of everything that decides the future, or None where something cannot be read."""
    try:
        nodes = []
        for index, host in enumerate(kernel.hosts):
            if host is None:
                continue
            state = {k: v for k, v in vars(host).items() if not k.startswith("_")}
            tasks = [_position(task.coro) for task in host._tasks]
            nodes.append((index, kernel.state[index], encode(state), sorted(tasks)))
        messages = sorted(
            (src, dst, slot.name, encode(args), is_reply)
            for _, _, src, dst, slot, args, _, is_reply, _, _ in kernel.pool
        )
        timers = sorted((when - kernel.now, len(bucket)) for when, bucket in kernel.buckets.items())
        return hashlib.blake2b(encode((nodes, messages, timers)), digest_size=16).digest()
    except (CodecError, _Unreadable):
        return None


class _Unreadable(Exception):
    """A coroutine waits in something that is not a coroutine frame."""


def _position(coro: Any) -> bytes:
    """Where a parked coroutine stands: instruction and local values, down the chain of awaits."""
    places: list[Any] = []
    while coro is not None:
        frame = getattr(coro, "cr_frame", None) or getattr(coro, "gi_frame", None)
        if frame is None:
            break
        values = {
            name: value
            for name, value in frame.f_locals.items()
            if name != "self" and not _is_machinery(value)
        }
        places.append((frame.f_code.co_qualname, frame.f_lasti, encode(values)))
        coro = getattr(coro, "cr_await", None) or getattr(coro, "gi_yieldfrom", None)
    if not places:
        raise _Unreadable
    return encode(places)


def _is_machinery(value: Any) -> bool:
    return type(value).__module__.startswith("orrery.engines.") or hasattr(value, "_kernel")
