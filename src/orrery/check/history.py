"""Histories: what clients asked, what they were told, and in which order.

An operation is invoked by a process and ends in one of three ways, as in Jepsen: *ok* (it
happened, and this is the result), *fail* (it certainly did not happen) or *unknown* (it may have
happened, may not, or may yet take effect at any later time). One that never ends is unknown.

The order of events is by time; events at the same time are ordered as they were recorded, which in
the virtual engine is the order in which they happened.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from orrery.base.errors import CodecError, SpecError
from orrery.check.values import freeze, from_plain, to_plain

OPEN = 1 << 62
"""The position of a return that never comes: later than every event."""


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One operation; `call` and `ret` are places in the order of events, `ret` None while open."""

    index: int
    process: int | str
    f: str
    key: Any = None
    value: Any = None
    result: Any = None
    call: int
    ret: int | None = None
    state: str = "open"
    call_s: float = 0.0
    ret_s: float | None = None

    def __str__(self) -> str:
        where = "" if self.key is None else f" {self.key!r}"
        what = "" if self.value is None else f" {self.value!r}"
        end = {"ok": f"-> {self.result!r}", "fail": "failed"}.get(self.state, "unknown")
        span = f"[{self.call}, {'…' if self.ret is None else self.ret}]"
        return f"{self.process}: {self.f}{where}{what} {end} {span}"


