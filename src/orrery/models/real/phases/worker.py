"""One phase in a process of its own: `python -m orrery.models.real.phases.worker ORDERS`.

Prefill computes one waiting prompt after the other and passes its blocks on; decode makes a token
of everyone in each step. They speak through the arena alone, and each ends when it is told to, or
when the parent is gone.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import msgspec

from orrery.models.real.paged import Piece
from orrery.models.real.phases.arena import Arena
from orrery.models.real.phases.blocks import DECODE, PREFILL, BlockBook, owner_of
from orrery.models.real.phases.plan import Orders
from orrery.models.real.phases.table import (
    DECODING,
    DONE,
    FULL,
    HELD,
    PREEMPTED,
    PREFILLING,
    READY,
    STOP,
    WAITING,
    Requests,
)
from orrery.models.real.phases.weights import SharedCache, model_over

IDLE_S = 0.0005


class Phase:
    """What both phases share: the arenas, the book, the table, the model."""

    number = 0

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        weights = Arena(orders.weights_fd, orders.weights_B, read_only=True)
        arena = Arena(orders.arena_fd, orders.arena_B)
        self.kept = (weights, arena)
        lock = arena.lock()
        words = arena.words(0, BlockBook.words(orders.blocks))
        self.left = orders.kill_at
        self.book = BlockBook(words, orders.blocks, lock, self._midway if self.left else None)
        count = Requests.words(orders.requests, orders.longest, orders.width)
        self.table = Requests(
            arena.words(orders.table_at, count), orders.requests, orders.longest, orders.width, lock
        )
        self.model = model_over(
            orders.spec, weights.memory, orders.entries, orders.dtype, orders.epsilon,
            orders.max_context,
        )  # fmt: skip
        self.cache = SharedCache(
            orders.spec, orders.blocks, orders.block_tokens, arena.memory, orders.cache_at,
            orders.dtype,
        )  # fmt: skip

    def _midway(self) -> None:
        """In the middle of a change, with the lock held: the orders may be to die here."""
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)

    def run(self) -> None:
        """Step after step, until it is over."""
        while not self.table.head[STOP] and os.getppid() == self.orders.parent:
            if not self.step():
                time.sleep(IDLE_S)

    def step(self) -> bool:
        """One step; False when there was nothing to do."""
        return False

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.orders.block_tokens)

    def compute(self, pieces: list[Piece]) -> list[int]:
        """The next token of each piece, with the step noted."""
        before_B, began = self.cache.written_B, time.monotonic_ns()
        made = self.model.greedy(pieces, self.cache)
        tokens = sum(len(piece.tokens) for piece in pieces)
        written = self.cache.written_B - before_B
        self.table.note(self.number, began, time.monotonic_ns(), tokens, written)
        return made

    def finish(self, request: int) -> None:
        """Its last token is made: its blocks are free again."""
        with self.book.lock:
            self.book.give(owner_of(self.number, request), self.table.held(request))
            self.table.move(request, DONE)


class PrefillPhase(Phase):
    """Takes the oldest waiting request for which there is room, whole."""

    number = PREFILL

    def step(self) -> bool:
        table, book = self.table, self.book
        waiting = table.in_state(WAITING)
        if not waiting:
            return False
        request = waiting[0]  # nobody overtakes the oldest
        length = table.length(request)
        # Some blocks stay free for those who decode, or they would be robbed at once.
        spare = len(table.in_state(READY, DECODING))
        with book.lock:
            blocks = book.take(owner_of(PREFILL, request), self.blocks_for(length), spare)
            if blocks is None:
                table.head[FULL] += 1
                return False
            table.rows[request, HELD] = 0  # a death just here may have left some
            table.hold(request, blocks)
            table.move(request, PREFILLING)
        tokens = table.tokens[request, :length].tolist()
        (token,) = self.compute([Piece(tokens, 0, blocks)])
        if table.make(request, token):
            self.finish(request)
            return True
        # Only now does decode see them, and all of them are complete. Owner and state change in
        # one hold of the lock: whoever cleans up after a death sees both or neither.
        with book.lock:
            book.pass_on(owner_of(PREFILL, request), owner_of(DECODE, request), blocks)
            table.move(request, READY)
        return True


class DecodePhase(Phase):
    """Everyone who is ready makes a token in each step; the youngest gives way when room is short.

    The oldest never gives way, so it always ends, and then the next one is the oldest.
    """

    number = DECODE

    def __init__(self, orders: Orders) -> None:
        super().__init__(orders)
        self.batch: list[int] = []

    def step(self) -> bool:
        table = self.table
        for request in table.in_state(READY):
            if len(self.batch) < self.orders.most_batch:
                table.move(request, DECODING)
                self.batch.append(request)
        self.batch.sort()
        ready = [request for request in list(self.batch) if self._room(request)]
        ready = [request for request in ready if request in self.batch]
        if not ready:
            return False
        pieces = []
        for request in ready:
            at = table.length(request) - 1
            pieces.append(Piece([int(table.tokens[request, at])], at, table.held(request)))
        for request, token in zip(ready, self.compute(pieces), strict=True):
            if table.make(request, token):
                self.finish(request)
                self.batch.remove(request)
        return True

    def _room(self, request: int) -> bool:
        """Whether a request has room for one more token, after younger ones gave way for it."""
        if request not in self.batch:
            return False
        table, book = self.table, self.book
        have, need = len(table.held(request)), self.blocks_for(table.length(request))
        while have < need:
            more = book.take(owner_of(DECODE, request), need - have)
            if more is not None:
                table.hold(request, more)
                return True
            younger = [each for each in (*self.batch, *table.in_state(READY)) if each > request]
            if not younger:
                return False  # it waits for this step
            self._preempt(max(younger))
        return True

    def _preempt(self, request: int) -> None:
        """Give its blocks back; it begins again with the tokens that it has."""
        table = self.table
        with self.book.lock:
            self.book.give(owner_of(DECODE, request), table.held(request))
            table.rows[request, PREEMPTED] += 1
            table.move(request, WAITING)
        if request in self.batch:
            self.batch.remove(request)


PHASES = {"prefill": PrefillPhase, "decode": DecodePhase}


def main(text: str) -> None:
    """Carry out the orders."""
    from orrery.models.real.backend import torch

    torch.set_num_threads(1)
    orders = msgspec.json.decode(text, type=Orders)
    PHASES[orders.phase](orders).run()


if __name__ == "__main__":
    main(sys.argv[1])
