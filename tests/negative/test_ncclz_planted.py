"""Faults planted in compressed collectives: each must be seen by the checker or be an error."""

from __future__ import annotations

import numpy as np
import pytest

from orrery import World, run
from orrery.base.errors import PartError
from orrery.systems.collectives.ncclz import NCCLZ, Chunk
from orrery.systems.collectives.ncclz.collective import Codes
from orrery.systems.collectives.ncclz.quantiser import Grid
from orrery.systems.collectives.problems.compressed_all_reduce import CompressedAllReduce

PROBLEM = CompressedAllReduce(items=3_000)
WORLD = World.lan(5, bandwidth_Bps=1e6)


def planted(**methods):
    """NCCLZ with some methods of its coding replaced."""
    wrong = type("Wrong", (Codes,), methods)

    class Planted(NCCLZ):
        def coding(self, desk, dtype, crossings, ranks):
            return wrong(self, desk, dtype, Grid(self.eb, ranks), 0.0)

    return Planted(coder="table", chunk_items=200)


def kinds(part, problem=PROBLEM):
    return {violation.kind for violation in run(part, problem=problem, world=WORLD).violations}


def test_without_a_fault_nothing_is_seen():
    assert kinds(planted()) == set()


def off_by_one(self, coming, own):
    return Chunk(coming.values + own.values + 1)


def drops_own(self, coming, own):
    return coming


def only_rank_two_drops_own(self, coming, own):
    return coming if self._desk.me == 2 else Codes.join(self, coming, own)


@pytest.mark.parametrize("join", [off_by_one, drops_own, only_rank_two_drops_own])
def test_a_wrong_sum_is_over_the_bound(join):
    assert kinds(planted(join=join)) == {"over_bound"}


def test_a_grid_that_is_too_coarse_is_over_the_bound():
    class Coarse(NCCLZ):
        def coding(self, desk, dtype, crossings, ranks):
            return Codes(self, desk, dtype, Grid(3 * self.eb, ranks), 0.0)

    assert kinds(Coarse(coder="table")) == {"over_bound"}


def test_an_owner_that_keeps_its_own_floats_differs_from_the_rest():
    """What the owner holds must be what the others open."""

    def leave(self, chunks):
        seconds, joined = Codes.leave(self, chunks)

        def nearly():
            total = joined()
            total[self._desk.me] = np.nextafter(total[self._desk.me], np.float32(np.inf))
            return total

        return seconds, nearly

    assert "ranks_differ" in kinds(planted(leave=leave))


def test_a_bit_flipped_under_way_is_an_error_and_no_sum():
    def sealing(self, chunk, again, far):
        seconds, made = Codes.sealing(self, chunk, again, far)

        def spoilt():
            frame = made()
            if self._desk.me == 3 and again:
                frame[-1] ^= np.uint8(4)
            return frame

        return seconds, spoilt

    with pytest.raises(PartError, match="FrameError.*damaged on the way"):
        run(planted(sealing=sealing), problem=PROBLEM, world=WORLD)


def test_ranks_with_other_chunks_are_an_error_that_says_so():
    class Uneven(NCCLZ):
        def spans(self, begin, items):
            return [span._replace(end=span.end - (span.begin == begin > 0))
                    for span in super().spans(begin, items)]  # fmt: skip

        def coding(self, desk, dtype, crossings, ranks):
            # Rank 1 cuts its parts otherwise.
            if desk.me == 1:
                self.__dict__["spans"] = lambda b, n: Uneven.spans(self, b, n)
            else:
                self.__dict__["spans"] = lambda b, n: NCCLZ.spans(self, b, n)
            return super().coding(desk, dtype, crossings, ranks)

    with pytest.raises(PartError, match="ranks disagree: a chunk of"):
        run(Uneven(coder="table"), problem=PROBLEM, world=WORLD)


def test_without_overlap_nothing_is_hidden_and_without_coding_nothing_is_saved():
    """The knobs that switch the mechanisms off do switch them off."""
    problem = CompressedAllReduce(items=60_000, relative=1e-2)
    slow = World.lan(4, latency_s=1e-5, bandwidth_Bps=2e6, jitter=0.0)
    time_s = {
        knobs: run(NCCLZ(**dict(knobs)), problem=problem, world=slow).metrics["time_s"]
        for knobs in (
            (("coder", "table"), ("chunk_items", 2000)),
            (("coder", "table"), ("chunk_items", 2000), ("overlap", False)),
            (("coder", "raw"), ("chunk_items", 2000)),
        )
    }
    ours, bare, raw = time_s.values()
    assert ours < 0.95 * bare < 0.5 * raw
