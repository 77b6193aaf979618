"""Claims and verdicts: the rules one by one, then whole claims on a toy problem."""

from __future__ import annotations

import json
import math

import pytest
from tests.unit.lab_toys import Broken, Cheat, Plain, Racer

from orrery.base.errors import ClaimError, StoreError
from orrery.lab import Claim, verdicts
from orrery.lab.cells import Runner
from orrery.lab.checking import judge
from orrery.lab.claims import VERDICTS, Verdict, Verdicts
from orrery.lab.stats import NOTHING, Interval
from orrery.lab.store import Store

RACE = "tests.unit.lab_toys:Race"
PLAIN = "tests.unit.lab_toys:Plain"
ROW = {
    "form", "metric", "says", "says_lo", "says_hi", "against", "measured", "lo", "hi", "off",
    "verdict", "kind", "seeds", "untestable",
}  # fmt: skip


def around(mean, half):
    return Interval(mean, mean - half, mean + half, 9)


# -- the rules


@pytest.mark.parametrize(
    ("gain", "claimed", "word", "at_last"),
    [
        (around(1.80, 0.05), 1.77, "holds", "holds"),
        (around(2.50, 0.10), 1.77, "holds", "holds"),
        (around(1.69, 0.01), 1.77, "holds", "holds"),
        (around(1.30, 0.05), 1.77, "holds in part", "holds in part"),
        (around(1.70, 0.30), 1.77, None, "holds"),
        (around(1.60, 0.30), 1.77, None, "holds in part"),
        (around(1.20, 0.30), 1.77, None, "inconclusive"),
        (around(0.80, 0.05), 1.77, "not here", "not here"),
        (around(1.001, 0.002), 1.77, "not here", "not here"),
        (around(1.004, 0.001), 1.77, "not here", "not here"),
        (around(1.0, 0.2), 1.77, None, "inconclusive"),
        (around(1.0035, 0.0005), 1.005, "holds in part", "holds in part"),
        (around(1.0049, 0.0001), 1.005, "holds", "holds"),
        (around(1.10, 0.02), None, "holds", "holds"),
        (around(1.005, 0.001), None, "not here", "not here"),
        (around(1.05, 0.20), None, None, "inconclusive"),
        (around(0.96, 0.005), 0.95, "holds", "holds"),
        (around(0.90, 0.01), 0.95, "not here", "not here"),
        (around(0.94, 0.05), 0.95, None, "inconclusive"),
        (around(1.0, 0.001), 1.0, "holds", "holds"),
        (NOTHING, 1.77, None, "inconclusive"),
        (Interval(1.5, -math.inf, math.inf, 1), 1.77, None, "inconclusive"),
        (Interval(math.inf, math.inf, math.inf, 5), 3.0, "holds", "holds"),
    ],
)
def test_gains(gain, claimed, word, at_last):
    assert verdicts.judge_gain(gain, claimed, 0.1, final=False) == word
    assert verdicts.judge_gain(gain, claimed, 0.1, final=True) == at_last


@pytest.mark.parametrize(
    ("off", "stays", "at_last"),
    [
        (around(1.0, 0.01), False, False),
        (around(1.9, 0.05), True, True),
        (around(1.4, 0.1), False, False),
        (around(1.74, 0.2), None, False),
        (around(1.76, 0.2), None, True),
        (NOTHING, None, False),
    ],
)
def test_the_mechanism(off, stays, at_last):
    gain = around(2.0, 0.1)  # four fifths of it are 2 ** 0.8 = 1.741
    assert verdicts.judge_off(gain, off, final=False) is stays
    assert verdicts.judge_off(gain, off, final=True) is at_last


