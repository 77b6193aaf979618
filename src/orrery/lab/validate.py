"""A saved run of a real serving engine, replayed in the model and compared request by request.

The folder of a run holds `requests.jsonl` (lengths, arrival, queued, first and last token of each
request), `meta.json` (the engine's settings) and `config.json` (hardware, links). The workload with
its block ids is found beside it by the name in `meta.json`. Settings that the engine printed, such
as the number of its blocks, are read; nothing is fitted to the run.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from orrery.base.errors import UsageError
from orrery.lab.stats import quantile
from orrery.models.replica import Replica, drain
from orrery.models.requests import Request, Served
from orrery.models.specs import spec
from orrery.models.tables.llmservingsim import LayerTables
from orrery.systems.serve.baselines.vllm_v1 import VllmV1

QUANTILES = (0.5, 0.9, 0.99)


class SavedRequest(msgspec.Struct, frozen=True):
    """One line of `requests.jsonl`; times in seconds, the arrival by a clock of its own."""

    input_toks: int
    output_toks: int
    arrival_time: float
    queued_ts: float
    first_token_ts: float
    last_token_ts: float
    request_id: str = ""

    @property
    def ttft_s(self) -> float:
        return self.first_token_ts - self.queued_ts

    @property
    def tpot_s(self) -> float:
        return (self.last_token_ts - self.first_token_ts) / max(self.output_toks - 1, 1)

    @property
    def latency_s(self) -> float:
        return self.last_token_ts - self.queued_ts


class SavedRun(msgspec.Struct, frozen=True):
    """A saved run: its requests, and what its engine and machine were."""

    folder: Path
    requests: list[SavedRequest]
    meta: dict[str, Any]
    config: dict[str, Any]
    blocks: list[list[int]]

    @property
    def instance(self) -> dict[str, Any]:
        return dict(self.config["nodes"][0]["instances"][0])

    @property
    def engine(self) -> dict[str, Any]:
        return dict(self.meta["engine_kwargs"])


def load_run(folder: Path) -> SavedRun:
    """Read a saved run whole, or say which file is wrong."""
    try:
        meta = json.loads((folder / "meta.json").read_text())
        config = json.loads((folder / "config.json").read_text())
        decoder = msgspec.json.Decoder(SavedRequest)
        lines = (folder / "requests.jsonl").read_text().splitlines()
        requests = [decoder.decode(line) for line in lines if line.strip()]
    except OSError as error:
        raise UsageError(
            f"--run {folder}: {Path(error.filename or folder).name}: {error.strerror}; give a "
            "folder with requests.jsonl, meta.json and config.json"
        ) from error
    except (ValueError, msgspec.DecodeError) as error:
        raise UsageError(f"--run {folder}: not a saved run: {error}") from error
    if not requests:
        raise UsageError(f"--run {folder}: requests.jsonl is empty; there is nothing to replay")
    run = SavedRun(folder, requests, meta, config, _blocks(folder, meta, len(requests)))
    for field in ("kv_cache", "engine_kwargs", "model"):
        if field not in meta:
            raise UsageError(f"--run {folder}: meta.json has no {field!r}; save the run whole")
    return run


def _blocks(folder: Path, meta: dict[str, Any], count: int) -> list[list[int]]:
    """The block ids of each request's prompt, from the workload that the run names."""
    name = Path(str(meta.get("dataset_path", ""))).name.split(".jsonl")[0]
    for place in [folder, *folder.absolute().parents]:
        found = sorted((place / "workloads").glob(f"{name}*.jsonl*")) if name else []
        if found:
            data = found[0].read_bytes()
            text = gzip.decompress(data) if found[0].suffix == ".gz" else data
            rows = [json.loads(line) for line in text.splitlines() if line.strip()]
            if len(rows) < count:
                raise UsageError(f"{found[0]}: {len(rows)} requests, the run has {count}")
            return [row.get("hash_ids", []) for row in rows[:count]]
    return [[] for _ in range(count)]


@contextlib.contextmanager
def tables_of(run: SavedRun, tables: Path) -> Iterator[Path]:
    """The profile of the run's hardware, model and dtype, in a folder or an archive of profiles."""
    wanted = _profile_name(run)
    with tempfile.TemporaryDirectory(prefix="orrery-tables-") as place:
        for archive in [tables] if tables.is_file() else sorted(tables.glob("*.tar.gz")):
            with tarfile.open(archive) as packed:
                members = [each for each in packed.getmembers() if f"{wanted}/" in each.name]
                packed.extractall(place, members=members, filter="data")
        for root in (Path(place), tables):
            for found in sorted(root.rglob("meta.yaml")):
                if str(found.parent).endswith(str(wanted)) or found.parent == tables:
                    yield found.parent
                    return
    raise UsageError(f"--tables {tables}: no profile {wanted}; give a folder that holds it")


