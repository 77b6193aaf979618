"""Sharing in space: every model has a stream of its own."""

from __future__ import annotations

from typing import ClassVar

from orrery.systems.serve.problems.dnn_edge_serving.turns import FixedDepth, View


class EdgeSpatial(FixedDepth):
    """Run up to 64 models at once, each on a stream of its own; the executor is shared evenly.

    Concurrent streams as CUDA gives them, at full depth, with adaptive batching inside each
    stream. k batches at once take k times as long each (and longer, where the problem's
    `contention` says so), so a batch's time depends on what others do. With one request a batch
    it is processor sharing: the mean time in the system is S / (1 - load) (L. Kleinrock, 1967).

    >>> EdgeSpatial().streams
    64
    """

    streams: ClassVar[int] = 64

    def may_start(self, view: View, model: int) -> bool:
        """A model has one stream."""
        return model not in view.running

    def pick(self, view: View, models: list[int], skips: list[int]) -> int:
        """Any order will do, for all of them start now."""
        return models[0]
