"""Readers of workload traces; `open_workload` tells the format from the file itself.

====================  =====================================================================
azure                 CSV: TIMESTAMP, ContextTokens, GeneratedTokens (2023 and 2024), and kin
mooncake              JSON lines: timestamp (ms), input_length, output_length, hash_ids
sharegpt              JSON lines: arrival_ns, input_length, output_length, hash_ids; or the
                      JSON of conversations
openai                JSON lines of chat or completion requests, also batch files and logs
otel                  JSON of OpenTelemetry spans of an agent, one file or a folder of them
servegen              a folder or tar archive of ServeGen clients: a generator of their mix
orrery                .npz, as `Workload.save` writes it
====================  =====================================================================
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

from orrery.base.errors import did_you_mean
from orrery.inputs.readers.text import read_bytes
from orrery.inputs.workload import Workload, WorkloadError

FORMATS = ("azure", "mooncake", "openai", "orrery", "otel", "servegen", "sharegpt")

# The first kilobytes of a file tell its format by the fields that they name.
_HEAD_B = 1 << 16
_FIX = f"give a trace of a known format ({', '.join(FORMATS)}), or say format=..."


def sniff(path: str | Path) -> str:
    """The format of a trace file or folder, told from its content."""
    path = Path(path)
    if path.is_dir():
        if any(path.rglob("chunk-*-trace.csv")):
            return "servegen"
        if any(path.rglob("*.json")):
            return "otel"
        raise WorkloadError(str(path), "is a folder without a known trace", _FIX)
    data = read_bytes(path)
    if data[:4] == b"PK\x03\x04":
        return "orrery"
    if data[257:262] == b"ustar":
        return "servegen"
    head = data[:_HEAD_B].decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
    if head[:1] in "{[":
        found = _sniff_json(head)
        if found:
            return found
    elif "," in head.partition("\n")[0]:
        return "azure"
    raise WorkloadError(str(path), f"is in no format known here: {head[:40]!r}", _FIX)


def _sniff_json(head: str) -> str | None:
    first = head.partition("\n")[0]

    def names(*fields: str, text: str = head) -> bool:
        return any(re.search(rf'"{re.escape(field)}"\s*:', text) for field in fields)

    if names("spans", "resourceSpans", "scopeSpans"):
        return "otel"
    if names("conversations", "arrival_ns", "arrival_time_ns", "input_tok_ids"):
        return "sharegpt"
    if names("messages", "prompt", "body", "input_tokens", "prompt_tokens"):
        return "openai"
    if names("input_length", text=first):
        return "mooncake"
    return None


def open_workload(path: str | Path, format: str | None = None, **options: Any) -> Workload:
    """Read a workload trace of any known format; `options` go to that format's reader."""
    if format is None:
        format = sniff(path)
    if format not in FORMATS:
        raise WorkloadError("open_workload.format", repr(format), did_you_mean(format, FORMATS))
    if format == "orrery":
        return Workload.load(path)
    module = importlib.import_module(f"orrery.inputs.readers.{format}")
    read = getattr(module, f"read_{format}")
    known = set(read.__kwdefaults__ or ())
    for name in options:
        if name not in known:
            where = f"open_workload.{name}"
            raise WorkloadError(where, f"no option of {format}", did_you_mean(name, known))
    return read(path, **options)  # type: ignore[no-any-return]
