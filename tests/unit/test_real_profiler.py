"""Profiling: rounds, rehearsals, and tables of engines that pad their steps."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra torch")

from tests.unit.real_toys import model_of, tiny
from tests.unit.test_real_graphs import seam

from orrery.base.errors import SpecError, UsageError
from orrery.base.rand import Stream
from orrery.lab.replayed_meter import PaddedSteps
from orrery.models.real import Continuous, Profiler, RealReplica, StepTable
from orrery.models.real.jobs import make_job
from orrery.models.real.measure import shapes_to_try, time_step
from orrery.models.real.profiler import _usual, rehearse
from orrery.models.real.steptable import fit, padded

MODEL = model_of()
LIMITS = {"step_tokens": 32, "max_sequences": 6}
PADS = {"decode": [1, 2, 4, 8, 16], "mixed": [64, 128, 192, 256]}


class Slowing:
    """A clock of a machine that becomes slower: each look costs more."""

    def __init__(self):
        self.now_s, self.look_s = 0.0, 1e-3

    def __call__(self):
        self.now_s += self.look_s
        return self.now_s


def replica_of(**more):
    knobs = {"blocks": 120, "block_tokens": 4, "caching": False, **more}
    return RealReplica(MODEL, Continuous(**LIMITS), **knobs)


def test_rounds_follow_a_machine_that_becomes_slower():
    clock = Slowing()
    profiler = Profiler(replica_of(clock=clock), max_context=64, count=60, **LIMITS)
    with pytest.raises(UsageError, match="measure"):
        profiler.table()
    profiler.measure()
    early = profiler.table()
    clock.look_s = 2e-3
    profiler.measure(2)
    late, both = profiler.table(last=2), profiler.table()
    shape = (((9, 0),), 2, 20)
    assert late.seconds(*shape) == pytest.approx(2 * early.seconds(*shape), rel=1e-6)
    assert early.seconds(*shape) < both.seconds(*shape) < late.seconds(*shape)
    assert len(profiler.records) == 3 * len(profiler.shapes)


def test_a_busy_or_caching_replica_is_refused():
    with pytest.raises(UsageError, match="busy or caches"):
        Profiler(replica_of(caching=True), max_context=64, **LIMITS)
    busy = replica_of()
    busy.submit(make_job(0, [1], 1, block_tokens=4))
    with pytest.raises(UsageError, match="busy or caches"):
        Profiler(busy, max_context=64, **LIMITS)


def test_a_rehearsal_meets_every_depth_and_leaves_nothing_behind():
    replica = replica_of()
    records = rehearse(
        replica, Stream(1, "test", "rehearse"), max_sequences=6, max_context=64, most_answer=8
    )
    depths = {record.decodes + len(record.prefill) for record in records}
    assert depths >= {1, 2, 4, 6} and max(depths) == 6
    assert replica.idle and replica.pool.free == 120 and replica.faults() == []
    assert replica.on_step is None and len({len(r.prefill) for r in records}) > 1
    with pytest.raises(UsageError, match="too short"):
        rehearse(replica, Stream(1, "t", "r"), max_sequences=6, max_context=64, most_answer=80)


def test_a_pause_of_the_machine_is_left_out():
    replica = replica_of()
    records = rehearse(
        replica, Stream(2, "test", "rehearse"), max_sequences=2, max_context=32, most_answer=6
    )
    import msgspec

    paused = msgspec.structs.replace(records[3], ended_s=records[3].began_s + 1e6)
    kept = _usual([*records[:3], paused, *records[4:]])
    assert paused not in kept and len(kept) >= len(records) // 2


def test_a_step_with_a_lead_has_the_shape_that_was_asked_for():
    replica, rng = replica_of(), Stream(1, "test", "lead")
    for shape in ((), 3, 40), (((9, 0), (4, 12)), 2, 30), (((9, 0),), 0, 0), ((), 2, 4):
        (record,) = time_step(replica, shape, rng, lead=2)
        assert (record.prefill, record.decodes, record.decode_kv) == shape
        assert replica.idle and replica.pool.free == 120 and replica.faults() == []
    assert replica.steps == 3 + 3 + 1 + 1  # without decodes, or with short ones, nothing leads


# -- engines that pad


def padded_law(prefill, decodes, kv):
    """A machine that pads, attends to 256 tokens at once, and has a size that is slow by nature."""
    ones = [past + 1 for new, past in prefill if new == 1]
    chunks = [chunk for chunk in prefill if chunk[0] > 1]
    decodes, kv = decodes + len(ones), kv + sum(ones)
    size = padded(PADS, decodes + sum(new for new, _ in chunks), bool(chunks))
    pairs = sum(new * (new + past) for new, past in chunks)
    pairs = max(pairs, 256 * max((new + past for new, past in chunks), default=0))
    slow_s = 2e-3 if size == 128 else 0.0
    return 1e-3 + 1e-5 * size + slow_s + 2e-7 * kv + 1e-8 * pairs


def test_a_fit_finds_the_law_of_a_machine_that_pads():
    knobs = {"step_tokens": 256, "max_sequences": 16, "max_context": 512}
    shapes = shapes_to_try(Stream(3, "p", "s"), count=260, **knobs)
    table = fit(tiny(), shapes, [padded_law(*s) for s in shapes], pads=PADS)
    assert table.error < 0.01 and table.lanes == 256
    unseen = shapes_to_try(Stream(4, "p", "s"), count=150, **knobs)
    errors = [abs(table.seconds(*s) / padded_law(*s) - 1) for s in unseen]
    assert np.mean(errors) < 0.01
    # A level may fall: the slow size does not make larger ones slow.
    assert table.seconds(((100, 0),), 0, 0) > table.seconds(((140, 0),), 0, 0)
    # One that does not know of the padding is worse.
    assert fit(tiny(), shapes, [padded_law(*s) for s in shapes]).error > 5 * table.error
    run = sum(table.seconds((), 5, 100 + 5 * i) for i in range(40))
    assert table.decode_run(5, 100, 40) == pytest.approx(run, rel=1e-12)
    again = StepTable.from_data(table.to_data())
    assert [again.seconds(*s) for s in shapes] == [table.seconds(*s) for s in shapes]


@pytest.mark.parametrize(
    "pads", [{"decode": [1]}, {"decode": [2, 1], "mixed": [3]}, {"decode": [0], "mixed": [3]}]
)
def test_pads_that_make_no_sense_are_refused(pads):
    shapes = [((), n, 2 * n) for n in range(1, 12)]
    with pytest.raises(SpecError, match="pads"):
        fit(tiny(), shapes, [1.0] * 11, pads=pads)


def test_a_profile_of_recorded_steps_knows_their_sizes():
    limits = {"step_tokens": 12, "max_sequences": 3}
    replica = RealReplica(
        MODEL, Continuous(**limits), blocks=40, block_tokens=4, caching=False,
        graphs=seam(capture=lambda compute: compute),
    )  # fmt: skip
    profiler = Profiler(replica, max_context=24, count=20, rehearsed=True, **limits)
    profiler.measure()
    table = profiler.table()
    assert table.pads == replica.graphs.pads and set(table.tokens) <= {1, 2, 3, 12}
    assert replica.graphs.refused == 0 and len(profiler.records) > len(profiler.shapes)


class Exact:
    """Step times of exact sizes: a second a token."""

    model, extrapolated = None, 3

    def seconds(self, prefill, decodes, decode_kv):
        return float(decodes + sum(new for new, _ in prefill))

    def decode_run(self, decodes, decode_kv, steps):
        return float(decodes * steps)

    def joules(self, *step):
        return 7.0 * self.seconds(*step)


def test_steps_of_exact_sizes_are_padded():
    steps = PaddedSteps(Exact(), PADS)
    assert steps.seconds(((20, 0), (50, 9)), 3, 40) == 128.0
    assert steps.seconds((), 3, 40) == 3.0 and steps.decode_run(3, 40, 5) == 15.0
    assert steps.seconds(((300, 0),), 0, 0) == 300.0  # beyond the sizes nothing is padded
    assert steps.extrapolated == 3 and steps.joules((), 3, 40) == 21.0
