"""A workload as one compact file of our own: a NumPy archive with a head that names the schema."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from orrery.inputs.workload import Workload, WorkloadError

SCHEMA = 1
HEAD = "orrery_workload"
FILLED = {
    "session": -1, "kind": 0, "parent": -1, "delay_s": 0.0,
    "block_starts": 0, "answer_starts": 0, "parent_starts": 0,
}  # fmt: skip


def save(work: Workload, path: str | Path) -> Path:
    """Write a workload; the file is whole or absent, and equal workloads give equal bytes."""
    path = Path(path)
    if path.suffix != ".npz":
        raise WorkloadError(str(path), "is not named .npz", f"save to {path.stem}.npz")
    head = {"schema": SCHEMA, "block_tokens": work.block_tokens, "kinds": list(work.kinds)}
    text = json.dumps(head | {"source": work.source}).encode()
    columns = {
        # Columns that hold nothing but what is filled in when they are left out.
        name: values
        for name, values in work.columns().items()
        if len(values) and not (name in FILLED and (values == FILLED[name]).all())
    }
    arrays: dict[str, Any] = {HEAD: np.frombuffer(text, np.uint8), **columns}
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
        with os.fdopen(handle, "wb") as file:
            np.savez_compressed(file, **arrays)
        os.replace(temporary, path)
    except OSError as failure:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)
        reason = failure.strerror or "cannot be written"
        raise WorkloadError(str(path), reason, "give a folder that can be written") from None
    return path


def load(path: str | Path) -> Workload:
    """Read a file that `save` wrote; anything else is refused by name."""
    path = Path(path)
    try:
        with np.load(path, allow_pickle=False) as archive:
            if HEAD not in archive.files:
                raise WorkloadError(str(path), "is no workload file", "use Workload.save")
            head = json.loads(archive[HEAD].tobytes())
            columns = {name: archive[name] for name in archive.files if name != HEAD}
    except WorkloadError:
        raise
    except FileNotFoundError:
        raise WorkloadError(str(path), "is not there", "give the path of a workload") from None
    except Exception as failure:
        # A damaged archive fails in many ways inside zipfile, zlib and NumPy; all mean the same.
        problem = f"is damaged or no workload file ({type(failure).__name__})"
        raise WorkloadError(str(path), problem, "save it again with Workload.save") from None
    if not isinstance(head, dict) or head.get("schema") != SCHEMA:
        found = head.get("schema") if isinstance(head, dict) else head
        problem = f"has schema {found!r}; this version reads {SCHEMA}"
        raise WorkloadError(str(path), problem, "save it again with this version")
    known = set(Workload.__struct_fields__)
    strange = sorted(set(columns) - known)
    if strange:
        problem = f"unknown column {strange[0]!r}"
        raise WorkloadError(str(path), problem, "save it again with this version")
    for name in ("arrival_s", "input_tokens", "output_tokens"):
        if name not in columns:
            raise WorkloadError(str(path), f"lacks the column {name}", "save it again")
    meta = {name: head.get(name) for name in ("block_tokens", "kinds", "source")}
    return Workload(**columns, **meta)  # type: ignore[arg-type]
