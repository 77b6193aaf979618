"""Branches one after another."""

from __future__ import annotations

import numpy as np

from orrery.systems.serve.problems.branch_requests import BranchPolicy, BranchView


class IRPOff(BranchPolicy):
    """Decodes the branches of an answer one after another, as an engine that knows no branches.

    No step is longer than that of serial requests. An answer with n branches takes as many steps
    as it has tokens.

    >>> IRPOff().widths(BranchView(0.0, [], (), lambda *step: 0.0)).tolist()
    []
    """

    def widths(self, view: BranchView) -> np.ndarray:
        return np.ones(len(view), np.int64)


__all__ = ["IRPOff"]
