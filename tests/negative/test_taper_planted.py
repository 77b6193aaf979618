"""TAPER's engine and books with faults planted in them: every check must notice."""

from __future__ import annotations

import pytest
from tests.systems.serve.branch_trees import Serial, Whimsical, random_requests

from orrery.systems.serve.baselines.irp_eager import IRPEager
from orrery.systems.serve.problems.branch_engine import BranchEngine
from orrery.systems.serve.problems.branch_requests import Forked, Stage
from orrery.systems.serve.problems.llm_branches import LLMBranches, faults_of
from orrery.systems.serve.problems.tenant_desk import LinearSteps
from orrery.systems.serve.taper import Taper
from orrery.systems.serve.taper.mini import MiniEngine, MiniModel

MODEL = MiniModel(seed=3)


class Unordered(MiniEngine):
    """A planted fault: the join takes the branches in another order."""

    def gather(self, strand, branches):
        super().gather(strand, branches[::-1])


class Leaky(MiniEngine):
    """A planted fault: the branches write into the block that they share."""

    def _fork(self, strand, branches):
        super()._fork(strand, branches)
        for branch in strand.branches:
            branch.sealed -= 1


@pytest.mark.parametrize("faulty", [Unordered, Leaky])
def test_planted_faults_of_the_engine_change_the_tokens(faulty):
    wrong = 0
    for seed in range(4):
        requests = random_requests(seed)
        faulty(MODEL, Whimsical(seed=seed)).serve(requests)
        wanted = [Serial(MODEL).answer(request) for request in random_requests(seed)]
        wrong += [request.said for request in requests] != wanted
    assert wrong >= 3


class Forgetful(BranchEngine):
    """A planted fault: a branch on pause loses its blocks."""

    def _end(self, now_s):
        done = super()._end(now_s)
        for row in self.running:
            for at in row.open[1:]:
                if row.own_blocks[at]:
                    self.pool.release_own(-9, row.own_blocks[at], 0)
                    row.own_blocks[at] = 0
        return done


def test_the_audit_sees_blocks_that_a_pause_takes_away():
    engine = Forgetful(LinearSteps(0.02, 1e-4, 1e-7), IRPEager(), blocks=200)
    engine.submit(Forked(0, 0.0, 100, [Stage(3, (30, 30)), Stage(3)]), 0.0)
    for _ in range(12):
        engine.advance()
    assert any("branch 1" in text for text in engine.faults())


def test_the_checker_sees_what_must_not_happen():
    log = LLMBranches(requests=12, tables="").play(Taper(), 0)
    assert faults_of(log) == []
    first = log.answered[0]
    short = type(first)(**{name: getattr(first, name) for name in first.__struct_fields__}
                        | {"tokens": first.tokens - 1})  # fmt: skip
    planted = {
        "lost": log._replace(answered=log.answered[1:]),
        "answered_twice": log._replace(answered=[*log.answered, first]),
        "tokens": log._replace(answered=[short, *log.answered[1:]]),
        "cache_books": log._replace(faults=["1 block lost"]),
        "no_reason": log._replace(answered=log.answered[1:], refused=[(first.id, "")]),
    }
    for kind, wrong in planted.items():
        assert kind in {violation.kind for violation in faults_of(wrong)}
