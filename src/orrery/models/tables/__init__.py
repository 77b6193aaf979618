"""Readers of measured tables; `open_tables` sees by the files which format a folder has."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from orrery.base.errors import SpecError
from orrery.models.optable import Tables
from orrery.models.tablefile import load_tables
from orrery.models.tables.aiconfigurator import SYSTEMS, AiconfiguratorTables, package_root


def open_tables(path: str | os.PathLike[str], device: str) -> Tables:
    """Tables of a device: our own .json or .npz, or a folder of aiconfigurator's."""
    place = Path(path)
    if place.is_file() and place.suffix in (".json", ".npz"):
        found = load_tables(place)
        if found.device != device:
            fix = f"give tables of {device}, or rooflines"
            raise SpecError(f"{place}: device", f"measured on {found.device}", fix)
        return found
    for root in (place, place / "systems" / "data"):
        if any((root / folder).is_dir() for folder in SYSTEMS.values()):
            return AiconfiguratorTables(root, device)
    fix = "give a .json or .npz of save_tables, or a folder with h100_sxm and the like"
    raise SpecError("tables", f"{str(place)!r} has no format known here", fix)


def data_home() -> str:
    """The folder of measured data that the environment names, or nothing."""
    return os.environ.get("ORRERY_DATA", "")


def find_tables(device: str) -> Tables | None:
    """Tables of a device under $ORRERY_DATA or in the installed package, or None.

    They are Parquet files, so there are none where pyarrow is not installed.
    """
    if importlib.util.find_spec("pyarrow") is None:
        return None
    roots = []
    home = data_home()
    if home:
        roots += sorted(Path(home).glob("op_profiles/aiconfigurator_core_*"), reverse=True)
    package = package_root()
    if package is not None:
        roots.append(package)
    for root in roots:
        folder = SYSTEMS.get(device)
        if folder and any(root.glob(f"{folder}/gemm/vllm/*/gemm_perf.parquet")):
            return AiconfiguratorTables(root, device)
    return None


__all__ = ["data_home", "find_tables", "open_tables"]
