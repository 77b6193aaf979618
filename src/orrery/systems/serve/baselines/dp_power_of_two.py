"""The better of a few decode workers drawn at random."""

from __future__ import annotations

from collections.abc import Sequence

from orrery.base.rand import Stream
from orrery.parts import Count, Whole
from orrery.systems.serve.problems.dp_decode.firstcome import FirstCome


class DPPowerOfTwo(FirstCome):
    """Draws `choices` workers at random and takes the one with the fewest requests.

    Mitzenmacher (IEEE TPDS 2001): of n workers, the fullest has about log log n / log 2 requests
    instead of log n / log log n.
    """

    choices: Count = 2
    seed: Whole = 0

    def start(self) -> None:
        super().start()
        self.draws = Stream(self.seed, "dp_power_of_two")

    def pick(self, able: Sequence[int], outstanding: Sequence[int], kv: Sequence[int]) -> int:
        drawn = [able[self.draws.below(len(able))] for _ in range(self.choices)]
        return min(drawn, key=lambda worker: outstanding[worker])


__all__ = ["DPPowerOfTwo"]
