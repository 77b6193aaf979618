"""Python's collector of cycles, kept from looking too often."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

# New objects before the collector looks. Python's own 700 suit a small program: a run of thousands
# of nodes keeps millions of objects alive, makes hardly a cycle, and spent 30 % of its time on it.
YOUNG = 20_000
# Looks at the younger ones before all are looked at; Python's own is 10.
OLD = 100


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Meanwhile collect cycles rarely; a collector that is off, or looks more rarely, stays so."""
    before = gc.get_threshold()
    if not 0 < before[0] < YOUNG:
        yield
        return
    gc.set_threshold(YOUNG, before[1], max(before[2], OLD))
    try:
        yield
    finally:
        gc.set_threshold(*before)


__all__ = ["rare_collections"]
