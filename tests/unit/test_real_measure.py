"""Measuring: loads on a clock, single steps, and the table that foretells them."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra torch")

from tests.unit.real_toys import model_of, tiny

from orrery.base.errors import SpecError, UsageError
from orrery.base.rand import Stream
from orrery.models.real import Continuous, RealReplica, StepTable, profile, serve_all
from orrery.models.real.jobs import make_job
from orrery.models.real.measure import (
    ProcessorClock,
    ragged,
    shapes_to_try,
    time_step,
    typical,
    warm_up,
)
from orrery.models.real.steptable import fit, non_negative
from orrery.models.replica import Replica, drain

MODEL = model_of()


class Ticking:
    """A clock on which every look costs a millisecond, and sleeping costs nothing else."""

    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        self.now_s += 0.001
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds


def a_load(count=6, gap_s=0.05):
    return [
        make_job(i, [i + 1] * (5 + i), 4, arrival_s=gap_s * i, block_tokens=4) for i in range(count)
    ]


def test_a_load_is_played_at_its_times_and_told_in_full():
    clock = Ticking()
    replica = RealReplica(MODEL, blocks=60, block_tokens=4, clock=clock)
    got = serve_all(replica, a_load(), sleep=clock.sleep)
    assert [s.id for s in sorted(got.served, key=lambda s: s.id)] == list(range(6))
    for served in got.served:
        times = got.token_times_s[served.id]
        assert len(times) == served.output_tokens == 4
        assert served.arrival_s <= served.queued_s <= served.started_s < served.first_s
        # A token counts as made once it was told.
        assert served.started_s < times[0] <= served.first_s < times[-1] <= served.last_s
        assert served.ttft_s > 0 and served.tpot_s > 0
    assert sum(step.made for step in got.steps) == 24
    assert all(a.ended_s <= b.began_s for a, b in zip(got.steps, got.steps[1:], strict=False))
    assert got.mean("ttft_s") == pytest.approx(np.mean([s.ttft_s for s in got.served]))
    assert replica.on_step is None


def test_a_busy_replica_or_an_impossible_job_is_refused_before_anything_starts():
    replica = RealReplica(MODEL, blocks=10, block_tokens=4)
    with pytest.raises(UsageError, match="the cache holds"):
        serve_all(replica, [make_job(0, [1] * 40, 9, block_tokens=4)])
    replica.submit(make_job(0, [1], 1, block_tokens=4))
    with pytest.raises(UsageError, match="busy"):
        serve_all(replica, a_load())


def test_the_clock_of_the_processor_jumps_over_sleep():
    clock = ProcessorClock()
    a = clock()
    clock.sleep(100.0)
    b = clock()
    clock.sleep(-5.0)
    assert 100.0 <= b - a < 110.0
    assert clock() >= b


def test_steps_of_any_composition_are_made_as_asked_and_leave_nothing_behind():
    scheduler = Continuous(step_tokens=64)
    replica = RealReplica(MODEL, scheduler, blocks=80, block_tokens=4, caching=False)
    rng = Stream(1, "measure", "test")
    shapes = [((), 3, 40), (((9, 0), (1, 12)), 0, 0), (((5, 20),), 4, 90), ((), 1, 2)]
    for shape in shapes:
        (record,) = time_step(replica, shape, rng)
        assert (record.prefill, record.decodes, record.decode_kv) == shape
        assert record.seconds > 0
        assert replica.idle and replica.pool.free == 80 and replica.faults() == []
    many = time_step(replica, ((), 2, 30), rng, repeats=3)
    assert [r.decode_kv for r in many] == [30, 32, 34]


def test_warming_up_meets_every_size_and_leaves_nothing_behind():
    replica = RealReplica(MODEL, Continuous(step_tokens=72), blocks=90, block_tokens=4)
    seen = []
    step = replica.model.step
    replica.model = type("Watched", (), {})()
    replica.model.__dict__.update(MODEL.__dict__)
    replica.model.step = lambda pieces, cache: (
        seen.append(sum(len(p.tokens) for p in pieces)) or step(pieces, cache)
    )
    warm_up(replica, step_tokens=72, max_sequences=5)
    assert set(seen) == {*range(1, 65), 72}
    assert replica.idle and replica.pool.free == 90 and replica.faults() == []


def test_a_typical_time_counts_slow_steps_but_not_pauses():
    assert typical([1.0, 1.0, 1.3]) == pytest.approx(1.1)
    assert typical([1.0, 1.0, 100.0]) == pytest.approx(3.5 / 3)


def test_ragged_lengths_add_up():
    rng = Stream(1, "measure", "ragged")
    for count, total in ((1, 2), (3, 6), (7, 500), (4, 40)):
        lengths = ragged(rng, count, total)
        assert len(lengths) == count and sum(lengths) == total and min(lengths) >= 2
    assert len(set(ragged(rng, 7, 500))) > 3


def test_the_shapes_of_a_profile_stay_within_the_limits():
    shapes = shapes_to_try(
        Stream(2, "p", "s"), count=120, step_tokens=64, max_sequences=9, max_context=128
    )
    assert len(shapes) >= 120
    for prefill, decodes, kv in shapes:
        assert decodes + len(prefill) <= 9
        assert decodes + sum(new for new, _ in prefill) <= 64
        assert all(new >= 1 and past >= 0 and new + past <= 128 for new, past in prefill)
        assert kv >= 2 * decodes
    assert {len(prefill) for prefill, _, _ in shapes} >= {0, 1, 2}
    assert max(decodes for _, decodes, _ in shapes) == 9


# -- the table


def law(prefill, decodes, kv):
    """A machine with known costs: bends in both curves, and lines; one new token is a decode."""
    ones = [past + 1 for new, past in prefill if new == 1]
    prefill = [chunk for chunk in prefill if chunk[0] > 1]
    decodes, kv = decodes + len(ones), kv + sum(ones)
    tokens = decodes + sum(new for new, _ in prefill)
    rows = decodes + len(prefill)
    attention = 2e-6 * kv + 1e-8 * sum(n * (n + p) for n, p in prefill)
    return 1e-3 + 1e-5 * max(tokens, 16) + 4e-5 * rows + attention + 3e-4 * len(prefill)


SHAPES = shapes_to_try(
    Stream(3, "p", "s"), count=200, step_tokens=128, max_sequences=16, max_context=512
)


def test_a_fit_finds_the_law_of_a_known_machine():
    table = fit(tiny(), SHAPES, [law(*shape) for shape in SHAPES])
    assert table.error < 0.002
    unseen = shapes_to_try(
        Stream(4, "p", "s"), count=150, step_tokens=128, max_sequences=16, max_context=512
    )
    errors = [abs(table.seconds(*shape) / law(*shape) - 1) for shape in unseen]
    assert np.mean(errors) < 0.005
    assert table.extrapolated == 0


def test_a_fit_bears_noise():
    rng = np.random.default_rng(5)
    noisy = [law(*shape) * rng.lognormal(0, 0.05) for shape in SHAPES]
    table = fit(tiny(), SHAPES, noisy)
    errors = [abs(table.seconds(*shape) / law(*shape) - 1) for shape in SHAPES]
    assert np.mean(errors) < 0.03 < table.error < 0.06


def test_a_run_of_decodes_is_the_sum_of_its_steps():
    table = fit(tiny(), SHAPES, [law(*shape) for shape in SHAPES])
    one_by_one = sum(table.seconds((), 5, 100 + 5 * i) for i in range(40))
    assert table.decode_run(5, 100, 40) == pytest.approx(one_by_one, rel=1e-12)
    assert table.decode_run(0, 0, 5) == table.decode_run(5, 100, 0) == table.seconds((), 0, 0) == 0


def test_what_was_not_measured_is_counted():
    table = fit(tiny(), SHAPES, [law(*shape) for shape in SHAPES])
    table.seconds(((300, 0),), 0, 0)
    table.seconds((), 17, 100)
    table.seconds((), 4, 1 << 20)
    assert table.extrapolated == 3
    most = table.most["decode_kv"]
    table.decode_run(1, most - 2, 6)
    assert table.extrapolated == 6
    assert table.seconds(((300, 0),), 0, 0) > table.seconds(((128, 0),), 0, 0)


def test_a_table_survives_a_file_and_a_damaged_one_is_refused(tmp_path):
    table = fit(tiny(), SHAPES, [law(*shape) for shape in SHAPES], watts=30.0, about="a test")
    path = table.save(tmp_path / "t.json")
    again = StepTable.load(path)
    for shape in SHAPES[::7]:
        assert again.seconds(*shape) == table.seconds(*shape)
        assert again.joules(*shape) == 30.0 * table.seconds(*shape)
    assert again.model == table.model and again.about == "a test"
    path.write_text(path.read_text()[:-40])
    with pytest.raises(SpecError, match="cannot be read"):
        StepTable.load(path)
    data = table.to_data()
    for wrong in ({}, {"schema": "x"}, {**data, "lines": {}}, {**data, "most": 3}):
        with pytest.raises(SpecError):
            StepTable.from_data(wrong)


def test_times_that_cannot_be_are_refused():
    for bad in (0.0, -1.0, float("nan")):
        with pytest.raises(SpecError, match="not positive"):
            fit(tiny(), SHAPES, [bad] + [1.0] * (len(SHAPES) - 1))
    with pytest.raises(SpecError, match="ten or more"):
        fit(tiny(), SHAPES[:3], [1.0] * 3)
    table = fit(tiny(), SHAPES, [law(*shape) for shape in SHAPES])
    with pytest.raises(SpecError, match="prefill"):
        table.seconds(((0, 0),), 0, 0)
    with pytest.raises(SpecError, match="decodes"):
        table.seconds((), -1, 0)


def test_non_negative_least_squares_beats_every_neighbour():
    rng = np.random.default_rng(1)
    for _ in range(20):
        a, b = rng.normal(size=(30, 8)), rng.normal(size=30)
        x = non_negative(a, b)
        assert (x >= 0).all()
        best = np.sum((a @ x - b) ** 2)
        for _ in range(50):
            other = np.maximum(0, x + rng.normal(size=8) * 0.05)
            assert np.sum((a @ other - b) ** 2) >= best - 1e-9


def test_a_profile_of_a_real_model_drives_the_modelled_replica():
    table, records = profile(
        MODEL, blocks=200, block_tokens=4, step_tokens=32, max_sequences=6, max_context=64,
        count=45, repeats=1, clock=ProcessorClock(),
    )  # fmt: skip
    assert len(records) >= 45 and table.tokens[1] > 0
    jobs = a_load(gap_s=0.0)
    scheduler = Continuous(step_tokens=32, max_sequences=6)
    foretold = drain(
        Replica(table, scheduler, blocks=60, block_tokens=4, ahead=False),
        [job.request for job in jobs],
    )
    assert len(foretold) == 6 and table.extrapolated == 0
    assert all(s.first_s > 0 for s in foretold)


def test_a_profile_says_when_the_cache_is_too_small_or_the_scheduler_cuts():
    with pytest.raises(UsageError, match="all in one step"):
        profile(
            MODEL, blocks=100, block_tokens=4, step_tokens=32, max_sequences=4, max_context=64,
            count=30, repeats=1, scheduler=Continuous(step_tokens=3),
        )  # fmt: skip
