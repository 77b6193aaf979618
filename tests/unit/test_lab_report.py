"""Reports: one offline page, escaped, accessible, below 2 MB."""

from __future__ import annotations

import html
import html.parser
import re

import pytest

from orrery import Node, World, rpc, run
from orrery.base.errors import StoreError, UsageError
from orrery.lab import report as reports
from orrery.lab.cells import Cell, run_cell
from orrery.lab.compare import compare
from orrery.lab.report import report
from orrery.lab.store import Store
from orrery.parts import Metric, Problem, Violation
from orrery.systems.protocols import Broadcast, Flood, PushGossip
from orrery.world import Crash

VOID = {"meta", "br", "hr", "img", "input", "link"}
WORLD = World.lan(6, drop=0.1).with_faults(Crash(node=3, at_s=0.1, until_s=0.3))
PROBLEM = Broadcast(values=3, settle_s=0.3)
EVIL = '"><script>alert(1)</script><img src=x onerror=alert(1)>'


class Page(html.parser.HTMLParser):
    """Checks that tags are closed, and gathers what the tests ask about."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attrs, self.words = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attrs += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attrs += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(self.words)


def check(text):
    page = Page(text)
    assert len(text.encode()) < reports.MOST_B
    assert text.startswith("<!doctype html>") and '<html lang="en">' in text
    policy = next(v for t, n, v in page.attrs if t == "meta" and n == "content" and "src" in v)
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert "script" not in page.tags and "link" not in page.tags and "iframe" not in page.tags
    assert not [name for _, name, _ in page.attrs if name.startswith("on")]
    assert not [v for _, n, v in page.attrs if n in ("src", "xlink:href")]
    ids = [value for _, name, value in page.attrs if name == "id"]
    assert len(ids) == len(set(ids))
    # A link leads to a place on the page itself, and nowhere else.
    assert {f"#{id}" for id in ids} >= {v for _, n, v in page.attrs if n == "href"}
    bare = text.replace("http://www.w3.org/2000/svg", "")
    assert "http://" not in bare and "https://" not in bare and "@import" not in bare
    # Semantics for screen readers: one h1, headings for sections, scopes, names of pictures.
    assert page.tags.count("h1") == 1 and "main" in page.tags
    scopes = [v for t, n, v in page.attrs if t == "th" and n == "scope"]
    assert len(scopes) == page.tags.count("th") and set(scopes) <= {"col", "row"}
    assert page.tags.count("caption") == page.tags.count("table")
    labels = [v for t, n, v in page.attrs if t == "svg" and n in ("aria-label", "aria-hidden")]
    assert len(labels) == page.tags.count("svg") and all(labels)
    for name in re.findall(r"url\(#([^)]+)\)", text):
        assert name in ids
    assert "prefers-color-scheme:dark" in text and "width=device-width" in text
    return page


def traced(part, seed=7):
    return run(part, problem=PROBLEM, world=WORLD, seed=seed, trace=True)


def test_one_run():
    made = traced(PushGossip())
    page = check(report(made))
    words = ("PushGossip on Broadcast", "without a violation", "coverage", "How to reproduce")
    for expected in (*words, "Environment", "who told whom", "seed=7", WORLD.hash, made.digest):
        assert expected in page.text
    assert page.tags.count("svg") >= 4  # the mark of the page, and three pictures


def test_several_runs_show_only_what_differs():
    page = check(report([traced(PushGossip()), traced(Flood())]))
    table = page.text[page.text.index("What differs between the runs") :]
    table, _, folded = table.partition("The same for all")
    assert "PushGossip" in table and "messages_per_value" in table
    assert "seed" not in table.split() and "Broadcast" not in table
    assert "Broadcast" in folded and "Violated" in page.text


def test_a_comparison(tmp_path):
    found = compare(
        PROBLEM, {"gossip": PushGossip(), "flood": Flood(), EVIL: PushGossip(fanout=2)},
        world=WORLD, seeds=3, store=Store(tmp_path),
    )  # fmt: skip
    page = check(report(found))
    for expected in ("3 systems compared", "time_to_99_s", "95 % interval", "Violations",
                     "flood broke what it promises", found.rows[0].runs[0]):  # fmt: skip
        assert expected in page.text
    assert EVIL in page.text


def test_the_command_is_told_where_there_is_one(tmp_path):
    options = {"seeds": 2, "store": Store(tmp_path)}
    text = check(report(compare(PROBLEM, ["flood", "push-gossip"], world="lan:5", **options))).text
    assert "orrery compare broadcast --systems " in text and "--world lan:5 --seeds 2" in text
    text = check(report(compare(PROBLEM, {"mine": Flood()}, world="lan:5", **options))).text
    assert "orrery compare" not in text and "orrery replay" in text


def test_the_world_in_the_report_is_the_world_of_the_run():
    text = report(traced(PushGossip()))
    told = html.unescape(re.search(r"save it as world.toml.*?<code>(.*?)</code>", text, re.S)[1])
    assert World.from_toml(told).hash == WORLD.hash


def test_stored_runs_are_drawn_by_replaying_them(tmp_path):
    store = Store(tmp_path)
    cell = Cell(name="flood", part=Flood(), problem=PROBLEM, world=PROBLEM.world(), seed=0)
    id = run_cell(cell, store).id
    page = check(report([id[:10]], store=store))
    assert f"orrery replay {id}" in page.text and "who told whom" in page.text
    plain = check(report([id], store=store, pictures=False))
    assert plain.tags.count("svg") == 1  # the mark of the page


class Hostile(Problem):
    """A problem whose every word is an attack."""

    metrics = {EVIL: Metric(EVIL, "lower", EVIL)}

    async def drive(self, driver):
        driver.emit(**{EVIL: EVIL})
        await driver.ask(0, Talker.hear, EVIL)

    def check(self, outcome):
        return [Violation(kind=EVIL, message=EVIL, evidence={EVIL: [EVIL, float("nan"), {3, 1}]},
                          time_s=0.1, node=0)] * 60  # fmt: skip

    def measure(self, outcome):
        return {EVIL: float("nan"), "infinite": float("inf"), "none": 0.0}


class Talker(Node):
    """Answers."""

    word: str = EVIL

    @rpc
    async def hear(self, text: str) -> str:
        return text


def test_everything_from_outside_is_escaped():
    made = run(Talker(), problem=Hostile(), world=World.lan(2), trace=True)
    text = report([made, made], title=EVIL, commands=[EVIL])
    page = check(text)
    assert EVIL in page.text and "<img" not in text
    assert "60 times" in page.text or "120 times" in page.text


def test_pictures_are_left_out_to_stay_below_the_limit(monkeypatch):
    made = [traced(PushGossip(), seed) for seed in range(3)]
    whole = len(report(made).encode())
    monkeypatch.setattr(reports, "MOST_B", whole - 10_000)
    text = report(made)
    assert len(text.encode()) < whole - 10_000
    assert "pictures were left out" in check(text).text
    monkeypatch.setattr(reports, "MOST_B", 5000)
    with pytest.raises(UsageError, match="fewer runs"):
        report(made)


def test_write_is_whole_or_nothing(tmp_path):
    made = traced(PushGossip())
    path = reports.write(made, tmp_path / "r.html")
    check(path.read_text())
    with pytest.raises(UsageError, match=r"\.html"):
        reports.write(made, tmp_path / "r.pdf")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        reports.write(made, tmp_path / "file" / "r.html")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "r.html"]


@pytest.mark.parametrize("items", [[], 3, [3], None, ["zz"]])
def test_what_is_no_run_is_named(items, tmp_path):
    with pytest.raises((UsageError, StoreError)):
        report(items, store=Store(tmp_path))


def test_the_same_runs_give_the_same_report():
    assert report(traced(PushGossip())) == report(traced(PushGossip()))
