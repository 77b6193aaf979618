"""The problem `all_reduce`: every rank has an array, and every rank must get their sum.

The port is `Collective`: the part under test is the algorithm, and the problem puts a rank that
uses it on each node. The arrays come from a seed, so the checker knows the true sum: each element
must be as near to it as rounding allows in any order of adding, integers exactly, and all ranks
must hold the same bits.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from orrery.base.rand import Stream
from orrery.base.violation import Violation
from orrery.parts import (
    Count,
    Driver,
    Metric,
    Node,
    NonNegative,
    Outcome,
    Positive,
    Problem,
    Whole,
    Worker,
    rpc,
)
from orrery.parts.collectives import Array, Collective, part_items
from orrery.parts.worker import RankLost
from orrery.world import World

Dtype = Literal["float16", "float32", "float64", "int32", "int64"]


class AllReduce(Problem):
    """Sum an array over all ranks, some times over; then see who has what, when, at which cost.

    Knobs: `items` and `dtype` of the array; `rounds`, how often it is done, with a barrier before
    each; `tolerance`, what a lossy algorithm may be off, as a part of the sum of magnitudes;
    `data_seed` of the arrays; `patience_s`, after which a silent rank counts as lost.

    >>> AllReduce(items=8).knobs()["dtype"]
    'float32'
    """

    items: Whole = 100_000
    dtype: Dtype = "float32"
    rounds: Count = 2
    tolerance: NonNegative = 0.0
    data_seed: Whole = 0
    patience_s: Positive = 60.0

    port: ClassVar[type] = Collective
    unique_outcome: ClassVar[bool] = True
    metrics: ClassVar[Mapping[str, Metric]] = {
        "time_s": Metric("s", "lower", "from the first rank's entry to the last rank's exit"),
        "sent_B": Metric("B", "lower", "bytes that the busiest rank sent in one all-reduce"),
        "all_sent_B": Metric("B", "lower", "bytes that all ranks sent in one all-reduce"),
        "bus_Bps": Metric(
            "B/s", "higher", "2 (n - 1) / n times the array over the time: the use of the links"
        ),
        "error": Metric("", "lower", "largest deviation over the sum of magnitudes"),
    }

    def world(self) -> World:
        return World.lan(8)

    def host(self, part: Any, world: World) -> Mapping[str, Node]:
        reducer = Reducer(
            collective=part, items=self.items, dtype=self.dtype, rounds=self.rounds,
            data_seed=self.data_seed, patience_s=self.patience_s,
        )  # fmt: skip
        return {"node": reducer}

    async def drive(self, driver: Driver) -> None:
        await driver.until_all(Reducer.ended, self.patience_s)

    def check(self, outcome: Outcome) -> list[Violation]:
        found = outcome.lost_ranks()
        if outcome.ended != "driven":
            return found
        size = len(outcome.alive)
        for number in range(self.rounds):
            ends = self._ends(outcome, number)
            missing = [n for n in range(size) if outcome.alive[n] and n not in ends]
            if missing:
                found.append(Violation(
                    kind="no_result", node=missing[0], evidence=missing,
                    message=f"round {number}: {len(missing)} live ranks have no sum"))  # fmt: skip
            found += self._check_values(number, size, ends)
            found += self._check_bytes(outcome, number, size, ends)
        return found

    def _check_values(self, number: int, size: int, ends: dict[int, Any]) -> list[Violation]:
        kinds = {values["digest"] for values in ends.values()}
        if len(kinds) > 1:
            return [Violation(
                kind="ranks_differ", evidence={n: v["digest"] for n, v in ends.items()},
                message=f"round {number}: {len(kinds)} different sums among {len(ends)} ranks",
            )]  # fmt: skip
        error, allowed = _error(ends), self._allowed(size)
        if error > allowed:
            return [Violation(
                kind="wrong_sum", evidence={"error": error, "allowed": allowed},
                message=f"round {number}: the sum is off by {error:.3g} of the magnitudes, "
                        f"rounding explains {allowed:.3g}")]  # fmt: skip
        return []

    def _allowed(self, size: int) -> float:
        """What rounding explains in any order of adding, and the tolerance; as `deviation`."""
        kind = np.dtype(self.dtype)
        rounding = size * float(np.finfo(kind).eps) / 2 if kind.kind == "f" else 0.0
        return rounding + self.tolerance

    def _check_bytes(
        self, outcome: Outcome, number: int, size: int, ends: dict[int, Any]
    ) -> list[Violation]:
        found = []
        items, itemsize = part_items(self.items, size), np.dtype(self.dtype).itemsize
        for node, values in ends.items():
            told = outcome.part.sent_B("all_reduce", values["rank"], items, itemsize)
            if told is not None and told != values["sent_B"]:
                found.append(Violation(
                    kind="bytes_differ", node=node,
                    message=f"round {number}: rank {values['rank']} sent {values['sent_B']} bytes "
                            f"and declares {told}"))  # fmt: skip
        return found

    def _ends(self, outcome: Outcome, number: int) -> dict[int, Any]:
        """What each node reported at the end of a round."""
        return {
            record.node: record.values
            for record in outcome.records
            if record.values.get("round") == number and "digest" in record.values
        }

    def measure(self, outcome: Outcome) -> dict[str, float]:
        size = len(outcome.alive)
        took, busiest, all_sent, errors = [], [], [], [0.0]
        for number in range(self.rounds):
            ends = self._ends(outcome, number)
            if not ends:
                continue
            began = min(values["began_s"] for values in ends.values())
            took.append(max(values["ended_s"] for values in ends.values()) - began)
            sent = [values["sent_B"] for values in ends.values()]
            busiest.append(max(sent))
            all_sent.append(sum(sent))
            errors.append(_error(ends))
        time_s = float(np.mean(took)) if took else outcome.seconds
        whole_B = self.items * np.dtype(self.dtype).itemsize
        return {
            "time_s": time_s,
            "sent_B": float(np.mean(busiest)) if busiest else 0.0,
            "all_sent_B": float(np.mean(all_sent)) if all_sent else 0.0,
            "bus_Bps": 2 * (size - 1) / size * whole_B / time_s if time_s > 0 else 0.0,
            "error": max(errors),
        }

    def decisions(self, outcome: Outcome) -> list[dict[int, str]]:
        """The digest of the sum that each node holds, round by round."""
        return [
            {node: values["digest"] for node, values in sorted(self._ends(outcome, n).items())}
            for n in range(self.rounds)
        ]


class Reducer(Worker):
    """A rank that does nothing but all-reduce; rank 0 holds the sum against the truth."""

    items: Whole = 0
    dtype: Dtype = "float32"
    rounds: Count = 1
    data_seed: Whole = 0

    def start(self) -> None:
        self.over = self.event()

    @rpc
    async def ended(self) -> bool:
        await self.over.wait()
        return True

    async def main(self) -> None:
        try:
            for number in range(self.rounds):
                await self._round(number)
        except RankLost as lost:
            self.emit(lost=lost.rank)
        self.over.set()

    async def _round(self, number: int) -> None:
        array = data(self.data_seed, number, self.rank, self.items, self.dtype)
        await self.barrier(tag="between rounds")
        began_s, before_B = self.now, self.sent_B
        total = await self.sum(array)
        ended_s = self.now
        # One rank compares with the truth for all, since equal digests are equal sums.
        truth = {"error": deviation(total, self, number)} if self.rank == 0 else {}
        digest = hashlib.blake2b(total.tobytes(), digest_size=8).hexdigest()
        self.emit(
            round=number, rank=self.rank, began_s=began_s, ended_s=ended_s, digest=digest,
            sent_B=self.sent_B - before_B, **truth,
        )  # fmt: skip


def deviation(total: Array, rank: Reducer, number: int) -> float:
    """How far a sum is off at most, as a part of the sum of magnitudes."""
    truth, magnitude = reference(rank.data_seed, number, rank.size, rank.items, rank.dtype)
    if total.dtype != np.dtype(rank.dtype) or total.shape != truth.shape:
        return float("inf")
    if not truth.size:
        return 0.0
    off = np.abs(total.astype(truth.dtype) - truth)
    # Where all arrays are zero, so must be the sum; there is nothing to divide by.
    part = off / np.where(magnitude > 0, magnitude, 1.0)
    return float("inf") if np.isnan(part).any() else float(part.max())


def _error(ends: dict[int, Any]) -> float:
    """The deviation that a rank reported in a round, if the round got so far."""
    return max((values["error"] for values in ends.values() if "error" in values), default=0.0)


def data(seed: int, number: int, rank: int, items: int, dtype: str) -> Array:
    """The array of a rank in a round."""
    rng = Stream(seed, rank, f"all_reduce {number}").numpy()
    if np.dtype(dtype).kind == "i":
        return rng.integers(-1000, 1000, items, dtype=dtype)
    return rng.standard_normal(items).astype(dtype)


@functools.lru_cache(maxsize=4)
def reference(seed: int, number: int, size: int, items: int, dtype: str) -> tuple[Array, Array]:
    """(the true sum, the sum of magnitudes) in float64, or in int64 for integers."""
    wide = np.dtype("int64" if np.dtype(dtype).kind == "i" else "float64")
    truth: Array = np.zeros(items, wide)
    magnitude: Array = np.zeros(items, np.float64)
    for rank in range(size):
        array: Array = data(seed, number, rank, items, dtype).astype(wide)
        truth = truth + array
        magnitude = magnitude + np.abs(array)
    return truth, magnitude
