"""Spans: what a run recorded, as one list of things that happened, and as files for other tools.

`of(run)` turns the kernel's rows of deliveries, what the nodes emitted and the fault schedule into
`Span`s in order of time. `write(run, path)` exports them: Chrome/Perfetto JSON (open it at
ui.perfetto.dev), JSON lines or Parquet. Rows are written as they are made, so a large run needs no
second copy in memory, and the same run gives the same bytes.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import msgspec

from orrery.base.errors import PlatformLacks, StoreError, UsageError
from orrery.world.spec import to_data

if TYPE_CHECKING:
    from orrery.lab.run import Run

# A row of the kernel's trace has these fields, in this order.
ROW = ("sent_ns", "received_ns", "seq", "src", "dst", "method", "size_B", "is_reply")
STOPS = frozenset({"Crash", "SpotReclaim"})
STANDS = frozenset({"Pause", "Hang"})
FORMATS = {".json": "perfetto", ".jsonl": "lines", ".parquet": "parquet"}
_BATCH = 50_000
_encode = msgspec.json.Encoder(order="deterministic", enc_hook=repr).encode


class Span(NamedTuple):
    """Something that took time (or none): on which node, from when to when.

    `kind` is "message" or "reply" (node sent it to `to`), "lost" (a message that never arrived),
    "transfer" (bulk data to `to`), "compute", "emit" (a node told something), "down", "paused", or
    "fault" (any other fault; node -1 where it hits the whole network). A run knows what was lost,
    computed and transferred only if `replay` made it.
    """

    kind: str
    name: str
    start_ns: int
    end_ns: int
    node: int
    to: int = -1
    size_B: int = 0
    seq: int = 0
    values: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """The span as plain data, without the fields that mean nothing for its kind."""
        told: dict[str, Any] = {
            "kind": self.kind, "name": self.name, "start_ns": self.start_ns,
            "end_ns": self.end_ns, "node": self.node,
        }  # fmt: skip
        if self.to >= 0:
            told |= {"to": self.to, "size_B": self.size_B, "seq": self.seq}
        if self.values:
            told["values"] = plain(self.values)
        return told


def of(run: Run, lost: Iterable[Span] | None = None) -> Iterator[Span]:
    """Every span of a run in order of its beginning; messages need `run(…, trace=True)`."""
    known = run.extra.get("lost_spans", ()) if lost is None else lost
    work = run.extra.get("work_spans", ())
    streams = (iter(life(run)), messages(run), emits(run), iter(known), iter(work))
    # A stable merge by time alone: of one instant, faults come first, then messages, then emits.
    return heapq.merge(*streams, key=lambda span: span.start_ns)


def messages(run: Run) -> Iterator[Span]:
    """Every message that arrived, in order of its sending."""
    for row in sorted(run.spans, key=lambda row: (row[0], row[2])):
        sent_ns, received_ns, seq, src, dst, method, size_B, is_reply = row
        kind = "reply" if is_reply else "message"
        yield Span(kind, method, sent_ns, received_ns, src, dst, size_B, seq)


def emits(run: Run) -> Iterator[Span]:
    """What the nodes told by `emit`, in order of time."""
    for time_s, node, values in run.records:
        at_ns = round(time_s * 1e9)
        yield Span("emit", ", ".join(values), at_ns, at_ns, node, values=values)


def life(run: Run) -> list[Span]:
    """When nodes were down or stood still and which other faults were on, by the schedule."""
    if run.world is None:
        return []
    end_ns = round(run.seconds * 1e9)
    found: list[Span] = []
    stops: dict[tuple[str, int], list[tuple[int, int, str]]] = {}
    for fault in run.world.schedule(run.seed):
        start_ns = round(fault.at_s * 1e9)
        until_ns = end_ns if fault.until_s is None else min(round(fault.until_s * 1e9), end_ns)
        if start_ns > end_ns:
            continue  # the run was over before it began
        kind = "down" if fault.kind in STOPS else "paused" if fault.kind in STANDS else "fault"
        if kind == "fault":
            found.append(_fault_span(fault, start_ns, until_ns))
            continue
        for node in run.world.targets(fault):
            stops.setdefault((kind, node), []).append((start_ns, until_ns, fault.kind))
    for (kind, node), times in stops.items():
        found += [Span(kind, name, a, b, node) for a, b, name in _joined(times)]
    found.sort(key=lambda span: (span.start_ns, span.kind, span.node, span.end_ns))
    return found


def _fault_span(fault: Any, start_ns: int, until_ns: int) -> Span:
    told = {
        name: value
        for name, value in to_data(fault).items()
        if value is not None and name not in ("kind", "at_s", "until_s")
    }
    node = told.get("node")
    return Span(
        "fault", fault.kind, start_ns, until_ns, node if isinstance(node, int) else -1, values=told
    )


def _joined(times: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Overlapping stops of one node as single ones: it is up again when the last has ended."""
    found: list[tuple[int, int, str]] = []
    for start, end, name in sorted(times):
        if found and start <= found[-1][1]:
            before = found[-1]
            found[-1] = (before[0], max(before[1], end), before[2])
        else:
            found.append((start, end, name))
    return found


