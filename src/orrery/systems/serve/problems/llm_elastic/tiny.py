"""A tiny real model and engine in float64: the instances of a pool that truly computes.

The model is a decoder-only transformer with random weights. The engine batches continuously: every
request that runs makes one token or more in a step. Where keys and values lie is the business of a
memory manager; `Reserved` gives every request room for its longest answer at once, which is what
published managers improve on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from orrery.base.errors import UsageError
from orrery.base.rand import Stream
from orrery.inputs.draws import normals, uniforms

F64 = np.ndarray
Draft = Callable[[Sequence[int], int], list[int]]


class TinyModel:
    """Layers of attention and MLP over a small vocabulary; the same seed gives the same weights.

    A token's record in the cache is its keys and values of all layers: layers x 2 x width numbers.
    """

    def __init__(self, seed: int = 0, layers: int = 2, width: int = 32, heads: int = 4,
                 vocab: int = 61) -> None:  # fmt: skip
        self.layers, self.width, self.heads, self.vocab = layers, width, heads, vocab
        self._seed = seed
        self.embedding = self._draw("embedding", vocab, width) * width**0.5
        self.qkv = [self._draw(f"qkv {i}", width, 3 * width) for i in range(layers)]
        self.out = [self._draw(f"out {i}", width, width) for i in range(layers)]
        self.up = [self._draw(f"up {i}", width, 2 * width) for i in range(layers)]
        self.down = [self._draw(f"down {i}", 2 * width, width) for i in range(layers)]
        self.head = self._draw("head", width, vocab)
        self.record = layers * 2 * width

    def _draw(self, name: str, rows: int, columns: int) -> F64:
        drawn = normals(Stream(self._seed, "tiny", name), rows * columns)
        return drawn.reshape(rows, columns) / rows**0.5

    def _turn(self, start: int, count: int) -> F64:
        at = np.arange(start, start + count, dtype=float)[:, None]
        rates = 50.0 ** -(np.arange(self.width // 2) / (self.width // 2))
        return np.concatenate([np.sin(at * rates), np.cos(at * rates)], axis=1)

    def forward(self, tokens: Sequence[int], start: int, memory: Any, owner: int) -> F64:
        """Logits after each of some new tokens of one request; their records are then in memory."""
        count, size = len(tokens), self.width // self.heads
        memory.reach(owner, start + count)
        x = self.embedding[list(tokens)] + self._turn(start, count)
        seen = memory.view(owner)[:start].reshape(start, self.layers, 2, self.heads, size)
        made = np.empty((count, self.layers, 2, self.width))
        hidden = np.triu(np.full((count, start + count), -np.inf), start + 1)
        for layer in range(self.layers):
            mixed, width = _norm(x) @ self.qkv[layer], self.width
            q, k, v = mixed[:, :width], mixed[:, width : 2 * width], mixed[:, 2 * width :]
            made[:, layer, 0], made[:, layer, 1] = k, v
            shape = (count, self.heads, size)
            keys = np.concatenate([seen[:, layer, 0], k.reshape(shape)])
            values = np.concatenate([seen[:, layer, 1], v.reshape(shape)])
            turned = q.reshape(shape).transpose(1, 0, 2)  # [head, query, place in head]
            scores = turned @ keys.transpose(1, 2, 0) / size**0.5 + hidden
            weights = np.exp(scores - scores.max(axis=2, keepdims=True))
            weights /= weights.sum(axis=2, keepdims=True)
            read = (weights @ values.transpose(1, 0, 2)).transpose(1, 0, 2)
            x = x + read.reshape(count, -1) @ self.out[layer]
            x = x + np.tanh(_norm(x) @ self.up[layer]) @ self.down[layer]
        memory.write(owner, start, made.reshape(count, -1))
        return _norm(x) @ self.head


def _norm(x: F64) -> F64:
    return x / np.sqrt((x * x).sum(axis=1, keepdims=True) / x.shape[1] + 1e-9)


def greedy(model: TinyModel, prompt: Sequence[int], count: int) -> list[int]:
    """The answer computed the slow and obvious way: the whole text anew for every token."""
    text = list(prompt)
    for _ in range(count):
        memory = Reserved(room=len(text), width=model.record)
        memory.open(0, len(text))
        text.append(int(model.forward(text, 0, memory, 0)[-1].argmax()))
    return text[len(prompt) :]


def prompt_tokens(
    number: int, count: int, vocab: int, shared: int = 0, group: int = 0
) -> list[int]:  # fmt: skip
    """The prompt of a job: `shared` tokens that all jobs of a group have, then its own."""
    common = uniforms(Stream(group, "tiny", "shared"), shared)
    own = uniforms(Stream(number, "tiny", "prompt"), max(count - shared, 0))
    return (np.concatenate([common[:count], own]) * vocab).astype(int).tolist()


class Memory(Protocol):
    """What a memory manager of keys and values does; see `xllm.xtensor.XTensor`."""

    free: int

    def open(self, owner: int, most: int) -> None: ...
    def fits(self, owner: int, tokens: int) -> bool: ...
    def reach(self, owner: int, tokens: int) -> None: ...
    def cut(self, owner: int, tokens: int) -> None: ...
    def view(self, owner: int) -> F64: ...
    def write(self, owner: int, start: int, rows: F64) -> None: ...
    def close(self, owner: int) -> None: ...
    def faults(self) -> list[str]: ...


class Reserved:
    """Room for the longest answer, taken when a request comes; `room` tokens in all."""

    def __init__(self, *, room: int, width: int) -> None:
        self.room, self.width, self.free = room, width, room
        self._arrays: dict[int, F64] = {}
        self._length: dict[int, int] = {}

    def open(self, owner: int, most: int) -> None:
        if most > self.free:
            raise UsageError(f"request {owner}: {most} tokens, {self.free} are free")
        self._arrays[owner], self._length[owner] = np.zeros((most, self.width)), 0
        self.free -= most

    def fits(self, owner: int, tokens: int) -> bool:
        return tokens <= len(self._arrays[owner])

    def reach(self, owner: int, tokens: int) -> None:
        if tokens > len(self._arrays[owner]):
            raise UsageError(f"request {owner}: {tokens} tokens beyond its room")
        self._length[owner] = max(self._length[owner], tokens)

    def cut(self, owner: int, tokens: int) -> None:
        self._length[owner] = min(self._length[owner], tokens)

    def view(self, owner: int) -> F64:
        return self._arrays[owner][: self._length[owner]]

    def write(self, owner: int, start: int, rows: F64) -> None:
        self._arrays[owner][start : start + len(rows)] = rows

    def close(self, owner: int) -> None:
        self.free += len(self._arrays.pop(owner))
        del self._length[owner]

    def faults(self) -> list[str]:
        held = sum(len(each) for each in self._arrays.values())
        return [] if held + self.free == self.room else [f"{held} + {self.free} of {self.room}"]


class Asked(NamedTuple):
    """A job for a real engine: its number, its text so far, how many tokens to make, and records
    of its first tokens where they are known already.
    """

    number: int
    text: list[int]
    count: int
    known: Any = None


class TinyEngine:
    """Continuous batching on a real model; with a `draft`, several tokens in a step.

    A draft proposes tokens; the model computes them all at once, keeps those that it would have
    made itself, and adds its own next one. So the answer is the greedy one, token by token.
    `forward(tokens, start, memory, owner)` of the model gives the logits after each token. When the
    memory is short, the request that came last gives its place back and begins again later.
    """

    def __init__(
        self, model: Any, memory: Memory, *, seats: int = 8, chunk: int = 32,
        draft: Draft | None = None, drafts: int = 4,
    ) -> None:  # fmt: skip
        self.model, self.memory, self.seats, self.chunk = model, memory, seats, chunk
        self.draft, self.drafts = draft, drafts
        self.waiting: list[Asked] = []
        self.running: dict[int, list[Any]] = {}  # number -> [text, computed, tokens to make]
        self.steps = self.proposed = self.kept = self.preempted = 0

    def submit(self, job: Asked) -> None:
        if job.count < 1 or not job.text:
            raise UsageError(f"job {job.number}: give a prompt, and at least one token to make")
        self.waiting.append(job)

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    def step(self) -> list[tuple[int, list[int]]]:
        """One step of everyone who runs; (job, new tokens) of each."""
        while self.waiting and len(self.running) < self.seats:
            job = self.waiting.pop(0)
            self.memory.open(job.number, len(job.text) + job.count + self.drafts)
            there = 0 if job.known is None else min(len(job.known), len(job.text) - 1)
            if there:
                self.memory.reach(job.number, there)
                self.memory.write(job.number, 0, job.known[:there])
            self.running[job.number] = [list(job.text), there, job.count]
        made = []
        for number, state in list(self.running.items()):
            if number not in self.running or not self._make_room(number, state):
                continue
            new = self._advance(number, state)
            if new:
                made.append((number, new))
            if not state[2]:
                self.memory.close(number)
                del self.running[number]
        self.steps += 1
        return made

    def _make_room(self, number: int, state: list[Any]) -> bool:
        """Preempt those who came last until a request's next tokens fit; False if it was itself."""
        text, computed, _ = state
        need = computed + min(len(text) - computed, self.chunk) + self.drafts
        while not self.memory.fits(number, need):
            last = next(reversed(self.running))
            if last == number and len(self.running) == 1:
                raise UsageError(f"job {number} alone does not fit into the memory; give it more")
            said, _, left = self.running.pop(last)
            self.memory.close(last)
            self.waiting.insert(0, Asked(last, said, left))
            self.preempted += 1
            if last == number:
                return False
        return True

    def _advance(self, number: int, state: list[Any]) -> list[int]:
        text, computed, left = state
        if len(text) - computed > self.chunk:  # a long prompt goes in pieces
            piece = text[computed : computed + self.chunk]
            self.model.forward(piece, computed, self.memory, number)
            state[1] = computed + len(piece)
            return []
        guess: list[int] = []
        if self.draft is not None and left > 1:
            guess = list(self.draft(text, min(self.drafts, left - 1)))[: min(self.drafts, left - 1)]
        logits = self.model.forward([*text[computed:], *guess], computed, self.memory, number)
        says = [int(row.argmax()) for row in logits[len(text) - computed - 1 :]]
        kept = 0
        while kept < len(guess) and guess[kept] == says[kept]:
            kept += 1
        self.proposed, self.kept = self.proposed + len(guess), self.kept + kept
        new = says[: kept + 1]
        text += new
        state[1], state[2] = len(text) - 1, left - len(new)
        self.memory.cut(number, state[1])  # what was drafted in vain is forgotten
        return new


__all__ = [
    "Asked", "Memory", "Reserved", "TinyEngine", "TinyModel", "greedy", "prompt_tokens",
]  # fmt: skip
