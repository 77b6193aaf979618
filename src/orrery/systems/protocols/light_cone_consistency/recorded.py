"""The trace of a run: the views of every session, rebuilt from what nodes and driver emitted."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from orrery.base.errors import SpecError
from orrery.parts import Record
from orrery.systems.protocols.light_cone_consistency.traces import Look, Trace, Write


def trace_of(records: Iterable[Record]) -> Trace:
    """The trace of a run of `replicated_views` (see the port for what its replicas emit).

    A write follows what its session had read and written when the driver asked for it; so writes
    are numbered in the order of asking.
    """
    number: dict[int, int] = {}
    asked: list[tuple[int, str, float, tuple[int, ...]]] = []
    ended: dict[int, float] = {}
    logs: dict[int, list[int]] = {}
    ranks: dict[int, Any] = {}
    since: dict[int, list[int]] = {}
    own: dict[int, int] = {}
    looks: list[Look] = []
    nodes: dict[int, int] = {}
    for record in records:
        values = record.values
        if "writes" in values:
            session, key, value, call_s = values["writes"]
            number[value] = len(asked)
            asked.append((session, key, call_s, tuple(since.pop(session, ()))))
            own[session] = own.get(session, 0) + 1
        elif "wrote" in values:
            ended[number[values["wrote"][0]]] = values["wrote"][1]
        elif "applied" in values:
            value, rank = values["applied"]
            if value not in number:
                fix = "the driver emits `writes` before it asks"
                raise SpecError("records", f"value {value!r} was applied, not written", fix)
            at = nodes.setdefault(record.node, len(nodes))
            logs.setdefault(at, []).append(number[value])
            if rank is not None:
                ranks[number[value]] = tuple(rank)
        elif "saw" in values:
            session, node, key, value, applied, call_s, settled = values["saw"]
            at = nodes.setdefault(node, len(nodes))
            logs.setdefault(at, [])
            got = number.get(value, -1)
            looks.append(Look(session=session, log=at, length=applied, key=key, got=got,
                              own=own.get(session, 0), call_s=call_s, settled=settled))  # fmt: skip
            if got >= 0:
                since.setdefault(session, []).append(got)
    writes = tuple(
        Write(session, key, reads, call_s, ended.get(w, math.inf))
        for w, (session, key, call_s, reads) in enumerate(asked)
    )
    top = (math.inf,)
    return Trace(
        writes, tuple(tuple(logs[at]) for at in sorted(logs)), tuple(looks),
        tuple(ranks.get(w, top) for w in range(len(writes))) if ranks else (),
    )  # fmt: skip
