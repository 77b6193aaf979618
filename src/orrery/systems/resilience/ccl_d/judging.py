"""What all ways into CCL-D share: the knobs of its judgement, its probe and its bounds."""

from __future__ import annotations

from collections.abc import Callable

from orrery.base.errors import PartError
from orrery.parts import Count, Fraction, Part, Positive
from orrery.systems.resilience.ccl_d.probe import Probe
from orrery.systems.resilience.ccl_d.slowness import Bounds
from orrery.systems.resilience.problems.watcher import Report


class Judging(Part):
    """The knobs by which CCL-D judges; `CCLD` and `CollectiveDoctor` tell what they mean."""

    ring: Count = 128
    learn: Count = 4
    window: Count = 8
    confirm: Count = 3
    far: Positive = 6.0
    share: Fraction = 0.05
    least: Positive = 0.25
    way: Positive = 3.0
    tight: Positive = 0.1
    follow: bool = True

    def check_knobs(self) -> None:
        """Refuse knobs that contradict one another."""
        if self.confirm > self.window:
            raise PartError(f"confirm={self.confirm} of window={self.window}; give at most as many")

    def probe_for(self, rank: int, clock: Callable[[], float], quiet_s: float) -> Probe:
        """The probe that runs at a rank."""
        self.check_knobs()
        return Probe(
            rank, clock, self.ring, learn=self.learn, window=self.window, confirm=self.confirm,
            far=self.far, share=self.share, quiet_s=quiet_s,
        )  # fmt: skip

    def bounds(self) -> Bounds:
        """What counts as slow."""
        return Bounds(self.window, self.confirm, self.least, self.way, self.tight)

    def is_sure(self, found: Report, seen: dict[tuple[int, ...], int]) -> bool:
        """A sick NIC may show on one of its ways first, so ways are looked at several times."""
        if found.ailment not in ("slow_link", "slow_nic"):
            return True
        seen[found.ranks] = seen.get(found.ranks, 0) + 1
        return seen[found.ranks] >= self.confirm
