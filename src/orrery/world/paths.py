"""Dotted paths into the plain data of a world: "network.latency_s", "groups.0.count"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orrery.base.errors import WorldError, did_you_mean
from orrery.world.spec import Spec, field_names, to_data


def read(document: dict[str, Any], world: Spec, path: str) -> Any:
    """The value at a path; None for a field that exists and is left out."""
    owner, key = _owner(document, path)
    if isinstance(owner, list):
        return owner[_place(owner, key, path)]
    if key in owner:
        return owner[key]
    if _is_field(world, path):
        return None
    raise WorldError(path, "unknown field", did_you_mean(key, owner))


def write(document: dict[str, Any], path: str, value: Any) -> None:
    """Put a value at a path; None takes the field out, so that it has its default again.

    A field that the struct does not know is refused later, when the world is built.
    """
    owner, key = _owner(document, path)
    if isinstance(owner, list):
        owner[_place(owner, key, path)] = to_data(value)
    elif value is None:
        owner.pop(key, None)
    else:
        owner[key] = to_data(value)


def _owner(document: Any, path: str) -> tuple[Any, str]:
    *steps, last = str(path).split(".")
    here = document
    for i, step in enumerate(steps):
        if isinstance(here, list):
            here = here[_place(here, step, path)]
        elif isinstance(here, dict) and step in here:
            here = here[step]
        else:
            known = here if isinstance(here, dict) else ()
            raise WorldError(".".join(steps[: i + 1]), "unknown field", did_you_mean(step, known))
    if not isinstance(here, (dict, list)):
        raise WorldError(path, "goes deeper than the data", "leave out its last part")
    return here, last


def _place(items: list[Any], step: str, path: str) -> int:
    """A place in a list, by number or by the name of its only bearer."""
    if step.isdigit() and int(step) < len(items):
        return int(step)
    bearers = [item.get("name") if isinstance(item, dict) else None for item in items]
    named = [i for i, name in enumerate(bearers) if name == step]
    if len(named) == 1:
        return named[0]
    problem = f"{len(named) or 'no'} entries are called {step!r}"
    raise WorldError(path, problem, f"give a number from 0 to {len(items) - 1}")


def _is_field(spec: Any, path: str) -> bool:
    *steps, last = path.split(".")
    for step in steps:
        if isinstance(spec, tuple):
            spec = spec[_place([to_data(each) for each in spec], step, path)]
        elif isinstance(spec, Mapping):
            spec = spec.get(step)
        else:
            spec = getattr(spec, step, None)
    return isinstance(spec, Spec) and last in field_names(type(spec))
