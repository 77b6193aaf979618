"""Reed-Solomon codes over GF(256): any k of n fragments give the message back.

The field is that of the polynomial x^8 + x^4 + x^3 + x^2 + 1 (0x11d), as in RAID-6 and QR codes. A
product is one look-up in a table of 64 KiB, so a fragment costs k passes of NumPy over its bytes.
The code is systematic: the first k fragments are the message itself.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from orrery.base.errors import SpecError

POLYNOMIAL = 0x11D
MOST_FRAGMENTS = 256

Bytes = npt.NDArray[np.uint8]


@functools.cache
def tables() -> tuple[Bytes, Bytes]:
    """(products of all pairs, inverses; the inverse of 0 is given as 0)."""
    power = np.zeros(510, dtype=np.uint8)
    log = np.zeros(256, dtype=np.int64)
    value = 1
    for exponent in range(255):
        power[exponent] = power[exponent + 255] = value
        log[value] = exponent
        value <<= 1
        if value & 0x100:
            value ^= POLYNOMIAL
    product = power[log[:, None] + log[None, :]]
    product[0, :] = product[:, 0] = 0
    inverse = power[(255 - log) % 255]
    inverse[0] = 0
    return product, inverse


def multiply(a: Bytes, b: Bytes) -> Bytes:
    """The matrix product over the field; O(rows x inner) passes over a row of b."""
    product, _ = tables()
    out = np.zeros((a.shape[0], b.shape[1]), dtype=np.uint8)
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            factor = a[i, j]
            if factor == 1:
                out[i] ^= b[j]
            elif factor:
                out[i] ^= product[factor][b[j]]
    return out


def inverted(matrix: Bytes) -> Bytes:
    """The inverse of a square matrix, by Gauss and Jordan; O(k^2) passes over a row."""
    product, inverse = tables()
    size = len(matrix)
    work = np.concatenate([matrix, np.eye(size, dtype=np.uint8)], axis=1)
    for column in range(size):
        pivot = column + int(np.argmax(work[column:, column] != 0))
        if work[pivot, column] == 0:
            raise SpecError("matrix", "is singular", "give other fragments")
        work[[column, pivot]] = work[[pivot, column]]
        work[column] = product[inverse[work[column, column]]][work[column]]
        for row in range(size):
            if row != column and work[row, column]:
                work[row] ^= product[work[row, column]][work[column]]
    return np.ascontiguousarray(work[:, size:])


@functools.cache
def generator(n: int, k: int) -> Bytes:
    """n rows of k: the unit matrix above a Cauchy matrix, so every k rows can be inverted."""
    if not 1 <= k <= n <= MOST_FRAGMENTS:
        fix = f"give 1 <= k <= n <= {MOST_FRAGMENTS}"
        raise SpecError("code", f"{n} fragments of which {k} suffice", fix)
    _, inverse = tables()
    rows = np.arange(k, n)[:, None]
    cauchy = inverse[rows ^ np.arange(k)[None, :]] if n > k else np.zeros((0, k), dtype=np.uint8)
    return np.concatenate([np.eye(k, dtype=np.uint8), cauchy.astype(np.uint8)])


def encode(message: bytes, n: int, k: int) -> list[bytes]:
    """n fragments of equal length, of which any k suffice; the length goes in front."""
    framed = len(message).to_bytes(8, "big") + message
    width = -(-len(framed) // k)
    data = np.zeros(k * width, dtype=np.uint8)
    data[: len(framed)] = np.frombuffer(framed, dtype=np.uint8)
    rows = data.reshape(k, width)
    coded = multiply(generator(n, k)[k:], rows)
    return [row.tobytes() for row in rows] + [row.tobytes() for row in coded]


def decode(fragments: Mapping[int, bytes], n: int, k: int) -> bytes | None:
    """The message from any k fragments by place; None where they are of no message."""
    places = sorted(place for place in fragments if 0 <= place < n)[:k]
    widths = {len(fragments[place]) for place in places}
    if len(places) < k or len(widths) != 1:
        return None
    rows = np.stack([np.frombuffer(fragments[place], dtype=np.uint8) for place in places])
    if places != list(range(k)):
        rows = multiply(inverted(generator(n, k)[places]), rows)
    framed = rows.tobytes()
    size = int.from_bytes(framed[:8], "big")
    if size > len(framed) - 8:
        return None
    return framed[8 : 8 + size]
