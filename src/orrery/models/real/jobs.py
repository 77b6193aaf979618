"""What a real replica is asked and what it answers: requests with their tokens.

A modelled replica needs only lengths and block keys; a real one needs the tokens. Keys are made
from the tokens (a chained hash), so equal prefixes share blocks whoever sends them.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from orrery.base.errors import UsageError
from orrery.base.rand import block, key_of
from orrery.models.requests import Request, Running, Served

_KEY_BITS = 62  # the pool numbers its empty blocks from there on


class Answer(msgspec.Struct, frozen=True):
    """How a job ended: `reason` is stop, length, cancelled or failed; `why` tells of a failure."""

    id: int
    tokens: tuple[int, ...]
    reason: str
    why: str = ""
    served: Served | None = None

    @property
    def ok(self) -> bool:
        return self.reason in ("stop", "length")


class Job:
    """A request with its tokens, how to sample, and whom to tell.

    temperature, top_p, seed   temperature 0 takes the likeliest token
    end                        the token that ends an answer; None: only the length does
    on_token, on_end           called with each token, and with the `Answer`, by the engine's thread
    """

    __slots__ = (
        "end", "on_end", "on_token", "prompt", "request", "seed", "temperature", "top_p",
    )  # fmt: skip

    def __init__(
        self, request: Request, prompt: Sequence[int], *, temperature: float = 0.0,
        top_p: float = 1.0, seed: int = 0, end: int | None = None,
        on_token: Callable[[int], None] | None = None,
        on_end: Callable[[Answer], None] | None = None,
    ) -> None:  # fmt: skip
        if len(prompt) != request.prompt_tokens:
            raise UsageError(
                f"request {request.id}: {len(prompt)} tokens given, "
                f"prompt_tokens={request.prompt_tokens}"
            )
        if not (0 <= temperature < math.inf and 0 < top_p <= 1):
            raise UsageError(
                f"request {request.id}: temperature={temperature}, top_p={top_p}; "
                "give a temperature of 0 or more, and top_p in (0, 1]"
            )
        self.request, self.prompt = request, list(prompt)
        self.temperature, self.top_p, self.seed, self.end = temperature, top_p, seed, end
        self.on_token, self.on_end = on_token, on_end


class Live(Running):
    """A job on a real replica: also its tokens, the keys of its full blocks, and where they are."""

    __slots__ = ("job", "keys", "owner", "place", "table", "times_s", "tokens")

    def __init__(self, job: Job, arrived_s: float) -> None:
        super().__init__(job.request, arrived_s)
        self.job = job
        self.owner: object = None  # the replica that has it, and where it is there
        self.place = ""
        self.tokens = list(job.prompt)
        self.keys: list[int] = []
        self.table: list[int] = []
        self.times_s: list[float] = []

    def set_blocks(self, held: list[int], table: list[int]) -> None:
        """What it holds, as keys and as numbers."""
        self.held, self.table, self.blocks_held = held, table, len(table)

    def keys_to(self, blocks: int, size: int) -> list[int]:
        """The keys of its first full blocks."""
        extend_keys(self.keys, self.tokens, blocks, size)
        return self.keys[:blocks]


def extend_keys(keys: list[int], tokens: Sequence[int], blocks: int, size: int) -> None:
    """Make a list of chained keys reach `blocks` blocks."""
    for place in range(len(keys), blocks):
        text = array("q", [keys[-1] if keys else size, *tokens[place * size : (place + 1) * size]])
        digest = hashlib.blake2b(text.tobytes(), digest_size=8).digest()
        keys.append(int.from_bytes(digest, "little") >> (64 - _KEY_BITS))


def keys_of(tokens: Sequence[int], size: int) -> tuple[int, ...]:
    """The keys of a prompt's full blocks.

    >>> a, b = keys_of([1, 2, 3, 4, 5], 2), keys_of([1, 2, 9, 9], 2)
    >>> len(a), a[0] == b[0], a[1] == b[1]
    (2, True, False)
    """
    keys: list[int] = []
    extend_keys(keys, tokens, len(tokens) // size, size)
    return tuple(keys)


def make_job(
    id: int, prompt: Sequence[int], max_tokens: int, *, arrival_s: float = 0.0,
    block_tokens: int = 16, kind: str = "default", priority: int = 0, **options: Any,
) -> Job:  # fmt: skip
    """A job from tokens alone; `options` are those of `Job`."""
    request = Request(
        id, arrival_s, len(prompt), max_tokens, blocks=keys_of(prompt, block_tokens), kind=kind,
        priority=priority,
    )  # fmt: skip
    return Job(request, prompt, **options)


def random_tokens(count: int, vocab: int, seed: int, purpose: str, owner: int = 0) -> list[int]:
    """Tokens drawn from a stream."""
    words = block(key_of(seed, owner, purpose), 0, count)
    return (words % np.uint64(vocab)).astype(np.int64).tolist()


def jobs_of(
    requests: Iterable[Request], vocab: int, *, block_tokens: int = 16, seed: int = 0
) -> list[Job]:
    """Jobs for requests that know only lengths and block keys: equal keys get equal tokens.

    `block_tokens` is what a key of the requests stands for. The answers have the requests' lengths.
    """
    jobs = []
    for request in requests:
        tokens: list[int] = []
        for key in request.blocks[: request.prompt_tokens // block_tokens]:
            tokens += random_tokens(block_tokens, vocab, seed, "block", int(key))
        rest = request.prompt_tokens - len(tokens)
        tokens += random_tokens(rest, vocab, seed, "own", request.id)
        jobs.append(Job(request, tokens))
    return jobs


def requests_of(workload: Any, *, block_tokens: int | None = None) -> list[Request]:
    """The requests of a `Workload` (columns), one object each."""
    size = block_tokens or workload.block_tokens
    found = []
    for i in range(len(workload)):
        prompt = int(workload.input_tokens[i])
        request = Request(
            i, float(workload.arrival_s[i]), prompt, int(workload.output_tokens[i]),
            blocks=tuple(workload.blocks(i).tolist()[: prompt // size]),
            session=int(workload.session[i]), kind=workload.kinds[int(workload.kind[i])],
        )  # fmt: skip
        found.append(request)
    return found


__all__ = ["Answer", "Job", "Live", "jobs_of", "keys_of", "make_job", "requests_of"]
