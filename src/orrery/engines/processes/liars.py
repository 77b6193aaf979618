"""Lying nodes on real sockets: the same strategies as in virtual time, asked at the post office.

A strategy knows nothing of engines, so a lie is the same lie here. What a node says to itself, to
the driver or hears from it is left alone. "twins" is refused before the start: a second copy of a
process behind one address has no counterpart here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from orrery.base.rand import Stream
from orrery.engines.processes.spec import Counters, RunSpec
from orrery.parts import byzantine
from orrery.world import Byzantine

# (destination, what is said, how much later)
Said = tuple[int, Any, float]


class Liars:
    """The strategies of the lying nodes of one process."""

    def __init__(
        self, spec: RunSpec, group: int, counters: Counters, now_s: Callable[[], float]
    ) -> None:
        self._counters = counters
        self._now_s = now_s
        self._size = spec.size
        mine = spec.groups[group] if group < len(spec.groups) else ()
        # node -> (place of the fault, the fault, its strategies), in order of the schedule
        self._liars: dict[int, list[tuple[int, Any, list[byzantine.Strategy]]]] = {}
        for place, fault in enumerate(spec.faults):
            if not isinstance(fault, Byzantine):
                continue
            for node in spec.world.targets(fault):
                if node in mine:
                    liar = byzantine.Liar(
                        me=node, size=spec.size, rng=Stream(spec.seed, node, f"fault {place}"),
                        now=now_s, p=fault.p, delay_s=fault.delay_s, to=fault.to,
                    )  # fmt: skip
                    own = getattr(spec.class_of(node), "byzantine", None)
                    strategies = byzantine.build(fault.strategies, liar, own)
                    self._liars.setdefault(node, []).append((place, fault, strategies))

    def __bool__(self) -> bool:
        return bool(self._liars)

    def said(self, src: int, dst: int, method: str, args: Any, is_reply: bool) -> list[Said]:
        """What node `src` says instead."""
        return self._pass(src, src, dst, method, args, is_reply, receiving=False)

    def heard(self, src: int, dst: int, method: str, args: Any) -> list[Said]:
        """What node `dst` hears instead."""
        return self._pass(dst, src, dst, method, args, False, receiving=True)

    def _pass(
        self, node: int, src: int, dst: int, method: str, args: Any, is_reply: bool,
        receiving: bool,
    ) -> list[Said]:  # fmt: skip
        first = byzantine.Message(src, dst, method, args, is_reply)
        if src == dst or max(src, dst) >= self._size:
            return [(dst, args, 0.0)]
        messages = [first]
        for place, fault, strategies in self._liars.get(node, ()):
            if fault.during(self._now_s()):
                messages = [
                    out for each in messages
                    for out in byzantine.pass_through(strategies, each, receiving)
                ]  # fmt: skip
                if len(messages) != 1 or messages[0] is not first:
                    self._counters.fire(place)
        return [(each.dst, each.args, each.delay_s) for each in messages]

    def computed(self, node: int, value: Any) -> Any:
        """What a computation of a node gives instead."""
        for place, fault, strategies in self._liars.get(node, ()):
            if fault.during(self._now_s()):
                for strategy in strategies:
                    told = strategy.on_compute(value)
                    if told is not value:
                        self._counters.fire(place)
                    value = told
        return value
