"""The decode worker with the fewest requests."""

from __future__ import annotations

from collections.abc import Sequence

from orrery.systems.serve.problems.dp_decode.firstcome import FirstCome


class DPLeastOutstanding(FirstCome):
    """Gives a request to the worker that has the fewest, running or bound to it.

    The rule of vLLM's own data-parallel front. A request counts as one, however long it is.
    """

    def pick(self, able: Sequence[int], outstanding: Sequence[int], kv: Sequence[int]) -> int:
        return min(able, key=lambda worker: (outstanding[worker], worker))


__all__ = ["DPLeastOutstanding"]
