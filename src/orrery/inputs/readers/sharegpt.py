"""Reads ShareGPT-style workloads: requests as chained block ids, as token ids, or as conversations.

Three shapes are known:

- JSON lines `{arrival_ns, input_length, output_length, hash_ids}`, the ids standing for blocks of
  the prompt and then of the answer (the file name may say the size: `x.blocks16.jsonl.gz`);
- JSON lines of LLMServingSim `{arrival_time_ns, input_toks, output_toks, input_tok_ids}`;
- the JSON list of ShareGPT itself, `[{"conversations": [{"from": "human", "value": ...}]}]`: each
  answer is a request that waits for the one before, all conversations start at time 0 (give them
  times with `with_arrivals`), and tokens are counted as four characters each.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from orrery.inputs import ragged
from orrery.inputs.readers.text import (
    TEXT_BLOCK_TOKENS,
    TextBlocks,
    assemble,
    at_line,
    block_rows,
    json_document,
    json_lines,
    read_bytes,
    tokens_of,
)
from orrery.inputs.workload import Workload, WorkloadError

_FIX = 'write {"arrival_ns": 0, "input_length": 32, "output_length": 3, "hash_ids": [0, 1]}'
_CHATS = 'write [{"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", ...}]}]'


class Line(msgspec.Struct):
    """One request as the file has it, under either set of names."""

    arrival_ns: int | None = None
    arrival_time_ns: int | None = None
    input_length: int | None = None
    input_toks: int | None = None
    output_length: int | None = None
    output_toks: int | None = None
    hash_ids: list[int] = []
    input_tok_ids: list[int] = []
    output_tok_ids: list[int] = []


def read_sharegpt(
    path: str | Path, *, block_tokens: int | None = None, skip_empty: bool = False
) -> Workload:
    """Read a ShareGPT-style workload; `block_tokens` is that of the file name, else 16."""
    data = read_bytes(path)
    if data.lstrip()[:1] == b"[":
        return _conversations(path, json_document(path, data, _CHATS))
    named = re.search(r"blocks(\d{1,5})", Path(path).name)
    size = block_tokens or (int(named[1]) if named else 0) or 16
    lines, numbers = json_lines(path, data, Line, _FIX)
    arrival, inputs, outputs = [], [], []
    prompts: list[list[int]] = []
    answers: list[list[int]] = []
    by_token = any(line.input_tok_ids for line in lines)
    for number, line in zip(numbers, lines, strict=True):
        at = line.arrival_ns if line.arrival_ns is not None else line.arrival_time_ns
        made = line.input_length if line.input_length is not None else line.input_toks
        out = line.output_length if line.output_length is not None else line.output_toks
        if at is None or made is None or out is None:
            raise at_line(path, number, "lacks its arrival or a length", _FIX)
        if not 0 <= at < 1 << 63 or not 0 <= made < 1 << 31 or not 0 <= out < 1 << 31:
            raise at_line(path, number, "has a number out of range", "give times and lengths >= 0")
        arrival.append(at)
        inputs.append(made)
        outputs.append(out)
        ids = line.hash_ids
        if by_token:
            ids = line.input_tok_ids + line.output_tok_ids
            if len(line.input_tok_ids) != made:
                problem = f"{len(line.input_tok_ids)} token ids for {made} tokens"
                raise at_line(path, number, problem, "give one id a token")
        elif len(ids) > -(-(made + out) // size):
            problem = f"{len(ids)} blocks of {size} for {made} + {out} tokens"
            raise at_line(path, number, problem, "say block_tokens=...")
        full = made if by_token else made // size
        prompts.append(ids[:full])
        answers.append(ids[full:])
    return _with_blocks(
        path, numbers, [arrival, inputs, outputs], prompts, answers, size, by_token, skip_empty
    )


def _with_blocks(
    path: str | Path,
    numbers: list[int],
    columns: list[list[int]],
    prompts: list[list[int]],
    answers: list[list[int]],
    size: int,
    by_token: bool,
    skip_empty: bool,
) -> Workload:
    arrival, inputs, outputs = columns
    if by_token:
        named: dict[tuple[int, ...], int] = {}
        pieces = []
        for prompt, answer in zip(prompts, answers, strict=True):
            whole = prompt + answer
            full = range(0, len(whole) - size + 1, size)
            row = [named.setdefault(tuple(whole[k : k + size]), len(named)) for k in full]
            pieces.append(row)
        prompts = [row[: made // size] for row, made in zip(pieces, inputs, strict=True)]
        answers = [row[made // size :] for row, made in zip(pieces, inputs, strict=True)]
    # Prompt and answer of a request form one chain, so they are named together.
    both = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
    ids, _ = block_rows(path, numbers, both)
    cut = np.cumsum(
        [0, *(n for p, a in zip(prompts, answers, strict=True) for n in (len(p), len(a)))]
    )
    halves = len(numbers)
    block_ids, block_starts = ragged.gather(ids, cut, 2 * np.arange(halves))
    answer_ids, answer_starts = ragged.gather(ids, cut, 2 * np.arange(halves) + 1)
    extra: dict[str, Any] = {"block_tokens": size}
    if len(ids):
        extra |= {"block_ids": block_ids, "block_starts": block_starts}
        extra |= {"answer_ids": answer_ids, "answer_starts": answer_starts}
    times = np.array(arrival, np.float64) / 1e9
    return assemble(path, numbers, times, inputs, outputs, skip_empty=skip_empty, **extra)


def _conversations(path: str | Path, chats: Any) -> Workload:
    texts = TextBlocks()
    rows: list[tuple[int, int, int, int]] = []
    prompts: list[list[int]] = []
    answers: list[list[int]] = []
    for session, chat in enumerate(chats):
        turns = chat.get("conversations") if isinstance(chat, dict) else None
        if not isinstance(turns, list):
            raise WorkloadError(f"{path}[{session}]", "has no list of conversations", _CHATS)
        context, before = "", -1
        for turn in turns:
            value = turn.get("value") if isinstance(turn, dict) else None
            if not isinstance(value, str):
                raise WorkloadError(f"{path}[{session}]", "has a turn without a value", _CHATS)
            said = f"<{turn.get('from', 'human')}>{value}\n"
            if turn.get("from") in ("gpt", "assistant", "chatgpt", "bing", "bard") and context:
                tokens = tokens_of(context)
                prompt, answer = texts.split(context, said, tokens)
                rows.append((session, before, tokens, tokens_of(value)))
                before = len(rows) - 1
                prompts.append(prompt)
                answers.append(answer)
            context += said
    if not rows:
        raise WorkloadError(str(path), "holds no answer", _CHATS)
    sessions, parents, inputs, outputs = zip(*rows, strict=True)
    block_ids, block_starts = ragged.flat(prompts)
    answer_ids, answer_starts = ragged.flat(answers)
    return assemble(
        path,
        range(1, len(rows) + 1),
        np.zeros(len(rows)),
        inputs,
        outputs,
        session=sessions,
        parent=parents,
        block_tokens=TEXT_BLOCK_TOKENS,
        block_ids=block_ids,
        block_starts=block_starts,
        answer_ids=answer_ids,
        answer_starts=answer_starts,
    )
