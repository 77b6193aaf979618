"""Traces: the views that replicas really had, placed in the coordinates directly.

A trace has writes (each with its session and what the session had read since its last write), logs
(what each replica applied, in its order) and looks (a session saw the first so many entries of a
log). A view on its own is a log with one look. Where the store sorts what it shows, each write has
a rank. Every rule is near-linear in writes, dependencies and looks, for each log.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from orrery.base.errors import SpecError
from orrery.systems.protocols.light_cone_consistency.coordinates import (
    CLOSURES,
    NAMED,
    Config,
    next_stronger,
    strongest,
)

MOST_WITNESS = 6
"""A counter-example never has more events than this."""


class Write(msgspec.Struct, frozen=True):
    """A write: its session, its key, and the writes that the session read since its last one."""

    session: int
    key: str = ""
    reads: tuple[int, ...] = ()
    call_s: float = 0.0
    ret_s: float = math.inf


class Look(msgspec.Struct, frozen=True):
    """A session sees the first `length` entries of a log, after `own` writes of its own.

    `got` is the write that a read of `key` returned (-1: none yet); without a key it only looked.
    `settled` says that all writes had been delivered by then.
    """

    session: int
    log: int
    length: int
    own: int = 0
    key: str = ""
    got: int = -1
    call_s: float = 0.0
    settled: bool = False


class Trace(msgspec.Struct, frozen=True):
    """Writes in an order that causality allows, logs of their numbers, looks in session order."""

    writes: tuple[Write, ...]
    logs: tuple[tuple[int, ...], ...]
    looks: tuple[Look, ...]
    ranks: tuple[Any, ...] = ()

    def check(self) -> None:
        """Refuse what is no trace, naming the field and the fix."""
        n = len(self.writes)
        for w, write in enumerate(self.writes):
            if not all(0 <= d < w for d in write.reads):
                fix = "number writes so that each follows what its session read"
                raise SpecError(f"writes[{w}].reads", f"{write.reads!r}", fix)
        for at, log in enumerate(self.logs):
            if len(set(log)) != len(log) or not all(0 <= w < n for w in log):
                fix = f"a log holds each of the writes 0..{n - 1} at most once"
                raise SpecError(f"logs[{at}]", "a write twice or unknown", fix)
        for at, look in enumerate(self.looks):
            if not 0 <= look.log < len(self.logs):
                fix = f"there are {len(self.logs)} logs"
                raise SpecError(f"looks[{at}].log", f"{look.log!r}", fix)
            if not 0 <= look.length <= len(self.logs[look.log]):
                fix = f"log {look.log} has {len(self.logs[look.log])} entries"
                raise SpecError(f"looks[{at}].length", f"{look.length!r}", fix)
        if self.ranks and len(self.ranks) != n:
            raise SpecError("ranks", f"{len(self.ranks)} for {n} writes", "give one for each write")


class Witness(msgspec.Struct, frozen=True):
    """Why a rule fails: a sentence, and the events that show it (at most six)."""

    text: str
    events: tuple[str, ...]


class Finding(msgspec.Struct, kw_only=True):
    """Where a trace stands."""

    closure: tuple[str, ...]
    refines: str
    shared: bool  # one order agrees with all views
    appended: bool  # each session's views only grew at their end
    one_log: bool  # all views are prefixes of one order
    timely: bool  # no view lacked a write that had returned
    stale_s: float  # the longest time for which a returned write was still missing
    returns: bool  # each read gave the last write of its key in its view
    models: tuple[str, ...]
    strongest: tuple[str, ...]
    nearest: str
    coordinates: str
    next_stronger: str
    counterexample: Witness | None
    broken: dict[str, Witness]


def place(trace: Trace) -> Finding:
    """The strongest coordinates of a trace, the nearest model, and what refutes the next one."""
    # The rules live beside their data; imported here because they read the structures above.
    from orrery.systems.protocols.light_cone_consistency.rules import Rules

    trace.check()
    rules = Rules(trace)
    broken = rules.broken()
    models = {name for name, config in NAMED.items() if not _lacks(config, broken)}
    best = strongest(models)
    above = next_stronger(models, set(NAMED) - models)
    lacking = _lacks(NAMED[above], broken) if above else []
    closure = tuple(name for name in CLOSURES if name not in broken)
    kept = [n for n in ("causality", "session", "reads") if f"refines {n}" not in broken]
    refines = kept[0] if kept else "nothing"
    shape = "shared log" if "one log" not in broken else " and ".join(
        (["shared sort"] if "shared" not in broken else [])
        + (["local log"] if "append" not in broken else [])) or "each sort"  # fmt: skip
    inside = ",".join(closure) or "none"
    return Finding(
        closure=closure, refines=refines, shared="shared" not in broken,
        appended="append" not in broken, one_log="one log" not in broken,
        timely="real time" not in broken, stale_s=rules.stale_s, returns="returns" not in broken,
        models=tuple(name for name in NAMED if name in models), strongest=best,
        nearest=best[0] if best else "", coordinates=f"C({inside}) O({shape} refining {refines})",
        next_stronger=above, counterexample=broken[lacking[0]] if lacking else None, broken=broken,
    )  # fmt: skip


def _lacks(config: Config, broken: dict[str, Witness]) -> list[str]:
    """The broken rules that a configuration needs, those of closure first."""
    needs = ["returns", *(name for name in CLOSURES if name in config.effective)]
    if config.order.refines != "nothing":
        needs.append(f"refines {config.order.refines}")
    if config.order.scope == "shared":
        needs.append("shared")
    if config.order.form == "log":
        needs.append("one log" if config.order.scope == "shared" else "append")
    if config.time == "real_time":
        needs.append("real time")
    if config.time == "settled":
        needs.append("settled")
    return [name for name in needs if name in broken]
