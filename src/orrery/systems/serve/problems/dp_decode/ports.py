"""What an assigner sees and decides: the pool of waiting requests, and the workers.

Everything is an array, read-only, because a router of this kind looks at hundreds of requests and
tens of workers within every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from orrery.base.errors import PartError
from orrery.parts import Policy

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
Pairs = list[tuple[int, int]]


def sealed(values: Any, kind: Any = np.int64) -> Any:
    """An array that nobody can write to."""
    made = np.array(values, kind)
    made.setflags(write=False)
    return made


class Waiting:
    """The requests that wait, the oldest first.

    ids         their numbers, which are in the order of age
    tokens      what each brings into the cache: its prompt, and what it made before a worker died
    limit       how many tokens each may still make at most
    arrival_s   when each came
    """

    __slots__ = ("_arrival_s", "_limit", "_rest", "_tokens", "ids")

    def __init__(self, ids: I64, tokens: I64, limit: I64, arrival_s: F64, rest: I64) -> None:
        """`ids` are places in the other arrays, which hold all requests of a run."""
        self.ids, self._tokens, self._limit = ids, tokens, limit
        self._arrival_s, self._rest = arrival_s, rest

    @property
    def tokens(self) -> I64:
        return self._tokens[self.ids]

    @property
    def limit(self) -> I64:
        return self._limit[self.ids]

    @property
    def arrival_s(self) -> F64:
        return self._arrival_s[self.ids]

    @property
    def _left(self) -> I64:
        return self._rest[self.ids]

    def head(self, count: int) -> Waiting:
        """The oldest so many."""
        return Waiting(self.ids[:count], self._tokens, self._limit, self._arrival_s, self._rest)

    def __len__(self) -> int:
        return len(self.ids)


class Live:
    """The requests that decode: where, how long their prompts were, what they have made.

    `_left`, the tokens that each is still to make, is hidden from assigners by the underscore; only
    classifiers that say that they cheat read it.
    """

    __slots__ = ("_left", "made", "prompt", "worker")

    def __init__(self, worker: I64, prompt: I64, made: I64, left: I64) -> None:
        self.worker, self.prompt, self.made, self._left = worker, prompt, made, left

    def __len__(self) -> int:
        return len(self.worker)


class Workers:
    """The workers, by index.

    alive        False once a worker is known to be dead
    free_slots   how many more requests each can take; 0 for a dead one
    running      how many requests each decodes
    kv_tokens    tokens in the cache of each: the load that a decode step reads
    free_tokens  room in the cache that nobody has reserved; a request reserves tokens + limit
    live()       the requests that decode, as flat arrays
    """

    __slots__ = (
        "_left", "_made", "_prompt", "_used", "alive", "free_slots", "free_tokens", "kv_tokens",
        "running",
    )  # fmt: skip

    def __init__(
        self, alive: npt.NDArray[np.bool_], free_slots: I64, running: I64, kv_tokens: I64,
        free_tokens: I64, grids: tuple[Any, Any, Any, Any],
    ) -> None:  # fmt: skip
        self.alive, self.free_slots, self.running = alive, free_slots, running
        self.kv_tokens, self.free_tokens = kv_tokens, free_tokens
        self._used, self._prompt, self._made, self._left = grids  # [workers, slots] each

    def live(self) -> Live:
        worker, slot = np.nonzero(self._used)
        return Live(worker, self._prompt[worker, slot], self._made[worker, slot],
                    self._left[worker, slot])  # fmt: skip

    def __len__(self) -> int:
        return len(self.alive)


class Assigner(Policy):
    """Decides which waiting request goes to which worker; an assignment is for ever.

    `assign` gives (request, worker) pairs in the order in which they are to be admitted. A request
    that is not named waits on. A worker must be alive, have a free slot, and room for the request's
    tokens and limit; the engine refuses anything else by name.
    """

    def assign(self, waiting: Waiting, workers: Workers, now_s: float) -> Pairs:
        raise PartError(f"{type(self).__name__} has no assign(waiting, workers, now_s); write it")

    def most_overtaken(self) -> int | None:
        """How many younger requests may be assigned before an older one; None: any number."""
        return None


def why_illegal(answer: Sequence[tuple[int, int]], waiting: Waiting, workers: Workers) -> str:
    """What is wrong with a decision; empty when it may be carried out."""
    if not isinstance(answer, list):
        return f"{answer!r:.60} is not a list of (request, worker) pairs"
    free, room = workers.free_slots.tolist(), workers.free_tokens.tolist()
    seen: set[int] = set()
    for pair in answer:
        if not isinstance(pair, tuple) or len(pair) != 2:
            return f"{pair!r:.60} is not a pair (request, worker)"
        request, worker = pair
        if not isinstance(request, int | np.integer) or request in seen:
            return f"request {request!r:.20} is named twice, or is no number"
        seen.add(request)
        at = int(np.searchsorted(waiting.ids, request))
        if at >= len(waiting) or waiting.ids[at] != request:
            return f"request {request} does not wait"
        if not (isinstance(worker, int | np.integer) and 0 <= worker < len(workers)):
            return f"there is no worker {worker!r:.20} for request {request}"
        if not workers.alive[worker]:
            return f"worker {worker} is dead and cannot take request {request}"
        need = int(waiting._tokens[request] + waiting._limit[request])
        free[worker] -= 1
        room[worker] -= need
        if free[worker] < 0:
            return f"worker {worker} has no slot for request {request}"
        if room[worker] < 0:
            return f"worker {worker} has no room for the {need} tokens of request {request}"
    return ""


__all__ = ["Assigner", "Live", "Pairs", "Waiting", "Workers", "sealed", "why_illegal"]
