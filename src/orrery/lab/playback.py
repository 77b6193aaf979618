"""Making a run again up to a moment: what the playground and its pictures stand on.

Coroutines cannot be copied, so a moment of a run is reached by executing the run from its beginning
until then. `play` does that with every sending noted, with a budget of events, and looks into the
nodes before they are closed. The budget is counted in events and the patience in seconds of the
wall clock; neither touches the result, they only end what would take too long, by name.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from orrery.base.errors import OrreryError, UsageError
from orrery.base.units import FOREVER_NS, to_ns
from orrery.base.violation import Violation
from orrery.engines.virtual.engine import Engine
from orrery.lab.replay import _tap, _undelivered
from orrery.lab.run import Run, _roles, check_call, judge
from orrery.lab.spans import Span
from orrery.parts.problem import Outcome
from orrery.parts.swarm import Swarm

MOST_EVENTS = 2_000_000
MOST_NODES = 100_000
PATIENCE_S = 60.0
SLICE_EVENTS = 20_000  # so often the budget and the clock are looked at
MOST_LOG = 2_000
MOST_FIELDS = 40
MOST_WORDS = 96
INSPECTED = 512  # in a larger world nobody reads the fields of every node


class TooLong(UsageError):
    """A run has more events, or takes longer, than the playground allows."""


class NotPlayable(UsageError):
    """What cannot be played with: a swarm, a real engine, a world that is too large."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much one execution may take."""

    events: int = MOST_EVENTS
    nodes: int = MOST_NODES
    seconds: float = PATIENCE_S


class Played(msgspec.Struct, kw_only=True):
    """An execution up to a moment: the run so far, and what the nodes were like then."""

    run: Run
    lost: list[Span]
    fields: dict[int, dict[str, str]]
    state: list[int]  # by node: 0 down, 1 up, 2 stands still
    log: list[tuple[float, int, str]]
    failure: str = ""

    @property
    def rows(self) -> int:
        """How much memory it takes, in rows."""
        return len(self.run.spans) + len(self.lost) + len(self.run.records) + len(self.state)


class _Stopped(Engine):
    """An engine that works in slices under limits, and lets one look in before it closes."""

    limits: Limits = Limits()
    cancelled: Callable[[], bool] | None = None
    failed: str = ""
    fields: Mapping[int, dict[str, str]] = {}
    states: tuple[int, ...] = ()

    def run(self, until_s: float | None = None) -> Outcome:
        self.faults.install()
        for index in range(len(self.cast)):
            self.start_node(index)
        if self.problem is not None:
            self._start_drive(self.problem)
        ended = self._in_slices(FOREVER_NS if until_s is None else to_ns(until_s))
        if self.kernel.failure is not None:
            self._note_failure(*self.kernel.failure)
            ended = "failed"
        elif ended == "stopped" and self.drive_ended:
            ended = "driven"
        self._find_stuck(ended)
        self._look_in()
        self.close()
        return self._outcome(ended)

    def _in_slices(self, until_ns: int) -> str:
        begun_s = time.monotonic()
        ended = "budget"
        while ended == "budget":
            ended = self.kernel.run(until_ns, SLICE_EVENTS)
            if ended != "budget":
                break
            at = f"at {self.kernel.now / 1e9:g} s"
            if self.kernel.events >= self.limits.events:
                self.close()
                raise TooLong(f"the run has more than {self.limits.events:,} events ({at}); "
                              "take a smaller world or workload, or an earlier moment")  # fmt: skip
            if time.monotonic() - begun_s > self.limits.seconds:
                self.close()
                raise TooLong(f"the run takes more than {self.limits.seconds:g} s ({at}); take a "
                              "smaller world or workload, or an earlier moment")  # fmt: skip
            if self.cancelled is not None and self.cancelled():
                self.close()
                raise TooLong(f"the run was given up {at}, as something newer was asked for")
        return ended

    def _note_failure(self, node: int, error: BaseException) -> None:
        """An error in a part ends the run; here it is a finding like any other."""
        try:
            self._raise(node, error)
        except OrreryError as failure:
            self.failed = str(failure)
        self.violations.append(Violation(
            kind="part_failed", message=self.failed, node=node if node < self.size else None,
            time_s=self.kernel.now / 1e9))  # fmt: skip

    def _look_in(self) -> None:
        kernel = self.kernel
        self.states = tuple(int(kernel.state[i]) for i in range(self.size))
        if self.size <= INSPECTED:
            self.fields = {i: fields_of(kernel.hosts[i]) for i in range(self.size)}