def _profile_name(run: SavedRun) -> Path:
    """hardware/model/dtype, as profiles are filed."""
    short = {"bfloat16": "bf16", "float16": "fp16", "auto": "bf16"}
    dtype, cache = str(run.engine.get("dtype", "auto")), run.engine.get("kv_cache_dtype", "auto")
    variant = short.get(dtype, dtype) + ("" if cache in ("auto", None) else f"-kv{cache}")
    return Path(str(run.instance.get("hardware", ""))) / str(run.meta["model"]) / variant


def replay(run: SavedRun, tables: Path) -> tuple[list[Served], Replica]:
    """Serve the run's requests with the model; the outcome of each, and the replica."""
    if int(run.engine.get("data_parallel_size") or 1) > 1:
        raise UsageError(f"--run {run.folder}: data parallel runs cannot be replayed; give others")
    model = spec(str(run.meta["model"]))
    tp = int(run.engine.get("tensor_parallel_size") or 1)
    steps = LayerTables(
        tables, layers=model.layers, hidden=model.hidden, tp=tp,
        experts=(model.experts, model.experts_active) if model.experts else None,
        expert_parallel=bool(run.engine.get("enable_expert_parallel")),
        link_Bps=_first(run.config.get("link_bw", 0)) * 1e9,
        link_s=_first(run.config.get("link_latency", 0)) * 1e-9, padded_to=_captured(run.meta),
    )  # fmt: skip
    cache, engine = run.meta["kv_cache"], run.engine
    scheduler = VllmV1(
        max_seqs=int(engine.get("max_num_seqs") or 256),
        max_tokens=int(engine.get("max_num_batched_tokens") or 2048),
        whole=bool(_resolved(run.meta, "scheduler_config").get("scheduler_reserve_full_isl", True)),
    )
    replica = Replica(
        # vLLM keeps one block as a null block.
        steps, scheduler, blocks=int(cache["num_gpu_blocks"]) - 1,
        block_tokens=int(cache["block_size"]), caching=bool(cache["enable_prefix_caching"]),
        ahead=bool(_resolved(run.meta, "scheduler_config").get("async_scheduling", True)),
    )  # fmt: skip
    began_s = min(each.arrival_time for each in run.requests)
    requests = [
        Request(number, each.arrival_time - began_s, each.input_toks, each.output_toks,
                blocks=tuple(blocks[: each.input_toks // int(cache["block_size"])]))
        for number, (each, blocks) in enumerate(zip(run.requests, run.blocks, strict=True))
    ]  # fmt: skip
    served = drain(replica, sorted(requests, key=lambda each: each.arrival_s))
    return sorted(served, key=lambda each: each.id), replica


def _first(value: Any) -> float:
    return float(value[0] if isinstance(value, list) else value)


def _resolved(meta: dict[str, Any], part: str) -> dict[str, Any]:
    return dict((meta.get("resolved_config") or {}).get(part) or {})


def _captured(meta: dict[str, Any]) -> Sequence[int]:
    """Batch sizes with a captured graph; a run without graphs pads nothing."""
    if _resolved(meta, "model_config").get("enforce_eager"):
        return ()
    return _resolved(meta, "compilation_config").get("cudagraph_capture_sizes") or ()


def validate_serving(run_folder: Path, tables: Path) -> dict[str, Any]:
    """The errors of the model, as fractions: (modelled - measured) / measured."""
    run = load_run(run_folder)
    with tables_of(run, tables) as profile:
        served, replica = replay(run, profile)
    found: dict[str, Any] = {}
    for name in ("ttft", "tpot", "latency"):
        real = [getattr(each, f"{name}_s") for each in run.requests]
        made = [_as_saved(each)[name] for each in served]
        found[f"{name}_mean_err"] = _error(float(np.mean(made)), float(np.mean(real)))
        for share in QUANTILES:
            told = quantile(made, share), quantile(real, share)
            found[f"{name}_p{round(100 * share)}_err"] = _error(*told)
        found[f"{name}_mean_s"] = float(np.mean(made))
        found[f"{name}_mean_measured_s"] = float(np.mean(real))
    apart = [
        abs(_error(_as_saved(mine)["latency"], real.latency_s))
        for mine, real in zip(served, run.requests, strict=True)
    ]
    found["request_latency_median_err"] = float(np.median(apart))
    return found | {
        "requests": len(served), "preemptions": replica.preemptions, "hit_tokens":
        replica.hit_tokens, "extrapolated_ops": replica.steps.extrapolated,
        "model": run.meta["model"], "hardware": run.instance.get("hardware"),
        "faults": replica.faults(),
    }  # fmt: skip


def _as_saved(served: Served) -> dict[str, float]:
    """The times as the engine counts them: from when it saw the request, between two steps."""
    return {"ttft": served.first_s - served.queued_s, "tpot": served.tpot_s,
            "latency": served.last_s - served.queued_s}  # fmt: skip


def _error(made: float, real: float) -> float:
    return made / real - 1.0


__all__ = ["SavedRequest", "SavedRun", "load_run", "replay", "tables_of", "validate_serving"]
