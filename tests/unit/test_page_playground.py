"""The playground and the timeline over HTTP: what they answer, and what they refuse."""

from __future__ import annotations

import asyncio
import functools
import json

import pytest
from tests.unit.lab_toys import Race, Racer

from orrery import run
from orrery.lab import discover, playback
from orrery.lab.discover import ask_problem, load
from orrery.lab.spec import spec_of
from orrery.lab.store import Store
from orrery.page.http import Request
from orrery.page.server import Server
from orrery.page.views import playground, timeline
from orrery.world import Crash

LIMIT_B = 300_000
OPEN = {"system": "raft", "seed": 7, "problem_knobs": {"clients": 2, "ops": 6}}


class Page:
    """A server that is asked without a socket, through its guard and its router."""

    def __init__(self, store):
        self.loop = asyncio.new_event_loop()
        self.server = Server(0, store=store)
        self.address = self.loop.run_until_complete(self.server.start())

    def ask(self, method, path, query=None, body=None, **headers):
        own = f"{self.address.host}:{self.address.port}"
        sent = {"host": own, "authorization": f"Bearer {self.address.token}"}
        data = b""
        if method == "POST":
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            sent |= {"origin": f"http://{own}", "content-type": "application/json"}
        sent |= {name.replace("_", "-"): text for name, text in headers.items()}
        request = Request(method=method, path=path, query=query or {}, body=data,
                          headers={k: v for k, v in sent.items() if v is not None})  # fmt: skip
        answer = self.loop.run_until_complete(self.server.answer(request))
        assert len(answer.body) < LIMIT_B or path.endswith("trace.json")
        return answer.status, json.loads(answer.body)

    def get(self, path, **query):
        return self.ask("GET", path, query)

    def post(self, path, body, **headers):
        return self.ask("POST", path, None, body, **headers)

    def close(self):
        self.loop.run_until_complete(self.server.close())
        self.loop.close()


