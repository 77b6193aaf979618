"""`orrery feed` as people call it."""

from __future__ import annotations

import pytest
from tests.unit.test_cli_kit import cli, refused
from tests.unit.test_lab_feed import DATED, xml

TAPER = ("2605.12345v1", "Regulating Branch Parallelism in LLM Serving", "We regulate branches.")
KEYS = ["title", "arxiv", "date", "url", "duplicates_of", "system", "status"]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("ORRERY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.xml").write_bytes(xml(TAPER, ("2605.00009v1", "Folding Towels", "Robots.")))
    (tmp_path / "b.txt").write_text(DATED.replace("Clocks: On Drift", TAPER[1]))
    return tmp_path


def test_json_has_a_row_for_every_entry():
    told = cli("feed", "a.xml", "b.txt", "--json")
    assert told.code == 0
    rows = told.json
    assert len(rows) == 4
    assert all(list(row)[: len(KEYS)] == KEYS for row in rows)
    assert [row["system"] for row in rows] == ["taper", None, "taper", None]
    assert rows[0]["arxiv"] == "2605.12345v1"
    assert rows[0]["status"] in ("planned", "working", "checked")
    assert rows[0]["claims"][0]["testable"] is True
    assert rows[2]["duplicates_of"] == TAPER[1]
    assert "a.xml: 2 entries (atom)" in told.err


def test_people_get_tables_and_sums():
    told = cli("feed", "a.xml", "b.txt")
    assert told.code == 0
    assert "4 entries, 3 papers, 1 repeats (0 retitled), 1 matched" in told.out
    assert "again in b.txt, entry 1: the same title" in told.out
    assert "not in the catalogue\n  Folding Towels" in told.out


def test_only_some():
    assert len(cli("feed", "a.xml", "b.txt", "--only", "repeats", "--json").json) == 1
    assert len(cli("feed", "a.xml", "b.txt", "--only", "unmatched", "--json").json) == 2
    assert len(cli("feed", "a.xml", "b.txt", "--only", "matched", "--json").json) == 2
    assert 'did you mean "matched"' in refused("feed", "a.xml", "--only", "mached")


def test_what_cannot_be_read_is_named(place):
    (place / "empty").write_bytes(b"")
    assert "empty: is empty" in refused("feed", "a.xml", "empty")
    assert "nope.xml: no such file" in refused("feed", "nope.xml")
    assert "is a folder" in refused("feed", str(place))
    assert refused("feed")


def test_a_feed_cannot_steer_the_terminal(place):
    data = DATED.replace("Clocks: On Drift", "Clocks \x1b[31m\x07: On Drift")
    (place / "c.txt").write_text(data)
    told = cli("feed", "c.txt")
    assert "\x1b" not in told.out + told.err
    assert "\x07" not in told.out
