"""Our own file formats of measured tables: JSON to read, npz for large ones.

Both hold the same: a schema name, the device, and for each table what `OpTable` has. A file is
written whole or not at all, and a file that is off gives a named error.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from orrery.base.errors import SpecError
from orrery.models.optable import OpTable, Tables

SCHEMA = "orrery.optables/1"
_LIMIT_B = 1 << 30


def save_tables(tables: Tables, path: str | os.PathLike[str]) -> Path:
    """Write tables to a .json or .npz file."""
    target = Path(path)
    if target.suffix == ".json":
        text = json.dumps(_head(tables, [_plain(t) for t in tables]), indent=1, allow_nan=False)
        data = text.encode()
    elif target.suffix == ".npz":
        data = _packed(tables)
    else:
        fix = "give a name that ends in .json or .npz"
        raise SpecError("path", f"{target.name!r} is refused", fix)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".tables-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
    return target


def load_tables(path: str | os.PathLike[str]) -> Tables:
    """Read tables from a file that `save_tables` wrote."""
    source = Path(path)
    try:
        if source.stat().st_size > _LIMIT_B:
            raise SpecError(str(source), "is over 1 GiB", "split the tables over several files")
        raw = source.read_bytes()
    except OSError as failure:
        raise SpecError(str(source), f"cannot be read: {failure.strerror}", "check it") from None
    try:
        head, arrays = _unpacked(raw) if source.suffix == ".npz" else (json.loads(raw), {})
    except (ValueError, OSError, KeyError, zipfile.BadZipFile) as failure:
        raise SpecError(str(source), f"does not decode: {failure}", "write it again") from None
    if not isinstance(head, dict) or head.get("schema") != SCHEMA:
        raise SpecError(f"{source}: schema", "is not ours", f"give a file with schema {SCHEMA}")
    try:
        made = [_table(i, item, head["device"], arrays) for i, item in enumerate(head["tables"])]
        return Tables(head["device"], made, source=str(source))
    except (KeyError, TypeError, ValueError, AttributeError) as failure:
        fix = "compare it with a file that save_tables wrote"
        raise SpecError(str(source), f"a field is off: {failure!r}", fix) from None


def _head(tables: Tables, items: list[dict[str, Any]]) -> dict[str, Any]:
    return {"schema": SCHEMA, "device": tables.device, "source": tables.source, "tables": items}


def _meta(table: OpTable) -> dict[str, Any]:
    return {
        "op": table.op, "dtype": table.dtype, "backend": table.backend, "axes": list(table.axes),
        "fixed": table.fixed, "source": table.source,
    }  # fmt: skip


def _plain(table: OpTable) -> dict[str, Any]:
    item = _meta(table) | {
        "grid": [values.tolist() for values in table.grid],
        "seconds": _with_null(table.seconds),
    }
    return item if table.watts is None else item | {"watts": _with_null(table.watts)}


def _with_null(array: np.ndarray) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in array.reshape(-1)]


def _packed(tables: Tables) -> bytes:
    arrays: dict[str, np.ndarray] = {}
    items = []
    for i, table in enumerate(tables):
        items.append(_meta(table) | {"watts": table.watts is not None})
        for j, values in enumerate(table.grid):
            arrays[f"{i}.grid.{j}"] = values
        arrays[f"{i}.seconds"] = table.seconds
        if table.watts is not None:
            arrays[f"{i}.watts"] = table.watts
    head = json.dumps(_head(tables, items)).encode()
    buffer = io.BytesIO()
    np.savez_compressed(buffer, head=np.frombuffer(head, dtype=np.uint8), **arrays)
    return buffer.getvalue()


def _unpacked(raw: bytes) -> tuple[Any, dict[str, np.ndarray]]:
    with np.load(io.BytesIO(raw), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    return json.loads(arrays.pop("head").tobytes()), arrays


def _table(i: int, item: dict[str, Any], device: str, arrays: dict[str, np.ndarray]) -> OpTable:
    axes = tuple(item["axes"])
    if arrays:
        grid = tuple(np.asarray(arrays[f"{i}.grid.{j}"], float) for j in range(len(axes)))
        seconds = np.asarray(arrays[f"{i}.seconds"], float)
        watts = np.asarray(arrays[f"{i}.watts"], float) if item["watts"] else None
    else:
        grid = tuple(np.asarray(values, float) for values in item["grid"])
        shape = tuple(len(values) for values in grid)
        seconds = np.array(item["seconds"], dtype=float).reshape(shape)
        given = item.get("watts")
        watts = None if given is None else np.array(given, dtype=float).reshape(shape)
    return OpTable(
        item["op"], device, item["dtype"], axes, grid, seconds, item["backend"], item["fixed"],
        watts, item["source"],
    )  # fmt: skip


__all__ = ["SCHEMA", "load_tables", "save_tables"]
