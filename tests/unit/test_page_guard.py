"""Hostile requests: every one is refused with a 4xx, the page lives, and nothing was started.

Each request is a right one with one thing made wrong, so that it is that thing which is refused;
`test_the_right_requests_are_answered` shows that the unchanged ones pass, and
`test_a_guard_switched_off_is_noticed` that the collection finds a guard that is missing.
"""

from __future__ import annotations

import json
import socket
import time

import pytest
from tests.unit.page_toys import NoJobs, Page, read_answer

from orrery.page import asks, http
from orrery.page.guard import Guard
from orrery.page.router import Router

RUN = {"kind": "run", "system": "push-gossip", "seed": 1, "world": "lan:5"}
COMPARE = {"kind": "compare", "problem": "broadcast", "seeds": 2}
WHEN = {"kind": "when", "system": "taper", "claim": 0, "x": {"name": "rate_per_s", "lo": 1,
    "hi": 2},
        "y": {"name": "branchy", "lo": 0.1, "hi": 1}}  # fmt: skip

FOREIGN_HOSTS = [
    "", "evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "127.0.0.1:{port}.evil",
    "127.0.0.1.evil.example:{port}", "rebind.127.0.0.1.nip.io:{port}", "0.0.0.0:{port}",
    "[::1]:{port}", "localhost", "localhost:80", "localhost.evil.example:{port}",
    "user@127.0.0.1:{port}", "127.0.0.1:{port}@evil.example", "127.1:{port}", "2130706433:{port}",
    "0x7f.0.0.1:{port}", "127.0.0.1:0{port}", "127.0.0.1:{port}, evil.example", "localhost.:{port}",
    "http://127.0.0.1:{port}", "127.0.0.1:{port}/", "10.0.0.1:{port}",
    "make-1-2-3-4-rr.1u.ms:{port}",
]  # fmt: skip
FOREIGN_ORIGINS = [
    "null", "http://evil.example", "https://127.0.0.1:{port}", "http://127.0.0.1", "file://",
    "http://127.0.0.1:1", "http://localhost.evil:{port}", "http://127.0.0.1:{port}.evil.example",
    "http://evil.example#http://127.0.0.1:{port}", "http://127.0.0.1:{port}/", "*", "",
    "http://127.0.0.1:{port} http://evil.example", "chrome-extension://abcdef",
    "http://[::1]:{port}",
    "http://localhost:{port}",
]  # fmt: skip
PATHS = [
    "/../etc/passwd", "/static/../../../etc/passwd", "/static/..", "/..", "/./", "/static/./app.js",
    "/static/%2e%2e/app.py", "/static/%2E%2E%2Fapp.py", "/static/..%2fguard.py",
    "/%2e%2e/%2e%2e/etc",
    "/static/%252e%252e/x", "/static/..%5c..%5cx", "/static/..\\..\\x", "/static/%c0%ae%c0%ae/x",
    "/static/%u002e%u002e/x", "/static/....//x", "//etc/passwd", "/static//app.js",
    "/static/app.js/",
    "/static/%00", "/static/app.js%00.css", "/static/app.js;x", "/static/guard.py", "/static/index",
    "/static/.app.js", "/static/~root", "/api/runs/../about", "/api/runs/%2e%2e", "/api/runs/..",
    "/api/runs/xyz", "/api/runs/short", "/api/runs/DEADBEEFDEADBEEF", "/api/runs/" + "a" * 65,
    "/api/runs/deadbeef/../..", "/api/runs/deadbeef%20", "/api/runs/deadbeef/report/x",
    "/api/runs/last",
    "/api/jobs/..", "/api/jobs/nothex00", "/api/jobs/%64eadbeef", "/api/systems/..",
    "/api/systems/-x",
    "/api/systems/Push-Gossip", "/api/systems/" + "a" * 65, "/api/systems/push%2dgossip",
    "/api/systems/os:system", "/api/systems/x.py:Y", "/api/problems/..", "/api/problems/etc/passwd",
    "/api/systems/push-gossip/maps/zz", "/api/systems/push-gossip/maps/deadbeef", "/api", "/admin",
    "/api/unknown", "/.git/config", "/etc/passwd", "*", "api/about", "http://127.0.0.1/",
    "/api/about#x",
    "/\u00e9", "/api/jobs/events/x", "/favicon.ico/..",
]  # fmt: skip
QUERIES = [
    "/api/about?x=1", "/api/runs?path=/etc/passwd", "/api/runs?q=%00", "/api/runs?q=%",
    "/api/runs?q=%zz",
    "/api/runs?q=%ff", "/api/runs?q=a&q=b", "/api/runs?offset=-1", "/api/runs?offset=x",
    "/api/runs?limit=0",
    "/api/runs?limit=1e3", "/api/runs?limit=99999", "/api/runs?offset=99999999999999999999",
    "/api/runs?q=" + "a" * 3000, "/api/runs?Q=1", "/api/runs?=1", "/api/runs?q[]=1", "/api/side",
    "/api/side?runs=", "/api/side?runs=deadbeef", "/api/side?runs=deadbeef,deadbeef",
    "/api/side?runs=../x,../y",
    "/api/side?runs=" + ",".join(f"{i:08x}" for i in range(7)),
    "/api/side?runs=deadbeef,/etc/passwd",
    "/api/side?runs=deadbeef,cafebabe", "/api/runs?q=a%0d%0aX:1", "/?token=guess",
    "/static/app.js?x=1",
    "/api/catalogue?callback=evil",
]  # fmt: skip
METHODS = [
    "PUT",
    "DELETE",
    "PATCH",
    "OPTIONS",
    "TRACE",
    "CONNECT",
    "PROPFIND",
    "get",
    "Get",
    "G\u00e9T",
    "GET\t",
    "X" * 20,
]
FORMS = [
    "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain", "",
    "text/json",
    "application/json; charset=utf-7", "application/jsonp", "application/json, text/plain",
    "application/xml",
    "text/plain; application/json",
]  # fmt: skip
WORLDS = [
    "/etc/passwd", "../x.toml", "x.toml", "lan.toml", "./lan", "--engine", "-x",
    "--engine=processes", "lan:5 --x",
    "lan:5;rm", "lan:$(id)", "lan:`id`", "lan:5|x", "lan:5\n", "lan:\u0000", "lan:nan", "lan:inf",
    "lan:-1",
    "lan:1e9", "lan:999999999", "lan:a", "lan:n=5,n=6", "lan:os=1", "lan:5,5,5", "nowhere:5",
    "LAN:5", "lan:",
    "lan::5", "lan:5:", " lan:5", "continuum:100000,1000,10", "file:///etc/passwd", "http://evil/x",
    "\\\\evil\\x",
    "lan:" + "1" * 90, "~/x.toml", "%2e%2e/x",
]  # fmt: skip
FIELDS = [
    {"kind": "shell"}, {"kind": None}, {"system": "os:system"}, {"system": "../x"},
    {"system": "x.py:Y"},
    {"system": "--help"}, {"system": ""}, {"system": "PUSH-GOSSIP"}, {"system": ["push-gossip"]},
    {"system": None},
    {"system": "no-such-system"}, {"system": "push_gossip "}, {"system": "push-gossip\n"},
    {"knobs": {"fanout": "4\n"}}, {"knobs": {"fanout\n": 4}},
     {"system": "a" * 65}, {"seed": -1}, {"seed": 1.5},
    {"seed": "1"}, {"seed": 1 << 63}, {"seed": True}, {"engine": "ray"}, {"engine": "--json"},
    {"engine": ""},
    {"extra": 1}, {"faults": "/etc/passwd"}, {"spans_out": "/tmp/x.json"}, {"trace": "/etc/passwd"},
    {"jobs": 99},
    {"record": True}, {"report": "/tmp/x.html"}, {"until": 1}, {"knobs": []},
    {"knobs": {"nope": 1}},
    {"knobs": {"fanout": "many"}}, {"knobs": {"fanout": "nan"}}, {"knobs": {"fanout": -3}},
    {"knobs": {"fanout": None}},
    {"knobs": {"fanout": {}}}, {"knobs": {"fanout": [1]}}, {"knobs": {"period_s": "inf"}},
    {"knobs": {"period_s": "-nan"}},
    {"knobs": {"__class__": "x"}}, {"knobs": {"fanout=1 --engine": "x"}}, {"knobs": {"": 1}},
    {"knobs": {"fanout": "3;id"}},
    {"knobs": {"fanout": "/etc/passwd"}}, {"knobs": {"fanout": "../x"}},
    {"knobs": {"fanout": "x" * 300}},
    {"knobs": {f"k{i}": 1 for i in range(65)}}, {"problem_knobs": {"nope": 1}},
    {"problem_knobs": {"values": "1,settle_s=9"}},
    {"problem_knobs": {"values": "os:x"}}, {"problem_knobs": {"values": "x"}}, {"world": 5},
    {"world": None},
]  # fmt: skip
COMPARES = [
    {"problem": "nope"}, {"problem": "../x"}, {"problem": "os:system"},
    {"problem": "broadcast:values=1"},
    {"systems": ["nope"]}, {"systems": ["raft"]}, {"systems": "flood"}, {"systems": ["flood",
    "flood"]},
    {"systems": ["flood,push-gossip"]}, {"systems": ["--all"]}, {"systems": [None]}, {"by": "nope"},
    {"by": "--json"},
    {"by": ["x"]}, {"seeds": 0}, {"seeds": -1}, {"seeds": 100000}, {"seeds": "2"},
    {"world": "/etc"}, {"jobs": 4},
    {"kind": "choose", "seeds": 1}, {"kind": "choose", "flips": "yes"},
    {"problem_knobs": {"trace": "x.csv"}},
]  # fmt: skip
WHENS = [
    {"claim": 99}, {"claim": -1}, {"claim": "0"}, {"x": "rate=1:2"}, {"x": {}},
    {"points": 1_000_000},
    {"x": {"name": "--engine", "lo": 0, "hi": 1}}, {"x": {"name": "a=1:2", "lo": 0, "hi": 1}},
    {"x": {"name": "a", "lo": 2, "hi": 1}}, {"x": {"name": "a", "lo": 0, "hi": 1, "log": True}},
    {"x": {"name": "a", "lo": 0, "hi": 1, "more": 1}}, {"x": {"name": "../a", "lo": 0, "hi": 1}},
    {"out": "/tmp/x.svg"}, {"system": "push-gossip"},
]  # fmt: skip
BODIES = {
    "empty": b"", "not JSON": b"hello", "a list": b"[]", "a number": b"1", "null": b"null",
    "a text": b'"run"',
    "cut": b'{"kind": "run"', "NaN": b'{"kind":"run","system":"push-gossip","seed":NaN}',
    "a NUL": b'{"kind":"run\x00"}',
    "Infinity": b'{"kind":"run","system":"push-gossip","seed":Infinity}',
    "not UTF-8": b'{"kind":"\xff\xfe"}',
    "deep lists": b"[" * 20_000, "deep objects": b'{"a":' * 9_000,
    "deep and closed": b"[" * 9_000 + b"]" * 9_000,
    "a comment": b'{"kind":"check"/**/,"system":"raft"}', "single quotes": b"{'kind':'check'}",
    "a BOM": b"\xef\xbb\xbf{}",
    "a trailing comma": b'{"kind":"check","system":"raft",}', "two values": b"{}{}",
    "a lone surrogate": b'{"kind":"\\ud800"}',
    "a large number": b'{"kind":"run","system":"push-gossip","seed":' + b"9" * 5000 + b"}",
    "a form": b"kind=check&system=raft",
    "pickle": b"\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00K\x01.",
    "XML": b"<?xml version='1.0'?><!DOCTYPE x>",
}  # fmt: skip


