"""What a notebook and an editor see: safe, complete HTML, and types that can be inferred."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.unit.lab_toys import Cheat, Plain, Race, Racer

from orrery import World, compare, run
from orrery.lab.claims import Claim, Verdict, Verdicts
from orrery.lab.compare import Comparison, Row
from orrery.lab.html_cells import MOST_COLUMNS, MOST_ROWS, MOST_VIOLATIONS
from orrery.lab.store import Store
from orrery.parts import Metric, Violation
from orrery.world import Crash, show

ROOT = Path(__file__).resolve().parents[2]
EVIL = "<script>alert(1)</script>\"'&<img src=x onerror=y>\x00\ud800"
ALLOWED = {"div", "table", "caption", "thead", "tbody", "tr", "th", "td", "p"}
STYLES = {
    "overflow-x",
    "border-bottom",
    "white-space",
    "text-align",
    "font-weight",
    "vertical-align",
    "padding",
    "margin",
}


class Reader(HTMLParser):
    """Reads a cell as strictly as a browser would not, and keeps what it saw."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.captions: list[str] = []
        self.tables = 0
        self.text = ""
        self.feed(page)
        self.close()
        assert self.open == [], f"not closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        assert tag in ALLOWED, tag
        names = dict(attributes)
        assert set(names) <= {"style", "scope", "role", "aria-label", "tabindex"}, names
        for rule in names.get("style", "").split(";"):
            assert rule.partition(":")[0] in STYLES | {""}, rule
        if tag == "th":
            assert names["scope"] in ("row", "col")
        self.tables += tag == "table"
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data + " "
        if self.open[-1] == "caption":
            self.captions.append(data)


def read(thing) -> Reader:
    """The cell of a thing, after the checks that every cell must pass."""
    page = thing._repr_html_()
    assert not re.search(r"url\(|https?:|@import|javascript:", page)
    page.encode("utf-8")
    assert len(page) < 100_000
    found = Reader(page)
    assert len(found.captions) == found.tables >= 1
    assert all(caption.strip() for caption in found.captions)
    return found


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("runs"))
    parts = {"racer": Racer(), "plain": Plain(), "cheat": Cheat()}
    return compare(Race(), parts, world=World.lan(2), store=store, seeds=2)


def test_the_reader_refuses_what_it_must():
    for bad in ("<b>x</b>", "<td onclick=x></td>", "<table>", "<th>x</th>",
                '<td style="background:url(x)"></td>', '<td style="color:#fff"></td>'):  # fmt: skip
        with pytest.raises((AssertionError, KeyError)):
            Reader(bad)


def test_a_world():
    seen = read(World.lan(5, drop=0.1, title=EVIL[:30]).with_faults(Crash(node=1, at_s=0.1)))
    assert seen.captions == [f"World: {EVIL[:30]}"]
    assert "5 node" in seen.text
    assert "drop 0.1" in seen.text
    assert "Crash" in seen.text
    assert read(World.lan(3)).captions == ["World"]


def test_a_run():
    seen = read(run(Racer(), problem=Race(), world=World.lan(2), seed=7))
    assert "no violations" in seen.captions[0]
    for word in ("time_s", "lower", "ms", "Racer()", "Race()", "seed 7", "digest"):
        assert word in seen.text, word


def test_a_run_that_went_wrong():
    made = run(Cheat(), problem=Race(), world=World.lan(2))
    seen = read(made)
    assert "1 violation" in seen.captions[0]
    assert "an answer was wrong" in seen.text
    made.violations *= MOST_VIOLATIONS + 3
    assert "and 3 more violations" in read(made).text


class Rude(Racer):
    """Cannot describe itself."""

    def __repr__(self) -> str:
        raise ValueError("no")


