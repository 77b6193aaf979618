"""Classical checkers: published example histories, and what they refuse."""

from __future__ import annotations

import pytest

from orrery import World, run
from orrery.base.errors import KnobError, SpecError
from orrery.base.rand import Stream
from orrery.check import History
from orrery.systems.protocols.baselines.classical_checkers import ClassicalCheckers
from orrery.systems.protocols.problems.history_cases import Case, case_of, random_case
from orrery.systems.protocols.problems.history_model import MODELS, HistoryModel

JUDGE = ClassicalCheckers()


def ops(*lines):
    """Short histories: each line is a process, each word such as w(x)1 or r(y)0 an operation."""
    found = []
    for process, line in enumerate(lines):
        for word in line.split():
            value = int(word[4:])
            found.append((process, "write" if word[0] == "w" else "read", word[2], value or None))
    return found


@pytest.mark.parametrize(
    ("history", "keeps", "breaks"),
    [
        # Ahamad et al. (1995): causal, and not sequentially consistent.
        (ops("w(x)1 r(x)1 r(x)2", "w(x)2 r(x)2 r(x)1"), "causal pram", "sequential"),
        # The same: PRAM and not causal.
        (ops("w(x)1", "r(x)1 w(y)2", "r(y)2 r(x)0"), "pram", "causal"),
        # Store buffering (Dekker): two processes miss each other's write.
        (ops("w(x)1 r(y)0", "w(y)1 r(x)0"), "causal pram", "sequential linearizable"),
        # Independent reads of independent writes.
        (ops("w(x)1", "w(y)1", "r(x)1 r(y)0", "r(y)1 r(x)0"), "causal pram", "sequential"),
        # Lipton and Sandberg: writes of one process are seen in their order by all others.
        (ops("w(x)1 w(y)1", "r(y)1 r(x)0"), "monotonic_reads", "pram causal"),
        (ops("w(x)1 w(x)2", "r(x)2 r(x)1"), "read_your_writes", "pram"),
        # Terry et al. (1994): the four guarantees.
        (ops("w(x)1 r(x)0"), "monotonic_reads", "read_your_writes pram"),
        (ops("w(x)1", "r(x)1 r(x)0"), "read_your_writes", "monotonic_reads"),
        (ops("w(x)1 w(x)2 r(x)2 r(x)1"), "monotonic_writes", "read_your_writes pram"),
        # Nobody reads what depends on the reading.
        (ops("r(x)2 w(x)1", "r(x)1 w(x)2"), "", "writes_follow_reads eventual causal"),
        (ops("r(x)7"), "", " ".join(MODELS)),
    ],
)
def test_published_histories(history, keeps, breaks):
    said = JUDGE(case_of(history)).verdicts
    assert {model: said[model] for model in keeps.split()} == dict.fromkeys(keeps.split(), True)
    assert {model: said[model] for model in breaks.split()} == dict.fromkeys(breaks.split(), False)


def test_eventual_consistency_looks_at_settled_reads_only():
    history = ops("w(x)1", "w(x)2", "r(x)1", "r(x)2")
    assert JUDGE(case_of(history)).verdicts["eventual"]
    assert JUDGE(case_of(history, (2,))).verdicts["eventual"]
    assert not JUDGE(case_of(history, (2, 3))).verdicts["eventual"]
    assert not JUDGE(case_of(ops("w(x)1", "r(x)0"), (1,))).verdicts["eventual"]


def test_the_known_hierarchy_on_random_histories():
    rng = Stream(1, "test", "hierarchy")
    for _ in range(300):
        said = JUDGE(random_case(rng, 8)).verdicts
        chain = [said[name] for name in ("linearizable", "sequential", "causal", "pram")]
        assert chain == sorted(chain)


def test_a_spent_budget_says_so_and_bad_input_is_named():
    history = ops(*[" ".join(f"w(x){10 * p + n}" for n in range(1, 5)) for p in range(4)], "r(x)99")
    history[-1] = (4, "read", "x", 11)
    history.append((4, "read", "x", 12))
    assert ClassicalCheckers(budget=3)(case_of(history)).verdicts["pram"] is None
    with pytest.raises(KnobError, match=r"ClassicalCheckers\.budget"):
        ClassicalCheckers(budget=0)
    other = History()
    other.ok(other.invoke(0, "add", "x", 1))
    with pytest.raises(SpecError, match=r"operation 0\.f"):
        JUDGE(Case(other))
    long = case_of([(0, "write", "x", n) for n in range(1, 9)])
    with pytest.raises(SpecError, match="the reference takes at most 7"):
        JUDGE.reference(long)


def test_it_answers_the_problem():
    made = run(JUDGE, problem=HistoryModel(cases=10), world=World.lan(1), seed=1)
    assert made.violations == [] and made.metrics["agreement"] == 1.0
