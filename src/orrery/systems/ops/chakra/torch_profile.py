"""PyTorch's own recordings as task graphs: profiler timelines of all ranks, matched.

`from_profile` reads the Chrome traces that `torch.profiler` writes, one for each rank. Operations
of a rank's main thread follow each other; the time between them is the host's own and becomes a
task too, so that nothing is lost. A collective is what its backend shows (`gloo:all_reduce` on a
worker thread, a NCCL kernel on a stream); the main thread goes on after it where it did nothing
while it ran. Kernels wait for the host operation that launched them (by correlation number) and for
their stream; a host operation that synchronises waits for the kernels before it.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from orrery.inputs.chakra.schema import TraceError
from orrery.models.taskgraph.graph import FREE, Builder, TaskGraph

_OPS = {
    "all_reduce": "all_reduce", "allreduce": "all_reduce", "reduce_scatter": "reduce_scatter",
    "reducescatter": "reduce_scatter", "all_gather": "all_gather", "allgather": "all_gather",
    "all_to_all": "all_to_all", "alltoall": "all_to_all", "broadcast": "broadcast",
    "gather": "gather", "scatter": "scatter", "reduce": "reduce", "barrier": "barrier",
}  # fmt: skip
_SIZES = {
    "float": 4, "double": 8, "c10::half": 2, "half": 2, "c10::bfloat16": 2, "bfloat16": 2,
    "long": 8, "long int": 8, "int": 4, "short": 2, "unsigned char": 1, "signed char": 1, "bool": 1,
    "float32": 4, "float16": 2, "float64": 8, "int64": 8, "int32": 4, "int8": 1, "uint8": 1,
}  # fmt: skip
_SYNC = ("Synchronize",)
STEP_NAMES = ("step", "ProfilerStep")


class _Span(msgspec.Struct):
    """An event with a length, in microseconds since the rank's first."""

    name: str
    cat: str
    lane: str
    start_us: float
    end_us: float
    args: dict[str, Any]


def from_profile(
    profiles: Mapping[int, str | Path], *, step_names: Sequence[str] = STEP_NAMES
) -> TaskGraph:
    """The graph of a job from the Chrome traces of its ranks, with recorded durations.

    Annotations whose names begin with one of `step_names` mark steps: where such a one ends, a
    task of no length called "end of <name>" stands (see `step_times`).
    """
    if not profiles:
        raise TraceError("no profiles; give a Chrome trace for each rank")
    documents = {rank: _document(path) for rank, path in profiles.items()}
    ranks = max(profiles) + 1
    for path, document in zip(profiles.values(), documents.values(), strict=True):
        told = (document.get("distributedInfo") or {}).get("world_size")
        if isinstance(told, int) and told > 0:
            ranks = max(ranks, told)
        if not isinstance(document.get("traceEvents"), list):
            raise TraceError(f"{path}: has no traceEvents; is it a trace of torch.profiler?")
    make = Builder(ranks, source="torch.profiler")
    first_us = {rank: _first(document) for rank, document in documents.items()}
    for rank, document in sorted(documents.items()):
        _Rank(make, rank, ranks, document, first_us[rank], tuple(step_names)).write()
    return _without_waits(make.graph())


def _without_waits(graph: TaskGraph) -> TaskGraph:
    """Calls as long as at the member that came last: the others' times hold their waiting too.

    Members that do not agree on their calls are left as they are, for `faults` to tell.
    """
    took = graph.duration_s.copy()
    for group, members in enumerate(graph.groups):
        rows = [np.flatnonzero((graph.group == group) & (graph.rank == rank)) for rank in members]
        if len({len(row) for row in rows}) == 1:
            table = np.stack(rows)
            took[table] = took[table].min(axis=0)
    return graph.with_durations(took)


def _document(path: str | Path) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(Path(path).read_bytes())
    except OSError as failure:
        raise TraceError(f"{path}: cannot be read: {failure.strerror}; check the path") from None
    except (msgspec.MsgspecError, RecursionError) as failure:
        raise TraceError(f"{path}: is not JSON: {failure}; is it cut off?") from None
    if not isinstance(found, dict):
        raise TraceError(f"{path}: is no table; is it a trace of torch.profiler?")
    return found


def _first(document: dict[str, Any]) -> float:
    times = [event["ts"] for event in document["traceEvents"] if _whole(event)]
    return float(min(times, default=0.0))


