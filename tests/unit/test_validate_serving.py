"""A saved engine run replayed: small made-up ones here, the real one where its files are."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orrery.base.errors import UsageError
from orrery.cli.app import app
from orrery.lab.validate import load_run, replay, tables_of, validate_serving
from orrery.models.tables.llmservingsim import Attention, Curve, LayerTables

DATA = Path(os.environ.get("ORRERY_DATA", "/nowhere"))
RUN = DATA / "vllm_runs" / "RTX4090" / "Llama-3.1-8B"
needs_data = pytest.mark.skipif(
    not RUN.exists(), reason="ORRERY_DATA has no vllm_runs/RTX4090/Llama-3.1-8B"
)


def write_tables(folder, moe=False, skew=False):
    """A profile whose times are plain sums, so that they can be checked by hand."""
    place = folder / "GPU" / "meta-llama/Llama-3.1-8B" / "bf16" / "tp1"
    place.mkdir(parents=True)
    layers = ["embedding", "layernorm", "qkv_proj", "o_proj", "final_layernorm"]
    rows = [f"{layer},{tokens},{10 + tokens}" for layer in layers for tokens in (1, 1024, 2048)]
    (place / "dense.csv").write_text("layer,tokens,time_us\n" + "\n".join(rows))
    rows = [f"{layer},{count},{count}" for layer in ("lm_head", "sampler") for count in (1, 256)]
    (place / "per_sequence.csv").write_text("layer,sequences,time_us\n" + "\n".join(rows))
    rows = []
    for chunk in (0, 16, 2048):
        for past in (0, 16, 4096) if chunk else (0,):
            for count in (0, 1, 256):
                for kv in (16, 4096) if count else (0,):
                    if chunk or count:
                        rows.append(f"{chunk},{past},{count},{kv},{chunk + past + count + kv}")
    head = "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n"
    (place / "attention.csv").write_text(head + "\n".join(rows))
    (place.parent / "meta.yaml").write_text("skew_fit:\n  enabled: false\n")
    if moe:
        rows = [f"{tokens},{active},{tokens * 10 + active}"
                for active in (8, 128) for tokens in (1, 16, 2048)]  # fmt: skip
        (place / "moe.csv").write_text("tokens,activated_experts,time_us\n" + "\n".join(rows))
    return place.parent


def write_run(folder, **engine):
    place = folder / "run"
    place.mkdir()
    rows = [
        {"input_toks": 100 + n, "output_toks": 20, "arrival_time": 50.0 + n / 10,
         "queued_ts": n / 10, "first_token_ts": n / 10 + 0.1, "last_token_ts": n / 10 + 0.5}
        for n in range(5)
    ]  # fmt: skip
    (place / "requests.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (place / "meta.json").write_text(json.dumps({
        "model": "meta-llama/Llama-3.1-8B", "engine_kwargs": {"dtype": "bfloat16", **engine},
        "kv_cache": {"num_gpu_blocks": 100, "block_size": 16, "enable_prefix_caching": True},
    }))  # fmt: skip
    config = {"nodes": [{"instances": [{"hardware": "GPU"}]}], "link_bw": 16, "link_latency": 1000}
    (place / "config.json").write_text(json.dumps(config))
    return place


def test_curves_are_linear_and_go_on_as_they_end():
    curve = Curve({1: 1.0, 3: 5.0, 5: 6.0})
    assert [float(curve(size)) for size in (1, 2, 5, 9)] == [1.0, 3.0, 6.0, 8.0]


def test_attention_is_linear_in_each_direction(tmp_path):
    table = Attention(write_tables(tmp_path) / "tp1" / "attention.csv")
    assert table(16, 16, 1, 16) == pytest.approx(49e-6)
    assert table(1032, 16, 1, 16) == pytest.approx((1032 + 33) * 1e-6)
    assert table(0, 999, 1, 16) == pytest.approx(17e-6), "no prompt has no history"
    assert table(16, 16, 0, 999) == pytest.approx(32e-6), "nor have no decodes"
    assert table(4096, 16, 1, 16) == pytest.approx((4096 + 33) * 1e-6), "beyond the grid"


def test_a_run_of_steps_is_the_sum_of_its_steps(tmp_path):
    steps = LayerTables(write_tables(tmp_path), layers=32, hidden=4096)
    for decodes, kv, count in ((1, 5, 7), (10, 900, 300), (256, 256 * 4000, 200)):
        one_by_one = sum(steps.decode_run(decodes, kv + decodes * at, 1) for at in range(count))
        assert steps.decode_run(decodes, kv, count) == pytest.approx(one_by_one, rel=1e-9)
        assert steps.seconds([], decodes, kv) == steps.decode_run(decodes, kv, 1)
    assert steps.extrapolated > 0, "a history beyond the grid is counted"


def test_a_step_adds_layers_head_and_attention(tmp_path):
    steps = LayerTables(write_tables(tmp_path), layers=2, hidden=64)
    dense = 2 * (10 + 20) + 2 * (4 * (10 + 20))
    told = steps.seconds([(16, 0)], 4, 64)
    expected = dense + 2 * 5 + 2 * (16 + 0 + 4 + 16)
    assert told == pytest.approx(expected * 1e-6)


def test_padding_to_captured_sizes(tmp_path):
    folder = write_tables(tmp_path)
    plain = LayerTables(folder, layers=2, hidden=64)
    padded = LayerTables(folder, layers=2, hidden=64, padded_to=(8, 16))
    assert padded._dense[9] == plain._dense[16] and padded._dense[17] == plain._dense[17]


def test_experts_are_touched_as_by_chance(tmp_path):
    steps = LayerTables(write_tables(tmp_path, moe=True), layers=1, hidden=64, experts=(128, 8))
    plain = LayerTables(write_tables(tmp_path / "b"), layers=1, hidden=64)
    extra = [(a - b) * 1e6 for a, b in zip(steps._dense, plain._dense, strict=True)]
    assert extra[1] == pytest.approx(10 + 8, abs=1e-6)
    assert extra[2048] == pytest.approx(20480 + 128, rel=1e-6)
    touched = 128 * (1 - (1 - 8 / 128) ** 16)
    assert extra[16] == pytest.approx(160 + touched, rel=1e-6)


def test_devices_that_share_a_layer_exchange_it(tmp_path):
    folder = write_tables(tmp_path)
    (folder / "tp2").mkdir()
    for name in ("dense.csv", "per_sequence.csv", "attention.csv"):
        (folder / "tp2" / name).write_text((folder / "tp1" / name).read_text())
    one = LayerTables(folder, layers=3, hidden=1000)
    two = LayerTables(folder, layers=3, hidden=1000, tp=2, link_Bps=1e9, link_s=1e-6)
    sent_s = 2 * (100 * 1000 * 2 / 1e9 + 2e-6)
    assert two._dense[100] - one._dense[100] == pytest.approx(3 * sent_s)
    with pytest.raises(UsageError, match="tp4"):
        LayerTables(folder, layers=3, hidden=1000, tp=4)


def test_a_made_up_run_is_replayed(tmp_path):
    run = load_run(write_run(tmp_path))
    write_tables(tmp_path)
    with tables_of(run, tmp_path) as folder:
        served, replica = replay(run, folder)
    assert [each.id for each in served] == list(range(5)) and replica.faults() == []
    found = validate_serving(run.folder, tmp_path)
    assert found["requests"] == 5 and found["latency_mean_measured_s"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [("requests.jsonl", "", "empty"), ("requests.jsonl", "{}", "not a saved run"),
     ("meta.json", "{", "not a saved run"), ("meta.json", "{}", "kv_cache")],
)  # fmt: skip
def test_a_broken_run_is_named(tmp_path, name, text, match):
    place = write_run(tmp_path)
    (place / name).write_text(text)
    with pytest.raises(UsageError, match=match):
        load_run(place)


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"meta\.json"):
        load_run(tmp_path)
    run = load_run(write_run(tmp_path))
    with pytest.raises(UsageError, match="no profile GPU"), tables_of(run, tmp_path):
        pass
    with pytest.raises(UsageError, match="data parallel"):
        (tmp_path / "b").mkdir()
        replay(load_run(write_run(tmp_path / "b", data_parallel_size=2)), tmp_path)


@needs_data
def test_the_saved_vllm_run_is_met():
    """The bars of the design: means 2 %, quantiles 4 %, the median request 6 %."""
    found = validate_serving(RUN, DATA / "op_profiles")
    for name in ("ttft", "tpot", "latency"):
        assert abs(found[f"{name}_mean_err"]) <= 0.02
        for which in ("p50", "p90", "p99"):
            assert abs(found[f"{name}_{which}_err"]) <= 0.04
    assert found["request_latency_median_err"] <= 0.06
    assert found["faults"] == [] and found["extrapolated_ops"] == 0


@needs_data
def test_without_its_state_machine_the_model_is_far_off():
    """The bars can fail: with twice the blocks there is hardly any preemption, and it shows."""
    run = load_run(RUN)
    run.meta["kv_cache"]["num_gpu_blocks"] *= 2
    with tables_of(run, DATA / "op_profiles") as folder:
        served, _ = replay(run, folder)
    mean_s = sum(each.first_s - each.queued_s for each in served) / len(served)
    real_s = sum(each.ttft_s for each in run.requests) / len(served)
    assert abs(mean_s / real_s - 1) > 0.2


def test_the_command_tells_and_judges(tmp_path):
    write_tables(tmp_path)
    told = CliRunner().invoke(
        app, ["validate", "serving", "--run", str(write_run(tmp_path)), "--tables", str(tmp_path),
              "--json"]
    )  # fmt: skip
    assert told.exit_code == 1, "made-up times are far from the made-up run's"
    assert "request_latency_median_err" in json.loads(told.stdout)