@pytest.mark.parametrize(
    ("value", "claim", "word", "at_last"),
    [
        (around(0.08, 0.005), {"says_hi": 0.1, "better": "lower"}, "holds", "holds"),
        (around(0.105, 0.001), {"says_hi": 0.1, "better": "lower"}, "holds", "holds"),
        (around(0.20, 0.01), {"says_hi": 0.1, "better": "lower"}, "not here", "not here"),
        (around(0.11, 0.02), {"says_hi": 0.1, "better": "lower"}, None, "inconclusive"),
        (around(99, 1), {"says_lo": 100, "better": "higher"}, "holds", "holds"),
        (around(80, 1), {"says_lo": 100, "better": "higher"}, "not here", "not here"),
        (around(80, 1), {"says_hi": 100, "better": "higher"}, "not here", "not here"),
        (around(5, 0.1), {"says_lo": 4, "says_hi": 6}, "holds", "holds"),
        (around(8, 0.1), {"says_lo": 4, "says_hi": 6}, "not here", "not here"),
        (around(2, 0.1), {"says_lo": 4, "says_hi": 6}, "not here", "not here"),
        (around(5, 0.1), {}, "inconclusive", "inconclusive"),
        (NOTHING, {"says_hi": 1.0, "better": "lower"}, None, "inconclusive"),
    ],
)
def test_bounds(value, claim, word, at_last):
    asked = Claim(metric="m", form="absolute", **claim)
    assert verdicts.judge_bound(value, asked, final=False) == word
    assert verdicts.judge_bound(value, asked, final=True) == at_last


def test_properties():
    assert verdicts.judge_property(0, 24) == "holds"
    assert verdicts.judge_property(0, 5) == "inconclusive"
    assert verdicts.judge_property(1, 1000) == "not here"


def test_a_smaller_ratio_is_turned():
    less = Claim(metric="m", form="ratio", says_lo=0.5, says_hi=0.62, better="lower")
    assert verdicts.claimed_gain(less) == pytest.approx(1 / 0.62)
    assert verdicts.turned(Interval(0.5, 0.4, 0.8, 3), True)[:3] == (2.0, 1.25, 2.5)
    # Where the claim names no direction, its figure does.
    assert verdicts.wants_less(Claim(metric="m", form="ratio", says_lo=0.5))
    assert not verdicts.wants_less(Claim(metric="m", form="ratio", says_hi=2.0))


# -- whole claims


@pytest.fixture
def runner(tmp_path, monkeypatch):
    monkeypatch.setenv("ORRERY_HOME", str(tmp_path / "home"))
    with Runner(Store(tmp_path / "store")) as made:
        yield made


def asked(runner, part=Racer, **claim):
    base = {
        "metric": "time_s", "form": "ratio", "better": "lower", "rival": PLAIN, "world": "lan:2",
        "problem_knobs": {"noise": 0.02},
    }  # fmt: skip
    return judge(Claim(**{**base, **claim}), part, problem=RACE, runner=runner)


# Work is 1 ms or, with the trick, 0.5 ms, and the way there and back takes a little under 1 ms.


def test_a_gain_that_holds(runner):
    found = asked(runner, says_lo=0.75, off={"trick": False})
    assert found.verdict == "holds"
    assert found.lo < found.measured < found.hi < 1
    assert found.off == pytest.approx(1.0)
    assert found.kind == "modelled"
    assert found.seeds >= 3
    assert found.world
    assert found.digest


def test_a_gain_that_holds_in_part(runner):
    assert asked(runner, says_lo=0.2).verdict == "holds in part"


def test_a_gain_that_is_not_here(runner):
    assert asked(runner, says_lo=0.5, ours={"trick": False}).verdict == "not here"
    assert asked(runner, says_lo=0.5, ours={"cost": 9.0}).verdict == "not here"
    assert asked(runner, form="direction", ours={"trick": False}).verdict == "not here"


def test_a_gain_that_is_not_from_the_mechanism(runner):
    found = asked(runner, says_lo=0.75, off={"polish": False})
    assert found.verdict == "gain not from the mechanism"
    assert found.off == pytest.approx(found.measured)


def test_noise_is_inconclusive(runner, monkeypatch):
    from orrery.lab import stats

    # The noise must differ between the two, or pairs would remove it.
    real = stats.ratio_interval
    monkeypatch.setattr(
        stats, "ratio_interval",
        lambda a, b, level: real([v * (1 + 3 * (i % 2)) for i, v in enumerate(a)],
                                 [v * (4 - 3 * (i % 2)) for i, v in enumerate(b)], level),
    )  # fmt: skip
    found = asked(runner, form="direction", most_seeds=5)
    assert found.verdict == "inconclusive"
    assert found.seeds == 5


