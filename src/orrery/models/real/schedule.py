"""The scheduler that a real replica has when none is given: continuous batching, first come first.

Like vLLM's default: running requests go first, prompts are cut to a budget of tokens, a request
that finds no block takes those of the one that came last. Any other `Scheduler` can take its place.
"""

from __future__ import annotations

from orrery.models.ports import Batch, EngineView, Scheduler
from orrery.models.requests import Running
from orrery.parts import Count


class Continuous(Scheduler):
    """First come first served, decodes and prompt chunks in one batch.

    step_tokens     the most tokens of a step
    max_sequences   the most requests that run at once
    """

    step_tokens: Count = 256
    max_sequences: Count = 32

    def next_batch(self, view: EngineView) -> Batch:
        """The running ones, then as many waiting ones as tokens, places and blocks allow."""
        work: list[tuple[Running, int]] = []
        preempt: list[Running] = []
        budget, free = self.step_tokens, view.free_blocks
        running = list(view.running)
        place = 0
        while place < len(running) and budget:
            seq = running[place]
            place += 1
            tokens = min(seq.missing, budget)
            if not tokens:
                continue
            need = view.blocks_for(seq.computed + tokens) - seq.blocks_held
            while need > free:
                victim = running.pop()
                preempt.append(victim)
                free += view.would_free(victim)
                if victim is seq:
                    break
            else:
                work.append((seq, tokens))
                budget -= tokens
                free -= need
        if preempt:
            return Batch(work, preempt)
        places = self.max_sequences - len(running)
        for seq in view.waiting:
            if places <= 0 or not budget:
                break
            hit = view.hit(seq)
            start = hit.blocks * view.block_tokens
            tokens = min(seq.length - start, budget)
            need = view.blocks_for(start + tokens) - hit.blocks + hit.idle
            if need > free:
                break
            work.append((seq, tokens))
            budget, free, places = budget - tokens, free - need, places - 1
        return Batch(work, preempt)

    def steady(self, view: EngineView) -> bool:
        """Decodes go on alike while nobody waits, or nobody who waits could come in."""
        return not view.waiting or len(view.running) >= self.max_sequences
