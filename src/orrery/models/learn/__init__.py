"""Learning with real numbers: tasks, small models with their gradients, optimisers.

All of it is NumPy on flat vectors, so that an average over replicas is an average of arrays and a
stack of replicas costs little more than one.
"""

from orrery.models.learn.layout import Layout
from orrery.models.learn.optim import AdamW, Momentum, Optimiser, make
from orrery.models.learn.tasks import (
    TASKS,
    Digits,
    Language,
    LearningTask,
    Logistic,
    Quadratic,
)

__all__ = [
    "TASKS", "AdamW", "Digits", "Language", "Layout", "LearningTask", "Logistic", "Momentum",
    "Optimiser", "Quadratic", "make",
]  # fmt: skip