def test_without_a_rival_the_mechanism_is_the_rival(runner):
    found = asked(runner, form="direction", rival="", off={"trick": False})
    assert found.verdict == "holds"
    assert found.off == 1.0
    nothing = asked(runner, form="direction", rival="")
    assert nothing.verdict == "inconclusive"
    assert "nothing to be compared with" in nothing.note


def test_a_gain_bought_with_a_violation_is_none(runner):
    found = asked(runner, part=Cheat, form="direction")
    assert found.verdict == "not here"
    assert "wrong" in found.note
    assert asked(runner, part=Broken, form="direction").verdict == "not here"


def test_a_rival_that_fails_leaves_it_open(runner):
    found = asked(runner, form="direction", rival="tests.unit.lab_toys:Broken", most_seeds=3)
    assert found.verdict == "inconclusive"
    assert found.measured is None
    assert "rival broke a rule" in found.note


def test_absolute(runner):
    bound = {"form": "absolute", "rival": ""}
    assert asked(runner, **bound, says_hi=0.05).verdict == "holds"
    assert asked(runner, **bound, says_hi=0.001).verdict == "not here"
    # Missed, yet better than the rival.
    missed = asked(runner, form="absolute", says_hi=0.001)
    assert missed.verdict == "holds in part"
    useless = asked(runner, **bound, says_hi=0.05, off={"polish": False})
    assert useless.verdict == "gain not from the mechanism"
    assert asked(runner, **bound, says_hi=0.05, off={"trick": False}).verdict == "holds"


def test_property(runner):
    sure = asked(runner, form="property", better="", metric="answers are right")
    assert sure.verdict == "holds"
    assert sure.seeds == 24
    assert sure.measured == 0
    assert sure.hi == pytest.approx(3 / 24, rel=0.1)
    wrong = asked(runner, part=Cheat, form="property", better="", metric="answers are right")
    assert wrong.verdict == "not here"
    assert "24 failures in 24 trials" in wrong.note
    few = asked(runner, form="property", better="", metric="answers are right", most_seeds=4)
    assert few.verdict == "inconclusive"
    ranged = {"form": "property", "better": "", "metric": "small", "measure": "time_s"}
    assert asked(runner, **ranged, says_hi=1.0).verdict == "holds"
    assert asked(runner, **ranged, says_hi=0.001).verdict == "not here"


def test_exponent(runner):
    rounds = {"form": "exponent", "sweep": {"problem.rounds": [1, 2, 4, 8]}, "rival": ""}
    found = asked(runner, **rounds, says_hi=1.0)
    assert found.verdict == "holds"
    assert found.measured == pytest.approx(1.0, abs=0.05)
    assert asked(runner, **rounds, says_hi=0.5).verdict == "not here"
    nodes = asked(runner, form="exponent", sweep={"world": ["lan:2", "lan:4", "lan:8"]}, rival="",
                  says_lo=1.0, better="higher")  # fmt: skip
    assert nodes.verdict == "holds"
    cost = asked(runner, form="exponent", sweep={"ours.cost": [1, 2, 4]}, rival="", says_hi=1.0)
    assert 0.2 < cost.measured < 1.0


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"measure": "tmie_s"}, 'did you mean "time_s"'),
        ({"metric": "how quick it is"}, "is no metric of Race"),
        ({"rival": "no-such-system"}, "no system"),
        ({"world": "no_such_world"}, "no_such_world"),
        ({"ours": {"tirck": 1}}, 'did you mean "trick"'),
        ({"problem": "no_such_problem"}, "no problem"),
        ({"problem_knobs": {"rounds": -1}}, "rounds"),
        ({"form": "exponent", "sweep": {}}, "sweep"),
        ({"form": "exponent", "sweep": {"moon.n": [1, 2]}}, "moon.n"),
        ({"form": "exponent", "sweep": {"ours.trick": [True, False]}}, "no number"),
        ({"form": "exponent", "sweep": {"problem.rounds": [1, 2]}, "at": [1.0]}, "equal"),
        ({"world_set": {"network.dorp": 0.1}}, "dorp"),
    ],
)
def test_a_claim_that_cannot_be_judged_says_why(runner, change, named):
    found = asked(runner, says_hi=0.5, **change)
    assert found.verdict == "inconclusive"
    assert named in found.note


