"""xTensor: a contiguous virtual space of keys and values for each request, over pages on demand.

A request sees one array that is as long as its longest possible answer. Behind it lie physical
pages, which are mapped only when tokens reach them; pages of a request that ended are used again,
if possible with the very mapping that they have. Attention then reads a plain array: no table of
blocks, no gathering.

Two backends. `mapped` (Linux) is the real thing on the host: an anonymous file holds the pages, and
each page is mapped into a reserved range of addresses with mmap(MAP_FIXED). `table` keeps a table
of pages and gathers on reading; it works everywhere, and its table serves engines whose memory is
addressed by blocks.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from typing import Any

import numpy as np

from orrery.base.errors import PlatformLacks, UsageError

_READ_WRITE, _NONE = 3, 0
_SHARED, _PRIVATE, _FIXED, _ANONYMOUS, _NO_RESERVE = 1, 2, 0x10, 0x20, 0x4000
_FAILED = ctypes.c_void_p(-1).value


class Space:
    """One request's space: the pages behind it in order, and how many tokens it may reach."""

    __slots__ = ("address", "array", "length", "most", "pages")

    def __init__(self, most: int, address: int, array: Any) -> None:
        self.most, self.address, self.array = most, address, array
        self.pages: list[int] = []
        self.length = 0  # tokens in use


