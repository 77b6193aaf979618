"""A table coder: range variant of asymmetric numeral systems (Duda, 2013), many lanes at once.

Each lane is a state of 31 bits that swallows one symbol a step; what overflows leaves as words of
16 bits. The lanes step together, so a step is a dozen vector operations, and their words interleave
in one stream in the order in which the decoder asks for them (Giesen, "Interleaved entropy coders",
2014).
"""

from __future__ import annotations

import numpy as np

from orrery.parts.collectives import Array

# Frequencies add up to 2**BITS.
BITS = 12
TOTAL = 1 << BITS
# States lie in [LOW, LOW << 16).
LOW = 1 << 15
MOST_LANES = 1024
ITEMS_PER_LANE = 128
# A lane's last state is what its symbols cost beyond the words: 4 bytes, of which LOW wastes 2.
LANE_B = 4


def lanes_for(items: int) -> int:
    """How many lanes a chunk gets: enough for speed, few enough that their states cost little."""
    return max(1, min(MOST_LANES, items // ITEMS_PER_LANE))


def frequencies(counts: Array) -> Array:
    """Counts scaled to a sum of `TOTAL`; what occurs keeps at least 1.

    At most `TOTAL` symbols may occur.

    >>> frequencies(np.array([3, 0, 1])).tolist()
    [3072, 0, 1024]
    """
    total = int(counts.sum())
    if not total:
        return np.zeros(counts.size, np.int64)
    scaled = counts * TOTAL // total
    scaled[(counts > 0) & (scaled == 0)] = 1
    excess = int(scaled.sum()) - TOTAL
    while excess:
        # Who has most can give (or is given) most cheaply; several rounds in rare cases.
        place = int(np.argmax(scaled))
        take = min(excess, int(scaled[place]) // 2) if excess > 0 else excess
        scaled[place] -= take
        excess -= take
    return scaled


def encode(symbols: Array, freq: Array, lanes: int) -> tuple[Array, Array]:
    """(the last states, the words) of symbols by their frequencies; symbol i is in lane i % lanes.

    Coding goes backwards, so the last, shorter step runs first.
    """
    # Dividing by a multiplication: exact for numbers below 2**31 (Granlund and Montgomery, 1994).
    safe = np.maximum(freq, 1).astype(np.uint64)
    shift_of = np.uint64(31) + np.ceil(np.log2(safe)).astype(np.uint64)
    inverse_of = ((np.uint64(1) << shift_of) + safe - np.uint64(1)) // safe
    start_of = (np.cumsum(freq) - freq).astype(np.uint64)
    limit_of, spare_of = safe << np.uint64(31 - BITS), np.uint64(TOTAL) - safe
    state = np.full(lanes, LOW, np.uint64)
    found: list[Array] = []
    for begin in range((symbols.size - 1) // lanes * lanes, -1, -lanes):
        here = symbols[begin : begin + lanes]
        x = state[: symbols.size - begin]
        (full,) = np.nonzero(x >= limit_of.take(here))
        if full.size:
            over = x.take(full)
            found.append(over.astype(np.uint16))
            x[full] = over >> np.uint64(16)
        quotient = x * inverse_of.take(here)
        quotient >>= shift_of.take(here)
        # x // f * TOTAL + x % f + start, where x % f is x - x // f * f.
        quotient *= spare_of.take(here)
        x += quotient
        x += start_of.take(here)
    words = np.concatenate(found[::-1]) if found else np.empty(0, np.uint16)
    return state.astype(np.uint32), words


def decode(states: Array, words: Array, freq: Array, items: int) -> Array:
    """The symbols; ValueError where the stream does not end exactly where it began."""
    symbol = np.repeat(np.arange(freq.size, dtype=np.uint16), freq)
    if symbol.size != TOTAL:
        raise ValueError("the frequencies do not add up")
    factor = freq.astype(np.uint32)[symbol]
    offset = (np.arange(TOTAL) - (np.cumsum(freq) - freq)[symbol]).astype(np.uint32)
    lanes = states.size
    state = states.astype(np.uint32)
    slots = np.empty(items, np.uint32)
    wide = words.astype(np.uint32)
    at = 0
    for begin in range(0, items, lanes):
        x = state[: items - begin]
        slot = slots[begin : begin + lanes]
        np.bitwise_and(x, np.uint32(TOTAL - 1), out=slot)
        x >>= np.uint32(BITS)
        x *= factor.take(slot)
        x += offset.take(slot)
        (low,) = np.nonzero(x < LOW)
        if low.size:
            coming = wide[at : at + low.size]
            if coming.size != low.size:
                raise ValueError("the stream ends early")
            x[low] = (x[low] << np.uint32(16)) | coming
            at += low.size
    if at != words.size or (state != LOW).any():
        raise ValueError("the stream does not end where it began")
    return symbol[slots]


__all__ = ["LANE_B", "TOTAL", "decode", "encode", "frequencies", "lanes_for"]
