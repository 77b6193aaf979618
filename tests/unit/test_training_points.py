"""Published training points: the reader, the fit, the validation and its command."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orrery.base.errors import SpecError, UsageError
from orrery.cli.app import app
from orrery.lab.validate_training import BAR, misses, validate_training
from orrery.models.specs import spec
from orrery.models.training import (
    default_efficiency,
    fit_efficiency,
    fit_tables,
    read_points,
)
from orrery.models.training.fit import FIT_MODEL, predicted_s
from orrery.models.training.points import of_model, published
from orrery.models.training.step import estimate

DATA = Path(os.environ.get("ORRERY_DATA", "/nowhere"))
POINTS = DATA / "training" / "calculon_validation"
PROFILES = DATA / "op_profiles" / "vidur_frontier_profiles.tar.gz"
needs_points = pytest.mark.skipif(
    not POINTS.is_dir(), reason="ORRERY_DATA has no training/calculon_validation"
)
needs_profiles = pytest.mark.skipif(
    not PROFILES.is_file(), reason="ORRERY_DATA has no op_profiles/vidur_frontier_profiles.tar.gz"
)
RUN = {
    "num_procs": 8, "tensor_par": 8, "pipeline_par": 1, "data_par": 1, "tensor_par_net": 0,
    "pipeline_par_net": 1, "data_par_net": 1, "batch_size": 4, "microbatch_size": 4,
    "datatype": "float16", "fused_activation": False, "attention_type": "multihead",
    "activation_recompute": "full", "pipeline_interleaving": 1, "optimizer_sharding": False,
    "tensor_par_comm_type": "ar", "tensor_par_overlap": "none", "seq_par_ag_redo": False,
    "data_par_overlap": False, "weight_offload": False, "activations_offload": False,
    "optimizer_offload": False, "training": True,
}  # fmt: skip
SPLIT = {"activation_recompute": "attn_only", "tensor_par_comm_type": "rs_ag",
         "seq_par_ag_redo": True}  # fmt: skip
MODEL = {"hidden": 6144, "feedforward": 24576, "seq_size": 2048, "attn_heads": 64,
         "attn_size": 96, "num_blocks": 48}  # fmt: skip


def write(folder, name="megatron-22B_full", **changes):
    path = folder / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({k: v for k, v in {**RUN, **changes}.items() if v is not None}))
    return path


# -- reading


def test_a_point_is_read_with_what_was_published_of_it(tmp_path):
    write(tmp_path, "tab5/megatron-22B_full")
    write(tmp_path, "tab5/megatron-22B_seqsel", **SPLIT)
    write(tmp_path, "fig7/megatron-22B_full")
    figure, full, split = read_points(tmp_path)
    assert [each.name for each in (figure, full, split)] == [
        "fig7/megatron-22B_full", "tab5/megatron-22B_full", "tab5/megatron-22B_seqsel"]  # fmt: skip
    assert (full.published_s, split.published_s, figure.published_s) == (1.42, 1.10, None)
    assert (full.mode, split.mode) == ("full", "seqsel")
    assert split.plan.sequence_parallel and split.plan.recompute == "selective"
    assert split.published_bytes == (45.5625 + 9.5625) * 2**30 and split.counts == "layers"
    assert figure.counts == "activations"
    assert figure.published_bytes == pytest.approx(0.0764 * 59.25 * 2**30)
    assert full.world.size == 8


def test_models_are_found_beside_the_points_or_in_the_catalogue(tmp_path):
    write(tmp_path / "points", "some-3B_full")
    with pytest.raises(SpecError, match="some-3B"):
        read_points(tmp_path / "points")
    (tmp_path / "models").mkdir()
    beside = tmp_path / "models" / "some-3B.json"
    beside.write_text(json.dumps({**MODEL, "num_blocks": 6}))
    (point,) = read_points(tmp_path / "points")
    assert point.model.layers == 6 and point.published_s is None and point.model.vocab == 51200
    beside.write_text(json.dumps({**MODEL, "num_blocks": "six"}))
    with pytest.raises(SpecError, match="num_blocks"):
        read_points(tmp_path / "points")
    write(tmp_path / "others", "megatron-22B_full")
    (known,) = read_points(tmp_path / "others")
    assert known.model.layers == spec("Megatron-22B").layers
    assert {spec({"gpt3-175B": "GPT-3-175B"}.get(name, name)).layers for name in published()} == {
        48, 96, 105, 128}  # fmt: skip


def test_a_point_of_another_run_has_no_published_figure(tmp_path):
    write(tmp_path, batch_size=8)
    (point,) = read_points(tmp_path)
    assert point.published_s is None and point.published_bytes is None
    write(tmp_path, batch_size=8, published_s=2.5, published_bytes=5e10)
    (point,) = read_points(tmp_path)
    assert (point.published_s, point.published_bytes, point.counts) == (2.5, 5e10, "device")
    write(tmp_path, batch_size=8)
    (tmp_path / "published.json").write_text(json.dumps({"megatron-22B_full": {"published_s": 3}}))
    (point,) = read_points(tmp_path)
    assert point.published_s == 3.0


@pytest.mark.parametrize("changes, names", [
    ({"tensor_par": 0, "num_procs": 0}, "plan.tp"), ({"tensor_par": "8"}, "tensor_par"),
    ({"tensor_par": 8.0}, "tensor_par"), ({"tensor_par": True}, "tensor_par"),
    ({"num_procs": 9}, "num_procs"), ({"batch_size": -4}, "global_batch"),
    ({"batch_size": 6}, "global_batch"), ({"datatype": "float12"}, "datatype"),
    ({"activation_recompute": "half"}, "activation_recompute"), ({"training": False}, "training"),
    ({"weight_offload": True}, "weight_offload"), ({"tensor_parr": 8}, "unknown field"),
    ({"batch_size": None}, "batch_size: is missing"), ({"published_s": -1}, "published_s"),
    ({"published_s": "soon"}, "published_s"), ({"pipeline_interleaving": 3}, "plan.chunks"),
    ({"tensor_par": 7, "num_procs": 7}, "layout.tp"), ({"tensor_par_comm_type": "x"}, "comm_type"),
])  # fmt: skip
def test_bad_points_are_refused_by_file_and_field(tmp_path, changes, names):
    path = write(tmp_path, **changes)
    with pytest.raises(SpecError, match=names) as error:
        read_points(tmp_path)
    assert str(path) in str(error.value)


def test_bad_folders_are_refused(tmp_path):
    with pytest.raises(UsageError, match="is no folder"):
        validate_training(tmp_path / "none")
    with pytest.raises(UsageError, match="holds no points"):
        validate_training(tmp_path)
    for text, names in (("{", "is no JSON"), ("[]", "no JSON object"), ("[" * 99999, "is no JSON"),
                        ('{"x": "' + "x" * (1 << 20) + '"}', "larger than 1 MiB")):  # fmt: skip
        (tmp_path / "megatron-22B_full.json").write_text(text)
        with pytest.raises(UsageError, match=names):
            validate_training(tmp_path)
    (tmp_path / "megatron-22B_full.json").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="is no JSON"):
        validate_training(tmp_path)
    (tmp_path / "megatron-22B_full.json").unlink()
    write(tmp_path, "full")
    with pytest.raises(UsageError, match="does not name its model"):
        validate_training(tmp_path)


# -- the command


def ask(folder, *more):
    return CliRunner().invoke(app, ["validate", "training", "--points", str(folder), *more])


def test_the_command_tells_errors_and_judges_them(tmp_path):
    write(tmp_path, "tab5/megatron-22B_full")
    done = ask(tmp_path, "--json")
    found = json.loads(done.stdout)
    (row,) = found["rows"]
    assert done.exit_code == 0
    assert row["err"] == pytest.approx(row["predicted_s"] / 1.42 - 1)
    assert found["mean_err"] == found["max_err"] == abs(row["err"]) < BAR
    assert row["predicted_bytes"] == pytest.approx(row["published_bytes"], rel=0.01)
    assert row["predicted_device_bytes"] > row["predicted_bytes"]
    assert {"name", "predicted_s", "published_s", "err", "predicted_bytes",
            "published_bytes"} <= set(row)  # fmt: skip
    # A time that is 10 % off must be noticed, one of 5 % must pass.
    for share, code in ((1.10, 1), (0.90, 1), (1.05, 0)):
        write(tmp_path, "tab5/megatron-22B_full", published_s=row["predicted_s"] * share)
        assert ask(tmp_path, "--json").exit_code == code
    # So must memory.
    write(tmp_path, "tab5/megatron-22B_full", published_bytes=row["predicted_device_bytes"] * 1.1)
    done = ask(tmp_path)
    assert done.exit_code == 1 and "megatron-22B_full" in done.stdout
    write(tmp_path, "tab5/megatron-22B_full", batch_size=8)
    done = ask(tmp_path)
    assert done.exit_code == 2 and "no point has a published figure" in done.output
    assert "within" not in done.output
    # The program's own main turns this into exit code 64.
    assert isinstance(ask(tmp_path / "none").exception, UsageError)


def test_a_mean_that_is_no_number_is_a_miss():
    assert misses({"mean_err": float("nan"), "memory_mean_err": None, "bar": BAR}) == ["mean_err"]


# -- the fit


def test_the_fit_needs_times_it_can_meet(tmp_path):
    with pytest.raises(SpecError, match="there are none"):
        fit_efficiency([])
    write(tmp_path, batch_size=8)
    with pytest.raises(SpecError, match="no published time"):
        fit_efficiency(read_points(tmp_path))
    write(tmp_path, published_s=1e-6)
    with pytest.raises(SpecError, match="no share"):
        fit_efficiency(read_points(tmp_path))


def test_the_fit_finds_the_share_that_made_the_times(tmp_path):
    write(tmp_path)
    (point,) = read_points(tmp_path)
    made = default_efficiency().replace(gemm=0.55)
    seconds = estimate(point.model, point.plan, point.world, efficiency=made).seconds
    write(tmp_path, published_s=seconds)
    assert fit_efficiency(read_points(tmp_path)).gemm == pytest.approx(0.55, abs=1e-4)


@needs_points
def test_the_kept_constant_is_the_fit_on_the_22b_times_alone():
    points = read_points(POINTS)
    mine = of_model(points, FIT_MODEL)
    assert sorted(each.published_s for each in mine) == [1.10, 1.42]
    fitted = fit_efficiency(mine)
    assert fitted.gemm == pytest.approx(default_efficiency().gemm, abs=2e-4)
    # One constant cannot meet two times exactly; it must not have been given more.
    errors = [predicted_s(each, fitted) / each.published_s - 1 for each in mine]
    assert 0.005 < max(map(abs, errors)) < 0.03
    # Two constants cannot be told apart: each changes both times alike.
    slopes = []
    for name in ("gemm", "memory", "link"):
        other = fitted.replace(**{name: getattr(fitted, name) * 0.95})
        moved = [predicted_s(each, other) / predicted_s(each, fitted) - 1 for each in mine]
        slopes.append(moved[0] / moved[1])
    assert slopes == pytest.approx([1, 1, 1], abs=0.08)


@needs_points
def test_the_175b_points_are_met_within_six_percent():
    found = validate_training(POINTS)
    held_out = found["models"]["gpt3-175B"]
    assert held_out["mean_err"] < BAR and held_out["memory_mean_err"] < BAR
    assert found["times"] == 4 and found["memories"] == 18
    assert not misses(found)


@needs_profiles
def test_the_table_constants_are_those_of_the_tables(tmp_path):
    with tarfile.open(PROFILES) as packed:
        wanted = [m for m in packed.getmembers() if "compute/a100" in m.name or
                  "network/a100_dgx" in m.name]  # fmt: skip
        packed.extractall(tmp_path, members=wanted, filter="data")
    found, kept = fit_tables(tmp_path / "vidur"), default_efficiency()
    assert found["ramp_s"] == pytest.approx(kept.ramp_s, rel=0.01)
    assert found["link"] == pytest.approx(kept.link, rel=0.01)
    assert found["hop_s"] == pytest.approx(kept.hop_s, rel=0.01)
    # What single products reach on another A100 is an independent account of what was fitted.
    assert found["table_gemm"] == pytest.approx(kept.gemm, rel=0.05)
    with pytest.raises(SpecError, match="cannot be read"):
        fit_tables(tmp_path)
