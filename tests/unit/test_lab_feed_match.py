"""Joining entries, matching papers to systems, and claims at odds; with traps for each."""

from __future__ import annotations

import pytest

from orrery.lab.claims import Claim
from orrery.lab.discover import Entry
from orrery.lab.feed import Feed, Group, Paper, judge_feeds, merge
from orrery.lab.feed.claims import claims_gain, contradictions, statuses
from orrery.lab.feed.match import Matcher
from orrery.lab.feed.similar import Weights, cosine, head_of, numbers, plain, title_ratio
from orrery.lab.stems import Stem

CACHE = """We present a cache that keeps attention keys of earlier turns on flash storage, hashes
chained blocks, and evicts by expected reuse. Experiments with chat traces show shorter prefill and
fewer recomputed tokens on accelerators with little memory, for several models and batch sizes."""
CACHE_2 = """Attention keys of earlier turns are kept on flash storage in our cache. Chained blocks
are hashed, eviction follows expected reuse, and chat traces with several models show less prefill
and fewer recomputed tokens, also with small batch sizes. We prove that eviction is optimal."""
ROBOT = """A robot arm learns to fold towels from videos of people. Contrastive pretraining on
household scenes yields grippers that generalise to new fabrics, and a human study finds the folds
neat. The policy runs at thirty hertz and recovers from slips without any further demonstration."""


def paper(title, abstract=CACHE, **more):
    return Paper(title=title, abstract=abstract, **more)


def entry(id, name, title, job="", arxiv="", claims=(), problem="", **more):
    stem = Stem(id=id, name=name, room="serve", title=title, job=job, arxiv=arxiv, shape="policy",
                problem=problem, claims=list(claims), **more)  # fmt: skip
    rows = [{"verdict": None} for _ in claims]
    return Entry(id=id, room="serve", name=name, title=title, origin=stem.origin, shape="policy",
                 problem=problem, stem=stem, claims=rows)  # fmt: skip


def groups(*papers):
    return [[each.title for each in group.papers] for group in merge(papers)]


# -- likeness


def test_titles_are_compared_without_form():
    assert plain("Größe -- $\\alpha$-Caches") == "große caches".replace("ß", "ss")
    assert head_of("A B C D E F: too long to be a name") == ""
    assert head_of("Name:") == ""
    assert numbers("Part II of 1.0") == {"ii": 1, "1": 1, "0": 1}
    assert title_ratio("abc", "") == 0.0
    assert title_ratio("a cache", "a cache for many, many more things") == 0.0


def test_rare_words_weigh_more():
    weights = Weights([*["cache of keys"] * 20, "cache of towels"])
    assert weights.of("towels") > weights.of("cache")
    assert Weights(["cache", "cache of towels"]).of("cache") == 1.0, "too few to tell"
    assert cosine(weights.vector("towels"), weights.vector("towels")) == pytest.approx(1.0)
    assert weights.vector("towels", without="Towels") == {}
    assert cosine({}, {"a": 1.0}) == 0.0


# -- joining


def test_repeats_are_joined():
    assert groups(paper("On Caches"), paper("Other", ROBOT), paper("On  caches.")) == [
        ["On Caches", "On  caches."], ["Other"],
    ]  # fmt: skip


def test_versions_of_one_id_are_joined_whatever_they_say():
    one = paper("On Caches", arxiv="2606.00001", version=1)
    two = paper("Folding Towels", ROBOT, arxiv="2606.00001", version=2)
    (group,) = merge([one, two])
    assert group.retitled
    assert group.why[1] == "one arXiv id"
    assert group.arxiv == "2606.00001"


def test_other_ids_are_other_papers_even_with_one_title():
    one = paper("On Caches", arxiv="2606.00001")
    assert len(groups(one, paper("On Caches", arxiv="2606.00002"))) == 2
    # An entry without an id joins the first that fits, and never bridges two ids.
    assert len(groups(one, paper("On Caches"), paper("On Caches", arxiv="2606.00002"))) == 2


def test_a_misspelt_title_is_joined_but_not_another_part():
    for one, other, papers in (
        ("Efficient Flash Caches for Chat Serving Systems",
         "Eficient Flash Caches for Chat Serving System", 1),
        ("Efficient Flash Caches for Chat Serving, Part II",
         "Efficient Flash Caches for Chat Serving, Part III", 2),
        ("FlashBench 1.0: Caches for Chat Systems", "FlashBench 2.0: Caches for Chat Systems", 2),
    ):  # fmt: skip
        assert len(groups(paper(one, ""), paper(other, ""))) == papers, other


