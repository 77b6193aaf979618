"""Measuring a real replica: what loads do on the wall clock, and what single steps take.

`serve_all` plays jobs at their arrival times and tells how each fared. `time_step` runs the
engine's own loop on chosen batches; `orrery.models.real.profiler` makes tables of their times.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from orrery.base.errors import UsageError
from orrery.base.rand import Stream
from orrery.models.real.engine import RUNNING, RealReplica, StepRecord
from orrery.models.real.jobs import Answer, Job, Live
from orrery.models.real.paged import BLANK
from orrery.models.real.steptable import KNOTS, Shape
from orrery.models.requests import Request, Served


class ProcessorClock:
    """A clock that runs while this thread computes, and jumps over the time of its sleep.

    On a machine that is shared with other work the wall clock also tells what the others did. This
    one tells what the engine took, for one that computes on one processor: torch must use one
    thread, and the model be on the CPU. Pass `clock` to the replica and `sleep` to `serve_all`.
    """

    def __init__(self) -> None:
        self._jumped_s = 0.0

    def __call__(self) -> float:
        return time.thread_time() + self._jumped_s

    def sleep(self, seconds: float) -> None:
        """Let time pass without waiting for it."""
        self._jumped_s += max(0.0, seconds)


class Measured(msgspec.Struct, frozen=True):
    """A load as it went: times are seconds since its start."""

    served: tuple[Served, ...]
    answers: tuple[Answer, ...]
    steps: tuple[StepRecord, ...]
    token_times_s: dict[int, tuple[float, ...]]
    seconds: float

    def mean(self, name: str) -> float:
        """The mean of a figure of the requests, such as ttft_s."""
        return float(np.mean([getattr(each, name) for each in self.served]))


def serve_all(
    replica: RealReplica, jobs: Sequence[Job], *,
    sleep: Callable[[float], None] = time.sleep, on_progress: Callable[[int], None] | None = None,
) -> Measured:  # fmt: skip
    """Play jobs at their arrival times (seconds from now) until all have ended."""
    if not replica.idle:
        raise UsageError("serve_all: the replica is busy; give it one that is idle")
    jobs = sorted(jobs, key=lambda job: (job.request.arrival_s, job.request.id))
    answers: list[Answer] = []
    steps: list[StepRecord] = []
    times: dict[int, list[float]] = {}
    origin_s = 0.0
    clock = replica.clock

    def watch(job: Job) -> None:
        told, ended = job.on_token, job.on_end
        mine = times.setdefault(job.request.id, [])

        def on_token(token: int) -> None:
            mine.append(clock() - origin_s)
            if told is not None:
                told(token)

        def on_end(answer: Answer) -> None:
            answers.append(answer)
            if ended is not None:
                ended(answer)
            if on_progress is not None:
                on_progress(1)

        job.on_token, job.on_end = on_token, on_end

    for job in jobs:
        replica.refuse(job)
        watch(job)
    was, replica.on_step = replica.on_step, steps.append
    origin_s, place = clock(), 0
    try:
        while place < len(jobs) or not replica.idle:
            now_s = clock() - origin_s
            while place < len(jobs) and jobs[place].request.arrival_s <= now_s:
                replica.submit(jobs[place])
                place += 1
            if not replica.step() and replica.idle and place < len(jobs):
                sleep(max(0.0, jobs[place].request.arrival_s - (clock() - origin_s)))
    finally:
        replica.on_step = was
    took_s = clock() - origin_s
    return Measured(
        served=tuple(_shifted(a.served, origin_s) for a in answers if a.served is not None),
        answers=tuple(answers), steps=tuple(_moved(step, origin_s) for step in steps),
        token_times_s={id: tuple(each) for id, each in times.items()}, seconds=took_s,
    )  # fmt: skip


def _shifted(served: Served, origin_s: float) -> Served:
    fields = ("queued_s", "started_s", "first_s", "last_s")
    changed = {name: getattr(served, name) - origin_s for name in fields}
    return msgspec.structs.replace(served, **changed)


def _moved(step: StepRecord, origin_s: float) -> StepRecord:
    return msgspec.structs.replace(
        step, began_s=step.began_s - origin_s, ended_s=step.ended_s - origin_s
    )


# -- single steps


def plant(replica: RealReplica, id: int, past: int, new: int, *, decoding: bool) -> Live:
    """Put a job into the batch as if `past` of its tokens were computed; `new` are missing.

    The content of its blocks is whatever lies there: arithmetic takes as long with any numbers.
    """
    whole, size = past + new, replica.pool.block_tokens
    room = replica.model.spec.vocab
    tokens = [0] * past + [(id * 7919 + place * 31) % room for place in range(past, whole)]
    prompt = tokens[: whole - 1] if decoding else tokens
    seq = Live(Job(Request(id, 0.0, len(prompt), 1 << 20), prompt), 0.0)
    if decoding:
        seq.tokens = tokens
        seq.generated = seq.planned = 1
    need = max(1, -(-past // size))
    blocks = replica.pool.take_blocks(need)
    if blocks is None:
        raise UsageError(f"no blocks are left for {past} tokens more; give the profile more blocks")
    seq.set_blocks([BLANK] * need, blocks)
    seq.computed, seq.started_s = past, 0.0
    replica.running.append(seq)
    seq.owner, seq.place = replica, RUNNING
    return seq


def ragged(rng: Stream, count: int, total: int) -> list[int]:
    """`count` whole numbers of at least 2 that add up to `total`, as unlike as those of a load."""
    shares = np.cumsum([0.2 + 1.6 * rng.random() for _ in range(count)])
    cuts = np.rint(shares / shares[-1] * max(0, total - 2 * count)).astype(int)
    return [2 + int(n) for n in np.diff(cuts, prepend=0)]


def time_step(
    replica: RealReplica, shape: Shape, rng: Stream, *, repeats: int = 1, lead: int = 0
) -> list[StepRecord]:
    """Run the engine's loop on one composition; a decode batch is stepped `repeats` times.

    lead   the decodes do so many steps before, where they are long enough: in a load, too, a step
           follows upon others, and finds the host's code and data in its caches
    """
    prefill, decodes, decode_kv = shape
    records: list[StepRecord] = []
    lengths = ragged(rng, decodes, decode_kv) if decodes else []
    lead = min([lead, *(length - 2 for length in lengths)]) if lengths else 0
    was = replica.on_step
    serial = replica.steps * 1000
    try:
        for number, length in enumerate(lengths):
            plant(replica, serial + number, length - 1 - lead, 1, decoding=True)
        replica.on_step = None
        for _ in range(lead):
            replica.step()
        replica.on_step = records.append
        for number, (new, past) in enumerate(prefill):
            plant(replica, serial + 500 + number, past, new, decoding=False)
        for _ in range(repeats if not prefill else 1):
            replica.step()
    finally:
        replica.on_step = was
        for seq in list(replica.running):
            replica.cancel(seq.request.id)
        replica._read_inbox(replica.clock())
    return records


def warm_up(replica: RealReplica, *, step_tokens: int, max_sequences: int) -> None:
    """Run every size of step once, so that no load pays for loading kernels and taking memory.

    A GPU loads a kernel when it is first used, and which one is used depends on the size. The
    replica's scheduler must allow such steps.
    """
    if replica.graphs is not None:
        replica.graphs.prepare()
    rng = Stream(0, "profile", "warm")
    small = range(1, min(64, max_sequences) + 1)
    for decodes in [*small, *range(64, max_sequences + 1, 8)]:
        time_step(replica, ((), decodes, 40 * decodes), rng)
    for new in [*range(2, min(64, step_tokens) + 1), *range(64, step_tokens + 1, 8)]:
        time_step(replica, (((new, 0),), 0, 0), rng)


def shapes_to_try(
    rng: Stream, *, count: int, step_tokens: int, max_sequences: int, max_context: int
) -> list[Shape]:
    """Compositions that cover what an engine of these limits can meet: edges, then random ones."""
    context = max(2, max_context - 1)
    batches = [n for n in KNOTS if n < max_sequences]
    chunks = [n for n in KNOTS if n < step_tokens]
    shapes: list[Shape] = [
        ((), decodes, decodes * max(2, each))
        for decodes in [*batches, max_sequences]
        for each in (2, context // 16, context // 4, context // 2)
    ]
    shapes += [
        (((new, past),), 0, 0)
        for new in [*chunks, step_tokens]
        for past in (0, context // 2, context - new)
        if past >= 0 and past + new <= context
    ]
    while len(shapes) < count:
        decodes = spread(rng, max_sequences - 1)
        kv = decodes * max(2, spread(rng, context // 2))
        prefill, left = [], step_tokens - decodes
        for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
            new = min(spread(rng, step_tokens), left, context)
            if new >= 1 and decodes + len(prefill) < max_sequences:
                past = rng.choice((0, 0, 0, rng.randrange(context - new + 1)))
                prefill.append((new, past))
                left -= new
        if prefill:
            shapes.append((tuple(prefill), decodes, kv))
    return shapes


def typical(times: Sequence[float]) -> float:
    """The mean, in which no time counts for more than one and a half medians.

    Loads last as long as their steps on average, so the slower ones must count; but one step that
    met a pause of the machine must not.
    """
    return float(np.mean(np.minimum(times, 1.5 * np.median(times))))


def spread(rng: Stream, most: int) -> int:
    """A whole number from 1 to `most`, as often small as large."""
    return max(1, min(most, round(float(most) ** rng.random())))


__all__ = [
    "Measured", "ProcessorClock", "plant", "ragged", "serve_all", "shapes_to_try", "spread",
    "time_step", "typical", "warm_up",
]  # fmt: skip
