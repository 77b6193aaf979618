"""No checkpoints: what training costs by itself, and what a failure costs without them."""

from __future__ import annotations

from typing import ClassVar

from orrery.systems.resilience.problems.checkpointer import Checkpointer


class NoCheckpoints(Checkpointer):
    """Keep nothing; after a failure all begins anew.

    The line below all ways to checkpoint while nothing fails, and the one above them when something
    does. Knobs: none of its own. Differs from practice: nobody trains a large model like this.

    >>> NoCheckpoints().keeps
    False
    """

    keeps: ClassVar[bool] = False

    async def save(self, iteration: int) -> None:
        """Nothing is kept."""
