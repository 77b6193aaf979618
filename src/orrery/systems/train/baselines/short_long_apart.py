"""Short sequences by data parallelism and long ones by context parallelism, one after the other."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from orrery.models.attention import Layout, contiguous, visible_pairs, zigzag
from orrery.parts import Whole
from orrery.systems.collectives import AttentionJob
from orrery.systems.train.baselines.group_ring import GroupRing, lightest_first, whole
from orrery.world import World

# Room that data parallelism may use beyond the mean, as packing does.
CAP = 1.25


class ShortLongApart(GroupRing):
    """Whole short sequences to single workers, then a zigzag ring of all for the long ones.

    The usual answer to batches of mixed lengths, which FlexSP (Wang et al., 2025) and ByteScale (Ge
    et al., 2025) refine. A sequence with no more tokens and no more work than a worker's mean is
    computed on one and sends nothing; these are dealt by work, most first, within a limit of
    tokens. All others go through a ring over all workers, each cut in zigzag. The two do not mix:
    the ring begins when a worker is through with its short sequences.

    Knobs: `short_tokens`, the longest that counts as short (0: what a worker has
    on average, in tokens and in work).

    >>> from orrery.world import World
    >>> part, job = ShortLongApart(), AttentionJob(documents=(60, 10, 10))
    >>> [len(blocks) for blocks in part.layout(job, 2, World.lan(2))]
    [3, 3]
    """

    short_tokens: Whole = 0

    def _split(self, job: AttentionJob, size: int) -> tuple[Layout, Layout]:
        return _split(job.lengths, size, job.causal, self.short_tokens)

    def layout(self, job: AttentionJob, size: int, world: World) -> Layout:
        far, near = self._split(job, size)
        return tuple(a + b for a, b in zip(far, near, strict=True))

    def travelling(self, rank: int) -> int:
        return len(self._split(self.job, self.size)[0][rank])

    def ring(self, rank: int, size: int) -> Sequence[int]:
        far, _ = self._split(self.job, size)
        return range(size) if any(far) else (rank,)


@functools.lru_cache(maxsize=16)
def _split(
    lengths: tuple[int, ...], size: int, causal: bool, short_tokens: int
) -> tuple[Layout, Layout]:
    mean = sum(lengths) / size
    work = [visible_pairs([b], [b], causal) for b in map(whole, range(len(lengths)), lengths)]
    fits = [0 < n <= mean and w <= sum(work) / size for n, w in zip(lengths, work, strict=True)]
    if short_tokens:
        fits = [0 < n <= short_tokens for n in lengths]
    short = [d for d, fit in enumerate(fits) if fit]
    spread = zigzag if causal else contiguous
    far = spread([0 if fit else n for n, fit in zip(lengths, fits, strict=True)], size)
    sizes = [(work[d], lengths[d]) for d in short]
    most = CAP * max(mean, max((lengths[d] for d in short), default=0))
    dealt = lightest_first(sizes, size, most)
    near = tuple(tuple(whole(short[i], lengths[short[i]]) for i in items) for items in dealt)
    return far, near
