"""Pipeline schedules: in which order a stage runs the passes of its micro-batches.

A step is ("F" or "B", micro-batch, chunk). Each function gives the steps of one stage; what passes
wait for across stages is in `transformer`. A schedule of your own is another such function.
"""

from __future__ import annotations

from typing import NamedTuple

from orrery.models.taskgraph.graph import GraphError


class Step(NamedTuple):
    """One pass of one micro-batch through one chunk of layers."""

    direction: str  # "F" or "B"
    micro_batch: int
    chunk: int = 0


def gpipe(stage: int, stages: int, micro_batches: int, chunks: int = 1) -> list[Step]:
    """All forward passes, then all backward ones (Huang et al., "GPipe", NeurIPS 2019).

    >>> "".join(step.direction for step in gpipe(0, 2, 3))
    'FFFBBB'
    """
    _check(stage, stages, micro_batches, chunks)
    forward = [Step("F", m, c) for c in range(chunks) for m in range(micro_batches)]
    backward = [
        Step("B", m, c) for c in reversed(range(chunks)) for m in reversed(range(micro_batches))
    ]
    return forward + backward


def one_f_one_b(stage: int, stages: int, micro_batches: int, chunks: int = 1) -> list[Step]:
    """One forward, one backward in turn (Narayanan et al., "PipeDream", SOSP 2019, flushed).

    Stage s begins with stages - 1 - s forward passes, so no stage ever holds the activations of
    more than `stages` micro-batches.

    >>> "".join(step.direction for step in one_f_one_b(0, 2, 3))
    'FFBFBB'
    """
    _check(stage, stages, micro_batches, chunks)
    if chunks != 1:
        return interleaved(stage, stages, micro_batches, chunks)
    warm = min(stages - 1 - stage, micro_batches)
    steps = [Step("F", m) for m in range(warm)]
    for m in range(micro_batches - warm):
        steps += [Step("F", warm + m), Step("B", m)]
    return steps + [Step("B", m) for m in range(micro_batches - warm, micro_batches)]


def interleaved(stage: int, stages: int, micro_batches: int, chunks: int) -> list[Step]:
    """1F1B over several chunks of layers a stage (Narayanan et al., "Megatron-LM", SC 2021).

    Micro-batches go in rounds of `stages`; within a round chunk after chunk. The bubble shrinks by
    the number of chunks, for as many more messages. Micro-batches must divide into rounds.

    >>> [(s.direction, s.micro_batch, s.chunk) for s in interleaved(1, 2, 2, 2)[:3]]
    [('F', 0, 0), ('F', 1, 0), ('F', 0, 1)]
    """
    _check(stage, stages, micro_batches, chunks)
    if chunks == 1:
        return one_f_one_b(stage, stages, micro_batches)
    if micro_batches % stages:
        raise GraphError("micro_batches", f"{micro_batches} do not divide into rounds of {stages}",
                         "give a multiple of the stages, or one chunk")  # fmt: skip
    total = micro_batches * chunks

    def at(k: int, backward: bool) -> Step:
        turn, place = divmod(k, stages * chunks)
        chunk, offset = divmod(place, stages)
        if backward:
            return Step("B", turn * stages + offset, chunks - 1 - chunk)
        return Step("F", turn * stages + offset, chunk)

    warm = min(2 * (stages - 1 - stage) + (chunks - 1) * stages, total)
    steps = [at(k, False) for k in range(warm)]
    for k in range(total - warm):
        steps += [at(warm + k, False), at(k, True)]
    return steps + [at(k, True) for k in range(total - warm, total)]


SCHEDULES = {"gpipe": gpipe, "1f1b": one_f_one_b, "interleaved": interleaved}


def _check(stage: int, stages: int, micro_batches: int, chunks: int) -> None:
    for name, value in (("stages", stages), ("micro_batches", micro_batches), ("chunks", chunks)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise GraphError(name, f"{value!r:.40} is refused", "give a whole number >= 1")
    if not 0 <= stage < stages:
        raise GraphError("stage", f"{stage!r:.40} is refused", f"give 0 to {stages - 1}")
