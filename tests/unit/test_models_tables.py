"""Readers of published profiles, on the real files: points equal them, odd ones are refused."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

from orrery.base.errors import SpecError
from orrery.models.device import Device
from orrery.models.specs import spec
from orrery.models.steps import RooflineSteps, steps_for
from orrery.models.tables import find_tables, open_tables
from orrery.models.tables.aiconfigurator import AiconfiguratorTables
from orrery.models.tables.files import read_csv
from orrery.models.tables.splitwise import PhaseSteps, read_splitwise
from orrery.models.tables.vidur import read_vidur
from orrery.models.tablesteps import TableSteps


def data(pattern: str) -> Path:
    home = os.environ.get("ORRERY_DATA")
    found = sorted(Path(home).glob(f"op_profiles/{pattern}")) if home else []
    if not found:
        pytest.skip(f"ORRERY_DATA has no op_profiles/{pattern}")
    return found[-1]


@pytest.fixture(scope="module")
def nvidia() -> AiconfiguratorTables:
    pytest.importorskip("pyarrow")
    return AiconfiguratorTables(data("aiconfigurator_core_*"), "H100-SXM")


@pytest.fixture(scope="module")
def vidur(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("vidur")
    with tarfile.open(data("vidur_frontier_profiles.tar.gz")) as archive:
        archive.extractall(place, filter="data")
    return place


def rows_of(root: Path, stem: str) -> dict[str, np.ndarray]:
    from orrery.models.tables.files import read_parquet

    return read_parquet(next(root.rglob(f"{stem}.parquet")))


# -- aiconfigurator


def test_products_equal_the_file(nvidia) -> None:
    steps = TableSteps("Llama-3.1-8B", nvidia)
    steps.seconds([], 1, 10)
    rows = rows_of(nvidia.root, "gemm_perf")
    own = rows["gemm_dtype"] == "bfloat16"
    lookup = steps._lookups["gemm", "out", 1]
    for i in np.flatnonzero(own)[::97]:
        m, n, k = (float(rows[name][i]) for name in "mnk")
        seconds, outside = lookup.one(m, n, k)
        assert seconds == rows["latency"][i] * 1e-3
        assert not outside


def test_decode_attention_equals_the_file(nvidia) -> None:
    steps = TableSteps("Llama-3.1-8B", nvidia)
    rows = rows_of(nvidia.root, "generation_attention_perf")
    own = (rows["num_heads"] == 32) & (rows["num_key_value_heads"] == 8)
    own &= (rows["head_dim"] == 128) & (rows["kv_cache_dtype"] == "bfloat16")
    own &= rows["window_size"] == 0
    assert own.sum() > 100
    for i in np.flatnonzero(own):
        batch, context = int(rows["batch_size"][i]), int(rows["step"][i]) + 1
        took = steps._decodes_s(batch, batch * context, 1)
        assert took == pytest.approx(32 * rows["latency"][i] * 1e-3, rel=1e-12)
    assert steps.outside == {}


def test_whole_prompts_equal_the_file(nvidia) -> None:
    steps = TableSteps("Llama-3.1-8B", nvidia)
    rows = rows_of(nvidia.root, "context_attention_perf")
    own = (rows["num_heads"] == 32) & (rows["num_key_value_heads"] == 8)
    own &= (rows["head_dim"] == 128) & (rows["kv_cache_dtype"] == "bfloat16")
    own &= (rows["window_size"] == 0) & (rows["batch_size"] == 1)
    for i in np.flatnonzero(own):
        length = int(rows["isl"][i])
        took = steps._chunks_s(steps._prompt, 0, [(length, 0)])
        assert took == pytest.approx(rows["latency"][i] * 1e-3, rel=1e-12)


def test_batches_of_prompts_are_near_the_file(nvidia) -> None:
    """What is not read from the file but composed: several prompts of 256 tokens and more."""
    steps = TableSteps("Llama-3.1-8B", nvidia)
    rows = rows_of(nvidia.root, "context_attention_perf")
    own = (rows["num_heads"] == 32) & (rows["num_key_value_heads"] == 8)
    own &= (rows["head_dim"] == 128) & (rows["kv_cache_dtype"] == "bfloat16")
    own &= (rows["window_size"] == 0) & (rows["batch_size"] > 1) & (rows["isl"] >= 256)
    errors = []
    for i in np.flatnonzero(own):
        chunks = [(int(rows["isl"][i]), 0)] * int(rows["batch_size"][i])
        took = steps._chunks_s(steps._prompt, 0, chunks)
        errors.append(abs(took / (rows["latency"][i] * 1e-3) - 1))
    assert np.mean(errors) < 0.2, np.mean(errors)


def test_messages_and_experts_equal_the_file(nvidia) -> None:
    table = nvidia.find("all_gather", "bf16", group=8)
    rows = rows_of(nvidia.root, "nccl_perf")
    own = (rows["op_name"] == "all_gather") & (rows["num_gpus"] == 8)
    own &= rows["nccl_dtype"] == "half"
    assert table.grid[0].tolist() == sorted((rows["message_size"][own] * 2).tolist())
    assert sorted(table.seconds) == pytest.approx(sorted(rows["latency"][own] * 1e-3))
    steps = TableSteps("Qwen3-30B-A3B", nvidia)
    assert "experts" not in steps.unmeasured
    assert (
        nvidia.find("moe", "bf16", hidden=1, intermediate=1, active=1, experts=1, tp=1, ep=1)
        is None
    )


def test_rooflines_are_near_the_tables(nvidia) -> None:
    """The roofline has four fractions and four latencies for all shapes: within a fifth."""
    for model, tp in (("Llama-3.1-8B", 1), ("Llama-3.1-70B", 8), ("Qwen2.5-32B", 2)):
        tables, roofline = TableSteps(model, nvidia, tp=tp), RooflineSteps(model, "H100-SXM", tp)
        for step in (([], 1, 512), ([], 64, 64000), ([(2048, 0)], 0, 0), ([(8192, 0)], 0, 0)):
            assert roofline.seconds(*step) == pytest.approx(tables.seconds(*step), rel=0.2)


def test_windows_and_latent_attention_are_handled(nvidia) -> None:
    oss = TableSteps("gpt-oss-20b", nvidia)
    assert oss._decode_window is not None
    near, far = oss.seconds([], 1, 100), oss.seconds([], 1, 100_000)
    assert far > near
    latent = TableSteps("DeepSeek-V2-Lite", nvidia)
    assert "attention_decode" in latent.unmeasured
    assert latent.seconds([(100, 0)], 3, 300) > 0


def test_what_is_not_there_is_refused(nvidia, tmp_path) -> None:
    root = nvidia.root.parent
    with pytest.raises(SpecError, match="no tables of T4"):
        AiconfiguratorTables(root, "T4")
    with pytest.raises(SpecError, match="backend"):
        AiconfiguratorTables(root, "H100-SXM", backend="vlmm")
    with pytest.raises(SpecError, match="measured on H100-SXM"):
        TableSteps("Llama-3.1-8B", nvidia, "H200")
    with pytest.raises(SpecError, match="no format known"):
        open_tables(tmp_path, "H100-SXM")
    assert find_tables("T4") is None
    assert find_tables("H100-SXM") is not None


# -- vidur


def test_vidur_profiles_equal_the_file(vidur) -> None:
    folder = vidur / "vidur/compute/h100/meta-llama/Llama-2-70b-hf"
    model = spec("Llama-2-70B")
    tables = read_vidur(folder, model, "H100-SXM", tp=4)
    up = tables.find("up", "fp16", model=model.name, tp=4)
    columns = read_csv(
        folder / "mlp.csv",
        ["time_stats.mlp_up_proj.median", "num_tokens", "num_tensor_parallel_workers"],
    )
    own = columns["num_tensor_parallel_workers"] == 4
    for tokens in (1.0, 64.0, 4096.0):
        times = columns["time_stats.mlp_up_proj.median"][own & (columns["num_tokens"] == tokens)]
        place = int(np.flatnonzero(up.grid[0] == tokens)[0])
        assert up.seconds[place] == pytest.approx(np.median(times) * 1e-3)
    steps = steps_for(model, "H100-SXM", 4, tables=folder)
    roofline = RooflineSteps(model, "H100-SXM", 4)
    assert steps.seconds([], 32, 32000) == pytest.approx(roofline.seconds([], 32, 32000), rel=0.2)
    assert "qkv" not in steps.unmeasured
    assert "head" in steps.unmeasured


def test_vidur_messages_and_refusals(vidur) -> None:
    folder = vidur / "vidur/compute/h100/meta-llama/Llama-2-70b-hf"
    model = spec("Llama-2-70B")
    reduce = vidur / "vidur/network/h100_dgx/all_reduce.csv"
    tables = read_vidur(folder, model, "H100-SXM", tp=8, all_reduce=reduce)
    assert tables.find("all_reduce", "fp16", group=8).points > 900
    with pytest.raises(SpecError, match="measured on H100-SXM, not A100-80-SXM"):
        read_vidur(folder, model, "A100-80-SXM", tp=4)
    with pytest.raises(SpecError, match="n_head|n_embd"):
        read_vidur(folder, spec("Llama-2-7B"), "H100-SXM")
    with pytest.raises(SpecError, match="tp: 3"):
        read_vidur(folder, model, "H100-SXM", tp=3)
    with pytest.raises(SpecError, match="cannot be read"):
        read_vidur(vidur / "none", model, "H100-SXM")


def test_vidur_attention(vidur) -> None:
    folder = vidur / "frontier/a800_llama2_7b"
    model = spec("Llama-2-7B")
    tables = read_vidur(folder, model, "A800")
    heads = {"heads": 32, "kv_heads": 32, "head_dim": 128}
    decode = tables.find("attention_decode", "fp16", **heads)
    prefill = tables.find("attention_prefill", "fp16", **heads)
    assert decode.axes == ("batch", "context")
    assert prefill.axes == ("new", "past")
    assert decode.points > 5000
    with pytest.raises(SpecError, match="A800"):
        TableSteps(model, tables, "A100-80-SXM")


# -- splitwise


def test_splitwise_phases_and_power() -> None:
    path = data("splitwise_perf_power_*.csv")
    device = Device.named("A100-80-SXM")
    tables = read_splitwise(path, spec("Llama-2-70B"), device, 8)
    found = {table.op: table for table in tables}
    columns = read_csv(
        path,
        ["model", "hardware", "tensor_parallel", "prompt_size", "batch_size", "prompt_time"],
    )
    own = (columns["model"] == "llama2-70b") & (columns["hardware"] == "a100-80gb")
    own &= (columns["tensor_parallel"] == 8) & (
        columns["prompt_size"] * columns["batch_size"] == 4096
    )
    prompt = found["prompt_phase"]
    place = int(np.flatnonzero(prompt.grid[0] == 4096)[0])
    assert prompt.seconds[place] == pytest.approx(np.median(columns["prompt_time"][own]) * 1e-3)
    assert prompt.grid[0][0] == 128
    assert np.all(np.isfinite(prompt.seconds))
    assert np.nanmax(prompt.watts) == pytest.approx(400, rel=0.03)
    assert 150 < np.nanmedian(found["token_phase"].watts) < 200
    steps = PhaseSteps("Llama-2-70B", device, 8, path)
    place = int(np.flatnonzero(prompt.grid[0] == 2048)[0])
    assert steps.seconds([(2048, 0)], 0, 0) == pytest.approx(prompt.seconds[place])
    token = found["token_phase"]
    assert steps.seconds([], 1, 576) == pytest.approx(token.seconds[0])
    run = steps.decode_run(4, 4 * 500, 50)
    assert run == pytest.approx(sum(steps.seconds([], 4, 4 * (500 + i)) for i in range(50)))
    watts = steps.joules([], 1, 576) / steps.seconds([], 1, 576) / 8
    assert watts == pytest.approx(np.nanmedian(token.watts))
    assert steps.extrapolated == 0
    steps.seconds([], 500, 500 * 576)
    assert steps.outside == {"token_phase": 1}


def test_splitwise_refusals(tmp_path) -> None:
    path = data("splitwise_perf_power_*.csv")
    with pytest.raises(SpecError, match="no rows of llama2-70b on a100-80gb x1"):
        PhaseSteps("Llama-2-70B", "A100-80-SXM", 1, path)
    with pytest.raises(SpecError, match="no rows"):
        PhaseSteps("Llama-3.1-8B", "A100-80-SXM", 2, path)
    bad = tmp_path / "bad.csv"
    for text, match in (("", "empty"), ("a,b\n1,2\n", "no such column")):
        bad.write_text(text)
        with pytest.raises(SpecError, match=match):
            PhaseSteps("Llama-2-70B", "A100-80-SXM", 8, bad)


def test_csv_files_that_are_cut_off(tmp_path) -> None:
    path = tmp_path / "cut.csv"
    path.write_text("a,b\n1,2\n3\n")
    with pytest.raises(SpecError, match="too short"):
        read_csv(path, ["a", "b"])
    path.write_text("a,b\n")
    with pytest.raises(SpecError, match="no lines"):
        read_csv(path, ["a", "b"])
