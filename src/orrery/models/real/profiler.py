"""Step times of a real replica: single steps and rehearsals are measured, a `StepTable` is fitted.

With the table a modelled replica foretells loads. Rounds of measuring can be taken at several
times, between loads too: a machine that is shared is not always as fast.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from orrery.base.errors import UsageError
from orrery.base.rand import Stream
from orrery.models.ports import Scheduler
from orrery.models.real.engine import RealReplica, StepRecord
from orrery.models.real.jobs import Job
from orrery.models.real.measure import shapes_to_try, spread, time_step, typical, warm_up
from orrery.models.real.schedule import Continuous
from orrery.models.real.steptable import Shape, StepTable, fit
from orrery.models.requests import Request


def rehearse(
    replica: RealReplica, rng: Stream, *, max_sequences: int, max_context: int,
    most_answer: int = 128, rounds: int = 3,
) -> list[StepRecord]:  # fmt: skip
    """Serve requests of random lengths without a pause, so many at once, then twice as many.

    Single steps find a machine that has just rested. Under way it may be slower: clocks fall under
    power, and telling clients, letting in and letting go take time between computations.
    """
    records: list[StepRecord] = []
    vocab, size = replica.model.spec.vocab, replica.pool.block_tokens
    longest = min(max_context, replica.pool.blocks * size // max_sequences) - most_answer - 1
    if longest < 1:
        raise UsageError(f"rehearse: a context of {max_context} is too short; give more blocks")
    was, replica.on_step = replica.on_step, records.append
    try:
        together = 1
        while True:
            left = [0]
            left[0] = max(6, rounds * together)
            for _ in range(together):
                _send(replica, rng, left, longest, most_answer, vocab)
            replica.run()
            if together == max_sequences:
                return records
            together = min(2 * together, max_sequences)
    finally:
        replica.on_step = was


def _send(
    replica: RealReplica, rng: Stream, left: list[int], longest: int, most_answer: int, vocab: int
) -> None:
    """One request of a rehearsal, which sends the next when it ends."""
    if not left[0]:
        return
    left[0] -= 1
    prompt, answer = spread(rng, longest), max(2, spread(rng, most_answer))
    first = rng.randrange(vocab)
    tokens = [(first + 31 * n) % vocab for n in range(prompt)]
    clock, times = replica.clock, []
    job = Job(
        Request(1 << 40 | replica.steps << 10 | left[0], clock(), prompt, answer), tokens,
        on_token=lambda token: times.append(clock()),
        on_end=lambda ended: _send(replica, rng, left, longest, most_answer, vocab),
    )  # fmt: skip
    replica.submit(job)


def _usual(records: Sequence[StepRecord]) -> list[StepRecord]:
    """Those that took no more than twice what steps of about as many tokens take."""
    alike: dict[int, list[StepRecord]] = {}
    for record in records:
        tokens = record.decodes + sum(new for new, _ in record.prefill)
        alike.setdefault(tokens.bit_length() * (-1 if record.prefill else 1), []).append(record)
    kept = []
    for group in alike.values():
        most = 2.0 * float(np.median([record.seconds for record in group]))
        kept += [record for record in group if record.seconds <= most]
    return kept


class Profiler:
    """Measures an idle replica without caching, round by round.

    count       how many compositions of steps are tried
    rehearsed   whether `rehearse` belongs to it; None: on a GPU
    """

    def __init__(
        self, replica: RealReplica, *, step_tokens: int, max_sequences: int, max_context: int,
        count: int = 160, seed: int = 0, rehearsed: bool | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> None:  # fmt: skip
        if not replica.idle or replica.pool.caching:
            raise UsageError("profile: the replica is busy or caches; give an idle, plain one")
        self.replica, self._on_progress = replica, on_progress
        model, pool = replica.model, replica.pool
        self._limits = {"step_tokens": step_tokens, "max_sequences": max_sequences}
        self._context = min(max_context, model.max_context, pool.blocks * pool.block_tokens // 2)
        self._rng = Stream(seed, "profile", "shapes")
        wanted = shapes_to_try(
            self._rng, count=count, max_context=self._context, **self._limits
        )  # fmt: skip
        room = (pool.blocks - max_sequences - 1) * pool.block_tokens
        self.shapes = [s for s in wanted if s[2] + sum(new + past for new, past in s[0]) <= room]
        self._on_cpu = model.device == "cpu"
        self._rehearsed = not self._on_cpu if rehearsed is None else rehearsed
        self._rounds: list[list[StepRecord]] = []
        self._under_way: list[StepRecord] = []
        if self._on_cpu:
            for shape in self.shapes[:3]:
                time_step(replica, shape, self._rng)  # the first steps of a process are slower
        else:
            warm_up(replica, **self._limits)

    def measure(self, rounds: int = 1) -> None:
        """Try every composition so many times, in rounds of another order."""
        for _ in range(rounds):
            self._rounds.append(self._round())
        if self._rehearsed:
            found = rehearse(
                self.replica, self._rng, max_sequences=self._limits["max_sequences"],
                max_context=self._context, most_answer=min(128, max(1, self._context // 4)),
                rounds=rounds,
            )  # fmt: skip
            # A step that met a pause of the machine tells nothing about its kind.
            self._under_way += _usual(found)

    def _round(self) -> list[StepRecord]:
        order = list(range(len(self.shapes)))
        self._rng.shuffle(order)
        found: dict[int, StepRecord] = {}
        lead = 0 if self._on_cpu else 2  # the host's share of a step is large beside a GPU's
        for place in order:
            shape = self.shapes[place]
            (record,) = time_step(self.replica, shape, self._rng, lead=lead)
            got = (record.prefill, record.decodes, record.decode_kv)
            if got != (tuple(shape[0]), *shape[1:]):
                raise UsageError(
                    f"profile: the scheduler made {got} of {shape}; give one that computes all in "
                    f"one step"
                )
            found[place] = record
            if self._on_progress is not None:
                self._on_progress(1)
        return [found[place] for place in range(len(self.shapes))]

    @property
    def records(self) -> list[StepRecord]:
        """All steps that count."""
        return [record for each in self._rounds for record in each] + self._under_way

    def table(self, last: int | None = None, *, watts: float = 0.0) -> StepTable:
        """A table from all rounds, or from the last ones; of each composition counts the usual."""
        rounds = self._rounds if last is None else self._rounds[-last:]
        if not rounds:
            raise UsageError("profile: no round was measured; call measure() first")
        usual = [typical([record.seconds for record in each])
                 for each in zip(*rounds, strict=True)]  # fmt: skip
        shapes: list[Shape] = [*self.shapes]
        shapes += [(r.prefill, r.decodes, r.decode_kv) for r in self._under_way]
        usual += [r.seconds for r in self._under_way]
        model, graphs = self.replica.model, self.replica.graphs
        about = f"{model.spec.name}, {model.dtype_name} on {model.device}, {len(usual)} steps"
        pads = None if graphs is None else graphs.pads
        return fit(model.spec, shapes, usual, watts=watts, about=about, pads=pads)


def profile(
    model: Any, *, blocks: int, block_tokens: int = 16, step_tokens: int = 256,
    max_sequences: int = 32, max_context: int = 1024, count: int = 160, repeats: int = 3,
    seed: int = 0, watts: float = 0.0, scheduler: Scheduler | None = None,
    rehearsed: bool | None = None, clock: Callable[[], float] = time.perf_counter,
    on_progress: Callable[[int], None] | None = None,
) -> tuple[StepTable, list[StepRecord]]:  # fmt: skip
    """(the table of step times of a model on this machine, the steps that were measured).

    Every composition is measured `repeats` times, in rounds of another order, so that what the
    machine does meanwhile hits all of them alike.
    """
    limits = {"step_tokens": step_tokens, "max_sequences": max_sequences}
    replica = RealReplica(
        model, scheduler or Continuous(**limits), blocks=blocks, block_tokens=block_tokens,
        caching=False, clock=clock,
    )  # fmt: skip
    profiler = Profiler(
        replica, max_context=max_context, count=count, seed=seed, rehearsed=rehearsed,
        on_progress=on_progress, **limits,
    )  # fmt: skip
    profiler.measure(repeats)
    return profiler.table(watts=watts), profiler.records


__all__ = ["Profiler", "profile", "rehearse"]
