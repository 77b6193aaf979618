"""Reader of NVIDIA aiconfigurator's measured tables (Apache-2.0; not part of this project).

A folder has one folder for each system (`h100_sxm`), in it `gemm/<backend>/<version>/*.parquet` and
the like; times are milliseconds. The package `aiconfigurator-core` of PyPI brings all systems. What
the columns mean: `isl` new tokens of each sequence, `step` tokens already cached, `message_size` of
collectives counts elements, `num_tokens` of experts counts those of all groups together.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np

from orrery.base.errors import SpecError, did_you_mean
from orrery.models.optable import OpTable, Tables
from orrery.models.tables.files import Columns, read_parquet

SYSTEMS = {
    "H100-SXM": "h100_sxm", "H100-PCIe": "h100_pcie", "H200": "h200_sxm", "B200": "b200_sxm",
    "GB200": "gb200", "A100-80-SXM": "a100_sxm", "L40S": "l40s", "L4": "l4",
}  # fmt: skip
_DTYPES = {
    "bfloat16": "bf16", "float16": "fp16", "half": "bf16", "w4a16_mxfp4": "mxfp4",
    "int4_wo": "int4",
}  # fmt: skip
_MS = 1e-3


class AiconfiguratorTables(Tables):
    """Tables of one system; each is made when it is first asked for.

    backend        the engine whose kernels were timed: vllm, sglang, trtllm
    distribution   how evenly tokens met the experts: balanced, power_law_1.01, power_law_1.2
    """

    def __init__(
        self, root: Path, device: str, backend: str = "vllm", distribution: str = "balanced"
    ) -> None:
        super().__init__(device, (), source=f"aiconfigurator {backend} tables in {root}")
        if device not in SYSTEMS or not (root / SYSTEMS[device]).is_dir():
            have = [name for name, folder in SYSTEMS.items() if (root / folder).is_dir()]
            raise SpecError(
                "device", f"no tables of {device} in {root}", did_you_mean(device, have)
            )
        self.root, self.backend = root / SYSTEMS[device], backend
        self.distribution = distribution
        if not any((self.root / "gemm").glob(f"{backend}/*/gemm_perf.parquet")):
            have = sorted(path.name for path in (self.root / "gemm").glob("*"))
            raise SpecError("backend", f"no tables of {backend!r}", did_you_mean(backend, have))
        self._files: dict[str, tuple[Columns, str] | None] = {}
        self._made: dict[tuple[Any, ...], OpTable | None] = {}

    @property
    def operations(self) -> tuple[str, ...]:
        """What is measured here, judged by the files."""
        found = {path.stem.removesuffix("_perf") for path in self.root.rglob("*.parquet")}
        return tuple(sorted(found))

    def find(self, op: str, dtype: str, **fixed: Any) -> OpTable | None:
        """The table of an operation; see `Tables.find`."""
        key = (op, dtype, *sorted(fixed.items()))
        if key not in self._made:
            make = getattr(self, f"_{op}", None) or self._message
            self._made[key] = make(op, dtype, fixed)
        return self._made[key]

    def __iter__(self) -> Any:
        return iter([table for table in self._made.values() if table is not None])

    def __len__(self) -> int:
        return sum(table is not None for table in self._made.values())

    # -- one maker for each kind

    def _gemm(self, op: str, dtype: str, fixed: dict[str, Any]) -> OpTable | None:
        rows = self._rows("gemm", "gemm_perf", {"gemm_dtype": dtype})
        return self._table(op, dtype, rows, {"m": "m", "n": "n", "k": "k"}, {})

    def _attention_prefill(self, op: str, dtype: str, fixed: dict[str, Any]) -> OpTable | None:
        rows = self._heads("context", dtype, fixed)
        return self._table(op, dtype, rows, {"batch": "batch_size", "length": "isl"}, fixed)

    def _attention_decode(self, op: str, dtype: str, fixed: dict[str, Any]) -> OpTable | None:
        rows = self._heads("generation", dtype, fixed)
        if rows is not None:  # the token itself is in the cache too
            rows[0]["context"] = rows[0]["step"] + rows[0]["isl"]
        return self._table(op, dtype, rows, {"batch": "batch_size", "context": "context"}, fixed)

    def _heads(
        self, phase: str, dtype: str, fixed: dict[str, Any]
    ) -> tuple[Columns, str] | None:  # fmt: skip
        held = {
            "num_heads": fixed["heads"], "num_key_value_heads": fixed["kv_heads"],
            "head_dim": fixed["head_dim"], "kv_cache_dtype": dtype,
            "window_size": fixed.get("window", 0),
        }  # fmt: skip
        return self._rows("attention", f"{phase}_attention_perf", held)

    def _moe(self, op: str, dtype: str, fixed: dict[str, Any]) -> OpTable | None:
        held = {
            "moe_dtype": dtype, "hidden_size": fixed["hidden"],
            "inter_size": fixed["intermediate"], "topk": fixed["active"],
            "num_experts": fixed["experts"], "moe_tp_size": fixed["tp"],
            "moe_ep_size": fixed["ep"], "distribution": self.distribution,
        }  # fmt: skip
        rows = self._rows("moe", "moe_perf", held)
        return self._table(op, dtype, rows, {"tokens": "num_tokens"}, fixed)

    def _message(self, op: str, dtype: str, fixed: dict[str, Any]) -> OpTable | None:
        """Collectives: the engine's own all-reduce where it was timed, else NCCL's."""
        if "group" not in fixed:
            return None
        rows = None
        if op == "all_reduce":
            held = {"num_gpus": fixed["group"], "kernel_source": "vLLM_custom_graph"}
            rows = self._rows("comm", "custom_allreduce_perf", held)
        if rows is None:
            name = {"all_to_all": "alltoall"}.get(op, op)
            held = {"num_gpus": fixed["group"], "op_name": name, "nccl_dtype": "half"}
            rows = self._rows("comm", "nccl_perf", held, backend="nccl")
        if rows is not None:
            rows[0]["bytes"] = rows[0]["message_size"] * 2.0  # both were timed with 16-bit elements
        return self._table(op, dtype, rows, {"bytes": "bytes"}, fixed)

    # -- files

    def _file(self, kind: str, stem: str, backend: str) -> tuple[Columns, str] | None:
        name = f"{kind}/{backend}/{stem}"
        if name not in self._files:
            paths = sorted(self.root.glob(f"{kind}/{backend}/*/{stem}.parquet"), key=_version)
            # The newest version that was measured stands for the engine.
            self._files[name] = (read_parquet(paths[-1]), paths[-1].parent.name) if paths else None
        return self._files[name]

    def _rows(
        self, kind: str, stem: str, held: dict[str, Any], backend: str = ""
    ) -> tuple[Columns, str] | None:
        found = self._file(kind, stem, backend or self.backend)
        if found is None:
            return None
        columns, version = found
        keep = np.ones(len(columns["latency"]), dtype=bool)
        for name, value in held.items():
            if name not in columns:
                if value:  # older tables have no column for what they did not vary
                    return None
                continue
            keep &= _same(columns[name], value)
        if not keep.any():
            return None
        return {name: column[keep] for name, column in columns.items()}, version

    def _table(
        self, op: str, dtype: str, rows: tuple[Columns, str] | None, axes: dict[str, str],
        fixed: dict[str, Any],
    ) -> OpTable | None:  # fmt: skip
        if rows is None:
            return None
        columns, version = rows
        return OpTable.from_points(
            op,
            {axis: columns[name].astype(float) for axis, name in axes.items()},
            columns["latency"] * _MS,
            device=self.device,
            dtype=dtype,
            fixed=dict(fixed),
            backend=f"{columns['kernel_source'][0]} {version}",
            source=self.source,
        )


def _same(column: np.ndarray, value: Any) -> np.ndarray:
    if isinstance(value, str):
        names = {value} | {theirs for theirs, ours in _DTYPES.items() if ours == value}
        return np.isin(column.astype(str), sorted(names))
    return column == value


def _version(path: Path) -> list[tuple[int, int, str]]:
    """Versions in order of their numbers; text such as rc counts below a number."""
    parts = re.findall(r"\d+|[a-z]+", path.parent.name)
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts]


def package_root() -> Path | None:
    """Where the installed package aiconfigurator-core keeps its tables, or None."""
    found = importlib.util.find_spec("aiconfigurator_core")
    if found is None or not found.submodule_search_locations:
        return None
    root = Path(next(iter(found.submodule_search_locations))) / "systems" / "data"
    return root if root.is_dir() else None


__all__ = ["SYSTEMS", "AiconfiguratorTables", "package_root"]
