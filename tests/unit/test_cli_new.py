"""`orrery new`: what it writes works and passes its own tests; it never overwrites."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.test_cli_kit import cli, refused

from orrery.cli import new
from orrery.lab.questions import questions
from orrery.lab.stems import read_stem
from orrery.world import World

SOURCE = Path(new.__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ORRERY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ORRERY_LEDGER", str(tmp_path / "ledger.jsonl"))
    place = tmp_path / "work"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


def run_their_tests(folder):
    """Run the tests that were written, and the doctests, as their owner would."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--doctest-modules", "."],
        cwd=folder, capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]


def test_what_is_written_passes_its_own_tests_and_the_laws(folder):
    made = cli("new", "system", "my_gossip", "--json")
    assert made.json["files"] == ["my_gossip.py", "my_gossip.toml", "test_my_gossip.py"]
    assert read_stem(folder / "my_gossip.toml").problem == "broadcast"
    assert cli("new", "problem", "my_question").code == 0
    run_their_tests(folder)


@pytest.mark.slow
def test_a_system_for_every_problem_passes_its_own_tests_and_the_laws(folder):
    made = 0
    for one in questions():
        told = cli("new", "system", f"my_{one.id}", "--problem", one.id)
        if told.code == 64:
            assert "no system answers" in told.err
            continue
        assert told.code == 0, told
        assert read_stem(folder / f"my_{one.id}.toml").problem == one.id
        made += 1
    assert made >= 4
    run_their_tests(folder)


def test_what_is_written_is_tidy(folder):
    pytest.importorskip("ruff")
    cli("new", "system", "my_gossip")
    cli("new", "system", "my_ring", "--problem", "lookup")
    cli("new", "problem", "my_question")
    ruff = [sys.executable, "-m", "ruff"]
    for words in (["check", "--select", "E,F,W,UP,B", "--line-length", "100"],
                  ["format", "--check", "--line-length", "100"]):  # fmt: skip
        done = subprocess.run([*ruff, *words, "."], cwd=folder, capture_output=True, text=True,
                              check=False)  # fmt: skip
        assert done.returncode == 0, done.stdout


def test_a_new_system_runs_by_its_file(folder):
    cli("new", "system", "mine_too")
    told = cli("run", "mine_too.py:MineToo", "--problem", "broadcast", "--world", "lan:5", "--json")
    assert told.code == 0, told
    assert told.json["metrics"]["coverage"] == 1.0


def test_a_new_world_loads(folder):
    told = cli("new", "world", "mine", "--json")
    assert told.json["files"] == ["mine.toml"]
    assert World.load("mine.toml").size == 5


def test_what_a_new_world_says_to_do_next_works(folder):
    then = cli("new", "world", "mine", "--json").json["next"].split()
    assert then[0] == "orrery"
    told = cli(*then[1:], "--json")
    assert told.code == 0, told
    assert told.json["violations"] == []


@pytest.mark.parametrize("kind", ["system", "problem", "world"])
def test_a_second_time_is_refused_and_changes_nothing(kind, folder):
    assert cli("new", kind, "my_thing").code == 0
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for path in folder.iterdir():
        path.write_bytes(before[path.name] + b"# mine\n")
    assert "exists already" in refused("new", kind, "my_thing")
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert after == {name: text + b"# mine\n" for name, text in before.items()}


def test_in_a_checkout_the_files_go_to_their_room(tmp_path, monkeypatch):
    root = tmp_path / "checkout"
    (root / "src/orrery/systems/protocols").mkdir(parents=True)
    monkeypatch.setattr("orrery.lab.ledger.checkout", lambda: root.resolve())
    monkeypatch.chdir(root)
    told = cli("new", "system", "protocols/my_gossip", "--json")
    assert [str(Path(path).relative_to(root.resolve())) for path in told.json["files"]] == [
        "src/orrery/systems/protocols/my_gossip.py",
        "src/orrery/systems/protocols/my_gossip.toml",
        "tests/systems/protocols/test_my_gossip.py",
    ]
    test = (root / "tests/systems/protocols/test_my_gossip.py").read_text()
    assert "from orrery.systems.protocols.my_gossip import MyGossip" in test


def test_nothing_is_overwritten(folder):
    (folder / "test_my_gossip.py").write_text("mine")
    assert "exists already" in refused("new", "system", "my_gossip")
    assert (folder / "test_my_gossip.py").read_text() == "mine"
    assert sorted(path.name for path in folder.iterdir()) == ["test_my_gossip.py"]


def test_a_failed_write_leaves_nothing(folder):
    texts = {folder / "a.py": "x", folder / "a.py" / "b.py": "y"}
    with pytest.raises(Exception, match="cannot be written"):
        new.write_all(texts)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ("new",), ("new", "system"), ("new", "systm", "x"), ("new", "system", ""),
        ("new", "system", "random"), ("new", "system", "class"), ("new", "system", "My-System"),
        ("new", "system", "1st"), ("new", "system", "a" * 99), ("new", "system", "x/"),
        ("new", "system", "push_gossip"), ("new", "system", "x", "--problem", "nope"),
        ("new", "problem", "broadcast"), ("new", "world", "w", "--problem", "broadcast"),
        ("new", "system", "../.."), ("new", "system", "a b"),
    ],
)  # fmt: skip
def test_new_refuses_bad_input(words, folder):
    refused(*words)
    assert list(folder.iterdir()) == []
