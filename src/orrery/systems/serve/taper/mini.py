"""A real engine in miniature: a float64 transformer whose answers fork and join.

Keys and values lie in numbered blocks. A branch's table of blocks begins with those of its prefix,
the same numbers, held once more; its own tokens go into blocks of its own. A join puts the tables
of the branches one after the other, in their order, whichever ended first. The same policies that
set the widths in virtual time drive it; the time that they see is that of a formula, so that a run
is the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from orrery.base.errors import UsageError
from orrery.base.rand import Stream
from orrery.inputs.draws import normals
from orrery.systems.serve.problems.branch_requests import BranchPolicy, BranchView
from orrery.systems.serve.problems.tenant_desk import LinearSteps

F64 = np.ndarray
JOIN = 0  # the token that follows a join; branch i of a fork begins with the token i + 1
PACE_S = 0.03  # seconds a token that every user of the engine expects


class Piece(NamedTuple):
    """Tokens in a row, then branches, each a row of pieces of its own."""

    tokens: int
    branches: tuple[tuple[Any, ...], ...] = ()


class MiniModel:
    """A decoder-only transformer with random weights, in float64, one token at a time.

    `step` takes for each sequence a token, its position, and the keys and values that it sees; it
    gives the logits and the new keys and values.
    """

    def __init__(self, seed: int = 0, layers: int = 2, width: int = 24, heads: int = 3,
                 vocab: int = 59) -> None:  # fmt: skip
        self.layers, self.width, self.heads, self.vocab = layers, width, heads, vocab
        self._seed = seed
        self.embedding = self._draw("embedding", vocab, width) * width**0.5
        self.qkv = [self._draw(f"qkv {i}", width, 3 * width) for i in range(layers)]
        self.out = [self._draw(f"out {i}", width, width) for i in range(layers)]
        self.up = [self._draw(f"up {i}", width, 2 * width) for i in range(layers)]
        self.down = [self._draw(f"down {i}", 2 * width, width) for i in range(layers)]
        self.head = self._draw("head", width, vocab)

    def _draw(self, name: str, rows: int, columns: int) -> F64:
        drawn = normals(Stream(self._seed, "mini", name), rows * columns)
        return drawn.reshape(rows, columns) / rows**0.5

    def step(
        self, tokens: Sequence[int], positions: Sequence[int],
        seen: Callable[[int, int], tuple[F64, F64]],
    ) -> tuple[F64, F64, F64]:  # fmt: skip
        """(logits, keys, values) of new tokens; `seen(i, layer)` is what sequence i has cached."""
        x = self.embedding[list(tokens)] + self._turn(positions)
        made_k = np.empty((self.layers, len(x), self.width))
        made_v = np.empty_like(made_k)
        for layer in range(self.layers):
            qkv = _norm(x) @ self.qkv[layer]
            q, k, v = (qkv[:, i * self.width : (i + 1) * self.width] for i in range(3))
            made_k[layer], made_v[layer] = k, v
            rows = [self._attend(q[i], *seen(i, layer), k[i], v[i]) for i in range(len(x))]
            x = x + np.array(rows) @ self.out[layer]
            x = x + np.tanh(_norm(x) @ self.up[layer]) @ self.down[layer]
        return _norm(x) @ self.head, made_k, made_v

    def _turn(self, positions: Sequence[int]) -> F64:
        at = np.asarray(positions, float)[:, None]
        rates = 50.0 ** -(np.arange(self.width // 2) / (self.width // 2))
        return np.concatenate([np.sin(at * rates), np.cos(at * rates)], axis=1)

    def _attend(self, q: F64, keys: F64, values: F64, k: F64, v: F64) -> F64:
        size = self.width // self.heads
        keys = np.concatenate([keys, k[None]]).reshape(-1, self.heads, size)
        values = np.concatenate([values, v[None]]).reshape(-1, self.heads, size)
        scores = np.einsum("hd,thd->ht", q.reshape(self.heads, size), keys) / size**0.5
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        return np.einsum("ht,thd->hd", weights, values).reshape(-1)


def _norm(x: F64) -> F64:
    squares = np.einsum("ij,ij->i", x, x)
    return x / np.sqrt(squares / x.shape[1] + 1e-9)[:, None]


class Blocks:
    """Numbered blocks of keys and values, with counts of who holds them."""

    def __init__(self, model: MiniModel, blocks: int, size: int) -> None:
        self.size = size
        self.keys = np.zeros((model.layers, blocks, size, model.width))
        self.values = np.zeros_like(self.keys)
        self.holders = np.zeros(blocks, int)
        self._free = list(range(blocks))[::-1]

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self) -> int:
        """A block of one's own."""
        if not self._free:
            raise UsageError("no block is free; give the engine more")
        number = self._free.pop()
        self.holders[number] = 1
        return number

    def hold(self, numbers: Sequence[int]) -> None:
        """Share blocks that are there."""
        self.holders[list(numbers)] += 1

    def release(self, numbers: Sequence[int]) -> None:
        """Give blocks back; the last holder frees them."""
        for number in numbers:
            self.holders[number] -= 1
            if not self.holders[number]:
                self._free.append(number)


