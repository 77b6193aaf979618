"""Earliest deadline first at full depth: the classic rule of real-time scheduling."""

from __future__ import annotations

from orrery.systems.serve.problems.dnn_edge_serving.turns import FixedDepth, View


class EdgeEDF(FixedDepth):
    """Run the model whose first waiting request has the earliest deadline, at full depth.

    J. R. Jackson, "Scheduling a production line to minimize maximum tardiness", 1955; C. L. Liu,
    J. W. Layland, JACM 1973. With everything there from the start no order has a smaller greatest
    lateness. Under overload it serves what is already lost (`late="serve"`); with `late="last"` or
    `late="drop"` it does not. The batch is the largest that still meets the earliest deadline.

    >>> EdgeEDF(late="drop").late
    'drop'
    """

    def pick(self, view: View, models: list[int], skips: list[int]) -> int:
        """The model whose first hopeful request is due first."""
        return min(models, key=lambda m: (view.deadlines_s[m][skips[m]], m))
