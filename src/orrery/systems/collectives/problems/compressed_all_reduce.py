"""The problem `compressed_all_reduce`: a sum over ranks, within a stated error, over slow links.

As in `all_reduce`, the part is a `Collective` and every rank ends with the same bits. Here values
may be coarsened: each by at most `eb`, so a sum over N ranks may be off by N eb against the sum in
float64. The data are such as can be compressed, and the problem asks for the bytes, the time of
coding and how often floats are coded again, besides the time.
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
    Metric,
    Node,
    NonNegative,
    Outcome,
    Positive,
    Whole,
)
from orrery.parts.collectives import Array, part_items
from orrery.parts.worker import Task
from orrery.systems.collectives.problems.all_reduce import AllReduce, Reducer
from orrery.systems.collectives.problems.compressible import TURBULENCE, Content, content
from orrery.world import World

Operation = Literal["all_reduce", "reduce_scatter", "all_gather"]


class Tally:
    """What a collective says of its coding at one rank; it counts, the problem reads."""

    def __init__(self) -> None:
        self.coding_s = 0.0  # by the declared costs, on every engine
        self.raw_B = self.coded_B = 0  # of the chunks that were sent: as numbers, as frames
        self.frames: dict[str, int] = {}  # sent, by coder, those passed on too
        self.recoded = 0  # chunks of floats that were decoded, added to and encoded again
        self.exact = 0  # chunks that were sent without codes


def tally_of(worker: Any) -> Tally:
    """The tally of a rank; made when it is first asked for."""
    tally: Tally = worker.__dict__.setdefault("_coding_tally", Tally())
    return tally


class CompressedAllReduce(AllReduce):
    """Sum (or gather) arrays over all ranks, each value within `eb`; see the bytes and the time.

    Knobs besides those of `all_reduce`: `operation`; `content` of the arrays, and `slope` of the
    spectrum of a field; `eb`, the absolute error that one value may have, 0 for `relative` times
    the range of values of rank 0 (a customary bound of 1e-3); `ring_seed`, which permutes the ring
    and leaves each rank its data, 0 for none; `scale`, how many times larger the array is that this
    one stands for: in virtual time its bytes, and their coding, count so often.

    A part with a knob `eb` gets it from here. A part with `promise(size, magnitude)` is held to
    that error, others to rounding.

    >>> CompressedAllReduce(items=10, eb=0.5).error_bound()
    0.5
    """

    items: Whole = 100_000
    rounds: Count = 1
    operation: Operation = "all_reduce"
    content: Content = "field"
    slope: Positive = TURBULENCE
    eb: NonNegative = 0.0
    relative: Positive = 1e-3
    ring_seed: Whole = 0
    scale: Positive = 1.0

    trial: ClassVar[Mapping[str, Any]] = {"items": 20000}
    metrics: ClassVar[Mapping[str, Metric]] = {
        **{name: AllReduce.metrics[name] for name in ("time_s", "sent_B", "all_sent_B", "bus_Bps")},
        "error": Metric("", "lower", "largest deviation from the result in float64"),
        "within": Metric("", "lower", "that error over what the bound eb allows; 1 is the bound"),
        "ratio": Metric("", "higher", "bytes of the numbers over bytes sent, over all hops"),
        "coding_s": Metric("s", "lower", "what the busiest rank's device spent on coding"),
        "raw_share": Metric("", "", "the share of the frames that travelled uncoded"),
        "recoded": Metric("", "lower", "chunks of floats that all ranks decoded and coded again"),
    }

    def world(self) -> World:
        return World.lan(8, bandwidth_Bps=1.25e7)

    def error_bound(self) -> float:
        """What one value may be off."""
        if self.eb:
            return self.eb
        return self.relative * _range(self.content, self.data_seed, self.items, self.slope)

    def asked(self, part: Any) -> Any:
        """The part with the problem's error bound."""
        return part.with_knobs(eb=self.error_bound()) if "eb" in part.knobs() else part

    def host(self, part: Any, world: World) -> Mapping[str, Node]:
        shared = {name: getattr(self, name) for name in CodedReducer.SHARED}
        return {"node": CodedReducer(
            collective=self.asked(part), training=Task(scale=self.scale), **shared)}  # fmt: skip

    # -- checking

    def _check_values(self, number: int, size: int, ends: dict[int, Any]) -> list[Violation]:
        found = []
        if self.operation != "reduce_scatter":  # where each rank has a part of its own
            kinds = {values["digest"] for values in ends.values()}
            if len(kinds) > 1:
                found.append(Violation(
                    kind="ranks_differ", evidence={n: v["digest"] for n, v in ends.items()},
                    message=f"round {number}: {len(kinds)} different results at {len(ends)} ranks",
                ))  # fmt: skip
        for node, values in ends.items():
            excess, allowed = values["excess"], values["allowed"]
            if not excess <= allowed:  # also what is no number
                found.append(Violation(
                    kind="over_bound", node=node, evidence={"error": excess, "allowed": allowed},
                    message=f"round {number}: rank {values['rank']} is off by {excess:.4g}, "
                            f"promised are {allowed:.4g}"))  # fmt: skip
        return found

    def _check_bytes(
        self, outcome: Outcome, number: int, size: int, ends: dict[int, Any]
    ) -> list[Violation]:
        found = []
        gathers = self.operation == "all_gather"
        items = [self.items] * size if gathers else part_items(self.items, size)
        for node, values in ends.items():
            told = outcome.part.sent_B(
                self.operation, values["place"], items, np.dtype(self.dtype).itemsize
            )
            if told is not None and told != values["sent_B"]:
                found.append(Violation(
                    kind="bytes_differ", node=node,
                    message=f"round {number}: place {values['place']} sent {values['sent_B']} "
                            f"bytes and declares {told}"))  # fmt: skip
        return found

    # -- measuring

    def measure(self, outcome: Outcome) -> dict[str, float]:
        found = super().measure(outcome)
        size = len(outcome.alive)
        ends = [v for n in range(self.rounds) for v in self._ends(outcome, n).values()]
        errors = [values["error"] for values in ends] or [0.0]
        terms = 1 if self.operation == "all_gather" else size
        tallies = [values["tally"] for values in ends]
        raw_B, coded_B = (sum(t[name] for t in tallies) for name in ("raw_B", "coded_B"))
        frames = sum(sum(t["frames"].values()) for t in tallies)
        uncoded = sum(t["frames"].get("raw", 0) for t in tallies)
        crossings = {"all_reduce": 2 / size, "reduce_scatter": 1 / size, "all_gather": 1.0}
        whole_B = self.items * np.dtype(self.dtype).itemsize * self.scale
        moved_B = crossings[self.operation] * (size - 1) * whole_B
        return found | {
            "bus_Bps": moved_B / found["time_s"] if found["time_s"] > 0 else 0.0,
            "error": max(errors),
            "within": max(errors) / (terms * self.error_bound()),
            "ratio": raw_B / coded_B if coded_B else 1.0,
            "coding_s": max((t["coding_s"] for t in tallies), default=0.0),
            "raw_share": uncoded / frames if frames else 1.0,
            "recoded": float(sum(t["recoded"] for t in tallies)),
        }  # fmt: skip


