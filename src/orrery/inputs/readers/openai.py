"""Reads plain JSON lines: OpenAI-style requests, batch files, logs with usage, or bare lengths.

Each line is a request of the chat, completion or responses API, as it is or under `body` (batch
files). Token counts are those of `usage` (on the line or in its `response`) or of the fields
`input_tokens` and `output_tokens`; else the prompt is counted as four characters a token, and the
answer by its text, else by `max_tokens`. Times are `arrival_s`, `timestamp` (seconds or a date) or
`created`; with no time on any line, all requests come at 0 (give them times with `with_arrivals`).
"""

from __future__ import annotations

import datetime
import math
from pathlib import Path
from typing import Any

import numpy as np

from orrery.inputs import ragged
from orrery.inputs.readers.text import (
    TEXT_BLOCK_TOKENS,
    TextBlocks,
    assemble,
    at_line,
    json_lines,
    read_bytes,
    rendered,
    tokens_of,
)
from orrery.inputs.workload import Workload, WorkloadError
from orrery.world.spec import brief

TIMES = ("arrival_s", "arrival_time", "timestamp", "start_time", "created_at", "created")
INPUTS = ("input_tokens", "prompt_tokens", "input_length")
OUTPUTS = ("output_tokens", "completion_tokens", "output_length")
LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
_FIX = 'write {"model": "m", "messages": [{"role": "user", "content": "..."}], "max_tokens": 64}'


def read_openai(
    path: str | Path, *, output_tokens: int | None = None, skip_empty: bool = False
) -> Workload:
    """Read OpenAI-style JSON lines; `output_tokens` is for lines that do not tell the answer."""
    lines, numbers = json_lines(path, read_bytes(path), dict[str, Any], _FIX)
    texts = TextBlocks()
    rows = []
    times: list[float | None] = []
    prompts: list[list[int]] = []
    answers: list[list[int]] = []
    sessions: dict[Any, int] = {}
    kinds: dict[str, int] = {}
    for number, line in zip(numbers, lines, strict=True):
        try:
            times.append(_time(line))
            made, out, prompt, answer = _request(line, output_tokens)
        except ValueError as failure:
            raise at_line(path, number, str(failure), _FIX) from None
        here, after = texts.split(prompt, answer, made) if prompt else ([], [])
        prompts.append(here)
        answers.append(after)
        body = line["body"] if isinstance(line.get("body"), dict) else line
        kind = kinds.setdefault(str(body.get("model") or "default"), len(kinds))
        name = next((line[key] for key in ("session_id", "session", "user") if key in line), None)
        session = -1 if name is None else sessions.setdefault(str(name), len(sessions))
        rows.append((made, out, kind, session))
    arrival = _arrivals(path, numbers, times)
    inputs, outputs, kind_column, session_column = (list(each) for each in zip(*rows, strict=True))
    block_ids, block_starts = ragged.flat(prompts)
    answer_ids, answer_starts = ragged.flat(answers)
    return assemble(
        path,
        numbers,
        arrival,
        inputs,
        outputs,
        skip_empty=skip_empty,
        block_tokens=TEXT_BLOCK_TOKENS,
        block_ids=block_ids,
        block_starts=block_starts,
        answer_ids=answer_ids,
        answer_starts=answer_starts,
        kind=kind_column,
        kinds=tuple(kinds),
        session=session_column,
    )


def _arrivals(path: str | Path, numbers: list[int], times: list[float | None]) -> Any:
    if not times:
        raise WorkloadError(str(path), "holds no request", _FIX)
    if all(each is None for each in times):
        return np.zeros(len(times))
    for number, each in zip(numbers, times, strict=True):
        if each is None:
            fix = "give a time on every line or on none"
            raise at_line(path, number, "has no time, but other lines have", fix)
    arrival = np.array(times, np.float64)
    # Small numbers are seconds of the trace; large ones are a calendar's, and count from the first.
    return arrival - arrival.min() if arrival.min() > 1e8 else arrival


def _time(line: dict[str, Any]) -> float | None:
    for name in TIMES:
        value = line.get(name)
        if value is None or isinstance(value, bool):
            continue
        if isinstance(value, str):
            try:
                date = datetime.datetime.fromisoformat(value)
            except ValueError:
                raise ValueError(f"{name} {brief(value)} is no date") from None
            if date.tzinfo is None:
                date = date.replace(tzinfo=datetime.UTC)
            value = date.timestamp()
        if (
            not isinstance(value, int | float)
            or not -1e18 < value < 1e18
            or not math.isfinite(value)
        ):
            raise ValueError(f"{name} {brief(value)} is no time")
        if value < 0:
            raise ValueError(f"{name} {brief(value)} is before 0")
        return float(value)
    return None


def _request(line: dict[str, Any], default: int | None) -> tuple[int, int, str, str]:
    """Tokens in, tokens out, and the texts of prompt and answer where they are known."""
    body = line["body"] if isinstance(line.get("body"), dict) else line
    response = line.get("response")
    if isinstance(response, dict) and isinstance(response.get("body"), dict):
        response = response["body"]
    usage: dict[str, Any] = {}
    for holder in (response, line, body):
        if isinstance(holder, dict) and isinstance(holder.get("usage"), dict):
            usage = holder["usage"]
            break
    prompt = None
    for name in ("messages", "prompt", "input"):
        if body.get(name) is not None:
            prompt = rendered(body[name])
            if prompt is None:
                raise ValueError(f"{name} {brief(body[name])} is no prompt")
            break
    answer = _answer(response)
    made = _count(INPUTS, usage, line, body)
    if made is None:
        if prompt is None:
            raise ValueError("has no prompt and no input_tokens")
        made = tokens_of(prompt)
    out = _count(OUTPUTS, usage, line, body)
    if out is None and answer:
        out = tokens_of(answer)
    if out is None:
        out = _count(LIMITS, body, line) or default
    if out is None:
        raise ValueError("does not tell the answer's tokens; add max_tokens, or say output_tokens=")
    return made, out, prompt or "", f"<assistant>{answer}\n" if answer else ""


def _count(names: tuple[str, ...], *holders: dict[str, Any]) -> int | None:
    for holder in holders:
        for name in names:
            value = holder.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
                raise ValueError(f"{name} {brief(value)} is no count of tokens")
            return value
    return None


def _answer(response: Any) -> str:
    if isinstance(response, str):
        return response
    choices = response.get("choices") if isinstance(response, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return ""
    first = choices[0]
    text = first.get("text")
    if text is None and isinstance(first.get("message"), dict):
        text = first["message"].get("content")
    return text if isinstance(text, str) else ""
