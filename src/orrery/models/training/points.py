"""Published training points: execution files in Calculon's form, and what was published of them.

A folder of points holds JSON files named MODEL_MODE.json, at any depth. A file says how the step
was run; what was measured stands in `published.toml`, in the file itself (`published_s`,
`published_bytes`), or in a `published.json` of the folder. The model is a JSON file of a `models`
folder beside the points or above them, else a model of the catalogue.
"""

from __future__ import annotations

import functools
import json
import tomllib
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from orrery.base.errors import SpecError, did_you_mean
from orrery.models.specs import ModelSpec, spec
from orrery.models.training.plan import TrainingPlan
from orrery.world import World, worlds

GIB = 1 << 30
MOST_BYTES = 1 << 20
DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float8": "fp8"}
RECOMPUTE = {"none": "none", "attn_only": "selective", "full": "full"}
PATTERNS = {"ar": False, "rs_ag": True, "p2p_rs_ag": True}
# Which network serves a group is the world's matter; these are read and not used.
UNUSED = ("tensor_par_net", "pipeline_par_net", "data_par_net", "fused_activation",
          "attention_type", "seq_par_ag_redo", "tensor_par_overlap")  # fmt: skip
OFFLOADS = ("weight_offload", "activations_offload", "optimizer_offload")
USED = ("num_procs", "tensor_par", "pipeline_par", "data_par", "batch_size", "microbatch_size",
        "datatype", "activation_recompute", "pipeline_interleaving", "optimizer_sharding",
        "tensor_par_comm_type", "data_par_overlap", "training")  # fmt: skip
TOLD = ("published_s", "published_bytes")
SIDECAR = "published.json"
OTHER_NAMES = {"gpt3-175B": "Megatron-175B"}
DEVICES_A_NODE = 8
# Megatron's padded vocabulary; Calculon's model files have none.
VOCABULARY = 51200


