"""A decode worker drawn at random."""

from __future__ import annotations

from collections.abc import Sequence

from orrery.base.rand import Stream
from orrery.parts import Whole
from orrery.systems.serve.problems.dp_decode.firstcome import FirstCome


class DPRandom(FirstCome):
    """Gives each request to a worker drawn at random; `seed` gives another sequence."""

    seed: Whole = 0

    def start(self) -> None:
        super().start()
        self.draws = Stream(self.seed, "dp_random")

    def pick(self, able: Sequence[int], outstanding: Sequence[int], kv: Sequence[int]) -> int:
        return able[self.draws.below(len(able))]


__all__ = ["DPRandom"]