def _whole(event: Any) -> bool:
    return (
        isinstance(event, dict)
        and event.get("ph") == "X"
        and isinstance(event.get("ts"), int | float)
        and isinstance(event.get("dur"), int | float)
        and event["dur"] >= 0
        and event.get("cat") in _CATS
    )


_CATS = ("cpu_op", "user_annotation", "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime",
         "cuda_driver")  # fmt: skip


class _Rank:
    """Writes the tasks of one rank."""

    def __init__(
        self, make: Builder, rank: int, ranks: int, document: dict[str, Any], first_us: float,
        step_names: tuple[str, ...],
    ) -> None:  # fmt: skip
        self.make = make
        self.rank = rank
        self.ranks = ranks
        self.step_names = step_names
        self.spans = sorted(
            (
                _Span(str(e.get("name", "")), str(e["cat"]), f"{e.get('pid')}/{e.get('tid')}",
                      float(e["ts"]) - first_us, float(e["ts"]) + float(e["dur"]) - first_us,
                      e.get("args") or {})
                for e in document["traceEvents"] if _whole(e)
            ),
            key=lambda span: (span.start_us, -span.end_us),
        )  # fmt: skip
        self.groups = _groups(document)

    def write(self) -> None:
        main = self._main_lane()
        host = _outermost([s for s in self.spans if s.lane == main and s.cat == "cpu_op"])
        calls = [s for s in self.spans if s.cat == "user_annotation" and _collective(s)]
        steps = [
            s for s in self.spans
            if s.cat == "user_annotation" and s.lane == main and s.name.startswith(self.step_names)
        ]  # fmt: skip
        device = _Device(self)
        last: list[int] = []
        at_us = min((s.start_us for s in host), default=0.0)
        if steps:
            at_us = min(at_us, steps[0].start_us)
        # What the main thread does, in order: operations, ends of steps, and collectives.
        todo: list[tuple[float, int, _Span]] = [(s.start_us, 1, s) for s in host]
        todo += [(s.end_us, 2, s) for s in steps]
        todo += [(s.start_us, 0, s) for s in calls]
        starts = [s.start_us for s in host]
        for when_us, kind, span in sorted(todo, key=lambda row: (row[0], row[1])):
            if when_us > at_us:
                last = [self.make.compute(self.rank, (when_us - at_us) / 1e6, name="host",
                                          stream=FREE, after=last)]  # fmt: skip
                at_us = when_us
            if kind == 0:
                call = self._call(span, last)
                # The next operation of the main thread tells whether it waited for this one.
                place = bisect.bisect_right(starts, max(span.start_us, at_us))
                waits = place >= len(starts) or starts[place] >= span.end_us
                if waits:
                    last, at_us = [call], max(at_us, span.end_us)
                else:
                    device.open_calls.append(call)
            elif kind == 2:
                last = [self.make.compute(self.rank, 0.0, name=f"end of {span.name}", stream=FREE,
                                          after=[*last, *device.open_calls])]  # fmt: skip
                device.open_calls = []
            else:
                after = [*last, *device.before(span)]
                took_us = max(span.end_us - max(span.start_us, at_us), 0.0)
                last = [self.make.compute(self.rank, took_us / 1e6, name=span.name, stream=FREE,
                                          after=after)]  # fmt: skip
                at_us = max(at_us, span.end_us)
                device.launched(span, last[0])

    def _main_lane(self) -> str:
        counts: dict[str, int] = {}
        for span in self.spans:
            if span.cat == "cpu_op":
                counts[span.lane] = counts.get(span.lane, 0) + 1
        if not counts:
            raise TraceError(f"rank {self.rank}: the profile has no operation of the host")
        return max(sorted(counts), key=lambda lane: counts[lane])

    def _call(self, span: _Span, after: list[int]) -> int:
        op = _collective(span)
        name, members = self._group_of(span)
        group = self.make.group(members, name)
        size_B = _size(span)
        if op == "all_gather":
            size_B *= len(members)
        return self.make.collective(
            self.rank, op, group, size_B, stream=FREE, name=span.name, after=after,
            duration_s=(span.end_us - span.start_us) / 1e6,
        )  # fmt: skip

    def _group_of(self, span: _Span) -> tuple[str, list[int]]:
        name = str(span.args.get("Process Group Name", ""))
        told = span.args.get("Process Group Ranks")
        if isinstance(told, str):
            words = told.strip("[]").replace(",", " ").split()
            told = [int(word) for word in words if word.isdigit()]
        if isinstance(told, list) and told:
            return name, [int(rank) for rank in told]
        if name in self.groups:
            return name, self.groups[name]
        if len(self.groups) == 1:
            return next(iter(self.groups.items()))
        return "", list(range(self.ranks))