def test_a_retitled_paper_is_joined_by_name_and_content():
    later = paper("KeyVault: An Optimal Cache", CACHE_2, arxiv="2606.00009")
    (group,) = merge([paper("KeyVault: Flash for Attention"), later])
    assert group.retitled
    assert group.why[1].startswith("retitled: the same name")


def test_one_name_for_two_things_is_not_one_paper():
    cache = paper("KeyVault: Flash for Attention")
    assert len(groups(cache, paper("KeyVault: Towels", ROBOT))) == 2
    # Nor is the name enough where there is no text to compare.
    assert len(groups(cache, paper("KeyVault: Towels", ""))) == 2


def test_the_same_abstract_under_a_wholly_new_title_is_joined():
    (group,) = merge([paper("Flash for Attention"), paper("Remembering Turns")])
    assert "nearly the same abstract" in group.why[1]


def test_figures_that_changed_between_versions_are_told():
    (group,) = merge([paper("On Caches", CACHE + " It is 32% faster and 2x smaller."),
                      paper("On Caches", CACHE + " It is 28% faster and 2x smaller.")])  # fmt: skip
    assert group.changed_figures == ["28%", "32%"]


# -- matching


STEMS = [
    entry("keyvault", "KeyVault", "KeyVault: An Optimal Cache", job=CACHE_2),
    entry("ids", "Ids", "A System With an Id", arxiv="2601.00001v2"),
    entry("twin-a", "Twin A", "Two Sides of One Paper"),
    entry("twin-b", "Twin B", "Two Sides of One Paper"),
    entry("old", "Old", "Shared With a Classic"),
    entry("old-classic", "Classic", "Shared With a Classic", origin="classic"),
    entry("nameless", "Nameless", ""),
]
MATCHER = Matcher(STEMS)


def match(*papers):
    return MATCHER.match(Group(papers=list(papers), why=[""] * len(papers)))


def test_by_id_whatever_the_title_and_version():
    found = match(paper("Something Else", arxiv="2601.00001", version=5))
    assert (found.system, found.how) == ("ids", "arXiv id")


def test_by_title_and_nearly_by_title():
    assert match(paper("Keyvault -- an optimal cache")).how == "title"
    near = match(paper("KeyVault: A Optimal Caches", ROBOT))
    assert (near.system, near.how) == ("keyvault", "nearly its title")
    assert near.score < 1


def test_by_name_and_content_when_retitled():
    found = match(paper("KeyVault: Flash for Attention"))
    assert (found.system, found.how) == ("keyvault", "its name and content")


def test_a_name_on_other_content_is_ambiguous_and_not_matched():
    found = match(paper("KeyVault: Folding Towels", ROBOT))
    assert found.system is None
    assert found.ambiguous
    assert found.candidates[0]["system"] == "keyvault"


def test_unrelated_papers_are_not_matched():
    for title, text in (("Folding Towels", ROBOT), ("", ""), ("Nameless", ROBOT), ("A", CACHE),
                        ("A Survey of Optimal Caches", CACHE_2), ("System", ROBOT)):  # fmt: skip
        found = match(paper(title, text))
        assert (found.system, found.candidates) == (None, []), title


def test_no_system_of_the_catalogue_passes_for_another():
    """Each stem as a paper, its title and its job, among stems without it."""
    from orrery.lab.discover import entries

    # Classics are left out: several of them may stem from one paper, and then share its title.
    every = [each for each in entries() if each.origin == "catalogue"]
    for half in (0, 1):
        matcher = Matcher(every[half::2])
        for each in every[1 - half :: 2]:
            found = matcher.match(Group(papers=[paper(each.title, each.stem.job)], why=[""]))
            assert found.system is None, (each.id, found)


def test_a_title_under_another_id_is_ambiguous():
    found = match(paper("A System With an Id", arxiv="2601.99999"))
    assert found.system is None
    assert "another arXiv id" in found.candidates[0]["why"]


def test_two_systems_of_one_paper_are_ambiguous_but_a_classic_gives_way():
    found = match(paper("Two Sides of One Paper"))
    assert [each["system"] for each in found.candidates] == ["twin-a", "twin-b"]
    assert match(paper("Shared With a Classic")).system == "old"


def test_every_entry_gets_a_row():
    feed = Feed(source="f", kind="k", papers=[
        paper("KeyVault: Flash for Attention"), paper("Towels", ROBOT),
        paper("KeyVault: An Optimal Cache", CACHE_2),
    ])  # fmt: skip
    found = judge_feeds([feed], STEMS)
    rows = found.rows()
    assert [row["system"] for row in rows] == ["keyvault", None, "keyvault"]
    assert [row["duplicates_of"] for row in rows] == [None, None, "KeyVault: Flash for Attention"]
    assert [row["status"] for row in rows] == ["planned", None, "planned"]
    assert found.counted()["papers"] == 2


