"""What a replica's meters show: gaps between tokens, blocks in use, joules.

Gaps are counted in bins that grow by 1 %, so that a million tokens take a few hundred numbers and a
quantile is right to 0.5 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

WIDTH = math.log(1.01)
LEAST_S = 1e-9


class Meters:
    """The meters of one replica; `merged` reads those of many as one."""

    __slots__ = ("block_s", "gaps", "joules", "peak_use")

    def __init__(self) -> None:
        self.gaps: dict[int, int] = {}  # bin -> how many gaps between two tokens of a request
        self.block_s = 0.0  # blocks in use, over time
        self.peak_use = 0.0  # the largest share of the blocks that was in use
        self.joules = 0.0  # of the devices, while they were busy

    def gap(self, gap_s: float, count: int) -> None:
        """So many tokens came so long after the ones before them."""
        place = math.floor(math.log(max(gap_s, LEAST_S)) / WIDTH)
        self.gaps[place] = self.gaps.get(place, 0) + count

    def add(self, other: Meters) -> None:
        """Take in what another one shows."""
        for place, count in other.gaps.items():
            self.gaps[place] = self.gaps.get(place, 0) + count
        self.block_s += other.block_s
        self.joules += other.joules
        self.peak_use = max(self.peak_use, other.peak_use)

    def gap_mean_s(self) -> float:
        """The mean gap; 0 when there was none."""
        count = sum(self.gaps.values())
        total_s = sum(_middle_s(place) * each for place, each in self.gaps.items())
        return total_s / count if count else 0.0

    def gap_quantile_s(self, share: float) -> float:
        """The gap that this share of all gaps stay below; 0 when there was none."""
        left = share * sum(self.gaps.values())
        for place in sorted(self.gaps):
            left -= self.gaps[place]
            if left <= 0:
                return _middle_s(place)
        return 0.0


def _middle_s(place: int) -> float:
    return math.exp((place + 0.5) * WIDTH)


def merged(meters: Iterable[Meters]) -> Meters:
    """The meters of many replicas read as one."""
    found = Meters()
    for each in meters:
        found.add(each)
    return found


__all__ = ["Meters", "merged"]
