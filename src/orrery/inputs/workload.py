"""Workload: the requests that come in, as columns.

Every reader and every generator gives one. The columns are read-only NumPy arrays, checked when the
workload is made, so a workload that exists is a sound one. Row i of each column is request i, and
requests stand in the order of their arrival::

    arrival_s       float64[n]    ascending, from 0 on
    input_tokens    int32[n]      tokens of the prompt, >= 1
    output_tokens   int32[n]      tokens of the answer, >= 1
    block_ids       int64[m]      prompt blocks of all requests, one after the other
    block_starts    int64[n+1]    request i has block_ids[block_starts[i]:block_starts[i+1]]
    block_tokens    int           tokens that a block stands for
    answer_ids      int64[a]      blocks that the answer completes, where the trace knows them
    answer_starts   int64[n+1]
    session         int32[n]      -1: none
    kind, kinds     int16[n]      class or tenant, as an index into the names `kinds`
    parent          int32[n]      -1, or the request whose end this one waits for
    parent_ids      int32[p]      all the requests it waits for, where it waits for several
    parent_starts   int64[n+1]
    delay_s         float64[n]    tool or think time after the last parent's end

Equal block ids mean equal content *and* equal prefix (they are chained). The last block of a prompt
may be a partial one (Mooncake) or left out (ShareGPT); an engine shares full blocks only, which are
the first `input_tokens // block_tokens`. A request with parents starts `delay_s` after the last of
them has ended; its `arrival_s` is then when the trace saw it.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from orrery.base.errors import PlatformLacks, SpecError, did_you_mean
from orrery.base.rand import Stream
from orrery.inputs import ragged
from orrery.inputs.draws import uniforms

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
I16 = npt.NDArray[np.int16]

MAX_REQUESTS = 2**31 - 1
RAGGED = (("block_ids", "block_starts"), ("answer_ids", "answer_starts"))


class WorkloadError(SpecError):
    """A column of a workload, a line of a trace, or a knob of a generator is off."""


class Times(Protocol):
    """What gives arrival times; see `orrery.inputs.arrivals`."""

    def times(self, count: int, seed: int = 0) -> F64: ...


def _nothing(dtype: Any) -> Any:
    array = np.zeros(0, dtype)
    array.flags.writeable = False
    return array


class Workload(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Requests as read-only columns, in the order of arrival (see the module).

    >>> work = Workload(arrival_s=[0, 0.5], input_tokens=[100, 20], output_tokens=[7, 9])
    >>> len(work), work.scaled(2).arrival_s.tolist()
    (2, [0.0, 0.25])
    """

    arrival_s: F64
    input_tokens: I32
    output_tokens: I32
    block_ids: I64 = _nothing(np.int64)
    block_starts: I64 = _nothing(np.int64)
    block_tokens: int = 16
    session: I32 = _nothing(np.int32)
    kind: I16 = _nothing(np.int16)
    kinds: tuple[str, ...] = ("default",)
    parent: I32 = _nothing(np.int32)
    delay_s: F64 = _nothing(np.float64)
    source: str = ""
    answer_ids: I64 = _nothing(np.int64)
    answer_starts: I64 = _nothing(np.int64)
    parent_ids: I32 = _nothing(np.int32)
    parent_starts: I64 = _nothing(np.int64)

    def __post_init__(self) -> None:
        from orrery.inputs.columns import settle

        settle(self)

    # -- reading

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def seconds(self) -> float:
        """From time 0 to the last arrival."""
        return float(self.arrival_s[-1])

    @property
    def rate_per_s(self) -> float:
        """Mean arrivals per second between the first and the last; 0 for less than two times."""
        span = float(self.arrival_s[-1] - self.arrival_s[0])
        return (len(self) - 1) / span if span > 0 else 0.0

    def blocks(self, i: int) -> I64:
        """The prompt's block ids of request i."""
        return self.block_ids[self.block_starts[i] : self.block_starts[i + 1]]

    def answer_blocks(self, i: int) -> I64:
        """The block ids that the answer of request i completes, where the trace knows them."""
        return self.answer_ids[self.answer_starts[i] : self.answer_starts[i + 1]]

    def parents(self, i: int) -> tuple[int, ...]:
        """All requests that must end before request i may start."""
        several = self.parent_ids[self.parent_starts[i] : self.parent_starts[i + 1]]
        if len(several):
            return tuple(several.tolist())
        return (int(self.parent[i]),) if self.parent[i] >= 0 else ()

    def kind_of(self, i: int) -> str:
        """The name of the class or tenant of request i."""
        return self.kinds[int(self.kind[i])]

    def summary(self) -> dict[str, Any]:
        """What the workload is like: counts, rates, burstiness, lengths, sharing, sessions."""
        from orrery.inputs.describe import summary

        return summary(self)

    @property
    def hash(self) -> str:
        """16 hex digits that name the requests; where they come from (`source`) does not count."""
        digest = hashlib.blake2b(digest_size=8)
        digest.update(json.dumps([self.block_tokens, list(self.kinds)]).encode())
        for name, column in self.columns().items():
            little = column.astype(column.dtype.newbyteorder("<"), copy=False)
            digest.update(f"{name}:{little.dtype.str}:{len(little)};".encode())
            digest.update(np.ascontiguousarray(little).tobytes())
        return digest.hexdigest()

    def __hash__(self) -> int:
        return int(self.hash, 16)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Workload) and self.hash == other.hash

    def __repr__(self) -> str:
        return f"Workload({len(self)} requests, {self.seconds:.4g} s, source={self.source!r})"

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """All arrays by name."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: each for name, each in fields.items() if isinstance(each, np.ndarray)}

    # -- changed copies

    def replace(self, **changes: Any) -> Workload:
        """A copy with some columns changed, checked like any other."""
        for name in changes:
            if name not in self.__struct_fields__:
                fix = did_you_mean(name, self.__struct_fields__)
                raise WorkloadError(f"workload.{name}", "unknown column", fix)
        return msgspec.structs.replace(self, **changes)

    def take(self, index: Any) -> Workload:
        """The requests at these indices or under this mask, in the order of arrival.

        A request whose parents are not among them waits for nobody.
        """
        chosen = np.asarray(index)
        if chosen.dtype == bool:
            if chosen.shape != (len(self),):
                problem = f"a mask of shape {chosen.shape} for {len(self)} requests"
                raise WorkloadError("take.index", problem, "give one truth value a request")
            chosen = np.flatnonzero(chosen)
        if chosen.ndim != 1 or (len(chosen) and chosen.dtype.kind not in "iu"):
            raise WorkloadError("take.index", "is not a list of whole numbers", "give indices")
        if len(chosen) and (chosen.min() < 0 or chosen.max() >= len(self)):
            problem = f"an index outside 0 .. {len(self) - 1}"
            raise WorkloadError("take.index", problem, "give indices of requests")
        chosen = np.unique(chosen.astype(np.intp))
        return self._picked(chosen, self.arrival_s[chosen])

    def _picked(self, chosen: npt.NDArray[np.intp], arrival_s: F64) -> Workload:
        """The chosen requests in the given order, at these times."""
        changes: dict[str, Any] = {
            name: getattr(self, name)[chosen]
            for name in ("input_tokens", "output_tokens", "session", "kind", "delay_s")
        }
        changes["arrival_s"] = arrival_s
        for ids, starts in RAGGED:
            changes[ids], changes[starts] = ragged.gather(
                getattr(self, ids), getattr(self, starts), chosen
            )
        moved = np.full(len(self) + 1, -1, np.int32)  # the last place answers for "no parent"
        moved[chosen] = np.arange(len(chosen), dtype=np.int32)
        changes["parent"] = moved[self.parent[chosen]]
        several, starts_ = ragged.gather(
            self.parent_ids.astype(np.int64), self.parent_starts, chosen
        )
        kept = moved[several] >= 0
        owner = np.repeat(np.arange(len(chosen)), np.diff(starts_))
        counts = np.bincount(owner[kept], minlength=len(chosen))
        changes["parent_ids"] = moved[several][kept]
        changes["parent_starts"] = np.concatenate([[0], np.cumsum(counts)])
        last = np.full(len(chosen), -1, np.int32)
        np.maximum.at(last, owner[kept], changes["parent_ids"])
        changes["parent"] = np.where(changes["parent"] >= 0, changes["parent"], last)
        changes["delay_s"] = np.where(changes["parent"] >= 0, changes["delay_s"], 0.0)
        return self.replace(**changes)

    def head(self, count: int) -> Workload:
        """The first `count` requests (all, when there are fewer)."""
        if count < 1:
            raise WorkloadError("head.count", f"{count} requests", "give at least 1")
        return self.take(np.arange(min(count, len(self))))

    def between(self, begin_s: float, end_s: float) -> Workload:
        """The requests that arrive from begin_s on and before end_s; time 0 is then begin_s."""
        low, high = np.searchsorted(self.arrival_s, [begin_s, end_s])
        if not (begin_s >= 0 and end_s > begin_s) or low >= high:
            problem = f"no request arrives from {begin_s} s to {end_s} s"
            fix = f"requests arrive from {self.arrival_s[0]:.6g} s to {self.seconds:.6g} s"
            raise WorkloadError("between", problem, fix)
        part = self.take(np.arange(low, high))
        return part.replace(arrival_s=part.arrival_s - begin_s)

    def of_kind(self, *names: str) -> Workload:
        """The requests of these kinds."""
        for name in names:
            if name not in self.kinds:
                raise WorkloadError("of_kind", f"no kind {name!r}", did_you_mean(name, self.kinds))
        return self.take(np.isin(self.kind, [self.kinds.index(name) for name in names]))

    def scaled(self, rate_factor: float) -> Workload:
        """The same requests, arriving `rate_factor` times as fast; tool times stay as they are."""
        if not (np.isfinite(rate_factor) and rate_factor > 0):
            problem = f"{rate_factor!r} is refused"
            raise WorkloadError("scaled.rate_factor", problem, "give a finite number > 0")
        return self.replace(arrival_s=self.arrival_s / rate_factor)

    def at_rate(self, rate_per_s: float) -> Workload:
        """The same requests, at this mean rate."""
        if not self.rate_per_s:
            problem = "the requests come all at once, so there is no rate to change"
            raise WorkloadError("at_rate", problem, "use with_arrivals(Poisson(rate_per_s=...))")
        return self.scaled(rate_per_s / self.rate_per_s)

    def with_arrivals(self, arrivals: Times, seed: int = 0) -> Workload:
        """The same requests in the same order, at new times."""
        return self.replace(arrival_s=arrivals.times(len(self), seed))

    def shuffled(self, seed: int = 0) -> Workload:
        """The same times, the requests dealt to them anew; not for requests that wait for others.

        Sessions and shared prefixes stay, but lose their order in time.
        """
        if (self.parent >= 0).any():
            problem = "requests wait for others, so their order cannot change"
            raise WorkloadError("shuffled", problem, "use with_arrivals to change the times")
        keys = uniforms(Stream(seed, "workload", "shuffled"), len(self))
        return self._picked(np.argsort(keys, kind="stable"), self.arrival_s)

    def merged(self, *others: Workload, share_blocks: bool = False) -> Workload:
        """All requests of several workloads in one, by arrival; kinds of one name are one kind.

        Block ids and sessions are kept apart, unless `share_blocks` says that equal ids are equal
        content.
        """
        from orrery.inputs.columns import merged

        return merged([self, *others], share_blocks)

    def reblocked(self, block_tokens: int) -> Workload:
        """The same prompts in blocks of another size, a multiple or a divisor of the present one.

        A large block is cut into parts of its own; of several small ones, the id of the last
        stands for all, since ids are chained.
        """
        from orrery.inputs.columns import reblocked

        return reblocked(self, block_tokens)

    # -- files and tables

    def save(self, path: str | Path) -> Path:
        """Write the workload to a compact file (.npz); the file is whole or absent."""
        from orrery.inputs.storage import save

        return save(self, path)

    @classmethod
    def load(cls, path: str | Path) -> Workload:
        """Read a file that `save` wrote."""
        from orrery.inputs.storage import load

        return load(path)

    def _table(self) -> dict[str, Any]:
        table: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("arrival_s", "input_tokens", "output_tokens", "session", "parent")
        }
        table["kind"] = [self.kinds[each] for each in self.kind.tolist()]
        table["delay_s"] = self.delay_s
        table["blocks"] = np.diff(self.block_starts)
        return table

    def to_pandas(self) -> Any:
        """A pandas DataFrame, one row a request (needs pandas)."""
        return _library("pandas").DataFrame(self._table())

    def to_polars(self) -> Any:
        """A polars DataFrame, one row a request (needs polars)."""
        return _library("polars").DataFrame(self._table())


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise PlatformLacks(f"{name} is not installed here; pip install {name}") from None
