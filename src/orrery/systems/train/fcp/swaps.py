"""Local swaps: exchange two units of like work so that workers fetch fewer keys and values."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from orrery.models.shards import Block

# How many partners of like work are looked at for one block at one worker.
PARTNERS = 4


def fetched(blocks: Sequence[Block], length: int, causal: bool) -> int:
    """Rows of K and V that a worker must fetch for its blocks of one document.

    >>> fetched([Block(0, 0, 10), Block(0, 30, 40)], 100, True)
    20
    """
    if not blocks:
        return 0
    reach = max(block.stop for block in blocks) if causal else length
    return reach - sum(block.stop - block.start for block in blocks)


class _Search:
    """The state of a search: which worker has which blocks of which document."""

    def __init__(self, units: list[list[Any]], load: npt.NDArray[Any], room: npt.NDArray[Any],
                 causal: bool, lengths: Sequence[int]) -> None:  # fmt: skip
        self.units, self.load, self.room = units, load, room
        self.causal, self.lengths = causal, lengths
        self.most = float(load.max()) if len(load) else 0.0
        self.at: dict[int, dict[int, list[Block]]] = {}
        for worker, mine in enumerate(units):
            mine.sort(key=lambda unit: (unit.work, unit.block))
            for unit in mine:
                self.at.setdefault(unit.block.document, {}).setdefault(worker, []).append(
                    unit.block
                )

    def _cost(self, worker: int, document: int, less: Block | None, more: Block | None) -> int:
        """Rows that a worker would fetch of a document, without one block and with another."""
        blocks = [b for b in self.at[document].get(worker, ()) if b != less]
        return fetched([*blocks, more] if more else blocks, self.lengths[document], self.causal)

    def gain(self, a: int, x: Any, b: int, y: Any) -> int:
        """Rows saved when worker a gives x to b for y."""
        dx, dy = x.block.document, y.block.document
        if dx == dy:  # of one document, both sides change at once
            before = self._cost(a, dx, None, None) + self._cost(b, dx, None, None)
            return (
                before - self._cost(a, dx, x.block, y.block) - self._cost(b, dx, y.block, x.block)
            )
        before = sum(self._cost(w, d, None, None) for w in (a, b) for d in (dx, dy))
        after = self._cost(a, dx, x.block, None) + self._cost(a, dy, None, y.block)
        return before - after - self._cost(b, dy, y.block, None) - self._cost(b, dx, None, x.block)

    def fits(self, a: int, x: Any, b: int, y: Any) -> bool:
        """Whether neither worker becomes the busiest, or exceeds its tokens."""
        more = x.tokens - y.tokens
        grown = x.work - y.work
        return bool(
            self.room[b] >= more and self.room[a] >= -more
            and self.load[b] + grown <= self.most and self.load[a] - grown <= self.most
        )  # fmt: skip

    def apply(self, a: int, x: Any, b: int, y: Any) -> None:
        for worker, gone, come in ((a, x, y), (b, y, x)):
            mine = self.units[worker]
            mine.remove(gone)
            bisect.insort(mine, come, key=lambda unit: (unit.work, unit.block))
            self.load[worker] += come.work - gone.work
            self.room[worker] += gone.tokens - come.tokens
            left = self.at[gone.block.document][worker]
            left.remove(gone.block)
            if not left:
                del self.at[gone.block.document][worker]
            self.at[come.block.document].setdefault(worker, []).append(come.block)

    def partners(self, work: int, worker: int) -> list[Any]:
        """Units of a worker whose work is nearest to a given one."""
        mine = self.units[worker]
        middle = bisect.bisect_left(mine, work, key=lambda unit: unit.work)
        low = max(middle - PARTNERS // 2, 0)
        return mine[low : low + PARTNERS]


def swap(units: list[list[Any]], load: npt.NDArray[Any], room: npt.NDArray[Any], causal: bool,
         lengths: Sequence[int], tries: int) -> int:  # fmt: skip
    """Exchange units in place while that saves rows to fetch; gives the rows saved.

    For each document that is spread, the workers with the fewest blocks of it offer these to the
    others that have some, against a unit of like work. The busiest worker gets no busier and no
    worker exceeds its tokens. At most `tries` pairs are looked at.
    """
    search, saved = _Search(units, load, room, causal, lengths), 0
    for document in sorted(search.at):
        holders = search.at[document]
        if len(holders) < 2:
            continue
        for a in sorted(holders, key=lambda w: (len(holders[w]), w)):
            for block in list(holders.get(a, ())):
                x = next(unit for unit in units[a] if unit.block == block)
                for b in sorted(holders, key=lambda w: (-len(holders[w]), w)):
                    if b == a:
                        continue
                    if tries <= 0:
                        return saved
                    found = _best(search, a, x, b)
                    tries -= PARTNERS
                    if found is not None:
                        saved += search.gain(a, x, b, found)
                        search.apply(a, x, b, found)
                        break
    return saved


def _best(search: _Search, a: int, x: Any, b: int) -> Any:
    """The partner at worker b whose exchange for x saves most; None where none saves any."""
    best, most = None, 0
    for y in search.partners(x.work, b):
        if search.fits(a, x, b, y):
            gain = search.gain(a, x, b, y)
            if gain > most:
                best, most = y, gain
    return best


__all__ = ["fetched", "swap"]
