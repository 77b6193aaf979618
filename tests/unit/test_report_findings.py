"""Reports of findings: comparisons, choices, verdicts, maps and sweeps, as objects and as JSON."""

from __future__ import annotations

import html
import json
import re

import pytest

from orrery.base.errors import StoreError, UsageError
from orrery.cli.app import run_command
from orrery.lab import report as reports
from orrery.lab.choose import choose
from orrery.lab.claims import Claim, Verdict, Verdicts
from orrery.lab.compare import compare
from orrery.lab.report import read_documents, report
from orrery.lab.report.documents import documents_of
from orrery.lab.store import Store
from orrery.lab.sweep import sweep
from orrery.lab.when import map_claim
from orrery.systems.protocols import Broadcast, Flood, PushGossip

EVIL = '"><script>alert(1)</script><img src=x onerror=alert(1)>'
SMALL = Broadcast(values=2, settle_s=0.2)
VERDICTS = Verdicts("toy", [
    Verdict(claim=Claim(metric="throughput", says="1.77x", form="ratio", says_lo=1.77,
                        against="rival"), verdict="holds in part", measured=1.6, lo=1.5, hi=1.7,
            off=1.0, seeds=5, note="a note"),
    Verdict(claim=Claim(metric="delay", says="lower", form="direction", better="lower"),
            verdict="not here", measured=1.2, lo=1.1, hi=1.3),
    Verdict(claim=Claim(metric="safety", form="property"), verdict="inconclusive"),
    Verdict(claim=Claim(metric="users like it", form="none", untestable="needs users"),
            kind="published"),
])  # fmt: skip


def text_of(page: str) -> str:
    """What a reader sees: no tags, no style."""
    bare = re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", bare)).split())


