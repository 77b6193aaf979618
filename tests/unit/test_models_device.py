"""Devices: rooflines, collectives, power; the efficiency constants against the measured tables."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np
import pytest

from orrery.base.errors import OrreryError, SpecError
from orrery.models.device import IDEAL, Device, Efficiency, PowerModel
from orrery.models.ops import Op
from orrery.models.specs import spec
from orrery.world import accelerator

H100 = Device.named("H100-SXM", IDEAL)


def tables_of(name: str) -> Path:
    home = os.environ.get("ORRERY_DATA")
    found = sorted(Path(home).glob(f"op_profiles/{name}")) if home else []
    if not found:
        pytest.skip(f"ORRERY_DATA has no op_profiles/{name}")
    return found[-1]


def test_an_operation_takes_the_longer_of_flops_and_bytes() -> None:
    busy = Op("gemm", "g", flops=989.4e12, read_B=1)
    assert H100.cost(busy) == pytest.approx(1.0)
    idle = Op("gemm", "g", flops=1, read_B=3.35e12, times=3)
    assert H100.cost(idle) == pytest.approx(3.0)
    both = Op("gemm", "g", flops=np.array([989.4e12, 1.0]), read_B=np.array([1.0, 6.7e12]))
    assert H100.cost(both).tolist() == pytest.approx([1.0, 2.0])


def test_efficiency_and_latency_only_slow_down() -> None:
    real = Device.named("H100-SXM")
    for op in (
        Op("gemm", "g", flops=1e12, read_B=1e6),
        Op("attention_decode", "a", flops=1e6, read_B=1e9),
        Op("norm", "n", read_B=1e6),
        Op("all_reduce", "r", dims={"bytes": 1e6}, group=8),
    ):
        assert real.cost(op) > H100.cost(op)


def test_a_dtype_without_a_peak_runs_as_a_wider_one() -> None:
    v100 = Device.named("V100-SXM2")
    assert v100.peak_flops("bf16") == v100.peak_flops("fp16")
    assert v100.peak_flops("fp8") == v100.peak_flops("fp16")
    assert H100.peak_flops("fp4") == H100.peak_flops("fp8")
    assert H100.peak_flops("mxfp4") == H100.peak_flops("bf16")
    apple = Device.named("M2-Ultra")
    assert apple.peak_flops("bf16") == apple.peak_flops("fp32")
    assert apple.peak_flops("fp64") == apple.peak_flops("fp32") / 2
    with pytest.raises(SpecError, match="dtype"):
        H100.peak_flops("bf61")


def test_collectives_in_closed_form() -> None:
    rate = 450e9
    for n in (2, 4, 8):
        assert H100.message_s("all_reduce", 1e9, n) == pytest.approx(2 * (n - 1) / n * 1e9 / rate)
        assert H100.message_s("all_gather", 1e9, n) == pytest.approx((n - 1) / n * 1e9 / rate)
        assert H100.message_s("all_to_all", 1e9, n) == pytest.approx((n - 1) / n * 1e9 / rate)
    assert H100.message_s("send", 1e9, 2) == pytest.approx(1e9 / rate)
    assert H100.message_s("all_reduce", 1e9, 1) == 0
    assert H100.message_s("send", 1e9, 2, link_Bps=50e9) == pytest.approx(0.02)
    slow = Device.named("H100-SXM", Efficiency(hop_latency_s=1e-6, collective_latency_s=5e-6))
    assert slow.message_s("all_reduce", 0, 8) == pytest.approx(19e-6)
    with pytest.raises(SpecError, match="link_Bps"):
        Device.named("M2-Ultra").message_s("all_reduce", 1.0, 2)


def test_power_stays_between_base_and_limit() -> None:
    device = Device.named("A100-80-SXM")
    assert device.joules(1.0, 0.0) == pytest.approx(0.3 * 400)
    assert device.joules(1.0, 99.0) == 400
    assert Device.named("TPU-v5e").joules(1.0, 1.0) == 0  # its power is not published
    bare = Device(accelerator("L4"), power=PowerModel(base=0.1, memory=0.5, compute=0.5))
    assert bare.joules(2.0, 0.0) == pytest.approx(0.2 * 72)


def test_bad_efficiencies_are_refused() -> None:
    for bad in ({"gemm": 0}, {"memory": 1.2}, {"link": -1}, {"gemm_latency_s": -1e-6}):
        with pytest.raises(SpecError, match="efficiency"):
            Efficiency(**bad)
    with pytest.raises(OrreryError, match="H100"):
        Device.named("H100x")


# -- the constants, computed again from what they were measured on


def test_gemm_and_attention_efficiency_are_the_measured_medians() -> None:
    pytest.importorskip("pyarrow")
    from orrery.models.tables.files import read_parquet

    root = tables_of("aiconfigurator_core_*") / "h100_sxm"
    peak, rate = 989.4e12, 3.35e12
    rows = read_parquet(next(root.glob("gemm/vllm/*/gemm_perf.parquet")))
    m, n, k = (rows[name].astype(float) for name in "mnk")
    seconds = rows["latency"] * 1e-3
    large = (m >= 4096) & (n >= 4096) & (k >= 4096) & (n <= 16384) & (k <= 16384)
    few = (rows["gemm_dtype"] == "bfloat16") & (m <= 32) & (n * k * 2 > 1e8)
    reach = 2 * m * n * k / seconds
    for dtype, top, field in (("bfloat16", peak, "gemm"), ("fp8", 2 * peak, "narrow")):
        own = large & (rows["gemm_dtype"] == dtype)
        assert np.median(reach[own] / top) == pytest.approx(getattr(Efficiency(), field), abs=0.01)
    moved = 2 * (n * k + m * k + m * n) / seconds / rate
    assert np.median(moved[few]) == pytest.approx(0.85, abs=0.01)
    rows = read_parquet(next(root.glob("attention/vllm/*/context_attention_perf.parquet")))
    length = rows["isl"].astype(float)
    own = (rows["kv_cache_dtype"] == "bfloat16") & (rows["window_size"] == 0) & (length >= 4096)
    own &= (rows["head_dim"] == 128) & (rows["num_heads"] * rows["batch_size"] >= 16)
    flops = 2 * rows["batch_size"] * rows["num_heads"] * 128 * length * (length + 1)
    share = np.median((flops / (rows["latency"] * 1e-3) / peak)[own])
    assert share == pytest.approx(Efficiency().attention, abs=0.01)


def test_link_efficiency_and_latency_are_the_measured_ones() -> None:
    pytest.importorskip("pyarrow")
    from orrery.models.tables.files import read_parquet

    root = tables_of("aiconfigurator_core_*") / "h100_sxm"
    rows = read_parquet(next(root.glob("comm/nccl/*/nccl_perf.parquet")))
    device = Device.named("H100-SXM")
    for kind in ("all_reduce", "all_gather", "reduce_scatter"):
        for group in (2, 4, 8):
            own = (rows["op_name"] == kind) & (rows["num_gpus"] == group)
            own &= rows["nccl_dtype"] == "half"
            size, took = rows["message_size"][own] * 2, rows["latency"][own] * 1e-3
            ours = device.message_s(kind, size, group)
            assert ours[np.argmin(size)] == pytest.approx(took[np.argmin(size)], rel=0.2)
            assert ours[np.argmax(size)] == pytest.approx(took[np.argmax(size)], rel=0.45)


def test_power_model_is_near_the_measured_decodes() -> None:
    with tables_of("splitwise_perf_power_*.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if float(row["average_power"]) > 0]
    device = Device.named("A100-80-SXM")
    errors = []
    for model, name, tp in (
        ("llama2-70b", "Llama-2-70B", 2),
        ("llama2-70b", "Llama-2-70B", 4),
        ("llama2-70b", "Llama-2-70B", 8),
        ("bloom-176b", "BLOOM-176B", 8),
    ):
        own = [
            row for row in rows
            if row["model"] == model and row["hardware"] == "a100-80gb"
            and int(row["tensor_parallel"]) == tp and int(row["batch_size"]) == 1
            and int(row["prompt_size"]) <= 512
        ]  # fmt: skip
        watts = 400 * np.median([float(row["average_power"]) for row in own])
        took_s = np.median([float(row["token_time"]) for row in own]) * 1e-3
        effort = 0.7 * spec(name).params * 2 / tp / device.memory_Bps
        errors.append(device.joules(took_s, effort) / took_s / watts - 1)
    assert np.max(np.abs(errors)) < 0.12, errors
