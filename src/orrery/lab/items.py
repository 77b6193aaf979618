"""A run as the report needs it, whether it was just made or comes from the store."""

from __future__ import annotations

from typing import Any

import msgspec

from orrery.base.errors import UsageError
from orrery.base.units import show
from orrery.lab.run import Run
from orrery.lab.spans import plain
from orrery.lab.store import Store, Stored, name_of


class Item(msgspec.Struct, kw_only=True):
    """A run as the report needs it, whether it was just made or comes from the store."""

    name: str
    problem: str
    world: str
    seed: int
    engine: str
    digest: str
    metrics: dict[str, float]
    units: dict[str, tuple[str, str, str]]
    violations: list[dict[str, Any]]
    facts: dict[str, str]
    environment: dict[str, Any] = {}
    id: str = ""
    folder: str = ""
    knobs: dict[str, Any] = {}
    made: Any = None
    command: str = ""
    partial: bool = False
    events: int = 0


def item_of(one: Any, store: Store | None) -> Item:
    """The item of a run, a stored run or a run's id."""
    if isinstance(one, str):
        one = (store or Store()).load(one)
    if isinstance(one, Stored):
        return _from_store(one)
    if isinstance(one, Run):
        return _from_run(one)
    raise UsageError(f"report: {one!r} is no run; give runs, run ids or comparisons")


def _from_store(one: Stored) -> Item:
    spec = one.spec
    facts = _facts(one.seconds, one.events, one.messages, one.bytes, one.ended, one.kind)
    part = spec.get("part") or {}
    return Item(
        name=name_of(part) or "?", problem=name_of(spec.get("problem")) or "none",
        world=str(spec.get("world", "")), seed=int(spec.get("seed", 0)),
        engine=str(spec.get("engine", "")), digest=one.digest, metrics=one.metrics,
        units=dict(one.units), violations=one.violations, facts=facts,
        environment=one.environment, id=one.id, folder=one.folder, partial=one.partial,
        events=one.events, knobs=dict(part.get("knobs") or {}),
        command=f"orrery replay {one.id}",
    )  # fmt: skip


def _from_run(one: Run) -> Item:
    kind = "modelled" if one.engine == "virtual" else "measured"
    facts = _facts(one.seconds, one.events, one.messages, one.bytes, one.ended, kind)
    parts = list(one.part.values()) if isinstance(one.part, dict) else [one.part]
    name = ", ".join(type(part).__name__ for part in parts)
    problem = type(one.problem).__name__ if one.problem is not None else "none"
    world = (one.world.title or one.world.hash) if one.world is not None else ""
    knobs = {k: plain(v) for part in parts for k, v in part.knobs().items()}
    return Item(
        name=name, problem=problem, world=world, seed=one.seed, engine=one.engine,
        digest=one.digest, metrics=one.metrics,
        units={key: (m.unit, m.better, m.says) for key, m in one.units.items()},
        violations=[plain(v) for v in one.violations], facts=facts, knobs=knobs, made=one,
        environment={"kernel": one.extra.get("kernel")},
    )  # fmt: skip


def _facts(
    seconds: float, events: int, messages: int, size_B: int, ended: str, kind: str
) -> dict[str, str]:
    return {
        "time in the run": show(seconds, "s"), "events": show(float(events)),
        "messages": show(float(messages)), "traffic": show(float(size_B), "B"),
        "ended": ended, "numbers are": kind,
    }  # fmt: skip
