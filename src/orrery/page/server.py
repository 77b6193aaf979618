"""The server: accepts on the loopback, reads, guards, routes, answers; and ends cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import inspect
import sys
import traceback
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from orrery.base.errors import OrreryError, PartError, StoreError, UsageError
from orrery.base.plain import encode_json
from orrery.lab.store import Store
from orrery.page.app import App
from orrery.page.guard import Guard
from orrery.page.http import (
    BODY_S,
    HEAD_S,
    MOST_HEAD_B,
    HttpError,
    Request,
    Response,
    as_json,
    head_of,
    problem,
    read_request,
)
from orrery.page.router import Route, Router

LOOPBACK = "127.0.0.1"
MOST_CONNECTIONS = 64
MOST_THREADS = 6
IDLE_S = 75.0
BEAT_S = 15.0  # a stream that says nothing sends a comment, so that a gone reader is noticed
SEND_S = 20.0
EVENTS = "text/event-stream; charset=utf-8"


class Address(NamedTuple):
    """Where the page is, and the secret that opens it."""

    host: str
    port: int
    token: str

    @property
    def url(self) -> str:
        """The address to open; the token is behind the #, which browsers never send on."""
        return f"http://{self.host}:{self.port}/#token={self.token}"


class Server:
    """One page on one port. `start` binds, `close` ends connections, streams and children."""

    def __init__(
        self, port: int = 0, *, store: Store | None = None, token: str | None = None,
        routes: Iterable[Route] | None = None, head_s: float = HEAD_S, body_s: float = BODY_S,
        idle_s: float = IDLE_S, most_connections: int = MOST_CONNECTIONS,
    ) -> None:  # fmt: skip
        from orrery.page.views import all_routes

        self.wanted_port = port
        self.token = token
        self.store = store
        self.router = Router(routes if routes is not None else all_routes())
        self.head_s, self.body_s, self.idle_s = head_s, body_s, idle_s
        self.most_connections = most_connections
        self.app: App
        self.guard: Guard
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._pool = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="page")

    async def start(self) -> Address:
        """Bind and begin to answer; a port in use is an error that names the fix."""
        try:
            self._server = await asyncio.start_server(
                self._accept, LOOPBACK, self.wanted_port, limit=MOST_HEAD_B, backlog=128
            )
        except OSError as failure:
            why = "is in use" if failure.errno == errno.EADDRINUSE else (
                f"cannot be bound: {failure.strerror}")  # fmt: skip
            fix = "give another --port, or --port 0 for any free one"
            raise UsageError(f"--port {self.wanted_port}: {why}; {fix}") from None
        port = self._server.sockets[0].getsockname()[1]
        self.guard = Guard(port, self.token)
        self.app = App(self.guard, self.store)
        return Address(LOOPBACK, port, self.guard.token)

    async def close(self) -> None:
        """Stop listening, end every connection and stream, then the children."""
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections, timeout=5)
        await self.app.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    # -- connections

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if len(self._connections) > self.most_connections:
                crowd = HttpError(429, "too many connections; close some tabs")
                await self._send(writer, problem(crowd), close=True)
            else:
                await self._converse(reader, writer)
        except (ConnectionError, TimeoutError, asyncio.CancelledError):
            pass  # the other side has gone, or the server ends
        finally:
            self._connections.discard(task)
            with contextlib.suppress(Exception):
                writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                request = await read_request(reader, self.idle_s, self.head_s, self.body_s)
            except HttpError as error:
                # After a request that could not be read nobody knows where the next one begins.
                await self._send(writer, problem(error), close=True)
                await self._drain(reader)
                return
            if request is None:
                return
            answer = await self.answer(request)
            if not isinstance(answer, Response):
                if request.method == "HEAD":
                    head = Response(content_type=EVENTS)
                    await self._send(writer, head, close=True, head_only=True)
                else:
                    await self._stream(reader, writer, answer)
                return
            # A refused client gets no second try on the same connection.
            close = answer.status >= 400 or request.headers.get("connection", "") == "close"
            await self._send(writer, answer, close=close, head_only=request.method == "HEAD")
            if close:
                return

    async def _drain(self, reader: asyncio.StreamReader) -> None:
        """Read on a little, as closing with unread bytes would take the answer away again."""
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(0.5):
                for _ in range(64):
                    if not await reader.read(65_536):
                        return

    # -- answers

    async def answer(self, request: Request) -> Response | AsyncIterator[Any]:
        """Guard, find the route, call the handler; every failure becomes an answer."""
        try:
            self.guard.check_host(request)
            self.guard.check_origin(request)
            route = self.router.find(request)
            self.guard.check(request, open_to_all=route.open_to_all)
            found = await self._call(route, request)
        except HttpError as error:
            return problem(error)
        except StoreError as error:
            return problem(HttpError(404 if "there is no run" in str(error) else 409, str(error)))
        except (UsageError, OrreryError, PartError) as error:
            return problem(HttpError(400, str(error)))
        except Exception:
            traceback.print_exc(file=sys.stderr)
            return problem(HttpError(500, "something broke inside; see the terminal of the page"))
        if isinstance(found, Response) or hasattr(found, "__aiter__"):
            return found
        return as_json(found)

    async def _call(self, route: Route, request: Request) -> Any:
        if inspect.isasyncgenfunction(route.handler):
            return route.handler(request, self.app)
        if inspect.iscoroutinefunction(route.handler):
            return await route.handler(request, self.app)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, route.handler, request, self.app)

    async def _send(
        self, writer: asyncio.StreamWriter, answer: Response, *, close: bool,
        head_only: bool = False,
    ) -> None:  # fmt: skip
        extra = self.guard.headers(answer.policy)
        extra["Connection"] = "close" if close else "keep-alive"
        writer.write(head_of(answer, extra, length=len(answer.body)))
        if not head_only and answer.status not in (204, 304):
            writer.write(answer.body)
        async with asyncio.timeout(SEND_S):
            await writer.drain()

    async def _stream(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, events: Any
    ) -> None:
        """Server-Sent Events: one `data:` line an event, until the reader or the events end."""
        head = Response(content_type=EVENTS)
        writer.write(head_of(head, {**self.guard.headers(), "Connection": "close"}, length=None))
        gone = asyncio.create_task(reader.read(1))
        step: asyncio.Task[Any] | None = None
        try:
            while True:
                async with asyncio.timeout(SEND_S):
                    await writer.drain()
                step = step or asyncio.create_task(anext(events, None))
                await asyncio.wait({gone, step}, timeout=BEAT_S,
                                   return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
                if gone.done():
                    return
                if not step.done():
                    writer.write(b": still here\n\n")
                    continue
                event = step.result()
                if event is None:
                    return
                step = None
                writer.write(b"data: " + encode_json(event) + b"\n\n")
        finally:
            gone.cancel()
            if step is not None:
                step.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await step
            with contextlib.suppress(Exception):
                await events.aclose()