class CodedReducer(Reducer):
    """A rank that does nothing but one operation, and holds what it got against the truth."""

    operation: Operation = "all_reduce"
    content: Content = "field"
    slope: Positive = TURBULENCE
    ring_seed: Whole = 0

    SHARED: ClassVar[tuple[str, ...]] = (
        "items", "dtype", "rounds", "data_seed", "patience_s", "operation", "content", "slope",
        "ring_seed",
    )  # fmt: skip

    async def _round(self, number: int) -> None:
        array = self._data(number, self.rank).astype(self.dtype)
        ring = self.group(order(self.size, self.ring_seed), "ring")
        await self.barrier(tag="between rounds")
        tally = self.__dict__["_coding_tally"] = Tally()
        began_s, before_B = self.now, self.sent_B
        if self.operation == "all_reduce":
            got = [await ring.sum(array)]
        elif self.operation == "reduce_scatter":
            got = [await ring.reduce_scatter(array)]
        else:
            got = await ring.all_gather(array)
        ended_s, sent_B = self.now, self.sent_B - before_B
        digest = hashlib.blake2b(digest_size=8)
        for one in got:
            digest.update(one.tobytes())
        self.emit(
            round=number, rank=self.rank, place=ring.rank, began_s=began_s, ended_s=ended_s,
            digest=digest.hexdigest(), sent_B=sent_B, tally=vars(tally),
            **self._errors(number, ring.rank, got),
        )  # fmt: skip

    def _data(self, number: int, rank: int) -> Array:
        return content(self.content, self.data_seed, number, rank, self.items, self.slope)

    def _errors(self, number: int, place: int, got: list[Array]) -> dict[str, float]:
        """How far off this rank is: `error` as it is, `excess` without the result's own rounding.

        Where all ranks must hold the same bits, rank 0 looks for all.
        """
        if self.rank and self.operation != "reduce_scatter":
            return {"error": 0.0, "excess": 0.0, "allowed": 0.0}
        truth = self._truth(number, place)
        promise = getattr(self.collective, "promise", None)
        size = 1 if self.operation == "all_gather" else self.size
        error = excess = allowed = 0.0
        half = np.finfo(self.dtype).eps / 2 if np.dtype(self.dtype).kind == "f" else 0.0
        for one, (want, magnitude) in zip(got, truth, strict=True):
            largest = float(magnitude.max()) if magnitude.size else 0.0
            rounding = size * half * largest
            allowed = max(allowed, rounding if promise is None else promise(size, largest))
            if one.shape != want.shape or one.dtype != np.dtype(self.dtype):
                return {"error": np.inf, "excess": np.inf, "allowed": allowed}
            if want.size:
                off = np.abs(one.astype(np.float64) - want)
                error = float(np.maximum(error, off.max()))
                # No result in this type can be nearer than half of its last place.
                excess = float(np.maximum(excess, (off - half * np.abs(want)).max()))
        return {"error": error, "excess": excess, "allowed": allowed * (1 + 1e-12)}

    def _truth(self, number: int, place: int) -> list[tuple[Array, Array]]:
        """What this rank must have got, in float64, with the sums of magnitudes."""
        if self.operation == "all_gather":
            given = [self._given(number, rank) for rank in order(self.size, self.ring_seed)]
            return [(values, np.abs(values)) for values in given]
        truth, magnitude = _sums(self, number)
        if self.operation == "all_reduce":
            return [(truth, magnitude)]
        pair = (np.array_split(sums, self.size)[place] for sums in (truth, magnitude))
        return [tuple(pair)]  # type: ignore[list-item]

    def _given(self, number: int, rank: int) -> Array:
        """What a rank gave, after rounding to the type that it gave it in."""
        return self._data(number, rank).astype(self.dtype).astype(np.float64)


