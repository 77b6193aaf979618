"""`orrery page`: the local web page; and the process of a job that the page has started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from orrery.cli.asking import check_number
from orrery.cli.common import Json, answer, new_app, say, talk
from orrery.cli.progress import Advance

app = new_app()
PORT = 8137
PACE_S = 0.1


@app.command("page")
def command(
    port: Annotated[int, typer.Option("--port", help="0 takes a free one.")] = PORT,
    as_json: Json = False,
) -> None:
    """Serve the local page: the catalogue, the ledger, runs, jobs, timelines and a playground.

    It answers on this machine only (127.0.0.1), and only to who has the token in the address that
    is printed. Ends with Ctrl-C, and its jobs with it; runs that were finished are kept.

    \b
    Examples:
      orrery page
      orrery page --port 0
    """
    check_number("--port", port, 0, 65_535)
    asyncio.run(_serve(port, as_json))


async def _serve(port: int, as_json: bool) -> None:
    from orrery.page import Server

    server = Server(port)
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    # Windows has no such handlers: there Ctrl-C arrives as an exception, with the same end.
    for number in (signal.SIGINT, signal.SIGTERM) if sys.platform != "win32" else ():
        with contextlib.suppress(RuntimeError):  # not in the main thread: the caller ends us
            loop.add_signal_handler(number, ending.set)
    address = await server.start()
    try:
        document = {"url": address.url, "host": address.host, "port": address.port,
                    "token": address.token}  # fmt: skip
        answer(document, as_json, lambda: say(address.url))
        talk("orrery: open this address in a browser on this machine; Ctrl-C ends the page")
        await ending.wait()
    finally:
        await server.close()
    talk("orrery: the page has ended")


# -- a job's process


def job(words: Sequence[str]) -> int:
    """Run one command as a job of the page: tell progress, and end when the page does."""
    from orrery.cli import progress
    from orrery.cli.app import run_command

    threading.Thread(target=_end_with_the_page, daemon=True).start()
    # The commands take `bar` from its module when they are loaded, which is after this.
    progress.bar = told_bar
    return run_command(words)


def _end_with_the_page() -> None:
    """The page holds the other end of stdin: when it is gone, however it went, so are we."""
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(130)


@contextlib.contextmanager
def told_bar(title: str, total: float | None = None, show: bool = True) -> Iterator[Advance]:
    """Progress as lines of JSON on stderr, each behind a record separator, ten a second."""
    import json

    state: dict[str, Any] = {"title": title, "total": total, "done": 0.0, "now": ""}
    last = 0.0

    def tell() -> None:
        with contextlib.suppress(OSError):
            os.write(2, b"\x1e" + json.dumps(state).encode() + b"\n")

    def advance(text: str, amount: float) -> None:
        nonlocal last
        state["done"] += amount
        state["now"] = text
        if time.monotonic() - last >= PACE_S:
            last = time.monotonic()
            tell()

    tell()
    try:
        yield advance
    finally:
        tell()


if __name__ == "__main__":
    sys.exit(job(sys.argv[1:]))
