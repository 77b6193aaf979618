"""The page's HTTP: strict in what it reads, plain in what it sends."""

from __future__ import annotations

import json
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.page_toys import Page, read_answer

from orrery.page import data
from orrery.page.http import HttpError, Request, Response, as_json, head_of, parse_head
from orrery.page.router import Route, Router
from orrery.page.static import KINDS, files


def head(*lines):
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


# -- reading


def test_a_request_is_read():
    request, length = parse_head(
        head("POST /api/runs?q=a+b%20%C3%A9&limit=3 HTTP/1.1", "Host: h:1", "Content-Length: 12")
    )
    assert (request.method, request.path, length) == ("POST", "/api/runs", 12)
    assert request.query == {"q": "a b é", "limit": "3"}
    assert request.headers == {"host": "h:1", "content-length": "12"}


@pytest.mark.parametrize(
    "lines, status",
    [
        (("GET / HTTP/1.1 ",), 400),
        (("GET /a/ HTTP/1.1",), 400),
        (("GET /... HTTP/1.1",), 400),
        (("GET /a%20b HTTP/1.1",), 400),
        (("PUT / HTTP/1.1",), 405),
        (("POST / HTTP/1.1",), 411),
        (("GET / HTTP/1.1", "A : b"), 400),
        (("GET / HTTP/1.1", "A: b", "a: c"), 400),
        (("GET / HTTP/1.1", "Content-Length: 1"), 400),
        (("POST / HTTP/1.1", "Content-Length: 70000"), 413),
        (("POST / HTTP/1.1", "Content-Length: 3\n"), 400),
        (("GET /?" + "a" * 3000 + " HTTP/1.1",), 414),
        (("GET /" + "a" * 9000 + " HTTP/1.1",), 414),
        (("GET / HTTP/1.1", *(f"A{i}: b" for i in range(65))), 431),
    ],
)
def test_what_is_not_plain_is_refused(lines, status):
    with pytest.raises(HttpError) as caught:
        parse_head(head(*lines))
    assert caught.value.status == status


@given(st.binary(max_size=400))
def test_any_bytes_are_a_request_or_a_refusal(junk):
    for data_in in (junk + b"\r\n\r\n", b"GET /" + junk + b" HTTP/1.1\r\n\r\n"):
        try:
            request, length = parse_head(data_in)
        except HttpError as error:
            assert 400 <= error.status < 500
        else:
            assert request.path.startswith("/") and ".." not in request.path.split("/")
            assert request.path.isascii() and "%" not in request.path and length >= 0


@given(st.text(max_size=40))
def test_any_text_comes_back_from_a_query(text):
    import urllib.parse

    line = f"GET /?q={urllib.parse.quote(text, safe='')} HTTP/1.1"
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in text):
        with pytest.raises(HttpError):
            parse_head(head(line))
    else:
        assert parse_head(head(line))[0].query["q"] == text


def test_numbers_of_a_query_have_bounds():
    request = Request(method="GET", path="/", query={"n": "7", "bad": "-1", "far": "99"})
    assert request.whole("n", 1, 0, 10) == 7 and request.whole("other", 3, 0, 10) == 3
    for name in ("bad", "far"):
        with pytest.raises(HttpError, match=name):
            request.whole(name, 1, 0, 10)


# -- sending


def test_a_header_cannot_be_split():
    with pytest.raises(ValueError, match="line break"):
        head_of(Response(headers={"X": "a\r\nSet-Cookie: b"}), {}, length=0)


def test_json_has_no_nan_and_any_object_becomes_text():
    body = json.loads(as_json({"a": float("nan"), "b": [float("inf")], "c": {1}, "d": print}).body)
    assert body == {"a": None, "b": [None], "c": [1], "d": repr(print)}


# -- texts


def test_a_docstring_becomes_blocks():
    text = """Does it.

    More of `it`, **plainly**.

    - one
      goes on
    - two

    width_s   how wide
              it is
    depth     how deep

    >>> 1 + 1
    2
    """
    kinds = [block["kind"] for block in data.blocks_of(text)]
    assert kinds == ["text", "text", "list", "terms", "code"]
    assert data.blocks_of(text)[1]["runs"] == [
        ["t", "More of "], ["c", "it"], ["t", ", "], ["b", "plainly"], ["t", "."]
    ]  # fmt: skip
    assert data.terms_of(text)["width_s"] == [["t", "how wide it is"]]
    assert len(data.blocks_of(text)[2]["items"]) == 2
    assert data.unit_of("bandwidth_Bps") == "B/s" and data.unit_of("fanout") == ""


@given(st.text(max_size=300))
def test_no_letter_of_a_text_is_lost_or_read_as_html(text):
    words = "".join(run[1] for run in data.runs_of(text))
    assert words.replace("`", "").replace("*", "") == " ".join(text.split()).replace(
        "`", ""
    ).replace("*", "")
    data.blocks_of(text)