class Point(msgspec.Struct, frozen=True):
    """One published step: how it was run, and what was published of it.

    `counts` says what `published_bytes` counts: "layers" (weights, gradients, states and
    activations of the layers, as figure 1 does), "activations" (as figure 7 does) or "device".
    """

    name: str
    model_name: str
    model: ModelSpec
    plan: TrainingPlan
    published_s: float | None = None
    published_bytes: float | None = None
    counts: str = "layers"

    @property
    def mode(self) -> str:
        """none, seq, sel, seqsel or full."""
        return mode_of(self.plan)

    @property
    def world(self) -> World:
        """Nodes of eight A100 80 GB, a NIC for each, as many as the point needs."""
        return worlds.a100_pod(-(-self.plan.devices // DEVICES_A_NODE), rank_per_gpu=True)


def mode_of(plan: TrainingPlan) -> str:
    """How the paper calls what a plan keeps and splits."""
    if plan.recompute == "full":
        return "full"
    split = "seq" if plan.sequence_parallel else ""
    return split + ("sel" if plan.recompute == "selective" else "") or "none"


@functools.cache
def published() -> dict[str, Any]:
    """The published figures by model."""
    place = resources.files("orrery.models.training").joinpath("published.toml")
    return tomllib.loads(place.read_text(encoding="utf-8"))


def read_points(folder: Path) -> list[Point]:
    """All points of a folder, in the order of their names; a bad file is named."""
    if not folder.is_dir():
        raise SpecError(f"--points {folder}", "is no folder", "give one with MODEL_MODE.json files")
    files = sorted(path for path in folder.rglob("*.json") if _is_point(path, folder))
    if not files:
        fix = "give one as shared/data/training/calculon_validation, with MODEL_MODE.json files"
        raise SpecError(f"--points {folder}", "holds no points", fix)
    beside = _sidecar(folder)
    return [_point(path, folder, beside) for path in files]


def _is_point(path: Path, folder: Path) -> bool:
    inner = path.relative_to(folder).parts[:-1]
    return path.name != SIDECAR and not {"models", "systems"} & set(inner)


def _sidecar(folder: Path) -> dict[str, Any]:
    path = folder / SIDECAR
    return _object(path) if path.is_file() else {}


def _object(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise SpecError(str(path), "is larger than 1 MiB", "give a file of one point")
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(str(path), f"cannot be read: {error.strerror}", "check it") from None
    except (ValueError, RecursionError) as error:
        raise SpecError(str(path), f"is no JSON: {error!s:.80}", "save the file again") from None
    if not isinstance(found, dict):
        raise SpecError(str(path), "is no JSON object", "give one point a file")
    return found


def _point(path: Path, folder: Path, beside: dict[str, Any]) -> Point:
    told = _object(path)
    for key in told:
        if key not in (*USED, *UNUSED, *OFFLOADS, *TOLD):
            known = did_you_mean(key, (*USED, *UNUSED, *OFFLOADS, *TOLD))
            raise SpecError(f"{path}: {key}", "unknown field", known)
    model_name, _, _ = path.stem.rpartition("_")
    if not model_name:
        raise SpecError(str(path), "does not name its model", "call it MODEL_MODE.json")
    plan = _plan(path, told)
    model = find_model(model_name, path.parent)
    try:
        model = plan.of(model)
    except SpecError as error:
        raise SpecError(f"{path}: {error.path}", error.problem, error.fix) from None
    name = str(path.relative_to(folder).with_suffix(""))
    point = Point(name, model_name, model, plan)
    found = _known(point, path.parent.name)
    mine = {**_given(path, told), **_given(path, _row(beside, name, path))}
    if "published_bytes" in mine:
        mine["counts"] = "device"
    return msgspec.structs.replace(found, **mine)


def _row(beside: dict[str, Any], name: str, path: Path) -> dict[str, Any]:
    row = beside.get(name, beside.get(path.stem, {}))
    if not isinstance(row, dict):
        raise SpecError(f"{SIDECAR}: {name}", "is no object", f"give {', '.join(TOLD)}")
    return row


def _given(path: Path, told: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for key in TOLD:
        value = told.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e18:
            raise SpecError(f"{path}: {key}", f"{value!r:.40} is refused", "give a number > 0")
        found[key] = float(value)
    return found


def _plan(path: Path, told: dict[str, Any]) -> TrainingPlan:
    def take(key: str, known: dict[str, Any] | None = None, kind: type = int) -> Any:
        if key not in told:
            raise SpecError(f"{path}: {key}", "is missing", "give it as Calculon does")
        value = told[key]
        if known is not None and not (isinstance(value, str) and value in known):
            fix = f"one of {', '.join(known)}"
            raise SpecError(f"{path}: {key}", f"{value!r:.40} is refused", fix)
        if known is None and type(value) is not kind:
            fix = f"give {'true or false' if kind is bool else 'a whole number'}"
            raise SpecError(f"{path}: {key}", f"{value!r:.40} is refused", fix)
        return value if known is None else known[value]

    for key in OFFLOADS:
        if told.get(key):
            raise SpecError(f"{path}: {key}", "is on", "offloading is not modelled; switch it off")
    if not take("training", kind=bool):
        raise SpecError(f"{path}: training", "is off", "give a point of training")
    tp, pp, dp = take("tensor_par"), take("pipeline_par"), take("data_par")
    if take("num_procs") != tp * pp * dp:
        problem = f"{told['num_procs']} is not tensor_par x pipeline_par x data_par"
        raise SpecError(f"{path}: num_procs", problem, f"give {tp * pp * dp}")
    chunks = take("pipeline_interleaving")
    try:
        return TrainingPlan(
            tp=tp, pp=pp, dp=dp, global_batch=take("batch_size"), chunks=chunks,
            micro_batch=take("microbatch_size"), dtype=take("datatype", DTYPES),
            recompute=take("activation_recompute", RECOMPUTE),
            sequence_parallel=take("tensor_par_comm_type", PATTERNS) and tp > 1,
            schedule="interleaved" if chunks > 1 else "1f1b",
            sharded_optimizer=take("optimizer_sharding", kind=bool),
            overlap_gradients=take("data_par_overlap", kind=bool),
            # Megatron-LM of 2022, from which all such points come.
            dropout=True, attention="unfused",
        )  # fmt: skip
    except SpecError as error:
        if str(path) in error.path:
            raise
        raise SpecError(f"{path}: {error.path}", error.problem, error.fix) from None


# -- models


def find_model(name: str, near: Path) -> ModelSpec:
    """The model of a point: models/NAME.json beside the points or above, else the catalogue's."""
    for place in (near, *near.absolute().parents):
        path = place / "models" / f"{name}.json"
        if path.is_file():
            return read_model(path)
    return spec(OTHER_NAMES.get(name, name))


def read_model(path: Path) -> ModelSpec:
    """A GPT in the form of Calculon's model files."""
    told = _object(path)
    fields = {
        "hidden": "hidden", "feedforward": "intermediate", "attn_heads": "heads",
        "attn_size": "head_dim", "num_blocks": "layers", "seq_size": "max_context",
    }  # fmt: skip
    for key in fields:
        value = told.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise SpecError(f"{path}: {key}", f"{value!r:.40} is refused", "give a whole number")
    found = {ours: told[theirs] for theirs, ours in fields.items()}
    try:
        return ModelSpec(
            name=path.stem, vocab=VOCABULARY, tied=True, gated=False, norm="layer", qkv_bias=True,
            out_bias=True, mlp_bias=True, positions=told["seq_size"], rope=False, dtype="fp16",
            source=f"{path.name}, in Calculon's form", **found,
        )  # fmt: skip
    except SpecError as error:
        raise SpecError(f"{path}: {error.path}", error.problem, error.fix) from None


# -- what was published


def _known(point: Point, folder: str) -> Point:
    """The point with what was published of it; figure 1 and 7 have memory, table 5 times."""
    row, plan = published().get(point.model_name), point.plan
    if row is None or row["run"] != [plan.devices, plan.global_batch, plan.micro_batch]:
        return point
    kept = row["activations_percent"].get(point.mode)
    base_B = row["activations_GiB"]["none"] * GIB
    seconds = row["seconds"].get(point.mode) if folder not in ("fig1", "fig7") else None
    if folder == "fig7":
        size_B = None if kept is None else base_B * kept / 100
        return msgspec.structs.replace(point, published_bytes=size_B, counts="activations")
    kept_GiB = row["activations_GiB"].get(point.mode)
    kept_B = base_B * kept / 100 if kept_GiB is None and kept is not None else None
    if kept_GiB is not None:
        kept_B = kept_GiB * GIB
    size_B = None if kept_B is None else kept_B + row["states_GiB"] * GIB
    return msgspec.structs.replace(point, published_s=seconds, published_bytes=size_B)


def of_model(points: Iterable[Point], name: str) -> list[Point]:
    """The points of one model that have a published time."""
    return [each for each in points if each.model_name == name and each.published_s is not None]


__all__ = [
    "Point", "find_model", "mode_of", "of_model", "published", "read_model", "read_points",
]  # fmt: skip
