"""Joins parts to engines: runs, comparisons, claims and verdicts, the run store, reports.

The names below load when they are first used, so that a quick command stays quick.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from orrery.base.doors import door

_HOMES = {
    "Run": "orrery.lab.run",
    "run": "orrery.lab.run",
    "Claim": "orrery.lab.claims",
    "Verdict": "orrery.lab.claims",
    "check": "orrery.lab.checking",
    "Comparison": "orrery.lab.compare",
    "compare": "orrery.lab.compare",
    "Entry": "orrery.lab.discover",
    "entries": "orrery.lab.discover",
    "find": "orrery.lab.discover",
    "load": "orrery.lab.discover",
    "problems": "orrery.lab.questions",
    "where": "orrery.lab.questions",
    "Ledger": "orrery.lab.ledger",
    "Store": "orrery.lab.store",
}

__all__ = [
    "Claim", "Comparison", "Entry", "Ledger", "Run", "Store", "Verdict", "check", "compare",
    "entries", "find", "load", "problems", "run", "where",
]  # fmt: skip

if TYPE_CHECKING:
    from orrery.lab.checking import check
    from orrery.lab.claims import Claim, Verdict
    from orrery.lab.compare import Comparison, compare
    from orrery.lab.discover import Entry, entries, find, load
    from orrery.lab.ledger import Ledger
    from orrery.lab.questions import problems, where
    from orrery.lab.run import Run, run
    from orrery.lab.store import Store


__getattr__, __dir__ = door(__name__, _HOMES)


class _Door(ModuleType):
    """This module, in which `run` and `compare` stay functions.

    When Python imports the file `run.py` it sets `orrery.lab.run` to that module; the function of
    the same name is what users mean, so the module is not allowed to hide it.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and name in _HOMES):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Door
