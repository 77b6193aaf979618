"""TAPER and its problem: input that cannot be is refused by name."""

from __future__ import annotations

import math

import pytest

from orrery import World
from orrery.base.errors import KnobError, OrreryError, PartError, UsageError
from orrery.systems.serve.baselines.fixed_width import FixedWidth
from orrery.systems.serve.baselines.irp_off import IRPOff
from orrery.systems.serve.baselines.oracle_width import OracleWidth
from orrery.systems.serve.problems.branch_engine import BranchEngine
from orrery.systems.serve.problems.branch_requests import BranchPolicy, Forked, Stage
from orrery.systems.serve.problems.llm_branches import LLMBranches, faults_of
from orrery.systems.serve.problems.tenant_desk import LinearSteps
from orrery.systems.serve.taper import StepFit, Taper
from orrery.systems.serve.taper.mini import MiniEngine, MiniModel, MiniRequest, Piece


@pytest.mark.parametrize("widths", [[], [0], [99], [1.5], [True], ["2"], [1, 1]])
def test_widths_that_cannot_be_are_refused(widths):
    class Odd(BranchPolicy):
        def widths(self, view):
            return widths

    engine = BranchEngine(LinearSteps(0.02, 0.0, 0.0), Odd(), blocks=200)
    with pytest.raises(PartError, match="widths gave"):
        engine.submit(Forked(0, 0.0, 5, [Stage(3, (4, 4))]), 0.0)
        while engine.next_s < math.inf:
            engine.advance()


@pytest.mark.parametrize("stages", [
    [], [Stage(0, (3,))], [Stage(2, (0,))], [Stage(-1)], [Stage(3, (2, -5))], [Stage(2.5)],
    [Stage(True)], [Stage("3")], [Stage(1, (math.nan,))], [Stage(1 << 40)],
])  # fmt: skip
def test_answers_that_cannot_be_are_refused(stages):
    with pytest.raises(UsageError, match="request 7"):
        Forked(7, 0.0, 5, stages)


@pytest.mark.parametrize("odd", [
    {"prompt_tokens": 0}, {"prompt_tokens": 1.5}, {"arrival_s": math.nan}, {"arrival_s": -1.0},
    {"ttft_s": 0.0}, {"ttft_s": math.inf}, {"tpot_s": -0.1}, {"tpot_s": math.nan}, {"widths": 0.5},
    {"most_tokens": 2}, {"tpot_s": "fast"},
])  # fmt: skip
def test_requests_that_cannot_be_are_refused(odd):
    with pytest.raises(UsageError, match=next(iter(odd)).replace("prompt_tokens", "prompt|length")):
        Forked(**{"id": 7, "arrival_s": 0.0, "prompt_tokens": 5, "stages": [Stage(3)]} | odd)


@pytest.mark.parametrize("knobs", [
    {"branches": (9, 3)}, {"lengths": (0, 5)}, {"requests": 0}, {"rate_per_s": 0.0},
    {"rate_per_s": math.inf}, {"burst": math.inf}, {"tpot_factor": math.nan}, {"branchy": 1.5},
    {"model": "Llama-3.1-405B", "tables": ""}, {"model": "no such model"}, {"allowed": 0.5},
    {"ttft_s": math.inf}, {"tpot_s": math.inf}, {"colour": 1}, {"tables": "/no/such/folder"},
    {"lengths": (1 << 30, 1 << 30)}, {"slots": 0}, {"chunk": -1},
])  # fmt: skip
def test_questions_that_cannot_be_are_refused(knobs):
    with pytest.raises(OrreryError):
        LLMBranches(**{"requests": 20, "tables": ""} | knobs).play(Taper(), 0)


def test_a_world_without_an_accelerator_is_refused():
    with pytest.raises(UsageError, match="accelerator"):
        LLMBranches(tables="").play(Taper(), 0, World.lan(2))


@pytest.mark.parametrize("knobs", [
    {"safety": 1.5}, {"spend": 0}, {"predictor": "tea leaves"}, {"age_steps": -1}, {"error": "big"},
    {"error": -1.0}, {"error": math.nan}, {"first_length": 0}, {"width": 3},
])  # fmt: skip
def test_wrong_knobs_are_refused(knobs):
    with pytest.raises(KnobError):
        Taper(**knobs)


def test_wrong_knobs_of_the_rivals_are_refused():
    for wrong in (lambda: FixedWidth(cap=0), lambda: FixedWidth(cap=2.5), lambda: IRPOff(cap=1),
                  lambda: OracleWidth(safety=2.0), lambda: OracleWidth(over=-0.1)):  # fmt: skip
        with pytest.raises(KnobError):
            wrong()


def test_engines_that_cannot_be_are_refused():
    steps = LinearSteps(0.02, 0.0, 0.0)
    for odd in ({"blocks": 0}, {"blocks": 9, "chunk": 0}, {"blocks": 9, "slots": 0}):
        with pytest.raises(UsageError):
            BranchEngine(steps, IRPOff(), **odd)
    with pytest.raises(UsageError, match="no step is due"):
        BranchEngine(steps, IRPOff(), blocks=9).advance()
    with pytest.raises(PartError, match="blocks"):
        BranchEngine(steps, IRPOff(), blocks=1).submit(Forked(0, 0.0, 99, [Stage(3)]), 0.0)
    with pytest.raises(PartError, match="no widths"):
        BranchPolicy().widths(None)
    for keep in (0.0, 1.5, math.nan):
        with pytest.raises(UsageError, match="keep"):
            StepFit(keep)


@pytest.mark.parametrize("prompt, answer", [
    ([], [Piece(3)]), ([1], []), ([1], [Piece(0)]), ([1], [Piece(2, ((),))]), ([1], [Piece(-1)]),
    ([1], [Piece(2, ((Piece(0, ((Piece(1),),)),),))]), ([1], [Piece(2), Piece(0)]),
    ([1], [Piece(1.5)]), ([99], [Piece(1)]), ([-1], [Piece(1)]), (["a"], [Piece(1)]),
    ([1], [Piece(1, ((Piece(1),),) * 59)]),
])  # fmt: skip
def test_answers_that_the_mini_engine_cannot_give_are_refused(prompt, answer):
    with pytest.raises(UsageError, match="request 4"):
        MiniEngine(MiniModel(), IRPOff()).serve([MiniRequest(4, prompt, answer)])


def test_a_mini_engine_without_room_says_so():
    with pytest.raises(UsageError, match="no block is free"):
        MiniEngine(MiniModel(), IRPOff(), blocks=1).serve([MiniRequest(0, [1, 2], [Piece(9)])])
    with pytest.raises(UsageError, match="at least one"):
        MiniEngine(MiniModel(), IRPOff(), blocks=0)


def test_a_request_larger_than_the_cache_is_refused_with_a_reason():
    problem = LLMBranches(requests=10, tables="", blocks=60)
    log = problem.play(Taper(), 0)
    assert log.refused and all("blocks" in reason for _, reason in log.refused)
    assert faults_of(log) == []
