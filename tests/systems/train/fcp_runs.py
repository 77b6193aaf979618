"""Batches, worlds and runs that the tests of FCP share."""

from __future__ import annotations

import functools

import numpy as np
from tests.systems.collectives.attention_runs import GPU, play

from orrery import World
from orrery.base.rand import Stream
from orrery.systems.collectives.baselines.ulysses import Ulysses
from orrery.systems.collectives.baselines.zigzag_ring import ZigzagRing
from orrery.systems.train.baselines.fixed_groups import FixedGroups
from orrery.systems.train.baselines.short_long_apart import ShortLongApart
from orrery.world import worlds

# One layer of LLaMA3-8B, timing only.
SHAPE = {
    "tokens": 0, "heads": 32, "kv_heads": 8, "head_dim": 128, "dtype": "bf16", "sized": True,
}  # fmt: skip
RIVALS = {
    "zigzag-ring": ZigzagRing(), "ulysses": Ulysses(), "short-long-apart": ShortLongApart(),
    "fixed-groups": FixedGroups(),
}  # fmt: skip


@functools.cache
def long_tail(tokens, sigma=1.5, longest=1 << 20, median=2048, seed=0):
    """Lengths of a log-normal batch with so many tokens; none longer than `longest`."""
    rng, found, left = Stream(seed, "d", "tail").numpy(), [], tokens
    while left > 0:
        drawn = int(median * np.exp(sigma * rng.standard_normal()))
        found.append(min(max(drawn, 1), longest, left))
        left -= found[-1]
    return tuple(found)


def pod(workers):
    """DGX H100: NVLink inside, a rail of 400 Gb/s a GPU between them."""
    return worlds.h100_pod(workers // 8, rank_per_gpu=True)


def ports(workers, port_Bps):
    """H100s behind one port each."""
    return World.lan(workers, machine=GPU, latency_s=2e-6, bandwidth_Bps=port_Bps, jitter=0.0,
                     model="flows")  # fmt: skip


def figures(part, lengths, world, **more):
    """The metrics of a batch on a world, timing only."""
    return play(part, world, documents=tuple(lengths), **{**SHAPE, **more}).metrics


def zigzag_imbalance(lengths, workers, beside=None):
    """The busiest worker over the mean when every sequence is cut in zigzag over all of them.

    `beside` is the work that each worker has already. In arrays, since many sequences on many
    workers make millions of chunks.
    """
    work = np.zeros(workers) if beside is None else np.array(beside, float)
    for length in lengths:
        ends = length * np.arange(2 * workers + 1) // (2 * workers)
        count = np.diff(ends)
        chunk = count * ends[:-1] + count * (count + 1) / 2
        work += chunk[:workers] + chunk[: workers - 1 : -1]
    return float(work.max() / work.mean())
