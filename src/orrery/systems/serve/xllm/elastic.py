"""Unified elastic scheduling on an instance: online jobs first, offline jobs in what they leave."""

from __future__ import annotations

from collections.abc import Sequence

from orrery.models.ports import Batch, EngineView
from orrery.models.requests import Running
from orrery.parts import Count, Fraction
from orrery.systems.serve.problems.llm_elastic.paced import Paced, decoding
from orrery.systems.serve.problems.llm_elastic.ports import OFFLINE


class OnlineFirst(Paced):
    """Computes online jobs as if they were alone, and offline jobs as far as they do not notice.

    Online jobs are let in before offline ones; where blocks are short they take those of the
    offline jobs that came last, which begin again later (evicted). While online jobs decode,
    offline jobs get prompt tokens and seats only as long as there are seats and the step stays
    within `gap` of the time that an online token may take; beyond that offline decodes stand still
    for a step and keep their blocks (paused).
    A step with an online prompt computes no offline prompt. Without online jobs, offline jobs have
    the whole engine.

    gap         share of the target for a token up to which offline work may stretch a step
    keep_share  share of the blocks that offline jobs may not take, so that online jobs find room
    """

    gap: Fraction = 0.7
    keep_share: Fraction = 0.15
    total_blocks: Count = 1

    def next_batch(self, view: EngineView) -> Batch:
        online = [seq for seq in view.running if seq.request.priority != OFFLINE]
        offline = [seq for seq in view.running if seq.request.priority == OFFLINE]
        first = [seq for seq in view.waiting if seq.request.priority != OFFLINE]
        if not offline and len(first) == len(view.waiting):
            return super().next_batch(view)
        gone = self._make_room(view, offline, first)
        rest = [seq for seq in offline if seq not in gone]
        free = view.free_blocks + sum(view.would_free(seq) for seq in gone)
        # Online jobs are planned as if nobody else were there.
        batch = super().next_batch(EngineView(
            view.now_s, first, online, free, view.block_tokens, view.hit, view.would_free
        ))  # fmt: skip
        if batch.preempt and rest:
            # They lack blocks: offline jobs give theirs before any online job loses its own.
            return Batch([], [*gone, *rest[len(rest) // 2 :]])
        if batch.preempt:
            return batch._replace(preempt=[*gone, *batch.preempt])
        made = Batch(list(batch.pieces), gone, list(batch.decodes))
        self._fill_gap(view, made, rest, free - self._blocks(view, made.pieces))
        if not made.pieces and not made.decodes and not gone and rest:
            made.preempt.append(rest[-1])  # offline jobs alone fill the cache
        return made

    def _make_room(
        self, view: EngineView, offline: Sequence[Running], first: Sequence[Running]
    ) -> list[Running]:  # fmt: skip
        """The offline jobs, newest first, that must go for the online job at the head."""
        gone: list[Running] = []
        if not first or not offline:
            return gone
        head = first[0]
        hit = view.hit(head)
        need = view.blocks_for(head.length) - hit.blocks + hit.idle
        free = view.free_blocks
        for seq in reversed(offline):
            if need <= free:
                break
            gone.append(seq)
            free += view.would_free(seq)
        return gone if need <= free else []

    @staticmethod
    def _blocks(view: EngineView, work: Sequence[tuple[Running, int]]) -> int:
        """Blocks that this work takes."""
        taken = 0
        for seq, tokens in work:
            if seq.blocks_held:
                taken += max(view.blocks_for(seq.computed + tokens) - seq.blocks_held, 0)
            else:
                hit = view.hit(seq)
                start = hit.blocks * view.block_tokens
                taken += view.blocks_for(start + tokens) - hit.blocks + hit.idle
        return taken

    def _fill_gap(
        self, view: EngineView, made: Batch, offline: Sequence[Running], free: int
    ) -> None:  # fmt: skip
        """Add offline work that the online jobs of the step do not notice."""
        busy = [*made.decodes, *(seq for seq, _ in made.pieces)]
        decodes, kv = decoding(busy)
        prompts = len(busy) > decodes
        limit_s = self.gap * self.profile.target.tpot_s if busy and self.profile else 0.0
        going = [seq for seq in offline if seq.decoding]
        if limit_s and not prompts:
            going = self._within(going, decodes, kv, limit_s)
        # Seats are for online jobs first; who finds none stands still and keeps its blocks.
        for seq in going[: max(self.max_seqs - len(busy), 0)]:
            if seq.computed < seq.room:
                made.decodes.append(seq)
            elif free:
                made.pieces.append((seq, 1))
                free -= 1
            else:
                continue
            decodes, kv = decodes + 1, kv + seq.computed
        if prompts:
            return
        room = self.max_tokens - decodes
        if limit_s:
            room = min(room, self.chunk(decodes, kv, limit_s)) if decodes else room
            if self.profile.seconds(((max(room, 1), 0),), decodes, kv) > limit_s:
                return
        self._offline_prompts(view, made.pieces, offline, room, free)

    def _within(
        self, going: list[Running], decodes: int, kv: int, limit_s: float
    ) -> list[Running]:  # fmt: skip
        """As many offline decodes, oldest first, as keep the step within the limit."""
        whole = sum(seq.computed for seq in going)
        seconds = self.profile.seconds
        if seconds((), decodes + len(going), kv + whole) <= limit_s:
            return going
        low, high = 0, len(going)
        while high - low > 1:
            middle = (low + high) // 2
            some = sum(seq.computed for seq in going[:middle])
            if seconds((), decodes + middle, kv + some) <= limit_s:
                low = middle
            else:
                high = middle
        return going[:low]

    def _offline_prompts(
        self, view: EngineView, work: list[tuple[Running, int]], offline: Sequence[Running],
        room: int, free: int,
    ) -> None:  # fmt: skip
        """Prompt chunks of offline jobs: those begun, then those that wait."""
        for seq in offline:
            tokens = min(seq.missing, room) if not seq.decoding else 0
            if tokens > 0:
                need = view.blocks_for(seq.computed + tokens) - seq.blocks_held
                if need <= free:
                    work.append((seq, tokens))
                    free, room = free - max(need, 0), room - tokens
        seats = self.max_seqs - len(view.running)
        kept = int(self.keep_share * self.total_blocks)
        for seq in view.waiting:
            if seq.request.priority != OFFLINE:
                continue
            if room <= 0 or seats <= 0:
                return
            hit = view.hit(seq)
            start = hit.blocks * view.block_tokens
            tokens = min(seq.length - start, room)
            if view.blocks_for(seq.length) - hit.blocks + hit.idle + kept > free:
                return
            work.append((seq, tokens))
            free -= view.blocks_for(start + tokens) - hit.blocks + hit.idle
            room, seats = room - tokens, seats - 1

    def steady(self, view: EngineView) -> bool:
        """Decodes go on alike while nobody who waits could come in."""
        offline = any(seq.request.priority == OFFLINE for seq in view.running)
        if not view.waiting:
            return True
        if any(seq.request.priority != OFFLINE for seq in view.waiting):
            return False if offline else super().steady(view)
        if len(view.running) >= self.max_seqs:
            return True
        head = view.waiting[0]
        kept = int(self.keep_share * self.total_blocks)
        return view.blocks_for(head.length) + kept > view.free_blocks


__all__ = ["OnlineFirst"]
