"""What a checker answers: violations, and the three-valued verdict of a bounded search."""

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
    evidence: tuple[Any, ...] | dict[str, Any] = ()

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a search that may run out of budget.

    `ok` is True (proved), False (refuted, see `violation`) or None (unknown: the budget ran out).
    `explored` counts the steps of search that were taken; the near-linear algorithms take none.
    A verdict is truthy only when it is proved, so ``assert verdict`` never passes an unknown.
    """

    ok: bool | None
    violation: Violation | None = None
    explored: int = 0

    @property
    def violations(self) -> list[Violation]:
        """The violation as a list, for callers that gather from many checkers."""
        return [] if self.violation is None else [self.violation]

    def __bool__(self) -> bool:
        return self.ok is True