def shown(items, tmp_path, **options) -> str:
    return text_of(report(items, store=Store(tmp_path), **options))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A comparison and its store."""
    store = Store(tmp_path_factory.mktemp("home"))
    parts = {"gossip": PushGossip(), "flood": Flood()}
    by = "messages_per_value"
    return compare(SMALL, parts, world="lan:5", seeds=2, by=by, store=store), store


def test_verdicts_show_claim_finding_and_mechanism(tmp_path):
    page = report(VERDICTS)
    text = text_of(page)
    for words in ("4 claims put to the test", "holds in part", "throughput against rival",
                  "claimed 1.77x, found 1.6x [1.5, 1.7]", "mechanism switched off 1x",
                  "not here", "cannot be tested", "needs users", "a note", "orrery check toy",
                  "Gains of toy"):  # fmt: skip
        assert words in text, words
    assert "published 1.77, found 1.6, mechanism off 1" in page  # the picture in words
    assert text_of(report(VERDICTS.to_json())).count("1.6x") == text.count("1.6x")


def test_a_comparison_from_its_json_says_the_same(made, tmp_path):
    found, store = made
    one = text_of(report(found, store=store))
    path = tmp_path / "c.json"
    path.write_text(json.dumps(found.to_json()))
    two = text_of(report(read_documents(path), store=store))
    for words in ("2 systems compared", "(best)", "The same for all", "time_to_99_s", "kernel"):
        assert words in one and words in two, words
    assert "(lower is better)" in two  # from the problem, which the document names


def test_the_ranking_metric_comes_first_and_the_best_is_marked(made):
    found, store = made
    page = report(found, store=store)
    first = re.findall(r'<th scope="col"[^>]*>([^<]+)', page)[1]
    assert first == found.by
    assert page.count('<span class="best">') >= 1


def test_the_command_has_the_knobs_of_the_problem(tmp_path):
    store = Store(tmp_path)
    found = compare(SMALL, ["flood", "push-gossip"], world="lan:4", seeds=1, store=store)
    text = text_of(report(found, store=store))
    assert "orrery compare broadcast:settle_s=0.2,values=2 --systems" in text
    own = compare(Broadcast(), ["flood"], seeds=1, store=store)
    assert "orrery compare broadcast --systems flood --seeds 1" in text_of(report(own, store=store))


def test_a_choice_tells_why_and_what_flips_it(tmp_path):
    chosen = choose(SMALL, ["flood", "push-gossip"], world="lan:4", by="messages_per_value",
                    seeds=2, flips=False, store=Store(tmp_path))  # fmt: skip
    text = shown(chosen, tmp_path)
    assert "is the choice for broadcast by messages_per_value" in text
    assert "why it stands here" in text and "Comparison" in text
    flip = {"parameter": "values", "at": 12.0, "to": "other", "side": "above", "base": 2.0}
    text = shown(chosen.to_json() | {"flips": [flip]}, tmp_path)
    winner = chosen.ranking[0].system
    assert f"At and above values 12 (here 2), other beats {winner}." in text
    steady = chosen.to_json() | {"tried": {"values": [1.0, 9.0]}}
    assert "stays the same for values 1 to 9" in shown(steady, tmp_path)


def test_a_map_is_drawn_from_the_object_and_from_json(tmp_path):
    claim = Claim(metric="messages", measure="messages_per_value", form="direction",
                  better="lower", rival="flood", says="fewer", seeds=1, most_seeds=2)  # fmt: skip
    found = map_claim(claim, PushGossip, "values=1:3", "part.fanout=1:3".replace("part", "ours"),
                      problem=SMALL, id="push-gossip", points=4, grid=2, depth=0, world="lan:4",
                      store=Store(tmp_path), folder=tmp_path / "when")  # fmt: skip
    for item in (found, json.loads(json.dumps(found.to_json()))):
        page = report(item, store=Store(tmp_path))
        text = text_of(page)
        assert "When push-gossip holds: messages" in text and "of the map" in text
        assert "Every point of the map" in text and page.count("<svg") == 2
        assert "orrery when push-gossip --x" in text


def test_a_sweep_shows_its_best_and_what_was_varied(tmp_path):
    over = {"fanout": [1, 2, 3], "network.drop": [0.0, 0.2]}
    found = sweep("push-gossip", over, problem=SMALL, world="lan:5", by="messages_per_value",
                  seeds=2, store=Store(tmp_path))  # fmt: skip
    page = report(found, store=Store(tmp_path))
    text = text_of(page)
    assert "6 trials by messages_per_value" in text and "Best: messages_per_value" in text
    assert "fanout" in text and "network.drop" in text and page.count("<svg") == 3
    document = json.loads(json.dumps(found.to_json()))
    assert "orrery sweep" in shown(document, tmp_path)
    document["search"] = "tpe"  # points of a search are no lines
    assert "a trial" in shown(document, tmp_path)
    document |= {"best": None, "partial": True, "total": 9}
    text = shown(document, tmp_path)
    assert "No trial ended" in text and "6 of 9 trials were finished" in text


def test_several_findings_make_one_page_with_unlike_headings(made, tmp_path):
    found, store = made
    page = report([found, found, VERDICTS], store=store)
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert "and 2 more" in text_of(page)


def hostile(data):
    """The same document with every text an attack."""
    if isinstance(data, dict):
        return {key: hostile(value) for key, value in data.items()}
    if isinstance(data, list):
        return [hostile(each) for each in data]
    return EVIL if isinstance(data, str) else data


def test_hostile_documents_are_escaped(made, tmp_path):
    found, _ = made
    documents = [hostile(found.to_json()), hostile(VERDICTS.to_json())]
    choice = {"problem": EVIL, "ranking": [{"system": EVIL, "score": 1.0, "why": EVIL}],
              "world": EVIL, "by": EVIL}  # fmt: skip
    trial = {"n": 0, "values": {EVIL: 1.0}, "score": 2.0, "note": EVIL, "runs": [EVIL]}
    trials = [trial, {**trial, "n": 1, "values": {EVIL: 2.0}}]
    over = [{"parameter": EVIL, "values": [EVIL]}]
    swept = {"problem": EVIL, "by": EVIL, "over": over, "trials": trials, "systems": [EVIL]}
    axis = {"parameter": EVIL, "lo": 0.0, "hi": 1.0}
    point = {"x": 0.0, "y": 0.0, "holds": True, "verdict": EVIL, "note": EVIL}
    grid = {"x": axis, "y": axis}
    mapped = {"id": EVIL, "claim": {"metric": EVIL}, "grid": grid, "values": [point]}
    page = report([*documents, choice, swept, mapped], store=Store(tmp_path), title=EVIL)
    assert "<script" not in page and "<img" not in page and "onerror=alert" in text_of(page)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({}, "none of the findings"),
        ([], "empty"),
        (3, "none of the findings"),
        ({"error": {"kind": "UsageError"}}, "none of the findings"),
        ({"rows": 3, "problem": "x", "world": "y"}, "rows"),
        ({"ranking": [{"score": "much"}], "problem": "p"}, "ranking"),
        ({"id": "x", "claims": [{"metric": 7}]}, "metric"),
        ({"grid": {"x": 1}, "values": [], "id": "x", "claim": {}}, "grid"),
    ],
)
def test_what_is_no_finding_is_named(data, named):
    with pytest.raises(UsageError, match=named):
        documents_of(data, "x.json")


def test_files_that_are_no_documents_are_named(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        read_documents(tmp_path / "none.json")
    (tmp_path / "half.json").write_text('{"rows": [')
    with pytest.raises(UsageError, match="not JSON"):
        read_documents(tmp_path / "half.json")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(UsageError, match="not JSON"):
        read_documents(tmp_path / "deep.json")


# -- the command


def test_the_command_takes_runs_and_documents(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run_command(["run", "flood", "--world", "lan:3", "--json"]) == 0
    (tmp_path / "run.json").write_text(capsys.readouterr().out)
    (tmp_path / "check.json").write_text(json.dumps([VERDICTS.to_json()]))
    assert run_command(["report", "run.json", "last", "check.json", "--json", "-o", "r.html"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["bytes"] == (tmp_path / "r.html").stat().st_size < reports.MOST_B
    assert len(document["runs"]) == 2 and document["runs"][1] == "check.json"  # last is the run
    text = text_of((tmp_path / "r.html").read_text())
    assert "flood" in text and "holds in part" in text


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["nothing.json"], "cannot be read"),
        (["ffff"], "there is no run"),
        (["last", "-o", "no/where/r.html"], "there is no folder"),
        (["last", "-o", "."], "is a folder"),
        (["last", "-o", "r.pdf"], "end the name in .html"),
    ],
)
def test_the_command_refuses_by_name_and_writes_nothing(
    words, named, tmp_path, monkeypatch, capsys
):  # fmt: skip
    monkeypatch.chdir(tmp_path)
    run_command(["run", "flood", "--world", "lan:3"])
    capsys.readouterr()
    assert run_command(["report", *words]) == 64
    assert named in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.html"))


def test_a_full_disk_is_an_error_and_leaves_no_half_file(tmp_path, monkeypatch):
    import os

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    before = tmp_path / "r.html"
    before.write_text("what was there")
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StoreError, match="No space left on device"):
        reports.write(VERDICTS, before)
    assert before.read_text() == "what was there"
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]
