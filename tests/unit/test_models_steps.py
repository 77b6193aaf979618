"""Step times: bounds, closed forms of runs, monotony, refusals, energy."""

from __future__ import annotations

import pytest

from orrery.base.errors import OrreryError, SpecError
from orrery.models.device import IDEAL, Device
from orrery.models.ops import forward_ops
from orrery.models.optable import OpTable, Tables
from orrery.models.runs import sum_of_max, sum_of_ramp
from orrery.models.specs import spec
from orrery.models.steps import RooflineSteps, Steps, steps_for
from orrery.models.tablefile import save_tables
from orrery.models.tablesteps import TableSteps, flagged
from orrery.models.weights import Layout

KINDS = [
    ("Llama-3.1-8B", "H100-SXM", Layout()),
    ("Llama-3.1-70B", "H100-SXM", Layout(tp=8)),
    ("DeepSeek-V3", "H200", Layout(tp=8, ep=8)),
    ("Gemma-2-9B", "A100-80-SXM", Layout(tp=2)),
    ("gpt-oss-20b", "L40S", Layout()),
    ("Mixtral-8x7B", "A100-80-SXM", Layout(tp=4, pp=2)),
    ("Llama-3.1-8B", "H100-SXM", Layout(cp=4)),
]


@pytest.mark.parametrize(("model", "device", "layout"), KINDS)
@pytest.mark.parametrize(
    "step",
    [
        ([], 1, 100), ([], 64, 100_000), ([(1, 0)], 0, 0), ([(2048, 0)], 0, 0),
        ([(512, 4096), (128, 0)], 30, 90_000),
    ],
)  # fmt: skip
def test_a_step_is_the_sum_of_its_operations(model, device, layout, step) -> None:
    steps = RooflineSteps(model, device, layout=layout)
    ops = forward_ops(spec(model), *step, layout=layout)
    if layout.cp > 1 and step[0]:
        # Tokens are whole: the last device of the group has the rest.
        assert all(new % 4 == 0 for new, _ in step[0]) or step[0] == [(1, 0)]
        if step[0] == [(1, 0)]:
            return
    total = sum(steps.device.cost(op) for op in ops)
    assert steps.seconds(*step) == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize(("model", "device", "layout"), KINDS)
@pytest.mark.parametrize(("decodes", "kv", "count"), [(1, 1, 10), (7, 900, 300), (64, 64000, 33)])
def test_a_run_is_the_sum_of_its_steps(model, device, layout, decodes, kv, count) -> None:
    steps = RooflineSteps(model, device, layout=layout)
    one_by_one = sum(steps.seconds([], decodes, kv + decodes * i) for i in range(count))
    assert steps.decode_run(decodes, kv, count) == pytest.approx(one_by_one, rel=1e-9)


def test_decoding_70b_is_bounded_by_weights_over_bandwidth() -> None:
    layout = Layout(tp=8)
    ideal = RooflineSteps("Llama-3.1-70B", Device.named("H100-SXM", IDEAL), layout=layout)
    matrices_B = 2 * spec("Llama-3.1-70B").matmul_params / 8
    floor_s = matrices_B / 3.35e12
    assert floor_s == pytest.approx(5.19e-3, rel=0.01)
    # Without latencies and with all of the bandwidth, only activations and messages come on top.
    assert floor_s < ideal.seconds([], 1, 1) < 1.03 * floor_s
    real = steps_for("Llama-3.1-70B", "H100-SXM", tp=8)
    assert 1.5 * floor_s < real.seconds([], 1, 1) < 3 * floor_s


def test_a_long_prompt_is_bounded_by_the_peak() -> None:
    ideal = RooflineSteps("Llama-3.1-8B", Device.named("H100-SXM", IDEAL))
    flops = 2 * (spec("Llama-3.1-8B").matmul_params - 128256 * 4096) * 8192
    flops += 32 * 4 * 32 * 128 * 8192 * 8193 // 2
    # Norms and activations move bytes besides, about a tenth here.
    assert flops / 989.4e12 < ideal.seconds([(8192, 0)], 0, 0) < 1.13 * flops / 989.4e12


