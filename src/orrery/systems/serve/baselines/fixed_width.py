"""So many branches of an answer, and no more."""

from __future__ import annotations

import numpy as np

from orrery.parts import Count
from orrery.systems.serve.problems.branch_requests import BranchPolicy, BranchView


class FixedWidth(BranchPolicy):
    """Decodes at most `cap` branches of each answer at once, whatever else is in the batch.

    With branches that start in their order it is list scheduling on `cap` machines (Graham, 1966).

    >>> FixedWidth(cap=2).widths(BranchView(0.0, [], (), lambda *step: 0.0)).tolist()
    []
    """

    cap: Count = 4

    def widths(self, view: BranchView) -> np.ndarray:
        return np.minimum(view.open, self.cap)


__all__ = ["FixedWidth"]
