"""Measured tables: exact at points, continuous beyond them, flagged outside, safe on disk."""

from __future__ import annotations

import json

import numpy as np
import pytest

from orrery.base.errors import SpecError
from orrery.models.optable import Lookup, OpTable, Tables
from orrery.models.tablefile import load_tables, save_tables


def product(dims):
    return 1.0 + dims["m"] * dims["n"]


def made(**more) -> OpTable:
    m, n = np.meshgrid([1.0, 2.0, 8.0], [10.0, 20.0], indexing="ij")
    seconds = (m * n + 3 * m).reshape(-1)
    return OpTable.from_points(
        "gemm", {"m": m.reshape(-1), "n": n.reshape(-1)}, seconds, device="H100-SXM",
        dtype="bf16", **more,
    )  # fmt: skip


@pytest.mark.parametrize("by_ratio", [False, True])
def test_points_are_given_back(by_ratio: bool) -> None:
    lookup = Lookup(made(), product, by_ratio=by_ratio)
    for m in (1.0, 2.0, 8.0):
        for n in (10.0, 20.0):
            seconds, outside = lookup.one(m, n)
            assert seconds == pytest.approx(m * n + 3 * m, rel=1e-15)
            assert not outside
    assert lookup.outside == 0


def test_between_points_it_is_linear_in_each_dimension() -> None:
    lookup = Lookup(made(), product)
    for m, n in ((1.5, 10.0), (3.0, 17.0), (7.9, 11.1)):
        assert lookup.one(m, n)[0] == pytest.approx(m * n + 3 * m)  # bilinear functions are exact
    many, outside = lookup.many(m=np.array([1.5, 3.0]), n=17.0)
    assert many.tolist() == pytest.approx([1.5 * 20, 3 * 20])
    assert not outside.any()


@pytest.mark.parametrize("by_ratio", [False, True])
def test_beyond_the_edge_it_follows_the_reference_and_says_so(by_ratio: bool) -> None:
    lookup = Lookup(made(), product, by_ratio=by_ratio)
    edge, flagged = lookup.one(8.0, 20.0)
    assert not flagged
    far, flagged = lookup.one(80.0, 20.0)
    assert flagged
    assert far == pytest.approx(edge * (1 + 1600) / (1 + 160))
    near, flagged = lookup.one(8.0 + 1e-9, 20.0)
    assert flagged
    assert near == pytest.approx(edge, rel=1e-6)  # no jump
    assert lookup.one(0.5, 10.0)[1]
    assert lookup.outside == 3
    assert lookup.one(0.5, 10.0)[1]  # from the cache, and counted again
    assert lookup.outside == 4


def test_holes_are_filled_from_neighbours_and_flagged() -> None:
    table = OpTable.from_points(
        "gemm", {"m": [1, 2, 1], "n": [10, 10, 20]}, [11.0, 21.0, 21.0], device="L4", dtype="bf16"
    )
    assert table.points == 3
    lookup = Lookup(table, product)
    seconds, outside = lookup.one(2.0, 20.0)
    assert outside
    assert seconds == pytest.approx(41.0)  # every measured point is the reference itself
    assert lookup.one(2.0, 10.0) == (21.0, False)
    assert lookup.one(1.5, 15.0)[1]


def test_repeated_points_give_the_median() -> None:
    table = OpTable.from_points("x", {"m": [1, 1, 1, 2]}, [3, 1, 9, 4], device="L4", dtype="bf16")
    assert table.seconds.tolist() == [3, 4]


def test_a_table_with_one_point() -> None:
    table = OpTable.from_points("x", {"m": [4]}, [2.0], device="L4", dtype="bf16")
    lookup = Lookup(table, lambda dims: dims["m"] * 1.0)
    assert lookup.one(4.0) == (2.0, False)
    assert lookup.one(8.0) == (4.0, True)


@pytest.mark.parametrize(
    ("columns", "seconds", "match"),
    [
        ({"m": []}, [], "m"),
        ({"m": [1, 2]}, [1.0], "m"),
        ({"m": [1, 2]}, [1.0, 0.0], "seconds"),
        ({"m": [1, 2]}, [1.0, -1.0], "seconds"),
        ({"m": [1, 2]}, [1.0, np.inf], "seconds"),
        ({"m": [1, np.nan]}, [1.0, 2.0], "grid.m"),
        ({"m": [1]}, [np.nan], "seconds"),
    ],
)
def test_bad_tables_are_refused(columns, seconds, match: str) -> None:
    with pytest.raises(SpecError, match=match):
        OpTable.from_points("x", columns, seconds, device="L4", dtype="bf16")


def test_a_missing_axis_is_named() -> None:
    with pytest.raises(SpecError, match="n"):
        Lookup(made(), product).many(m=1.0)


def test_a_table_of_another_device_is_refused() -> None:
    with pytest.raises(SpecError, match="measured on H100-SXM, not L4"):
        made().for_device("L4")
    with pytest.raises(SpecError, match="measured on H100-SXM"):
        Tables("L4", [made()])


def test_tables_are_found_by_what_is_fixed() -> None:
    tables = Tables("H100-SXM", [made(fixed={"heads": 8}), made(fixed={"heads": 4})])
    found = tables.find("gemm", "bf16", heads=4)
    assert found is not None
    assert found.fixed["heads"] == 4
    assert tables.find("gemm", "fp8", heads=4) is None
    assert tables.find("gemm", "bf16", heads=5) is None
    assert len(tables) == 2


@pytest.mark.parametrize("suffix", ["json", "npz"])
def test_files_keep_everything(tmp_path, suffix: str) -> None:
    hole = OpTable.from_points(
        "attention_decode", {"batch": [1, 2, 1], "context": [10, 10, 20]}, [0.1, 1 / 3, 0.7],
        device="H100-SXM", dtype="bf16", backend="x 1", fixed={"heads": 8, "model": "m"},
        source="here", watts=[300.0, 400.0, np.nan],
    )  # fmt: skip
    path = save_tables(Tables("H100-SXM", [made(), hole], "test"), tmp_path / f"t.{suffix}")
    again = load_tables(path)
    assert again.device == "H100-SXM"
    (copy,) = [table for table in again if table.op == "attention_decode"]
    assert np.array_equal(copy.seconds, hole.seconds, equal_nan=True)
    assert np.array_equal(copy.watts, hole.watts, equal_nan=True)
    assert (copy.axes, copy.fixed, copy.backend) == (hole.axes, hole.fixed, hole.backend)
    assert [path.name for path in tmp_path.iterdir()] == [f"t.{suffix}"]


def test_bad_files_are_refused(tmp_path) -> None:
    good = json.loads(save_tables(Tables("L4", []), tmp_path / "a.json").read_text())
    changed = [{"schema": "other"}, {"tables": [{}]}, {"tables": 7}]
    for text in ("", "{", "[]", "{}", *(json.dumps({**good, **each}) for each in changed)):
        path = tmp_path / "bad.json"
        path.write_text(text)
        with pytest.raises(SpecError, match="bad.json"):
            load_tables(path)
    (tmp_path / "bad.npz").write_bytes(b"PK nothing")
    with pytest.raises(SpecError, match="bad.npz"):
        load_tables(tmp_path / "bad.npz")
    with pytest.raises(SpecError, match="cannot be read"):
        load_tables(tmp_path / "none.json")
    with pytest.raises(SpecError, match="path"):
        save_tables(Tables("L4", []), tmp_path / "t.txt")
    assert not (tmp_path / "t.txt").exists()
