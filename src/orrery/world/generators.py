"""Fault generators: data in a world, drawn into concrete faults from the seed of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from orrery.base.rand import Stream
from orrery.world.faults import Crash, Fault, Partition, Seconds, Target
from orrery.world.spec import Positive

if TYPE_CHECKING:
    from orrery.world.world import World

MOST_DRAWN = 100_000
Span = tuple[Seconds, Seconds]


class _Generator(Fault, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Draws `count` faults, or about `rate_per_s` of them a second, in the span `between_s`."""

    count: Annotated[int, Meta(ge=1, le=MOST_DRAWN)] | None = None
    rate_per_s: Positive | None = None
    between_s: Span = (0.0, 10.0)
    # Not `Span | Positive`: msgspec 0.22 crashes on a union of a fixed tuple and a bounded number.
    down_s: tuple[Seconds, ...] | Positive = (0.1, 1.0)

    def _prepare(self) -> None:
        if isinstance(self.down_s, (int, float)) and not isinstance(self.down_s, bool):
            down_s = float(self.down_s)
            msgspec.structs.force_setattr(self, "down_s", (down_s, down_s))

    def _check(self) -> None:
        Fault._check(self)
        if self.at_s != 0.0 or self.until_s is not None:
            name = "at_s" if self.at_s != 0.0 else "until_s"
            raise self._refuse(name, "means nothing here", "give between_s")
        if (self.count is None) == (self.rate_per_s is None):
            fix = "give count or rate_per_s, and only one"
            raise self._refuse("count", f"is {self.count} with rate {self.rate_per_s}", fix)
        for name in ("between_s", "down_s"):
            span = getattr(self, name)
            if len(span) != 2:
                raise self._refuse(name, f"{span} has {len(span)} values", "give two")
            low, high = span
            if high < low or high == 0 or (name == "between_s" and high == low):
                fix = "give (first, last) with first before last"
                raise self._refuse(name, f"{(low, high)} is not a span of time", fix)
        first, last = self.between_s
        if self.rate_per_s is not None and self.rate_per_s * (last - first) > MOST_DRAWN / 2:
            most = f"give one below {MOST_DRAWN / 2 / (last - first):g}"
            raise self._refuse("rate_per_s", f"{self.rate_per_s} draws too many faults", most)

    def _spans(self, stream: Stream) -> list[tuple[float, float]]:
        """The beginnings and ends that are drawn, in order of time."""
        first, last = self.between_s
        begins: list[float] = []
        if self.count is not None:
            begins = sorted(stream.uniform(first, last) for _ in range(self.count))
        elif self.rate_per_s is not None:
            at_s = first + stream.expovariate(self.rate_per_s)
            while at_s < last and len(begins) < MOST_DRAWN:
                begins.append(at_s)
                at_s += stream.expovariate(self.rate_per_s)
        low, high = self.down_s if isinstance(self.down_s, tuple) else (self.down_s, self.down_s)
        # A span of no length would not be a fault, so it lasts at least a nanosecond.
        return [(at_s, at_s + max(stream.uniform(low, high), 1e-9)) for at_s in begins]

    def expand(self, stream: Stream, world: World) -> list[Fault]:
        """The concrete faults that this stream draws in that world."""
        raise TypeError(f"{self.kind} is only a frame for generators")


class RandomCrashes(_Generator, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Crashes and restarts of random nodes, at most `at_most` of them down at once.

    `node` or `domain` name the nodes that may be hit (left out: all). A crash that would exceed
    `at_most`, or hit a node that is down, is left out. Virtual and real: as `Crash`.
    """

    label: ClassVar[str] = "RandomCrashes"
    node: Target = None
    domain: str | None = None
    at_most: Annotated[int, Meta(ge=1)] = 1

    def expand(self, stream: Stream, world: World) -> list[Fault]:
        may_hit = world.targets(self)
        down: dict[int, float] = {}
        drawn: list[Fault] = []
        for at_s, until_s in self._spans(stream):
            node = stream.choice(may_hit)
            down = {each: up_s for each, up_s in down.items() if up_s > at_s}
            if node not in down and len(down) < self.at_most:
                down[node] = until_s
                drawn.append(Crash(node=node, at_s=at_s, until_s=until_s))
        return drawn


class RandomPartitions(_Generator, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Partitions that heal, one after the other; a partition drawn while one is on is left out.

    shape: "halves" (a random cut near the middle), "isolate" (one node alone), "minority" (fewer
    than half of the nodes alone), "any" (one of them each time). With `one_way`, each partition
    is one-way with chance a half. Virtual and real: as `Partition`.
    """

    label: ClassVar[str] = "RandomPartitions"
    shape: Literal["halves", "isolate", "minority", "any"] = "any"
    one_way: bool = False

    def expand(self, stream: Stream, world: World) -> list[Fault]:
        drawn: list[Fault] = []
        healed_s = -1.0
        if world.size < 2:
            return drawn
        for at_s, until_s in self._spans(stream):
            shape = stream.choice(("halves", "isolate", "minority"))
            shape = shape if self.shape == "any" else self.shape
            most = max((world.size - 1) // 2, 1)
            size = {"halves": world.size // 2, "isolate": 1}.get(shape) or stream.randint(1, most)
            side = tuple(sorted(stream.sample(range(world.size), size)))
            one_way = self.one_way and stream.random() < 0.5
            if at_s > healed_s:
                healed_s = until_s
                drawn.append(Partition(node=side, at_s=at_s, until_s=until_s, one_way=one_way))
        return drawn


GENERATORS: tuple[type[_Generator], ...] = (RandomCrashes, RandomPartitions)
