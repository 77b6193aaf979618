"""All that a system may touch: the five shapes, problems, rpc, monitors."""

from orrery.base.errors import Cancelled, DeadlineExceeded, Refused
from orrery.base.violation import Violation
from orrery.parts.knobs import Count, Fraction, NonNegative, Part, Positive, Whole
from orrery.parts.monitor import Monitor
from orrery.parts.node import Node
from orrery.parts.problem import Driver, Metric, Outcome, Problem, Record
from orrery.parts.rpc import rpc
from orrery.parts.shapes import Estimator, Policy, Routine, Work, cost, together
from orrery.parts.swarm import Mail, Swarm
from orrery.parts.worker import Worker

__all__ = [
    "Cancelled", "Count", "DeadlineExceeded", "Driver", "Estimator", "Fraction", "Mail", "Metric",
    "Monitor", "Node", "NonNegative", "Outcome", "Part", "Policy", "Positive", "Problem",
    "Record", "Refused", "Routine", "Swarm", "Violation", "Whole", "Work", "Worker", "cost", "rpc",
    "together",
]  # fmt: skip
