"""Shortest job first."""

from __future__ import annotations

from orrery.systems.serve.problems.dnn_edge_serving.turns import FixedDepth, View


class EdgeShortestJob(FixedDepth):
    """Run the waiting model that takes the least time at full depth, with adaptive batching.

    W. E. Smith, "Various optimizers for single-stage production", 1956: with everything there from
    the start no order has a smaller mean waiting time. Long models starve under load.

    >>> EdgeShortestJob().depth
    -1
    """

    def pick(self, view: View, models: list[int], skips: list[int]) -> int:
        """The model whose single request is fastest; among equals the one that came first."""
        return min(models, key=lambda m: (view.profile.full_s(m), view.oldest_s[m], m))
