"""The scheduler of vLLM's engine, version 1."""

from __future__ import annotations

from collections.abc import Sequence

from orrery.models.ports import Batch, EngineView, Scheduler
from orrery.models.requests import Running
from orrery.parts import Count, Whole


class VllmV1(Scheduler):
    """Serves who runs first, then lets in who waits, within a budget of tokens for each step.

    vLLM's own scheduler (Kwon et al., SOSP 2023, and the "v1" engine since 2025). There is no phase
    of prompts and none of answers: every request gets the tokens that it lacks, so prompts are cut
    into chunks that fit the budget beside the decodes. A running request for which no block is free
    takes those of the newest one, which begins again later. A step that preempted lets nobody in.

    max_seqs    requests in one batch
    max_tokens  tokens in one step
    long_prompt tokens of one prompt in one step at most; 0: as many as fit
    whole       let a prompt in only when blocks for all of it are free, not just for its chunk

    Differs from vLLM in nothing that it decides for text models; beam search, adapters and
    speculative tokens are left out.
    """

    max_seqs: Count = 256
    max_tokens: Count = 2048
    long_prompt: Whole = 0
    whole: bool = True

    def next_batch(self, view: EngineView) -> Batch:
        running = view.running
        # `seq.ready`, written out: this is where a simulation spends its time.
        decodes = [seq for seq in running if seq.decoding and seq.computed < seq.room]
        work: list[tuple[Running, int]] = []
        budget, free, size = self.max_tokens - len(decodes), view.free_blocks, view.block_tokens
        if len(decodes) < len(running):
            for seq in running:
                if seq.decoding and seq.computed < seq.room:
                    continue
                tokens = seq.missing
                if not tokens:
                    continue  # its last token is being made
                if self.long_prompt:
                    tokens = min(tokens, self.long_prompt)
                need = -(-(seq.computed + tokens) // size) - seq.blocks_held
                if need > free:
                    return self._in_order(view)
                free -= max(need, 0)
                budget -= tokens
                work.append((seq, tokens))
        if budget < 0:
            return self._in_order(view)
        before = len(work)
        self._let_in(view, work, len(running), budget, free)
        for seq, _ in work[before:]:
            self.let_in(seq)
        return Batch(work, [], decodes)

    def _in_order(self, view: EngineView) -> Batch:
        """The same, one by one, where tokens or blocks do not last for all who run."""
        budget, free, size = self.max_tokens, view.free_blocks, view.block_tokens
        work: list[tuple[Running, int]] = []
        running, preempt = list(view.running), []
        at = 0
        while at < len(running) and budget:
            seq = running[at]
            tokens = min(seq.missing, budget)
            if not tokens:
                at += 1  # its last token is being made
                continue
            if self.long_prompt:
                tokens = min(tokens, self.long_prompt)
            need = -(-(seq.computed + tokens) // size) - seq.blocks_held
            while need > free and len(running) > at:
                victim = running.pop()
                preempt.append(victim)
                free += view.would_free(victim)
            if len(running) == at:
                break  # it was the newest itself
            free -= max(need, 0)
            budget -= tokens
            work.append((seq, tokens))
            at += 1
        if not preempt:
            before = len(work)
            self._let_in(view, work, len(running), budget, free)
            for seq, _ in work[before:]:
                self.let_in(seq)
        return Batch(work, preempt)

    def _let_in(
        self, view: EngineView, work: list[tuple[Running, int]], running: int, budget: int,
        free: int,
    ) -> None:  # fmt: skip
        """The head of the queue, as long as there is room; nobody overtakes it."""
        for seq in self.queue(view):
            if not budget or running >= self.max_seqs:
                return
            hit = view.hit(seq)
            start = hit.blocks * view.block_tokens
            tokens = min(seq.length - start, budget)
            if self.long_prompt:
                tokens = min(tokens, self.long_prompt)
            until = seq.length if self.whole else start + tokens
            if view.blocks_for(until) - hit.blocks + hit.idle > free:
                return
            free -= view.blocks_for(start + tokens) - hit.blocks + hit.idle
            budget -= tokens
            running += 1
            work.append((seq, tokens))

    def let_in(self, seq: Running) -> None:
        """Told of everyone who is let in; a subclass may keep books."""

    def queue(self, view: EngineView) -> Sequence[Running]:
        """Who waits, in the order of being let in; a subclass may give another one."""
        return view.waiting

    def steady(self, view: EngineView) -> bool:
        """While all decode, blocks only become fewer: who could not come in cannot later."""
        if not view.waiting or len(view.running) >= self.max_seqs:
            return True
        work: list[tuple[Running, int]] = []
        budget = self.max_tokens - len(view.running)
        self._let_in(view, work, len(view.running), budget, view.free_blocks)
        return not work


__all__ = ["VllmV1"]