@pytest.mark.parametrize(("model", "device", "layout"), KINDS)
def test_more_work_never_takes_less_time(model, device, layout) -> None:
    steps = RooflineSteps(model, device, layout=layout)
    for curve in (
        [steps.seconds([(n, 0)], 0, 0) for n in (1, 2, 64, 65, 500, 4096, 20000)],
        [steps.seconds([(64, past)], 0, 0) for past in (0, 1, 1000, 50000)],
        [steps.seconds([], n, 100 * n) for n in (1, 2, 100, 101, 1000)],
        [steps.seconds([], 8, kv) for kv in (8, 100, 10000, 1000000)],
        [steps.decode_run(8, 800, n) for n in (0, 1, 2, 1000)],
    ):
        assert curve == sorted(curve)


def test_parallel_devices_are_faster_and_bandwidth_helps() -> None:
    one, two, eight = (steps_for("Llama-3.1-8B", "H100-SXM", tp=tp) for tp in (1, 2, 8))
    assert one.seconds([(4096, 0)], 0, 0) > two.seconds([(4096, 0)], 0, 0)
    assert two.seconds([(4096, 0)], 0, 0) > eight.seconds([(4096, 0)], 0, 0)
    newer = steps_for("Llama-3.1-8B", "H200")
    assert newer.seconds([], 32, 32000) < one.seconds([], 32, 32000)


def test_no_work_takes_no_time() -> None:
    steps = steps_for("SmolLM2-135M", "L4")
    assert steps.seconds([], 0, 0) == 0
    assert steps.decode_run(0, 0, 5) == 0
    assert steps.decode_run(4, 100, 0) == 0
    assert steps.joules([], 0, 0) == 0


@pytest.mark.parametrize(
    ("step", "match"),
    [
        (([(0, 0)], 0, 0), "prefill"),
        (([(-5, 0)], 0, 0), "prefill"),
        (([(5, -1)], 0, 0), "prefill"),
        (([], -1, 0), "decodes"),
        (([], 1, -1), "decode_kv"),
        (([], 0, 10), "decode_kv"),
        (([(4, 0)], 0, 10), "decode_kv"),
        (([(1 << 21, 0)], 0, 0), "tokens"),
    ],
)
def test_bad_steps_are_refused(step, match: str) -> None:
    steps = steps_for("SmolLM2-135M", "L4")
    with pytest.raises(SpecError, match=match):
        steps.seconds(*step)
    with pytest.raises(SpecError, match="steps"):
        steps.decode_run(1, 1, -1)


def test_bad_set_ups_are_refused() -> None:
    with pytest.raises(OrreryError, match="Llama"):
        steps_for("Llama-9", "H100-SXM")
    with pytest.raises(OrreryError, match="H100"):
        steps_for("Llama-3.1-8B", "H100")
    with pytest.raises(SpecError, match="tp"):
        steps_for("Llama-3.1-8B", "H100-SXM", tp=3)
    for bad in (-1, float("nan"), 11):
        with pytest.raises(SpecError, match="overhead_s"):
            steps_for("Llama-3.1-8B", "H100-SXM", overhead_s=bad)


def test_overhead_is_added_to_every_step() -> None:
    plain, slow = (steps_for("Llama-3.1-8B", "H100-SXM", overhead_s=s) for s in (0.0, 1e-3))
    assert slow.seconds([], 4, 400) == pytest.approx(plain.seconds([], 4, 400) + 1e-3)
    assert slow.decode_run(4, 400, 9) == pytest.approx(plain.decode_run(4, 400, 9) + 9e-3)


def test_steps_within_a_time() -> None:
    steps = steps_for("Llama-3.1-8B", "H100-SXM")
    took = steps.decode_run(8, 8000, 40)
    assert steps.decode_steps_within(8, 8000, took, 100) == 40
    assert steps.decode_steps_within(8, 8000, took * 0.999, 100) == 39
    assert steps.decode_steps_within(8, 8000, 0.0, 100) == 0
    assert steps.decode_steps_within(8, 8000, 1e9, 100) == 100


def test_energy_is_power_over_time() -> None:
    steps = steps_for("Llama-3.1-70B", "H100-SXM", tp=8)
    for step in (([], 1, 500), ([(4096, 0)], 0, 0), ([(256, 0)], 20, 9000)):
        watts = steps.joules(*step) / steps.seconds(*step) / 8
        assert 0.3 * 700 <= watts <= 700
    assert steps.joules([(4096, 0)], 0, 0) > steps.joules([], 1, 500)


def test_both_kinds_are_steps() -> None:
    assert isinstance(steps_for("SmolLM2-135M", "L4"), Steps)
    assert isinstance(TableSteps("SmolLM2-135M", small_tables()), Steps)