def hostile(page):
    """(name, bytes) of every hostile request, for a page."""
    port = str(page.port)
    job = json.dumps(RUN).encode()
    for text in FOREIGN_HOSTS:
        host = text.replace("{port}", port)
        yield f"host {text}", page.get(Host=host)
        yield f"host of the shell {text}", page.get("/", Host=host)
        yield f"host of a POST {text}", page.post("/api/jobs", RUN, Host=host)
    yield "no host", page.get(drop=("Host",))
    for text in FOREIGN_ORIGINS:
        origin = text.replace("{port}", port)
        yield f"origin of a GET {text}", page.get(Origin=origin)
        yield f"origin of a POST {text}", page.post("/api/jobs", RUN, Origin=origin)
    yield "no origin", page.post("/api/jobs", RUN, drop=("Origin",))
    for site in ("cross-site", "same-site", "", "Same-Origin", "none, same-origin"):
        yield f"fetch site {site}", page.get(Sec_Fetch_Site=site)
        yield f"fetch site of a POST {site}", page.post("/api/jobs", RUN, Sec_Fetch_Site=site)
    yield "a POST from the address bar", page.post("/api/jobs", RUN, Sec_Fetch_Site="none")
    yield from _tokens(page)
    for path in PATHS:
        yield f"path {path[:40]}", page.get(path)
    for path in QUERIES:
        yield f"query {path[:40]}", page.get(path)
    for method in METHODS:
        yield f"method {method}", page.head(method) + b"\r\n\r\n"
    for path in ("/", "/static/app.js", "/api/about", "/api/catalogue", "/api/jobs/events"):
        yield f"POST to {path}", page.post(path, {})
    for path in ("/api/session", "/api/jobs/deadbeef/cancel"):
        yield f"GET of {path}", page.get(path)
    for kind in FORMS:
        yield f"content type {kind}", page.post("/api/jobs", RUN, Content_Type=kind)
    yield "no content type", page.post("/api/jobs", RUN, drop=("Content-Type",))
    yield "a packed body", page.post("/api/jobs", RUN, Content_Encoding="gzip")
    for name, body in BODIES.items():
        yield f"body: {name}", page.post("/api/jobs", body)
        yield f"session: {name}", page.post("/api/session", body)
    for world in WORLDS:
        yield f"world {world[:30]!r}", page.post("/api/jobs", {**RUN, "world": world})
        yield (
            f"world of compare {world[:30]!r}",
            page.post("/api/jobs", {**COMPARE, "world": world}),
        )
    for change in FIELDS:
        yield f"run {str(change)[:50]}", page.post("/api/jobs", {**RUN, **change})
    for change in COMPARES:
        yield f"compare {str(change)[:50]}", page.post("/api/jobs", {**COMPARE, **change})
    for change in WHENS:
        yield f"when {str(change)[:50]}", page.post("/api/jobs", {**WHEN, **change})
    yield "cancel of nothing", page.post("/api/jobs/deadbeefdeadbeef/cancel", {})
    yield "cancel with fields", page.post("/api/jobs/deadbeefdeadbeef/cancel", {"all": True})
    yield from _malformed(page, job)


