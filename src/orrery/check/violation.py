"""What a checker answers: violations, and the three-valued verdict of a bounded search."""

from __future__ import annotations

import msgspec

from orrery.base.violation import Violation


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


__all__ = ["Verdict", "Violation"]