class XTensor:
    """Pages of `page_tokens` tokens each; a token's record has `width` float64 numbers.

    >>> memory = XTensor(pages=8, page_tokens=4, width=2, backend="table")
    >>> memory.open(7, most=20); memory.reach(7, 5)
    >>> memory.view(7).shape, memory.free, memory.faults()
    ((5, 2), 6, [])
    """

    def __init__(
        self, *, pages: int, page_tokens: int, width: int, backend: str = "auto", reuse: bool = True
    ) -> None:
        if pages < 1 or page_tokens < 1 or width < 0:
            raise UsageError(
                f"XTensor({pages}, {page_tokens}, {width}): give at least one page of one token"
            )
        self.pages, self.page_tokens, self.width, self.reuse = pages, page_tokens, width, reuse
        size_B = page_tokens * width * 8
        fits = sys.platform == "linux" and hasattr(os, "memfd_create") and width > 0
        fits = fits and size_B % mmap.PAGESIZE == 0
        if backend == "auto":
            backend = "mapped" if fits else "table"
        if backend not in ("mapped", "table"):
            raise UsageError(f"backend {backend!r} is unknown; give auto, mapped or table")
        if backend == "mapped" and not fits:
            raise PlatformLacks(
                f"pages of {size_B} bytes cannot be mapped here; use Linux and a multiple of "
                f'{mmap.PAGESIZE} bytes, or backend="table"'
            )
        self.backend, self.page_B = backend, size_B
        self.spaces: dict[int, Space] = {}
        self._free = list(range(pages))[::-1]
        self._idle: list[Space] = []  # spaces of requests that ended, still mapped
        self.mappings = self.reused = 0
        self._closed = False
        if backend == "mapped":
            self._libc()
            self._file = os.memfd_create("xtensor")
            os.ftruncate(self._file, pages * size_B)
        else:
            self._store = np.zeros((pages, page_tokens, width))

    # -- requests

    @property
    def free(self) -> int:
        """Pages that a request could get: unmapped ones, and those that wait to be used again."""
        return len(self._free) + sum(len(space.pages) for space in self._idle)

    def open(self, owner: int, most: int) -> None:
        """Reserve a space for a request of at most so many tokens; no page is taken."""
        if owner in self.spaces:
            raise UsageError(f"request {owner} has a space already; close it first")
        if most < 1:
            raise UsageError(f"request {owner}: room for {most} tokens; give at least 1")
        for at, space in enumerate(self._idle):
            if space.most >= most:
                del self._idle[at]
                self.reused += len(space.pages)
                space.length = 0
                self.spaces[owner] = space
                return
        self.spaces[owner] = self._reserve(most)

    def fits(self, owner: int, tokens: int) -> bool:
        """Whether the pages that so many tokens need are there."""
        space = self._space(owner)
        return -(-min(tokens, space.most) // self.page_tokens) - len(space.pages) <= self.free

    def reach(self, owner: int, tokens: int) -> None:
        """Map the pages that so many tokens need; all of them, or none and a named error."""
        space = self._space(owner)
        if tokens > space.most:
            raise UsageError(f"request {owner}: {tokens} tokens, its space has room for "
                             f"{space.most}")  # fmt: skip
        need = -(-tokens // self.page_tokens) - len(space.pages)
        while need > len(self._free) and self._idle:
            self._unmap(self._idle.pop(0))
        if need > len(self._free):
            raise UsageError(f"request {owner} needs {need} pages, {len(self._free)} are free; "
                             "let fewer requests in, or preempt one")  # fmt: skip
        for _ in range(need):
            page = self._free.pop()
            self._map(space, len(space.pages), page)
            space.pages.append(page)
            self.mappings += 1
        space.length = max(space.length, tokens)

    def cut(self, owner: int, tokens: int) -> None:
        """Forget the tokens from here on, as after rejected drafts; the pages stay mapped."""
        space = self._space(owner)
        space.length = min(space.length, tokens)

    def view(self, owner: int) -> np.ndarray:
        """The records of a request's tokens, [tokens, width]; in `mapped` no byte is copied.

        What it gives must not be used after the request is closed: its pages may have moved on.
        """
        space = self._space(owner)
        if self.backend == "mapped":
            return space.array[: space.length]
        rows = self._store[space.pages].reshape(-1, self.width)
        return rows[: space.length]

    def write(self, owner: int, start: int, rows: np.ndarray) -> None:
        """Put the records of tokens from `start` on; their pages must be mapped."""
        space = self._space(owner)
        if start + len(rows) > space.length:
            raise UsageError(f"request {owner}: tokens up to {start + len(rows)} written, "
                             f"{space.length} reached; call reach first")  # fmt: skip
        if self.backend == "mapped":
            space.array[start : start + len(rows)] = rows
            return
        for at, row in enumerate(rows, start):
            self._store[space.pages[at // self.page_tokens], at % self.page_tokens] = row

    def close(self, owner: int) -> None:
        """A request is over; its pages can be used again."""
        space = self._space(owner)
        del self.spaces[owner]
        if self.reuse and space.pages:
            self._idle.append(space)
        else:
            self._unmap(space)

    def _space(self, owner: int) -> Space:
        if owner not in self.spaces:
            raise UsageError(f"request {owner} has no space; open one first")
        return self.spaces[owner]

    # -- the account

    def faults(self) -> list[str]:
        """What is wrong with the books: a page lost, mapped twice, or both free and mapped."""
        found = []
        mapped = [page for space in (*self.spaces.values(), *self._idle) for page in space.pages]
        if len(set(mapped)) != len(mapped):
            twice = sorted({page for page in mapped if mapped.count(page) > 1})
            found.append(f"pages mapped twice: {twice[:5]}")
        both = sorted(set(mapped) & set(self._free))
        if both:
            found.append(f"pages both free and mapped: {both[:5]}")
        if len(set(mapped) | set(self._free)) != self.pages:
            lost = self.pages - len(set(mapped) | set(self._free))
            found.append(f"{lost} pages are lost")
        for owner, space in self.spaces.items():
            if len(space.pages) * self.page_tokens < space.length:
                found.append(f"request {owner}: {space.length} tokens on {len(space.pages)} pages")
        return found

    # -- memory

    def _libc(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._mmap, self._munmap = libc.mmap, libc.munmap
        self._mmap.restype = ctypes.c_void_p
        self._mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int,
                               ctypes.c_int, ctypes.c_long]  # fmt: skip
        self._munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

    def _call(self, address: int | None, size_B: int, may: int, how: int, file: int,
              offset: int) -> int:  # fmt: skip
        found = self._mmap(address, size_B, may, how, file, offset)
        if found is None or found == _FAILED:
            reason = os.strerror(ctypes.get_errno())
            raise PlatformLacks(f'mmap failed: {reason}; use backend="table"')
        return int(found)

    def _reserve(self, most: int) -> Space:
        if self.backend == "table":
            return Space(most, 0, None)
        count = -(-most // self.page_tokens)
        how = _PRIVATE | _ANONYMOUS | _NO_RESERVE
        address = self._call(None, count * self.page_B, _NONE, how, -1, 0)
        numbers = count * self.page_tokens * self.width
        flat = (ctypes.c_double * numbers).from_address(address)
        array = np.frombuffer(flat, np.float64).reshape(-1, self.width)
        return Space(count * self.page_tokens, address, array)

    def _map(self, space: Space, place: int, page: int) -> None:
        if self.backend == "mapped":
            at = space.address + place * self.page_B
            self._call(at, self.page_B, _READ_WRITE, _SHARED | _FIXED, self._file,
                       page * self.page_B)  # fmt: skip

    def _unmap(self, space: Space) -> None:
        """Give a space's pages and addresses back."""
        self._free += space.pages
        space.pages = []
        if self.backend == "mapped" and space.address:
            space.array = None
            count = -(-space.most // self.page_tokens)
            self._munmap(space.address, count * self.page_B)
            space.address = 0

    def shut(self) -> None:
        """Give everything back to the system; the manager cannot be used after."""
        if self._closed:
            return
        self._closed = True
        for space in (*self.spaces.values(), *self._idle):
            self._unmap(space)
        self.spaces.clear()
        self._idle.clear()
        if self.backend == "mapped":
            os.close(self._file)


__all__ = ["Space", "XTensor"]