def test_sums_in_closed_form() -> None:
    assert sum_of_ramp(3.0, 2.0, 5, 7, 0) == 0
    for start in (0, 1, 39, 40, 41, 1000):
        for count in (0, 1, 5, 100):
            brute = sum(max(2.0 * x, 0.5 * x + 60) for x in range(start, start + 3 * count, 3))
            assert sum_of_max(2.0, 0.5, 60.0, start, 3, count) == pytest.approx(brute)
            brute = sum(max(0.5 * x, 2.0 * x + 60) for x in range(start, start + 3 * count, 3))
            assert sum_of_max(0.5, 2.0, 60.0, start, 3, count) == pytest.approx(brute)


# -- tables, made here


def small_tables(device: str = "L4") -> Tables:
    """Products that take 1 us a row and 10 us besides; attention that takes 1 ns a token."""
    grid = [(m, n, k) for m in (1, 64, 1024) for n in (32, 65536) for k in (32, 65536)]
    gemm = OpTable.from_points(
        "gemm", {a: [p[i] for p in grid] for i, a in enumerate("mnk")},
        [1e-6 * m + 1e-5 for m, _, _ in grid], device=device, dtype="bf16",
    )  # fmt: skip
    points = [(b, c) for b in (1, 16, 256) for c in (1, 100, 1000)]
    decode = OpTable.from_points(
        "attention_decode", {"batch": [b for b, _ in points], "context": [c for _, c in points]},
        [1e-9 * b * c for b, c in points], device=device, dtype="bf16",
        fixed={"heads": 9, "kv_heads": 3, "head_dim": 64, "window": 0},
    )  # fmt: skip
    return Tables(device, [gemm, decode], "made here")


def test_table_steps_use_the_tables() -> None:
    steps = TableSteps("SmolLM2-135M", small_tables())
    gap = steps.seconds([], 8, 800) - steps.seconds([], 8, 400)
    assert gap == pytest.approx(30 * 1e-9 * 400)
    assert steps.extrapolated == 0
    assert "norms" in steps.unmeasured
    assert "attention_prefill" in steps.unmeasured
    assert "qkv" not in steps.unmeasured
    run = steps.decode_run(8, 800, 500)
    assert run == pytest.approx(sum(steps.seconds([], 8, 800 + 8 * i) for i in range(500)))


def test_table_steps_count_what_lies_outside() -> None:
    steps = TableSteps("SmolLM2-135M", small_tables())
    steps.seconds([], 8, 8 * 1001)
    assert (steps.extrapolated, steps.outside) == (1, {"attention_decode": 1})
    steps.decode_run(8, 8 * 996, 10)  # contexts 996 to 1005, of which 5 are beyond 1000
    assert steps.extrapolated == 6
    steps.seconds([(2000, 0)], 0, 0)
    assert steps.extrapolated == 7
    assert steps.outside["qkv"] == 1
    assert flagged([steps, steps])["qkv"] == 2
    before = steps.extrapolated
    steps.decode_steps_within(8, 8 * 2000, 1.0, 100)
    steps.joules([], 8, 8 * 2000)
    assert steps.extrapolated == before  # neither ran a step


def test_tables_of_another_device_or_model_are_refused(tmp_path) -> None:
    with pytest.raises(SpecError, match="measured on L4"):
        TableSteps("SmolLM2-135M", small_tables(), "H100-SXM")
    path = save_tables(small_tables(), tmp_path / "l4.json")
    assert isinstance(steps_for("SmolLM2-135M", "L4", tables=path), TableSteps)
    with pytest.raises(SpecError, match="measured on L4"):
        steps_for("SmolLM2-135M", "A10", tables=path)
    only = Tables("L4", [table for table in small_tables() if table.op == "attention_decode"])
    with pytest.raises(SpecError, match="nothing of Llama-3.1-8B"):
        TableSteps("Llama-3.1-8B", only)
    with pytest.raises(SpecError, match="no format known"):
        steps_for("SmolLM2-135M", "L4", tables=tmp_path)


def test_auto_falls_back_to_rooflines(monkeypatch) -> None:
    monkeypatch.delenv("ORRERY_DATA", raising=False)
    steps = steps_for("SmolLM2-135M", "T4", tables="auto")
    assert type(steps) is RooflineSteps