@pytest.fixture(scope="module", autouse=True)
def read_once():
    """Read the catalogue once for each id: that is most of the work of opening a playground."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(discover, "find", functools.cache(discover.find))
        yield


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return Store(tmp_path_factory.mktemp("home"))


def stored(store, part, problem, world, seed, name=""):
    spec = spec_of(part, problem=problem, world=world, seed=seed, name=name)
    return store.save(run(part, problem=problem, world=world, seed=seed), spec)


@pytest.fixture(scope="module")
def kept(store):
    """The id of a stored run of Raft in which a node crashes."""
    problem = ask_problem("replicated_store", {"clients": 2, "ops": 6})
    world = problem.world().with_faults(Crash(node=1, at_s=0.3, until_s=0.6))
    return stored(store, load("raft")(), problem, world, 5, "raft")


@pytest.fixture(scope="module")
def page(store):
    made = Page(store)
    yield made
    made.close()


@pytest.fixture(scope="module")
def room(page):
    status, found = page.post("/api/playground", OPEN)
    assert status == 200, found
    return f"/api/playground/{found['id']}"


# -- the playground


def test_a_playground_is_named_by_the_hash_of_what_it_is(page, room):
    _, again = page.post("/api/playground", OPEN)
    assert f"/api/playground/{again['id']}" == room and len(again["id"]) == 20
    _, other = page.post("/api/playground", {**OPEN, "seed": 8})
    assert other["id"] != again["id"]
    assert again["title"] == "Raft" and again["tree"][0]["id"] == "main"


def test_the_choices_are_systems_of_nodes(page):
    _, found = page.get("/api/playground/choices")
    ids = {each["id"] for each in found["systems"]}
    assert {"raft", "pbft", "push-gossip"} <= ids
    assert "lan" in {each["name"] for each in found["worlds"]}


def test_crash_look_rewind_fork_compare_save(page, room):
    _, scene = page.get(f"{room}/at", at="0.5")
    leader = next(n["id"] for n in scene["nodes"] if n.get("is") == "leader")
    body = {"branch": "main", "at_s": 0.5, "action": "crash", "nodes": [leader]}
    status, found = page.post(f"{room}/edit", body)
    assert status == 200 and found["words"] == f"node {leader} crashes"
    _, later = page.get(f"{room}/at", at="1.1", branch="main")
    new = [n["id"] for n in later["nodes"] if n.get("is") == "leader"]
    assert len(new) == 1 and new[0] != leader and later["counts"]["down"] == 1
    _, before = page.get(f"{room}/at", at="0.4")
    assert before["counts"]["down"] == 0
    _, forked = page.post(f"{room}/fork", {"branch": "main", "at_s": 0.45})
    assert forked["branch"] == "b1" and forked["tree"][1]["edits"] == []
    _, difference = page.get(f"{room}/compare", a="main", b="b1")
    assert difference["first"]["time_s"] >= 0.5
    _, saved = page.get(f"{room}/test", branch="main")
    assert saved["file"] == f"test_raft_crash_{leader}.py" and "DIGEST" in saved["source"]
    _, story = page.get(f"{room}/story", node=str(leader), at="0.6", branch="main")
    assert story["past"][0]["words"] == "crashes"
    _, step = page.get(f"{room}/step", at="0.5", branch="main")
    assert step["next"]["time_s"] > 0.5
    _, view = page.get(f"{room}/diagram", branch="main")
    assert ["down", "Crash", 0.5] in [mark[:3] for mark in view["marks"]]
    _, gone = page.post(f"{room}/undo", {"branch": "main", "place": 0})
    assert gone["tree"][0]["edits"] == []
    status, found = page.post(f"{room}/remove", {"branch": "b1"})
    assert status == 200 and len(found["tree"]) == 1


def test_a_stored_run_can_be_played_with_and_saved(page, kept):
    status, found = page.post("/api/playground", {"run": kept})
    assert status == 200 and found["name"] == "raft"
    _, scene = page.get(f"/api/playground/{found['id']}/at", at="0.4")
    assert scene["counts"]["down"] == 1
    _, saved = page.get(f"/api/playground/{found['id']}/test")
    space: dict = {}
    exec(saved["source"], space)
    next(value for name, value in space.items() if name.startswith("test_"))()


def test_only_so_many_playgrounds_are_kept(page, room, monkeypatch):
    monkeypatch.setattr(playground, "KEPT", 2)
    for seed in (21, 22, 23):
        page.post("/api/playground", {**OPEN, "seed": seed})
    status, found = page.get(room)
    assert status == 404 and "open its system again" in found["error"]["message"]
    page.post("/api/playground", OPEN)


HOSTILE_OPENINGS = [
    {}, {"system": ""}, {"system": "os:system"}, {"system": "../raft"}, {"system": "raft/x"},
    {"system": "no-such"}, {"system": 7}, {"system": None}, {"system": ["raft"]},
    {"system": "raft", "world": "/etc/passwd"}, {"system": "raft", "world": "a.toml"},
    {"system": "raft", "world": "lan:1e9"}, {"system": "raft", "world": "lan:-5"},
    {"system": "raft", "world": "lan:99999999999999999999"}, {"system": "raft", "world": "lan:0"},
    {"system": "raft", "world": "leo_shell:9999,9999"}, {"system": "raft", "world": "lan:n=x"},
    {"system": "raft", "problem": "broadcast"}, {"system": "raft", "problem": "m.py:P"},
    {"system": "raft", "seed": -1}, {"system": "raft", "seed": 1.5},
    {"system": "raft", "seed": "7"},
    {"system": "raft", "seed": 1 << 64}, {"system": "raft", "knobs": {"nope": 1}},
    {"system": "raft", "knobs": {"election_s": 0}}, {"system": "raft", "knobs": {"batch": "x/y"}},
    {"system": "raft", "knobs": {"__class__": 1}}, {"system": "raft", "knobs": [1]},
    {"system": "raft", "problem_knobs": {"ops": -1}}, {"system": "raft", "extra": 1},
    {"system": "raft", "problem_knobs": {"ops": {"a": 1}}}, {"run": "zz"}, {"run": "../../etc"},
    {"run": "abcdef0123"}, {"run": "0" * 65}, {"system": "raft", "run": "abcdef0123"},
    [], "raft", 3, None,
]  # fmt: skip


@pytest.mark.parametrize("body", HOSTILE_OPENINGS, ids=repr)
def test_a_hostile_opening_is_refused(page, body):
    status, found = page.post("/api/playground", body)
    assert status in (400, 404) and found["error"]["message"]


HOSTILE_EDITS = [
    {"action": "crash"}, {"action": "eval", "nodes": [0]}, {"action": "__init__", "nodes": [0]},
    {"action": "crash", "nodes": [5]}, {"action": "crash", "nodes": [-1]},
    {"action": "crash", "nodes": ["0"]}, {"action": "crash", "nodes": [0.5]},
    {"action": "crash", "nodes": [True]}, {"action": "crash", "nodes": []},
    {"action": "crash", "nodes": [0] * 5}, {"action": "crash", "nodes": 0},
    {"action": "crash", "nodes": [1 << 70]}, {"action": "crash", "nodes": [0], "at_s": -1},
    {"action": "crash", "nodes": [0], "at_s": 1e300},
    {"action": "crash", "nodes": [0], "at_s": "0"},
    {"action": "crash", "nodes": [0], "value": 3}, {"action": "slow", "nodes": [0], "value": 0},
    {"action": "slow", "nodes": [0], "value": 1e9}, {"action": "lag", "nodes": [0, 1], "value": 0},
    {"action": "cut", "nodes": [0]}, {"action": "cut", "nodes": [0, 0]},
    {"action": "heal", "nodes": [0, 1]}, {"action": "restart", "nodes": [0]},
    {"action": "split", "nodes": [0, 1, 2, 3, 4]}, {"action": "crash", "nodes": [0], "x": 1},
    {"action": "crash", "nodes": [0], "branch": "no"}, {"action": "crash", "nodes": [0],
                                                        "branch": "../x"},
    {"action": None, "nodes": [0]}, {"action": "crash" * 9999, "nodes": [0]},
    {"action": "crash", "nodes": list(range(30_000))},
]  # fmt: skip


@pytest.mark.parametrize("body", HOSTILE_EDITS, ids=lambda b: repr(b)[:60])
def test_a_hostile_edit_is_refused_and_changes_nothing(page, room, body):
    page.post("/api/playground", OPEN)
    _, before = page.get(room)
    status, found = page.post(f"{room}/edit", {"branch": "main", "at_s": 0.3, **body})
    assert status == 400 and found["error"]["message"]
    assert page.get(room)[1]["tree"] == before["tree"]


HOSTILE_BRANCHES = [
    ("fork", {"branch": "zz", "at_s": 0.1}), ("fork", {"branch": "main", "at_s": -1}),
    ("fork", {"branch": "main", "at_s": "x"}), ("fork", {"branch": "main", "title": '"""'}),
    ("fork", {"branch": "main", "title": "x" * 999}), ("fork", {"branch": "main", "title": "a\nb"}),
    ("fork", {}), ("fork", {"branch": 3}), ("remove", {"branch": "main"}),
    ("remove", {"branch": "b77"}), ("undo", {"branch": "main", "place": 0}),
    ("undo", {"branch": "main", "place": -1}), ("undo", {"branch": "main", "place": "0"}),
    ("undo", {"branch": "main", "place": 1e99}),
]  # fmt: skip


