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


@pytest.mark.slow
def test_steps_measured_here_foretell_what_the_engine_does_here():
    pytest.importorskip("torch", reason="needs the extra torch")
    found = validate_engine(layers=2, requests=12, device="cpu", tables=("steps",))
    assert [row["load"] for row in found["rows"]] == ["quiet", "busy", "saturated"]
    for row in found["rows"]:
        assert row["ttft_mape"] < 0.25 and row["tpot_mape"] < 0.25, row
