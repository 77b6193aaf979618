"""Made-up views on which the laws of policies are tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from orrery.base.rand import Stream
from orrery.models.ports import Batch, EngineView, Hit, ReplicaView
from orrery.models.requests import Request, Running

Views = Iterator[tuple[str, tuple[Any, ...], Callable[[Any], bool]]]
BLOCKS, SIZE = 400, 16


def routing_views(rng: Stream) -> Views:
    """Clusters of none, one and several replicas, as busy as chance has it."""
    for step in range(40):
        replicas = []
        for index in range(0 if step % 9 == 0 else 1 + rng.below(6)):
            view = ReplicaView(index * 2, BLOCKS, SIZE, _shared)
            view.waiting, view.running = rng.below(20), rng.below(40)
            view.prefill_tokens, view.kv_tokens = rng.below(9000), rng.below(6000)
            view.free_blocks = rng.below(BLOCKS)
            replicas.append(view)
        known = {view.index for view in replicas} or {-1}
        request = _request(rng, step)
        yield "route", (request, replicas), lambda answer, known=known: answer in known


def _shared(request: Request) -> int:
    return min(len(request.blocks), request.id % 4)


def batching_views(rng: Stream) -> Views:
    """Replicas between two steps: empty, waiting, decoding, out of blocks."""
    for step in range(40):
        waiting = [_seq(rng, 100 * step + at) for at in range(0 if step % 4 == 0 else rng.below(9))]
        running = []
        for at in range(0 if step % 5 == 0 else rng.below(9)):
            seq = _seq(rng, 100 * step + 50 + at)
            seq.computed = seq.request.prompt_tokens
            seq.generated = seq.planned = 1
            seq.blocks_held = -(-seq.computed // SIZE)
            running.append(seq)
        free = rng.below(60)
        view = EngineView(float(step), waiting, running, free, SIZE, _no_hit, _all_of_them)
        yield "next_batch", (view,), _legal(view)


def _request(rng: Stream, number: int) -> Request:
    shared = tuple(range(rng.below(6)))
    return Request(
        number, 0.1 * number, 100 + rng.below(400), 1 + rng.below(300), blocks=shared,
        session=rng.below(5) - 1, kind=f"k{rng.below(3)}", priority=rng.below(3),
    )  # fmt: skip


def _seq(rng: Stream, number: int) -> Running:
    return Running(_request(rng, number), 0.05 * number)


def _no_hit(seq: Running) -> Hit:
    return Hit(0, 0)


def _all_of_them(seq: Running) -> int:
    return seq.blocks_held


def _legal(view: EngineView) -> Callable[[Batch], bool]:
    """Known requests, each once, no more tokens than it lacks; only running ones preempted."""
    lacks = {seq.request.id: seq.missing for seq in (*view.waiting, *view.running)}
    running = {seq.request.id for seq in view.running}

    def legal(answer: Batch) -> bool:
        named = [seq.request.id for seq, _ in answer.work]
        lost = [seq.request.id for seq in answer.preempt]
        return (
            len(set(named + lost)) == len(named + lost)
            and set(lost) <= running
            and all(1 <= tokens <= lacks.get(seq.request.id, 0) for seq, tokens in answer.work)
        )

    return legal


__all__ = ["batching_views", "routing_views"]