def _tokens(page):
    name = page.server.guard.cookie
    session = page.server.guard.session
    for path in ("/api/about", "/api/catalogue", "/api/ledger", "/api/runs", "/api/jobs",
    "/api/jobs/events",
                 "/api/worlds", "/api/problems", "/api/systems/raft"):  # fmt: skip
        yield f"no token {path}", page.get(path, drop=("Cookie",))
    yield "no token on a POST", page.post("/api/jobs", RUN, drop=("Cookie",))
    for cookie in ("", f"{name}=", f"{name}=x", f"{name}={session[:-1]}", f"{name}={session}x",
    f"x{name}={session}",
                   f"{name}={page.address.token}", f"{name}={session}; {name}=x",
                   f"{name}-x={session}",
                   f"{name.upper()}={session}", f"orrery={session}",
                   f'{name}="{session}"'):  # fmt: skip
        yield f"cookie {cookie[:24]}", page.get(Cookie=cookie)
        yield f"cookie of a POST {cookie[:24]}", page.post("/api/jobs", RUN, Cookie=cookie)
    key = page.server.guard.key
    yield "no key", page.post("/api/jobs", RUN, drop=("X-Orrery-Key",))
    for word in ("", "x", key[:-1], key + "x", session, page.address.token, key.swapcase()):
        yield f"key {word[:8]}", page.post("/api/jobs", RUN, X_Orrery_Key=word)
        yield (
            f"key to cancel {word[:8]}",
            page.post(f"/api/jobs/{'ab' * 10}/cancel", {}, X_Orrery_Key=word),
        )
    yield "the key alone", page.post("/api/jobs", RUN, drop=("Cookie",))
    right = page.address.token
    for word in ("", "Bearer", "Bearer ", "Bearer x", f"bearer {right}", f"Basic {right}",
    f"Bearer {right[:-1]}",
                 f"Bearer {right} x", f"Bearer {session}", right, f"Bearer  {right}",
                 "Bearer \u00e9"):  # fmt: skip
        yield f"bearer {word[:12]}", page.get(Authorization=word, drop=("Cookie",))
        yield f"a wrong bearer beside the cookie {word[:12]}", page.get(Authorization=word)
    for token in (
        "",
        "x",
        right[:-1],
        right + "x",
        right.swapcase(),
        "a" * 201,
        session,
        " " + right,
    ):
        yield f"session {token[:8]}", page.post("/api/session", {"token": token})
    yield "session with more", page.post("/api/session", {"token": right, "admin": True})
    yield "session with a number", page.post("/api/session", {"token": 1})
    yield (
        "session from elsewhere",
        page.post("/api/session", {"token": right}, Origin="http://evil.example"),
    )
    yield "session without origin", page.post("/api/session", {"token": right}, drop=("Origin",))


