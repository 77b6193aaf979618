"""Shared processors: what messages, transfers and disk calls cost when nodes share one machine.

A world of machines has no need of this: there a message costs the network's time. On one machine
with few cores the network is memory, and nearly all of the time is processor time at both ends.
`orrery calibrate` measures these figures; the virtual engine makes nodes wait for the cores, also
for what they compute at a price on their CPU (`compute`).
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from orrery.world.spec import NonNegative, Positive, Spec, Text

Cores = Annotated[int, Meta(ge=1, le=1024)]


class Bend(Spec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From so many bytes on, each further byte costs this."""

    label: ClassVar[str] = "bend"
    from_B: Positive
    per_B_s: NonNegative


class Cost(Spec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Processor seconds of one operation: a fixed part, and a part for each byte.

    What a byte costs changes with the size of the whole, as larger buffers leave the caches or are
    mapped anew each time; `bends` say where, in rising order.
    """

    label: ClassVar[str] = "cost"
    fixed_s: NonNegative = 0.0
    per_B_s: NonNegative = 0.0
    bends: tuple[Bend, ...] = ()

    def _check(self) -> None:
        starts = [bend.from_B for bend in self.bends]
        if starts != sorted(set(starts)):
            raise self._refuse("bends", f"sizes {starts} do not rise", "sort them by from_B")

    def seconds(self, size_B: float) -> float:
        """The processor time of an operation on so many bytes.

        >>> bent = Cost(fixed_s=1.0, per_B_s=0.5, bends=(Bend(from_B=10, per_B_s=2.0),))
        >>> bent.seconds(4), bent.seconds(12)
        (3.0, 10.0)
        """
        took_s, at_B, per_B_s = self.fixed_s, 0.0, self.per_B_s
        for bend in self.bends:
            if size_B <= bend.from_B:
                break
            took_s += (bend.from_B - at_B) * per_B_s
            at_B, per_B_s = bend.from_B, bend.per_B_s
        return took_s + (size_B - at_B) * per_B_s


class Processors(Spec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cores that all nodes of a world and its driver share, and what uses them.

    cores                      how many there are; each node is single-threaded besides
    send, receive              a message, at the node that sends it and the one that gets it
    transfer_out, transfer_in  a bulk array, likewise
    write, sync                a write or an append, and an fsync (which leaves its node free)
    report, hear               what a node emits: at the node, and at the driver that records it
    wake_s                     what a message or array costs more that finds its node idle
    own                        what the part itself computes for each message or array that it gets
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
    wake_s: NonNegative = 0.0
    own: Cost = Cost()
    flush_Bps: Positive | None = None
    source: Text = ""


__all__ = ["Bend", "Cost", "Processors"]
