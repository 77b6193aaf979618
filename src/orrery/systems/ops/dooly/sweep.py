"""Which request sizes are measured of each key: the limits of the engine, and nothing else."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from orrery.models.specs import ModelSpec
from orrery.systems.ops.dooly.operators import BLOCK_TOKENS, STATE, Use, sizes_of
from orrery.systems.ops.dooly.origins import parse

Point = tuple[int, ...]
Count = Annotated[int, Meta(ge=1, le=1 << 20)]
GRID = (
    1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 16384, 32768, 65536,
)  # fmt: skip


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of an engine, and how many points are measured within them.

    step_tokens     the most tokens of a step
    max_sequences   the most requests at once
    max_context     the longest context
    contexts        how many lengths of context are measured for attention
    """

    step_tokens: Count = 2048
    max_sequences: Count = 256
    max_context: Count = 8192
    contexts: Count = 4
    block_tokens: Count = BLOCK_TOKENS

    def points(self, use: Use, model: ModelSpec) -> list[Point]:
        """The points of one key as a model uses it."""
        if use.key.kind == STATE:
            return self.batches()
        return [(size,) for size in self.sizes(self.limit(use, model))]

    def limit(self, use: Use, model: ModelSpec) -> int:
        """The largest request size at which a use can be met."""
        if use.at == "?":
            return self.step_tokens  # at worst every token chooses the same expert
        if not use.at:
            return 1
        sizes = sizes_of(model, self.block_tokens)
        sizes |= {"tokens": self.step_tokens, "rows": self.max_sequences}
        return int(parse(use.at).value(sizes))

    @staticmethod
    def sizes(limit: int) -> list[int]:
        """The grid up to a limit, and the limit."""
        return [*(size for size in GRID if size < limit), limit]

    def batches(self) -> list[Point]:
        """Batches for attention: decodes alone, prompt chunks alone, and both together."""
        longest = self.max_context
        lengths = sorted({max(2, longest >> (2 * n)) for n in range(self.contexts)})
        counts = _doubling(1, self.max_sequences)
        found = [batch((), n, n * length) for n in counts for length in lengths]
        for new in _doubling(8, min(self.step_tokens, longest)):
            pasts = {0, *(length - new for length in lengths if length > new)}
            found += [batch(((new, past),), 0, 0) for past in sorted(pasts)]
        half = max(1, self.max_sequences // 2)
        chunk = max(1, min(self.step_tokens - half, longest) // 2)
        for length in lengths:
            found.append(batch(((chunk, 0),), half, half * length))
            if self.step_tokens >= 2 * chunk + 1:
                found.append(batch(((chunk, 0), (max(1, chunk // 2), 0)), 1, length))
        return list(dict.fromkeys(found))


def _doubling(first: int, last: int) -> list[int]:
    found = [first << n for n in range(24) if first << n < last]
    return [*found, last]


def batch(prefill: tuple[tuple[int, int], ...], decodes: int, decode_kv: int) -> Point:
    """A batch as a point: decodes, their context, then (new, past) of each chunk."""
    return (decodes, decode_kv, *(n for chunk in prefill for n in chunk))


def shape_of(point: Point) -> tuple[tuple[tuple[int, int], ...], int, int]:
    """The batch of a point.

    >>> shape_of(batch(((8, 2),), 3, 40))
    (((8, 2),), 3, 40)
    """
    rest = point[2:]
    return tuple((rest[i], rest[i + 1]) for i in range(0, len(rest), 2)), point[0], point[1]


__all__ = ["GRID", "Point", "Sweep", "batch", "shape_of"]
