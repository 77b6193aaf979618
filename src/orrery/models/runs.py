"""Closed forms of sums over a run of decode steps, in which the context grows by a fixed amount."""

from __future__ import annotations

import math


def sum_of_ramp(slope: float, rest: float, start: float, step: float, count: int) -> float:
    """The sum of slope * x + rest over x = start, start + step ... (`count` of them).

    >>> sum_of_ramp(2.0, 1.0, 10, 5, 3)  # 21 + 31 + 41
    93.0
    """
    return count * (rest + slope * (start + step * (count - 1) / 2))


def sum_of_max(
    steep: float, slope: float, rest: float, start: float, step: float, count: int
) -> float:
    """The sum of max(steep * x, slope * x + rest) over x = start, start + step ...

    >>> sum_of_max(2.0, 1.0, 10.0, 5, 5, 3)  # max(10, 15) + max(20, 20) + max(30, 25)
    65.0
    """
    if count <= 0:
        return 0.0
    if steep <= slope:
        return sum_of_ramp(slope, rest, start, step, count)
    cross = rest / (steep - slope)
    below = count if step <= 0 and start < cross else 0
    if step > 0:
        below = min(max(math.ceil((cross - start) / step), 0), count)
    first = sum_of_ramp(slope, rest, start, step, below)
    return first + sum_of_ramp(steep, 0.0, start + below * step, step, count - below)


__all__ = ["sum_of_max", "sum_of_ramp"]
