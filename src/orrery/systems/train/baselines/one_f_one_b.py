"""1F1B with a flush: the bubble of GPipe with fewer activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from orrery.models.taskgraph.schedules import Step, one_f_one_b
from orrery.systems.train.baselines.gpipe import GPipe


class OneFOneB(GPipe):
    """One forward, one backward in turn; flush and update after `micro_batches` batches.

    Narayanan et al., "Memory-efficient pipeline-parallel DNN training" (PipeDream-Flush), ICML
    2021. The bubble is that of GPipe, but stage s keeps the activations of at most S - s batches,
    however many there are.

    Knobs: `micro_batches`; `optimiser`.
    Differs from the paper: activations are kept and not computed again.

    >>> OneFOneB().micro_batches
    8
    """

    schedule: ClassVar[Callable[..., list[Step]]] = staticmethod(one_f_one_b)
