"""Columns of CSV and Parquet files as numpy arrays, with named errors."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from orrery.base.errors import PlatformLacks, SpecError, did_you_mean

Columns = dict[str, np.ndarray]


def read_csv(path: Path, wanted: Sequence[str]) -> Columns:
    """Some columns of a CSV file: numbers where all cells are numbers, else text."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.reader(file)
            head = next(rows, None)
            if not head:
                raise SpecError(str(path), "is empty", "give a table with a head line")
            places = [_place(path, head, name) for name in wanted]
            cells = [[row[place] for place in places] for row in rows if row]
    except (OSError, UnicodeDecodeError) as failure:
        raise SpecError(str(path), f"cannot be read: {failure}", "check the path") from None
    except IndexError:
        raise SpecError(str(path), "a line is too short", "give a whole file") from None
    if not cells:
        raise SpecError(str(path), "has no lines", "give a table with measurements")
    return {name: _numbers([row[i] for row in cells]) for i, name in enumerate(wanted)}


def read_parquet(path: Path) -> Columns:
    """All columns of a Parquet file; needs pyarrow."""
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise PlatformLacks(
            f"{path.name} is a Parquet file, and pyarrow is not installed; "
            'pip install "orrery[tables]"'
        ) from None
    try:
        table = parquet.read_table(path)
    except (OSError, ValueError) as failure:
        raise SpecError(str(path), f"cannot be read: {failure}", "give a Parquet file") from None
    return {name: np.asarray(table[name].to_numpy()) for name in table.column_names}


def _place(path: Path, head: list[str], name: str) -> int:
    if name not in head:
        raise SpecError(f"{path}: {name}", "no such column", did_you_mean(name, head))
    return head.index(name)


def _numbers(cells: list[str]) -> np.ndarray:
    try:
        return np.array([float(cell) for cell in cells])
    except ValueError:
        return np.array(cells)


__all__ = ["Columns", "read_csv", "read_parquet"]