def play(
    part: Any,
    *,
    problem: Any,
    world: Any,
    seed: int,
    until_s: float | None = None,
    limits: Limits | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Played:
    """Execute a run up to `until_s` (or to its end) with all that happens on record."""
    check_playable(part, world, limits or Limits())
    check_call(part, problem, "virtual", seed, None, ())
    log: list[tuple[float, int, str]] = []

    def keep(at_s: float, node: int, words: str) -> None:
        log.append((at_s, node, words[:MOST_WORDS]))
        if len(log) > 2 * MOST_LOG:
            del log[:MOST_LOG]

    engine = _Stopped(
        _roles(part, problem, world), world=world, problem=problem, part=part, seed=seed,
        trace=True, on_log=keep,
    )  # fmt: skip
    engine.limits, engine.cancelled = limits or Limits(), cancelled
    (sends, bent), work = _tap(engine), _note_work(engine)
    try:
        outcome = engine.run(until_s)
    except BaseException:
        engine.close()
        raise
    made = _judged(outcome, problem)
    lost = _surely_lost(_undelivered(sends, made), made)
    made.extra["lost_spans"] = lost
    made.extra["bent"] = bent
    made.extra["work_spans"] = sorted(work, key=lambda span: (span.start_ns, span.node))
    return Played(
        run=made, lost=lost, fields=dict(engine.fields), state=list(engine.states),
        log=log[-MOST_LOG:], failure=engine.failed,
    )  # fmt: skip


def _surely_lost(lost: list[Span], made: Run) -> list[Span]:
    """Without what may still have been on its way when the run ended.

    A message counts as lost if it was sent so early that it should have arrived: by the longest
    latency seen, but no more than three usual ones, as one that waited for a paused node says
    nothing of the others.
    """
    took = sorted(row[1] - row[0] for row in made.spans if row[1] > row[0])
    if not took:
        return lost
    reach_ns = min(took[-1], 3 * took[len(took) // 2])
    last_ns = round(made.seconds * 1e9) - reach_ns
    return [span for span in lost if span.start_ns < last_ns]


def _note_work(engine: Any) -> list[Span]:
    """Note when computations and bulk transfers began and ended, also those that were cut off.

    What is passed on is not looked at beyond what is noted, so that engines may say more.
    """
    found: list[Span] = []
    kernel, devices, flows = engine.kernel, engine.devices, engine.flows
    compute, send = devices.work, flows.send

    async def noted_compute(index: int, work: Any, device: str, *more: Any) -> None:
        start = kernel.now
        try:
            await compute(index, work, device, *more)
        finally:
            name = f"compute on {device}" if device else "compute"
            told = {"flops": work.flops, "bytes": work.bytes}
            found.append(Span("compute", name, start, kernel.now, index, values=told))

    async def noted_send(src: int, dst: int, array: Any, tag: str, *more: Any) -> None:
        start = kernel.now
        try:
            await send(src, dst, array, tag, *more)
        finally:
            size_B = int(array.nbytes)
            found.append(Span("transfer", tag or "transfer", start, kernel.now, src, dst, size_B))

    devices.work, flows.send = noted_compute, noted_send
    return found


def check_playable(part: Any, world: Any, limits: Limits) -> None:
    """Refuse what has no messages one by one, or too many nodes."""
    if isinstance(part, Swarm):
        what = f"{type(part).__name__} is a swarm: it moves arrays, not messages one by one"
        raise NotPlayable(f"{what}; take a system of nodes")
    if world.size > limits.nodes:
        fix = f"take at most {limits.nodes:,}"
        raise NotPlayable(f"the world has {world.size:,} nodes, too many to play with; {fix}")


def _judged(outcome: Outcome, problem: Any) -> Run:
    """Checked and measured; a checker that needs the whole run has nothing to say of a part."""
    try:
        return judge(outcome, problem)
    except Exception as failure:
        if outcome.ended not in ("until", "failed"):
            raise
        made = judge(outcome, None)
        made.problem, made.metrics = problem, {}
        made.extra["unjudged"] = f"{type(failure).__name__}: {failure}"[:200]
        return made


# -- what a node holds


def fields_of(host: Any) -> dict[str, str]:
    """What a node keeps on itself, each field in a few words, in the order in which it was made."""
    found: dict[str, str] = {}
    for name, value in list(getattr(host, "__dict__", {}).items()):
        if name.startswith("_") or len(found) >= MOST_FIELDS:
            continue
        words = in_words(value)
        if words:
            found[name] = words
    return found


def in_words(value: Any, depth: int = 2) -> str:
    """A value in a few words, whatever its size; nothing of a part's own code is called."""
    if isinstance(value, enum.Enum):
        return str(value.value)[:MOST_WORDS]
    if value is None or isinstance(value, bool | int):
        return str(value)[:MOST_WORDS]
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        return value if len(value) <= MOST_WORDS else value[: MOST_WORDS - 1] + "…"
    if isinstance(value, bytes | bytearray):
        return f"{len(value)} bytes"
    if isinstance(value, dict):
        items = (f"{in_words(k, 0)}: {in_words(v, depth - 1)}" for k, v in value.items())
        return _several("{", items, "}", len(value), depth)
    if isinstance(value, set | frozenset):
        return _several("{", iter(sorted(in_words(each, 0) for each in value)), "}", len(value),
                        depth)  # fmt: skip
    if isinstance(value, list | tuple):
        return _several("[", (in_words(each, depth - 1) for each in value), "]", len(value), depth)
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"array {'x'.join(str(n) for n in value.shape)} {value.dtype}"
    if isinstance(value, msgspec.Struct) and depth > 0:
        names = value.__struct_fields__
        parts = (f"{name} {in_words(getattr(value, name), 0)}" for name in names)
        return _several(f"{type(value).__name__}(", parts, ")", len(names), depth)
    return ""


def _several(opening: str, items: Any, closing: str, count: int, depth: int) -> str:
    if count == 0:
        return "empty"
    if depth <= 0 or count > 400:
        return f"{count} of them" if count > 1 else "1 of them"
    text = opening
    for i, item in enumerate(items):
        words = item or "…"
        if len(text) + len(words) > MOST_WORDS - 12:
            return f"{text}… {count} in all{closing}"
        text += (", " if i else "") + words
    return text + closing
