"""`Arena`: memory that the nodes share; the twin of the one that processes map."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from orrery.base.errors import PartError

MOST_ARENA_B = 1 << 40


class Arena(bytearray):
    """Shared bytes: index and slice it, or wrap it with `numpy.frombuffer`.

    Nodes take turns in virtual time and `locked()` may not be held across a wait, so nobody else
    can be inside: the lock has nothing to do here, and is real in the processes engine.
    """

    def __init__(self, name: str, size: int) -> None:
        if not isinstance(size, int) or isinstance(size, bool) or not 0 < size <= MOST_ARENA_B:
            raise PartError(f"arena {name!r}: size {size!r} is refused; give 1 to {MOST_ARENA_B}")
        super().__init__(size)
        self._name = name

    def check_size(self, size: int) -> None:
        if len(self) != size:
            raise PartError(
                f"arena {self._name!r} has {len(self)} bytes, not {size}; ask for its size"
            )

    @contextlib.contextmanager
    def locked(self) -> Iterator[Arena]:
        """Keep all others out."""
        yield self
