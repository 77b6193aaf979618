"""Ordered population protocols: compilers proved word by word, heads, lassos, agents that run."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from orrery import World, run
from orrery.base.errors import KnobError, UsageError
from orrery.base.rand import Stream
from orrery.systems.protocols.ordered_population_protocols import (
    Dfa,
    Machine,
    OrderedPopulation,
    compile_head,
    compile_rankers,
    dfa_of,
    head_protocol,
    in_da,
)
from orrery.systems.protocols.ordered_population_protocols.regular import minimal
from orrery.systems.protocols.problems.languages import contains, parse
from orrery.systems.protocols.problems.population_graph import decide, decides, well_specified
from orrery.systems.protocols.problems.population_runs import simulate
from orrery.systems.protocols.problems.population_tables import Protocol
from orrery.systems.protocols.problems.stabilisation import Stabilisation
from orrery.world import Crash

ID = "ordered-population-protocols"

# (formula, the same as a regular expression): all in the class, told apart by their automata.
LIGHT = {
    "!(Xb < Ya)": "a*b*",
    "X.:a": "a.*",
    "Y.:b": ".*b",
    "Xa": ".*a.*",
    "!XaYb": "a.*|b*",
    "XaYb": "b.*a.*",
    "XaXa": ".*a.*a.*",
    "!XaXa": "b*(a?)b*",
    "Xa & Xb": ".*a.*b.*|.*b.*a.*",
    "!Xb": "a*",
    "X.:a | !Xa": "a.*|b*",
    "Xa < Xb": "a.*b.*",
    "XaXb": ".*a.*b.*",
    "Xa & !XaXa": "b*ab*",
}
HEAVY = {
    "X.:a & Y.:b": "a.*b|ab",
    "XaXbXa": ".*a.*b.*a.*",
    "XaXb < Ya": ".*a.*b.*a.*",
    "(X.:a & !Y.:a) | (!X.:a & Y.:a)": "a.*b|b.*a",
}


def words(alphabet: str, longest: int, shortest: int = 1):
    for n in range(shortest, longest + 1):
        yield from map("".join, itertools.product(alphabet, repeat=n))


def first_wrong(protocol, language, alphabet, longest):
    """The first word that the protocol does not decide rightly, by its whole graph."""
    formula = parse(language)
    every = list(words(alphabet, longest))
    return decides(protocol, every, [contains(formula, word) for word in every])[0]


# -- 1: the compiler to IO-PP[<]


def test_the_formulas_mean_what_their_expressions_mean():
    for language, expression in {**LIGHT, **HEAVY}.items():
        dfa = dfa_of(expression)
        assert in_da(dfa).inside, f"{expression} is in the class"
        for word in words("ab", 8):
            assert contains(parse(language), word) == dfa.accepts(word), word
    minimals = {dfa_of(expression) for expression in [*LIGHT.values(), *HEAVY.values()]}
    assert len(minimals) >= 12, "so many different languages"
    assert len({dfa_of(expression) for expression in LIGHT.values()}) >= 12


@pytest.mark.works_when(ID, 1)
@pytest.mark.parametrize("language", [*LIGHT, *HEAVY])
def test_compiled_rankers_decide_every_word_up_to_length_5(language):
    protocol = compile_rankers(language)
    assert protocol.kind == "IO-PP[<]"
    assert first_wrong(protocol, language, "ab", 5) is None


@pytest.mark.works_when(ID, 1)
@pytest.mark.parametrize("language", ["XaYb", "XcYb < XcYa", "XaY[bc]:b"])
def test_compiled_rankers_over_three_letters(language):
    assert first_wrong(compile_rankers(language, "abc"), language, "abc", 4) is None


@pytest.mark.slow
@pytest.mark.works_when(ID, 1)
@pytest.mark.parametrize("language", LIGHT)
def test_compiled_rankers_decide_every_word_up_to_length_7(language):
    assert first_wrong(compile_rankers(language), language, "ab", 7) is None


@pytest.mark.parametrize("language", ["XaYb", "!XaYb", "XaYb & Y.:a"])
def test_without_blame_and_conflict_two_steps_go_wrong(language):
    wrong = first_wrong(compile_rankers(language, "ab", repair=False), language, "ab", 4)
    assert wrong is not None
    assert wrong.answer == "unstable"
    assert wrong.lasso is not None


@pytest.mark.parametrize("seed", range(12))
def test_random_formulas_of_three_steps_are_decided(seed):
    rng = Stream(seed, "test", "formula")
    language = "".join(rng.choice("XY") + rng.choice("ab.") for _ in range(3))
    assert first_wrong(compile_rankers(language), language, "ab", 4) is None, language


# -- 3: heads on PP[+1]


@pytest.mark.works_when(ID, 3)
@pytest.mark.parametrize("language, longest", [("'(ab)*'", 6), ("palindrome", 4)])
def test_a_walking_head_decides_every_short_word(language, longest):
    protocol = compile_head(language)
    assert protocol.kind == "PP[+1]"
    assert first_wrong(protocol, language, "ab", longest) is None
    assert in_da("(ab)*").inside is False, "which IO-PP[<] cannot decide"


@pytest.mark.works_when(ID, 3)
def test_over_the_budget_is_undecided_and_never_right():
    course = simulate(compile_head("palindrome"), "abaababa", budget=20)
    assert course.answer == "undecided"
    assert decide(compile_head("palindrome"), "abba", most=10).answer == "undecided"
    every = ["abba"]
    wrong, _ = decides(compile_head("palindrome"), every, [True], most=10)
    assert wrong is not None, "undecided does not count as right"
    made = run(OrderedPopulation(), problem=Stabilisation(language="X.:a", budget_s=0.1))
    assert [violation.kind for violation in made.violations] == ["undecided"]
    assert made.metrics["right"] == 0.0


@pytest.mark.works_when(ID, 3)
@pytest.mark.parametrize("word", ["abc", "aabbcc", "aabcc", "abcabc", "aaabbbccc"])
def test_equal_thirds_under_a_random_schedule(word):
    course = simulate(compile_head("anbncn", "abc"), word, seed=3, budget=200_000)
    assert course.answer == ("yes" if contains(parse("anbncn"), word) else "no")


@pytest.mark.slow
@pytest.mark.works_when(ID, 3)
def test_longer_words_under_random_schedules():
    rng = Stream(5, "test", "words")
    for n in range(1, 10):
        for _ in range(6):
            half = "".join(rng.choice("ab") for _ in range((n + 1) // 2))
            mirror = half + half[::-1][n % 2 :]
            other = "".join(rng.choice("ab") for _ in range(n))
            for word in (mirror, other):
                course = simulate(compile_head("palindrome"), word, seed=n, budget=500_000)
                assert course.answer == ("yes" if word == word[::-1] else "no"), word
    for word in ("aaabbbccc", "aaabbbcc", "aabbbbccc", "abcabcabc", "aaabbbcca", "ccc", "abcc"):
        course = simulate(compile_head("anbncn", "abc"), word, seed=1, budget=500_000)
        assert course.answer == ("yes" if contains(parse("anbncn"), word) else "no"), word


def test_a_machine_that_forgets_to_rewind_is_caught():
    def step(state, symbol, at_left, at_right):  # judges by the last letter that it sees
        return symbol == "a" if at_right else (0, symbol, 1)

    every = list(words("ab", 3))
    wrong, _ = decides(
        head_protocol(Machine("wrong", 0, step, "ab")), every, [w[0] == "a" for w in every]
    )
    assert wrong is not None and wrong.word == "ab"


# -- 4: no small protocol decides (ab)*


def raw(states: int, start: tuple[int, int], rules: tuple[int, ...], says: tuple[bool, ...]):
    """An IO-PP[<] protocol from its table: rules[side, me, other] is what `me` becomes."""

    def rule(side, me, other):
        return (rules[(side * states + me[0]) * states + other[0]],), other

    initial = {"a": (start[0],), "b": (start[1],)}
    return Protocol(name="raw", initial=initial, rule=rule, output=lambda label: says[label[0]])


SHORT = list(words("ab", 6))
TRUTH = [word == "ab" * (len(word) // 2) for word in SHORT]


def refuted(protocol) -> str:
    """The word that shows that a protocol does not decide (ab)*; longer ones where it must."""
    wrong, _ = decides(protocol, SHORT, TRUTH)
    if wrong is None:
        longer = list(words("ab", 10, shortest=7))
        wrong, _ = decides(protocol, longer, [w == "ab" * (len(w) // 2) for w in longer])
    assert wrong is not None, "the theorem says that there is such a word"
    return wrong.word


@pytest.mark.works_when(ID, 4)
def test_no_protocol_of_two_states_decides_ab_star():
    longest = 0
    # Renaming the states makes the letter a start in 0; a constant output never tells words apart.
    for second, rules, says in itertools.product(
        (0, 1), itertools.product((0, 1), repeat=8), ((True, False), (False, True))
    ):
        longest = max(longest, len(refuted(raw(2, (0, second), rules, says))))
    assert longest <= 6


def sample_of_three(count: int, seed: int) -> int:
    rng = Stream(seed, "test", "three")
    longest = 0
    for _ in range(count):
        rules = tuple(rng.below(3) for _ in range(18))
        says = tuple(rng.random() < 0.5 for _ in range(3))
        longest = max(longest, len(refuted(raw(3, (0, 1), rules, says))))
    return longest


@pytest.mark.works_when(ID, 4)
def test_no_sampled_protocol_of_three_states_decides_ab_star():
    assert sample_of_three(300, seed=1) <= 6


@pytest.mark.slow
@pytest.mark.works_when(ID, 4)
def test_no_protocol_of_a_larger_sample_decides_ab_star():
    assert sample_of_three(20_000, seed=2) <= 10


def test_the_search_finds_the_languages_that_two_states_can_decide():
    # The same search, asked for "contains a", must find some: the refutation above can fail.
    truth = ["a" in word for word in SHORT]
    found = [
        rules for rules in itertools.product((0, 1), repeat=8)
        if decides(raw(2, (1, 0), rules, (False, True)), SHORT, truth)[0] is None
    ]  # fmt: skip
    assert found


# -- 5: lassos and refusals


def mutated(language: str, change) -> Protocol:
    good = compile_rankers(language)

    def rule(side, me, other):
        return change(side, me, *good.rule(side, me, other)), other

    initial = {letter: good.labels[number] for letter, number in good.initial.items()}
    return Protocol(name=f"mutant of {language}", initial=initial, rule=rule, output=good.output)


def flips(side, before, after, other):
    """A witness changes its mind whenever it looks at somebody."""
    return (*after[:3], tuple(not said for said in before[3]))


def never_marks(side, before, after, other):
    """Nobody gives way to a better candidate."""
    return (after[0], before[1], *after[2:])


@pytest.mark.works_when(ID, 5)
@pytest.mark.parametrize("change", [flips, never_marks])
def test_a_broken_protocol_gives_a_lasso_that_can_be_walked(change):
    protocol = mutated("X.:a", change)
    found = decide(protocol, "abb")
    assert found.answer == "unstable"
    lasso = found.lasso
    assert len(set(lasso.says)) > 1, "it passes through different outputs for ever"
    start = tuple(protocol.labels[number] for number in protocol.start("abb"))
    assert lasso.prefix[0] == start and lasso.prefix[-1] == lasso.ring[0]
    walk = [*lasso.prefix, *lasso.ring[1:], lasso.ring[0]]
    for now, after in itertools.pairwise(walk):
        steps = {
            (*now[:i], protocol.rule(int(j > i), now[i], now[j])[0], *now[i + 1 :])
            for i, j in itertools.permutations(range(len(now)), 2)
        }
        assert after in steps
    assert decide(compile_rankers("X.:a"), "abb").lasso is None


@pytest.mark.works_when(ID, 5)
def test_all_lengths_are_refused_with_the_theorem():
    def rule(side, me, other):
        return me, other

    two_way = Protocol(name="two-way", initial={"a": (0,)}, rule=rule, output=bool, one_way=False)
    with pytest.raises(UsageError, match=r"undecidable for PP\[<\].*Ordered Agents"):
        well_specified(two_way)
    with pytest.raises(UsageError, match="conditionally decidable"):
        well_specified(compile_rankers("Xa"))
    with pytest.raises(UsageError, match=r"IO-PP\[\+1\]"):
        well_specified(compile_head("palindrome"))


# -- 6: random schedules, and agents that run


def counts(language: str, word: str, seeds: int) -> list[int]:
    right = "yes" if contains(parse(language), word) else "no"
    found = [simulate(compile_rankers(language), word, seed=seed) for seed in range(seeds)]
    assert {course.answer for course in found} == {right}
    return [course.interactions for course in found]


@pytest.mark.works_when(ID, 6)
@pytest.mark.parametrize("language", ["!(Xb < Ya)", "X.:a"])
def test_a_hundred_agents_converge_for_twenty_seeds(language, record_property):
    for word in ("a" * 50 + "b" * 50, "ab" * 50):
        made = counts(language, word, 20)
        record_property(f"{language} on {word[:4]}…", f"mean {np.mean(made):.0f} interactions")
        # Everybody has to meet one certain witness, so about n^2 ln n and no more than a few times.
        assert 100 < np.mean(made) < 10 * 100**2 * np.log(100)


@pytest.mark.slow
@pytest.mark.works_when(ID, 6)
@pytest.mark.parametrize("language", ["!(Xb < Ya)", "X.:a"])
def test_a_thousand_agents_converge_for_twenty_seeds(language):
    made = counts(language, "a" * 500 + "b" * 500, 20)
    assert np.mean(made) < 10 * 1000**2 * np.log(1000)


@pytest.mark.works_when(ID, 6)
@pytest.mark.parametrize("language, word, answer", [
    ("!(Xb < Ya)", "a" * 10 + "b" * 10, True), ("X.:a", "ba" * 10, False),
    ("XaYb", "b" * 5 + "a" * 5, True),
])  # fmt: skip
def test_agents_as_nodes_agree_in_virtual_time(language, word, answer):
    problem = Stabilisation(language=language, word=word)
    made = run(OrderedPopulation(), problem=problem, seed=2)
    assert made.violations == []
    assert made.decisions["answer"] is answer
    assert made.metrics["interactions"] > len(word)


@pytest.mark.slow
@pytest.mark.works_when(ID, 6)
@pytest.mark.parametrize("language", ["!(Xb < Ya)", "X.:a"])
def test_a_hundred_nodes_agree_in_virtual_time(language):
    problem = Stabilisation(language=language, word="a" * 50 + "b" * 50)
    for seed in range(3):
        made = run(OrderedPopulation(), problem=problem, seed=seed)
        assert made.violations == [] and made.decisions["answer"] is True


def test_an_adversary_that_stays_fair_changes_nothing():
    for word in ("bbba", "abab", "aaaa"):
        right = "yes" if contains(parse("XaYb"), word) else "no"
        made = {simulate(compile_rankers("XaYb"), word, seed=s, scheduler="biased").answer
                for s in range(10)}  # fmt: skip
        assert made == {right}


def test_agents_without_repair_are_caught_by_the_proof():
    problem = Stabilisation(language="XaYb", word="aba", proof=True)
    made = run(OrderedPopulation(repair=False), problem=problem, seed=1)
    assert "not_proved" in {violation.kind for violation in made.violations}
    assert run(OrderedPopulation(), problem=problem, seed=1).violations == []


def test_the_first_claim_fails_with_the_mechanism_off():
    problem = Stabilisation(language="random", proof=True, budget_s=10.0)
    made = [run(OrderedPopulation(repair=False), problem=problem, world=World.lan(5), seed=seed)
            for seed in range(40)]  # fmt: skip
    assert sum(not each.ok for each in made) >= 3


def test_a_restart_loses_no_state():
    problem = Stabilisation(language="XaYb", word="bbaab")
    world = World.lan(5).with_faults(
        Crash(node=1, at_s=0.3, until_s=0.9), Crash(node=2, at_s=0.5, until_s=1.5)
    )
    for seed in range(8):
        made = run(OrderedPopulation(), problem=problem, world=world, seed=seed)
        assert made.violations == [], f"seed {seed}"


@pytest.mark.slow
@pytest.mark.works_when(ID, 6)
@pytest.mark.parametrize("language", ["!(Xb < Ya)", "X.:a"])
def test_fifty_agents_as_real_tasks(language):
    problem = Stabilisation(language=language, word="a" * 25 + "b" * 25, budget_s=120.0)
    made = run(OrderedPopulation(), problem=problem, engine="processes", seed=1,
               nodes_per_process=25)  # fmt: skip
    assert made.violations == []
    assert made.decisions["answer"] is True


@pytest.mark.slow
def test_agents_on_processes_survive_a_real_kill():
    problem = Stabilisation(language="XaYb", word="bbaab", budget_s=60.0)
    world = World.lan(5).with_faults(Crash(node=1, at_s=0.5, until_s=1.2))
    virtual = run(OrderedPopulation(), problem=problem, world=world, seed=3)
    real = run(OrderedPopulation(), problem=problem, world=world, seed=3, engine="processes")
    assert real.violations == []
    assert real.decisions == virtual.decisions


# -- bad input


@pytest.mark.parametrize("language, said", [
    ("", "empty"), ("Xa &", "the end"), ("Za", "cannot read"), ("Xa < ", "a ranker"),
    ("(Xa", r"\)"), ("#a >= 1000", "out of range"), ("#a % 0 = 0", "out of range"),
    ("Xd", "not in"), ("#a > #b", "unambiguous"), ("'(ab)*'", "in_da"), ("Xa" * 9, "at most 8"),
    ("(" * 5000 + "Xa", "at most"),
])  # fmt: skip
def test_bad_languages_are_named(language, said):
    with pytest.raises(KnobError, match=said):
        run(OrderedPopulation(), problem=Stabilisation(language=language))


def test_other_bad_input_is_named():
    with pytest.raises(KnobError, match="OrderedPopulation.order"):
        OrderedPopulation(order=">")
    with pytest.raises(UsageError, match="repair=False"):
        OrderedPopulation(order="+1", repair=False).protocol("palindrome", "ab")
    for expression in ("(a", "a)", "*a", "c", "[", "a" * 600):
        with pytest.raises(UsageError, match="expression"):
            dfa_of(expression)
    with pytest.raises(UsageError, match="alphabet"):
        dfa_of("a", "aa")
    with pytest.raises(UsageError, match=r"step\[0\]"):
        minimal(Dfa(alphabet="ab", step=((0, 5),), finals=frozenset()))
    with pytest.raises(UsageError, match="does not halt"):
        head_protocol(Machine("loop", 0, lambda *_: (0, "a", 1), "a"))
    with pytest.raises(UsageError, match="compiler takes"):
        compile_head("Xa")