def _malformed(page, job):
    """What two readers of HTTP could take for two different things."""
    head, length = page.head("POST", "/api/jobs"), len(job)
    cl, te = f"\r\nContent-Length: {length}".encode(), b"\r\nTransfer-Encoding: chunked"
    end = b"\r\n\r\n"
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (length, job)
    yield "CL and TE", head + cl + te + end + chunks
    yield "TE and CL", head + te + cl + end + chunks
    yield "TE alone", head + te + end + chunks
    for word in (
        "identity",
        "Chunked",
        " chunked",
        "chunked, identity",
        "x",
        "\tchunked",
        "gzip, chunked",
    ):
        yield f"TE {word!r}", head + cl + f"\r\nTransfer-Encoding:{word}".encode() + end + job
    yield (
        "TE with a space before the colon",
        head + cl + b"\r\nTransfer-Encoding : chunked" + end + job,
    )
    yield "two lengths", head + cl + cl + end + job
    yield "two different lengths", head + cl + b"\r\nContent-Length: 0" + end + job
    for word in ("+5", "-1", "0x10", "5, 5", "5 5", "1e2", "", "9" * 12, " ", "5;", "\u00b2"):
        field = f"\r\nContent-Length: {word}".encode("latin-1")
        yield f"length {word!r}", head + field + end + job
    yield "no length", head + end + job
    yield "a length over the limit", head + b"\r\nContent-Length: 65537" + end + job
    yield "a GET with a body", page.head() + b"\r\nContent-Length: 5" + end + b"hello"
    yield "a smuggled second request", head + cl + te + end + job + page.get("/api/catalogue")
    yield "bare LF", page.get().replace(b"\r\n", b"\n")
    yield "one bare LF", page.get().replace(b"\r\nCookie", b"\nCookie")
    yield "bare CR", page.get().replace(b"\r\nCookie", b"\rCookie") + end
    yield "LF CR", page.get().replace(b"\r\n", b"\n\r")
    yield "a folded header", page.head() + b"\r\nX-A: a\r\n b" + end
    yield "a header without a colon", page.head() + b"\r\nnonsense" + end
    yield "a header without a name", page.head() + b"\r\n: x" + end
    for name in ("X A", "X\tA", "X(A)", "X\u00e9", "X@", '"X"', "X" * 65):
        yield f"header name {name[:8]!r}", page.head() + f"\r\n{name}: x".encode("latin-1") + end
    for letter in (b"\x00", b"\x01", b"\x7f", b"\x1b", b"\x08"):
        yield f"control {letter!r} in a value", page.head() + b"\r\nX-A: a" + letter + end
        yield (
            f"control {letter!r} in the path",
            page.get("/api/about").replace(b"about", b"ab" + letter, 1),
        )
    for name in ("Host", "Cookie", "Origin", "Content-Type", "Authorization", "X-A"):
        twice = f"\r\n{name}: {page.host}\r\n{name}: {page.host}".encode()
        yield f"{name} twice", page.head(drop=(name,)) + twice + end
    yield "a large header", page.head() + b"\r\nX-A: " + b"a" * 20_000 + end
    yield "many headers", page.head() + b"".join(b"\r\nX-%d: a" % i for i in range(100)) + end
    yield "a long path", page.get("/" + "a" * 9000)
    yield "a path over the whole head", page.get("/" + "a" * 40_000)
    for version in (
        b"HTTP/1.0",
        b"HTTP/2.0",
        b"HTTP/0.9",
        b"HTTP/1.1 x",
        b"http/1.1",
        b"HTTP/1.10",
        b"",
        b"FTP/1.1",
    ):
        yield f"version {version!r}", page.get().replace(b"HTTP/1.1", version, 1)
    yield "no version", b"GET /" + end
    yield "a TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 100 + b"\n" + end
    yield "HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    yield "an absolute address", page.get(f"http://{page.host}/api/about")
    yield (
        "a websocket",
        page.get(Upgrade="websocket", Connection="Upgrade", Sec_WebSocket_Version="13"),
    )
    yield "h2c", page.get(Upgrade="h2c", Connection="Upgrade, HTTP2-Settings")
    yield "expect", page.post("/api/jobs", RUN, Expect="100-continue")
    yield "an empty line first", end + page.get()
    yield "spaces in the request line", page.get().replace(b"GET /", b"GET  /", 1)


