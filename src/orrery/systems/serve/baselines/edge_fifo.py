"""First in, first out over all models, with adaptive batching."""

from __future__ import annotations

from orrery.systems.serve.problems.dnn_edge_serving.turns import FixedDepth, View


class EdgeFIFO(FixedDepth):
    """Run the model whose request has waited longest, at full depth, with adaptive batching.

    The batch takes in as many requests of that model as its earliest deadline allows, as in
    Clipper (Crankshaw et al., NSDI 2017) and Nexus (Shen et al., SOSP 2019). With one model, batch
    size 1 and Poisson arrivals it is the queue M/D/1.

    >>> EdgeFIFO(most_batch=1).most_batch
    1
    """

    def pick(self, view: View, models: list[int], skips: list[int]) -> int:
        """The model of the request that came first."""
        return min(models, key=lambda m: (view.oldest_s[m], m))
