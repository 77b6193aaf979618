"""PyTorch's execution trace (the JSON of `ExecutionTraceObserver`) as a Chakra trace.

Operations wait for those that made their tensors; the call tree becomes control edges. Times come
from a profile of the same run, linked by the number of the record function, since an execution
trace has none of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from orrery.inputs.chakra.nodes import IO, Attr, EtNode, Metadata, known
from orrery.inputs.chakra.schema import COLLECTIVES, COMM_COLL, COMP, METADATA, TraceError
from orrery.systems.ops.chakra.torch_profile import _OPS, _document

_KINDS = {"uint64": "uint64_val", "int64": "int64_val", "string": "string_val"}


def read_execution_trace(
    path: str | Path, profile: str | Path | None = None
) -> tuple[Metadata, list[EtNode]]:
    """(metadata, nodes) of an execution trace, with times where a profile is given."""
    document = _document(path)
    rows = document.get("nodes")
    if not isinstance(rows, list):
        raise TraceError(f'{path}: has no list "nodes"; is it a PyTorch execution trace?')
    times = _times(profile) if profile is not None else {}
    parents = {row.get("id"): row.get("ctrl_deps") for row in rows if isinstance(row, dict)}
    makers: dict[int, int] = {}
    nodes: list[EtNode] = []
    for place, row in enumerate(rows):
        nodes.append(_node(row, place, path, parents, makers, times))
    attrs = [
        Attr(name=name, kind="string_val", value=str(document[name]))
        for name in ("schema", "pid", "time", "start_ts", "finish_ts") if name in document
    ]  # fmt: skip
    return Metadata(attrs=attrs), nodes


def _times(profile: str | Path) -> dict[int, tuple[float, float]]:
    """(start, length) in microseconds, by record function."""
    found: dict[int, tuple[float, float]] = {}
    events = _document(profile).get("traceEvents") or []
    starts = [e["ts"] for e in events if isinstance(e, dict) and e.get("ph") == "X" and "ts" in e
              and isinstance(e["ts"], int | float)]  # fmt: skip
    first = min(starts, default=0.0)
    for event in events:
        if not isinstance(event, dict) or event.get("ph") != "X":
            continue
        number = (event.get("args") or {}).get("Record function id")
        if isinstance(number, int) and number:
            found[number] = (float(event["ts"]) - first, float(event.get("dur", 0.0)))
    return found


def _node(
    row: Any, place: int, path: str | Path, parents: dict[Any, Any], makers: dict[int, int],
    times: dict[int, tuple[float, float]],
) -> EtNode:  # fmt: skip
    id = row.get("id") if isinstance(row, dict) else None
    if isinstance(id, bool) or not isinstance(id, int) or id < 0:
        raise TraceError(f"{path}: node number {place} has the id {id!r}; give a whole number")
    name = str(row.get("name", ""))
    attrs = [
        Attr(name=str(each.get("name")), kind=_KINDS[each["type"]], value=each.get("value"))
        for each in row.get("attrs") or ()
        if isinstance(each, dict) and each.get("type") in _KINDS and each.get("value") is not None
    ]  # fmt: skip
    node = EtNode(id=id, name=name, type=COMP, attrs=[*attrs, known("is_cpu_op", True)])
    if name.startswith(("[pytorch", "##")):
        node.type = METADATA
    parent = row.get("ctrl_deps")
    if isinstance(parent, int):
        node.ctrl_deps = [parent]
    callers = _callers(id, parents)
    inputs, outputs = row.get("inputs") or {}, row.get("outputs") or {}
    wanted = {makers[tensor] for tensor, _ in _tensors(inputs.get("values")) if tensor in makers}
    # What an operation calls runs inside it; it cannot wait for its own callers.
    node.data_deps = sorted(wanted - callers - {id})
    for tensor, _ in _tensors(outputs.get("values")):
        makers[tensor] = id
    node.inputs, node.outputs = _io(inputs), _io(outputs)
    if name.startswith("c10d::"):
        op = next((op for word, op in _OPS.items() if word in name), "")
        if op:
            size = sum(bytes_ for _, bytes_ in _tensors(inputs.get("values")))
            node.type = COMM_COLL
            node.attrs += [known("comm_type", COLLECTIVES.index(op)), known("comm_size", size)]
    number = node.attr("rf_id")
    if isinstance(number, int) and number in times:
        start_us, took_us = times[number]
        node.start_us, node.duration_us = int(start_us), int(took_us)
        node.attrs += [known("start_ns", round(start_us * 1e3)),
                       known("duration_ns", round(took_us * 1e3))]  # fmt: skip
    return node


def _callers(id: int, parents: dict[Any, Any]) -> set[int]:
    found: set[int] = set()
    at = parents.get(id)
    while isinstance(at, int) and at not in found:
        found.add(at)
        at = parents.get(at)
    return found


def _tensors(values: Any) -> list[tuple[int, int]]:
    """(id, bytes) of every tensor in some values: [id, storage, offset, items, width, where]."""
    found: list[tuple[int, int]] = []
    for value in values if isinstance(values, list) else ():
        if not isinstance(value, list):
            continue
        if len(value) == 6 and all(isinstance(part, int) for part in value[:5]):
            found.append((value[0], value[3] * value[4]))
        else:
            found += _tensors(value)
    return found


def _io(table: dict[str, Any]) -> IO:
    texts = [msgspec.json.encode(table.get(name, [])).decode() for name in
             ("values", "shapes", "types")]  # fmt: skip
    return IO(*texts)
