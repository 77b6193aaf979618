"""A real decode worker: a small attention over a cache that it holds, one token a step.

The arithmetic is small but true: every token is the argmax of an attention over all that the
request has said so far, so an answer depends on each token of its past, and a request that moves to
another worker after a death must give the same answer as one that did not.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from orrery.parts import Node, rpc

WIDTH = 16
WORDS = 64
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _noise(keys: Any) -> np.ndarray:
    """Numbers in [-1, 1) from whole numbers: SplitMix64's finaliser."""
    with np.errstate(over="ignore"):
        x = np.asarray(keys, np.uint64) * GOLDEN
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
    return (x >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0


def _table(salt: int) -> np.ndarray:
    keys = np.arange(WORDS * WIDTH, dtype=np.uint64).reshape(WORDS, WIDTH)
    return _noise(keys + np.uint64(salt << 32))


KEYS, VALUES, QUERIES, HEAD = (_table(salt) for salt in (1, 2, 3, 4))


def prompt_words(request: int, tokens: int) -> np.ndarray:
    """The prompt of a request: words made from its number."""
    keys = np.arange(tokens, dtype=np.uint64) + np.uint64((request + 1) << 32)
    return ((_noise(keys) + 1.0) * (WORDS / 2)).astype(np.int64)


class Cache:
    """Keys and values of one request."""

    def __init__(self, words: np.ndarray, room: int) -> None:
        self.keys, self.values = np.empty((room, WIDTH)), np.empty((room, WIDTH))
        self.size, self.last = 0, 0
        for block in (KEYS, VALUES):
            target = self.keys if block is KEYS else self.values
            target[: len(words)] = block[words]
        self.size, self.last = len(words), int(words[-1])

    def next_word(self) -> int:
        """One decode step: read the whole cache, make a word, write its key and value."""
        keys, values = self.keys[: self.size], self.values[: self.size]
        weight = np.exp(keys @ QUERIES[self.last] / np.sqrt(WIDTH))
        word = int((HEAD @ (weight @ values / weight.sum()) * (1 + self.size % 7)).argmax())
        word = (word + self.last + self.size) % WORDS
        self.keys[self.size], self.values[self.size] = KEYS[word], VALUES[word]
        self.size, self.last = self.size + 1, word
        return word


def answer(request: int, prompt: int, output: int) -> list[int]:
    """The answer of a request, computed alone: what every worker must give."""
    cache = Cache(prompt_words(request, prompt), prompt + output)
    return [cache.next_word() for _ in range(output)]


class DecodeWorker(Node):
    """Holds requests in slots and makes one token of each in a step, when told to.

    The barrier is with the front, which tells all workers to step and waits for all of them.
    """

    def start(self) -> None:
        self.caches: dict[int, Cache] = {}
        self.left: dict[int, int] = {}

    @rpc
    async def step(
        self, admit: list[tuple[int, int, int, list[int]]]
    ) -> tuple[list[tuple[int, int]], int, int]:
        """Take in (request, prompt, tokens to make, words made before), then decode once.

        Gives (request, word) of each, how many requests stay, and the tokens of the cache that were
        read.
        """
        for request, prompt, left, before in admit:
            words = np.concatenate([prompt_words(request, prompt), np.array(before, np.int64)])
            self.caches[request] = Cache(words, len(words) + left)
            self.left[request] = left
        read = sum(cache.size for cache in self.caches.values())
        words_made = await self.compute(self._decode)
        for request, _ in words_made:
            self.left[request] -= 1
            if not self.left[request]:
                del self.left[request], self.caches[request]
        return words_made, len(self.caches), read

    def _decode(self) -> list[tuple[int, int]]:
        return [(request, cache.next_word()) for request, cache in self.caches.items()]


__all__ = ["DecodeWorker", "answer"]
