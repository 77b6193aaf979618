"""The paged KV cache: numbered blocks of memory, and the pool that says whose they are.

`PagedPool` keeps the rules of the modelled replica's `KVPool`, with a number for each block.
`PagedCache` is the memory itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from orrery.base.errors import UsageError
from orrery.models.real.backend import torch
from orrery.models.specs import ModelSpec

BLANK = -1  # held, but without a key


class Piece(NamedTuple):
    """What one sequence adds to a step.

    tokens   the tokens to compute, one or more
    start    how many of its tokens are in the cache already
    table    its blocks, enough for start + len(tokens)
    sample   whether the token after the last one is wanted
    """

    tokens: Sequence[int]
    start: int
    table: Sequence[int]
    sample: bool = True


class PagedPool:
    """A fixed number of numbered blocks, with the rules of `orrery.models.kv.KVPool`.

    A block has a key once it is full; equal prefixes share blocks; a block that nobody holds keeps
    its content until it is needed, and the one that was free for the longest time goes first.

    >>> pool = PagedPool(4, 16)
    >>> numbers = pool.take_blocks(2)
    >>> held = [pool.fill_block(key, number) for key, number in zip([7, 8], numbers)]
    >>> pool.give_back(held, numbers)
    >>> pool.match([7, 8, 9]), pool.free, pool.hold_blocks([7, 8]) == numbers
    (2, 4, True)
    """

    def __init__(self, blocks: int, block_tokens: int = 16, *, caching: bool = True) -> None:
        if blocks < 1 or block_tokens < 1:
            raise UsageError(
                f"PagedPool({blocks}, {block_tokens}): give at least one block of one token"
            )
        self.blocks, self.block_tokens, self.caching = blocks, block_tokens, caching
        self._number: dict[int, int] = {}  # key of content that is there -> its block
        self._holders: dict[int, int] = {}  # key of content in use -> how many hold it
        # Blocks that may be taken, oldest first, with the key of what they contain.
        self._free: OrderedDict[int, int] = OrderedDict((n, BLANK) for n in range(blocks))
        self._blank = 0  # taken, content without a key
        self.evicted = 0

    @property
    def free(self) -> int:
        """Blocks that can be taken, with or without content."""
        return len(self._free)

    def match(self, keys: Sequence[int]) -> int:
        """How many of the first keys are there."""
        number = self._number
        for count, key in enumerate(keys):
            if key not in number:
                return count
        return len(keys)

    def idle(self, keys: Iterable[int]) -> int:
        """How many of these keys nobody holds: holding them uses up free blocks."""
        return sum(key not in self._holders for key in keys)

    def alone(self, held: Iterable[int]) -> int:
        """How many of these held blocks nobody else holds: giving them back makes them free."""
        return sum(key == BLANK or self._holders[key] == 1 for key in held)

    def take_blocks(self, count: int) -> list[int] | None:
        """The numbers of `count` blocks for new content, or None, and nothing, if too few."""
        if count > len(self._free):
            return None
        taken = []
        for _ in range(count):
            number, key = self._free.popitem(last=False)
            if key != BLANK:
                del self._number[key]
                self.evicted += 1
            taken.append(number)
        self._blank += len(taken)
        return taken

    def hold_blocks(self, keys: Sequence[int]) -> list[int]:
        """Share blocks that are there; their numbers."""
        for key in keys:
            if key in self._holders:
                self._holders[key] += 1
            else:
                del self._free[self._number[key]]
                self._holders[key] = 1
        return [self._number[key] for key in keys]

    def fill_block(self, key: int, number: int) -> int:
        """A taken block is full; what it is held as: its key, or BLANK for a copy."""
        if not self.caching or key in self._number:
            return BLANK
        self._number[key], self._holders[key] = number, 1
        self._blank -= 1
        return key

    def give_back(self, held: Sequence[int], numbers: Sequence[int]) -> None:
        """Return blocks, given what they are held as; the end of a sequence goes first."""
        if len(held) != len(numbers):
            raise UsageError(f"give_back: {len(held)} holdings, {len(numbers)} blocks")
        for key, number in zip(reversed(held), reversed(numbers), strict=True):
            if key == BLANK:
                self._blank -= 1
                self._free[number] = BLANK
                continue
            self._holders[key] -= 1
            if not self._holders[key]:
                del self._holders[key]
                self._free[number] = key

    def forget(self) -> None:
        """Lose the content of all free blocks."""
        for number, key in self._free.items():
            if key != BLANK:
                del self._number[key]
            self._free[number] = BLANK

    def faults(self) -> list[str]:
        """What is wrong with the books; empty when every block is accounted for once."""
        found = []
        counted = len(self._free) + len(self._holders) + self._blank
        if counted != self.blocks:
            found.append(f"{counted} blocks counted, {self.blocks} there")
        kept = {key for key in self._free.values() if key != BLANK}
        if self._number.keys() != kept | self._holders.keys() or kept & self._holders.keys():
            found.append("the keys of blocks held and free are not those of the blocks there")
        if len(set(self._number.values())) != len(self._number):
            found.append("one block stands under two keys")
        if self._blank < 0 or any(count < 1 for count in self._holders.values()):
            found.append("a block was given back twice")
        return found


class PagedCache:
    """Keys and values of all layers: `[layer][block, place in block, head, width]`.

    With latent attention (MLA) only the latent vector and the rotated key are kept, and the values
    are the first part of the keys. `spare` adds a block that nobody is given: padding writes there.
    """

    def __init__(
        self, spec: ModelSpec, blocks: int, block_tokens: int, *, device: str, dtype: Any,
        spare: bool = False,
    ) -> None:  # fmt: skip
        if blocks < 1 or block_tokens < 1:
            raise UsageError(f"a cache of {blocks} blocks of {block_tokens} tokens; give 1 or more")
        self.blocks, self.block_tokens = blocks, block_tokens
        latent = spec.kv_lora_rank
        heads = 1 if latent else spec.kv_heads
        width = latent + spec.qk_rope_dim if latent else spec.head_dim
        shape = (spec.layers, blocks + spare, block_tokens, heads, width)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = self.keys[..., :latent] if latent else torch.zeros_like(self.keys)
        self._latent = bool(latent)

    @property
    def bytes(self) -> int:
        """Memory that it takes."""
        share = 1 if self._latent else 2
        return int(share * self.keys.numel() * self.keys.element_size())

    def write(self, layer: int, slots: Any, keys: Any, values: Any) -> None:
        """Put the keys and values of tokens into their slots (block * block_tokens + place)."""
        self.keys[layer].flatten(0, 1).index_copy_(0, slots, keys)
        if not self._latent:
            self.values[layer].flatten(0, 1).index_copy_(0, slots, values)


__all__ = ["BLANK", "PagedCache", "PagedPool", "Piece"]