@pytest.mark.parametrize(("what", "body"), HOSTILE_BRANCHES, ids=repr)
def test_a_hostile_word_on_branches_is_refused(page, room, what, body):
    page.post("/api/playground", OPEN)
    assert page.post(f"{room}/{what}", body)[0] == 400


HOSTILE_LOOKS = [
    ("at", {"at": "-1"}), ("at", {"at": "nan"}), ("at", {"at": "inf"}), ("at", {"at": "1e99"}),
    ("at", {"at": "0x1"}), ("at", {"at": " 1"}), ("at", {"at": "1_0"}), ("at", {"branch": "../x"}),
    ("at", {"branch": "b99"}), ("at", {"branch": "x" * 99}), ("at", {"what": "1"}),
    ("step", {"node": "6"}), ("step", {"node": "-1"}), ("step", {"back": "2"}),
    ("story", {"node": "99"}), ("story", {"node": "a"}), ("story", {"node": "1.5"}),
    ("diagram", {"lanes": "0"}), ("diagram", {"lanes": "9999"}), ("diagram", {"lo": "99"}),
    ("diagram", {"lo": "3", "hi": "3"}), ("diagram", {"hi": "7"}), ("diagram", {"bins": "0"}),
    ("diagram", {"bins": "4096"}), ("diagram", {"pin": "1;2"}), ("diagram", {"pin": "99"}),
    ("diagram", {"pin": ",".join(["1"] * 40)}), ("diagram", {"from": "2", "until": "1"}),
    ("diagram", {"from": "9999"}), ("compare", {"a": "main", "b": "b9"}),
    ("compare", {"a": "$", "b": "main"}), ("test", {"branch": "x.py"}), ("test", {"file": "/tmp"}),
]  # fmt: skip


@pytest.mark.parametrize(("what", "query"), HOSTILE_LOOKS, ids=repr)
def test_a_hostile_look_is_refused(page, room, what, query):
    page.post("/api/playground", OPEN)
    assert page.ask("GET", f"{room}/{what}", query)[0] == 400