@functools.lru_cache(maxsize=16)
def _range(kind: str, seed: int, items: int, slope: float) -> float:
    """From the least to the largest value of rank 0; 1 where all are equal."""
    values = content(kind, seed, 0, 0, items, slope)
    span = float(values.max() - values.min()) if items else 0.0
    return span if span > 0 else 1.0


def _sums(rank: CodedReducer, number: int) -> tuple[Array, Array]:
    key = (rank.content, rank.slope, rank.data_seed, number, rank.size, rank.items, rank.dtype)
    return _all_sums(*key)


@functools.lru_cache(maxsize=2)
def _all_sums(
    kind: str, slope: float, seed: int, number: int, size: int, items: int, dtype: str
) -> tuple[Array, Array]:
    """(the true sum, the sum of magnitudes) of what all ranks give."""
    truth, magnitude = np.zeros(items), np.zeros(items)
    for rank in range(size):
        values = content(kind, seed, number, rank, items, slope).astype(dtype).astype(np.float64)
        truth += values
        magnitude += np.abs(values)
    return truth, magnitude


@functools.lru_cache(maxsize=64)
def order(size: int, seed: int) -> tuple[int, ...]:
    """The ranks in the order of the ring; seed 0 is the natural one.

    >>> order(4, 0), sorted(order(4, 7))
    ((0, 1, 2, 3), [0, 1, 2, 3])
    """
    ranks = list(range(size))
    if seed:
        Stream(seed, "ring", "order").shuffle(ranks)
    return tuple(ranks)


__all__ = ["CodedReducer", "CompressedAllReduce", "Tally", "order", "tally_of"]
