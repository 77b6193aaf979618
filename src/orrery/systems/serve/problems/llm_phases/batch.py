"""Requests on their way, the blocks that they hold, and the batch that decodes.

A decode step costs the same few operations however many sequences it has: sequences that cross into
a new block in a step are counted by a remainder, those that end in a step stand in a list for it.
"""

from __future__ import annotations

from orrery.systems.serve.problems.llm_phases.ports import Asked


class Live:
    """One request: what it asks, what is computed of it, and when its tokens came.

    made, computed   tokens made so far, and tokens in the cache, when it last changed its place
    tokens           when: a time for each token of a prefill, (engine, first, last step) for those
                     of decode steps
    """

    __slots__ = (
        "asked", "computed", "done", "first_s", "joined", "last_s", "made", "output",
        "preempted", "started_s", "to", "tokens",
    )  # fmt: skip

    def __init__(self, asked: Asked, output: int) -> None:
        self.asked, self.output = asked, output
        self.made = self.computed = self.done = self.joined = self.preempted = 0
        self.first_s = self.last_s = self.started_s = -1.0
        self.to = -1  # the decode engine where blocks are kept for it
        self.tokens: list[float | tuple[int, int, int]] = []

    @property
    def length(self) -> int:
        """Tokens to be in the cache before the next token can be made."""
        return self.asked.prompt_tokens + self.made

    def make(self, now_s: float) -> None:
        """A prefill made a token."""
        if not self.made:
            self.first_s = now_s
        self.computed = self.length
        self.made += 1
        self.last_s = now_s
        self.tokens.append(now_s)


class Pool:
    """Blocks of one cache: a count of free ones."""

    __slots__ = ("blocks", "free", "size")

    def __init__(self, blocks: int, size: int) -> None:
        self.blocks = self.free = blocks
        self.size = size

    def need(self, tokens: int) -> int:
        """Blocks that so many tokens fill."""
        return -(-tokens // self.size)

    def take(self, tokens: int, spare: int = 0) -> bool:
        """Blocks for so many tokens, if `spare` more than that are free."""
        need = -(-tokens // self.size)
        if need + spare > self.free:
            return False
        self.free -= need
        return True

    def give(self, tokens: int) -> None:
        """The blocks of so many tokens are free again."""
        self.free += -(-tokens // self.size)


class Decoding:
    """The sequences that make a token in each step of an engine, over its pool.

    kv      tokens of theirs in the cache; step, how many steps were made; ends, when each ended
    Who comes while a step is computed takes part from the next one on.
    """

    __slots__ = (
        "arriving", "batch", "counts", "ending", "ends", "index", "kv", "pool", "step", "under_way",
    )  # fmt: skip

    def __init__(self, pool: Pool, index: int) -> None:
        self.pool, self.index = pool, index
        self.batch: dict[int, Live] = {}
        self.arriving: list[Live] = []
        self.under_way = False
        self.kv = self.step = 0
        self.counts = [0] * pool.size
        self.ending: dict[int, list[Live]] = {}
        self.ends: list[float] = []

    def join(self, live: Live) -> None:
        """A sequence whose `computed` tokens are in blocks that it holds."""
        if self.under_way:
            self.arriving.append(live)
            return
        self.batch[live.asked.id] = live
        live.joined = self.step
        self.kv += live.computed
        self.counts[(self.step - live.computed) % self.pool.size] += 1
        self.ending.setdefault(self.step + live.output - live.made, []).append(live)

    def begin(self) -> list[Live]:
        """Take the blocks of the next step; who lost theirs for it, the newest first."""
        pool, lost = self.pool, []
        while self.batch and self.counts[self.step % pool.size] > pool.free:
            newest = next(reversed(self.batch.values()))
            end = newest.joined + newest.output - newest.made
            self.ending[end].remove(newest)
            self._leave(newest)
            newest.preempted += 1
            lost.append(newest)
        pool.free -= self.counts[self.step % pool.size]
        self.under_way = bool(self.batch)
        return lost

    def end(self, now_s: float) -> list[Live]:
        """The step is over; who made the last token."""
        self.kv += len(self.batch)
        self.step += 1
        self.ends.append(now_s)
        over = self.ending.pop(self.step, [])
        for live in over:
            self._leave(live)
            live.last_s = now_s
        self.under_way = False
        for live in self.arriving:
            self.join(live)
        self.arriving = []
        return over

    def _leave(self, live: Live) -> None:
        """Out of the batch, its blocks free, its books up to date."""
        made = self.step - live.joined
        del self.batch[live.asked.id]
        self.counts[(live.joined - live.computed) % self.pool.size] -= 1
        if made:
            live.tokens.append((self.index, live.joined, self.step))
        live.made += made
        live.computed += made
        self.kv -= live.computed
        self.pool.give(live.computed)
        live.done = 0

    def held(self) -> int:
        """Blocks that the batch holds between two steps."""
        size = self.pool.size
        held = sum(
            -(-(live.computed + self.step - live.joined) // size) for live in self.batch.values()
        )
        return held + sum(-(-live.computed // size) for live in self.arriving)


__all__ = ["Decoding", "Live", "Pool"]
