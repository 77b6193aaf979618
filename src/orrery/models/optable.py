"""Measured times of operations on a grid, and what they say between and beyond the grid's points.

An `OpTable` is data: times of one operation on one device, by its dimensions. A `Lookup` joins it
to a reference (the roofline of the same operation). At a measured point it gives the measured time;
between points it interpolates linearly in every dimension; in holes and beyond the edge it takes
the nearest measured time and scales it as the reference scales, so that there is no jump, and
flags it.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from orrery.base.errors import SpecError, did_you_mean

Reference = Callable[[dict[str, np.ndarray]], np.ndarray]
_CACHE = 1 << 17


class OpTable(msgspec.Struct, frozen=True, eq=False):
    """Times of one operation on one device.

    op        what it is: gemm, attention_decode ..., or the name of one op of one model
    device    the name of the accelerator in the world's catalogue
    dtype     in which it was measured; `backend`: by which software
    axes      names of the dimensions; `grid`: the values measured of each, rising
    seconds   the time at each point; NaN where nothing was measured
    fixed     what was held fixed: heads, head_dim, the model, tp ...
    watts     the mean power of one device at each point, where it was measured
    """

    op: str
    device: str
    dtype: str
    axes: tuple[str, ...]
    grid: tuple[np.ndarray, ...]
    seconds: np.ndarray
    backend: str = ""
    fixed: dict[str, int | float | str] = {}
    watts: np.ndarray | None = None
    source: str = ""

    def __post_init__(self) -> None:
        if not self.axes or len(self.axes) != len(self.grid):
            fix = "give one row of values for each axis"
            raise SpecError(f"{self.op}.grid", f"{len(self.grid)} for {len(self.axes)} axes", fix)
        for axis, values in zip(self.axes, self.grid, strict=True):
            rising = len(values) and np.all(np.isfinite(values)) and np.all(np.diff(values) > 0)
            if not rising:
                fix = "give finite values that rise"
                raise SpecError(f"{self.op}.grid.{axis}", f"{len(values)} values", fix)
        shape = tuple(len(values) for values in self.grid)
        for name in ("seconds", "watts"):
            array = getattr(self, name)
            if array is not None and array.shape != shape:
                fix = f"give the shape {shape}"
                raise SpecError(f"{self.op}.{name}", f"shape {array.shape} is refused", fix)
        known = self.seconds[~np.isnan(self.seconds)]
        if not len(known) or not np.all(np.isfinite(known)) or np.any(known <= 0):
            fix = "give at least one time; all above 0 and finite, NaN where none was measured"
            raise SpecError(f"{self.op}.seconds", "a time is refused", fix)

    @classmethod
    def from_points(
        cls,
        op: str,
        columns: Mapping[str, Sequence[float] | np.ndarray],
        seconds: Sequence[float] | np.ndarray,
        *,
        device: str,
        dtype: str,
        watts: Sequence[float] | np.ndarray | None = None,
        **rest: Any,
    ) -> OpTable:
        """A table from rows as files hold them; a point measured several times gives its median.

        >>> t = OpTable.from_points("gemm", {"m": [1, 2]}, [1.0, 3.0], device="L4", dtype="bf16")
        >>> t.seconds.tolist()
        [1.0, 3.0]
        """
        axes = tuple(columns)
        values = np.asarray(seconds, dtype=np.float64)
        grid, places = [], []
        for axis in axes:
            column = np.asarray(columns[axis], dtype=np.float64)
            if column.shape != values.shape or not len(values):
                fix = f"give {len(values)} values, at least one"
                raise SpecError(f"{op}.{axis}", f"{len(column)} values", fix)
            points, place = np.unique(column, return_inverse=True)
            grid.append(points)
            places.append(place.reshape(-1))
        shape = tuple(len(points) for points in grid)
        flat = np.ravel_multi_index(tuple(places), shape)
        table = _medians(flat, values, shape)
        power = None if watts is None else _medians(flat, np.asarray(watts, float), shape)
        return cls(op, device, dtype, axes, tuple(grid), table, watts=power, **rest)

    @property
    def key(self) -> str:
        """A short name for messages and reports."""
        held = ",".join(f"{name}={value}" for name, value in sorted(self.fixed.items()))
        return f"{self.op}[{held}]" if held else self.op

    def for_device(self, name: str) -> OpTable:
        """Itself, or a named error when it was measured on another device."""
        if self.device != name:
            fix = f"use a table measured on {name}, or rooflines"
            raise SpecError(f"{self.key}.device", f"measured on {self.device}, not {name}", fix)
        return self

    @property
    def points(self) -> int:
        """How many points were measured."""
        return int(np.count_nonzero(~np.isnan(self.seconds)))


def _medians(flat: np.ndarray, values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    table = np.full(int(np.prod(shape)), np.nan)
    order = np.argsort(flat, kind="stable")
    places, starts = np.unique(flat[order], return_index=True)
    if len(places) == len(flat):
        table[flat] = values
    else:
        groups = np.split(values[order], starts[1:])
        table[places] = [float(np.median(group)) for group in groups]
    return table.reshape(shape)


class Lookup:
    """A table joined to a reference; `many` is for arrays, `one` for a single point, cached.

    by_ratio    interpolate time / reference rather than time: better where time bends between
                points as the reference does, such as attention over the square of a length
    """

    def __init__(self, table: OpTable, reference: Reference, *, by_ratio: bool = False) -> None:
        self.table, self.reference, self.by_ratio = table, reference, by_ratio
        self.outside = 0
        mesh = np.meshgrid(*table.grid, indexing="ij")
        base = np.asarray(reference(dict(zip(table.axes, mesh, strict=True))), dtype=np.float64)
        self._base = np.broadcast_to(base, table.seconds.shape)
        self._hole = np.isnan(table.seconds)
        self._ratio = _filled(table.seconds / self._base)
        self._values = self._ratio if by_ratio else self._ratio * self._base
        if not by_ratio:  # the division and product must not disturb a measured time
            self._values = np.where(self._hole, self._values, table.seconds)
        self._holes = bool(self._hole.any())
        self._lists = [values.tolist() for values in table.grid]
        self._cache: dict[tuple[float, ...], tuple[float, bool]] = {}

    def many(self, **coordinates: Any) -> tuple[np.ndarray, np.ndarray]:
        """(seconds, which of them lie outside what was measured) of many points."""
        wanted = [np.asarray(self._given(coordinates, axis), float) for axis in self.table.axes]
        arrays = np.broadcast_arrays(*wanted)
        lower, weight, clipped = [], [], []
        outside = np.zeros(arrays[0].shape, dtype=bool)
        for values, points in zip(self.table.grid, arrays, strict=True):
            inside = np.clip(points, values[0], values[-1])
            place = np.searchsorted(values, inside, side="right") - 1
            place = np.clip(place, 0, max(len(values) - 2, 0))
            gap = values[np.minimum(place + 1, len(values) - 1)] - values[place]
            lower.append(place)
            weight.append(
                np.where(gap > 0, (inside - values[place]) / np.where(gap > 0, gap, 1), 0)
            )
            clipped.append(inside)
            outside |= inside != points
        total = np.zeros(arrays[0].shape)
        for corner in itertools.product((0, 1), repeat=len(arrays)):
            share = np.ones(arrays[0].shape)
            where = []
            for side, place, part, values in zip(
                corner, lower, weight, self.table.grid, strict=True
            ):
                share = share * (part if side else 1.0 - part)
                where.append(np.minimum(place + side, len(values) - 1))
            index = tuple(where)
            total += share * self._values[index]
            if self._holes:
                outside |= (share > 0) & self._hole[index]
        return self._scaled(total, arrays, clipped, outside), outside

    def _scaled(
        self, total: np.ndarray, arrays: list[Any], clipped: list[Any], outside: np.ndarray
    ) -> np.ndarray:
        axes = self.table.axes
        if self.by_ratio:
            return total * self.reference(dict(zip(axes, arrays, strict=True)))
        if outside.any():
            there = self.reference(dict(zip(axes, arrays, strict=True)))
            edge = self.reference(dict(zip(axes, clipped, strict=True)))
            total = total * np.where(outside, there / edge, 1.0)
        return total

    def _given(self, coordinates: Mapping[str, Any], axis: str) -> Any:
        if axis not in coordinates:
            fix = did_you_mean(axis, coordinates)
            raise SpecError(f"{self.table.key}.{axis}", "no value for this axis", fix)
        return coordinates[axis]

    def one(self, *point: float) -> tuple[float, bool]:
        """(seconds, whether outside) of one point, given in the order of the axes."""
        found = self._cache.get(point)
        if found is None:
            if len(self._cache) >= _CACHE:
                self._cache.clear()
            named = dict(zip(self.table.axes, point, strict=True))
            seconds, outside = self.many(**{axis: [value] for axis, value in named.items()})
            found = self._cache[point] = (float(seconds[0]), bool(outside[0]))
        self.outside += found[1]
        return found

    def cell(self, axis: int, value: float) -> int:
        """The index of the last grid value of an axis that is not above the value."""
        return max(bisect_right(self._lists[axis], value) - 1, 0)


def _filled(ratio: np.ndarray) -> np.ndarray:
    """Holes take the mean ratio of their nearest filled neighbours, ring by ring."""
    ratio = ratio.copy()
    while True:
        hole = np.isnan(ratio)
        if not hole.any():
            return ratio
        total, count = np.zeros_like(ratio), np.zeros_like(ratio)
        for axis in range(ratio.ndim):
            for step in (1, -1):
                near = np.roll(ratio, step, axis)
                edge = [slice(None)] * ratio.ndim
                edge[axis] = slice(0, 1) if step == 1 else slice(-1, None)
                near[tuple(edge)] = np.nan  # what rolled over the edge is no neighbour
                known = ~np.isnan(near)
                total[known] += near[known]
                count[known] += 1
        fill = hole & (count > 0)
        ratio[fill] = total[fill] / count[fill]


class Tables:
    """Tables of one device, found by what they measure."""

    def __init__(self, device: str, tables: Sequence[OpTable], source: str = "") -> None:
        self.device, self.source = device, source
        self._by: dict[tuple[str, str], list[OpTable]] = {}
        for table in tables:
            table.for_device(device)
            self._by.setdefault((table.op, table.dtype), []).append(table)

    def __iter__(self) -> Any:
        return itertools.chain.from_iterable(self._by.values())

    def __len__(self) -> int:
        return sum(len(each) for each in self._by.values())

    def find(self, op: str, dtype: str, **fixed: Any) -> OpTable | None:
        """The table of an operation with these values held fixed, or None."""
        for table in self._by.get((op, dtype), ()):
            if all(table.fixed.get(name) == value for name, value in fixed.items()):
                return table
        return None

    @property
    def operations(self) -> tuple[str, ...]:
        """What is measured here."""
        return tuple(sorted({op for op, _ in self._by}))


__all__ = ["Lookup", "OpTable", "Reference", "Tables"]
