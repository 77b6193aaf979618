"""A page on a free port in a thread, and a client that sends bytes as they are."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading

from orrery.lab.store import Store
from orrery.page import Server
from orrery.page.http import HttpError
from orrery.page.jobs import Job


class Page:
    """A running page; `with Page(store_folder) as page`."""

    def __init__(self, folder, **options):
        self.server = Server(0, store=Store(folder), **options)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    def __enter__(self):
        self.thread.start()
        self.address = self.call(self.server.start())
        return self

    def __exit__(self, *_):
        self.call(self.server.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(5)
        self.loop.close()

    def call(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    @property
    def app(self):
        return self.server.app

    @property
    def port(self):
        return self.address.port

    @property
    def host(self):
        return f"127.0.0.1:{self.port}"

    @property
    def origin(self):
        return f"http://{self.host}"

    @property
    def cookie(self):
        return f"{self.server.guard.cookie}={self.server.guard.session}"

    # -- requests

    def head(self, method="GET", path="/api/about", *, drop=(), **changes):
        """The head of a right request, with some fields changed, and some dropped."""
        fields = {"Host": self.host, "Cookie": self.cookie}
        if method == "POST":
            fields |= {"Origin": self.origin, "Content-Type": "application/json"}
            fields["X-Orrery-Key"] = self.server.guard.key
        fields |= {name.replace("_", "-"): value for name, value in changes.items()}
        lines = [f"{k}: {v}" for k, v in fields.items() if k not in drop]
        return "\r\n".join([f"{method} {path} HTTP/1.1", *lines]).encode("latin-1")

    def get(self, path="/api/about", **changes):
        return self.head("GET", path, **changes) + b"\r\n\r\n"

    def post(self, path, body, **changes):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        length = {} if "Content_Length" in changes else {"Content_Length": str(len(data))}
        return self.head("POST", path, **length, **changes) + b"\r\n\r\n" + data

    def send(self, data, timeout_s=10.0):
        """(status, headers, body) of the answer to some bytes; (0, {}, b"") for none."""
        with contextlib.closing(socket.create_connection(("127.0.0.1", self.port), 10)) as line:
            line.settimeout(timeout_s)
            with contextlib.suppress(ConnectionError):
                line.sendall(data)
            return read_answer(line)

    def ask(self, path, **changes):
        """The JSON of a GET."""
        status, _, body = self.send(self.get(path, Connection="close", **changes))
        return status, json.loads(body)

    def tell(self, path, body, **changes):
        """The JSON of a POST."""
        status, _, answer = self.send(self.post(path, body, Connection="close", **changes))
        return status, json.loads(answer)


def read_answer(line):
    """One answer from a socket: by its Content-Length, or to the end."""
    data = b""
    with contextlib.suppress(ConnectionError, TimeoutError):
        while more := line.recv(65536):
            data += more
            head, blank, body = data.partition(b"\r\n\r\n")
            if blank and len(body) >= int(_fields(head).get("content-length", 1 << 40)):
                break
    head, blank, body = data.partition(b"\r\n\r\n")
    if not blank:
        return 0, {}, b""
    return int(head.split(b" ")[1]), _fields(head), body


def _fields(head):
    pairs = (each.partition(":") for each in head.decode("latin-1").split("\r\n")[1:])
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


class NoJobs:
    """A table of jobs that starts nothing and remembers what it was asked."""

    def __init__(self):
        self.asked = []
        self.jobs = {}

    def submit(self, kind, title, words, about, *, report=False):
        self.asked.append(words)
        return Job(id="ab" * 10, kind=kind, title=title, about=about, command="")

    def get(self, id):
        raise HttpError(404, f"there is no job {id}")

    def rows(self):
        return []

    async def cancel(self, id):
        return self.get(id)

    async def close(self):
        pass
