"""TAPER with its mechanism off, and the rules that only the mechanism keeps."""

from __future__ import annotations

import math

from orrery.base.rand import Stream
from orrery.systems.serve.baselines.irp_eager import IRPEager
from orrery.systems.serve.baselines.irp_off import IRPOff
from orrery.systems.serve.problems.branch_engine import BranchEngine, Live
from orrery.systems.serve.problems.branch_requests import BranchView, Forked, Stage
from orrery.systems.serve.problems.llm_branches import LLMBranches
from orrery.systems.serve.problems.tenant_desk import LinearSteps
from orrery.systems.serve.taper import Taper


def test_with_the_mechanism_off_it_is_eager_or_off():
    problem = LLMBranches(requests=30, tables="")
    off, eager = (problem.play(part, 1, notes=True) for part in (Taper(regulate=False), IRPEager()))
    assert off.notes == eager.notes
    none, serial = (problem.play(part, 1, notes=True) for part in (Taper(safety=0.0), IRPOff()))
    assert none.notes == serial.notes


# -- fairness, and who is lost


def live(number, *, branches=0, lead_s=0.5, pace_s=0.03, context=500, waited=0, made=10):
    """A request in a step at time 100: a chat, or one in the middle of a fork."""
    stages = [Stage(5, (100,) * branches)] if branches else [Stage(300)]
    row = Live(Forked(number, 90.0, context, stages, tpot_s=pace_s, ttft_s=1.0))
    row.context, row.due_s, row.waited = context, 100.0 + lead_s, waited
    row.open, row.made = list(range(branches)), [made] * branches
    row.own_tokens = row.phase_tokens = made * branches
    return row


def decide(rows, **knobs):
    part = Taper(predictor="profile", **knobs)
    part.start()
    seconds = lambda prompts, n, kv: 0.02 + 4e-4 * n + 1e-8 * kv  # noqa: E731
    return part.widths(BranchView(100.0, rows, (), seconds)).tolist()


def test_a_chat_that_is_in_time_alone_is_in_time_beside_branches():
    """What all chats of a batch attain with branches one by one, they attain with TAPER's."""

    def late(policy, seed):
        rng = Stream(seed, "fair", "batch")
        engine = BranchEngine(
            LinearSteps(0.02, 4e-4, 2e-8), policy, blocks=9000, chunk=100_000, slots=64
        )
        for number in range(12):
            pace_s = rng.uniform(0.026, 0.04)
            branches = tuple(20 + rng.below(60) for _ in range(4 + rng.below(12)))
            stages = [Stage(5, branches), Stage(5)] if number % 2 else [Stage(60 + rng.below(90))]
            engine.submit(Forked(number, 0.0, 1, stages, tpot_s=pace_s, ttft_s=9.0), 0.0)
        done = []
        while engine.next_s < math.inf:
            done += engine.advance()
        return {each.id for each in done if not each.branchy and not each.met}

    seeds = range(6)
    alone = [late(IRPOff(), seed) for seed in seeds]
    assert [late(Taper(predictor="profile"), seed) for seed in seeds] == alone
    assert any(late(IRPEager(), seed) != lost for seed, lost in zip(seeds, alone, strict=True))


def test_who_has_least_left_comes_first_unless_another_has_waited_long():
    chat, short = live(0, lead_s=0.03), live(1, branches=16, made=40)
    _, first, second = decide([chat, short, live(2, branches=16)])
    assert first >= 2 * second >= 2
    waits = live(2, branches=16, waited=300)
    _, young, old = decide([chat, short, waits])
    assert old >= 2 * young >= 2
    _, young, old = decide([chat, short, waits], age_steps=1e9)
    assert young >= 2 * old >= 2


def test_one_that_is_lost_does_not_forbid_every_branch():
    rows = [live(0, lead_s=-9.0), live(1, lead_s=0.2), live(2, branches=16)]
    assert decide(rows)[2] > 4
    assert decide(rows, recover=1030.0)[2] == 1, "if it counted as one that may catch up"
