"""The decode worker with the fewest tokens in its cache."""

from __future__ import annotations

from collections.abc import Sequence

from orrery.systems.serve.problems.dp_decode.firstcome import FirstCome


class DPLeastKV(FirstCome):
    """Gives a request to the worker whose cache holds the fewest tokens.

    Graham's list scheduling (1966) with tokens for work. In a full cluster there is seldom more
    than one free slot, and then there is nothing to choose.
    """

    def pick(self, able: Sequence[int], outstanding: Sequence[int], kv: Sequence[int]) -> int:
        return min(able, key=lambda worker: (kv[worker], worker))


__all__ = ["DPLeastKV"]
