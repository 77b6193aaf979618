"""Nitsum's controller without its mechanism: every change reloads."""

from __future__ import annotations

from orrery.systems.serve.nitsum.policy import Nitsum


class TPAdaptiveCold(Nitsum):
    """Adaptive tensor parallelism with cold reload: the same model, no reuse, no migration.

    It estimates, chooses and schedules as Nitsum does, and knows what its own changes cost: the
    instances that go are drained, then whole shards are read from disk, one set of GPUs after the
    other.
    """

    reuse = False
    migrate = False


__all__ = ["TPAdaptiveCold"]
