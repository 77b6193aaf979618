"""The OpenAI-compatible endpoint: ordinary clients work, and what is wrong is told in its form."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
import urllib.error
import urllib.request

import pytest

pytest.importorskip("torch", reason="needs the extra torch")

from tests.unit.real_toys import tiny

from orrery.base.errors import Refused, UsageError
from orrery.models.real import Piece, Transformer
from orrery.models.real import server as server_module
from orrery.models.real import service as service_module
from orrery.models.real.openai import Stopper
from orrery.models.real.server import Server
from orrery.models.real.service import Service

MODEL = Transformer.random(tiny(vocab=300, max_context=160), seed=4, dtype="fp64", device="cpu")


@pytest.fixture(scope="module")
def server():
    with Server(Service(MODEL, blocks=60, block_tokens=8, name="toy")).start() as running:
        yield running


def call(server, path, document=None, *, raw=None, headers=None, method=None):
    """(status, parsed body, headers) of one request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    body = raw if raw is not None else json.dumps(document) if document is not None else None
    head = {"Content-Type": "application/json", **(headers or {})}
    connection.request(method or ("GET" if body is None else "POST"), path, body, head)
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    return answer.status, (json.loads(data) if data else None), answer.headers


def events(server, path, document):
    """The documents of a stream, and whether it ended with [DONE]."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request("POST", path, json.dumps({**document, "stream": True}))
    answer = connection.getresponse()
    assert answer.status == 200 and answer.headers["Content-Type"].startswith("text/event-stream")
    lines = [line[6:].strip() for line in answer if line.startswith(b"data: ")]
    connection.close()
    assert lines[-1] == b"[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def greedy(prompt: list[int], count: int) -> list[int]:
    cache, tokens = MODEL.new_cache(30, 8), list(prompt)
    for _ in range(count):
        tokens += MODEL.greedy([Piece(tokens, 0, list(range(30)))], cache)
    return tokens[len(prompt) :]


def as_text(tokens):
    return bytes(t for t in tokens if t < 256).decode("utf-8", "replace")


ASK = {"model": "toy", "prompt": "hello", "max_tokens": 12, "temperature": 0}


def test_models_are_listed(server):
    with urllib.request.urlopen(f"{server.url}/models", timeout=10) as answer:
        listed = json.load(answer)
    assert listed["object"] == "list" and listed["data"][0]["id"] == "toy"
    assert call(server, "/v1/models/toy")[1]["max_model_len"] == 160


def test_a_completion_is_what_the_model_says(server):
    status, got, _ = call(server, "/v1/completions", ASK)
    want = greedy(list(b"hello"), 12)
    assert status == 200 and got["object"] == "text_completion" and got["model"] == "toy"
    assert got["choices"][0]["text"] == as_text(want)
    assert got["choices"][0]["finish_reason"] == "length"
    usage = got["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (5, 12)
    assert usage["total_tokens"] == 17


def test_a_stream_says_the_same_piece_by_piece(server):
    whole = call(server, "/v1/completions", ASK)[1]["choices"][0]["text"]
    pieces = events(server, "/v1/completions", {**ASK, "stream_options": {"include_usage": True}})
    assert "".join(p["choices"][0]["text"] for p in pieces[:-1]) == whole
    assert pieces[-2]["choices"][0]["finish_reason"] == "length"
    assert pieces[-1]["choices"] == [] and pieces[-1]["usage"]["completion_tokens"] == 12
    assert len({p["id"] for p in pieces}) == 1


def test_chat_whole_and_streamed(server):
    ask = {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "max_completion_tokens": 9, "temperature": 0,
    }  # fmt: skip
    got = call(server, "/v1/chat/completions", ask)[1]
    said = got["choices"][0]["message"]
    assert got["object"] == "chat.completion" and said["role"] == "assistant"
    pieces = events(server, "/v1/chat/completions", ask)
    assert pieces[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(p["choices"][0]["delta"].get("content", "") for p in pieces) == said["content"]
    assert pieces[-1]["choices"][0]["finish_reason"] == "length"
    # The second one found the prompt of the first.
    assert call(server, "/v1/chat/completions", ask)[1]["usage"]["prompt_tokens_details"][
        "cached_tokens"
    ]


def test_several_prompts_and_tokens_as_prompts(server):
    got = call(server, "/v1/completions", {**ASK, "prompt": ["hello", "other"]})[1]
    assert [c["index"] for c in got["choices"]] == [0, 1]
    assert got["choices"][0]["text"] == as_text(greedy(list(b"hello"), 12))
    assert got["usage"]["prompt_tokens"] == 10
    tokens = call(server, "/v1/completions", {**ASK, "prompt": list(b"hello")})[1]
    assert tokens["choices"][0]["text"] == got["choices"][0]["text"]


def test_a_stop_text_ends_the_answer_before_it(server):
    whole = call(server, "/v1/completions", {**ASK, "max_tokens": 40})[1]["choices"][0]["text"]
    stop = whole[6:8]
    got = call(server, "/v1/completions", {**ASK, "max_tokens": 40, "stop": [stop, "zzz"]})[1]
    assert got["choices"][0]["text"] == whole[: whole.index(stop)]
    assert got["choices"][0]["finish_reason"] == "stop"
    assert got["usage"]["completion_tokens"] < 40
    pieces = events(server, "/v1/completions", {**ASK, "max_tokens": 40, "stop": stop})
    assert "".join(p["choices"][0]["text"] for p in pieces) == whole[: whole.index(stop)]


def test_draws_follow_the_seed_and_the_temperature(server):
    """Request ids differ, so equal seeds need not draw alike; temperature 0 always does."""
    texts = {call(server, "/v1/completions", ASK)[1]["choices"][0]["text"] for _ in range(3)}
    assert len(texts) == 1
    warm = {**ASK, "temperature": 1.5, "max_tokens": 20}
    drawn = {call(server, "/v1/completions", {**warm, "seed": s})[1]["choices"][0]["text"]
             for s in range(4)}  # fmt: skip
    assert len(drawn) > 1


def test_many_clients_at_once_get_their_own_answers(server):
    prompts = [f"prompt number {i}" for i in range(12)]
    got = {}

    def client(text):
        answer = call(server, "/v1/completions", {**ASK, "prompt": text})[1]
        got[text] = answer["choices"][0]["text"]

    threads = [threading.Thread(target=client, args=(p,)) for p in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert got == {p: as_text(greedy(list(p.encode()), 12)) for p in prompts}
    assert server.service.replica.idle and server.service.replica.faults() == []


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt": ""}, "prompt"), ({"prompt": []}, "prompt"), ({"prompt": 5}, "prompt"),
        ({"prompt": [300]}, "prompt"), ({"prompt": [True]}, "prompt"), ({"prompt": None}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": "9"}, "max_tokens"),
        ({"temperature": -1}, "temperature"), ({"temperature": "hot"}, "temperature"),
        ({"top_p": 1.5}, "top_p"), ({"seed": 1.5}, "seed"), ({"n": 2}, "n"),
        ({"stop": ["a"] * 5}, "stop"), ({"stop": [""]}, "stop"), ({"stream": "yes"}, "stream"),
        ({"stream_options": 3}, "stream_options"), ({"logprobs": 4}, "logprobs"),
        ({"echo": True}, "echo"), ({"max_tokens": 5000}, "messages"),
    ],
)  # fmt: skip
def test_wrong_fields_are_named(server, change, param):
    status, got, _ = call(server, "/v1/completions", {**ASK, **change})
    assert status == 400
    assert got["error"]["param"] == param and got["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "messages",
    [
        None, [], "hi", [3], [{"role": "king", "content": "x"}], [{"role": "user"}],
        [{"role": "user", "content": [{"type": "image_url"}]}],
    ],
)  # fmt: skip
def test_wrong_messages_are_named(server, messages):
    status, got, _ = call(server, "/v1/chat/completions", {"messages": messages})
    assert status == 400 and got["error"]["param"].startswith("messages")


def test_wrong_addresses_models_methods_and_bodies(server):
    assert call(server, "/v1/nothing")[0] == 404
    assert call(server, "/v1/completions")[0] == 405
    assert call(server, "/v1/embeddings", {})[0] == 404
    status, got, _ = call(server, "/v1/completions", {**ASK, "model": "gpt-9"})
    assert status == 404 and got["error"]["code"] == "model_not_found"
    for raw in (b"{", b"[]", b"\xff\xfe", b"null"):
        assert call(server, "/v1/completions", raw=raw)[0] == 400
    big = {"Content-Length": str(1 << 40)}
    assert call(server, "/v1/completions", raw=b"{}", headers=big)[0] == 413
    assert call(server, "/v1/completions", raw=b"{}", headers={"Content-Length": "x"})[0] == 411
    assert call(server, "/v1/models", method="DELETE")[0] == 501
    status, got, _ = call(server, "/v1/completions", {**ASK, "prompt": "x" * 400})
    assert status == 400 and got["error"]["code"] == "context_length_exceeded"


def test_only_loopback_names_are_answered(server):
    port = server.server_port
    for host in (f"evil.example:{port}", "evil.example", "127.0.0.1:1", "", "localhost.evil.x"):
        assert call(server, "/v1/models", headers={"Host": host})[0] == 403, host
    assert call(server, "/v1/models", headers={"Host": f"localhost:{port}"})[0] == 200
    assert call(server, "/v1/models", headers={"Origin": "https://evil.example"})[0] == 403
    assert call(server, "/v1/models", headers={"Origin": f"http://localhost:{port}"})[0] == 200


def test_a_connection_serves_several_requests(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    for _ in range(3):
        connection.request("POST", "/v1/completions", json.dumps(ASK))
        assert connection.getresponse().read()
    connection.close()


def wait_until(done, limit_s=20.0):
    until = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.01)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_blocks(server, stream):
    replica = server.service.replica
    slow = threading.Event()
    step = MODEL.step

    def slowly(pieces, cache):
        slow.wait(0.02)
        return step(pieces, cache)

    MODEL.step = slowly
    try:
        before = replica.made
        client = socket.create_connection(("127.0.0.1", server.server_port))
        body = json.dumps({**ASK, "max_tokens": 150, "stream": stream}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
        client.sendall(f"{head}{len(body)}\r\n\r\n".encode() + body)
        wait_until(lambda: replica.made > before + 3)
        client.close()
        wait_until(lambda: replica.idle)
        assert replica.made < before + 150
        assert replica.pool.free == 60 and not server.service._open
    finally:
        MODEL.step = step


def test_a_broken_engine_answers_with_an_error_and_goes_on(server):
    step = MODEL.step

    def broken(pieces, cache):
        raise MemoryError("no room")

    MODEL.step = broken
    try:
        status, got, _ = call(server, "/v1/completions", ASK)
    finally:
        MODEL.step = step
    assert status == 500 and "no room" in got["error"]["message"]
    assert call(server, "/v1/completions", ASK)[0] == 200


def test_closing_lets_answers_finish_and_fails_the_rest_by_name():
    with Service(MODEL, blocks=60, block_tokens=8) as service:
        ticket = service.ask(list(b"hello"), 12)
        service.close(20.0)
        assert list(ticket.tokens()) == greedy(list(b"hello"), 12)
        with pytest.raises(Refused, match="shutting down"):
            service.ask([1], 1)
    hurried = Service(MODEL, blocks=60, block_tokens=8)
    tickets = [hurried.ask(list(b"hello"), 150) for _ in range(3)]
    hurried.close(0.0)
    for ticket in tickets:
        list(ticket.tokens())
        assert ticket.answer.reason in ("failed", "length")
    assert any("shutting down" in ticket.answer.why for ticket in tickets)
    assert not hurried._open


def test_too_many_open_requests_are_refused(monkeypatch):
    monkeypatch.setattr(service_module, "MOST_OPEN", 1)
    with Service(MODEL, blocks=60, block_tokens=8) as service:
        service.replica.step = lambda: False
        service.ask([1], 100)
        with pytest.raises(Refused, match="1 requests are open"):
            service.ask([1], 1)


def test_too_many_connections_are_turned_away(monkeypatch):
    monkeypatch.setattr(server_module, "MOST_CONNECTIONS", 1)
    with Server(Service(MODEL, blocks=60, block_tokens=8)).start() as small:
        first = socket.create_connection(("127.0.0.1", small.server_port))
        first.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert first.recv(12) == b"HTTP/1.1 200"
        assert call(small, "/v1/models")[0] == 503
        first.close()


def test_a_port_that_is_taken_is_named(server):
    with Service(MODEL, blocks=60, block_tokens=8) as service:
        for port in (server.server_port, 70_000):
            with pytest.raises(UsageError, match=f"port {port}"):
                Server(service, port)
    with pytest.raises(UsageError, match="stand for bytes"):
        Service(Transformer.random(tiny(), dtype="fp64", device="cpu"))


def test_stop_texts_across_pieces():
    stopper = Stopper(["END", "NO"])
    out = [stopper.feed(piece) for piece in ("a", "E", "b", "EN", "D", "zz")]
    assert out == ["a", "", "Eb", "", "", ""] and stopper.hit and stopper.finish() == ""
    held = Stopper(["END"])
    assert held.feed("xEN") == "x" and held.finish() == "EN"


def test_the_openai_package_works(server):
    openai = pytest.importorskip("openai", reason="the package openai is not installed")
    client = openai.OpenAI(base_url=server.url, api_key="none")
    got = client.completions.create(model="toy", prompt="hello", max_tokens=12, temperature=0)
    assert got.choices[0].text == as_text(greedy(list(b"hello"), 12))
    chat = client.chat.completions.create(
        model="toy", messages=[{"role": "user", "content": "hi"}], max_tokens=5, stream=True
    )
    assert "".join(piece.choices[0].delta.content or "" for piece in chat)
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt="x")
