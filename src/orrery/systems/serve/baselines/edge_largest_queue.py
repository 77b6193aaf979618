"""Largest queue first."""

from __future__ import annotations

from orrery.systems.serve.problems.dnn_edge_serving.turns import FixedDepth, View


class EdgeLargestQueue(FixedDepth):
    """Run the model with the most requests waiting, at full depth, with adaptive batching.

    The rule keeps queues stable whenever any rule can (L. Tassiulas, A. Ephremides, "Stability
    properties of constrained queueing systems and scheduling policies", IEEE Transactions on
    Automatic Control 1992: maximum weight, here with equal service). It knows no deadlines.

    >>> EdgeLargestQueue().depth
    -1
    """

    def pick(self, view: View, models: list[int], skips: list[int]) -> int:
        """The model with the longest queue; among equals the one whose request came first."""
        return min(models, key=lambda m: (-len(view.deadlines_s[m]), view.oldest_s[m], m))
