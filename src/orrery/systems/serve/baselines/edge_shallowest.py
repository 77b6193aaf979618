"""The shallowest exit always: the floor of violations and of accuracy."""

from __future__ import annotations

from typing import ClassVar

from orrery.systems.serve.problems.dnn_edge_serving.turns import FixedDepth, View


class EdgeShallowest(FixedDepth):
    """Earliest deadline first, always through the first exit, with adaptive batching.

    It does the least work that answers a request at all, and so bounds from below both the
    violations and the accuracy of policies that choose their exits. What is hopeless goes last.

    >>> EdgeShallowest().depth
    0
    """

    late = "last"
    depth: ClassVar[int] = 0

    def pick(self, view: View, models: list[int], skips: list[int]) -> int:
        """The model whose first hopeful request is due first."""
        return min(models, key=lambda m: (view.deadlines_s[m][skips[m]], m))
