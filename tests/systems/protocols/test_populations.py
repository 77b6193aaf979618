"""The problem `stabilisation`, its schedulers and classics: closed forms, exactness, refusals."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from orrery import World, run
from orrery.base.errors import KnobError, PartError, UsageError
from orrery.base.rand import Stream, block
from orrery.systems.protocols.baselines.counting_population import (
    CountingPopulation,
    compile_levels,
)
from orrery.systems.protocols.baselines.leader_automaton import LeaderAutomaton
from orrery.systems.protocols.baselines.presburger_population import (
    PresburgerPopulation,
    compile_counts,
)
from orrery.systems.protocols.baselines.push_gossip import PushGossip
from orrery.systems.protocols.ordered_population_protocols import (
    OrderedPopulation,
    compile_head,
    compile_rankers,
)
from orrery.systems.protocols.problems import population_runs as runs
from orrery.systems.protocols.problems.languages import contains, parse
from orrery.systems.protocols.problems.population_graph import Graph, decide, decides
from orrery.systems.protocols.problems.population_tables import Protocol
from orrery.systems.protocols.problems.stabilisation import Stabilisation
from orrery.world import Crash


def words(alphabet: str, longest: int):
    for n in range(1, longest + 1):
        yield from map("".join, itertools.product(alphabet, repeat=n))


def harmonic(n: int) -> float:
    return sum(1 / k for k in range(1, n + 1))


# -- the random scheduler


PROTOCOLS = {
    "io-pp": lambda: compile_levels("#a >= 3", "ab"),
    "pp": lambda: compile_counts("#a > #b & #a % 3 = 1", "ab"),
    "io-pp[<]": lambda: compile_rankers("XaYb & Y.:a"),
    "pp[+1]": lambda: compile_head("palindrome"),
}


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("agents, few", [(7, 0), (300, 0), (300, 1000), (2, 1000)])
def test_layers_of_arrays_equal_the_plain_loop(name, agents, few, monkeypatch):
    monkeypatch.setattr(runs, "FEW", few)
    protocol = PROTOCOLS[name]()
    rng = Stream(agents, "test", name)
    word = "".join(rng.choice("ab") for _ in range(agents))
    fast = protocol.start(word)
    slow = fast.copy()
    for lot in range(20):
        me, other = runs.pairs_of(block(7, 1000 * lot, 200), agents, protocol.order)
        if protocol.order and not protocol.one_way:
            me, other = np.minimum(me, other), np.maximum(me, other)
        runs.play(protocol, fast, me, other)
        runs.play_one_by_one(protocol, slow, me, other)
        assert (fast == slow).all(), f"lot {lot}"
    assert agents == 2 or (fast != protocol.start(word)).any()


def test_pairs_are_uniform_and_never_of_one_agent():
    me, other = runs.pairs_of(block(3, 0, 200_000), 5, "<")
    counts = np.bincount(5 * me + other, minlength=25).reshape(5, 5)
    assert (np.diag(counts) == 0).all()
    off = counts[~np.eye(5, dtype=bool)]
    assert (np.abs(off - 10_000) < 500).all()
    me, other = runs.pairs_of(block(3, 0, 1000), 5, "+1")
    assert (np.abs(me - other) == 1).all() and set(me.tolist()) == set(range(5))


@pytest.mark.slow
def test_a_million_agents_agree():
    protocol = compile_levels("#a >= 1", "ab")
    states = np.full(1_000_000, protocol.initial["b"])
    states[123] = protocol.initial["a"]
    course = runs.simulate(protocol, states, seed=1, budget=100_000_000)
    assert course.answer == "yes"
    expected = 2 * (1e6 - 1) * (np.log(1e6) + 0.5772)
    assert course.settled == pytest.approx(expected, rel=0.15)


# -- the classics reproduce their own figures


@pytest.mark.parametrize("n", [20, 60])
def test_counting_to_one_takes_the_meetings_of_a_one_way_epidemic(n):
    protocol = compile_levels("#a >= 1", "ab")
    made = [runs.simulate(protocol, "a" + "b" * (n - 1), seed=s).settled for s in range(200)]
    # 2 (n - 1) H(n - 1); the standard deviation is about 2.2 n, so 200 runs give 3 % here.
    assert np.mean(made) == pytest.approx(2 * (n - 1) * harmonic(n - 1), rel=0.1)


@pytest.mark.parametrize("n", [20, 60])
def test_a_threshold_of_one_takes_the_meetings_of_a_two_way_epidemic(n):
    protocol = compile_counts("#a >= 1", "ab")
    made = [runs.simulate(protocol, "a" + "b" * (n - 1), seed=s).settled for s in range(200)]
    assert np.mean(made) == pytest.approx((n - 1) * harmonic(n - 1), rel=0.1)


def test_gathering_a_remainder_takes_n_minus_one_squared_meetings():
    n, made = 16, []
    protocol = compile_counts("#a % 2 = 0", "ab")
    for seed in range(200):
        states = protocol.start("a" * n)
        me, other = runs.pairs_of(block(seed, 0, 20 * n * n), n, "")
        for count, (u, v) in enumerate(zip(me, other, strict=True), 1):
            runs.play_one_by_one(protocol, states, np.array([u]), np.array([v]))
            if sum(protocol.labels[s][0][0] for s in states.tolist()) == 1:
                made.append(count)
                break
    assert len(made) == 200
    assert np.mean(made) == pytest.approx((n - 1) ** 2, rel=0.15)


@pytest.mark.parametrize("n", [2, 6, 15])
def test_a_leader_asks_two_questions_of_each(n):
    problem = Stabilisation(language="'(ab)*'", word=("ab" * n)[:n])
    made = run(LeaderAutomaton(), problem=problem, seed=1)
    assert made.violations == []
    assert made.metrics["interactions"] == 2 * (n - 1)


@pytest.mark.parametrize("compiled, language", [
    (compile_counts, "#a > #b"), (compile_counts, "#a % 3 = 1"), (compile_counts, "#a >= 3"),
    (compile_counts, "#a > #b | !(#b >= 2)"), (compile_levels, "#a >= 3"),
    (compile_levels, "!(#a >= 2) | #b >= 3"),
])  # fmt: skip
def test_the_classics_decide_every_word_up_to_length_5(compiled, language):
    every = list(words("ab", 5))
    truth = [contains(parse(language), word) for word in every]
    assert decides(compiled(language, "ab"), every, truth)[0] is None


def test_a_majority_that_forgets_the_tie_is_caught():
    good = compile_counts("#a > #b", "ab")

    def rule(side, me, other):
        return (me, other) if {me, other} == {(("a",),), (("b",),)} else good.rule(side, me, other)

    initial = {letter: good.labels[k] for letter, k in good.initial.items()}
    bad = Protocol(name="no ties", initial=initial, rule=rule, output=good.output, order="",
                   one_way=False)  # fmt: skip
    every = list(words("ab", 5))
    wrong, _ = decides(bad, every, [w.count("a") > w.count("b") for w in every])
    assert wrong is not None and wrong.answer == "unstable"


PARTS = [OrderedPopulation(), PresburgerPopulation(), CountingPopulation(), LeaderAutomaton()]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: type(part).__name__)
def test_all_answer_the_same_question(part):
    for seed in range(4):
        made = run(part, problem=Stabilisation(), seed=seed)
        assert made.violations == []
        word = made.decisions["word"]
        assert made.decisions["answer"] == (word.count("a") >= 2)


@pytest.mark.parametrize("part, language", [
    (PresburgerPopulation(), "X.:a"), (CountingPopulation(), "#a > #b"),
    (CountingPopulation(), "#a % 2 = 0"), (CountingPopulation(), "XaXb"),
    (LeaderAutomaton(), "palindrome"),
])  # fmt: skip
def test_what_a_class_cannot_decide_is_refused(part, language):
    with pytest.raises(KnobError, match=r"Stabilisation\.language.*(Angluin|does not take)"):
        run(part, problem=Stabilisation(language=language))


# -- the exact check against an obvious one


def obvious(protocol: Protocol, word: str) -> str:
    """Bottom components by networkx, over a graph made one step at a time."""
    nx = pytest.importorskip("networkx")
    graph = nx.DiGraph()
    todo = [tuple(protocol.labels[k] for k in protocol.start(word))]
    graph.add_node(todo[0])
    while todo:
        now = todo.pop()
        for i, j in itertools.permutations(range(len(now)), 2):
            if protocol.order and not protocol.one_way and i > j:
                continue
            if protocol.order == "+1" and abs(i - j) != 1:
                continue
            after = list(now)
            after[i], after[j] = protocol.rule(int(j > i), now[i], now[j])
            if tuple(after) not in graph:
                todo.append(tuple(after))
            graph.add_edge(now, tuple(after))
    answers = set()
    for part in nx.strongly_connected_components(graph):
        if all(to in part for at in part for to in graph.successors(at)):
            said = {protocol.output(label) for at in part for label in at}
            answers.add("unstable" if len(said) > 1 else "yes" if said == {True} else "no")
    if "unstable" in answers:
        return "unstable"
    return answers.pop() if len(answers) == 1 else "split"


def random_protocol(rng: Stream) -> Protocol:
    table = {}

    def rule(side, me, other):
        key = (side, me, other)
        if key not in table:
            table[key] = (rng.below(3),) if rng.random() < 0.4 else me
        return table[key], other

    says = [rng.random() < 0.5 for _ in range(3)]
    return Protocol(name="random", initial={"a": (0,), "b": (1,)}, rule=rule,
                    output=lambda label: says[label[0]])  # fmt: skip


def test_the_verdict_is_that_of_the_bottom_components():
    rng = Stream(4, "test", "protocols")
    seen = set()
    for _ in range(80):
        protocol = random_protocol(rng)
        for word in ("a", "ab", "bab", "abba"):
            answer = decide(protocol, word).answer
            assert answer == obvious(protocol, word), word
            seen.add(answer)
    assert seen >= {"yes", "no", "unstable"}


def test_runs_that_settle_to_both_answers_are_told_apart():
    def rule(side, me, other):
        return other, other  # takes over what it sees

    protocol = Protocol(name="copies", initial={"a": (1,), "b": (0,)}, rule=rule,
                        output=lambda label: bool(label[0]))  # fmt: skip
    assert decide(protocol, "aba").answer == obvious(protocol, "aba") == "split"
    assert decide(protocol, "aaa").answer == "yes"


@pytest.mark.parametrize("language, word", [("XaYb", "bbab"), ("XaXa & Y.:b", "abab")])
def test_a_compiled_graph_is_that_of_the_plain_search(language, word):
    protocol = compile_rankers(language)
    assert decide(protocol, word).answer == obvious(protocol, word)
    head = compile_head("palindrome")
    assert decide(head, "aba").answer == obvious(head, "aba") == "yes"


def test_silence_is_proved_exactly():
    rng = Stream(9, "test", "silence")
    seen = {True: 0, False: 0}
    for _ in range(300):
        protocol = random_protocol(rng)
        size = 1 + rng.below(5)
        states = np.array([protocol.number((rng.below(3),)) for _ in range(size)])
        silent = protocol.silent(states)
        assert silent == (len(Graph(protocol, states, 10_000).codes) == 1)
        seen[silent] += 1
    assert min(seen.values()) > 10


# -- the problem


def test_a_part_that_lies_about_its_proof_is_caught():
    class Hasty(OrderedPopulation):
        def settled(self, language, alphabet, states):
            return True  # takes the first consensus for the last

    kinds = set()
    for seed in range(6):
        problem = Stabilisation(language="XaYb", word="bbbbbbbbbbba", poll_s=0.02, watch_s=6.0)
        made = run(Hasty(), problem=problem, seed=seed)
        kinds |= {violation.kind for violation in made.violations}
    assert kinds >= {"wrong_consensus", "left_consensus"}


def test_agents_that_do_not_freeze_lose_meetings():
    class Thawed(PresburgerPopulation):
        async def finish(self):
            self.frozen = False  # answers others while its own meeting is open
            await super().finish()

    problem = Stabilisation(language="#a % 5 = 1", word="a" * 11, budget_s=20.0)
    found = set()
    for seed in range(4):
        assert run(PresburgerPopulation(), problem=problem, seed=seed).violations == []
        made = run(Thawed(period_s=0.002), problem=problem, seed=seed)
        found |= {violation.kind for violation in made.violations}
    assert found & {"wrong_consensus", "undecided"}


def test_a_storm_of_losses_and_restarts_is_survived():
    world = World.lan(5, drop=0.1).with_faults(
        Crash(node=0, at_s=0.4, until_s=1.0), Crash(node=3, at_s=0.7, until_s=1.4)
    )
    problem = Stabilisation(language="#a % 3 = 1", word="aabaa")
    for seed in range(6):
        made = run(PresburgerPopulation(), problem=problem, world=world, seed=seed)
        assert made.violations == [], f"seed {seed}"


def test_bad_input_is_named():
    with pytest.raises(PartError, match="inherit from PopulationAgent"):
        run(PushGossip(), problem=Stabilisation())
    for knobs, said in (
        ({"word": "abc"}, "unknown"), ({"word": "ab", "alphabet": ""}, "alphabet"),
        ({"language": "Xc"}, "not in"), ({"alphabet": "a1"}, "alphabet"),
    ):  # fmt: skip
        with pytest.raises(KnobError, match=said):
            run(OrderedPopulation(), problem=Stabilisation(**knobs))
    with pytest.raises(KnobError, match=r"Stabilisation\.word"):
        run(OrderedPopulation(), problem=Stabilisation(word="ab"), world=World.lan(3))
    with pytest.raises(KnobError, match=r"Stabilisation\.proof"):
        run(OrderedPopulation(), problem=Stabilisation(proof=True), world=World.lan(30))
    for bad in ({"budget": 0}, {"budget": True}, {"scheduler": "round"}):
        with pytest.raises(UsageError, match=next(iter(bad))):
            runs.simulate(compile_rankers("Xa"), "ab", **bad)
    for word in ("", "abc", 7):
        with pytest.raises((UsageError, TypeError), match="word|letter|len|agents"):
            decide(compile_rankers("Xa"), word)
    with pytest.raises(UsageError, match="most"):
        decide(compile_rankers("Xa"), "ab", most=0)
    with pytest.raises(UsageError, match="at most 62"):
        decide(compile_rankers("Xa"), "ab" * 40)
    with pytest.raises(UsageError, match="order"):
        Protocol(name="x", initial={"a": (0,)}, rule=lambda *_: _, output=bool, order=">")
    with pytest.raises(UsageError, match="alphabet is empty"):
        Protocol(name="x", initial={}, rule=lambda *_: _, output=bool)