def offenders(page):
    """The names of hostile requests that were not refused with a 4xx."""
    found = []
    for name, data in hostile(page):
        status, headers, _ = page.send(data, timeout_s=4.0)
        if not 400 <= status < 500:
            found.append(f"{name}: {status}")
        elif "content-security-policy" not in headers or "set-cookie" in headers:
            found.append(f"{name}: {status} without its headers")
    return found


@pytest.fixture
def page(tmp_path):
    with Page(tmp_path / "home", head_s=1.5, body_s=1.0) as made:
        yield made


def test_more_than_200_hostile_requests_are_refused(page, tmp_path):
    requests = list(hostile(page))
    assert len({data for _, data in requests}) > 500
    assert offenders(page) == []
    status, about = page.ask("/api/about")
    assert status == 200 and about["name"] == "orrery"
    assert page.app.jobs.jobs == {} and page.app.jobs._folder is None
    # The catalogue keeps what it has read of the stems; nothing else may have been written.
    left = [path for path in tmp_path.rglob("*") if path.is_file() and "cache" not in path.parts]
    assert left == []


def test_the_right_requests_are_answered(page):
    page.server.app.jobs = asked = NoJobs()
    assert page.send(page.get("/"))[0] == 200
    assert page.send(page.get("/", drop=("Cookie",)))[0] == 200
    assert page.send(page.get("/static/app.js", drop=("Cookie",)))[0] == 200
    assert page.send(page.get())[0] == 200
    assert page.send(page.get(Host=f"localhost:{page.port}"))[0] == 200
    assert page.send(page.get(Sec_Fetch_Site="same-origin", Origin=page.origin))[0] == 200
    bearer = {"Authorization": f"Bearer {page.address.token}", "drop": ("Cookie",)}
    assert page.send(page.get(**bearer))[0] == 200
    assert page.tell("/api/jobs", RUN, **bearer)[0] == 202
    for body in (RUN, COMPARE, WHEN, {"kind": "check", "system": "raft"}):
        assert page.tell("/api/jobs", body)[0] == 202
    choose = {"kind": "choose", "problem": "broadcast", "by": "", "flips": False}
    knobs = {**RUN, "knobs": {"fanout": "4", "period_s": 0.1}, "problem_knobs": {"values": 3}}
    for body in (choose, knobs):
        assert page.tell("/api/jobs", body)[0] == 202
    assert asked.asked[0] == ["run", "push-gossip", "--seed", "1", "--engine", "virtual",
                              "--world", "lan:5"]  # fmt: skip
    assert asked.asked[-1][6:] == ["--set", "fanout=4", "--set", "period_s=0.1", "--problem",
                                   "broadcast:values=3", "--world", "lan:5"]  # fmt: skip


