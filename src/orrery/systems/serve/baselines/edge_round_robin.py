"""Round robin over the models, with adaptive batching."""

from __future__ import annotations

from orrery.systems.serve.problems.dnn_edge_serving.turns import FixedDepth, View


class EdgeRoundRobin(FixedDepth):
    """Run the models in turn, at full depth, with adaptive batching; idle ones lose their turn.

    J. Nagle, "On packet switches with infinite storage", IEEE Transactions on Communications 1987,
    gives every source its turn; here the sources are models.

    >>> EdgeRoundRobin().late
    'serve'
    """

    def start(self) -> None:
        self.last = -1

    def pick(self, view: View, models: list[int], skips: list[int]) -> int:
        """The next model after the one that ran last."""
        count = len(view.deadlines_s)
        self.last = min(models, key=lambda m: (m - self.last - 1) % count)
        return self.last
