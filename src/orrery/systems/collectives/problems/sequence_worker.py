"""`SequenceWorker`: a rank with a shard of a long sequence; what both attention problems share.

A rank posts *parcels* (a few arrays as one transfer) to other ranks, takes theirs, and computes at
a declared cost. Bytes are counted by receiver, flops by rank. In *sized* mode arrays stand for
their shape only: they take the time of their bytes and no memory, so that hundreds of devices with
millions of tokens fit in a laptop.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from orrery.base.errors import DeadlineExceeded, KnobError, PartError
from orrery.base.violation import Violation
from orrery.models.attention import Array, Precision
from orrery.parts import (
    Count,
    Driver,
    Fraction,
    Metric,
    Outcome,
    Problem,
    Whole,
    Worker,
    cost,
    rpc,
)
from orrery.parts.knobs import Part
from orrery.parts.worker import RankLost
from orrery.world import World, worlds

T = TypeVar("T")

# The share of a device's peak that a good attention kernel reaches: FlashAttention-2 reports 0.5 to
# 0.73 forwards and up to 0.63 backwards on an A100 (Dao, 2023).
KERNEL_SHARE = 0.6


class Kind(NamedTuple):
    """The shape and number type of an array that is expected."""

    shape: tuple[int, ...]
    dtype: Any = np.float32

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@functools.lru_cache(maxsize=1024)
def _blank(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    return np.broadcast_to(np.zeros((), dtype), shape)


def blank(shape: Sequence[int], dtype: Any = np.float32) -> Array:
    """An array that stands for its size: one zero, repeated, which nobody can change."""
    return _blank(tuple(shape), np.dtype(dtype))


class SequenceJob(Part):
    """What all long-sequence work has in common.

    Knobs: `dtype` of what travels and of the arithmetic's cost; `backward`, whether gradients are
    computed too; `rounds`; `sized`, timing only, without values; `efficiency`, the share of the
    device's peak that a kernel reaches; `data_seed` of the values.
    """

    dtype: Precision = "fp32"
    backward: bool = True
    rounds: Count = 1
    sized: bool = False
    efficiency: Fraction = KERNEL_SHARE
    data_seed: Whole = 0

    @property
    def item_B(self) -> int:
        """Bytes of one number on the wire and in a device's memory."""
        return 4 if self.dtype == "fp32" else 2

    def check_job(self) -> None:
        """Refuse knobs that contradict each other."""
        if self.efficiency == 0:
            path = f"{type(self).__name__}.efficiency"
            raise KnobError(path, "0 would never end", "give the share of the peak, as 0.6")


