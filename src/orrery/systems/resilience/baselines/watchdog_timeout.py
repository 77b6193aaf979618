"""A watchdog at each rank: after one long timeout, all recorders are dumped and compared."""

from __future__ import annotations

from collections import Counter

from orrery.parts import Positive
from orrery.systems.resilience.problems.flight import Dump, Op, Recorder
from orrery.systems.resilience.problems.watcher import (
    Ailment,
    Beat,
    Report,
    Sign,
    Watcher,
)


class WatchdogTimeout(Watcher):
    """Waits until an operation has lasted `timeout_s`, then names who is not in it.

    As PyTorch does: `ProcessGroupNCCL` gives an operation ten minutes, then each rank writes its
    flight recorder, and `fr_trace` compares them by communicator and sequence number. It reports
    the ranks that are missing in the operation that has waited longest, or those that called it
    with another kind or size. What they wait for in their turn is not followed, and slow operations
    that do end are no concern of it.

    Knobs: `timeout_s` of an operation; `heartbeat_s`, how often the watchdog looks.

    Differs from the paper: there is none; after PyTorch 2.5's source and documentation.

    >>> WatchdogTimeout().timeout_s
    600.0
    """

    heartbeat_s: Positive = 10.0
    timeout_s: Positive = 600.0

    def beat_of(self, recorder: Recorder) -> Beat:
        if not recorder.busy:
            return Beat(1, [])
        op = recorder.busy[0]
        age_s = recorder.clock() - op.enqueued_s
        if age_s < self.timeout_s:
            return Beat(1, [])
        return Beat(1, [Sign("hang", recorder.rank, age_s, op.comm)])

    async def watch(self) -> None:
        while True:
            await self.sleep(self.heartbeat_s)
            if self.signs:
                dumps = await self.dumps_of(self.ranks, 16)
                self.say(compared(dumps))
                self.signs.clear()


def compared(dumps: dict[int, Dump | None]) -> Report:
    """What the recorders of all ranks show about the operation that has waited longest."""
    alive = {rank: dump for rank, dump in dumps.items() if dump is not None}
    waiting = [
        (dump.now_s - op.enqueued_s, -rank, op)
        for rank, dump in alive.items() for op in dump.open
    ]  # fmt: skip
    if not waiting:
        return Report("insufficient_data", (), "no rank is in an operation")
    _, rank, op = max(waiting, key=lambda each: each[:2])
    members = alive[-rank].comms[op.comm]
    calls = {each: _call(alive.get(each), op) for each in members}
    missing = tuple(each for each, call in calls.items() if call is None)
    if missing:
        return Report("unknown", missing, f"{op.comm}#{op.seq}: not enqueued there")
    said = {each: (call.kind, call.nbytes) for each, call in calls.items() if call is not None}
    usual = Counter(said.values()).most_common(1)[0][0]
    odd = tuple(each for each, sign in said.items() if sign != usual)
    if odd:
        kind: Ailment = "op_mismatch" if said[odd[0]][0] != usual[0] else "size_mismatch"
        return Report(kind, odd, f"{op.comm}#{op.seq}: another call than the others'")
    return Report("insufficient_data", (), f"{op.comm}#{op.seq}: all ranks are in it")


def _call(dump: Dump | None, op: Op) -> Op | None:
    if dump is None:
        return None
    return next(
        (each for each in (*dump.open, *dump.ring) if (each.comm, each.seq) == (op.comm, op.seq)),
        None,
    )
