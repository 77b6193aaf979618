"""Two-phase change of expert weights: copied beside, then switched between two steps.

Phase one copies the weights of every expert that moves into spare buffers, a few bytes at a time,
while the old placement serves. Phase two begins when all copies are whole and their checksums are
right: between two steps the buffers take the place of the old slots. No step sees a slot that is
half copied.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

import numpy as np

from orrery.base.errors import UsageError


class Move(NamedTuple):
    """A slot that gets another expert."""

    rank: int
    slot: int
    expert: int


class ExpertStore:
    """The weights of experts in slots of ranks, and a change that is under way.

    `weights[expert]` is the true matrix of each expert (what disk or another rank holds).
    `piece_B` is how much is copied between two steps. `two_phase` = False shows why it is needed:
    weights are then written straight into the slots that serve.
    """

    def __init__(
        self, weights: np.ndarray, layout: np.ndarray, *, piece_B: int = 4096,
        two_phase: bool = True,
    ) -> None:  # fmt: skip
        if weights.ndim != 3:
            raise UsageError(f"weights of shape {weights.shape}: give [experts, inputs, outputs]")
        if layout.max() >= len(weights) or layout.min() < 0:
            raise UsageError(f"the layout names expert {layout.max()} of {len(weights)}")
        if piece_B < 8:
            raise UsageError(f"piece_B={piece_B}: give at least 8")
        self.weights, self.layout = weights, layout.copy()
        self.piece, self.two_phase = piece_B // 8, two_phase
        self.slots = weights[layout].copy()  # [ranks, slots, inputs, outputs]
        self._sums = [zlib.crc32(each.tobytes()) for each in weights]
        self._moves: list[Move] = []
        self._beside: list[np.ndarray] = []
        self._copied = 0
        self._next: np.ndarray | None = None
        self.switches = self.refused = 0

    @property
    def busy(self) -> bool:
        """Whether a change is under way."""
        return self._next is not None

    def begin(self, layout: np.ndarray) -> int:
        """Start to change to another placement; how many slots move. One change at a time."""
        if self.busy:
            raise UsageError("a change is under way; wait until it is done")
        if layout.shape != self.layout.shape:
            raise UsageError(f"a layout of shape {layout.shape}; give {self.layout.shape}")
        places = np.argwhere(layout != self.layout).tolist()
        self._moves = [Move(rank, slot, int(layout[rank, slot])) for rank, slot in places]
        if not self._moves:
            return 0
        self._beside = [np.empty_like(self.weights[0]) for _ in self._moves]
        self._next, self._copied = layout.copy(), 0
        if not self.two_phase:
            self.layout = self._next
        return len(self._moves)

    def copy_some(self) -> None:
        """Phase one: the next piece of the next weights."""
        if not self.busy or self._copied >= self._size * len(self._moves):
            return
        at, place = divmod(self._copied, self._size)
        move = self._moves[at]
        upto = min(place + self.piece, self._size)
        target = self._beside[at] if self.two_phase else self.slots[move.rank, move.slot]
        target.reshape(-1)[place:upto] = self.weights[move.expert].reshape(-1)[place:upto]
        self._copied += upto - place

    @property
    def _size(self) -> int:
        return int(self.weights[0].size)

    def between_steps(self) -> bool:
        """Phase two, if all copies are whole: switch all of them at once. Whether it did."""
        if not self.busy or self._copied < self._size * len(self._moves):
            return False
        if self.two_phase:
            for move, copy in zip(self._moves, self._beside, strict=True):
                if zlib.crc32(copy.tobytes()) != self._sums[move.expert]:
                    self.refused += 1
                    self._copied = 0  # copy again; the old placement goes on serving
                    return False
            for move, copy in zip(self._moves, self._beside, strict=True):
                self.slots[move.rank, move.slot] = copy
            assert self._next is not None
            self.layout = self._next
        self._next, self._moves, self._beside = None, [], []
        self.switches += 1
        return True

    def serve(self, expert: int, rows: np.ndarray, turn: int = 0) -> np.ndarray:
        """An expert's output from one of its copies, by turns."""
        places = np.argwhere(self.layout == expert)
        rank, slot = places[turn % len(places)]
        return rows @ self.slots[rank, slot]


__all__ = ["ExpertStore", "Move"]
