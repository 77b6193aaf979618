"""The metrics of a run as rows of one schema, whatever the algorithm and the mode.

One row stands for `per_s` seconds: items that were committed in it, lookups that ended and their
mean hops, the deepest fork that was undone, terms or views that began. Messages and bytes are known
for the run as a whole and stand in the last row, which sums up.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from orrery.base.errors import SpecError


class Row(NamedTuple):
    """What happened from `begin_s` to `end_s`; in the last row of a run, in all of it."""

    begin_s: float
    end_s: float
    committed: int = 0
    lookups: int = 0
    mean_hops: float = 0.0
    fork_depth: int = 0
    leaders: int = 0
    messages: int | None = None
    bytes: int | None = None


FIELDS = Row._fields


def rows(made: Any, per_s: float) -> list[Row]:
    """The rows of a run (or of an outcome), and one more for the whole."""
    if not (isinstance(per_s, int | float) and per_s > 0 and math.isfinite(per_s)):
        raise SpecError("per_s", f"{per_s!r} is refused", "give a number of seconds > 0")
    parts = int(made.seconds / per_s) + 1
    bins: list[list[Any]] = [[] for _ in range(parts)]
    for record in made.records:
        bins[min(int(record.time_s / per_s), parts - 1)].append(record)
    found: list[Row] = []
    seen: set[Any] = set()
    for i, records in enumerate(bins):
        end_s = min((i + 1) * per_s, made.seconds)
        if end_s > i * per_s or records:
            found.append(_row(records, i * per_s, end_s, seen))
    whole = _row(made.records, 0.0, made.seconds, set())
    return [*found, whole._replace(messages=made.messages, bytes=made.bytes)]


def _row(records: list[Any], begin_s: float, end_s: float, seen: set[Any]) -> Row:
    committed = 0
    hops: list[int] = []
    forks: list[int] = []
    leaders = 0
    for record in records:
        values = record.values
        item = committed_by(values)
        # An item counts when the first node has it; the others follow.
        if item is not None and item not in seen:
            seen.add(item)
            committed += 1
        if values.get("owner") is not None and "hops" in values:
            hops.append(values["hops"])
        forks.append(values.get("reorg", 0))
        leaders += "leads" in values or "view" in values
    mean = sum(hops) / len(hops) if hops else 0.0
    return Row(begin_s, end_s, committed, len(hops), mean, max(forks, default=0), leaders)


def committed_by(values: dict[str, Any]) -> Any:
    """The name of the item that a record says is committed; None where it says no such thing."""
    if "ordered" in values:
        number, requests = values["ordered"]
        return ("number", number) if requests else None
    if "applied" in values:
        return ("applied", values["applied"][0])
    if "mined" in values:
        return ("block", values["mined"][0])
    if "delivered" in values:
        return ("item", values["delivered"])
    return None
