"""The global index of cached prefixes: who has which blocks, and where a job is best placed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from orrery.systems.serve.problems.llm_elastic.ports import (
    InstanceView,
    Job,
    Placement,
    Profile,
)


class GlobalIndex:
    """Which instance has which block, by what instances report; O(blocks of the job) a look.

    Keys are chained, so an instance that has a block of a prefix is asked only as long as it has
    all blocks before it.

    >>> index = GlobalIndex()
    >>> index.heard(0, [1, 2, 3], []); index.heard(1, [1], [])
    >>> index.depths([1, 2, 9]), index.holders(1)
    ({0: 2, 1: 1}, [0, 1])
    """

    def __init__(self) -> None:
        self._at: dict[int, dict[int, None]] = {}  # key -> instances, in order of reporting
        self._of: dict[int, dict[int, None]] = {}  # instance -> keys

    def __len__(self) -> int:
        return len(self._at)

    def heard(self, instance: int, got: Iterable[int], lost: Iterable[int]) -> None:
        """An instance reports keys that came and went."""
        mine = self._of.setdefault(instance, {})
        for key in got:
            mine[key] = None
            self._at.setdefault(key, {})[instance] = None
        for key in lost:
            self._drop(key, instance)
            mine.pop(key, None)

    def _drop(self, key: int, instance: int) -> None:
        there = self._at.get(key)
        if there is not None:
            there.pop(instance, None)
            if not there:
                del self._at[key]

    def died(self, instance: int) -> None:
        """All that an instance had is gone."""
        for key in self._of.pop(instance, {}):
            self._drop(key, instance)

    def holders(self, key: int) -> list[int]:
        """The instances that have a block."""
        return sorted(self._at.get(key, ()))

    def depths(self, keys: Sequence[int]) -> dict[int, int]:
        """How many of the first keys each instance has; those that have none are left out."""
        found: dict[int, int] = {}
        there = set(self._at.get(keys[0], ())) if keys else set()
        for depth, key in enumerate(keys):
            have = self._at.get(key, {})
            for instance in sorted(there - have.keys()):
                found[instance] = depth
            there &= have.keys()
            if not there:
                break
        else:
            depth = len(keys)
        for instance in sorted(there):
            found[instance] = len(keys)
        return {instance: depth for instance, depth in sorted(found.items()) if depth}


def placed(
    job: Job, able: Sequence[InstanceView], index: GlobalIndex, profile: Profile, token_s: float,
    *, hit_weight: float = 1.0, fetches: bool = True,
) -> Placement:  # fmt: skip
    """The instance where the first token comes soonest: what waits there, and what is missing.

    Seconds at an instance are those of the prompt tokens (and images) that wait there, plus those
    of the job's own tokens that it has not cached, whose saving counts by `hit_weight` (0: caches
    do not matter, 1: as much as they save). Where another instance has more of the prefix, the
    blocks may be copied from there first, if copying is faster than computing.
    """
    size = profile.block_tokens
    depths = index.depths(job.blocks) if job.blocks and hit_weight else {}
    deepest = max(depths.values(), default=0)
    # Of several that have it, the least busy one sends.
    sources = [each for each, depth in depths.items() if depth == deepest]
    best: tuple[float, int, Placement] | None = None
    for view in able:
        waits_s = view.prefill_tokens * token_s + view.encode_s
        waits_s += view.decodes * token_s * 16  # a decode's share of the steps in between
        here = depths.get(view.index, 0)
        saved_s = hit_weight * here * size * token_s
        fetch, cost_s = -1, 0.0
        if fetches and deepest > here and sources:
            copy_s = profile.move_s((deepest - here) * size)
            gain_s = hit_weight * (deepest - here) * size * token_s - copy_s
            if gain_s > 0:
                fetch, cost_s = sources[0], -gain_s
        score = waits_s + job.prompt_tokens * token_s - saved_s + cost_s
        if best is None or (score, view.index) < best[:2]:
            best = (score, view.index, Placement(view.index, fetch))
    return best[2] if best is not None else Placement(-1)


__all__ = ["GlobalIndex", "placed"]
