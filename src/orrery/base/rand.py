"""Seeded random streams: counter-based, keyed by (seed, owner, purpose).

Draw number i of a stream is a mix of its 64-bit key and i alone, so streams never share state,
adding a node shifts no other node's numbers, and the C twin gives the same numbers bit for bit.
The mixer is SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators",
2014). The methods are those of `random.Random` that parts use; their arithmetic is our own, so a
digest does not change with the Python version.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import MutableSequence, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
_TWO_53 = 2.0**-53


def key_of(seed: int, owner: int | str, purpose: str) -> int:
    """The 64-bit key of one stream; stable across machines and Python versions."""
    text = f"{seed}\x1f{owner}\x1f{purpose}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def mix64(x: int) -> int:
    """SplitMix64's finaliser: one 64-bit word to another, one to one."""
    x &= MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def block(key: int, start: int, count: int) -> npt.NDArray[np.uint64]:
    """Draws start, start+1, ... of a stream at once, equal to the one-by-one draws."""
    with np.errstate(over="ignore"):
        i = np.arange(start + 1, start + 1 + count, dtype=np.uint64)
        x = np.uint64(key) + i * np.uint64(GOLDEN)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


class Draws:
    """Everything a stream can draw, built on three primitives: `word`, `random`, `small`."""

    if not TYPE_CHECKING:  # the slots of the fields are with whoever stores them
        __slots__ = ()

    key: int
    count: int

    def __init__(self, seed: int = 0, owner: int | str = 0, purpose: str = "") -> None:
        self.key = key_of(seed, owner, purpose)
        self.count = 0

    @classmethod
    def keyed(cls, key: int) -> Self:
        stream = cls.__new__(cls)
        stream.key = key & MASK
        stream.count = 0
        return stream

    if TYPE_CHECKING:

        def word(self) -> int: ...
        def random(self) -> float: ...
        def small(self, n: int) -> int: ...

    # -- whole numbers

    def getrandbits(self, bits: int) -> int:
        if bits < 0:
            raise ValueError("bits must be >= 0")
        value, have = 0, 0
        while have < bits:
            value |= self.word() << have
            have += 64
        return value & ((1 << bits) - 1)

    def below(self, n: int) -> int:
        """A whole number in [0, n): 64x64 multiply-shift, whose bias (n / 2**64) is nil."""
        if n <= 0:
            raise ValueError(f"below({n}): there is no such number; give n >= 1")
        if n > MASK:
            bits = n.bit_length()
            while (value := self.getrandbits(bits)) >= n:
                pass
            return value
        return self.small(n)

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        if stop is None:
            return self.below(start)
        width = (stop - start + step - (1 if step > 0 else -1)) // step
        return start + step * self.below(width)

    def randint(self, a: int, b: int) -> int:
        return a + self.below(b - a + 1)

    # -- sequences

    def choice(self, seq: Sequence[T]) -> T:
        if not len(seq):
            raise IndexError("choice() of an empty sequence")
        return seq[self.below(len(seq))]

    def choices(self, seq: Sequence[T], weights: Sequence[float] | None = None, *, k: int = 1,
                cum_weights: Sequence[float] | None = None) -> list[T]:  # fmt: skip
        if weights is None and cum_weights is None:
            return [seq[self.below(len(seq))] for _ in range(k)]
        if cum_weights is None:
            assert weights is not None
            cum, total = [], 0.0
            for weight in weights:
                total += weight
                cum.append(total)
        else:
            cum, total = list(cum_weights), float(cum_weights[-1])
        if not total > 0:
            raise ValueError("choices(): the weights add up to nothing")
        picked = []
        for _ in range(k):
            point, low, high = self.random() * total, 0, len(cum) - 1
            while low < high:  # the first index whose cumulative weight exceeds the point
                middle = (low + high) // 2
                if cum[middle] > point:
                    high = middle
                else:
                    low = middle + 1
            picked.append(seq[low])
        return picked

    def sample(self, population: Sequence[T], k: int) -> list[T]:
        """k distinct places of the population; a k beyond its length gives all of it, shuffled."""
        n = len(population)
        k = min(k, n)
        if k * 4 >= n:
            pool = list(population)
            for i in range(k):
                j = i + self.below(n - i)
                pool[i], pool[j] = pool[j], pool[i]
            return pool[:k]
        chosen: dict[int, None] = {}
        while len(chosen) < k:
            chosen[self.below(n)] = None
        return [population[i] for i in chosen]

    def shuffle(self, items: MutableSequence[Any]) -> None:
        for i in range(len(items) - 1, 0, -1):
            j = self.below(i + 1)
            items[i], items[j] = items[j], items[i]

    def randbytes(self, n: int) -> bytes:
        return self.getrandbits(8 * n).to_bytes(n, "little")

    # -- distributions

    def uniform(self, a: float, b: float) -> float:
        return a + (b - a) * self.random()

    def expovariate(self, lambd: float = 1.0) -> float:
        return -math.log(1.0 - self.random()) / lambd

    def gauss(self, mu: float = 0.0, sigma: float = 1.0) -> float:
        """Box-Muller without a stored twin, so that a stream's state is only its counter."""
        radius = math.sqrt(-2.0 * math.log(1.0 - self.random()))
        return mu + sigma * radius * math.cos(2.0 * math.pi * self.random())

    normalvariate = gauss

    def lognormvariate(self, mu: float, sigma: float) -> float:
        return math.exp(self.gauss(mu, sigma))

    def paretovariate(self, alpha: float) -> float:
        return float((1.0 - self.random()) ** (-1.0 / alpha))

    def weibullvariate(self, alpha: float, beta: float) -> float:
        return float(alpha * (-math.log(1.0 - self.random())) ** (1.0 / beta))

    def gammavariate(self, alpha: float, beta: float) -> float:
        """Marsaglia and Tsang (2000); shapes below one by the usual power of a uniform."""
        if alpha <= 0 or beta <= 0:
            raise ValueError("gammavariate(): alpha and beta must be > 0")
        if alpha < 1.0:
            boost = (1.0 - self.random()) ** (1.0 / alpha)
            return float(self.gammavariate(alpha + 1.0, beta) * boost)
        d = alpha - 1.0 / 3.0
        c = 1.0 / math.sqrt(9.0 * d)
        while True:
            x = self.gauss()
            v = (1.0 + c * x) ** 3
            if v > 0 and math.log(1.0 - self.random()) < 0.5 * x * x + d - d * v + d * math.log(v):
                return d * v * beta

    def betavariate(self, alpha: float, beta: float) -> float:
        y = self.gammavariate(alpha, 1.0)
        return y / (y + self.gammavariate(beta, 1.0)) if y > 0 else 0.0

    def triangular(self, low: float = 0.0, high: float = 1.0, mode: float | None = None) -> float:
        u = self.random()
        c = 0.5 if mode is None else (mode - low) / (high - low) if high > low else 0.0
        if u > c:
            u, c, low, high = 1.0 - u, 1.0 - c, high, low
        return low + (high - low) * math.sqrt(u * c)

    def numpy(self) -> np.random.Generator:
        """A NumPy generator seeded by this stream's next word, for array work."""
        return np.random.Generator(np.random.PCG64(self.word()))

    def __getstate__(self) -> tuple[int, int]:
        return (self.key, self.count)

    def __setstate__(self, state: tuple[int, int]) -> None:
        self.key, self.count = state

    def __repr__(self) -> str:
        return f"Stream(key={self.key:#x}, count={self.count})"


class Stream(Draws):
    """One random stream. `Stream(seed, owner, purpose)`, or `Stream.keyed(key)`.

    >>> Stream(7, 3, "doctest").randrange(100) == Stream(7, 3, "doctest").randrange(100)
    True
    """

    __slots__ = ("count", "key")

    def word(self) -> int:
        """The next 64-bit word."""
        self.count += 1
        return mix64(self.key + self.count * GOLDEN)

    def random(self) -> float:
        """A float in [0, 1) with 53 random bits."""
        return (self.word() >> 11) * _TWO_53

    def small(self, n: int) -> int:
        """A whole number in [0, n) for n up to 2**64, unchecked."""
        return (self.word() * n) >> 64