class History:
    """Operations of sequential processes, recorded event by event.

    >>> h = History()
    >>> w = h.invoke("a", "write", "x", 1, 0.0)
    >>> h.ok(w, None, 0.5)
    >>> r = h.invoke("b", "read", "x", None, 1.0)
    >>> h.ok(r, 1, 1.5)
    >>> print(h[r])
    b: read 'x' -> 1 [2, 3]
    """

    def __init__(self) -> None:
        # One list a column: a history of a million operations stays small and quick to scan.
        self.processes: list[int | str] = []
        self.fs: list[str] = []
        self.keys: list[Any] = []
        self.values: list[Any] = []
        self.results: list[Any] = []
        self.states: list[str] = []
        self._call_s: list[float] = []
        self._ret_s: list[float | None] = []
        self._call_at: list[int] = []
        self._ret_at: list[int | None] = []
        self._events = 0
        self._last_s = 0.0
        self._in_time_order = True
        self._busy: dict[int | str, int] = {}
        self._order: tuple[list[int], list[int]] | None = None

    # -- recording

    def invoke(
        self,
        process: int | str,
        f: str,
        key: Any = None,
        value: Any = None,
        time_s: float | None = None,
    ) -> int:
        """Record that a process asks for something; the answer is the operation's number."""
        if not isinstance(process, int | str):
            raise SpecError("process", f"{process!r} is no name", "give an int or a str")
        if process in self._busy:
            raise SpecError(
                "process",
                f"{process!r} still waits for operation {self._busy[process]}",
                "end it with ok, fail or unknown first, or use one name for each session",
            )
        index = self._append(process, f, key, value, time_s)
        self._busy[process] = index
        return index

    def ok(self, op: int, value: Any = None, time_s: float | None = None) -> None:
        """Record that the operation happened, with its result."""
        result = freeze(value, "result")
        self._end(op, "ok", time_s)
        self.results[op] = result

    def fail(self, op: int, time_s: float | None = None) -> None:
        """Record that the operation certainly did not happen and never will."""
        self._end(op, "fail", time_s)

    def unknown(self, op: int, time_s: float | None = None) -> None:
        """Record that nobody knows: it may have happened, or may take effect at any later time."""
        self._end(op, "unknown", time_s)

    def _append(self, process: Any, f: str, key: Any, value: Any, time_s: float | None) -> int:
        if not isinstance(f, str) or not f:
            raise SpecError("f", f"{f!r} is no operation", 'give a word such as "read"')
        key, value = freeze(key, "key"), freeze(value)
        at_s = self._time(time_s)
        self.processes.append(process)
        self.fs.append(f)
        self.keys.append(key)
        self.values.append(value)
        self.results.append(None)
        self.states.append("open")
        self._call_s.append(at_s)
        self._ret_s.append(None)
        self._call_at.append(self._tick(at_s))
        self._ret_at.append(None)
        return len(self.fs) - 1

    def _end(self, op: int, state: str, time_s: float | None) -> None:
        if not isinstance(op, int) or isinstance(op, bool) or not 0 <= op < len(self.fs):
            raise SpecError(
                "op", f"{op!r} is no operation of this history", "pass what invoke gave"
            )
        if self.states[op] != "open":
            raise SpecError("op", f"operation {op} already ended: {self.states[op]}", "end it once")
        at_s = self._time(time_s)
        if at_s < self._call_s[op]:
            raise SpecError(
                "time_s",
                f"{at_s!r} is before the call of operation {op} at {self._call_s[op]!r}",
                "give the time of the return",
            )
        self.states[op] = state
        self._ret_s[op] = at_s
        self._ret_at[op] = self._tick(at_s)
        if self._busy.get(self.processes[op]) == op:
            del self._busy[self.processes[op]]

    def _time(self, time_s: float | None) -> float:
        if time_s is None:
            return self._last_s
        if isinstance(time_s, bool) or not isinstance(time_s, int | float):
            raise SpecError("time_s", f"{time_s!r} is no time", "give seconds as a number")
        if not (time_s >= 0 and math.isfinite(time_s)):
            raise SpecError("time_s", f"{time_s!r} is no time", "give finite seconds >= 0")
        return float(time_s)

    def _tick(self, at_s: float) -> int:
        if at_s < self._last_s:
            self._in_time_order = False
        self._last_s = max(self._last_s, at_s)
        self._order = None
        self._events += 1
        return self._events - 1

    # -- reading

    def order(self) -> tuple[list[int], list[int]]:
        """The places of all calls and all returns in the order of events, as two columns.

        A place is unique. Failed operations keep theirs; unknown and open ones return at `OPEN`.
        O(n), or O(n log n) when events were recorded out of time order.
        """
        if self._order is None:
            calls, rets = list(self._call_at), list(self._ret_at)
            if not self._in_time_order:
                events = [(self._call_s[i], at) for i, at in enumerate(calls)]
                events += [
                    (end_s, at)
                    for end_s, at in zip(self._ret_s, rets, strict=True)
                    if end_s is not None and at is not None
                ]
                place = {at: rank for rank, (_, at) in enumerate(sorted(events))}
                calls = [place[at] for at in calls]
                rets = [None if at is None else place[at] for at in rets]
            shut = [
                OPEN if at is None or state == "unknown" else at
                for at, state in zip(rets, self.states, strict=True)
            ]
            self._order = (calls, shut)
        return self._order

    def by_key(self) -> dict[Any, list[int]]:
        """The numbers of the operations of each key, keys in the order of first use."""
        groups: dict[Any, list[int]] = {}
        for index, key in enumerate(self.keys):
            groups.setdefault(key, []).append(index)
        return groups

    def __len__(self) -> int:
        return len(self.fs)

    def __getitem__(self, index: int) -> Operation:
        if not -len(self) <= index < len(self):
            raise IndexError(f"operation {index} of {len(self)}")
        index %= len(self)
        calls, rets = self.order()
        return Operation(
            index=index,
            process=self.processes[index],
            f=self.fs[index],
            key=self.keys[index],
            value=self.values[index],
            result=self.results[index],
            call=calls[index],
            ret=None if rets[index] == OPEN else rets[index],
            state=self.states[index],
            call_s=self._call_s[index],
            ret_s=self._ret_s[index],
        )

    def __iter__(self) -> Iterator[Operation]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return f"<History of {len(self)} operations, {len(set(self.processes))} processes>"

    # -- building from records, joining, storing

    @classmethod
    def of(cls, operations: Iterable[Operation]) -> History:
        """A history of given operations in the order of their places, such as some evidence."""
        ops = list(operations)
        events: list[tuple[float, int, int]] = []
        for i, op in enumerate(ops):
            events.append((op.call, 0, i))
            if op.state != "open":
                # The end of an unknown operation bounds nothing, so it is put beside the call.
                events.append((op.call if op.ret is None else op.ret, 1, i))
        return cls._replay(ops, sorted(events))

    @classmethod
    def merged(cls, histories: Iterable[History]) -> History:
        """One history of several recorders, ordered by time.

        Recorders on different machines cannot order events of the same instant, so there all calls
        come before all returns: the operations count as concurrent, and no false alarm can arise.
        """
        ops = [op for history in histories for op in history]
        events: list[tuple[float, int, int]] = []
        for i, op in enumerate(ops):
            events.append((op.call_s, 0, i))
            if op.ret_s is not None:
                events.append((op.ret_s, 1, i))
        return cls._replay(ops, sorted(events))

    @classmethod
    def _replay(cls, ops: list[Operation], events: list[tuple[float, int, int]]) -> History:
        history = cls()
        number: dict[int, int] = {}
        for _, is_end, i in events:
            op = ops[i]
            if not is_end:
                number[i] = history._append(op.process, op.f, op.key, op.value, op.call_s)
            else:
                end_s = op.call_s if op.ret_s is None else op.ret_s
                history._end(number[i], op.state, end_s)
                history.results[number[i]] = op.result
        # The places given are the truth here; the seconds are only carried along.
        history._in_time_order = True
        return history

    def to_jsonl(self) -> str:
        """The events as JSON lines, one call or end a line, in the order of recording."""
        events: list[tuple[float, int, dict[str, Any]]] = []
        for i in range(len(self)):
            line: dict[str, Any] = {"op": i, "type": "invoke", "process": self.processes[i]}
            line |= {"f": self.fs[i], "key": to_plain(self.keys[i])}
            line |= {"value": to_plain(self.values[i]), "time_s": self._call_s[i]}
            events.append((self._call_at[i], 0, line))
            end_at = self._ret_at[i]
            if end_at is not None:
                end: dict[str, Any] = {"op": i, "type": self.states[i]}
                if self.states[i] == "ok":
                    end["value"] = to_plain(self.results[i])
                events.append((end_at, 1, end | {"time_s": self._ret_s[i]}))
        return "".join(json.dumps(line) + "\n" for _, _, line in sorted(events, key=lambda e: e[0]))

    @classmethod
    def from_jsonl(cls, text: str) -> History:
        """The history that `to_jsonl` wrote; a bad line gives a CodecError with its number."""
        history = cls()
        number: dict[Any, int] = {}
        for n, line in enumerate(text.splitlines(), 1):
            if not line.strip():
                continue
            try:
                event = json.loads(line)
                history._read(event, number)
            except (SpecError, CodecError) as error:
                raise CodecError(f"line {n}: {error}") from None
            except KeyError as error:
                raise CodecError(f"line {n}: the field {error} is missing") from None
            except (TypeError, ValueError, RecursionError) as error:
                raise CodecError(f"line {n}: no event of a history ({error})") from None
        return history

    def _read(self, event: dict[str, Any], number: dict[Any, int]) -> None:
        kind = event["type"]
        if kind == "invoke":
            process = event["process"]
            if isinstance(process, bool) or not isinstance(process, int | str):
                raise SpecError("process", f"{process!r} is no name", "give an int or a str")
            if event["op"] in number:
                raise SpecError("op", f"{event['op']!r} is invoked twice", "number them apart")
            key, value = from_plain(event.get("key")), from_plain(event.get("value"))
            number[event["op"]] = self._append(process, event["f"], key, value, event["time_s"])
        elif kind in ("ok", "fail", "unknown"):
            if event["op"] not in number:
                raise SpecError("op", f"{event['op']!r} was never invoked", "write invoke first")
            op = number[event["op"]]
            result = from_plain(event.get("value"))
            self._end(op, kind, event["time_s"])
            self.results[op] = result if kind == "ok" else None
        else:
            raise SpecError("type", f"{kind!r} is unknown", "use invoke, ok, fail or unknown")
