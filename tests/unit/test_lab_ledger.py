"""The ledger: append-only, torn lines, newest wins, resets."""

from __future__ import annotations

import json
import multiprocessing
import os
import re

import pytest
from tests.unit.lab_toys import Race  # noqa: F401 - named as a problem below

from orrery import World
from orrery.base.errors import StoreError, UsageError
from orrery.lab import ledger as ledgers
from orrery.lab.claims import Claim, Verdict
from orrery.lab.ledger import Ledger

PROBLEM = "tests.unit.lab_toys:Race"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("ORRERY_HOME", str(tmp_path / "home"))


@pytest.fixture
def book(tmp_path):
    return Ledger(tmp_path / "results" / "ledger.jsonl")


def claim_of(**more):
    return Claim(**{"metric": "time_s", "form": "direction", "world": "lan:2", **more})


def judged(claim, word="holds", world=None):
    return Verdict(claim=claim, verdict=word, measured=1.5, lo=1.4, hi=float("inf"),
                   world=world or World.lan(2).hash)  # fmt: skip


def test_a_verdict_comes_back(book):
    claim = claim_of()
    book.record_verdict("x", judged(claim))
    found = Ledger(book.path).verdict("x", claim, PROBLEM)
    assert found["verdict"] == "holds"
    assert found["hi"] is None
    assert {"schema", "date", "version", "machine", "digest", "world"} <= set(found)
    assert book.verdict("y", claim, PROBLEM) is None


def test_the_newest_wins(book):
    claim = claim_of()
    for word in ("holds", "not here"):
        book.record_verdict("x", judged(claim, word))
    assert book.verdict("x", claim, PROBLEM)["verdict"] == "not here"
    assert len(list(book.lines())) == 2


@pytest.mark.parametrize("change", [{"says": "9x"}, {"off": {"trick": False}}, {"seeds": 5}])
def test_a_changed_claim_forgets_its_verdict(book, change):
    book.record_verdict("x", judged(claim_of()))
    assert book.verdict("x", claim_of(**change), PROBLEM) is None
    assert book.verdict("x", claim_of(setting="told to people only"), PROBLEM)


def test_a_changed_world_forgets_its_verdict(book, tmp_path):
    path = World.lan(2).save(tmp_path / "w.toml")
    claim = claim_of(world=str(path))
    book.record_verdict("x", judged(claim, world=World.lan(2).hash))
    assert book.verdict("x", claim, PROBLEM)
    World.lan(2, drop=0.1).save(path)
    assert book.verdict("x", claim, PROBLEM) is None
    path.unlink()
    assert book.verdict("x", claim, PROBLEM) is None


def test_states_and_engines(book):
    book.record_works_when("x", 2, "a line", "impossible-here", reason="needs 8 GPUs")
    book.record_engine("x", "virtual", True)
    book.record_engine("x", "processes", True)
    book.record_engine("x", "processes", False)
    assert book.works_when("x", 2, "a   line")["reason"] == "needs 8 GPUs"
    assert book.works_when("x", 2, "another line") is None
    assert book.engines("x") == ["virtual"]


@pytest.mark.parametrize("cut", [1, 5, 40, 100])
def test_a_torn_line_is_skipped_and_closed(book, cut):
    book.record_engine("x", "virtual", True)
    whole = book.path.read_bytes()
    book.record_engine("x", "processes", True)
    book.path.write_bytes(whole + book.path.read_bytes()[len(whole) : -cut])
    fresh = Ledger(book.path)
    assert fresh.engines("x") in (["virtual"], ["processes", "virtual"])
    fresh.record_engine("y", "virtual", True)
    assert Ledger(book.path).engines("y") == ["virtual"]
    assert Ledger(book.path).engines("x")[-1] == "virtual"


def test_foreign_lines_are_passed_over(book):
    book.record_engine("x", "virtual", True)
    newer = {"schema": 99, "kind": "engine", "id": "x", "engine": "moon", "state": "passed"}
    lines = [json.dumps(newer), "[1]", "nonsense", "", '{"kind": "other"}', "\x00"]
    with book.path.open("a") as file:
        file.write("\n".join(lines) + "\n")
    assert Ledger(book.path).engines("x") == ["virtual"]


def test_bad_records_are_refused_and_nothing_is_written(book):
    for wrong in (
        {"kind": "verdcit", "id": "x"},
        {"kind": "engine", "id": ""},
        {"kind": "verdict", "id": "x", "verdict": "yes"},
        {"kind": "engine", "id": "x", "engine": object()},
    ):
        with pytest.raises((UsageError, StoreError)):
            book.append(wrong)
    with pytest.raises(UsageError, match="unmet"):
        book.record_works_when("x", 1, "t", "umet")
    assert not book.path.exists()
    book.record_verdict("x", Verdict(claim=Claim(metric="m", form="none", untestable="u")))
    assert not book.path.exists()


def test_a_full_disk_is_named(book, monkeypatch):
    book.record_engine("x", "virtual", True)
    real = os.write
    monkeypatch.setattr(ledgers.os, "write", lambda fd, data: real(fd, data[:7]))
    with pytest.raises(StoreError, match="free some space"):
        book.record_engine("x", "processes", True)
    monkeypatch.undo()
    assert Ledger(book.path).engines("x") == ["virtual"]
    book.record_engine("x", "processes", True)
    assert Ledger(book.path).engines("x") == ["processes", "virtual"]


def _write_many(path, name):
    book = Ledger(path)
    for i in range(25):
        book.record_engine(f"{name}-{i}", "virtual", True)


def test_many_writers_lose_nothing(book):
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_write_many, args=(book.path, n)) for n in "abc"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert len(Ledger(book.path).newest()) == 75


def test_where_the_ledger_is(tmp_path, monkeypatch):
    root = ledgers.checkout()
    assert root is not None
    monkeypatch.delenv("ORRERY_LEDGER", raising=False)
    assert Ledger.default().path == root / "results" / "ledger.jsonl"
    monkeypatch.setattr(ledgers, "checkout", lambda: None)
    assert Ledger.default().path == tmp_path / "home" / "ledger.jsonl"
    assert Ledger.default().older
    monkeypatch.setenv("ORRERY_LEDGER", str(tmp_path / "mine.jsonl"))
    assert Ledger.default().path == tmp_path / "mine.jsonl"


def test_an_older_book_counts_first(tmp_path):
    old, new = Ledger(tmp_path / "old"), Ledger(tmp_path / "new", (tmp_path / "old",))
    old.record_engine("x", "virtual", True)
    assert new.engines("x") == ["virtual"]
    new.record_engine("x", "virtual", False)
    assert Ledger(tmp_path / "new", (tmp_path / "old",)).engines("x") == []
    assert old.engines("x") == ["virtual"]


def test_no_folder_of_this_machine_gets_into_the_book(book):
    from orrery.lab.ledger import checkout, home

    reason = f"KeyError ({checkout()}/src/orrery/lab/run.py:3), kept in {home()}/runs/3f"
    book.record_works_when("x", 1, "a line", "unmet", reason=reason)
    assert book.works_when("x", 1, "a line")["reason"] == (
        "KeyError (src/orrery/lab/run.py:3), kept in runs/3f"
    )
    assert str(checkout()) not in book.path.read_text()


def test_the_books_of_the_project_name_no_folder_of_a_machine():
    from orrery.lab.ledger import checkout

    folder = re.compile(r"[( \"'](/[a-z]+/|[A-Z]:\\\\)")
    for path in sorted((checkout() / "results").iterdir()):
        for line in path.read_text().splitlines():
            assert not folder.search(line), f"{path.name}: {line[:200]}"
