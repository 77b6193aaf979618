"""Requests to decode workers in turn."""

from __future__ import annotations

from collections.abc import Sequence

from orrery.systems.serve.problems.dp_decode.firstcome import FirstCome


class DPRoundRobin(FirstCome):
    """Gives requests to the decode workers in turn; one that can take none is left out.

    Every worker gets as many requests as any other, but not as many tokens.
    """

    def start(self) -> None:
        super().start()
        self.turn = 0

    def pick(self, able: Sequence[int], outstanding: Sequence[int], kv: Sequence[int]) -> int:
        count = len(kv)
        worker = min(able, key=lambda w: (w - self.turn) % count)
        self.turn = (worker + 1) % count
        return worker


__all__ = ["DPRoundRobin"]
