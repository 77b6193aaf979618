"""What the page shows and starts: catalogue, ledger, systems, runs, jobs; and how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.unit.page_toys import Page

from orrery import World, run
from orrery.lab.discover import entries, load
from orrery.lab.questions import problem_class
from orrery.lab.spec import spec_of
from orrery.lab.store import Store

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def page(own_home, tmp_path):
    with Page(tmp_path / "orrery-home") as made:
        yield made


def make_run(folder, seed, **knobs):
    """A small run of push gossip in the store of a folder; returns its id."""
    part, problem = load("push-gossip")(**knobs), problem_class("broadcast")(values=2)
    world = World.lan(4)
    made = run(part, problem=problem, world=world, seed=seed)
    spec = spec_of(part, problem=problem, world=world, seed=seed, name="push-gossip")
    return Store(folder).save(made, spec)


# -- catalogue and ledger


def test_the_catalogue_is_that_of_the_command_line(page):
    status, found = page.ask("/api/catalogue")
    known = {entry.id: entry for entry in entries()}
    assert status == 200 and {row["id"] for row in found["systems"]} == set(known)
    origins = Counter(row["origin"] for row in found["systems"])
    assert origins["catalogue"] == 135 and origins["classic"] > 0
    for row in found["systems"]:
        entry = known[row["id"]]
        assert (row["status"], row["claims"]) == (entry.status, len(entry.claims))
        assert sum(row["verdicts"].values()) == sum(bool(c["verdict"]) for c in entry.claims)


def test_the_ledger_has_every_claim_with_its_figure(page):
    status, found = page.ask("/api/ledger")
    every = [(entry, claim) for entry in entries() for claim in entry.stem.claims]
    assert status == 200 and len(found["claims"]) == len(every)
    for row, (entry, claim) in zip(found["claims"], every, strict=True):
        assert (row["id"], row["metric"], row["says"]) == (entry.id, claim.metric, claim.says)
        assert row["kind"] in ("measured", "modelled", "published")
        assert (row["verdict"] is None) == (row["kind"] == "published")
        assert (row["says_lo"] is None) == (claim.figure() is None)


# -- systems


def test_a_system_says_how_it_works_and_what_can_be_set(page, tmp_path):
    id = make_run(tmp_path / "orrery-home", 3)
    status, one = page.ask("/api/systems/push-gossip")
    assert status == 200 and one["built"] and one["problem"] == "broadcast"
    knobs = {row["name"]: row for row in one["knobs"]}
    assert knobs["period_s"]["unit"] == "s" and knobs["fanout"]["default"] == "3"
    assert any(block["kind"] == "text" for block in one["doc"])
    assert [row["id"] for row in one["runs"]] == [id]
    assert one["runs"][0]["system"] == "push-gossip" and one["runs"][0]["metrics"]
    assert "flood" in one["peers"]


def test_a_planned_system_has_a_page_too(page):
    planned = next(entry for entry in entries() if not entry.built)
    status, one = page.ask(f"/api/systems/{planned.id}")
    assert status == 200 and not one["built"] and one["knobs"] == [] and one["runs"] == []
    assert page.tell("/api/jobs", {"kind": "check", "system": planned.id})[0] == 422


def test_maps_are_found_by_system_and_key_only(page, tmp_path):
    folder = tmp_path / "orrery-home" / "when"
    folder.mkdir(parents=True)
    key = "0123456789abcdef01234567"
    (folder / f"push-gossip-{key}.svg").write_text("<svg/>")
    (folder / f"evil-push-gossip-{key}.svg").write_text("<svg>evil</svg>")
    (folder / "push-gossip-short.svg").write_text("<svg>evil</svg>")
    assert page.ask("/api/systems/push-gossip")[1]["maps"] == [key]
    status, headers, body = page.send(page.get(f"/api/systems/push-gossip/maps/{key}"))
    assert (status, body) == (200, b"<svg/>") and "sandbox" in headers["content-security-policy"]
    assert page.ask(f"/api/systems/flood/maps/{key}")[0] == 404


def test_problems_and_worlds_are_listed(page):
    listed = {row["id"]: row for row in page.ask("/api/problems")[1]}
    assert "push-gossip" in listed["broadcast"]["systems"]
    one = page.ask("/api/problems/broadcast")[1]
    assert {"coverage"} <= {metric["name"] for metric in one["metrics"]} and one["knobs"]
    worlds = {row["name"]: row for row in page.ask("/api/worlds")[1]}
    assert worlds["lan"]["takes"][0]["name"] == "n"
    assert page.ask("/api/problems/nothing")[0] == 404


# -- runs


def test_runs_are_listed_searched_and_shown(page, tmp_path):
    ids = [make_run(tmp_path / "orrery-home", seed) for seed in (1, 2)]
    found = page.ask("/api/runs")[1]
    assert {row["id"] for row in found["runs"]} == set(ids) and found["total"] == found["all"] == 2
    assert [row["seed"] for row in page.ask("/api/runs?q=gossip%20seed=2")[1]["runs"]] == [2]
    assert page.ask("/api/runs?q=nothing")[1]["total"] == 0
    assert len(page.ask("/api/runs?limit=1&offset=1")[1]["runs"]) == 1
    one = page.ask(f"/api/runs/{ids[0][:8]}")[1]
    assert one["id"] == ids[0] and one["system"] == "push-gossip" and one["knobs"]["fanout"] == "3"
    assert str(tmp_path) not in json.dumps(one), "the page tells no path of this machine"
    assert page.ask("/api/runs/deadbeefdeadbeef")[0] == 404


def test_a_damaged_run_says_so(page, tmp_path):
    id = make_run(tmp_path / "orrery-home", 1)
    (tmp_path / "orrery-home" / "runs" / id / "metrics.json").write_text("{}")
    assert "damaged" in page.ask("/api/runs")[1]["runs"][0]["damaged"]
    assert page.ask(f"/api/runs/{id}")[0] == 409


def test_side_by_side_shows_only_what_differs(page, tmp_path):
    home = tmp_path / "orrery-home"
    ids = [make_run(home, 1), make_run(home, 2), make_run(home, 1, fanout=1)]
    found = page.ask(f"/api/side?runs={','.join(ids)}")[1]
    assert {row["name"] for row in found["facts"]} == {"seed", "knob fanout"}
    assert [row["values"] for row in found["facts"] if row["name"] == "seed"] == [["1", "2", "1"]]
    assert {"name": "engine", "value": "virtual"} in found["same_facts"]
    for row in found["metrics"]:
        assert len({json.dumps(value) for value in row["values"]}) > 1
        if row["better"] == "lower" and row["best"]:
            assert row["values"][row["best"][0]] == min(row["values"])
    for row in found["same_metrics"]:
        assert len({json.dumps(value) for value in row["values"]}) == 1


# -- jobs


def wait_for(check, limit_s=60.0):
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if found := check():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not come to pass")


def over(page, id):
    job = page.ask(f"/api/jobs/{id}")[1]
    return job if job["state"] in ("done", "failed", "cancelled") else None


def test_a_job_runs_tells_and_leaves_a_run(page):
    body = {"kind": "run", "system": "push-gossip", "world": "lan:4", "seed": 5,
            "knobs": {"fanout": 2}, "problem_knobs": {"values": 2}}  # fmt: skip
    status, job = page.tell("/api/jobs", body)
    assert status == 202 and job["command"].startswith("orrery run push-gossip --seed 5")
    done = wait_for(lambda: over(page, job["id"]))
    assert (done["state"], done["exit"], done["error"]) == ("done", 0, "")
    shown = page.ask(f"/api/runs/{done['result']['id']}")[1]
    assert shown["seed"] == 5 and shown["knobs"]["fanout"] == "2"


@pytest.mark.slow
def test_the_report_of_a_run_comes_as_a_file(page, tmp_path):
    id = make_run(tmp_path / "orrery-home", 1)
    status, headers, report = page.send(page.get(f"/api/runs/{id}/report"), 60)
    assert status == 200 and headers["content-disposition"].startswith("attachment")
    assert b"<!doctype html>" in report[:200].lower() and len(report) < 2_000_000
    assert "sandbox" in headers["content-security-policy"]


def test_a_cancelled_job_is_gone_with_all_its_processes(page):
    hard = {"kind": "compare", "problem": "broadcast", "seeds": 1000, "world": "lan:200"}
    page.app.jobs.most_running = 1
    ids = [page.tell("/api/jobs", hard)[1]["id"] for _ in range(2)]
    wait_for(lambda: ids[0] in page.app.jobs._children)
    child = page.app.jobs._children[ids[0]]
    wait_for(lambda: page.ask(f"/api/jobs/{ids[0]}")[1]["done"] > 0)
    now = page.ask(f"/api/jobs/{ids[0]}")[1]
    assert now["state"] == "running" and now["total"] == 2000 and "seed" in now["now"]
    assert page.ask(f"/api/jobs/{ids[1]}")[1]["state"] == "queued"
    for id in reversed(ids):
        assert page.tell(f"/api/jobs/{id}/cancel", {})[1]["state"] == "cancelled"
    with pytest.raises(ProcessLookupError):
        os.killpg(child.pid, 0)
    assert page.tell(f"/api/jobs/{ids[0]}/cancel", {})[0] == 409
    assert page.app.jobs._children == {}


def test_the_stream_of_jobs_begins_with_what_there_is(page, monkeypatch):
    monkeypatch.setattr(page.app.jobs, "_start_next", lambda: None)
    id = page.tell("/api/jobs", {"kind": "check", "system": "raft"})[1]["id"]
    with socket.create_connection(("127.0.0.1", page.port), 5) as line:
        line.settimeout(5)
        line.sendall(page.get("/api/jobs/events"))
        text = b""
        while b"\n\n" not in text.partition(b"\r\n\r\n")[2]:
            text += line.recv(65536)
        assert json.loads(text.partition(b"data: ")[2])["jobs"][0]["id"] == id
        page.tell(f"/api/jobs/{id}/cancel", {})
        assert b"cancelled" in line.recv(65536)


# -- the command


def start(*words, home):
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "ORRERY_HOME": str(home)}
    return subprocess.Popen(
        [sys.executable, "-m", "orrery.cli", "page", *words], env=env, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def read_json(stream):
    text = ""
    while True:
        text += stream.readline()
        try:
            return json.loads(text)
        except ValueError:
            assert len(text) < 10_000


def test_the_command_prints_the_address_and_ends_cleanly(tmp_path):
    page = start("--port", "0", "--json", home=tmp_path)
    told = read_json(page.stdout)
    assert told["host"] == "127.0.0.1" and told["url"].endswith(f"#token={told['token']}")
    with socket.create_connection(("127.0.0.1", told["port"]), 5):
        # A second page on the same port is refused by name.
        second = start("--port", str(told["port"]), home=tmp_path)
        _, said = second.communicate(timeout=60)
        assert second.returncode == 64 and "is in use" in said and "--port 0" in said
        page.send_signal(signal.SIGINT)
        _, said = page.communicate(timeout=30)
    assert page.returncode == 0 and "has ended" in said and "Traceback" not in said


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_children_end_with_a_killed_page(tmp_path):
    import urllib.request

    page = start("--port", "0", "--json", home=tmp_path)
    told = read_json(page.stdout)
    base = f"http://127.0.0.1:{told['port']}"
    body = {"kind": "compare", "problem": "broadcast", "seeds": 1000, "world": "lan:200"}
    headers = {"Authorization": f"Bearer {told['token']}", "Origin": base,
               "Content-Type": "application/json"}  # fmt: skip
    request = urllib.request.Request(f"{base}/api/jobs", json.dumps(body).encode(), headers)
    urllib.request.urlopen(request, timeout=30).close()
    child = wait_for(lambda: children_of(page.pid))[0]
    page.kill()
    page.communicate(timeout=30)
    wait_for(lambda: not alive(child))


def children_of(pid):
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(path.parent.name))
    return found


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