class _Device:
    """Kernels of a rank: tied to what launched them, to their stream, and to who waits for them."""

    def __init__(self, owner: _Rank) -> None:
        self.owner = owner
        self.kernels: dict[Any, _Span] = {
            s.args.get("correlation"): s for s in owner.spans
            if s.cat in ("kernel", "gpu_memcpy", "gpu_memset") and "correlation" in s.args
        }  # fmt: skip
        self.launches = [s for s in owner.spans if s.cat in ("cuda_runtime", "cuda_driver")]
        self.last: dict[str, int] = {}
        self.open_calls: list[int] = []

    def _within(self, span: _Span) -> list[_Span]:
        return [s for s in self.launches if span.start_us <= s.start_us <= span.end_us
                and s.lane == span.lane]  # fmt: skip

    def before(self, span: _Span) -> list[int]:
        """The kernels that a host operation waits for: all, if it synchronises."""
        if any(word in s.name for s in self._within(span) for word in _SYNC):
            return list(self.last.values())
        return []

    def launched(self, span: _Span, task: int) -> None:
        """Add the kernels that a host operation launched."""
        make, rank = self.owner.make, self.owner.rank
        for launch in self._within(span):
            kernel = self.kernels.get(launch.args.get("correlation"))
            if kernel is None:
                continue
            after = [task]
            if kernel.lane in self.last:
                after.append(self.last[kernel.lane])
            if _collective(kernel):
                self.last[kernel.lane] = self.owner._call(kernel, after)
                continue
            self.last[kernel.lane] = make.compute(
                rank, (kernel.end_us - kernel.start_us) / 1e6, name=kernel.name, stream=FREE,
                after=after)  # fmt: skip


def _outermost(spans: list[_Span]) -> list[_Span]:
    """Spans that lie in no other; they come sorted by beginning, the longer first."""
    found: list[_Span] = []
    for span in spans:
        if not found or span.start_us >= found[-1].end_us:
            found.append(span)
    return found


def _groups(document: dict[str, Any]) -> dict[str, list[int]]:
    told = (document.get("distributedInfo") or {}).get("pg_config") or []
    return {
        str(each.get("pg_name")): [int(rank) for rank in each["ranks"]]
        for each in told if isinstance(each, dict) and each.get("ranks")
    }  # fmt: skip


def _collective(span: _Span) -> str:
    """The collective that an event is, or ""."""
    name = span.name.lower()
    told = str(span.args.get("Collective name", "")).lower()
    if told:
        return next((op for word, op in _OPS.items() if word in told), "")
    if name.startswith(("gloo:", "mpi:")):
        return next((op for word, op in _OPS.items() if word in name), "")
    if "nccl" in name and span.cat == "kernel":
        return next((op for word, op in _OPS.items() if word in name), "")
    return ""


def _size(span: _Span) -> float:
    """The bytes of what a call was given."""
    items = span.args.get("In msg nelems")
    if isinstance(items, int):
        return float(items * _SIZES.get(str(span.args.get("dtype", "float")).lower(), 4))
    total = 0.0
    dims = span.args.get("Input Dims") or []
    kinds = span.args.get("Input type") or []
    for shape, kind in zip(dims, kinds, strict=False):
        width = _SIZES.get(str(kind).lower())
        if width is None or not isinstance(shape, list):
            continue
        count = 1
        for side in shape:
            count *= side if isinstance(side, int) else 1
        total += float(count * width)
    return total


def step_times(graph: TaskGraph, end_s: Any) -> list[float]:
    """The length of each step but the first, from the ends of the marked ones at all ranks."""
    ends: dict[str, float] = {}
    for task in range(len(graph)):
        name = graph.names[graph.name[task]]
        if name.startswith("end of "):
            ends[name] = max(ends.get(name, 0.0), float(end_s[task]))
    ordered = sorted(ends.values())
    return [b - a for a, b in itertools.pairwise(ordered)]
