"""Drafts for speculative decoding: a smaller model, or what the text has said before.

The engine (`problems.llm_elastic.tiny.TinyEngine`) keeps only tokens that the large model would
have made, so drafts change how many steps an answer takes, and never the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orrery.base.errors import UsageError
from orrery.systems.serve.problems.llm_elastic.tiny import Reserved


class PromptLookup:
    """Proposes what followed the last few tokens when they stood in the text before.

    The longest match of `most` down to `least` tokens wins, the latest one of that length. O(text).

    >>> PromptLookup()([1, 2, 3, 9, 1, 2, 3], 2)
    [9, 1]
    """

    def __init__(self, most: int = 3, least: int = 1) -> None:
        if not 1 <= least <= most:
            raise UsageError(f"PromptLookup({most}, {least}): give 1 <= least <= most")
        self.most, self.least = most, least

    def __call__(self, text: Sequence[int], count: int) -> list[int]:
        text = list(text)
        for size in range(min(self.most, len(text) - 1), self.least - 1, -1):
            tail = text[-size:]
            for at in range(len(text) - size - 1, -1, -1):
                if text[at : at + size] == tail:
                    return text[at + size : at + size + count]
        return []


class SmallModel:
    """Proposes what a smaller model would say, greedily; it sees the last `window` tokens."""

    def __init__(self, model: Any, window: int = 24) -> None:
        if window < 1:
            raise UsageError(f"SmallModel(window={window}): give at least 1")
        self.model, self.window = model, window

    def __call__(self, text: Sequence[int], count: int) -> list[int]:
        seen = list(text)[-self.window :]
        memory = Reserved(room=len(seen) + count, width=self.model.record)
        memory.open(0, len(seen) + count)
        made: list[int] = []
        new, start = seen, 0
        for _ in range(count):
            token = int(self.model.forward(new, start, memory, 0)[-1].argmax())
            made.append(token)
            new, start = [token], start + len(new)
        return made


__all__ = ["PromptLookup", "SmallModel"]