def test_a_hostile_run_is_escaped_and_stays_small():
    made = run(Rude(), problem=Race(), world=World.lan(2))
    made.violations = [Violation(kind=EVIL, message=EVIL * 1000, time_s=math.nan, node=0)]
    made.metrics = {f"{EVIL}{i}": math.nan for i in range(500)}
    made.metrics[EVIL] = math.inf
    made.units = {EVIL: Metric(EVIL, EVIL, EVIL)}
    seen = read(made)
    assert "<Rude>" in seen.text
    assert f"and {501 - MOST_ROWS} more metrics" in seen.text
    made.metrics, made.violations, made.problem = {}, [], None
    read(made)


def test_a_comparison(compared):
    seen = read(compared)
    assert "race by time_s" in seen.captions[0]
    assert "time_s (lower is better)" in seen.text
    assert seen.text.index("racer") < seen.text.index("plain") < seen.text.index("cheat")
    assert "The same for all: nodes 2" in seen.text


def test_a_hostile_comparison_is_escaped_and_stays_small():
    values = {f"{EVIL}{i}": {0: float(i)} for i in range(60)} | {"by": {0: math.nan}}
    rows = [Row(system=f"{EVIL}{i}", values=values, seeds=[0]) for i in range(80)]
    found = Comparison(problem=EVIL, world=EVIL, world_hash="", by="by", rows=rows,
                       ties=[(EVIL, "b")])  # fmt: skip
    rows[0].values = {**values, **{name: {0: -1.0} for name in values if name != "by"}}
    page = found._repr_html_()
    seen = Reader(page)
    assert len(page) < 1_000_000
    assert "and 20 more systems" in seen.text
    assert " by " in seen.text
    assert page.count('scope="col"') == MOST_COLUMNS
    assert "Within 1 % of one another" in seen.text
    read(Comparison(problem="p", world="w", world_hash="", by="", rows=[]))


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (Verdict(claim=Claim(metric="t", says="2x", form="ratio"), verdict="holds", measured=1.97,
                 lo=1.9, hi=2.0, off=1.0, seeds=3), "t: ✓ holds claimed 2x found 1.97x"),
        (Verdict(claim=Claim(metric="t"), verdict="not here"), "t: ✕ not here"),
        (Verdict(claim=Claim(metric="t"), verdict="inconclusive", measured=math.nan, lo=-math.inf,
                 hi=math.inf, note="too noisy"), "-inf to inf"),
        (Verdict(claim=Claim(metric="t", form="none", untestable="no such machine")),
         "t: cannot be tested"),
        (Verdict(claim=Claim(metric="t")), "t: not judged"),
        (Verdict(claim=Claim(metric=EVIL, says=EVIL), verdict=EVIL, note=EVIL), "onerror"),
    ],
)  # fmt: skip
def test_a_verdict(verdict, words):
    assert words in " ".join(read(verdict).text.split())
    both = read(Verdicts(EVIL, [verdict, verdict]))
    assert both.tables == 1
    assert len(read(Verdicts("x", [])).captions) == 1


def test_text_is_cut_and_cleaned():
    assert show.text("\x00a\n\ud800b") == " a  b"
    assert show.text("x" * 500) == "x" * show.MOST_CHARACTERS + "…"


# -- what an editor infers


def test_the_types_of_a_users_code_are_inferred(tmp_path):
    pytest.importorskip("mypy")
    right = ROOT / "tests" / "typing" / "user_code.py"
    text = right.read_text(encoding="utf-8")
    # The test can fail: in a copy, each wrong type is an error that names its line.
    wrong = tmp_path / "wrong.py"
    wrong.write_text(f"{text}assert_type(found, Run)\nmade.metrcs\nrun(Greeter(), world=3)\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "tests/typing/mypy.ini",
         "--cache-dir", ".mypy_cache/typing", str(right), str(wrong)],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    found = [
        (Path(each[1]).name, int(each[2]), each[3])
        for each in re.finditer(r"^(.+?):(\d+): error: .*\[(.+)\]$", done.stdout, re.MULTILINE)
    ]
    first = text.count("\n") + 1
    errors = ("assert-type", "attr-defined", "arg-type")
    assert found == [("wrong.py", first + i, error) for i, error in enumerate(errors)], (
        done.stdout + done.stderr
    )
