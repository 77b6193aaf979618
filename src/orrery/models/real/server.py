"""An OpenAI-compatible endpoint on the loopback: /v1/models, /v1/completions, /v1/chat/completions.

Only the standard library: a thread for each connection, one thread for the engine. It binds the
loopback, answers only to loopback names (a page elsewhere cannot reach it by a name of its own),
caps bodies and connections, and cancels what a client no longer waits for.
"""

from __future__ import annotations

import contextlib
import select
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import msgspec

from orrery.base.errors import Refused, UsageError
from orrery.models.ports import Scheduler
from orrery.models.real.jobs import Answer
from orrery.models.real.openai import (
    ApiError,
    Asked,
    Form,
    Stopper,
    read_body,
    read_request,
    refuse_length,
    usage_of,
)
from orrery.models.real.service import Service, Ticket

MOST_BODY_B = 4 << 20
MOST_CONNECTIONS = 128
IDLE_S = 60.0
LOOK_S = 0.25  # how often a client that waits is looked after
BUSY = b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
NAMES = ("localhost", "127.0.0.1", "::1")


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server_version = "orrery"
    sys_version = ""
    timeout = IDLE_S
    server: Server

    def do_GET(self) -> None:
        self._guard(self._get)

    def do_POST(self) -> None:
        self._guard(self._post)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal belongs to the command."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the base class refuses (a method, a broken head), in OpenAI's form too."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            self._send(int(code), ApiError(int(code), message or "a bad request").document())

    # -- frame

    def _guard(self, work: Any) -> None:
        self._began = False
        try:
            self._check_names()
            work()
        except ApiError as error:
            self._fail(error)
        except Refused as error:
            self._fail(ApiError(503, str(error), kind="server_error", code="overloaded"))
        except UsageError as error:
            self._fail(ApiError(400, str(error)))
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def _check_names(self) -> None:
        """Only who calls us by a loopback name is answered: others came by a trick."""
        hosts = self.headers.get_all("Host") or []
        name, port = _host(f"//{hosts[0]}") if len(hosts) == 1 else ("", None)
        if name not in NAMES or port not in (None, self.server.server_port):
            raise ApiError(403, "the Host header names no loopback address of this server")
        origin = self.headers.get("Origin")
        if origin is not None and _host(origin)[0] not in NAMES:
            raise ApiError(403, "pages of other sites may not use this server")

    def _fail(self, error: ApiError) -> None:
        if self._began:
            # The head is out: an error can only be an event of the stream.
            with contextlib.suppress(OSError):
                self._event(error.document())
                self._end_stream()
            self.close_connection = True
            return
        # A body that was not read would be taken for the next request.
        self.close_connection = True
        with contextlib.suppress(OSError):
            self._send(error.status, error.document())

    def _send(self, status: int, document: Any) -> None:
        body = msgspec.json.encode(document)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or self.headers.get("Transfer-Encoding"):
            raise ApiError(411, "send the body with a Content-Length")
        if len(length) > 12 or int(length) > MOST_BODY_B:
            raise ApiError(413, f"the body is over {MOST_BODY_B} bytes")
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise ConnectionError("the client left")
        return body

    # -- routes

    def _get(self) -> None:
        path, service = urlsplit(self.path).path.rstrip("/"), self.server.service
        model = {
            "id": service.name, "object": "model", "created": self.server.began_s,
            "owned_by": "orrery", "max_model_len": service.longest,
        }  # fmt: skip
        if path == "/v1/models":
            self._send(200, {"object": "list", "data": [model]})
        elif path == f"/v1/models/{service.name}":
            self._send(200, model)
        elif path == "/health":
            self._send(200, {"status": "ok"})
        elif path in ("/v1/completions", "/v1/chat/completions"):
            raise ApiError(405, f"{path} takes POST")
        else:
            raise ApiError(404, f"no such address: GET {path or '/'}", code="not_found")

    def _post(self) -> None:
        path = urlsplit(self.path).path.rstrip("/")
        if path not in ("/v1/completions", "/v1/chat/completions"):
            raise ApiError(404, f"no such address: POST {path or '/'}", code="not_found")
        body, service = read_body(self._body()), self.server.service
        model = body.get("model", service.name)
        if model != service.name:
            raise ApiError(
                404, f"the model {model!r} is not here; {service.name!r} is", param="model",
                code="model_not_found",
            )  # fmt: skip
        vocab = service.replica.model.spec.vocab
        chat = path.endswith("/chat/completions")
        asked = read_request(body, chat=chat, tokenizer=service.tokenizer, vocab=vocab)
        most = [refuse_length(len(p), asked.max_tokens, service.longest) for p in asked.prompts]
        end = None if asked.ignore_end else service.tokenizer.end
        tickets: list[Ticket] = []
        try:
            for prompt, limit in zip(asked.prompts, most, strict=True):
                ticket = service.ask(
                    prompt, limit, temperature=asked.temperature, top_p=asked.top_p,
                    seed=asked.seed, end=end,
                )  # fmt: skip
                tickets.append(ticket)
            form = Form(asked, service.name, tickets[0].id)
            (self._stream if asked.stream else self._whole)(asked, tickets, form)
        finally:
            for ticket in tickets:
                if ticket.answer is None:
                    ticket.cancel()

    # -- answers

    def _whole(self, asked: Asked, tickets: list[Ticket], form: Form) -> None:
        told = self._tell(asked, tickets)
        texts = ["".join(each.pieces()) for each in told]
        for each in told:
            each.check()
        self._send(200, form.whole(texts, [each.reason for each in told], _usage(told)))

    def _stream(self, asked: Asked, tickets: list[Ticket], form: Form) -> None:
        told = self._tell(asked, tickets)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._began = True
        for place, each in enumerate(told):
            first = asked.chat
            if first:
                self._event(form.piece(place, "", first=True))
            for text in each.pieces():
                self._event(form.piece(place, text))
            each.check()
            self._event(form.piece(place, "", reason=each.reason))
        if asked.usage:
            self._event(form.last(_usage(told)))
        self._chunk(b"data: [DONE]\n\n")
        self._end_stream()

    def _tell(self, asked: Asked, tickets: list[Ticket]) -> list[Telling]:
        pairs = zip(tickets, asked.prompts, strict=True)
        service = self.server.service
        return [Telling(service, asked, t, len(prompt), self._gone) for t, prompt in pairs]

    def _event(self, document: Any) -> None:
        self._chunk(b"data: " + msgspec.json.encode(document) + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _end_stream(self) -> None:
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def _gone(self) -> bool:
        """Whether the client has hung up."""
        try:
            ready, _, _ = select.select([self.connection], [], [], 0)
            return bool(ready) and not self.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True


class Telling:
    """One ticket as text: pieces as they come, then why it ended and what it took."""

    def __init__(
        self, service: Service, asked: Asked, ticket: Ticket, prompt: int, gone: Any
    ) -> None:
        self._ticket, self._gone = ticket, gone
        self._decoder, self._stopper = service.tokenizer.stream(), Stopper(asked.stop)
        self.prompt, self.made = prompt, 0
        self.reason = "stop"

    def pieces(self) -> Any:
        """Text as it comes, until the end, a stop text, or the client's leaving."""
        look_s = time.monotonic() + LOOK_S
        while True:
            event = self._ticket.wait(LOOK_S)
            if time.monotonic() >= look_s:
                if self._gone():
                    raise ConnectionError("the client left")
                look_s = time.monotonic() + LOOK_S
            if event is None:
                continue
            if isinstance(event, Answer):
                rest = self._stopper.feed(self._decoder.finish()) + self._stopper.finish()
                if rest:
                    yield rest
                self.reason = event.reason
                return
            self.made += 1
            text = self._stopper.feed(self._decoder.feed(event))
            if text:
                yield text
            if self._stopper.hit:
                self._ticket.cancel()
                while self._ticket.answer is None:
                    self._ticket.wait(LOOK_S)
                return

    def check(self) -> None:
        """Raise what the engine says went wrong."""
        answer = self._ticket.answer
        if answer is not None and answer.reason == "failed":
            raise ApiError(500, answer.why, kind="server_error")

    @property
    def cached(self) -> int:
        answer = self._ticket.answer
        return answer.served.hit_tokens if answer is not None and answer.served else 0


def _usage(told: list[Telling]) -> dict[str, Any]:
    prompt = sum(each.prompt for each in told)
    return usage_of(prompt, sum(each.made for each in told), sum(each.cached for each in told))


def _host(address: str) -> tuple[str, int | None]:
    try:
        parts = urlsplit(address)
        return (parts.hostname or ""), parts.port
    except ValueError:
        return "", None


class Server(ThreadingHTTPServer):
    """The endpoint. `start()` serves in a thread; `close()` lets clients finish, then ends."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, service: Service, port: int = 0) -> None:
        self.service, self.began_s = service, int(time.time())
        self._places = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._thread: threading.Thread | None = None
        try:
            super().__init__(("127.0.0.1", port), Handler)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise UsageError(f"port {port} cannot be used: {why}; give another one") from None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def process_request(self, request: Any, client_address: Any) -> None:
        """A thread for the connection, while there is a place for it."""
        if not self._places.acquire(blocking=False):
            with contextlib.suppress(OSError):
                request.sendall(BUSY)
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no news; our own mistakes are told on stderr in one line."""
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError | TimeoutError):
            print(f"orrery serve: {type(error).__name__}: {error}", file=sys.stderr)

    def start(self) -> Server:
        """Serve in a thread of its own."""
        self._thread = threading.Thread(target=self.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()
        return self

    def close(self, grace_s: float = 5.0) -> None:
        """Stop listening, let answers finish for a while, end the engine."""
        if self._thread is not None:
            self.shutdown()
            self._thread.join()
        self.service.close(grace_s)
        self.server_close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close(0.0)


def serve(
    model: str = "smollm2", port: int = 0, *, scheduler: Scheduler | None = None,
    device: str = "auto", dtype: str = "", kv_tokens: int = 0, block_tokens: int = 16,
    caching: bool = True, seed: int = 0, threads: int = 0,
) -> Server:  # fmt: skip
    """Load a model and serve it: a `Server` that answers already.

    model   "smollm2", the path of a GGUF file, or a name of the catalogue (random weights)
    """
    from orrery.models.real.loading import load_model

    loaded, tokenizer, name = load_model(
        model, device=device, dtype=dtype, seed=seed, threads=threads
    )
    room = kv_tokens or min(loaded.max_context * 4, 16_384)
    if room < block_tokens:
        raise UsageError(f"kv_tokens={room}: give at least one block of {block_tokens} tokens")
    service = Service(
        loaded, tokenizer, scheduler, blocks=room // block_tokens, block_tokens=block_tokens,
        caching=caching, name=name,
    )  # fmt: skip
    try:
        return Server(service, port).start()
    except BaseException:
        service.close(0.0)
        raise


__all__ = ["Server", "serve"]