class Strand:
    """One sequence: a request's trunk, or a branch of it.

    table    (block, tokens used of it), in the order in which attention reads them
    base     how many entries of the table are its prefix's
    sealed   entries that nobody writes to any more
    made     its own tokens so far
    """

    def __init__(self, pieces: Sequence[Piece], table: list[tuple[int, int]], position: int,
                 parent: Strand | None = None) -> None:  # fmt: skip
        self.pieces, self.table, self.position, self.parent = list(pieces), table, position, parent
        self.base = self.sealed = len(table)
        self.piece, self.left = 0, self.pieces[0].tokens if self.pieces else 0
        self.next = JOIN
        self.made: list[int] = []
        self.branches: list[Strand] = []
        self.done = not self.pieces


class MiniRequest:
    """A prompt, and an answer of pieces; `said` is the answer once it is done.

    due_s is when its next token is due, waited the steps since it forked, phase_tokens what its
    branches have made since then.
    """

    def __init__(self, id: int, prompt: Sequence[int], answer: Sequence[Piece]) -> None:
        if not prompt:
            raise UsageError(f"request {id}: an empty prompt; give it a token")
        _check_pieces(id, answer)
        self.id, self.prompt, self.answer = id, list(prompt), list(answer)
        self.trunk: Strand | None = None
        self.said: list[Any] = []
        self.waited = self.phase_tokens = 0
        self.due_s = 0.0

    def check(self, vocab: int) -> None:
        """Refuse tokens that a model does not have."""
        for token in self.prompt:
            if type(token) is not int or not 0 <= token < vocab:
                raise UsageError(
                    f"request {self.id}: {token!r} is no token; give numbers from 0 to {vocab - 1}"
                )
        most = _most_branches(self.answer)
        if most >= vocab:
            raise UsageError(
                f"request {self.id}: a fork of {most} branches; each begins with a token of its "
                f"own, give at most {vocab - 1}"
            )


def _check_pieces(id: int, pieces: Sequence[Piece]) -> None:
    for place, piece in enumerate(pieces):
        if type(piece.tokens) is not int or piece.tokens < 0:
            raise UsageError(f"request {id}: a piece of {piece.tokens!r} tokens; give 0 or more")
        if not piece.tokens and (place == 0 or not piece.branches):
            raise UsageError(
                f"request {id}: piece {place} has no token; an answer, and every branch, begins "
                "with one, and a later piece has tokens or branches"
            )
        for branch in piece.branches:
            _check_pieces(id, branch)
    if not pieces:
        raise UsageError(f"request {id}: an answer or a branch without a piece; leave it out")


