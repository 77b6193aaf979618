"""The commands that look: list, show, where, problems, worlds, faults, doctor."""

from __future__ import annotations

import json
import tomllib

import pytest
from tests.unit.test_cli_kit import cli, refused

from orrery.world import FAULTS, World, load_faults

LISTED = {"id", "room", "name", "title", "origin", "shape", "problem", "status", "engines",
          "works_when", "claims"}  # fmt: skip


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("ORRERY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ORRERY_LEDGER", str(tmp_path / "ledger.jsonl"))


def test_list_has_every_catalogue_entry_in_the_contracts_shape():
    told = cli("list", "--json")
    assert told.code == 0
    assert sum(row["origin"] == "catalogue" for row in told.json) >= 135
    for row in told.json:
        assert set(row) == LISTED
        assert row["status"] in ("planned", "working", "checked")
        for line in row["works_when"]:
            assert set(line) == {"n", "text", "test", "state", "reason"}
        for claim in row["claims"]:
            assert set(claim) == {"metric", "says", "against", "verdict", "measured", "lo", "hi",
                                  "off", "kind", "date"}  # fmt: skip


def test_list_can_be_narrowed():
    rows = cli("list", "--room", "protocols", "--json").json
    assert {row["room"] for row in rows} == {"protocols"}
    rows = cli("list", "--problem", "broadcast", "--json").json
    assert {"flood", "push-gossip"} <= {row["id"] for row in rows}
    rows = cli("list", "--status", "planned", "--json").json
    assert {row["status"] for row in rows} == {"planned"}
    assert "push-gossip" in cli("list", "--room", "protocols").out


def test_list_refuses_what_is_not_there():
    assert 'did you mean "serve"' in refused("list", "--room", "serv")
    assert 'did you mean "working"' in refused("list", "--status", "workin")
    assert "no problem" in refused("list", "--problem", "nothing")


def test_show_gives_one_entry():
    found = cli("show", "push_gossip", "--json").json
    assert found["id"] == "push-gossip"
    assert set(found) > LISTED
    assert {row["knob"] for row in found["knobs"]} == {"fanout", "period_s"}
    text = cli("show", "push-gossip")
    assert text.code == 0
    assert "fanout" in text.out
    planned = cli("show", "helm")
    assert planned.code == 0
    assert "planned" in planned.out


def test_show_suggests_the_nearest():
    assert 'did you mean "push-gossip"' in refused("show", "push-gosip")
    refused("show", "")


def test_where_ranks_rooms():
    rows = cli("where", "spreads", "news", "to", "all", "machines", "--json").json
    assert rows[0]["problem"] == "broadcast"
    assert all(set(row) == {"problem", "room", "why"} for row in rows)
    assert "orrery new system protocols/" in cli("where", "spreads news to all machines").out
    assert cli("where", "zzzzqqq", "--json").json == []
    refused("where", "the")


def test_problems_lists_and_shows():
    rows = cli("problems", "--json").json
    known = {row["id"]: row for row in rows}
    assert {"broadcast", "lookup", "replicated_store"} <= set(known)
    assert "push-gossip" in known["broadcast"]["systems"]
    one = cli("problems", "broadcast", "--json").json
    assert one["port"] == "Broadcaster"
    assert one["metrics"]["coverage"]["better"] == "higher"
    assert "settle_s" in cli("problems", "broadcast").out
    assert 'did you mean "broadcast"' in refused("problems", "brodcast")


def test_worlds_lists_prints_and_writes(tmp_path):
    rows = cli("worlds", "--json").json
    assert {"lan", "h100_pod", "leo_shell"} <= {row["name"] for row in rows}
    printed = cli("worlds", "h100_pod:2")
    assert World.from_toml(printed.out).size == 2
    one = cli("worlds", "lan:3", "--json").json
    assert World.from_data(one["world"]).hash == one["hash"] == World.lan(3).hash
    path = tmp_path / "w.toml"
    assert cli("worlds", "lan:4", "-o", path).out.strip() == str(path)
    assert World.load(path).size == 4


@pytest.mark.parametrize("name", ["lann:3", "lan:0", "lan:x", "lan:1,2,3", "none.toml", "lan:-1"])
def test_bad_worlds_are_refused(name):
    assert "try: orrery worlds" in refused("worlds", name)


def test_an_unwritable_world_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    refused("worlds", "lan:3", "-o", tmp_path / "file" / "w.toml")
    refused("worlds", "-o", tmp_path / "w.toml")


def test_faults_lists_every_kind():
    rows = cli("faults", "--json").json
    assert {row["kind"] for row in rows} == set(FAULTS)


@pytest.mark.parametrize("kind", sorted(FAULTS))
def test_the_example_of_a_fault_is_one(kind, tmp_path):
    row = cli("faults", kind.lower(), "--json").json
    path = tmp_path / "faults.toml"
    path.write_text(row["example"])
    assert [fault.kind for fault in load_faults(path)] == [kind]
    assert row["example"] in cli("faults", kind).out


def test_an_unknown_fault_is_refused():
    assert 'did you mean "Crash"' in refused("faults", "Crsh")


def test_doctor_tells_what_works(monkeypatch, tmp_path):
    found = cli("doctor", "--json").json
    assert found["ok"] is True
    assert found["kernel"] in ("c", "python")
    assert {"compiler", "torch", "link_shaping", "extras", "home", "data"} <= set(found)
    assert set(found["link_shaping"]) == {"works", "tbf", "htb", "netem", "nft"}
    assert "kernel" in cli("doctor").out


def test_doctor_notices_what_does_not(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("x")
    monkeypatch.setenv("ORRERY_HOME", str(blocked / "home"))
    monkeypatch.setenv("ORRERY_KERNEL", "python")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("sysconfig.get_config_var", lambda name: None)
    found = cli("doctor", "--json").json
    assert found["ok"] is False
    assert found["home_writable"] is False
    assert found["kernel"] == "python"
    assert found["compiler"] is None
    assert found["link_shaping"]["works"] is False


@pytest.mark.slow
def test_calibrate_writes_a_world_with_error_bars(tmp_path):
    path = tmp_path / "here.toml"
    told = cli("calibrate", "--quick", "--nodes", "2", "-o", path, "--disk", tmp_path, "--json")
    assert told.code == 0, told
    measures = told.json["measures"]
    assert set(measures) == {"latency_s", "jitter", "bandwidth_Bps", "fsync_s", "write_Bps",
                             "core_flops", "memory_Bps"}  # fmt: skip
    for each in measures.values():
        assert 0 <= each["lo"] <= each["value"] <= each["hi"]
    world = World.load(path)
    assert world.hash == told.json["hash"]
    assert world.network.latency_s == measures["latency_s"]["value"]
    text = path.read_text()
    assert text.startswith("# This machine")
    assert all(f"# {name} = " in text for name in measures)
    assert tomllib.loads(text)["machines"]["process"]["source"].startswith("measured")


def test_calibrate_refuses_bad_places(tmp_path):
    refused("calibrate", "-o", tmp_path / "no" / "w.toml")
    refused("calibrate", "-o", tmp_path / "w.txt")
    refused("calibrate", "--disk", tmp_path / "no")
    refused("calibrate", "--nodes", "0")
    assert list(tmp_path.glob("*.t*")) == []


def test_json_is_the_only_thing_on_stdout(tmp_path):
    for words in (["list"], ["problems"], ["worlds"], ["faults"], ["show", "flood"]):
        json.loads(cli(*words, "--json").out)
