"""Each sequence sharded over a fixed group of workers, and the groups side by side."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from orrery.models.attention import Block, Layout, contiguous, visible_pairs, zigzag
from orrery.parts import Whole
from orrery.systems.collectives import AttentionJob
from orrery.systems.train.baselines.group_ring import GroupRing, lightest_first, whole
from orrery.world import World

CAP = 1.25


class FixedGroups(GroupRing):
    """Groups of equal size, each with whole sequences that it cuts in zigzag and rings round.

    Context parallelism as Megatron-LM has it beside data parallelism (Megatron Core, 2024): all
    sequences are cut over `group_size` workers, and dealt to the groups by work, most first.
    The group must hold the longest sequence, so short ones are cut as finely as that one.

    Knobs: `group_size`, workers of a group (0: the smallest power of two that leaves a worker with
    at most 1.25 times the mean of tokens and of work from the longest sequence). The last group may
    be smaller.

    >>> FixedGroups(group_size=2).ring(5, 8)
    range(4, 6)
    """

    group_size: Whole = 0

    def ring(self, rank: int, size: int) -> Sequence[int]:
        wide = self.group_size or _smallest(self.job.lengths, size, self.job.causal)
        first = rank // wide * wide
        return range(first, min(first + wide, size))

    def layout(self, job: AttentionJob, size: int, world: World) -> Layout:
        wide = self.group_size or _smallest(job.lengths, size, job.causal)
        return _layout(job.lengths, size, job.causal, wide)


@functools.lru_cache(maxsize=16)
def _smallest(lengths: tuple[int, ...], size: int, causal: bool) -> int:
    work = [visible_pairs([b], [b], causal) for b in map(whole, range(len(lengths)), lengths)]
    shares = [max(amounts, default=0) * size / max(sum(amounts), 1) for amounts in (lengths, work)]
    wide = 1
    while wide < size and max(shares) > CAP * wide:
        wide *= 2
    return min(wide, size)


@functools.lru_cache(maxsize=16)
def _layout(lengths: tuple[int, ...], size: int, causal: bool, wide: int) -> Layout:
    firsts = range(0, size, wide)
    works = [visible_pairs([b], [b], causal) for b in map(whole, range(len(lengths)), lengths)]
    cap = CAP * wide * sum(lengths) / size
    dealt = lightest_first(list(zip(works, lengths, strict=True)), len(firsts), cap)
    cut, made = (zigzag if causal else contiguous), []
    for first, documents in zip(firsts, dealt, strict=True):
        chosen = sorted(documents)
        shards = cut([lengths[d] for d in chosen], min(wide, size - first))
        made += [tuple(Block(chosen[b.document], b.start, b.stop) for b in blocks)
                 for blocks in shards]  # fmt: skip
    return tuple(made)