def _most_branches(pieces: Sequence[Piece]) -> int:
    return max(
        (max(len(piece.branches), *map(_most_branches, piece.branches), 0) for piece in pieces),
        default=0,
    )


class MiniEngine:
    """Serves requests with branches on the mini model; the policy sets the widths of every step.

    `pick` may reorder a request's open strands before the first of them are taken. `steps` says
    what the policy is told that a step takes; by default a branch adds a tenth of a step.
    """

    def __init__(
        self, model: MiniModel, policy: BranchPolicy, *, blocks: int = 400, size: int = 4,
        pick: Callable[[list[Strand]], None] | None = None, steps: Any = None,
    ) -> None:  # fmt: skip
        if blocks < 1 or size < 1:
            raise UsageError(f"{blocks} blocks of {size} tokens; give at least one of one token")
        self.model, self.policy, self.pick = model, policy, pick
        self.cache = Blocks(model, blocks, size)
        self.times = steps or LinearSteps(0.02, 2e-3, 1e-6)
        self.running: list[MiniRequest] = []
        self.now_s = 0.0
        policy.start()

    def serve(self, requests: Sequence[MiniRequest]) -> None:
        """All requests, each to its end."""
        for request in requests:
            request.check(self.model.vocab)
        for request in requests:
            self._prefill(request)
        self.running = list(requests)
        self._let_go()  # an answer of one token is there with its prompt
        while self.running:
            self.step()

    def step(self) -> None:
        """One decode step of the widths that the policy wants."""
        opened = [open_strands(request.trunk) for request in self.running]
        if self.pick is not None:
            for strands in opened:
                self.pick(strands)
        rows = [self._row(*pair) for pair in zip(self.running, opened, strict=True)]
        view = BranchView(self.now_s, rows, (), self.times.seconds)
        widths = [int(each) for each in self.policy.widths(view)]
        chosen = [s for strands, w in zip(opened, widths, strict=True) for s in strands[:w]]
        reads = sum(map(length, chosen)) + len(chosen)
        took_s = self.times.seconds((), len(chosen), reads)
        self.now_s += took_s
        for request, row, width in zip(self.running, rows, widths, strict=True):
            self._count(request, bool(row.open), width)
        self.decode(chosen)
        self.policy.observe(0, len(chosen), reads, took_s)
        self._let_go()

    def _count(self, request: MiniRequest, forked: bool, width: int) -> None:
        """What the policy will be told of a request after a step."""
        if forked:
            request.waited += 1
            request.phase_tokens += width
            request.due_s = self.now_s + PACE_S
        else:
            request.waited = request.phase_tokens = 0
            request.due_s += PACE_S

    def _let_go(self) -> None:
        """Answers that are complete leave, and their blocks are free."""
        for request in list(self.running):
            trunk = request.trunk
            if trunk is not None and trunk.done:
                request.said = trunk.made
                self.cache.release([block for block, _ in trunk.table])
                self.running.remove(request)

    def _row(self, request: MiniRequest, opened: list[Strand]) -> Any:
        trunk = request.trunk
        forked = opened[0] is not trunk
        own = [used for strand in opened for _, used in strand.table[strand.base :]]
        return SimpleNamespace(
            request=SimpleNamespace(id=request.id, tpot_s=PACE_S, deadline_s=9.0, branchy=True),
            open=list(range(len(opened))) if forked else [],
            context=sum(used for _, used in opened[0].table[: opened[0].base if forked else None]),
            own_tokens=sum(own) if forked else 0, waited=request.waited,
            phase_tokens=request.phase_tokens, due_s=request.due_s,
            ended=sum(branch.done for branch in trunk.branches) if trunk is not None else 0,
        )  # fmt: skip

    def _prefill(self, request: MiniRequest) -> None:
        trunk = request.trunk = Strand(request.answer, [], 0)
        for place, token in enumerate(request.prompt):
            logits = self._compute([trunk], [token])
            if place == len(request.prompt) - 1:
                self._say(trunk, int(np.argmax(logits[0])))
        request.due_s = self.now_s + PACE_S

    def decode(self, strands: list[Strand]) -> None:
        """One token more of each of these."""
        if strands:
            logits = self._compute(strands, [strand.next for strand in strands])
            for strand, row in zip(strands, logits, strict=True):
                self._say(strand, int(np.argmax(row)))

    def _compute(self, strands: list[Strand], tokens: list[int]) -> F64:
        """Logits after one token each, whose keys and values are then in the cache."""
        cache = self.cache

        def seen(at: int, layer: int) -> tuple[F64, F64]:
            table = strands[at].table
            if not table:
                nothing = np.zeros((0, self.model.width))
                return nothing, nothing
            return (
                np.concatenate([cache.keys[layer, block, :used] for block, used in table]),
                np.concatenate([cache.values[layer, block, :used] for block, used in table]),
            )

        positions = [strand.position for strand in strands]
        logits, keys, values = self.model.step(tokens, positions, seen)
        for at, strand in enumerate(strands):
            if len(strand.table) == strand.sealed or strand.table[-1][1] == cache.size:
                strand.table.append((cache.take(), 0))
            block, used = strand.table[-1]
            cache.keys[:, block, used], cache.values[:, block, used] = keys[:, at], values[:, at]
            strand.table[-1] = (block, used + 1)
            strand.position += 1
        return logits

    def _say(self, strand: Strand, token: int) -> None:
        strand.made.append(token)
        strand.next = token
        strand.left -= 1
        if not strand.left:
            self._turn(strand)

    def _turn(self, strand: Strand) -> None:
        """A row of tokens is over: fork, go on, or end."""
        piece = strand.pieces[strand.piece]
        if piece.branches:
            self._fork(strand, piece.branches)
            return
        self._go_on(strand)

    def _go_on(self, strand: Strand) -> None:
        strand.piece += 1
        if strand.piece < len(strand.pieces):
            strand.left = strand.pieces[strand.piece].tokens
            if not strand.left:
                self._turn(strand)
            return
        strand.done = True
        parent = strand.parent
        if parent is not None and all(each.done for each in parent.branches):
            self._join(parent)

    def _fork(self, strand: Strand, branches: Sequence[Sequence[Piece]]) -> None:
        """Every branch's table begins with the prefix's blocks; nothing is copied."""
        strand.branches = []
        for number, pieces in enumerate(branches):
            self.cache.hold([block for block, _ in strand.table])
            branch = Strand(pieces, list(strand.table), strand.position, strand)
            branch.next = number + 1
            strand.branches.append(branch)

    def _join(self, strand: Strand) -> None:
        """The branches' own blocks follow the prefix, in the order of the branches."""
        self.gather(strand, strand.branches)
        strand.next = JOIN
        self._go_on(strand)

    def gather(self, strand: Strand, branches: list[Strand]) -> None:
        """Take over what the branches said and hold."""
        for branch in branches:
            self.cache.release([block for block, _ in branch.table[: branch.base]])
            strand.table += branch.table[branch.base :]
            strand.made.append(branch.made)  # type: ignore[arg-type]
        strand.position = max(branch.position for branch in branches)
        # What comes next goes into a block of its own, as the last one may be a branch's.
        strand.sealed = len(strand.table)
        strand.branches = []


def length(strand: Strand) -> int:
    """Tokens that attention reads for it."""
    return sum(used for _, used in strand.table)


def open_strands(strand: Strand | None) -> list[Strand]:
    """The strands of a request that can make a token now, in order."""
    if strand is None or strand.done:
        return []
    if not strand.branches:
        return [strand]
    return [leaf for branch in strand.branches for leaf in open_strands(branch)]


__all__ = ["Blocks", "MiniEngine", "MiniModel", "MiniRequest", "Piece", "Strand", "open_strands"]
