"""Grows sessions of an agent from measured shapes: levels of calls that wait for each other."""

from __future__ import annotations

from typing import Any

import numpy as np

from orrery.base.rand import Stream
from orrery.inputs import ragged
from orrery.inputs.tables import SLICE_LEVELS
from orrery.inputs.workload import F64, Workload

# When a later call would come if answers took this long; a run that honours parents replaces it.
TOKENS_PER_S = 50.0


class _Calls:
    """The calls made so far, as lists."""

    def __init__(self) -> None:
        self.columns: dict[str, list[Any]] = {
            name: [] for name in ("at", "input", "output", "session", "parent", "delay_s")
        }
        self.rows: dict[str, list[list[int]]] = {"block": [], "answer": [], "parent": []}
        self.fresh = 0

    def new_blocks(self, count: int) -> list[int]:
        self.fresh += count
        return list(range(self.fresh - count, self.fresh))


def _draw(table: list[float], stream: Stream) -> float:
    return float(np.interp(stream.random(), SLICE_LEVELS, table))


def grow(facts: dict[str, Any], starts_s: F64, seed: int) -> Workload:
    """One session from each start; see `generate.agents_like`."""
    stream = Stream(seed, "agents", "sessions")
    calls = _Calls()
    shapes = facts["sessions"]["shapes"]
    for number, start_s in enumerate(starts_s.tolist()):
        shape = shapes[stream.below(len(shapes))]
        level: list[int] = []
        trunk: list[int] = []  # the blocks of the session's latest lone call, prompt and answer
        for width in shape:
            made = [
                _call(facts, calls, stream, number, start_s, width, level, trunk)
                for _ in range(width)
            ]
            level = made
            if width == 1:
                trunk = calls.rows["block"][made[0]] + calls.rows["answer"][made[0]]
    return _workload(facts, calls, seed)


def _call(
    facts: dict[str, Any],
    calls: _Calls,
    stream: Stream,
    session: int,
    start_s: float,
    width: int,
    waits: list[int],
    trunk: list[int],
) -> int:
    if not waits:
        role = "root"
    elif width > 1:
        role = "fan"
    else:
        role = "join" if len(waits) > 1 else "chain"
    table = facts["roles"][role]
    made = max(1, round(_draw(table["input"], stream)))
    out = max(1, round(_draw(table["output"], stream)))
    delay_s = round(_draw(table["delay_s"], stream), 3) if waits else 0.0
    size = facts["sessions"]["block_tokens"]
    full = made // size
    shared = min(len(trunk), round(_draw(facts["sessions"]["shared"], stream) * full))
    blocks = trunk[:shared] + calls.new_blocks(full - shared)
    columns = calls.columns
    ends = [columns["at"][i] + columns["output"][i] / TOKENS_PER_S for i in waits]
    last = waits[int(np.argmax(ends))] if waits else -1
    columns["at"].append(max(ends) + delay_s if waits else start_s)
    columns["input"].append(made)
    columns["output"].append(out)
    columns["session"].append(session)
    columns["parent"].append(last)
    columns["delay_s"].append(delay_s)
    calls.rows["block"].append(blocks)
    calls.rows["answer"].append(calls.new_blocks((made + out) // size - full))
    calls.rows["parent"].append(waits if len(waits) > 1 else [])
    return len(columns["at"]) - 1


def _workload(facts: dict[str, Any], calls: _Calls, seed: int) -> Workload:
    columns = {name: np.array(values) for name, values in calls.columns.items()}
    order = np.argsort(columns["at"], kind="stable")
    place = np.full(len(order) + 1, -1)
    place[order] = np.arange(len(order))
    made: dict[str, Any] = {}
    for name, rows in calls.rows.items():
        ids, starts = ragged.gather(*ragged.flat(rows), order)
        made[f"{name}_ids"], made[f"{name}_starts"] = ids, starts
    made["parent_ids"] = place[made["parent_ids"]]
    return Workload(
        arrival_s=np.round(columns["at"][order], 9),
        input_tokens=columns["input"][order],
        output_tokens=columns["output"][order],
        session=columns["session"][order],
        parent=place[columns["parent"][order]],
        delay_s=columns["delay_s"][order],
        block_tokens=facts["sessions"]["block_tokens"],
        kinds=("agent",),
        source=f"agents_like(seed={seed})",
        **made,
    )
