"""The table of requests in the arena: states, tokens, and the blocks that each one has.

Fixed rows of whole numbers, no pickle: what one process writes, the other reads. A change of state
is made under the arena's lock, and last, so that whoever sees the new state sees all that it means.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt

from orrery.base.errors import UsageError

WAITING, PREFILLING, READY, DECODING, DONE = range(5)
STATE, PROMPT, WANTED, MADE, HELD, PREEMPTED, COMPUTED, ROW = range(8)
# Words at the head: stop flag; steps, tokens computed and bytes written of each phase; times that
# the oldest prompt found too few blocks.
STOP, STEPS, TOKENS, WRITTEN, FULL, HEAD = 0, 1, 3, 5, 7, 16
# Steps of each phase whose times are kept.
TIMES = 4096


class Requests:
    """Rows of requests over shared words.

    words     memory for `Requests.words(...)` words
    longest   tokens of the longest prompt with its answer; width, blocks of the longest
    """

    def __init__(
        self, words: npt.NDArray[np.int64], count: int, longest: int, width: int,
        lock: AbstractContextManager[Any],
    ) -> None:  # fmt: skip
        if len(words) != self.words(count, longest, width):
            raise UsageError(f"Requests: {len(words)} words do not suit {count} requests")
        self.count, self.longest, self.width, self.lock = count, longest, width, lock
        self.head = words[:HEAD]
        self.times = words[HEAD : HEAD + 4 * TIMES].reshape(2, TIMES, 2)
        start = HEAD + 4 * TIMES
        self.rows = words[start : start + ROW * count].reshape(count, ROW)
        start += ROW * count
        self.blocks = words[start : start + width * count].reshape(count, width)
        start += width * count
        self.tokens = words[start:].reshape(count, longest)

    @staticmethod
    def words(count: int, longest: int, width: int) -> int:
        """Words of memory for so many requests."""
        return HEAD + 4 * TIMES + count * (ROW + longest + width)

    def fill(self, number: int, prompt: Sequence[int], wanted: int) -> None:
        """A request comes: nobody works on it yet."""
        self.tokens[number, : len(prompt)] = prompt
        self.rows[number, PROMPT], self.rows[number, WANTED] = len(prompt), wanted

    def state(self, number: int) -> int:
        return int(self.rows[number, STATE])

    def in_state(self, *states: int) -> list[int]:
        """The requests in one of these states, oldest first."""
        found: list[int] = np.flatnonzero(np.isin(self.rows[:, STATE], states)).tolist()
        return found

    def length(self, number: int) -> int:
        """Tokens of the prompt and of the answer so far."""
        return int(self.rows[number, PROMPT] + self.rows[number, MADE])

    def held(self, number: int) -> list[int]:
        """The blocks of a request, in order."""
        return self.blocks[number, : self.rows[number, HELD]].tolist()

    def hold(self, number: int, blocks: Sequence[int]) -> None:
        """A request has these blocks too."""
        have = int(self.rows[number, HELD])
        self.blocks[number, have : have + len(blocks)] = blocks
        self.rows[number, HELD] = have + len(blocks)

    def make(self, number: int, token: int) -> bool:
        """One more token of the answer; whether it was the last."""
        self.tokens[number, self.length(number)] = token
        self.rows[number, MADE] += 1
        return bool(self.rows[number, MADE] >= self.rows[number, WANTED])

    def move(self, number: int, state: int) -> None:
        """The request is in another state; what goes with it is written already."""
        if state in (WAITING, DONE):
            self.rows[number, HELD] = 0
        with self.lock:
            self.rows[number, STATE] = state

    def answer(self, number: int) -> list[int]:
        """The tokens made so far."""
        prompt = int(self.rows[number, PROMPT])
        return self.tokens[number, prompt : self.length(number)].tolist()

    def note(self, phase: int, began_ns: int, ended_ns: int, tokens: int, written_B: int) -> None:
        """One step of a phase (1 or 2) for the statistics."""
        at = phase - 1
        self.times[at, self.head[STEPS + at] % TIMES] = began_ns, ended_ns
        self.head[STEPS + at] += 1
        self.head[TOKENS + at] += tokens
        self.head[WRITTEN + at] += written_B


def overlaps(times: npt.NDArray[np.int64], steps: Sequence[int]) -> int:
    """How many prefill steps ran while a decode step did."""
    first, second = (times[at, : min(steps[at], TIMES)] for at in (0, 1))
    if not len(first) or not len(second):
        return 0
    begins, ends = np.sort(second[:, 0]), np.sort(second[:, 1])
    # Those begun before a step ended, less those ended before it began, ran beside it.
    beside = np.searchsorted(begins, first[:, 1]) - np.searchsorted(ends, first[:, 0], "right")
    return int((beside > 0).sum())


__all__ = [
    "DECODING", "DONE", "FULL", "HELD", "MADE", "PREEMPTED", "PREFILLING", "PROMPT", "READY",
    "STATE", "STEPS", "STOP", "TOKENS", "WAITING", "WANTED", "WRITTEN", "Requests", "overlaps",
]  # fmt: skip
