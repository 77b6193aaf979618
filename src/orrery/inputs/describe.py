"""What a workload is like, in figures: lengths, burstiness, prefix sharing, sessions."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from typing import Any

import numpy as np
import numpy.typing as npt

from orrery.inputs import ragged
from orrery.inputs.workload import F64, Workload

LEVELS = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
WINDOWS_S = (1.0, 10.0, 60.0)


def summary(work: Workload) -> dict[str, Any]:
    """Counts, rates, burstiness, lengths, sharing and sessions, as plain numbers."""
    used, counts = np.unique(work.kind, return_counts=True)
    known = work.session >= 0
    sessions = len(np.unique(work.session[known]))
    return {
        "source": work.source,
        "hash": work.hash,
        "requests": len(work),
        "seconds": work.seconds,
        "rate_per_s": work.rate_per_s,
        "gap_cv": gap_cv(work.arrival_s),
        "dispersion": {f"{w:g} s": dispersion(work.arrival_s, w) for w in WINDOWS_S},
        "input_tokens": spread(work.input_tokens),
        "output_tokens": spread(work.output_tokens),
        "rank_correlation": rank_correlation(work.input_tokens, work.output_tokens),
        "blocks": len(work.block_ids),
        "block_tokens": work.block_tokens,
        "block_hit_ratio": hit_ratio(work),
        "sessions": sessions,
        "turns_per_session": float(known.sum() / sessions) if sessions else 0.0,
        "waiting_for_others": int((work.parent >= 0).sum()),
        "kinds": {work.kinds[k]: int(n) for k, n in zip(used, counts, strict=True)},
    }


def spread(values: npt.NDArray[Any]) -> dict[str, float]:
    """The mean, the middle and the upper end of some values."""
    found = {"mean": float(values.mean())}
    found |= {name: float(np.quantile(values, level)) for name, level in LEVELS.items()}
    return found | {"max": float(values.max())}


def gap_cv(arrival_s: F64) -> float:
    """Standard deviation over mean of the gaps between arrivals: 1 for Poisson, more if bursty."""
    gaps = np.diff(arrival_s)
    return float(gaps.std() / gaps.mean()) if len(gaps) and gaps.mean() > 0 else 0.0


def dispersion(arrival_s: F64, window_s: float) -> float | None:
    """Variance over mean of the counts in windows: 1 for Poisson; None for under two windows."""
    windows = int(arrival_s[-1] // window_s)
    if windows < 2:
        return None
    if windows > 50_000_000:
        return None  # a trace of years has no use for counts by the second
    whole = arrival_s[arrival_s < windows * window_s]
    counts = np.bincount((whole // window_s).astype(np.int64), minlength=windows)
    mean = counts.mean()
    return float(counts.var() / mean) if mean > 0 else None


def ranks(values: npt.NDArray[Any]) -> F64:
    """Ranks from 0, ties sharing their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts + 1) / 2.0)[inverse]


def rank_correlation(x: npt.NDArray[Any], y: npt.NDArray[Any]) -> float:
    """Spearman's rank correlation; 0 where one of the two never changes.

    >>> rank_correlation(np.array([1, 2, 9]), np.array([4, 5, 6]))
    1.0
    """
    a, b = ranks(x), ranks(y)
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum() / size) if size > 0 else 0.0


def shared_blocks(work: Workload) -> npt.NDArray[np.int64]:
    """For each request, how many leading blocks of its prompt an earlier request had."""
    first = ragged.first_places(work.block_ids)
    seen = np.concatenate([[0], np.cumsum(first < np.arange(len(first)))])
    # Ids are chained, so the blocks seen before are the leading ones.
    return np.diff(seen[work.block_starts])


def hit_ratio(work: Workload) -> float:
    """The share of prompt blocks that an endless cache would have held; 0 without blocks."""
    if not len(work.block_ids):
        return 0.0
    return float(shared_blocks(work).sum() / len(work.block_ids))


def lru_hit_ratio(work: Workload, capacity_blocks: int) -> float:
    """The share of prompt blocks found in one cache of this size, least recently used out first.

    Only a prefix counts: after the first block that is missing, the rest is computed anew.
    """
    held: OrderedDict[int, None] = OrderedDict()
    ids, starts = work.block_ids.tolist(), work.block_starts.tolist()
    hits = 0
    for begin, end in itertools.pairwise(starts):
        row = ids[begin:end]
        for each in row:
            if each not in held:
                break
            hits += 1
        # From the end of the prompt to its head, so that heads outlive what hangs on them.
        for each in reversed(row):
            held[each] = None
            held.move_to_end(each)
        while len(held) > capacity_blocks:
            held.popitem(last=False)
    return hits / len(ids) if ids else 0.0
