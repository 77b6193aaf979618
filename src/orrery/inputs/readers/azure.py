"""Reads CSV traces: Azure's LLM inference traces of 2023 and 2024, and tables like them.

The head names the columns. Azure has TIMESTAMP (a date), ContextTokens, GeneratedTokens; the time
may also be a number of seconds, and the names may be those of BurstGPT or Vidur. Times count from
the first arrival.

Patel et al., "Splitwise", ISCA 2024; Stojkovic et al., "DynamoLLM", HPCA 2025.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from orrery.inputs.readers.text import assemble, at_line, read_bytes
from orrery.inputs.workload import F64, I64, Workload, WorkloadError
from orrery.world.spec import brief

NAMES = {
    "time": ("timestamp", "arrivedat", "arrivals", "arrivaltime", "arrivaltimestamp", "time"),
    "input": (
        "contexttokens", "requesttokens", "inputtokens", "inputlength", "numprefilltokens",
        "prompttokens",
    ),
    "output": (
        "generatedtokens", "responsetokens", "outputtokens", "outputlength", "numdecodetokens",
        "completiontokens",
    ),
    "kind": ("kind", "tenant", "model", "requesttype"),
}  # fmt: skip
CHUNK_LINES = 1 << 18
_DATE = "write times as 2023-11-16 18:17:03.979 (UTC) or as seconds"


def read_azure(path: str | Path, *, skip_empty: bool = False) -> Workload:
    """Read a CSV trace of arrival times and token counts.

    `skip_empty` leaves out requests without a prompt or an answer; else they are refused.
    """
    data = read_bytes(path)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as failure:
        line = data.count(b"\n", 0, failure.start) + 1
        raise at_line(path, line, "is not UTF-8 text", "save it as UTF-8") from None
    lines = text.splitlines()
    places, width = _head(path, lines[0])
    rows = [number for number, line in enumerate(lines[1:], 2) if line.strip()]
    if not rows:
        raise WorkloadError(str(path), "has a head but no request", "give at least one row")
    columns: dict[str, list[Any]] = {name: [] for name in places}
    kinds: dict[str, int] = {}
    for begin in range(0, len(rows), CHUNK_LINES):
        numbers = rows[begin : begin + CHUNK_LINES]
        fields = _fields(path, numbers, lines, width)
        for name, place in places.items():
            texts = fields[place::width]
            columns[name].append(_parsed(path, numbers, name, texts, kinds))
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    times = joined["time"]
    if times.dtype.kind == "i":  # nanoseconds of dates: subtracted as integers, to lose nothing
        arrival = (times - times.min()) / 1e9
    else:
        arrival = times - times.min() if len(times) else times
    extra: dict[str, Any] = {}
    if "kind" in joined:
        extra = {"kind": joined["kind"], "kinds": tuple(kinds)}
    return assemble(
        path, rows, arrival, joined["input"], joined["output"], skip_empty=skip_empty, **extra
    )


def _head(path: str | Path, line: str) -> tuple[dict[str, int], int]:
    names = [re.sub(r"[^a-z]", "", name.lower()) for name in next(csv.reader([line]), [])]
    places = {}
    for meaning, known in NAMES.items():
        found = [i for i, name in enumerate(names) if name in known]
        if found:
            places[meaning] = found[0]
        elif meaning != "kind":
            problem = f"the head {brief(line)} has no column for the {meaning}"
            fix = "name the columns TIMESTAMP,ContextTokens,GeneratedTokens"
            raise at_line(path, 1, problem, fix)
    return places, len(names)


def _fields(path: str | Path, numbers: list[int], lines: list[str], width: int) -> list[str]:
    chosen = [lines[number - 1] for number in numbers]
    commas = [line.count(",") for line in chosen]
    if '"' not in "".join(chosen) and commas.count(width - 1) == len(commas):
        return ",".join(chosen).split(",")
    fields: list[str] = []
    for number, line in zip(numbers, chosen, strict=True):
        try:
            row = next(csv.reader(io.StringIO(line)))
        except (csv.Error, StopIteration):
            raise at_line(path, number, "is no CSV", "quote texts with commas") from None
        if len(row) != width:
            problem = f"{len(row)} fields where the head has {width}: {brief(line)}"
            raise at_line(path, number, problem, "give a value for each column")
        fields += row
    return fields


def _parsed(
    path: str | Path, numbers: list[int], name: str, texts: list[str], kinds: dict[str, int]
) -> npt.NDArray[Any]:
    if name == "kind":
        return np.array([kinds.setdefault(text.strip(), len(kinds)) for text in texts])
    parse: Callable[[list[str]], npt.NDArray[Any]] = _counts
    fix = "give a whole number of tokens"
    if name == "time":
        parse, fix = (_numbers if _is_number(texts[0]) else _dates), _DATE
    try:
        return parse(texts)
    except (ValueError, OverflowError):
        for number, text in zip(numbers, texts, strict=True):
            try:
                parse([text])
            except (ValueError, OverflowError):
                raise at_line(path, number, f"{name} {brief(text)} is refused", fix) from None
        raise WorkloadError(str(path), f"column {name} cannot be read", fix) from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _counts(texts: list[str]) -> I64:
    return np.array(texts).astype(np.int64)


def _numbers(texts: list[str]) -> F64:
    found = np.array(texts).astype(np.float64)
    if not np.isfinite(found).all() or (np.abs(found) > 1e15).any():
        raise ValueError("a time is not finite")
    return found


def _dates(texts: list[str]) -> I64:
    # NumPy takes words such as "now" for dates, and dates beyond these years run over in silence.
    if not "1700" <= min(texts)[:4] <= max(texts)[:4] <= "2250":
        raise ValueError("a date is out of range")
    if texts[0].endswith(("+00:00", "Z")):
        texts = [text.removesuffix("+00:00").removesuffix("Z") for text in texts]
    if any("+" in text or text.endswith("Z") for text in texts):
        raise ValueError("a date is not in UTC")
    dates = np.array(texts, dtype="datetime64[ns]")
    if np.isnat(dates).any():
        raise ValueError("a date is empty")
    return dates.astype(np.int64)