def node_name(node: int, run: Run) -> str:
    """How a node is called in pictures; what comes after the world's nodes is outside of it."""
    size = run.world.size if run.world is not None else node + 1
    if node < 0:
        return "network"
    if node < size:
        return f"node {node}"
    return "clients" if node == size else f"twin {node - size}"


def plain(value: Any) -> Any:
    """A value as JSON data that is the same in every process: sets sorted, the rest as text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, set | frozenset):
        return sorted(
            (plain(each) for each in value), key=lambda each: (str(type(each)), str(each))
        )
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, bytes | bytearray):
        return value.hex()
    text = repr(value)
    # The address of an object differs in every process and means nothing.
    return f"<{type(value).__qualname__}>" if " at 0x" in text else text


# -- files


def write(run: Run, path: str | Path, lost: Iterable[Span] | None = None) -> Path:
    """Export a run's spans; the suffix says how: .json (Perfetto), .jsonl or .parquet."""
    target = Path(path)
    how = FORMATS.get(target.suffix.lower())
    if how is None:
        raise UsageError(
            f"{target}: unknown suffix {target.suffix!r}; "
            "end it in .json (Perfetto, Chrome), .jsonl or .parquet"
        )
    if not run.spans and not run.records:
        raise UsageError("the run has no spans; make it with run(…, trace=True)")
    if how == "parquet":
        pyarrow = _pyarrow()
        return _whole(target, lambda file: _write_parquet(pyarrow, run, lost, file))
    rows = perfetto(run, lost) if how == "perfetto" else json_lines(run, lost)
    return _whole(target, lambda file: file.writelines(rows))


def json_lines(run: Run, lost: Iterable[Span] | None = None) -> Iterator[bytes]:
    """One JSON object a line: first what the run was, then its spans."""
    yield _encode({"schema": 1, "run": _about(run)}) + b"\n"
    for span in of(run, lost):
        yield _encode(span.to_json()) + b"\n"


def perfetto(run: Run, lost: Iterable[Span] | None = None) -> Iterator[bytes]:
    """The pieces of a Chrome trace file: a process for the run, a thread for each node.

    A message is a short slice where it was sent, one where it arrived, and a flow arrow between.
    """
    yield b'{"displayTimeUnit":"ms","otherData":' + _encode(_about(run)) + b',"traceEvents":[\n'
    first = {"ph": "M", "pid": 1, "tid": 0, "name": "process_name",
             "args": {"name": f"orrery, seed {run.seed}"}}  # fmt: skip
    yield _encode(first)
    named: set[int] = set()
    for span in of(run, lost):
        for node in (span.node, span.to) if span.to >= 0 else (span.node,):
            if node not in named:
                named.add(node)
                for event in _thread(node, run):
                    yield b",\n" + _encode(event)
        for event in _events(span):
            yield b",\n" + _encode(event)
    yield b"\n]}\n"


def _thread(node: int, run: Run) -> Iterator[dict[str, Any]]:
    place = {"ph": "M", "pid": 1, "tid": node + 1}
    yield {**place, "name": "thread_name", "args": {"name": node_name(node, run)}}
    yield {**place, "name": "thread_sort_index", "args": {"sort_index": node + 1}}


