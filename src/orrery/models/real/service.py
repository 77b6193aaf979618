"""A real replica behind a door: one thread computes, any number of clients ask.

A client gets a `Ticket`: tokens come out of it one by one, then how it ended. Whoever goes away
cancels it. Closing lets those who are served finish for a while, and fails the rest by name.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from orrery.base.errors import OrreryError, Refused, UsageError
from orrery.models.ports import Scheduler
from orrery.models.real.engine import RealReplica
from orrery.models.real.jobs import Answer, make_job

MOST_OPEN = 256


class ByteTokenizer:
    """One token for each byte of UTF-8: for models that come without a tokenizer."""

    end = None

    def encode(self, text: str, *, control: bool = False) -> list[int]:
        return list(text.encode("utf-8", "replace"))

    def bytes_of(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""

    def decode(self, tokens: Sequence[int]) -> str:
        return b"".join(map(self.bytes_of, tokens)).decode("utf-8", "replace")

    def stream(self) -> Any:
        from orrery.models.real.tokenizer import Decoder

        return Decoder(self)  # type: ignore[arg-type]

    def chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        lines = "".join(f"{role}: {text}\n" for role, text in messages)
        return self.encode(f"{lines}assistant: ")


class Ticket:
    """One answer in the making."""

    def __init__(self, service: Service, id: int) -> None:
        self.id, self._service = id, service
        self._events: queue.SimpleQueue[int | Answer] = queue.SimpleQueue()
        self.answer: Answer | None = None

    def wait(self, timeout_s: float | None = None) -> int | Answer | None:
        """The next token, or the answer at the end; None when nothing came in time."""
        try:
            event = self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(event, Answer):
            self.answer = event
        return event

    def tokens(self) -> Iterator[int]:
        """Tokens as they come; `answer` is there afterwards."""
        while not isinstance(event := self.wait(), Answer):
            if event is not None:
                yield event

    def cancel(self) -> None:
        """Say that nobody wants it any more."""
        self._service.cancel(self.id)


class Service:
    """A replica with its thread. `ask` gives a `Ticket`; `close` ends it."""

    def __init__(
        self, model: Any, tokenizer: Any = None, scheduler: Scheduler | None = None, *,
        blocks: int = 1024, block_tokens: int = 16, caching: bool = True, name: str = "",
    ) -> None:  # fmt: skip
        self.tokenizer = tokenizer or ByteTokenizer()
        if tokenizer is None and model.spec.vocab < 256:
            raise UsageError(f"{model.spec.name}: a vocabulary under 256 cannot stand for bytes")
        self.name = name or model.spec.name
        self.replica = RealReplica(
            model, scheduler, blocks=blocks, block_tokens=block_tokens, caching=caching
        )
        if self.replica.graphs is not None:
            self.replica.graphs.prepare()  # else the first answers would wait for it
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._open: dict[int, Ticket] = {}
        self._wake = threading.Event()
        self._closing = self._ended = False
        self._thread = threading.Thread(target=self._work, name="orrery-engine", daemon=True)
        self._thread.start()

    @property
    def longest(self) -> int:
        """The most tokens, prompt and answer together, that a request may have."""
        pool = self.replica.pool
        return min(self.replica.model.max_context, pool.blocks * pool.block_tokens)

    def ask(self, prompt: Sequence[int], max_tokens: int, **options: Any) -> Ticket:
        """Ask for an answer; `options` are those of a `Job` (temperature, top_p, seed, end)."""
        if not len(prompt):
            raise UsageError("the prompt is empty; give at least one token")
        with self._lock:
            if self._closing:
                raise Refused("the server is shutting down")
            if len(self._open) >= MOST_OPEN:
                raise Refused(f"{MOST_OPEN} requests are open; try again later")
            ticket = Ticket(self, next(self._ids))
            job = make_job(
                ticket.id, prompt, max_tokens, arrival_s=self.replica.clock(),
                block_tokens=self.replica.pool.block_tokens, on_token=ticket._events.put,
                on_end=lambda answer: self._end(ticket, answer), **options,
            )  # fmt: skip
            self.replica.submit(job)
            self._open[ticket.id] = ticket
        self._wake.set()
        return ticket

    def cancel(self, id: int) -> None:
        """Give up one request."""
        self.replica.cancel(id)
        self._wake.set()

    def _end(self, ticket: Ticket, answer: Answer) -> None:
        with self._lock:
            self._open.pop(ticket.id, None)
        ticket._events.put(answer)

    def _work(self) -> None:
        replica = self.replica
        while not self._ended:
            if replica.idle:
                self._wake.wait(0.5)
                self._wake.clear()
                continue
            try:
                if not replica.step() and not replica.idle:
                    # The scheduler holds everyone back: ask it again, but do not spin.
                    time.sleep(0.001)
            except OrreryError as error:
                replica.fail_all(str(error))
            except Exception as error:
                replica.fail_all(f"the engine broke: {type(error).__name__}: {error}")
        replica.fail_all("the server is shutting down")

    def close(self, grace_s: float = 5.0) -> None:
        """Take no more, let those inside finish for `grace_s`, fail the rest, end the thread."""
        with self._lock:
            self._closing = True
        until_s = time.monotonic() + grace_s
        while self._open and time.monotonic() < until_s and self._thread.is_alive():
            time.sleep(0.02)
        self._ended = True
        self._wake.set()
        self._thread.join(timeout=60.0)

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.close(0.0)


__all__ = ["ByteTokenizer", "Service", "Ticket"]
