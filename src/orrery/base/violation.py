"""`Violation`: something that must not happen, did."""

from __future__ import annotations

from typing import Any

import msgspec


class Violation(msgspec.Struct, frozen=True):
    """One broken promise: a short `kind`, a sentence, and the evidence that shows it.

    `kind` is one word to count and filter by, such as ``stale_read``. `evidence` is plain data (the
    operations, nodes or messages involved), small enough to read and enough to check again.
    """

    kind: str
    message: str
    evidence: Any = ()
    time_s: float | None = None
    node: int | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"
