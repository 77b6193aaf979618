"""Shared processors: what messages, transfers and disk calls cost when nodes share one machine.

A world of machines has no need of this: there a message costs the network's time. On one machine
with few cores the network is memory, and nearly all of the time is processor time at both ends.
`orrery calibrate` measures these figures; the virtual engine makes nodes wait for the cores.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from orrery.world.spec import NonNegative, Positive, Spec, Text

Cores = Annotated[int, Meta(ge=1, le=1024)]


class Cost(Spec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Processor seconds of one operation: a fixed part, and a part for each byte.

    Bytes beyond `Processors.large_B` cost `large_per_B_s` each, as buffers that large leave the
    caches and are mapped anew each time; left out, they cost `per_B_s` like the others.
    """

    label: ClassVar[str] = "cost"
    fixed_s: NonNegative = 0.0
    per_B_s: NonNegative = 0.0
    large_per_B_s: NonNegative | None = None

    def seconds(self, size_B: float, large_B: float) -> float:
        """The processor time of an operation on so many bytes.

        >>> Cost(fixed_s=1.0, per_B_s=0.5, large_per_B_s=2.0).seconds(12, large_B=10)
        10.0
        """
        beyond = self.per_B_s if self.large_per_B_s is None else self.large_per_B_s
        near_B = min(size_B, large_B)
        return self.fixed_s + near_B * self.per_B_s + (size_B - near_B) * beyond


class Processors(Spec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cores that all nodes of a world and its driver share, and what uses them.

    cores                      how many there are; each node is single-threaded besides
    send, receive              a message, at the node that sends it and the one that gets it
    transfer_out, transfer_in  a bulk array, likewise
    write, sync                a write or an append, and an fsync (which leaves its node free)
    report, hear               what a node emits: at the node, and at the driver that records it
    large_B                    from how many bytes on a byte costs `large_per_B_s`
    flush_Bps                  what one disk under all nodes writes at an fsync; left out, each
                               node has a disk of its own
    """

    label: ClassVar[str] = "processors"
    cores: Cores
    send: Cost = Cost()
    receive: Cost = Cost()
    transfer_out: Cost = Cost()
    transfer_in: Cost = Cost()
    write: Cost = Cost()
    sync: Cost = Cost()
    report: Cost = Cost()
    hear: Cost = Cost()
    # The size from which the C library maps memory anew for each buffer (M_MMAP_THRESHOLD).
    large_B: Positive = 131072.0
    flush_Bps: Positive | None = None
    source: Text = ""


__all__ = ["Cost", "Processors"]
