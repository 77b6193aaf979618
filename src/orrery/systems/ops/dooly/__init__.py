"""Dooly: label where dimensions come from, measure each operator once, foretell all models.

`Dooly` is the part of the problem `latency_profiling`. `label` and `traced` watch the real
engine, `Database` and `profile` keep and take measurements, `TorchMeter` takes them here,
`DoolySteps` drives a modelled replica. The names load when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orrery.base.doors import door

_HERE = "orrery.systems.ops.dooly"
_HOMES = {
    "Database": f"{_HERE}.database",
    "Dooly": f"{_HERE}.part",
    "DoolySteps": f"{_HERE}.backend",
    "Key": f"{_HERE}.operators",
    "LayerMeter": f"{_HERE}.layer_meter",
    "Operator": f"{_HERE}.operators",
    "Oracle": f"{_HERE}.oracle",
    "Origin": f"{_HERE}.origins",
    "Sweep": f"{_HERE}.sweep",
    "TableMeter": f"{_HERE}.oracle",
    "TorchMeter": f"{_HERE}.meter",
    "compare": f"{_HERE}.trial",
    "foretelling": f"{_HERE}.trial",
    "label": f"{_HERE}.twins",
    "measure_host": f"{_HERE}.host",
    "profile": f"{_HERE}.database",
    "traced": f"{_HERE}.operators",
    "uses": f"{_HERE}.operators",
}

__all__ = [
    "Database", "Dooly", "DoolySteps", "Key", "LayerMeter", "Operator", "Oracle", "Origin",
    "Sweep", "TableMeter", "TorchMeter", "compare", "foretelling", "label", "measure_host",
    "profile", "traced", "uses",
]  # fmt: skip

if TYPE_CHECKING:
    from orrery.systems.ops.dooly.backend import DoolySteps
    from orrery.systems.ops.dooly.database import Database, profile
    from orrery.systems.ops.dooly.host import measure_host
    from orrery.systems.ops.dooly.layer_meter import LayerMeter
    from orrery.systems.ops.dooly.meter import TorchMeter
    from orrery.systems.ops.dooly.operators import Key, Operator, traced, uses
    from orrery.systems.ops.dooly.oracle import Oracle, TableMeter
    from orrery.systems.ops.dooly.origins import Origin
    from orrery.systems.ops.dooly.part import Dooly
    from orrery.systems.ops.dooly.sweep import Sweep
    from orrery.systems.ops.dooly.trial import compare, foretelling
    from orrery.systems.ops.dooly.twins import label


__getattr__, __dir__ = door(__name__, _HOMES)