# -- routes and files


def test_routes_are_exact():
    async def answer(request, app):
        return request.params

    router = Router(
        [Route("GET", "/a/{id}", answer, query=("q",)), Route("POST", "/a/{id}", answer)]
    )
    request = Request(method="GET", path="/a/0123abcd")
    assert router.find(request).method == "GET" and request.params == {"id": "0123abcd"}
    assert router.find(Request(method="HEAD", path="/a/0123abcd")).method == "GET"
    for path in ("/a/0123ABCD", "/a/0123abc", "/a/0123abcd/", "/b", "/a/0123abcd\n"):
        with pytest.raises(HttpError) as caught:
            router.find(Request(method="GET", path=path))
        assert caught.value.status == 404
    with pytest.raises(HttpError):
        router.find(Request(method="GET", path="/a/0123abcd", query={"x": "1"}))
    with pytest.raises(ValueError, match="no piece"):
        Router([Route("GET", "/{path}", answer)])
    with pytest.raises(ValueError, match="repeated"):
        Router([Route("GET", "/", answer), Route("GET", "/", answer)])


def test_every_file_of_the_page_is_in_the_table_and_of_a_known_kind():
    from orrery.page import static

    folder = (static.resources.files("orrery.page") / "static").iterdir()
    assert sorted(files()) == sorted(path.name for path in folder)
    assert all(name[name.rfind(".") :] in KINDS for name in files())
    for name, file in files().items():
        text = file.data.decode()
        if not name.endswith(".svg"):
            assert "http://" not in text.replace("http://www.w3.org/2000/svg", ""), name
        assert "https://" not in text and "innerHTML" not in text and "eval(" not in text, name
        assert "insertAdjacentHTML" not in text and "document.write" not in text, name


@pytest.fixture
def page(tmp_path):
    with Page(tmp_path / "home") as made:
        yield made


def test_one_connection_carries_many_requests(page):
    with socket.create_connection(("127.0.0.1", page.port), 5) as line:
        line.settimeout(5)
        for _ in range(3):
            line.sendall(page.get())
            assert read_answer(line)[0] == 200
        line.sendall(page.get("/api/unknown"))
        assert read_answer(line)[0] == 404
        assert line.recv(10) == b"", "a refused client gets no second try"


def test_head_has_no_body_and_files_are_known_again(page):
    status, headers, body = page.send(page.get("/static/app.js", Connection="close"))
    assert status == 200 and headers["content-type"].startswith("text/javascript") and body
    with socket.create_connection(("127.0.0.1", page.port), 5) as line:
        line.settimeout(5)
        line.sendall(page.head("HEAD", "/static/app.js", Connection="close") + b"\r\n\r\n")
        data_out = b""
        while more := line.recv(65536):
            data_out += more
    assert data_out.endswith(b"\r\n\r\n")
    again = page.send(page.get("/static/app.js", If_None_Match=headers["etag"], Connection="close"))
    assert again[0] == 304 and again[2] == b""


def test_every_answer_carries_the_policy(page):
    for path in ("/", "/static/page.css", "/api/about", "/api/unknown"):
        headers = page.send(page.get(path, Connection="close"))[1]
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
    picture = page.send(page.get("/static/mark.svg", Connection="close"))[1]
    assert "script" not in picture["content-security-policy"]
    assert "sandbox" in picture["content-security-policy"]


def test_the_token_is_exchanged_for_a_strict_cookie(page):
    body = {"token": page.address.token}
    bare = page.post("/api/session", body, drop=("Cookie", "X-Orrery-Key"), Connection="close")
    status, headers, answer = page.send(bare)
    assert status == 200 and json.loads(answer) == {"key": page.server.guard.key}
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    assert page.address.token not in cookie and page.server.guard.key not in cookie
    value = cookie.split(";")[0]
    assert page.send(page.get(Cookie=f"other=1; {value}; more=2"))[0] == 200


def test_a_broken_handler_is_a_500_without_its_inside(tmp_path, capsys):
    def broken(request, app):
        raise RuntimeError("secret inside")

    with Page(tmp_path / "home", routes=[Route("GET", "/api/about", broken)]) as page:
        status, _, body = page.send(page.get())
    assert status == 500 and b"secret" not in body
    assert "secret inside" in capsys.readouterr().err


def test_events_are_streamed(tmp_path):
    async def count(request, app):
        for i in range(3):
            yield {"i": i}

    with Page(tmp_path / "home", routes=[Route("GET", "/api/about", count)]) as page:
        status, headers, body = page.send(page.get())
        only_head = page.send(page.head("HEAD", "/api/about") + b"\r\n\r\n")
    assert only_head[0] == 200 and only_head[2] == b""
    assert status == 200 and headers["content-type"].startswith("text/event-stream")
    assert body == b'data: {"i":0}\n\ndata: {"i":1}\n\ndata: {"i":2}\n\n'
