"""Reader of profiles in the format of Vidur and Frontier (MIT; not part of this project).

`compute/<device>/<model>/mlp.csv` has the operations of one layer by tokens, `attention.csv` those
on the cache by chunk and history, `network/<cluster>/all_reduce.csv` collectives by bytes. Times
are milliseconds; a point was timed many times, and its median is taken.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from orrery.base.errors import SpecError
from orrery.models.optable import OpTable, Tables
from orrery.models.specs import ModelSpec
from orrery.models.tables.files import Columns, read_csv

# Our name for an operation, and which of theirs make it up, with the share of each.
_MLP = {
    "embedding": {"emb": 1.0},
    # Two norms and two additions make a layer; ours are two norms, each fused with an addition.
    "norms": {"input_layernorm": 0.5, "post_attention_layernorm": 0.5, "add": 1.0},
    "qkv": {"attn_pre_proj": 1.0},
    "rope": {"attn_rope": 1.0},
    "out": {"attn_post_proj": 1.0},
    "up": {"mlp_up_proj": 1.0},
    "activation": {"mlp_act": 1.0},
    "down": {"mlp_down_proj": 1.0},
}
# What the folders of such profiles are called after; a folder of another device is refused.
_FOLDERS = {"a100": "A100-80-SXM", "h100": "H100-SXM", "a40": "A40", "a800": "A800", "h800": "H800"}
_MS = 1e-3


def read_vidur(
    folder: Path,
    model: ModelSpec,
    device: str,
    tp: int = 1,
    *,
    all_reduce: Path | None = None,
    dtype: str = "fp16",
) -> Tables:
    """Tables of one model on one device: `mlp.csv`, and `attention.csv` where the folder has it.

    The device is what the profile was made on, by its name in the world's catalogue; the files do
    not say it, only the folders' names do where they are kept as published.
    """
    for part in folder.parts:
        made_on = _FOLDERS.get(part.lower().split("_")[0])
        if made_on is not None and made_on != device:
            fix = f"give a profile of {device}, or rooflines"
            raise SpecError(f"{folder}: device", f"measured on {made_on}, not {device}", fix)
    tables = _mlp_tables(folder / "mlp.csv", model, device, tp, dtype)
    if (folder / "attention.csv").is_file():
        tables += _attention_tables(folder / "attention.csv", model, device, tp, dtype)
    if all_reduce is not None:
        tables.append(_all_reduce(all_reduce, device, tp, dtype))
    return Tables(device, tables, source=f"Vidur profile {folder}")


def _time(columns: Columns, op: str) -> np.ndarray:
    return columns[f"time_stats.{op}.median"]


def _mlp_tables(path: Path, model: ModelSpec, device: str, tp: int, dtype: str) -> list[OpTable]:
    shape = {
        "n_head": model.heads, "n_kv_head": model.kv_heads, "n_embd": model.hidden,
        "n_expanded_embd": model.intermediate,
    }  # fmt: skip
    names = sorted({each for parts in _MLP.values() for each in parts})
    wanted = [f"time_stats.{each}.median" for each in names]
    columns = read_csv(path, [*wanted, *shape, "num_tokens", "num_tensor_parallel_workers"])
    for name, value in shape.items():
        if not np.all(columns[name] == value):
            found = columns[name][0]
            fix = f"give the profile of {model.name}"
            raise SpecError(f"{path}: {name}", f"{found:g} where the model has {value}", fix)
    keep = _of_tp(path, columns, tp)
    tokens = columns["num_tokens"][keep]
    return [
        OpTable.from_points(
            name,
            {"tokens": tokens},
            sum(share * _time(columns, part)[keep] for part, share in parts.items()) * _MS,
            device=device,
            dtype=dtype,
            fixed={"model": model.name, "tp": tp},
            backend="vidur",
            source=str(path),
        )
        for name, parts in _MLP.items()
    ]


def _of_tp(path: Path, columns: Columns, tp: int) -> np.ndarray:
    keep = columns["num_tensor_parallel_workers"] == tp
    if not keep.any():
        have = sorted({int(each) for each in columns["num_tensor_parallel_workers"]})
        raise SpecError(f"{path}: tp", f"{tp} was not measured", f"measured: {have}")
    return keep


def _attention_tables(
    path: Path, model: ModelSpec, device: str, tp: int, dtype: str
) -> list[OpTable]:  # fmt: skip
    parts = ("attn_kv_cache_save", "attn_prefill", "attn_decode")
    shape = {"n_q_head": model.heads, "n_kv_head": model.kv_heads, "n_embd": model.hidden}
    rest = ("batch_size", "prefill_chunk_size", "kv_cache_size", "is_prefill")
    wanted = [f"time_stats.{each}.median" for each in parts]
    columns = read_csv(path, [*wanted, *shape, *rest, "num_tensor_parallel_workers"])
    for name, value in shape.items():
        if not np.all(columns[name] == value):
            fix = f"give the profile of {model.name}"
            raise SpecError(f"{path}: {name}", f"{columns[name][0]:g}, not {value}", fix)
    keep = _of_tp(path, columns, tp)
    prompt = keep & (columns["is_prefill"] == "True")
    decode = keep & (columns["is_prefill"] == "False")
    fixed = {
        "heads": model.heads // tp, "kv_heads": max(1, model.kv_heads // tp),
        "head_dim": model.head_dim, "window": 0,
    }  # fmt: skip
    found = []
    for op, part, rows, axes in (
        ("attention_prefill", "attn_prefill", prompt & (columns["batch_size"] == 1),
         {"new": "prefill_chunk_size", "past": "kv_cache_size"}),
        ("attention_decode", "attn_decode", decode,
         {"batch": "batch_size", "context": "kv_cache_size"}),
    ):  # fmt: skip
        rows = rows & (_time(columns, part) > 0)
        if rows.any():
            found.append(
                OpTable.from_points(
                    op,
                    {axis: columns[name][rows] for axis, name in axes.items()},
                    _time(columns, part)[rows] * _MS,
                    device=device,
                    dtype=dtype,
                    fixed=fixed,
                    backend="vidur",
                    source=str(path),
                )
            )
    return found


def _all_reduce(path: Path, device: str, tp: int, dtype: str) -> OpTable:
    wanted = ("time_stats.all_reduce.median", "num_workers", "size", "devices_per_node")
    columns = read_csv(path, wanted)
    keep = (columns["num_workers"] == tp) & (columns["devices_per_node"] == tp)
    if not keep.any():
        have = sorted({int(each) for each in columns["num_workers"]})
        raise SpecError(f"{path}: num_workers", f"{tp} on one node was not measured", f"{have}")
    return OpTable.from_points(
        "all_reduce",
        {"bytes": columns["size"][keep]},
        _time(columns, "all_reduce")[keep] * _MS,
        device=device,
        dtype=dtype,
        fixed={"group": tp},
        backend="vidur",
        source=str(path),
    )


__all__ = ["read_vidur"]
