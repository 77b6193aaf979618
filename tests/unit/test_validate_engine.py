"""The forecast beside the real engine: loads, errors, and the whole way once."""

from __future__ import annotations

import pytest

from orrery.base.errors import UsageError
from orrery.lab.validate_engine import LARGE, SMALL, Bench, errors, validate_engine
from orrery.models.requests import Served


class Flat:
    """A step takes a millisecond, whatever is in it."""

    clock = None

    def seconds(self, prefill, decodes, decode_kv):
        return 0.001


class FlatSteps(Flat):
    """The same, for the modelled replica."""

    spread, extrapolated, tp, model = False, 0, 1, None

    def seconds(self, prefill, decodes, decode_kv, spread=None):
        return 0.001

    def decode_run(self, decodes, decode_kv, steps, spread=None):
        return 0.001 * steps


def served(id, ttft_s, tpot_s, tokens=11):
    return Served(id, 1.0, 1.0, 1.0, 1.0 + ttft_s, 1.0 + ttft_s + tpot_s * (tokens - 1), 9, tokens,
                  0, 0)  # fmt: skip


def test_errors_are_of_each_request_and_of_the_means():
    real = [served(0, 0.1, 0.01), served(1, 0.2, 0.02)]
    told = [served(1, 0.22, 0.02), served(0, 0.09, 0.012)]
    found = errors(told, real)
    assert found["ttft_mape"] == pytest.approx(0.1)
    assert found["ttft_mean_err"] == pytest.approx(0.31 / 0.3 - 1)
    assert found["tpot_mape"] == pytest.approx(0.1)
    assert errors(real, real) == pytest.approx(dict.fromkeys(found, 0.0), abs=1e-9)
    # An answer of one token has no time of further tokens.
    assert errors([served(0, 0.1, 0.0, 1), *told[:1]], [served(0, 0.1, 0.0, 1), real[1]])


@pytest.mark.parametrize("limits", [SMALL, LARGE])
def test_a_load_asks_for_its_share_and_fits_the_engine(limits):
    bench = Bench(None, None, Flat(), limits, 3)
    few, many = (bench.load(Flat(), share, 200, 0) for share in (0.2, 1.5))
    assert few[-1].arrival_s == pytest.approx(7.5 * many[-1].arrival_s)
    for request in few:
        assert request.prompt_tokens + request._output_tokens <= limits.max_context
        assert request.prompt_tokens >= 2 and request._output_tokens >= 4


@pytest.mark.parametrize(
    ("knobs", "match"),
    [({"tables": ("steppes",)}, "steps"), ({"requests": 1}, "at least 2"),
     ({"model": "SmolLM-9"}, "SmolLM2"), ({"device": "tpu"}, "cpu"), ({"dtype": "int4"}, "dtype")],
)  # fmt: skip
def test_bad_questions_are_named(knobs, match):
    pytest.importorskip("torch", reason="needs the extra torch")
    with pytest.raises((UsageError, Exception), match=match):
        validate_engine(**knobs)


def test_operators_are_timed_among_their_kind_and_with_weights_that_differ(monkeypatch):
    torch = pytest.importorskip("torch", reason="needs the extra torch")
    from tests.unit.test_real_graphs import plain_attend

    from orrery.lab import replayed_meter
    from orrery.models.specs import ModelSpec
    from orrery.systems.ops.dooly import Sweep, uses
    from orrery.systems.ops.dooly.sweep import batch
    from orrery.systems.ops.dooly.trial import attention_key

    monkeypatch.setattr(replayed_meter, "attend", plain_attend)
    recorded = []
    meter = replayed_meter.ReplayedMeter(
        "cpu", "fp32", capture=lambda compute: recorded.append(1) or compute, repeats=1
    )
    model = ModelSpec(name="t", layers=2, hidden=32, heads=4, kv_heads=2, intermediate=32,
                      vocab=60, max_context=96)  # fmt: skip
    sweep = Sweep(step_tokens=32, max_sequences=4, max_context=64)
    points = [batch((), 3, 60), batch(((20, 5),), 2, 30), batch(((1, 0),), 0, 0)]
    times = meter.measure(attention_key(model, meter, sweep), points)
    assert len(recorded) == 3 and all(t > 0 for t in times)
    used = uses(model, meter.device, dtype="fp32", backends=meter.backends)
    planning = next(u.key for u in used if u.key.op.endswith("__init__"))
    assert meter.measure(planning, points) == [replayed_meter.NOTHING_S] * 3 and len(recorded) == 3
    product = next(u.key for u in used if "matmul" in u.key.op or "mm" in u.key.op)
    assert meter.measure(product, [(4,), (9,)])[0] > 0 and len(recorded) == 5
    weights = meter._tensor((8, 8), "f", (0, 1), 1, fill=0.01)
    assert len(torch.unique(weights)) > 32


def test_the_last_load_is_more_than_a_full_batch_can_do():
    """Served by the modelled engine itself, the saturated load leaves a queue, the quiet none."""
    from orrery.lab.validate_engine import LOADS

    bench = Bench(None, None, Flat(), LARGE, 3)
    waits = {}
    for name, share in LOADS.items():
        asked = bench.load(Flat(), share, 300, 0)
        told = bench.foretold(FlatSteps(), asked)
        waits[name] = sorted(s.started_s - s.arrival_s for s in told)[-30]
    assert waits["quiet"] < 0.002 < 0.02 < waits["saturated"]


@pytest.mark.slow
def test_steps_measured_here_foretell_what_the_engine_does_here():
    pytest.importorskip("torch", reason="needs the extra torch")
    found = validate_engine(layers=2, requests=12, device="cpu", tables=("steps",))
    assert [row["load"] for row in found["rows"]] == ["quiet", "busy", "saturated"]
    for row in found["rows"]:
        assert row["ttft_mape"] < 0.25 and row["tpot_mape"] < 0.25, row