def _nothing(*args, **kwargs):
    return None


SWITCHES = {
    "the Host check": (Guard, "check_host", _nothing, "host"),
    "the Origin check": (Guard, "check_origin", _nothing, "origin"),
    "the content type": (Guard, "check_post", _nothing, "content type"),
    "the token": (Guard, "check_token", _nothing, "no token"),
    "the key": (Guard, "check_key", _nothing, "key"),
    "the comparison of secrets": (None, "orrery.page.guard.same", lambda a, b: True, "session"),
    "the length": (None, "orrery.page.http._length",
                   lambda method, headers: int(headers.get("content-length", 0) or 0), "TE"),
    "the world": (asks, "check_world", _nothing, "world"),
    "the knobs": (asks, "_settings", lambda cls, knobs, library: {}, "run"),
}  # fmt: skip


@pytest.mark.parametrize("which", sorted(SWITCHES))
def test_a_guard_switched_off_is_noticed(tmp_path, monkeypatch, which):
    owner, name, stub, expected = SWITCHES[which]
    if owner is None:
        monkeypatch.setattr(name, stub)
    else:
        monkeypatch.setattr(owner, name, stub)
    with Page(tmp_path / "home", head_s=0.3, body_s=0.3) as page:
        page.server.app.jobs = NoJobs()
        found = [name for name, data in hostile(page) if _passes(page, name, data, expected)]
    assert found, f"without {which} nothing came through: the collection cannot see it"


