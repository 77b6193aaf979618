"""A quick start: what is kept between starts, and what a start must not import."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest

from orrery.lab import questions
from orrery.lab.cache import read_cache, write_cache
from orrery.lab.discover import entries, find, load, load_entry
from orrery.lab.ledger import Ledger


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """An empty home, and nothing kept in this process."""
    monkeypatch.setenv("ORRERY_HOME", str(tmp_path))
    questions._read_all.cache_clear()
    yield tmp_path
    questions._read_all.cache_clear()


def test_problems_kept_from_before_are_the_same(fresh):
    first = questions.questions()
    assert msgspec.json.decode(read_cache(questions.CACHE), type=questions.Read).files
    questions._read_all.cache_clear()
    parse = questions._classes
    try:
        questions._classes = lambda path: pytest.fail(f"{path} was read again")
        assert questions.questions() == first
    finally:
        questions._classes = parse


def test_a_changed_file_is_read_again(fresh, tmp_path):
    path = tmp_path / "one.py"
    path.write_text('class Mine(Problem):\n    """Old."""\n')

    def ask():
        stat = path.stat()
        return questions._read_all((("m", "r", str(path), stat.st_size, stat.st_mtime_ns),))

    assert [one.title for one in ask()] == ["Old."]
    path.write_text('class Mine(Problem):\n    """Newer."""\n\nclass _Hidden(Mine): pass\n')
    assert [one.title for one in ask()] == ["Newer."]
    path.write_text("class Broken(:\n")
    assert ask() == ()


@pytest.mark.parametrize(
    "kept", [b"", b"{", b"[]", b'{"stamp": 3}', b'{"stamp": "old", "files": {}}']
)
def test_a_damaged_or_old_cache_is_no_error(fresh, kept):
    write_cache(questions.CACHE, kept)
    assert questions.questions()


def test_the_ledger_answers_as_before(tmp_path):
    book = Ledger(tmp_path / "ledger.jsonl")
    claim = next(e.stem.claims[0] for e in entries() if e.stem.claims)
    assert book.verdict("x", claim, quick=True) is None and book.engines("x") == []
    book.record_engine("x", "virtual", True)
    book.record_engine("x", "processes", False)
    assert book.engines("x") == ["virtual"] and book.engines("y") == []
    book.record_engine("x", "processes", True)  # what was kept is forgotten after a write
    assert book.engines("x") == ["processes", "virtual"]


def test_an_entry_at_hand_loads_as_its_id_does():
    assert load_entry(find("chord")) is load("chord")


def test_help_and_list_import_no_arrays(tmp_path):
    """NumPy alone takes longer to import than the whole of `orrery list` may."""
    script = (
        "import sys\nfrom orrery.cli.app import run_command\n"
        "assert run_command([{words}]) == 0\n"
        "heavy = {{'numpy', 'asyncio', 'torch'}} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    environment = {**os.environ, "ORRERY_HOME": str(tmp_path)}
    for words in ("'--help'", "'list'", "'list', '--json'"):
        done = subprocess.run(
            [sys.executable, "-c", script.format(words=words)], capture_output=True, text=True,
            env=environment,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
