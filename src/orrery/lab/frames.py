"""Runs and comparisons as columns, and as data frames of pandas or Polars.

A column is of one kind, and its type in a frame follows from the kind alone, so it does not change
with what happens to be missing: float (Float64; in pandas float64, in which a missing value is
NaN), int (Int64), bool (Boolean), text (String). Polars keeps NaN (the run gave no number) apart
from null (there is no such value).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from orrery.base.errors import PlatformLacks, UsageError, did_you_mean

if TYPE_CHECKING:
    import pandas
    import polars

    from orrery.lab.compare import Comparison
    from orrery.lab.run import Run

Table = Literal["metrics", "records", "violations"]
Kind = Literal["float", "int", "bool", "text"]
TABLES = ("metrics", "records", "violations")
_INT64 = range(-(1 << 63), 1 << 63)


class Column(NamedTuple):
    """A name, the kind of its values, and the values; None is what is missing."""

    name: str
    kind: Kind
    values: list[Any]


# -- what the tables hold


def run_columns(run: Run, table: str = "metrics") -> list[Column]:
    """A table of a run: its metrics, what its nodes emitted (`records`), or its violations."""
    if table not in TABLES:
        raise UsageError(f"table={table!r}: no such table; {did_you_mean(str(table), TABLES)}")
    if table == "records":
        return _records(run)
    if table == "violations":
        found = run.violations
        return [
            _texts("kind", [each.kind for each in found]),
            _texts("message", [each.message for each in found]),
            _floats("time_s", [each.time_s for each in found]),
            Column("node", "int", [each.node for each in found]),
            _texts("evidence", [each.evidence or None for each in found]),
        ]
    units = [run.units.get(name) for name in run.metrics]
    return [
        _texts("metric", run.metrics),
        _floats("value", run.metrics.values()),
        _texts("unit", [metric.unit if metric else "" for metric in units]),
        _texts("better", [metric.better if metric else "" for metric in units]),
        _texts("says", [metric.says if metric else "" for metric in units]),
    ]


def _records(run: Run) -> list[Column]:
    """A row for each `emit`; a column for each name, in order of first use."""
    records = run.records
    emitted: dict[str, list[Any]] = {}
    for row, record in enumerate(records):
        for name, value in record.values.items():
            if name not in emitted:
                emitted[name] = [None] * len(records)
            emitted[name][row] = _plain(value)
    fixed = [
        _floats("time_s", [record.time_s for record in records]),
        Column("node", "int", [record.node for record in records]),
    ]
    return fixed + _named([_guess(name, values) for name, values in emitted.items()], fixed)


def comparison_columns(found: Comparison) -> list[Column]:
    """A row for each run (a system with a seed), a column for each metric."""
    cells = [(row, i) for row in found.rows for i in range(len(row.seeds))]
    broken = [Counter(each.get("seed") for each in row.violations) for row in found.rows]
    counts = {id(row): count for row, count in zip(found.rows, broken, strict=True)}
    fixed = [
        _texts("problem", [found.problem] * len(cells)),
        _texts("world", [found.world] * len(cells)),
        _texts("system", [row.system for row, _ in cells]),
        Column("seed", "int", [row.seeds[i] for row, i in cells]),
        _texts("run", [row.runs[i] if i < len(row.runs) else None for row, i in cells]),
        Column("violations", "int", [counts[id(row)][row.seeds[i]] for row, i in cells]),
    ]
    metrics = [
        _floats(name, [row.values.get(name, {}).get(row.seeds[i]) for row, i in cells])
        for name in found.metrics
    ]
    return fixed + _named(metrics, fixed)


# -- columns


def _named(columns: Iterable[Column], taken: Sequence[Column]) -> list[Column]:
    """A name that a fixed column has already gets `_` behind it, until it is its own."""
    names = {column.name for column in taken}
    found: list[Column] = []
    for column in columns:
        name = _clean(column.name)
        while name in names:
            name += "_"
        names.add(name)
        found.append(column._replace(name=name))
    return found


def _floats(name: str, values: Iterable[Any]) -> Column:
    found: list[float | None] = []
    for value in values:
        try:
            found.append(None if value is None else float(value))
        except (TypeError, ValueError, OverflowError):
            raise UsageError(f"{name}: {value!r} is not a number; mend what measures it") from None
    return Column(name, "float", found)


def _texts(name: str, values: Iterable[Any]) -> Column:
    return Column(name, "text", [None if value is None else _text(value) for value in values])


def _guess(name: str, values: list[Any]) -> Column:
    """The narrowest kind that holds every value without loss; what is mixed becomes text."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return Column(name, "bool", values)
    if kinds == {int} and all(value is None or value in _INT64 for value in values):
        return Column(name, "int", values)
    if float in kinds and kinds <= {int, float}:
        try:
            return Column(name, "float", [None if v is None else float(v) for v in values])
        except OverflowError:
            pass
    return _texts(name, values)


def _plain(value: Any) -> Any:
    """A number of an array library as Python's own."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return value.item()
    # Subclasses of int (an enumeration) would hide the kind of the whole column.
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    return float(value) if isinstance(value, float) else value


def _text(value: Any) -> str:
    """A text as it is; anything else as JSON, equal for equal values."""
    if isinstance(value, str):
        return _clean(value)
    try:
        return msgspec.json.encode(value, enc_hook=_unknown, order="deterministic").decode()
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        return _clean(repr(value))


def _unknown(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no JSON")


def _clean(words: str) -> str:
    """Frames hold UTF-8, in which a lone surrogate has no place."""
    return words if words.isascii() else words.encode("utf-8", "backslashreplace").decode()


# -- frames


def to_pandas(columns: Sequence[Column]) -> pandas.DataFrame:
    """The columns as a DataFrame of pandas."""
    try:
        import pandas
    except ImportError:
        raise _lacks("pandas") from None
    types = {"float": "float64", "int": "Int64", "bool": "boolean", "text": "string"}
    made = {
        # float64 has no missing value but NaN.
        column.name: pandas.Series(
            [float("nan") if v is None else v for v in column.values]
            if column.kind == "float"
            else column.values,
            dtype=types[column.kind],
        )
        for column in columns
    }
    return pandas.DataFrame(made)


def to_polars(columns: Sequence[Column]) -> polars.DataFrame:
    """The columns as a DataFrame of Polars."""
    try:
        import polars
    except ImportError:
        raise _lacks("polars") from None
    types: dict[str, Any] = {
        "float": polars.Float64, "int": polars.Int64, "bool": polars.Boolean,
        "text": polars.String,
    }  # fmt: skip
    return polars.DataFrame(
        [polars.Series(column.name, column.values, dtype=types[column.kind]) for column in columns]
    )


def to_columns(columns: Sequence[Column]) -> dict[str, list[Any]]:
    """The columns as plain lists by name."""
    return {column.name: column.values for column in columns}


def _lacks(library: str) -> PlatformLacks:
    return PlatformLacks(
        f'{library} is not installed; pip install "orrery[frames]", or use to_columns()'
    )