@pytest.mark.parametrize(("changed", "status"), [
    ({"origin": "http://evil.example"}, 403), ({"origin": None}, 403), ({"origin": "null"}, 403),
    ({"authorization": "Bearer x"}, 401), ({"authorization": None}, 401),
    ({"content_type": "text/plain"}, 415), ({"host": "evil.example"}, 421),
    ({"content_type": "application/x-www-form-urlencoded"}, 415),
    ({"sec_fetch_site": "cross-site"}, 403),
])  # fmt: skip
def test_a_change_needs_the_token_our_origin_and_json(page, room, changed, status):
    body = {"branch": "main", "at_s": 0.3, "action": "crash", "nodes": [0]}
    for path in ("/api/playground", f"{room}/edit", f"{room}/fork", f"{room}/undo"):
        assert page.post(path, body, **changed)[0] == status


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[" * 5000, b'{"branch": NaN}', b"null"])
def test_a_body_that_is_no_object_is_refused(page, room, body):
    for path in ("/api/playground", f"{room}/edit", f"{room}/fork"):
        assert page.post(path, body)[0] == 400


def test_changing_by_get_and_looking_by_post_are_refused(page, room):
    assert page.get(f"{room}/edit")[0] == 405
    assert page.post(f"{room}/at", {})[0] == 405
    assert page.get("/api/playground/0123456789abcdef")[0] == 404
    assert page.get("/api/playground/UPPER")[0] == 404


def test_a_run_too_long_is_refused_by_name(page, monkeypatch):
    monkeypatch.setattr(playground, "LIMITS", playback.Limits(events=20_000))
    body = {"system": "raft", "problem_knobs": {"ops": 400}}
    status, found = page.post("/api/playground", body)
    assert status == 400 and "more than 20,000 events" in found["error"]["message"]


# -- the timeline


def test_the_timeline_of_a_stored_run(page, kept):
    status, found = page.get(f"/api/timeline/{kept}")
    assert status == 200 and found["same"] and found["nodes"] == 5
    _, sums = page.get(f"/api/timeline/{kept}/totals")
    assert {"ask", "serve", "down"} <= {row["kind"] for row in sums["totals"]}
    _, view = page.get(f"/api/timeline/{kept}/view", **{"from": "0.25", "until": "0.5"})
    assert view["spans"] and view["lanes"][1]["name"] == "node 1"
    _, hits = page.get(f"/api/timeline/{kept}/search", find="append")
    assert hits["count"] > 0
    _, diagram = page.get(f"/api/timeline/{kept}/diagram", lanes="4")
    assert len(diagram["lanes"]) <= 4
    _, trace = page.get(f"/api/timeline/{kept}/trace.json")
    assert {event["ph"] for event in trace["traceEvents"]} >= {"X", "M"}


def test_a_run_of_strange_code_is_not_run_by_the_page(page, store):
    id = stored(store, Racer(), Race(), Race().world(), 1)
    for status, found in (page.get(f"/api/timeline/{id}"), page.post("/api/playground",
                                                                     {"run": id})):  # fmt: skip
        assert status == 400 and "runs no other code" in found["error"]["message"]


def test_a_run_is_made_once_however_many_look(page, kept, monkeypatch):
    page.get(f"/api/timeline/{kept}")

    def again(*_, **__):
        raise AssertionError("the run was made a second time")

    monkeypatch.setattr(timeline.playback, "play", again)
    assert page.get(f"/api/timeline/{kept}/view")[0] == 200


@pytest.mark.parametrize(("what", "query"), [
    ("/view", {"from": "-1"}), ("/view", {"from": "1", "until": "1"}), ("/view", {"lanes": "99"}),
    ("/view", {"find": "x" * 61, "lanes": "1"}), ("/view", {"lo": "77"}), ("/view", {"path": "/"}),
    ("/search", {"find": "y" * 61}), ("/search", {"q": "a"}), ("/diagram", {"bins": "x"}),
    ("/diagram", {"from": "1e999"}), ("/trace.json", {"name": "../../x"}), ("", {"x": "1"}),
])  # fmt: skip
def test_a_hostile_look_at_a_timeline_is_refused(page, kept, what, query, monkeypatch):
    monkeypatch.setattr(timeline.tracks, "MOST_SPANS", 10)
    assert page.ask("GET", f"/api/timeline/{kept}{what}", query)[0] == 400


@pytest.mark.parametrize("id", ["00000000", "..", "deadbeef" * 8, "latest", "%2e%2e"])
def test_a_timeline_that_is_not_there(page, id):
    assert page.get(f"/api/timeline/{id}")[0] in (400, 404)
