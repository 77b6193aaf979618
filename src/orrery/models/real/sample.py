"""Which token comes next: the likeliest, or one drawn from the request's own stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from orrery.base.rand import Stream
from orrery.models.real.jobs import Live


def choose(
    logits: Any, sequences: Sequence[Live], likeliest: list[int] | None = None
) -> list[int]:  # fmt: skip
    """The next token of each sequence from its row of logits.

    `likeliest` are the likeliest ones, where the device has found them already.
    """
    if not sequences:
        return []
    if likeliest is None:
        likeliest = logits.argmax(-1).tolist()
    for row, seq in enumerate(sequences):
        if seq.job.temperature > 0:
            values = logits[row].double().cpu().numpy()
            likeliest[row] = draw(values, seq)
    return likeliest


def draw(values: npt.NDArray[np.float64], seq: Live) -> int:
    """One token drawn; the draw depends on the seed, the request and the place alone.

    So neither the batch, nor a preemption, nor the order of other requests changes it.
    """
    job = seq.job
    stream = Stream(job.seed, seq.request.id, "sample")
    stream.count = seq.generated
    scaled = (values - values.max()) / job.temperature
    weights = np.exp(scaled)
    weights /= weights.sum()
    if job.top_p < 1:
        order = np.argsort(-weights, kind="stable")
        before = np.cumsum(weights[order]) - weights[order]
        weights[order[before >= job.top_p]] = 0.0
    heap = np.cumsum(weights)
    return int(min(np.searchsorted(heap, stream.random() * heap[-1], side="right"), len(heap) - 1))