# -- claims


def ratio(rival="", lo=2.0, **more):
    return Claim(metric="speed", form="ratio", says_lo=lo, better="higher", rival=rival, **more)


def test_claims_are_testable_judged_waiting_or_not():
    one = entry("one", "One", "One", claims=[
        ratio("x"), ratio("y"), Claim(metric="joy", form="none", untestable="nobody measures joy"),
    ])  # fmt: skip
    one.claims[0]["verdict"] = "holds"
    found = statuses([one])["one"]
    assert [each.state for each in found] == [
        "judged", "waits for its system", "cannot be tested",
    ]  # fmt: skip
    assert found[2].reason == "nobody measures joy"
    one.status = "working"
    assert statuses([one])["one"][1].state == "to be judged"


def test_each_better_than_the_other():
    one = entry("one", "One", "1", problem="p", claims=[ratio("two")])
    two = entry("two", "Two", "2", problem="p", claims=[ratio("one")])
    ((a, b, why),) = contradictions([one, two])
    assert (a, b) == (("one", 0), ("two", 0))
    assert "beat the other" in why
    found = statuses([one, two])
    assert found["one"][0].contradicts[0].system == "two"
    assert found["two"][0].contradicts[0].system == "one"


def test_a_rival_may_be_named_in_words_as_it_is_written():
    one = entry("one", "UnoMax", "1", problem="p", claims=[ratio(against="FOLD and others")])
    fold = entry("fold", "FOLD", "2", problem="p", claims=[ratio(against="UnoMax, 2 nodes")])
    assert len(contradictions([one, fold])) == 1
    other = entry("one", "UnoMax", "1", problem="p", claims=[ratio(against="a 10-fold split")])
    assert contradictions([other, fold]) == []


def test_a_circle_of_three():
    made = [entry(a, a.title(), a, problem="p", claims=[ratio(b)])
            for a, b in (("one", "two"), ("two", "three"), ("three", "one"))]  # fmt: skip
    found = contradictions(made)
    assert len(found) == 3
    assert all("circle" in why for *_, why in found)


@pytest.mark.parametrize(
    "claims",
    [
        ([ratio("two")], [Claim(metric="memory", form="direction", rival="one")]),  # other metric
        ([ratio("two")], [ratio("one", problem="q")]),  # another problem
        ([ratio("two")], [ratio("one", lo=0.95)]),  # only as good as the other
        ([ratio("two")], [ratio("three")]),  # a chain, no circle
        ([ratio("two")], [Claim(metric="speed", form="absolute", says_lo=2.0, rival="one")]),
        ([ratio("one")], [ratio("two")]),  # each against itself
    ],
)
def test_what_is_no_contradiction(claims):
    one = entry("one", "One", "1", problem="p", claims=claims[0])
    two = entry("two", "Two", "2", problem="p", claims=claims[1])
    assert contradictions([one, two]) == []


def test_figures_that_do_not_meet():
    def told(lo, hi, **more):
        return Claim(metric="speed", form="ratio", says_lo=lo, says_hi=hi, rival="x", **more)

    apart = entry("one", "One", "1", claims=[told(1.2, 1.4), told(1.5, 1.6)])
    ((a, b, why),) = contradictions([apart])
    assert (a[1], b[1]) == (0, 1) and "do not meet" in why
    assert contradictions([entry("one", "One", "1", claims=[told(1.2, 1.5), told(1.5, 2)])]) == []
    other = [told(1.2, 1.4), told(1.5, 1.6, setting="on another machine")]
    assert contradictions([entry("one", "One", "1", claims=other)]) == []


def test_two_that_are_both_the_best():
    made = [entry(a, a.title(), a, problem="p", claims=[ratio(against="state-of-the-art systems")])
            for a in ("one", "two")]  # fmt: skip
    ((_, _, why),) = contradictions(made)
    assert "both are said to be the best" in why
    made[1].problem = "q"
    assert contradictions(made) == []
    # Without a problem nobody knows whether they answer one question.
    for each in made:
        each.problem = ""
    assert contradictions(made) == []


def test_what_a_gain_is():
    assert claims_gain(ratio("x"))
    assert claims_gain(Claim(metric="m", form="direction"))
    assert claims_gain(Claim(metric="m", form="ratio", says_hi=0.5, better="lower"))
    assert not claims_gain(Claim(metric="m", form="ratio", says_lo=0.9, better="higher"))
    assert not claims_gain(Claim(metric="m", form="property"))
