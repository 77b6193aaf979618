"""Traces in the JSON form that the public feeder reads: {"workload_graph": [{"Id": …}, …]}."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from orrery.inputs.chakra import schema
from orrery.inputs.chakra.nodes import Attr, EtNode, Metadata, known
from orrery.inputs.chakra.schema import TraceError

# Spellings of one field that the public samples use.
_ALSO = {
    "id": ("Id", "id"), "name": ("Name", "name"), "type": ("NodeType", "type"),
    "ctrl": ("ctrlDeps", "ctrl_deps"), "data": ("data_deps", "dataDeps"),
    "duration": ("runtime", "duration_micros"), "start": ("start_time_micros", "start"),
}  # fmt: skip


def read_json(path: str | Path) -> tuple[Metadata, list[EtNode]]:
    """(metadata, nodes) of a JSON trace; a field of the wrong kind is named with its node."""
    try:
        document = msgspec.json.decode(Path(path).read_bytes())
    except OSError as failure:
        raise TraceError(f"{path}: cannot be read: {failure.strerror}; check the path") from None
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as failure:
        raise TraceError(f"{path}: is not JSON: {failure}; is it cut off?") from None
    rows = document.get("workload_graph") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        raise TraceError(f'{path}: has no list "workload_graph"; is it a Chakra JSON trace?')
    nodes = [_node(row, place, path) for place, row in enumerate(rows)]
    attrs = [
        Attr(name=key, kind="string_val", value=str(value))
        for key, value in document.items()
        if key != "workload_graph"
    ]
    return Metadata(attrs=attrs), nodes


def _node(row: Any, place: int, path: str | Path) -> EtNode:
    if not isinstance(row, dict):
        raise TraceError(f"{path}: node number {place} is no table")
    found = {name: _pick(row, also) for name, also in _ALSO.items()}
    id = found["id"]
    if isinstance(id, bool) or not isinstance(id, int) or id < 0:
        raise TraceError(f"{path}: node number {place} has the id {id!r}; give a whole number")
    node = EtNode(id=id, name=str(found["name"] or ""))
    node.type = _whole(found["type"], "NodeType", id, path)
    node.ctrl_deps = _ids(found["ctrl"], "ctrlDeps", id, path)
    node.data_deps = _ids(found["data"], "data_deps", id, path)
    node.duration_us = _whole(found["duration"], "runtime", id, path)
    node.start_us = _whole(found["start"], "start_time_micros", id, path)
    taken = {spelling for also in _ALSO.values() for spelling in also}
    node.attrs = [_attr(key, value) for key, value in row.items() if key not in taken]
    return node


def _pick(row: dict[str, Any], spellings: tuple[str, ...]) -> Any:
    return next((row[each] for each in spellings if each in row), None)


def _whole(value: Any, name: str, id: int, path: str | Path) -> int:
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TraceError(f"{path}: node {id}: {name} = {value!r} is no whole number >= 0", id)
    return value


def _ids(value: Any, name: str, id: int, path: str | Path) -> list[int]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise TraceError(f"{path}: node {id}: {name} = {value!r} is no list of ids", id)
    return [_whole(each, name, id, path) for each in value]


def _attr(name: str, value: Any) -> Attr:
    if name in schema.KNOWN_ATTRS:
        return known(name, value)
    if isinstance(value, bool):
        return Attr(name=name, kind="bool_val", value=value)
    if isinstance(value, int):
        return Attr(name=name, kind="int64_val", value=value)
    if isinstance(value, float):
        return Attr(name=name, kind="double_val", value=value)
    return Attr(name=name, kind="string_val", value=str(value))


def json_document(metadata: Metadata, nodes: Iterable[EtNode]) -> dict[str, Any]:
    """A trace as the public JSON form; what that form has no place for is left out."""
    rows = []
    for node in nodes:
        row: dict[str, Any] = {
            "Id": node.id, "Name": node.name, "NodeType": node.type, "ctrlDeps": node.ctrl_deps,
            "data_deps": node.data_deps, "runtime": node.duration_us,
        }  # fmt: skip
        row |= {each.name: each.value for each in node.attrs if each.name in schema.KNOWN_ATTRS}
        rows.append(row)
    more = {each.name: each.value for each in metadata.attrs}
    return {"workload_graph": rows, **more}