def _events(span: Span) -> Iterator[dict[str, Any]]:
    base: dict[str, Any] = {"pid": 1, "cat": span.kind}
    start_us, end_us = span.start_ns / 1e3, span.end_ns / 1e3
    if span.kind in ("message", "reply"):
        told = {"from": span.node, "to": span.to, "size_B": span.size_B, "seq": span.seq}
        name = f"reply {span.name}" if span.kind == "reply" else span.name
        # A flow binds to the slice around it, so each end gets one. A nanosecond is the step of
        # time, so that slices of one node are apart or nested, and never cross.
        yield {**base, "ph": "X", "tid": span.node + 1, "ts": start_us, "dur": 0.001,
               "name": f"send {name}", "args": told}  # fmt: skip
        yield {**base, "ph": "s", "tid": span.node + 1, "ts": start_us, "id": span.seq,
               "name": name}  # fmt: skip
        yield {**base, "ph": "X", "tid": span.to + 1, "ts": end_us, "dur": 0.001,
               "name": name}  # fmt: skip
        yield {**base, "ph": "f", "bp": "e", "tid": span.to + 1, "ts": end_us, "id": span.seq,
               "name": name}  # fmt: skip
    elif span.kind in ("emit", "lost"):
        told = {**(plain(span.values) or {}), **({"to": span.to} if span.to >= 0 else {})}
        name = f"lost {span.name}" if span.kind == "lost" else span.name
        yield {**base, "ph": "i", "s": "t", "tid": span.node + 1, "ts": start_us, "name": name,
               "args": told}  # fmt: skip
    elif span.kind in ("fault", "compute", "transfer"):
        # These may overlap on one node, which only asynchronous slices may.
        told = plain(span.values) or {}
        if span.kind == "transfer":
            told = {"from": span.node, "to": span.to, "size_B": span.size_B}
        key = f"{span.name}-{span.start_ns}-{span.node}-{span.to}"
        yield {**base, "ph": "b", "tid": span.node + 1, "ts": start_us, "id": key,
               "name": span.name, "args": told}  # fmt: skip
        yield {**base, "ph": "e", "tid": span.node + 1, "ts": end_us, "id": key,
               "name": span.name}  # fmt: skip
    else:
        yield {**base, "ph": "X", "tid": span.node + 1, "ts": start_us, "dur": end_us - start_us,
               "name": f"{span.kind} ({span.name})", "args": {}}  # fmt: skip


def _about(run: Run) -> dict[str, Any]:
    return {
        "part": repr(run.part), "problem": repr(run.problem), "seed": run.seed,
        "engine": run.engine, "digest": run.digest, "seconds": run.seconds,
        "world": run.world.hash if run.world is not None else "",
    }  # fmt: skip


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise PlatformLacks(
            'Parquet needs pyarrow; pip install "orrery[tables]", or write .jsonl instead'
        ) from None
    return pyarrow


def _write_parquet(pyarrow: Any, run: Run, lost: Iterable[Span] | None, file: IO[bytes]) -> None:
    schema = pyarrow.schema([
        ("kind", pyarrow.dictionary(pyarrow.int32(), pyarrow.string())),
        ("name", pyarrow.dictionary(pyarrow.int32(), pyarrow.string())),
        ("start_ns", pyarrow.int64()), ("end_ns", pyarrow.int64()), ("node", pyarrow.int64()),
        ("to", pyarrow.int64()), ("size_B", pyarrow.int64()), ("seq", pyarrow.int64()),
        ("values", pyarrow.string()),
    ]).with_metadata({b"orrery": _encode(_about(run))})  # fmt: skip
    with pyarrow.parquet.ParquetWriter(file, schema) as writer:
        for batch in _batches(of(run, lost)):
            columns: list[list[Any]] = [list(column) for column in zip(*batch, strict=True)]
            columns[5] = [None if to < 0 else to for to in columns[5]]
            columns[8] = [_encode(plain(v)).decode() if v else None for v in columns[8]]
            arrays = [
                pyarrow.array(column, field.type)
                for column, field in zip(columns, schema, strict=True)
            ]
            writer.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))


def _batches(spans: Iterator[Span]) -> Iterator[list[Span]]:
    batch: list[Span] = []
    for span in spans:
        batch.append(span)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _whole(target: Path, fill: Callable[[IO[bytes]], object]) -> Path:
    """Write a file beside its place and rename it, so that it is there whole or not at all."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                fill(file)
            os.chmod(name, 0o644)  # a temporary file is private; a result is not
            os.replace(name, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
    except OSError as failure:
        reason = failure.strerror or str(failure)
        raise StoreError(f"{target}: cannot be written: {reason}; check the folder") from None
    return target