class SequenceWorker(Worker):
    """A rank with a shard of a sequence: parcels, costs, and the rounds of the problem."""

    async def round(self, number: int) -> dict[str, Any]:
        """One round; gives what the problem wants to know of it."""
        raise PartError(f"{type(self).__name__} has no round(number)")

    # -- the life of a rank

    def start(self) -> None:
        self.over = self.event()
        self.sent_to: dict[int, int] = {}
        self.flops = 0.0

    @rpc
    async def ended(self) -> bool:
        await self.over.wait()
        return True

    async def main(self) -> None:
        try:
            for number in range(self._job().rounds):
                self.emit(**await self.round(number))
        except RankLost as lost:
            self.emit(lost=lost.rank)
        self.over.set()

    def _job(self) -> SequenceJob:
        raise PartError(f"{type(self).__name__} has no job; run it on its problem")

    async def timed(self, work: Awaitable[T]) -> tuple[T, dict[str, Any]]:
        """A result, and when it began and ended, what was sent to whom, and the flops."""
        self.sent_to, self.flops = {}, 0.0
        began_s = self.now
        result = await work
        told = {"began_s": began_s, "ended_s": self.now, "flops": self.flops}
        return result, told | {"sent": sorted(self.sent_to.items())}

    # -- parcels

    def post(self, peer: int, tag: str, *arrays: Array) -> None:
        """Send arrays to a rank without waiting; the receiver takes them under the same tag."""
        self.spawn(self._ship(peer, tag, arrays))

    async def deliver(self, peer: int, tag: str, *arrays: Array) -> None:
        """The same, and waits until they have arrived; `RankLost` when they never do."""
        try:
            async with self.deadline(self.patience_s):
                await self._ship(peer, tag, arrays)
        except DeadlineExceeded:
            raise self._lost(peer, f"deliver({tag!r})") from None

    def _ship(self, peer: int, tag: str, arrays: Sequence[Array]) -> Awaitable[None]:
        parcel = self._pack(arrays)
        size_B = int(parcel.nbytes)
        self.sent_B += size_B
        self.sent_to[peer] = self.sent_to.get(peer, 0) + size_B
        return self.transfer(self.fellows()[peer], parcel, tag)

    def _lost(self, peer: int, doing: str) -> RankLost:
        return RankLost(peer, self.fellows()[peer], doing, self.patience_s)

    async def take(self, peer: int, tag: str, *kinds: Kind) -> list[Array]:
        """The arrays that a rank sent under the tag; `RankLost` when it stays silent."""
        try:
            async with self.deadline(self.patience_s):
                parcel = await self.receive(self.fellows()[peer], tag)
        except DeadlineExceeded:
            raise self._lost(peer, f"take({tag!r})") from None
        expected_B = sum(kind.nbytes for kind in kinds)
        if parcel.nbytes != expected_B:
            raise PartError(
                f"take({tag!r}): rank {peer} sent {parcel.nbytes} bytes where {expected_B} were "
                "expected; the ranks disagree on the layout"
            )
        return self._unpack(parcel, kinds)

    def _pack(self, arrays: Sequence[Array]) -> Array:
        if self._job().sized:
            return blank((sum(int(array.nbytes) for array in arrays),), np.uint8)
        flat = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
        return np.concatenate(flat) if flat else np.zeros(0, np.uint8)

    def _unpack(self, parcel: Array, kinds: Sequence[Kind]) -> list[Array]:
        if self._job().sized:
            return [blank(*kind) for kind in kinds]
        found, at = [], 0
        for kind in kinds:
            part = parcel[at : at + kind.nbytes]
            found.append(part.view(kind.dtype).reshape(kind.shape))
            at += kind.nbytes
        return found

    # -- arithmetic at a cost

    async def work(
        self, made: Callable[[], T], *, flops: float = 0.0, bytes: float = 0.0,
        blanks: Callable[[], T],
    ) -> T:  # fmt: skip
        """The value of `made()` at this cost; in sized mode that of `blanks()`."""
        job = self._job()
        self.flops += flops
        result = blanks if job.sized else made

        @cost(flops=flops / job.efficiency, bytes=bytes, dtype=job.dtype)
        def priced() -> T:
            return result()

        return await self.compute(priced)


