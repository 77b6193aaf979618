"""Reads OpenTelemetry traces of agents: calls of a model, what each waits for, what they share.

A call is a span with `gen_ai.*` attributes, in a plain list (`{"spans": [...]}`) or as OTLP writes
it (`resourceSpans`). What a call waits for is inferred as the replayer of kubernetes-sigs does that
publishes such traces: a call waits for each earlier call whose answer stands, letter for letter,
among its messages; for its parent span, where that is a call which has ended; and, where nothing
else is known of what came just before (`by_time`), for the latest call that had ended when it
started. Of calls that wait for each other only the direct ones are kept. The time from the last of
their ends to the start is the tool time, `delay_s`.

Tokens are those of `gen_ai.usage`, else four characters each; blocks of 16 tokens are cut from the
text of the messages, so shared prefixes are seen. Each trace (file, `trace_id`, session) is a
session; several files all start at time 0.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from orrery.base.units import NS_PER_S
from orrery.inputs import ragged
from orrery.inputs.readers.text import (
    TEXT_BLOCK_TOKENS,
    TextBlocks,
    assemble,
    content_of,
    json_document,
    json_lines,
    read_bytes,
    rendered,
    tokens_of,
)
from orrery.inputs.workload import Workload, WorkloadError
from orrery.world.spec import brief

_FIX = "give spans with gen_ai attributes, start_time and end_time"


class Call(NamedTuple):
    """One call of a model, as its span tells it."""

    session: str
    span: str
    above: str
    begin_ns: int
    end_ns: int
    prompt: str
    answer: str
    said: frozenset[str]
    input_tokens: int
    output_tokens: int
    model: str


def read_otel(path: str | Path, *, by_time: bool = True) -> Workload:
    """Read the traces of one file (JSON or JSON lines), or of all JSON files of a folder."""
    path = Path(path)
    files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
    traces: list[list[Call]] = []
    for file in files:
        traces += _traces(file)
    if not traces:
        raise WorkloadError(str(path), "holds no call of a model", _FIX)
    return workload_of(traces, path, by_time)


def _traces(path: Path) -> list[list[Call]]:
    data = read_bytes(path)
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        documents = json_lines(path, data, dict[str, Any], _FIX)[0]
    else:
        documents = [json_document(path, data, _FIX)]
    found: dict[tuple[str, str], list[Call]] = {}
    for document in documents:
        for place, span in enumerate(_spans(path, document)):
            call = _call(f"{path}: span {place}", span)
            if call is not None:
                trace = str(span.get("trace_id", span.get("traceId", "")))
                found.setdefault((trace, call.session), []).append(call)
    return [sorted(calls, key=lambda call: call.begin_ns) for calls in found.values()]


def _spans(path: Path, document: Any) -> list[dict[str, Any]]:
    spans: list[Any] = []
    todo = [document]
    while todo:
        holder = todo.pop(0)
        if isinstance(holder, list):
            todo = holder + todo
        elif isinstance(holder, dict):
            inner = [holder[k] for k in ("resourceSpans", "scopeSpans", "batches") if k in holder]
            if isinstance(holder.get("spans"), list):
                spans += holder["spans"]
            elif inner:
                todo = inner + todo
            elif "attributes" in holder and ("span_id" in holder or "spanId" in holder):
                spans.append(holder)
    if not spans:
        raise WorkloadError(str(path), "holds no spans", _FIX)
    for place, span in enumerate(spans):
        if not isinstance(span, dict):
            raise WorkloadError(f"{path}: span {place}", f"{brief(span)} is refused", _FIX)
    return spans


def _attributes(span: dict[str, Any]) -> dict[str, Any]:
    given = span.get("attributes")
    if isinstance(given, dict):
        return given
    plain = {}
    for each in given if isinstance(given, list) else ():
        if isinstance(each, dict) and isinstance(each.get("value"), dict):
            value = next(iter(each["value"].values()), None)
            plain[str(each.get("key"))] = value
    return plain


def _call(where: str, span: dict[str, Any]) -> Call | None:
    about = _attributes(span)
    if not any(key.startswith(("gen_ai.", "llm.")) for key in about):
        return None
    messages = _messages(where, about, ("gen_ai.input.messages", "gen_ai.prompt"))
    if messages is None:
        return None  # an agent or a tool, not a call of a model
    prompt = rendered(messages)
    answer = _answer(where, about)
    if prompt is None:
        raise WorkloadError(where, f"messages {brief(messages)} are refused", "give a list")
    said = [content_of(m) for m in messages if isinstance(m, dict) and m.get("role") != "user"]
    begin, end = (_time(where, span, name) for name in ("start", "end"))
    if end < begin:
        raise WorkloadError(where, "ends before it starts", "give times in order")
    made = _count(where, about, ("input_tokens", "prompt_tokens"))
    out = _count(where, about, ("output_tokens", "completion_tokens"))
    session = next((v for k, v in sorted(about.items()) if k.endswith("session.id")), "")
    return Call(
        session=str(session or about.get("gen_ai.conversation.id") or ""),
        span=str(span.get("span_id", span.get("spanId", ""))),
        above=str(span.get("parent_span_id", span.get("parentSpanId")) or ""),
        begin_ns=begin,
        end_ns=end,
        prompt=prompt,
        answer=answer,
        said=frozenset(said),
        input_tokens=made if made is not None else tokens_of(prompt),
        output_tokens=out if out is not None else tokens_of(answer),
        model=str(about.get("gen_ai.request.model") or "default"),
    )


def _messages(where: str, about: dict[str, Any], names: tuple[str, ...]) -> Any:
    value = next((about[name] for name in names if about.get(name) is not None), None)
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        value = json_document(where, value.encode("utf-8", "replace"), "give messages as JSON")
    if isinstance(value, dict):
        value = [value]
    return [value] if isinstance(value, str) else value


def _answer(where: str, about: dict[str, Any]) -> str:
    text = about.get("gen_ai.output.text")
    if isinstance(text, str):
        return text
    messages = _messages(where, about, ("gen_ai.output.messages", "gen_ai.completion"))
    parts = messages if isinstance(messages, list) else []
    return "".join(content_of(m) if isinstance(m, dict) else str(m) for m in parts)


def _time(where: str, span: dict[str, Any], name: str) -> int:
    value = span.get(f"{name}TimeUnixNano", span.get(f"{name}_time"))
    try:
        if isinstance(value, str) and not value.isdigit():
            date = datetime.datetime.fromisoformat(value)
            if date.tzinfo is None:
                date = date.replace(tzinfo=datetime.UTC)
            whole = int(date.replace(microsecond=0).timestamp())
            found = whole * NS_PER_S + date.microsecond * 1000
        elif isinstance(value, str | int) and not isinstance(value, bool):
            found = int(value)
        else:
            raise ValueError
        if not 0 <= found < 1 << 63:
            raise ValueError
    except (ValueError, OverflowError):
        problem = f"{name} time {brief(value)} is refused"
        raise WorkloadError(where, problem, "give an ISO date or nanoseconds") from None
    return found


def _count(where: str, about: dict[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = about.get(f"gen_ai.usage.{name}")
        if value is None:
            continue
        if isinstance(value, str) and value.isdigit() and len(value) < 12:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
            raise WorkloadError(where, f"{name} {brief(value)} is refused", "give a count")
        return max(1, value)
    return None


# -- what waits for what


def parents_of(calls: list[Call], by_time: bool) -> list[list[int]]:
    """For each call of a trace, in order of start, the calls that it directly waits for."""
    parents: list[list[int]] = []
    above: list[set[int]] = []  # all that a call waits for, directly or not
    for i, call in enumerate(calls):
        direct: list[int] = []
        reached: set[int] = set()

        def add(j: int, direct: list[int] = direct, reached: set[int] = reached) -> None:
            if j not in reached:
                direct.append(j)
                reached.update(above[j], (j,))

        ended = [j for j in range(i) if calls[j].end_ns <= call.begin_ns]
        for j in reversed(ended):  # later calls first, since they may wait for earlier ones
            answered = bool(calls[j].answer) and calls[j].answer in call.said
            if answered or (call.above and calls[j].span == call.above):
                add(j)
        if by_time and ended:
            add(ended[-1])
        # A call that was added before may be waited for by one that came after it.
        direct = [j for j in direct if not any(j in above[k] for k in direct)]
        parents.append(sorted(direct))
        above.append(reached)
    return parents


def workload_of(traces: list[list[Call]], path: str | Path, by_time: bool) -> Workload:
    """The traces as one workload, each a session from time 0."""
    texts = TextBlocks()
    kinds: dict[str, int] = {}
    columns: dict[str, list[Any]] = {
        name: [] for name in ("arrival", "input", "output", "session", "kind", "parent", "delay_s")
    }
    rows: dict[str, list[list[int]]] = {"block": [], "answer": [], "parent": []}
    for number, calls in enumerate(traces):
        base = len(columns["arrival"])
        for call, waits in zip(calls, parents_of(calls, by_time), strict=True):
            last = max(waits, key=lambda j: (calls[j].end_ns, j), default=-1)
            delay_ns = call.begin_ns - calls[last].end_ns if waits else 0
            columns["arrival"].append((call.begin_ns - calls[0].begin_ns) / NS_PER_S)
            columns["input"].append(call.input_tokens)
            columns["output"].append(call.output_tokens)
            columns["session"].append(number)
            columns["kind"].append(kinds.setdefault(call.model, len(kinds)))
            columns["parent"].append(base + last if waits else -1)
            columns["delay_s"].append(delay_ns / NS_PER_S)
            said = f"<assistant>{call.answer}\n" if call.answer else ""
            prompt, answer = texts.split(call.prompt, said, call.input_tokens)
            rows["block"].append(prompt)
            rows["answer"].append(answer)
            rows["parent"].append([base + j for j in waits] if len(waits) > 1 else [])
    ragged_columns: dict[str, Any] = {}
    for name, each in rows.items():
        ragged_columns[f"{name}_ids"], ragged_columns[f"{name}_starts"] = ragged.flat(each)
    count = len(columns["arrival"])
    return assemble(
        path,
        np.arange(1, count + 1),
        columns["arrival"],
        columns["input"],
        columns["output"],
        session=columns["session"],
        kind=columns["kind"],
        kinds=tuple(kinds),
        parent=columns["parent"],
        delay_s=columns["delay_s"],
        block_tokens=TEXT_BLOCK_TOKENS,
        **ragged_columns,
    )
