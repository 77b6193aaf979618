"""Direct exchange: everyone sends to everyone at once."""

from __future__ import annotations

from orrery.parts.collectives import Collective


class Direct(Collective):
    """Send straight to whom it concerns, all at once (the base algorithms of `Collective`).

    An all-reduce is a reduce-scatter and an all-gather in which each rank sends n - 1 messages at
    once. It takes two latencies and as many bytes as a ring, but n (n - 1) messages are under way
    together, so it suits a few ranks, small arrays and a switch that never blocks. Reductions go
    in rank order and equal a plain loop over the ranks bit for bit.

    >>> Direct().sent_B("all_reduce", rank=0, items=[25, 25, 25, 25], itemsize=4)
    600
    """