class SequenceProblem(Problem):
    """What both problems of long sequences share: driving, lost ranks, times, bytes, balance."""

    base_only: ClassVar[bool] = True

    sequence_metrics: ClassVar[Mapping[str, Metric]] = {
        "time_s": Metric("s", "lower", "from the first rank's entry to the last rank's exit"),
        "forward_s": Metric("s", "lower", "the same for the forward pass alone"),
        "backward_s": Metric("s", "lower", "the same for the backward pass; 0 where there is none"),
        "tokens_per_s": Metric("1/s", "higher", "rows of the whole batch over time_s"),
        "egress_B": Metric("B", "lower", "bytes that the busiest rank sent in a round"),
        "link_B": Metric(
            "B", "lower", "bytes in one direction of the busiest link; of the links on a way, the "
            "narrowest counts",
        ),
        "imbalance": Metric("", "lower", "flops of the busiest rank over the mean; 1 is even"),
        "error": Metric("", "lower", "largest |x - truth| / (1 + |truth|) of the output"),
        "grad_error": Metric("", "lower", "the same over all gradients"),
    }  # fmt: skip

    def world(self) -> World:
        return worlds.h100_pod(1, rank_per_gpu=True)

    def rows(self, outcome: Outcome) -> int:
        """How many rows the whole batch has."""
        raise PartError(f"{type(self).__name__} does not say how many rows it has")

    async def drive(self, driver: Driver) -> None:
        await driver.until_all(SequenceWorker.ended, 5.0)

    def check_ranks(self, outcome: Outcome, rounds: int, tolerance: float) -> list[Violation]:
        """Lost ranks, missing results, and values that are off."""
        found = outcome.lost_ranks()
        if outcome.ended != "driven":
            return found
        for number in range(rounds):
            done = self.done(outcome, number)
            missing = [n for n, up in enumerate(outcome.alive) if up and n not in done]
            if missing:
                found.append(Violation(
                    kind="no_result", node=missing[0], evidence=missing,
                    message=f"round {number}: {len(missing)} live ranks have no result",
                ))  # fmt: skip
            found += self._check_values(number, done, tolerance)
        return found

    def _check_values(
        self, number: int, done: Mapping[int, Any], tolerance: float
    ) -> list[Violation]:
        found = []
        for node, values in done.items():
            for name, error in values.get("errors", {}).items():
                if not error <= tolerance:  # also what is no number
                    found.append(Violation(
                        kind="wrong_value", node=node, evidence={name: error},
                        message=f"round {number}: {name} is off by {error:.3g}, allowed are "
                                f"{tolerance:.3g}"))  # fmt: skip
        return found

    def done(self, outcome: Outcome, number: int) -> dict[int, Any]:
        """What each node told of a round."""
        return {
            record.node: record.values
            for record in outcome.records
            if record.values.get("round") == number
        }

    def measure_ranks(self, outcome: Outcome, rounds: int) -> dict[str, float]:
        """The metrics that both problems have, as means over the rounds."""
        seen: dict[str, list[float]] = {}
        for number in range(rounds):
            done = self.done(outcome, number)
            if not done:
                continue
            for name, value in self._round(outcome, done).items():
                seen.setdefault(name, []).append(value)
        found = {name: float(np.mean(seen[name])) if seen else 0.0 for name in ROUND_METRICS}
        rows = self.rows(outcome)
        found["tokens_per_s"] = rows / found["time_s"] if found["time_s"] > 0 else 0.0
        return found

    def _round(self, outcome: Outcome, done: Mapping[int, Any]) -> dict[str, float]:
        passes = ["forward", "backward"] if "backward" in next(iter(done.values())) else ["forward"]
        took = {}
        for name in passes:
            began = min(values[name]["began_s"] for values in done.values())
            took[name] = max(values[name]["ended_s"] for values in done.values()) - began
        began = min(values["forward"]["began_s"] for values in done.values())
        ended = max(values[passes[-1]]["ended_s"] for values in done.values())
        sent: dict[tuple[int, int], int] = {}
        for node, values in done.items():
            for name in passes:
                for peer, size_B in values[name]["sent"]:
                    sent[node, peer] = sent.get((node, peer), 0) + size_B
        egress = [sum(b for (src, _), b in sent.items() if src == node) for node in done]
        flops = [sum(values[name]["flops"] for name in passes) for values in done.values()]
        errors = [values.get("errors", {}) for values in done.values()]
        off = [error for told in errors for name, error in told.items() if name != "out"]
        return {
            "time_s": ended - began, "forward_s": took["forward"],
            "backward_s": took.get("backward", 0.0), "egress_B": float(max(egress)),
            "link_B": busiest_link(outcome.world, sent),
            "imbalance": max(flops) / np.mean(flops) if any(flops) else 1.0,
            "error": max((told["out"] for told in errors if "out" in told), default=0.0),
            "grad_error": max(off, default=0.0),
        }  # fmt: skip


ROUND_METRICS = (
    "time_s", "forward_s", "backward_s", "egress_B", "link_B", "imbalance", "error", "grad_error",
)  # fmt: skip


def busiest_link(world: World, sent: Mapping[tuple[int, int], int]) -> float:
    """The most bytes in one direction of a link, counting on each way the narrowest links."""
    wiring, carried = world.wiring(), {}
    capacity = wiring.capacity_Bps
    for (src, dst), size_B in sent.items():
        path = wiring.path(src, dst)
        narrow = min((capacity[link] for link in path), default=0.0)
        for link in path:
            if capacity[link] == narrow:
                carried[link] = carried.get(link, 0) + size_B
    return float(max(carried.values(), default=0))


__all__ = [
    "KERNEL_SHARE", "ROUND_METRICS", "Kind", "SequenceJob", "SequenceProblem", "SequenceWorker",
    "blank", "busiest_link",
]  # fmt: skip
