"""Learning with real numbers: tasks, small models with their gradients, optimisers.

All of it is NumPy on flat vectors, so that an average over replicas is an average of arrays and a
stack of replicas costs little more than one.
"""

from orrery.models.learn.experts import Experts
from orrery.models.learn.layout import Layout
from orrery.models.learn.optim import AdamW, Momentum, Optimiser, make
from orrery.models.learn.tasks import (
    Digits,
    Language,
    LearningTask,
    Logistic,
    Quadratic,
)

TASKS = {
    "quadratic": Quadratic, "logistic": Logistic, "digits": Digits, "language": Language,
    "experts": Experts,
}  # fmt: skip

__all__ = [
    "TASKS", "AdamW", "Digits", "Experts", "Language", "Layout", "LearningTask", "Logistic",
    "Momentum", "Optimiser", "Quadratic", "make",
]  # fmt: skip