def _passes(page, name, data, expected):
    """Whether a request of the expected kind gets through; the others are not sent again."""
    if not name.startswith(expected):
        return False
    return not 400 <= page.send(data, timeout_s=2.0)[0] < 500


def test_a_route_that_takes_any_query_is_noticed(tmp_path, monkeypatch):
    def lax(self, request):
        request.query = {}
        return find(self, request)

    find = Router.find
    monkeypatch.setattr(Router, "find", lax)
    with Page(tmp_path / "home") as page:
        assert page.send(page.get("/api/about?x=1"))[0] == 200
        assert any(_passes(page, name, data, "query /api/about") for name, data in hostile(page))


# -- time and crowds


def test_a_slow_head_and_a_slow_body_are_cut_off(tmp_path):
    with Page(tmp_path / "home", head_s=0.4, body_s=0.4, idle_s=0.4) as page:
        for start in (b"GET /api/about HTT", page.head() + b"\r\n", page.head("POST",
        "/api/jobs") + (
                b"\r\nContent-Length: 9\r\n\r\n{")):  # fmt: skip
            assert page.send(start, timeout_s=5.0)[0] == 408
        with socket.create_connection(("127.0.0.1", page.port), 5) as silent:
            silent.settimeout(5)
            assert silent.recv(10) == b""
        assert page.send(page.get())[0] == 200


def test_a_byte_at_a_time_does_not_buy_more_time(tmp_path):
    with Page(tmp_path / "home", head_s=0.5) as page:
        with socket.create_connection(("127.0.0.1", page.port), 5) as line:
            line.settimeout(5)
            for letter in page.get():
                try:
                    line.sendall(bytes([letter]))
                except OSError:
                    break
                time.sleep(0.02)
            assert read_answer(line)[0] in (408, 0)
        assert page.send(page.get())[0] == 200


def test_too_many_connections_are_turned_away(tmp_path):
    with Page(tmp_path / "home", most_connections=8) as page:
        lines = [socket.create_connection(("127.0.0.1", page.port), 5) for _ in range(8)]
        for line in lines:
            line.sendall(b"GET /")
        statuses = [page.send(page.get())[0] for _ in range(5)]
        for line in lines:
            line.close()
        assert statuses == [429] * 5
        for _ in range(100):
            if page.send(page.get())[0] == 200:
                break
            time.sleep(0.02)
        assert page.send(page.get())[0] == 200


def test_the_queue_of_jobs_is_bounded(page, monkeypatch):
    jobs = page.app.jobs
    monkeypatch.setattr(jobs, "_start_next", lambda: None)
    codes = [page.tell("/api/jobs", {"kind": "check", "system": "raft"})[0] for _ in range(34)]
    assert codes == [202] * 32 + [429] * 2


def test_limits_are_what_the_documents_say():
    assert (http.MOST_HEAD_B, http.MOST_BODY_B, http.MOST_FIELDS) == (16_384, 65_536, 64)
