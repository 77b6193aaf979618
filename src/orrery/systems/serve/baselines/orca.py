"""Iterations over whole prompts and single tokens."""

from __future__ import annotations

from orrery.models.ports import Batch, EngineView, Scheduler
from orrery.models.requests import Running
from orrery.parts import Count


class Orca(Scheduler):
    """Batches iteration by iteration, with whole prompts, and room for the longest answers.

    Orca (Yu et al., OSDI 2022): requests join and leave between iterations. A prompt is computed
    in one step, which everyone else in the batch waits for. A request is let in only when blocks
    for its prompt and its longest answer are free, so nobody is ever preempted.

    Differs from Orca in that the cache has blocks: only the count of reserved ones is Orca's.
    """

    max_seqs: Count = 256

    def next_batch(self, view: EngineView) -> Batch:
        work = [(seq, seq.missing) for seq in view.running if seq.missing]
        free = view.free_blocks - sum(
            self._most(view, seq) - seq.blocks_held for seq in view.running
        )
        for seq in view.waiting:
            need = self._most(view, seq)
            if need > free or len(work) >= self.max_seqs:
                break
            free -= need
            work.append((seq, seq.missing - view.hit(seq).blocks * view.block_tokens))
        return Batch(work)

    @staticmethod
    def _most(view: EngineView, seq: Running) -> int:
        return view.blocks_for(seq.request.prompt_tokens + seq.request.max_tokens)

    def steady(self, view: EngineView) -> bool:
        return not view.waiting


__all__ = ["Orca"]
