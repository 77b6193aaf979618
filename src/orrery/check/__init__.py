"""Checkers: pure functions over what a run recorded, with evidence that can be checked again.

A checker gives a list of violations, empty when all is well; a bounded search gives a `Verdict`.
The modules `agreement`, `broadcast`, `atomic_commit`, `conservation`, `crdt`, `overlay` and
`sessions` hold one question each; import the functions from there.
"""

from orrery.check.history import History, Operation
from orrery.check.linearizability import linearizable
from orrery.check.models import (
    CasRegister,
    Counter,
    Model,
    Mutex,
    Queue,
    Register,
    SetModel,
    Stack,
)
from orrery.check.sequential import sequentially_consistent
from orrery.check.violation import Verdict, Violation

__all__ = [
    "CasRegister",
    "Counter",
    "History",
    "Model",
    "Mutex",
    "Operation",
    "Queue",
    "Register",
    "SetModel",
    "Stack",
    "Verdict",
    "Violation",
    "linearizable",
    "sequentially_consistent",
]
