"""What all readers share: opening files, JSON lines by number, and rows put in order.

A file is read whole or not at all: the first line that is off ends the reading with an error that
names the file, the line, the value and the fix.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from orrery.base.errors import SpecError
from orrery.inputs import ragged
from orrery.inputs.workload import Workload, WorkloadError
from orrery.world.spec import brief

T = TypeVar("T")

MAX_FILE_B = 8 << 30
MAX_TOKENS = 2**31 - 1
# An exact count needs the model's tokenizer. Four characters a token is the usual rule for English.
CHARACTERS_PER_TOKEN = 4
TEXT_BLOCK_TOKENS = 16


def read_bytes(path: str | Path) -> bytes:
    """The content of a file, unpacked if it is gzipped."""
    path = Path(path)
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            with gzip.open(io.BytesIO(data)) as packed:
                data = packed.read(MAX_FILE_B + 1)
    except FileNotFoundError:
        raise WorkloadError(str(path), "is not there", "give the path of a trace") from None
    except (OSError, EOFError, zlib.error) as failure:
        reason = getattr(failure, "strerror", None) or "is no sound gzip file"
        raise WorkloadError(str(path), reason, "give a file that can be read") from None
    if len(data) > MAX_FILE_B:
        raise WorkloadError(str(path), "is larger than 8 GiB", "split the trace")
    if not data.strip():
        raise WorkloadError(str(path), "is empty", "give a trace with at least one request")
    return data


def at_line(path: str | Path, line: int, problem: str, fix: str) -> WorkloadError:
    """The error for one line of a file, counted from 1."""
    return WorkloadError(f"{path}:{line}", problem, fix)


def json_lines(path: str | Path, data: bytes, kind: type[T], fix: str) -> tuple[list[T], list[int]]:
    """The values of the lines and the number of each line; blank lines are passed over."""
    decoder = msgspec.json.Decoder(kind)
    try:
        values = decoder.decode_lines(data)
        return values, list(range(1, len(values) + 1))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass  # Read again line by line, to find the one that is off.
    values, numbers = [], []
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            values.append(decoder.decode(line))
        except (msgspec.MsgspecError, ValueError, RecursionError) as failure:
            raise at_line(path, number, _said(failure), fix) from None
        numbers.append(number)
    return values, numbers


def json_document(path: str | Path, data: bytes, fix: str) -> Any:
    """The value of a file that is one JSON document."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as failure:
        raise WorkloadError(str(path), _said(failure), fix) from None


def _said(failure: Exception) -> str:
    said = str(failure).replace("`", "") or type(failure).__name__
    return f"is refused: {said[:200]}"


