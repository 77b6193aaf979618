"""The commands that run: run, compare, check, runs, replay, report, verify, bench, tour."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.test_cli_kit import cli, refused

import orrery
from orrery.world import World

SMALL = ("--problem", "broadcast:values=3,settle_s=0.5", "--world", "lan:6")
RUN = {"id", "seed", "engine", "digest", "seconds", "metrics", "violations", "folder"}
CLAIM = {"form", "metric", "says", "says_lo", "says_hi", "against", "measured", "lo", "hi", "off",
         "verdict", "kind", "seeds", "untestable"}  # fmt: skip
BREAKER = '''"""A part that breaks."""
from orrery.parts import rpc
from orrery.systems.protocols.problems.broadcast import Broadcaster

class Breaks(Broadcaster):
    """Divides by nothing."""

    @rpc
    async def broadcast(self, value: int) -> None:
        1 / 0

class Silent(Broadcaster):
    """Takes values and tells nobody."""

    @rpc
    async def broadcast(self, value: int) -> None:
        self.emit(delivered=value)
'''


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("ORRERY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ORRERY_LEDGER", str(tmp_path / "ledger.jsonl"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def parts(tmp_path):
    path = tmp_path / "cli_breakers.py"
    path.write_text(BREAKER)
    return path


# -- run


def test_run_has_the_contracts_shape_and_keeps_a_folder(home):
    told = cli("run", "push-gossip", *SMALL, "--seed", "7", "--json")
    assert told.code == 0
    found = told.json
    assert set(found) >= RUN
    assert (found["seed"], found["engine"], found["violations"]) == (7, "virtual", [])
    assert found["metrics"]["coverage"] == 1.0
    folder = Path(found["folder"])
    assert folder == home / "runs" / found["id"]
    assert (folder / "digest").read_text().strip() == found["digest"]
    assert World.load(folder / "world.json").hash == found["world"]


def test_equal_seeds_give_equal_digests():
    one = cli("run", "push-gossip", *SMALL, "--seed", "1", "--json").json
    same = cli("run", "push-gossip", *SMALL, "--seed", "1", "--json").json
    other = cli("run", "push-gossip", *SMALL, "--seed", "2", "--json").json
    assert one == same
    assert one["digest"] != other["digest"]
    assert one["id"] != other["id"]


def test_run_for_people_says_the_same():
    told = cli("run", "push-gossip", *SMALL, "--set", "fanout=4")
    assert told.code == 0
    assert "coverage" in told.out
    assert "no violations" in told.out


def test_faults_from_a_file_take_part(tmp_path):
    path = tmp_path / "storm.toml"
    path.write_text('[[faults]]\nkind = "Crash"\nnode = 0\nat_s = 0.1\nuntil_s = 0.3\n')
    calm = cli("run", "push-gossip", *SMALL, "--json").json
    storm = cli("run", "push-gossip", *SMALL, "--faults", path, "--json").json
    assert calm["world"] != storm["world"]
    assert calm["digest"] != storm["digest"]


def test_a_violation_is_exit_code_one(parts):
    told = cli("run", f"{parts}:Silent", *SMALL, "--json")
    assert told.code == 1
    assert told.json["violations"][0]["kind"]
    people = cli("run", f"{parts}:Silent", *SMALL)
    assert people.code == 1
    assert "violations" in people.out
    assert "orrery replay" in people.err


def test_a_part_that_breaks_names_node_and_time_without_a_traceback(parts):
    told = cli("run", f"{parts}:Breaks", *SMALL)
    assert told.code == 1
    assert "ZeroDivisionError" in told.err
    assert "node" in told.err
    assert "try: orrery run" in told.err
    document = cli("run", f"{parts}:Breaks", *SMALL, "--json").json
    assert document["error"]["kind"] == "PartError"


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_spans_are_written(tmp_path, suffix):
    path = tmp_path / f"spans{suffix}"
    found = cli("run", "push-gossip", *SMALL, "--spans-out", path, "--json").json
    assert found["spans"] == str(path)
    lines = path.read_text().splitlines()
    assert json.loads(path.read_text() if suffix == ".json" else lines[0])
    plain = cli("run", "push-gossip", *SMALL, "--json").json
    assert plain["digest"] == found["digest"]


@pytest.mark.parametrize(
    "words",
    [
        ("run",), ("run", ""), ("run", "push-gosip"), ("run", "helm"), ("run", "nosuch:Class"),
        ("run", "orrery.parts:Nope"), ("run", "none.py:X"), ("run", ":"), ("run", "a:"),
        ("run", "json:JSONDecoder"),
        ("run", "push-gossip", "--world", "lan:0"), ("run", "push-gossip", "--world", ""),
        ("run", "push-gossip", "--world", "none.toml"),
        ("run", "push-gossip", "--problem", "lookup"),
        ("run", "push-gossip", "--problem", "nope"), ("run", "push-gossip", "--problem", ":"),
        ("run", "push-gossip", "--set", "fanout"), ("run", "push-gossip", "--set", "fanout=0"),
        ("run", "push-gossip", "--set", "fan=1"), ("run", "push-gossip", "--engine", "quantum"),
        ("run", "push-gossip", "--seed", "-1"), ("run", "push-gossip", "--seed", "x"),
        ("run", "push-gossip", "--seed", "99999999999999999999"),
        ("run", "push-gossip", "--until", "0"), ("run", "push-gossip", "--until", "nan"),
        ("run", "push-gossip", "--until", "-1"), ("run", "push-gossip", "--until", "inf"),
        ("run", "push-gossip", "--trace", "none.csv"),
        ("run", "push-gossip", "--faults", "none.toml"),
        ("run", "push-gossip", "--spans-out", "no/where.json"),
        ("run", "push-gossip", "--spans-out", "spans.txt"), ("run", "push-gossip", "--nope"),
        ("run", "push-gossip", "extra"),
    ],
)  # fmt: skip
def test_run_refuses_bad_input_and_keeps_nothing(words, home):
    refused(*words)
    assert not (home / "runs").exists() or list((home / "runs").iterdir()) == []


def test_a_broken_world_or_fault_file_is_named(tmp_path):
    world = tmp_path / "w.toml"
    world.write_text("groups = [{ count = 3, nmae = 'x' }]")
    assert "nmae" in refused("run", "push-gossip", "--world", world)
    world.write_bytes(b"\xff\xfe\x00")
    refused("run", "push-gossip", "--world", world)
    faults = tmp_path / "f.toml"
    faults.write_text('[[faults]]\nkind = "Crash"\nnode = 99\n')
    assert "99" in refused("run", "push-gossip", *SMALL, "--faults", faults)


def test_a_home_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("ORRERY_HOME", str(tmp_path / "file" / "home"))
    told = cli("run", "push-gossip", *SMALL)
    assert told.code == 64
    assert "file" in told.err


def test_run_on_real_processes():
    told = cli("run", "push-gossip", "--problem", "broadcast:values=2,settle_s=0.3", "--world",
               "lan:3", "--engine", "processes", "--json")  # fmt: skip
    assert told.code == 0, told
    assert told.json["engine"] == "processes"


# -- compare


def test_compare_has_the_contracts_shape():
    told = cli("compare", "broadcast:values=3,settle_s=0.5", "--world", "lan:6", "--seeds", "2",
               "--json")  # fmt: skip
    assert told.code == 0
    found = told.json
    assert {"problem", "world", "rows"} <= set(found)
    assert (found["problem"], found["world"]) == ("broadcast", "lan:6")
    assert {"flood", "push-gossip"} <= {row["system"] for row in found["rows"]}
    for row in found["rows"]:
        for metric in row["metrics"].values():
            assert set(metric) == {"mean", "lo", "hi", "unit", "kind"}
            assert metric["kind"] == "modelled"


def test_compare_shows_only_what_differs(tmp_path):
    told = cli("compare", "broadcast:values=3,settle_s=0.5", "--systems", "flood,push-gossip",
               "--world", "lan:6", "--seeds", "2", "--by", "messages_per_value", "-o",
               tmp_path / "c.html")  # fmt: skip
    assert told.code == 0
    assert "the same for all: coverage 1" in told.out
    assert "coverage" not in told.out.splitlines()[1]
    assert (tmp_path / "c.html").read_text().startswith("<!doctype html>")


def test_compare_says_who_violates():
    told = cli("compare", "broadcast:values=3,settle_s=0.5", "--systems", "flood", "--faults",
               _drops(), "--world", "lan:6", "--seeds", "2", "--json")  # fmt: skip
    assert told.code == 1
    assert told.json["rows"][0]["violations"]


def _drops() -> Path:
    path = Path("drops.json")
    path.write_text(json.dumps([{"kind": "Drop", "p": 0.6}]))
    return path


def test_compare_in_several_processes_gives_the_same(home):
    words = ["-m", "orrery.cli", "compare", "broadcast:values=2,settle_s=0.3", "--world", "lan:4",
             "--systems", "push-gossip", "--seeds", "4", "--json"]  # fmt: skip
    source = str(Path(orrery.__file__).resolve().parents[1])
    rows = []
    for more in (["--jobs", "2"], []):
        env = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1",
               "ORRERY_HOME": str(home / f"of{len(more)}")}  # fmt: skip
        done = subprocess.run([sys.executable, *words, *more], env=env, capture_output=True,
                              text=True, timeout=120, check=False)  # fmt: skip
        assert done.returncode == 0, done.stderr
        rows.append(json.loads(done.stdout)["rows"])
    assert rows[0][0]["metrics"] == rows[1][0]["metrics"]


@pytest.mark.parametrize(
    "words",
    [
        ("compare",), ("compare", "nope"), ("compare", "broadcast", "--systems", "nope"),
        ("compare", "broadcast", "--systems", ","), ("compare", "broadcast", "--systems", "chord"),
        ("compare", "broadcast", "--systems", "flood,flood"),
        ("compare", "broadcast", "--seeds", "0"), ("compare", "broadcast", "--by", "nope"),
        ("compare", "broadcast", "--world", "x:1"), ("compare", "broadcast", "--jobs", "0"),
        ("compare", "broadcast", "--engine", "x"), ("compare", "broadcast", "--trace", "x"),
    ],
)  # fmt: skip
def test_compare_refuses_bad_input(words):
    refused(*words)


# -- check


def test_check_gives_one_document_or_a_list():
    found = cli("check", "push-gossip", "--json")
    assert found.code in (0, 1, 2)
    assert found.json["id"] == "push-gossip"
    for claim in found.json["claims"]:
        assert set(claim) == CLAIM
    assert cli("check", "--room", "hardware", "--json").json == []


def test_check_refuses_bad_input():
    refused("check")
    refused("check", "push-gossip", "--all")
    refused("check", "push-gosip")
    refused("check", "--room", "nope")
    refused("check", "helm")


# -- runs, replay, report


def test_runs_are_listed_and_removed(home):
    assert cli("runs", "ls", "--json").json == []
    ids = [cli("run", "push-gossip", *SMALL, "--seed", str(s), "--json").json["id"] for s in (1, 2)]
    rows = cli("runs", "ls", "--json").json
    assert {row["id"] for row in rows} == set(ids)
    assert ids[0][:12] in cli("runs", "ls").out
    assert len(cli("runs", "ls", "--limit", "1", "--json").json) == 1
    refused("runs", "rm", ids[0], "ffffffffffff")
    assert len(cli("runs", "ls", "--json").json) == 2  # one wrong id removes nothing
    assert cli("runs", "rm", ids[0][:10], "--json").json == [ids[0]]
    assert cli("runs", "gc", "--json").json == []
    assert cli("runs", "gc", "--keep", "0", "--json").json == [ids[1]]
    assert cli("runs", "ls", "--json").json == []


def test_a_damaged_run_is_named_and_skipped():
    found = cli("run", "push-gossip", *SMALL, "--json").json
    (Path(found["folder"]) / "metrics.json").write_text("{}")
    told = cli("runs", "ls", "--json")
    assert told.json == []
    assert "damaged" in told.err


def test_runs_refuses_bad_input():
    refused("runs", "rm", "xyz")
    refused("runs", "rm")
    refused("runs", "gc", "--older-than", "soon")
    refused("runs", "gc", "--keep", "-1")
    assert cli("runs").code == 64


def test_replay_verifies_the_digest(tmp_path):
    found = cli("run", "push-gossip", *SMALL, "--seed", "3", "--json").json
    told = cli("replay", found["id"], "--until", "0.1", "--node", "2", "--json")
    assert told.code == 0, told
    assert told.json["same"] is True
    assert told.json["digest"] == found["digest"]
    assert told.json["events"]
    for event in told.json["events"]:
        assert 2 in (event["node"], event.get("to"))
        assert event["start_ns"] <= 0.1e9
    for name in (found["id"][:8], found["folder"], "last", "push-gossip"):
        picture = tmp_path / "p.svg"
        people = cli("replay", name, "-o", picture, "--limit", "3")
        assert people.code == 0, people
        assert "the same digest" in people.out
        assert picture.read_text().lstrip().startswith("<")


def test_a_run_of_a_comparison_can_be_replayed():
    found = cli("compare", "broadcast:values=2,settle_s=0.3", "--systems", "flood", "--world",
                "lan:7", "--seeds", "1", "--json").json  # fmt: skip
    told = cli("replay", found["rows"][0]["runs"][0], "--json")
    assert told.code == 0, told
    assert told.json["same"] is True


def test_replay_notices_another_digest():
    found = cli("run", "push-gossip", *SMALL, "--json").json
    folder = Path(found["folder"])
    manifest = json.loads((folder / "manifest.json").read_text())
    import hashlib

    (folder / "digest").write_text("00" * 16 + "\n")
    manifest["files"]["digest"] = hashlib.sha256((folder / "digest").read_bytes()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    told = cli("replay", found["id"], "--json")
    assert told.code == 1
    assert told.json["same"] is False


def test_replay_and_report_refuse_bad_input():
    refused("replay", "last")
    refused("replay", "nothing")
    refused("replay", "")
    cli("run", "push-gossip", *SMALL)
    refused("replay", "last", "--node", "99")
    refused("replay", "last", "--until", "nan")
    refused("replay", "last", "--world", "lan:9")
    refused("replay", "last", "-o", "p.png")
    refused("report", "nothing")
    refused("report", "last", "-o", "no/where.html")
    refused("report", "last", "-o", "r.txt")


def test_report_is_one_offline_page(tmp_path):
    cli("run", "push-gossip", *SMALL, "--seed", "1")
    cli("run", "flood", *SMALL, "--seed", "1")
    path = tmp_path / "r.html"
    found = cli("report", "push-gossip", "flood", "-o", path, "--title", "<b>ours</b>", "--json")
    assert found.code == 0, found
    assert found.json["path"] == str(path)
    text = path.read_text()
    assert len(text) < 2_000_000
    assert "<b>ours</b>" not in text


# -- verify, bench, tour


def test_verify_determinism(monkeypatch):
    from orrery.lab import determinism

    # The whole suite is for the command itself; a few cases show that it is wired up.
    cases = [*determinism._small_parts(), determinism._case_of("raft", "replicated_store")]
    monkeypatch.setattr(determinism, "suite", lambda broken=None: cases)
    told = cli("verify", "determinism", "--seeds", "1", "--json")
    assert told.code == 0, told
    assert {"runs", "mismatches", "first_divergence"} <= set(told.json)
    assert told.json["mismatches"] == 0
    refused("verify", "determinism", "--seeds", "0")
    refused("verify", "nothing")


def test_verify_exits_one_on_a_mismatch(monkeypatch):
    found = {"runs": 2, "mismatches": 1, "first_divergence": {"seed": 1}}
    monkeypatch.setattr("orrery.lab.determinism.verify_determinism", lambda *a, **k: found)
    assert cli("verify", "determinism", "--json").code == 1
    assert "seed" in cli("verify", "determinism").out


@pytest.mark.slow
def test_bench_kernel():
    pytest.importorskip("simpy")
    told = cli("bench", "kernel", "--scale", "0.005", "--json")
    assert told.code == 0
    for name in ("timers", "messages", "phold", "rpc"):
        row = told.json[name]
        assert row["ratio"] == pytest.approx(row["orrery_per_s"] / row["simpy_per_s"])
    assert told.json["flows"]["per_s"] > 0
    assert told.json["kernel"] in ("c", "python")
    refused("bench", "kernel", "--scale", "nan")
    refused("bench", "kernel", "--scale", "0")
    refused("bench", "kernel", "--kernel", "rust")


def test_tour_is_right_at_a_small_size(tmp_path):
    told = cli("tour", "--nodes", "12", "-o", tmp_path / "tour.html", "--json")
    assert told.code == 0, told
    assert [row["system"] for row in told.json["rows"]] == ["push-gossip", "chord", "raft", "raft"]
    assert all(row["violations"] == 0 for row in told.json["rows"])
    assert (tmp_path / "tour.html").is_file()
    assert Path(told.json["picture"]).read_text().lstrip().startswith("<")
    refused("tour", "--nodes", "4")
    refused("tour", "-o", "no/where.html")
