"""Writes `structures.json`: the operators of every structure in the catalogue of models, traced.

Run it when the real engine's operators change (a test then says so), on a machine with PyTorch:
`python -m orrery.systems.ops.dooly.ship`. What is shipped serves machines without it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from orrery.base.errors import SpecError
from orrery.models.real.transformer import refuse_unknown
from orrery.models.specs import ModelSpec, spec, spec_names
from orrery.systems.ops.dooly.host import tiny
from orrery.systems.ops.dooly.operators import Operator, structure, traced


def structures() -> dict[str, ModelSpec]:
    """One model of each structure that the engine computes, and the tiny one of the host."""
    found: dict[str, ModelSpec] = {}
    for model in [*map(spec, spec_names()), tiny(2)]:
        try:
            refuse_unknown(model)
        except SpecError:
            continue  # the engine says which part of it is missing
        found.setdefault(structure(model), model)
    return dict(sorted(found.items()))


def as_data(each: Operator) -> dict[str, Any]:
    """An operator without the fields that have their defaults."""
    plain, default = msgspec.to_builtins(each), msgspec.to_builtins(Operator(op=""))
    return {name: value for name, value in plain.items() if value != default[name]}


def write(path: Path) -> int:
    """Trace all structures and write them, one operator a line; how many there are."""
    rows = []
    for name, model in structures().items():
        lines = ",\n".join(json.dumps(as_data(each)) for each in traced(model))
        rows.append(f"{json.dumps(name)}: [\n{lines}\n]")
    path.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
    return len(rows)


if __name__ == "__main__":
    print(write(Path(__file__).with_name("structures.json")), "structures")


__all__ = ["structures", "write"]
