"""Reads Mooncake's JSON lines: arrivals, lengths, and the prompt as ids of 512-token blocks.

Qin et al., "Mooncake", FAST 2025. The last id of a prompt may stand for a partial block. Lines of
the Qwen-Bailian traces (`chat_id`; times in seconds, blocks of 16 tokens) are read too.

Sessions. The trace names none, so they are recovered from shared prefixes. A block that at least
1 % of all requests hold (and 32 of them) is common ground: a system prompt. A request whose prompt
shares a deeper block with an earlier one belongs to the session of the request that brought that
block in; all others begin a session. Two users who send the same long document cannot be told from
one user who comes back, and count as one session.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from orrery.inputs import ragged
from orrery.inputs.readers.text import assemble, at_line, block_rows, json_lines, read_bytes
from orrery.inputs.workload import F64, Workload, WorkloadError

COMMON_SHARE = 0.01
COMMON_LEAST = 32
_FIX = 'write {"timestamp": 0, "input_length": 9, "output_length": 3, "hash_ids": [0]}'


class Line(msgspec.Struct):
    """One request as the file has it."""

    input_length: int
    output_length: int
    timestamp: float = 0.0
    hash_ids: list[int] = []
    type: str | None = None
    session_id: int | str | None = None
    chat_id: int | None = None
    parent_chat_id: int | None = None


def read_mooncake(
    path: str | Path,
    *,
    block_tokens: int | None = None,
    time_unit_s: float | None = None,
    spread: bool = False,
    skip_empty: bool = False,
) -> Workload:
    """Read a Mooncake trace.

    `spread` lays requests of one time stamp evenly over the time to the next one: the public trace
    counts time in ticks of 3 seconds, which would else come in as bursts of ten.
    """
    lines, numbers = json_lines(path, read_bytes(path), Line, _FIX)
    if not lines:
        raise WorkloadError(str(path), "holds no request", _FIX)
    qwen = lines[0].chat_id is not None
    unit_s = time_unit_s if time_unit_s is not None else 1.0 if qwen else 1e-3
    if not (np.isfinite(unit_s) and unit_s > 0):
        raise WorkloadError("read_mooncake.time_unit_s", f"{unit_s!r}", "give a number > 0")
    arrival = np.array([line.timestamp for line in lines]) * unit_s
    ids, starts = block_rows(path, numbers, [line.hash_ids for line in lines])
    extra: dict[str, Any] = {
        "block_ids": ids,
        "block_starts": starts,
        "block_tokens": block_tokens or (16 if qwen else 512),
        "session": _sessions(path, lines, numbers, ids, starts),
    }
    if any(line.type is not None for line in lines):
        names = [line.type or "default" for line in lines]
        kinds = {name: i for i, name in enumerate(dict.fromkeys(names))}
        extra |= {"kinds": tuple(kinds), "kind": [kinds[name] for name in names]}
    work = assemble(
        path,
        numbers,
        arrival,
        [line.input_length for line in lines],
        [line.output_length for line in lines],
        skip_empty=skip_empty,
        **extra,
    )
    return work.replace(arrival_s=spread_out(work.arrival_s)) if spread else work


def _sessions(
    path: str | Path, lines: list[Line], numbers: list[int], ids: Any, starts: Any
) -> npt.NDArray[np.int64]:
    if any(line.session_id is not None for line in lines):
        named: dict[Any, int] = {}
        return np.array(
            [
                -1 if line.session_id is None else named.setdefault(line.session_id, len(named))
                for line in lines
            ]
        )
    if lines[0].chat_id is None:
        return recovered_sessions(ids, starts)
    root: dict[int, int] = {}
    found = []
    for line, number in zip(lines, numbers, strict=True):
        if line.chat_id is None:
            raise at_line(path, number, "has no chat_id", "give one on every line or on none")
        before = line.parent_chat_id
        known = root.get(before) if before is not None else None
        root[line.chat_id] = len(root) if known is None else known
        found.append(root[line.chat_id])
    return np.unique(np.array(found), return_inverse=True)[1]


def recovered_sessions(ids: Any, starts: Any) -> npt.NDArray[np.int64]:
    """Sessions by shared prefixes, numbered from 0; see the module for the rule.

    Rows must be in the order of arrival.
    """
    count = len(starts) - 1
    held = np.diff(starts)
    owner = np.repeat(np.arange(count), held)
    first = ragged.first_places(ids)
    users = np.bincount(first, minlength=len(ids))[first]  # ids are chained: one user, one place
    common = users >= max(COMMON_LEAST, COMMON_SHARE * count)
    seen = first < np.arange(len(ids))
    ends = np.concatenate([[0], np.cumsum(seen)])
    shared = np.diff(ends[starts])
    deepest = np.where(shared > 0, starts[:-1] + shared - 1, 0)
    follows = shared > 0
    if len(ids):
        follows &= ~common[deepest]
    source = owner[first[deepest]] if len(ids) else np.zeros(count, np.int64)
    session = np.arange(count)
    for i in np.flatnonzero(follows).tolist():  # the source stands before, so it is settled
        session[i] = session[source[i]]
    return np.unique(session, return_inverse=True)[1].astype(np.int64)


def spread_out(arrival_s: F64) -> F64:
    """Requests of one time stamp laid evenly over the time to the next stamp.

    >>> spread_out(np.array([0.0, 0.0, 3.0])).tolist()
    [0.0, 1.5, 3.0]
    """
    stamps, inverse, counts = np.unique(arrival_s, return_inverse=True, return_counts=True)
    if len(stamps) < 2:
        return arrival_s
    gaps = np.append(np.diff(stamps), np.median(np.diff(stamps)))
    nth = np.arange(len(arrival_s)) - np.repeat(np.cumsum(counts) - counts, counts)
    return stamps[inverse] + gaps[inverse] * nth / counts[inverse]
