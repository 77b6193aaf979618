"""Which of encode, prefill and decode share an instance: chosen by profiling each workload."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

# Every way to put three phases together: the parts of the set {E, P, D}.
GROUPINGS: dict[str, tuple[str, ...]] = {
    "EPD": ("EPD",), "EP-D": ("EP", "D"), "E-PD": ("E", "PD"), "ED-P": ("ED", "P"),
    "E-P-D": ("E", "P", "D"),
}  # fmt: skip


def shares(count: int, groups: int) -> Iterator[tuple[int, ...]]:
    """Every way to give each of so many groups at least one of so many instances.

    >>> list(shares(4, 2))
    [(1, 3), (2, 2), (3, 1)]
    """
    if groups == 1:
        if count >= 1:
            yield (count,)
        return
    for first in range(1, count - groups + 2):
        for rest in shares(count - first, groups - 1):
            yield (first, *rest)


def layouts(count: int) -> list[tuple[str, tuple[int, ...]]]:
    """Every grouping with every share of the instances."""
    return [
        (name, each) for name, groups in GROUPINGS.items() for each in shares(count, len(groups))
    ]


def dealt(grouping: str, share: tuple[int, ...]) -> list[str]:
    """The roles of the instances, group after group.

    >>> dealt("EP-D", (1, 2))
    ['EP', 'D', 'D']
    """
    groups = GROUPINGS[grouping]
    return [role for role, count in zip(groups, share, strict=True) for _ in range(count)]


def proportional(count: int, work: tuple[float, ...]) -> tuple[int, ...]:
    """Shares in proportion to work, each group at least one instance; the largest rest gains.

    >>> proportional(8, (1.0, 3.0)), proportional(3, (0.0, 0.0, 1.0))
    ((2, 6), (1, 1, 1))
    """
    total = sum(work)
    ideal = [count * (each / total if total else 1 / len(work)) for each in work]
    made = [max(1, int(each)) for each in ideal]
    while sum(made) != count:
        step = 1 if sum(made) < count else -1
        able = [at for at in range(len(made)) if made[at] + step >= 1]
        at = max(able, key=lambda at: (step * (ideal[at] - made[at]), -at))
        made[at] += step
    return tuple(made)


def choose(
    count: int, rehearse: Callable[[str, tuple[int, ...]], float], *, most: int = 64
) -> tuple[str, tuple[int, ...]]:
    """The grouping and shares with the best rehearsal; of equals the one that splits least.

    Where there are more layouts than `most`, each grouping is searched from its even share, one
    instance at a time to the better side: goodput over a share has one hump.
    """
    every = layouts(count)
    if len(every) <= most:
        return max(every, key=lambda each: (rehearse(*each), -len(each[1])))
    best: Any = None
    for name, groups in GROUPINGS.items():
        if len(groups) > count:
            continue
        share = proportional(count, (1.0,) * len(groups))
        found = _climb(name, share, rehearse)
        if best is None or (found[0], -len(share)) > (best[0], -len(best[1][1])):
            best = found
    return best[1]  # type: ignore[no-any-return]


def _climb(
    name: str, share: tuple[int, ...], rehearse: Callable[[str, tuple[int, ...]], float]
) -> tuple[float, tuple[str, tuple[int, ...]]]:
    """Move one instance at a time between groups while that helps."""
    score, seen = rehearse(name, share), {share}
    while True:
        near = []
        for a in range(len(share)):
            for b in range(len(share)):
                moved = list(share)
                moved[a] -= 1
                moved[b] += 1
                if a != b and moved[a] >= 1 and tuple(moved) not in seen:
                    near.append(tuple(moved))
        seen.update(near)
        scores = [(rehearse(name, each), each) for each in near]
        top = max(scores, default=(-1.0, share))
        if top[0] <= score:
            return score, (name, share)
        score, share = top


__all__ = ["GROUPINGS", "choose", "dealt", "layouts", "proportional", "shares"]