def block_rows(
    path: str | Path, numbers: Sequence[int], rows: list[list[int]]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Block ids as a ragged column: renamed 0, 1, 2 ..., and chained where they were not."""
    try:
        ids, starts = ragged.flat(rows)
    except (OverflowError, TypeError, ValueError):
        for number, row in zip(numbers, rows, strict=True):
            for each in row:
                if not -(1 << 63) <= each < 1 << 63:
                    fix = "give 64-bit numbers"
                    raise at_line(path, number, f"hash id {brief(each)}", fix) from None
        raise
    ids = ragged.numbered(ids)
    if ragged.unchained(ids, starts) >= 0:
        ids = ragged.chain_blocks(ids, starts)
    return ids, starts


def assemble(
    path: str | Path,
    numbers: Sequence[int] | npt.NDArray[Any],
    arrival_s: Any,
    input_tokens: Any,
    output_tokens: Any,
    *,
    skip_empty: bool = False,
    **columns: Any,
) -> Workload:
    """A workload from the rows of a file: checked by line, put in order of arrival.

    With `skip_empty`, requests without a prompt or an answer (as failed ones are logged) are left
    out; else they are refused.
    """
    arrival = np.asarray(arrival_s, np.float64)
    tokens = {}
    for name, given in (("input", input_tokens), ("output", output_tokens)):
        try:
            tokens[name] = np.asarray(given, np.int64)
        except (OverflowError, TypeError, ValueError):
            sizes = [isinstance(each, int) and 0 <= each <= MAX_TOKENS for each in given]
            row = sizes.index(False)
            problem = f"{name} tokens {brief(given[row])}"
            raise at_line(path, numbers[row], problem, "give whole numbers of tokens") from None
    bad = ~np.isfinite(arrival) | (arrival < 0)
    if bad.any():
        row = int(bad.argmax())
        raise at_line(path, numbers[row], f"time {arrival[row]}", "give finite times >= 0")
    for name, values in tokens.items():
        wrong = (values < 0) | (values > MAX_TOKENS) if skip_empty else (values < 1)
        wrong |= values > MAX_TOKENS
        if wrong.any():
            row = int(wrong.argmax())
            fix = "give at least 1 token, or pass skip_empty=True to leave such requests out"
            raise at_line(path, numbers[row], f"{name} tokens {values[row]}", fix)
    if not len(arrival):
        raise WorkloadError(str(path), "holds no request", "give at least one")
    order = np.argsort(arrival, kind="stable")
    try:
        work = Workload(
            arrival_s=arrival[order],
            input_tokens=np.maximum(tokens["input"], 1)[order],
            output_tokens=np.maximum(tokens["output"], 1)[order],
            source=columns.pop("source", Path(path).name),
            **_ordered(columns, order),
        )
    except SpecError as failure:
        raise WorkloadError(str(path), f"{failure.path}: {failure.problem}", failure.fix) from None
    if not skip_empty:
        return work
    full = ((tokens["input"] > 0) & (tokens["output"] > 0))[order]
    if not full.any():
        raise WorkloadError(str(path), "holds no request with tokens", "give at least one")
    return work.take(full)


def _ordered(columns: dict[str, Any], order: npt.NDArray[np.intp]) -> dict[str, Any]:
    """The columns with their rows in this order, and what they say of parents renamed."""
    made = dict(columns)
    place = np.empty(len(order) + 1, np.int64)
    place[order] = np.arange(len(order))
    place[-1] = -1
    for name in ("session", "kind", "delay_s", "parent"):
        if name in made:
            made[name] = np.asarray(made[name])[order]
    if "parent" in made:
        made["parent"] = place[made["parent"]]
    for ids, starts in (
        ("block_ids", "block_starts"),
        ("answer_ids", "answer_starts"),
        ("parent_ids", "parent_starts"),
    ):
        if ids in made:
            made[ids], made[starts] = ragged.gather(made[ids], made[starts], order)
    if "parent_ids" in made:
        made["parent_ids"] = place[made["parent_ids"]]
    return made


class TextBlocks:
    """Gives texts their block ids: equal text after an equal prefix has an equal id."""

    def __init__(self) -> None:
        self._named: dict[tuple[int, str], int] = {}

    def ids(self, text: str) -> list[int]:
        """The ids of the full blocks of a text (16 tokens of 4 characters each)."""
        size = TEXT_BLOCK_TOKENS * CHARACTERS_PER_TOKEN
        found: list[int] = []
        before = -1
        for place in range(0, len(text) - size + 1, size):
            key = (before, text[place : place + size])
            before = self._named.setdefault(key, len(self._named))
            found.append(before)
        return found

    def split(self, prompt: str, answer: str, input_tokens: int) -> tuple[list[int], list[int]]:
        """The full blocks of the prompt, and those that the answer completes."""
        found = self.ids(prompt + answer)
        full = len(prompt) // (TEXT_BLOCK_TOKENS * CHARACTERS_PER_TOKEN)
        most = input_tokens // TEXT_BLOCK_TOKENS
        if full > most:  # the tokens were counted by someone who knows better than four characters
            return found[:most], []
        return found[:full], found[full:]


def tokens_of(text: str) -> int:
    """About how many tokens a text has; at least 1."""
    return max(1, -(-len(text) // CHARACTERS_PER_TOKEN))


def rendered(messages: Any) -> str | None:
    """Chat messages as one text, each with its role; None where they are no messages."""
    if isinstance(messages, str):
        return messages
    if not isinstance(messages, list):
        return None
    parts = []
    for each in messages:
        if isinstance(each, str):
            parts.append(f"<user>{each}\n")
        elif isinstance(each, dict):
            parts.append(f"<{each.get('role', 'user')}>{content_of(each)}\n")
        else:
            return None
    return "".join(parts)


def content_of(message: dict[str, Any]) -> str:
    """The text of one message: its content, its parts, its tool calls."""
    content = message.get("content")
    if content is None:
        content = message.get("parts", "")
    if isinstance(content, list):
        texts = []
        for part in content:
            inner = part.get("text", part.get("content")) if isinstance(part, dict) else part
            texts.append(inner if isinstance(inner, str) else _plain(part))
        content = "".join(texts)
    if not isinstance(content, str):
        content = _plain(content)
    calls = message.get("tool_calls")
    return content + (_plain(calls) if calls else "")


def _plain(value: Any) -> str:
    return msgspec.json.encode(value).decode("utf-8", "replace") if value is not None else ""
