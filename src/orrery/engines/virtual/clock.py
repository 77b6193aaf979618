"""Clocks that nodes read: true time bent by the skew, drift and jumps of the world."""

from __future__ import annotations

from orrery.base.rand import Stream
from orrery.world import World


class Clocks:
    """One line per node: reading = base + (1 + drift) * (now - since)."""

    def __init__(self, world: World, seed: int) -> None:
        self._seed = seed
        self._skew_s = world.clocks.skew_s
        self._drift = world.clocks.drift
        # node -> (since_ns, reading at that time in s, drift); made when first read
        self._lines: dict[int, tuple[int, float, float]] = {}

    def _line(self, node: int) -> tuple[int, float, float]:
        line = self._lines.get(node)
        if line is None:
            rng = Stream(self._seed, node, "clock")
            skew = rng.uniform(-self._skew_s, self._skew_s)
            drift = rng.uniform(-self._drift, self._drift)
            line = self._lines[node] = (0, skew, drift)
        return line

    def read(self, node: int, now_ns: int) -> float:
        since, base, drift = self._lines.get(node) or self._line(node)
        return base + (1.0 + drift) * ((now_ns - since) / 1e9)

    def jump(self, node: int, now_ns: int, by_s: float) -> None:
        """Set the clock forward (or back) at once."""
        drift = self._line(node)[2]
        self._lines[node] = (now_ns, self.read(node, now_ns) + by_s, drift)

    def set_drift(self, node: int, now_ns: int, drift: float) -> float:
        """Let the clock run fast or slow from now on; gives the drift it had."""
        before = self._line(node)[2]
        self._lines[node] = (now_ns, self.read(node, now_ns), drift)
        return before
