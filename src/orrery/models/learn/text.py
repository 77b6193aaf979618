"""Text to learn from: generated with a known entropy, or read from a file.

Generated text is a chain in which the next symbol depends on the two before it; most symbols are
unlikely after a given pair, as in real text. Its entropy rate is known, so a loss can be held
against the best that any model can reach. Equal seeds give equal text on every machine.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from orrery.base.errors import UsageError
from orrery.parts.collectives import Array

# How uneven the chances of the next symbol are: the smaller, the more a pair says about it.
SPREAD = 0.05
MOST_B = 64 << 20


@lru_cache(maxsize=8)
def chances(symbols: int, seed: int) -> Array:
    """The chance of each symbol after each pair; each row adds up to one."""
    rng = np.random.Generator(np.random.PCG64([seed, 1]))
    # A part of the chance depends on the last symbol alone, so that a small model gets somewhere.
    one = rng.dirichlet(np.full(symbols, SPREAD), symbols)
    two = rng.dirichlet(np.full(symbols, SPREAD), (symbols, symbols))
    found: Array = 0.7 * one[None, :, :] + 0.3 * two
    found.flags.writeable = False
    return found


@lru_cache(maxsize=8)
def generated(symbols: int, length: int, seed: int, part: int = 0) -> Array:
    """A text of this chain; `part` tells training text from held-out text."""
    ends = np.cumsum(chances(symbols, seed), axis=-1)
    draws = np.random.Generator(np.random.PCG64([seed, 2, part])).random(length)
    # Many chains side by side, then laid end to end: a step is one array operation.
    chains = max(1, min(256, length // 64))
    steps = -(-length // chains)
    draws = np.resize(draws, (steps, chains))
    text = np.empty((steps, chains), np.int64)
    before = last = np.arange(chains) % symbols
    for step in range(steps):
        new = (ends[before, last] < draws[step][:, None]).sum(axis=-1)
        text[step] = np.minimum(new, symbols - 1)
        before, last = last, text[step]
    flat: Array = text.T.reshape(-1)[:length].copy()
    flat.flags.writeable = False
    return flat


@lru_cache(maxsize=8)
def entropy(symbols: int, seed: int) -> float:
    """The entropy rate of the chain in nats a symbol: no model's loss stays below it for long."""
    table = chances(symbols, seed)
    pairs = np.full((symbols, symbols), 1.0 / symbols**2)
    for _ in range(2000):
        after = np.einsum("ab,abc->bc", pairs, table)
        if np.abs(after - pairs).max() < 1e-13:
            break
        pairs = after
    each = -np.sum(table * np.log(np.maximum(table, 1e-300)), axis=-1)
    return float(np.sum(pairs * each))


def read(path: str, symbols: int) -> Array:
    """A file's text as numbers below `symbols`: its commonest characters, the rest as one."""
    where = Path(path)
    if not where.is_file():
        raise UsageError(f"text {path!r}: no such file; give a text file, or '' for generated text")
    if where.stat().st_size > MOST_B:
        raise UsageError(f"text {path!r}: over {MOST_B >> 20} MiB; cut it to what is needed")
    raw = np.frombuffer(where.read_bytes(), np.uint8)
    if raw.size < 1000:
        raise UsageError(f"text {path!r}: {raw.size} bytes are too few to learn from; give 1,000")
    common = np.argsort(-np.bincount(raw, minlength=256), kind="stable")[: symbols - 1]
    code = np.full(256, symbols - 1, np.int64)
    code[common] = np.arange(common.size)
    return code[raw]
