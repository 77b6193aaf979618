"""PipeDream without weight stashing: backward passes go through newer weights."""

from __future__ import annotations

from orrery.systems.train.baselines.pipedream import PipeDream


class PipeDreamUnstashed(PipeDream):
    """PipeDream that keeps no old weights: a batch goes back through whatever is newest.

    The ablation of Narayanan et al., SOSP 2019: no stash, but what a stage adds up is then no
    gradient of the loss at any weights, where its backward pass depends on its weights.

    Knobs: those of `PipeDream`, with `stash` off.
    Differs from the paper: nothing known.

    >>> PipeDreamUnstashed().stash
    False
    """

    stash: bool = False
