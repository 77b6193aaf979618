"""A torch transformer under the tiny engine's loop: its paged cache is addressed by xTensor pages.

Needs PyTorch. The memory manager keeps the account and names the pages; keys and values lie in the
transformer's own cache, whose blocks are those pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from orrery.models.real.paged import Piece
from orrery.systems.serve.xllm.xtensor import XTensor


class PagedModel:
    """Gives a `Transformer` the interface of `TinyModel`: logits after each of some new tokens.

    Every token is a piece of its own, so that a step gives the logits after each draft; within a
    layer all keys and values of a step are written before any are read.
    """

    record = 0  # nothing of a token lies in the manager's own memory

    def __init__(self, model: Any, pages: int, page_tokens: int = 16) -> None:
        self.model = model
        self.cache = model.new_cache(pages, page_tokens)

    def memory(self) -> XTensor:
        """A manager for the pages of this model's cache."""
        cache = self.cache
        return XTensor(pages=cache.blocks, page_tokens=cache.block_tokens, width=0, backend="table")

    def forward(self, tokens: Sequence[int], start: int, memory: XTensor, owner: int) -> np.ndarray:
        memory.reach(owner, start + len(tokens))
        table = memory.spaces[owner].pages
        pieces = [Piece([token], start + at, table) for at, token in enumerate(tokens)]
        return np.asarray(self.model.step(pieces, self.cache).double().cpu().numpy())


__all__ = ["PagedModel"]
