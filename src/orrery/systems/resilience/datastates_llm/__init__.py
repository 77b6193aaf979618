"""DataStates-LLM: checkpoints that are copied lazily, while forward and backward run.

`DataStates` is the part; `LazyCheckpointer` on a `CheckpointStore` is the same thing for a PyTorch
training loop of one's own. Names load when they are first used: the library has threads and files,
which a part may not touch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orrery.base.doors import door

_HERE = "orrery.systems.resilience.datastates_llm"
_HOMES = {
    "CheckpointStore": f"{_HERE}.store",
    "DataStates": f"{_HERE}.worker",
    "LazyCheckpointer": f"{_HERE}.library",
    "Ring": f"{_HERE}.ring",
}

__all__ = ["CheckpointStore", "DataStates", "LazyCheckpointer", "Ring"]

if TYPE_CHECKING:
    from orrery.systems.resilience.datastates_llm.library import LazyCheckpointer
    from orrery.systems.resilience.datastates_llm.ring import Ring
    from orrery.systems.resilience.datastates_llm.store import CheckpointStore
    from orrery.systems.resilience.datastates_llm.worker import DataStates

__getattr__, __dir__ = door(__name__, _HOMES)