def test_what_cannot_be_tested_stays_published(runner):
    found = asked(runner, form="none", better="", untestable="a fact about the paper")
    assert found.verdict is None
    assert found.kind == "published"
    assert found.row()["untestable"] == "a fact about the paper"


def test_a_full_disk_is_no_verdict(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError):
        asked(Runner(Store(tmp_path / "file")), form="direction")


@pytest.mark.parametrize(
    "wrong",
    [
        {"says_lo": math.nan}, {"says_hi": math.inf}, {"says_lo": 2.0, "says_hi": 1.0},
        {"form": "none"}, {"untestable": "why"}, {"seeds": 0}, {"seeds": 99}, {"metric": ""},
        {"tolerance": 1.0}, {"tolerance": math.nan},
    ],
)  # fmt: skip
def test_a_claim_that_contradicts_itself_is_refused(wrong):
    with pytest.raises(ClaimError):
        Claim(**{"metric": "m", **wrong}).check()


# -- rows, exit codes, pages


def test_rows_are_the_contracts(runner):
    row = asked(runner, says_lo=0.75, says="0.75x").row()
    assert set(row) == ROW
    assert row["verdict"] in VERDICTS
    json.dumps(row, allow_nan=False)
    unknown = Verdict(claim=Claim(metric="m"), verdict="inconclusive", lo=-math.inf, hi=math.inf)
    assert unknown.row()["lo"] is None


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["holds", "holds in part"], 0), (["holds", "inconclusive"], 2), ([], 0),
        (["not here", "inconclusive"], 1), (["gain not from the mechanism"], 1),
    ],
)  # fmt: skip
def test_exit_codes(words, code):
    found = Verdicts("x", [Verdict(claim=Claim(metric="m"), verdict=word) for word in words])
    untestable = Claim(metric="m", form="none", untestable="u")
    found.append(Verdict(claim=untestable))
    assert found.exit_code() == code
    assert found.to_json()["id"] == "x"
    assert len(found.to_json()["claims"]) == len(words) + 1


def test_pages_escape_what_a_file_says():
    bad = Claim(metric="<script>", says="<b>", form="direction")
    found = Verdicts("<i>", [Verdict(claim=bad, verdict="holds", measured=1.0)])
    for page in (found._repr_html_(), found[0]._repr_html_()):
        assert "<script>" not in page
        assert "<b>" not in page
    assert "verdict: holds" in found[0].sentence()


def test_plain_is_what_racer_is_without_its_trick():
    assert Plain().trick is False


STEM = """id = "quick-racer"
name = "Quick racer"
room = "toys"
shape = "node"
problem = "tests.unit.lab_toys:Race"
[[claims]]
metric = "time_s"
says = "a quarter less"
form = "ratio"
says_lo = 0.75
better = "lower"
against = "plain racing"
rival = "tests.unit.lab_toys:Plain"
off = { trick = false }
world = "lan:2"
[[claims]]
metric = "scale tested"
form = "none"
untestable = "a fact about the paper"
"""


def test_check_finds_runs_and_records(tmp_path, monkeypatch):
    from orrery.lab import check, discover
    from orrery.lab.ledger import Ledger

    folder = tmp_path / "site" / "toy_rooms"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "quick_racer.toml").write_text(STEM)
    code = "from tests.unit.lab_toys import Racer\nclass QuickRacer(Racer):\n    pass\n"
    (folder / "quick_racer.py").write_text(code)
    info = tmp_path / "site" / "toy_rooms-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy_rooms\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[orrery.systems]\ntoys = toy_rooms\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    book, store = Ledger(tmp_path / "ledger.jsonl"), Store(tmp_path / "store")
    found = check("quick-racer", store=store, ledger=book)
    assert [one.verdict for one in found] == ["holds", None]
    assert found.exit_code() == 0
    assert not book.path.exists()
    assert discover.find("quick-racer", book).status == "working"
    again = check("quick-racer", store=store, ledger=book, record=True)
    assert again.to_json() == found.to_json()
    entry = discover.find("quick-racer", book)
    assert entry.status == "checked"
    assert entry.claims[0]["verdict"] == "holds"
    assert entry.claims[0]["measured"] == found[0].measured
    assert entry.claims[1]["verdict"] is None
