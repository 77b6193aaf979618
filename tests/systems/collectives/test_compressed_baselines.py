"""The rivals of compressed collectives, each with a figure that is known without running it."""

from __future__ import annotations

import numpy as np
import pytest

from orrery.base.errors import KnobError, PartError
from orrery.systems.collectives import Ring
from orrery.systems.collectives.baselines.cast_ring import CastRing
from orrery.systems.collectives.baselines.coupled_ring import CoupledRing
from orrery.systems.collectives.baselines.quantised_ring import QuantisedRing
from orrery.systems.collectives.ncclz import NCCLZ, Grid
from orrery.systems.collectives.ncclz.frame import HEADER_B
from orrery.systems.collectives.pccl.coding import error_bound
from orrery.systems.collectives.problems.compressed_all_reduce import CompressedAllReduce
from orrery.systems.collectives.problems.compressible import content, field, gradient

from .compressed_runs import FREE, lan, play

N, ITEMS = 4, 4 * 6400


def test_the_plain_ring_takes_the_textbook_time_and_is_exact():
    made = play(Ring(), lan(N), items=ITEMS)
    assert made.metrics["time_s"] == pytest.approx(2 * 3 / 4 * 4 * ITEMS / 1.25e7 + 6e-4, rel=0.01)
    assert made.metrics["sent_B"] == 2 * 3 / 4 * 4 * ITEMS
    assert made.metrics["error"] < 1e-5


def test_bit_packing_takes_the_bits_of_the_range_at_each_hop():
    """Uniform values: a sum of k of them lies within k times the range, so its width is known."""
    eb = 1 / 200
    made = play(QuantisedRing(predict="none"), lan(N), items=ITEMS, content="uniform", eb=eb)
    # Codes of one rank reach 100: 8 bits; sums of 2, 3, 4 reach 190 to 380: 9, 10, 10 bits.
    given = [Grid(eb).quantise(content("uniform", 0, 0, r, ITEMS, 1.0).astype(np.float32))
             for r in range(N)]  # fmt: skip

    def part_B(first, part, terms):
        codes = sum(given[(first + k) % N] for k in range(terms))
        codes = codes[part * ITEMS // N : (part + 1) * ITEMS // N]
        width = int(codes.max() - codes.min()).bit_length()
        return HEADER_B + 9 + ITEMS // N * width / 8

    # Part p starts at rank p + 1 and is complete at rank p.
    reducing = sum(part_B(p + 1, p, k) for p in range(N) for k in range(1, N))
    gathering = sum((N - 1) * part_B(p + 1, p, N) for p in range(N))
    assert made.metrics["all_sent_B"] == reducing + gathering
    assert made.metrics["time_s"] < play(Ring(), lan(N), items=ITEMS).metrics["time_s"] / 2


def test_it_is_ours_without_entropy_coding():
    one, other = (
        play(part, lan(N), items=ITEMS) for part in (QuantisedRing(), NCCLZ(coder="pack"))
    )
    assert one.decisions == other.decisions
    assert one.metrics == other.metrics


@pytest.mark.parametrize("coder", ["pack", "table"])
def test_the_coupled_ring_rounds_once_a_rank(coder):
    made = play(CoupledRing(coder=coder), lan(N), items=ITEMS)
    ours = play(NCCLZ(coder=coder), lan(N), items=ITEMS)
    assert made.metrics["within"] <= 1.0
    assert made.metrics["error"] == pytest.approx(ours.metrics["error"], rel=1e-3)
    # The same codes, and a bound of 8 bytes in each frame: 2 (n - 1) of them leave each rank.
    extra_B = made.metrics["all_sent_B"] - ours.metrics["all_sent_B"]
    assert extra_B == pytest.approx(8 * 2 * (N - 1) * N, abs=0.001 * ours.metrics["all_sent_B"])
    assert made.metrics["recoded"] == N * (N - 1)
    assert ours.metrics["recoded"] == 0


def test_an_adaptive_grid_keeps_its_relative_promise():
    made = play(CoupledRing(grid="adaptive", relative=1e-2), lan(N), items=ITEMS)
    free = play(CoupledRing(grid="adaptive", relative=1e-2, speeds=FREE), lan(N), items=ITEMS)
    assert made.decisions == free.decisions
    assert made.metrics["error"] > 0
    assert made.metrics["coding_s"] > 1000 * free.metrics["coding_s"]


def test_float16_halves_the_bytes_and_errs_by_its_own_rounding():
    made = play(CastRing(), lan(N), items=ITEMS)
    assert made.metrics["all_sent_B"] == 2 * (N - 1) * 2 * ITEMS
    given = [content("field", 0, 0, r, ITEMS, 11 / 3).astype(np.float16) for r in range(N)]
    exact = sum(g.astype(np.float64) for g in given)
    largest = float(np.abs(exact).max())
    assert 0 < made.metrics["error"] <= N * 2**-11 * 2 * largest


def test_int8_quarters_them_with_a_scale_for_each_block():
    made = play(CastRing(cast="int8"), lan(N), items=ITEMS)
    # 256 values take 260 bytes.
    assert made.metrics["all_sent_B"] == 2 * (N - 1) * ITEMS * 260 / 256
    assert made.metrics["ratio"] == pytest.approx(4 * 256 / 260)
    magnitude = sum(np.abs(content("field", 0, 0, r, ITEMS, 11 / 3)) for r in range(N)).max()
    assert 0 < made.metrics["error"] <= error_bound(N) * magnitude


def test_int8_refuses_what_it_cannot_scale():
    from orrery import Worker, run

    class Sums(Worker):
        async def main(self):
            await self.sum(np.array([1.0, np.inf]))

    with pytest.raises(PartError, match="NaN or infinity"):
        run(Sums(collective=CastRing(cast="int8")), world=lan(2))


def test_a_field_has_the_spectrum_that_was_asked_for():
    side = 64
    values = field(np.random.default_rng(1), side**3, 3.0).reshape(side, side, side)
    power = np.abs(np.fft.fftn(values)) ** 2
    k = np.fft.fftfreq(side, 1 / side)
    radius = np.sqrt(k[:, None, None] ** 2 + k[None, :, None] ** 2 + k[None, None, :] ** 2)
    means = [power[(radius >= r) & (radius < 1.1 * r)].mean() for r in (4, 16)]
    assert np.log(means[0] / means[1]) / np.log(4) == pytest.approx(3.0, abs=0.15)


def test_gradients_have_heavy_tails():
    values = gradient(np.random.default_rng(2), 100_000)
    assert (np.abs(values) > 5 * values.std()).mean() > 1e-3


@pytest.mark.parametrize(
    ("make", "knobs", "says"),
    [
        (CompressedAllReduce, {"items": -1}, "items"),
        (CompressedAllReduce, {"eb": -1.0}, "eb"),
        (CompressedAllReduce, {"relative": 0.0}, "relative"),
        (CompressedAllReduce, {"content": "text"}, "content"),
        (CompressedAllReduce, {"operation": "scan"}, "operation"),
        (CompressedAllReduce, {"scale": float("nan")}, "scale"),
        (CoupledRing, {"grid": "free"}, "grid"),
        (CoupledRing, {"relative": -1.0}, "relative"),
        (CastRing, {"cast": "fp4"}, "cast"),
        (QuantisedRing, {"bits": 3}, "bits"),
    ],
)
def test_bad_knobs_are_named(make, knobs, says):
    with pytest.raises(KnobError, match=says):
        make(**knobs)
