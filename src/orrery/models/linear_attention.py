"""The arithmetic of linear attention with decay, chunk by chunk, so that a sequence can be cut.

With S_t = diag(g_t) S_(t-1) + k_t v_t^T and o_t = S_t^T q_t, a run of rows acts on the state that
enters it as S_out = Gamma S_in + dS, where Gamma and dS come from its own rows alone (gated linear
attention, Yang et al., 2024; without decay, Katharopoulos et al., 2020). Rows are handled in small
chunks: inside one directly, between them through the state.

Decays are kept as logarithms, and every exponent here is a difference that is zero or below, so
nothing overflows and what decays away becomes zero. Arrays are (rows, heads, dim); states are
(heads, key dim, value dim). Cost for each row and head, with chunks of c rows: 2 dk dv for the
states, 2 c (dk + dv) inside chunks, 2 dk dv for reading the state.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from orrery.base.errors import PartError

Array = npt.NDArray[Any]

# The exponential of this is zero also in float64.
LOWEST = -1e4
# Up to this log decay over a chunk, its exponential and the inverse are safe in float32.
MILD = 60.0


class Chunks(NamedTuple):
    """What each chunk of a rank's rows does to a state: log of its decay, and what it adds."""

    log_decay: Array  # (chunks, heads, dk)
    added: Array  # (chunks, heads, dk, dv)


class Step(NamedTuple):
    """What a whole run of rows does to a state."""

    log_decay: Array  # (heads, dk)
    added: Array  # (heads, dk, dv)


def slices(rows: int, chunk: int) -> list[slice]:
    """The chunks of so many rows."""
    return [slice(at, min(at + chunk, rows)) for at in range(0, rows, chunk)]


def check_shapes(q: Array, k: Array, v: Array, log_g: Array) -> None:
    """Refuse arrays that do not belong together, and growth instead of decay."""
    if q.ndim != 3 or q.shape != k.shape or log_g.shape != k.shape or v.shape[:2] != k.shape[:2]:
        told = f"q {q.shape}, k {k.shape}, v {v.shape}, log_g {log_g.shape}"
        raise PartError(f"linear attention of {told}: give (rows, heads, dim), q and k alike")
    if log_g.size and not float(log_g.max()) <= 0:
        raise PartError(f"log_g has {float(log_g.max())}; the log of a decay is zero or below")


# -- forwards


def chunk_states(k: Array, v: Array, log_g: Array, chunk: int) -> Chunks:
    """What each chunk does to the state."""
    parts = slices(len(k), chunk)
    heads, dk, dv = k.shape[1], k.shape[2], v.shape[2]
    log_decay = np.zeros((len(parts), heads, dk), k.dtype)
    added = np.zeros((len(parts), heads, dk, dv), k.dtype)
    for i, part in enumerate(parts):
        so_far = _so_far(log_g[part])
        log_decay[i] = np.maximum(so_far[-1], LOWEST)
        added[i] = _outer(k[part] * _exp(so_far[-1] - so_far), v[part])
    return Chunks(log_decay, added)


def fold(chunks: Chunks, reverse: bool = False) -> Step:
    """All chunks as one step; in reverse for the gradient's state, which runs from the end."""
    total = np.zeros(chunks.added.shape[1:], chunks.added.dtype)
    order = range(len(chunks.added))
    for i in reversed(order) if reverse else order:
        total = np.exp(chunks.log_decay[i])[..., None] * total + chunks.added[i]
    return Step(chunks.log_decay.sum(axis=0), total)


def carry(chunks: Chunks, entering: Array, reverse: bool = False) -> Array:
    """The state that enters each chunk, when this one enters the first (the last in reverse)."""
    found = np.zeros_like(chunks.added)
    state = entering
    order = range(len(chunks.added))
    for i in reversed(order) if reverse else order:
        found[i] = state
        state = np.exp(chunks.log_decay[i])[..., None] * state + chunks.added[i]
    return found


def inside(q: Array, k: Array, v: Array, log_g: Array, chunk: int) -> Array:
    """The output that comes from rows of the same chunk."""
    out = np.zeros((len(q), *v.shape[1:]), q.dtype)
    for part in slices(len(q), chunk):
        score = _pairs(q[part], k[part], log_g[part]).score()
        out[part] = np.matmul(score, v[part].swapaxes(0, 1)).swapaxes(0, 1)
    return out


def across(q: Array, log_g: Array, entering: Array, chunk: int) -> Array:
    """The output that comes through the state that enters each chunk."""
    out = np.zeros((len(q), q.shape[1], entering.shape[-1]), q.dtype)
    for i, part in enumerate(slices(len(q), chunk)):
        grown = q[part] * _exp(_so_far(log_g[part]))
        out[part] = _read(grown, entering[i])
    return out


class _Mild:
    """Pairs of rows of a chunk whose decays are mild: they factor, so matrix products do.

    The decay from row j to row i is exp(b_i - m) exp(m - b_j), with m in the middle of the chunk;
    both factors stay far from overflow. Heads come first in these arrays.
    """

    def __init__(self, q: Array, k: Array, so_far: Array) -> None:
        middle = so_far[len(so_far) // 2]
        self.up, self.down = (_exp(x).swapaxes(0, 1) for x in (so_far - middle, middle - so_far))
        self.q, self.k = q.swapaxes(0, 1) * self.up, k.swapaxes(0, 1) * self.down

    def score(self) -> Array:
        return np.tril(np.matmul(self.q, self.k.swapaxes(1, 2)))

    def back(self, dscore: Array) -> tuple[Array, Array]:
        """(dq, dk) from the gradient of the scores, rows first."""
        dq = self.up * np.matmul(dscore, self.k)
        dk = self.down * np.matmul(dscore.swapaxes(1, 2), self.q)
        return dq.swapaxes(0, 1), dk.swapaxes(0, 1)


class _Strong:
    """The same where decays are strong: the decay of every pair by itself, at dk times the cost."""

    def __init__(self, q: Array, k: Array, so_far: Array) -> None:
        apart = so_far[:, None] - so_far[None, :]
        apart[np.triu(np.ones((len(q), len(q)), bool), 1)] = -np.inf
        self.q, self.k, self.decay = q, k, _exp(apart)  # (i, j, heads, dk); 0 where j is later

    def score(self) -> Array:
        score = np.einsum("ihd,ijhd,jhd->hij", self.q, self.decay, self.k, optimize=True)
        return np.asarray(score)

    def back(self, dscore: Array) -> tuple[Array, Array]:
        """(dq, dk) from the gradient of the scores, rows first."""
        dq = np.einsum("hij,ijhd,jhd->ihd", dscore, self.decay, self.k, optimize=True)
        dk = np.einsum("hij,ijhd,ihd->jhd", dscore, self.decay, self.q, optimize=True)
        return dq, dk


def _pairs(q: Array, k: Array, log_g: Array) -> _Mild | _Strong:
    so_far = _so_far(log_g)
    mild = float((so_far[0] - so_far[-1]).max(initial=0.0)) <= MILD
    return _Mild(q, k, so_far) if mild else _Strong(q, k, so_far)


def _outer(a: Array, b: Array) -> Array:
    """The sum over rows of a b^T, for each head."""
    return np.asarray(np.matmul(a.transpose(1, 2, 0), b.swapaxes(0, 1)))


def _read(rows: Array, state: Array) -> Array:
    """Every row times the state of its head."""
    return np.asarray(np.matmul(rows.swapaxes(0, 1), state).swapaxes(0, 1))


def _so_far(log_g: Array) -> Array:
    """The log decay from the beginning of the chunk to each row, itself included.

    In float64, since strong decays before two rows must not blur the little between them. What is
    below LOWEST is zero in any precision; so cut, no difference is infinity less infinity.
    """
    return np.cumsum(np.maximum(log_g, LOWEST), axis=0, dtype=np.float64)


def _exp(log: Array) -> Array:
    return np.asarray(np.exp(log.astype(np.float32)))


# -- backwards


def chunk_gradients(q: Array, dout: Array, log_g: Array, log_decay: Array, chunk: int) -> Chunks:
    """What each chunk does to the gradient of the state, which runs from the end."""
    parts = slices(len(q), chunk)
    added = np.zeros((len(parts), q.shape[1], q.shape[2], dout.shape[2]), q.dtype)
    for i, part in enumerate(parts):
        grown = q[part] * _exp(_so_far(log_g[part]))
        added[i] = _outer(grown, dout[part])
    return Chunks(log_decay, added)


def inside_backward(
    q: Array, k: Array, v: Array, log_g: Array, dout: Array, chunk: int
) -> tuple[Array, Array, Array]:
    """(dq, dk, dv) from pairs of rows of the same chunk."""
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for part in slices(len(q), chunk):
        pairs = _pairs(q[part], k[part], log_g[part])
        grown, values = dout[part].swapaxes(0, 1), v[part].swapaxes(0, 1)
        dscore = np.tril(np.matmul(grown, values.swapaxes(1, 2)))
        dq[part], dk[part] = pairs.back(dscore)
        dv[part] = np.matmul(pairs.score().swapaxes(1, 2), grown).swapaxes(0, 1)
    return dq, dk, dv


def across_backward(
    inner: tuple[Array, Array, Array], q: Array, k: Array, v: Array, log_g: Array, dout: Array,
    entering: Array, leaving: Array, chunks: Chunks, chunk: int,
) -> tuple[Array, Array, Array, Array]:  # fmt: skip
    """All gradients (dq, dk, dv, dlog_g): the inner ones and those through the states.

    `entering` are the states before each chunk, `leaving` the gradients of those after it. The
    gradient of a log decay needs no pass of its own: where a row's decay is counted, that row's q
    gains what its k loses (Yang et al., 2024), and the state that leaves the chunk gains too.
    """
    dq, dk, dv = (x.copy() for x in inner)
    dlog_g = np.zeros_like(log_g)
    for i, part in enumerate(slices(len(q), chunk)):
        so_far = _so_far(log_g[part])
        left = _exp(so_far[-1] - so_far)
        dq[part] += _exp(so_far) * _read(dout[part], entering[i].swapaxes(1, 2))
        dk[part] += left * _read(v[part], leaving[i].swapaxes(1, 2))
        dv[part] += _read(left * k[part], leaving[i])
        after = _exp(so_far[-1])[..., None] * entering[i] + chunks.added[i]
        ends = np.einsum("hkv,hkv->hk", leaving[i], after)
        turn = (q[part] * dq[part] - k[part] * dk[part])[::-1]
        dlog_g[part] = np.cumsum(turn, axis=0)[::-1] + ends
    return dq, dk, dv, dlog_g


# -- two runs of rows directly, without a state


def apart(q: Array, log_g: Array, between: Array) -> Array:
    """Queries with the decay from the beginning of their run, and that `between` two runs."""
    return q * _exp(np.maximum(_so_far(log_g) + between, LOWEST))


def ahead(k: Array, log_g: Array) -> Array:
    """Keys with the decay to the end of their run."""
    so_far = _so_far(log_g)
    return k * _exp(so_far[-1:] - so_far)


def meet(grown: Array, faded: Array, v: Array) -> Array:
    """The output of one run's queries (`apart`) from an earlier run's keys (`ahead`)."""
    score = np.matmul(grown.swapaxes(0, 1), faded.transpose(1, 2, 0))
    return np.asarray(np.matmul(score, v.swapaxes(0, 1)).swapaxes(0, 1))


def meet_backward(
    q: Array, k: Array, v: Array, dout: Array, q_log_g: Array, k_log_g: Array, between: Array
) -> tuple[Array, Array, Array]:
    """(dq, dk, dv) from pairs of a row and a row of an earlier run."""
    ones_q, ones_k = np.ones_like(q), np.ones_like(k)
    up, down = apart(ones_q, q_log_g, between), ahead(ones_k, k_log_g)
    grown, faded = (q * up).swapaxes(0, 1), (k * down).swapaxes(0, 1)
    score = np.matmul(grown, faded.swapaxes(1, 2))
    out = dout.swapaxes(0, 1)
    dscore = np.matmul(out, v.swapaxes(0, 1).swapaxes(1, 2))
    dq = up * np.matmul(dscore, faded).swapaxes(0, 1)
    dk = down * np.matmul(dscore.swapaxes(1, 2), grown).swapaxes(0, 1)
    return dq, dk, np.matmul(score.swapaxes(1, 2), out).swapaxes(0, 1)


def total_log(log_g: Array) -> Array:
    """The log decay over a whole run."""
    total = np.maximum(log_g, LOWEST).sum(axis=0, dtype=np.float64)
    return np.asarray(np.maximum(total, LOWEST))


# -- the truth


def reference(q: Array, k: Array, v: Array, log_g: Array, dout: Array) -> dict[str, Array]:
    """Output and gradients in float64, row by row, by the recurrence and its reverse."""
    q, k, v, log_g, dout = (np.asarray(x, np.float64) for x in (q, k, v, log_g, dout))
    n, heads, dk = q.shape
    states = np.zeros((n + 1, heads, dk, v.shape[2]))
    made = {"out": np.zeros((n, heads, v.shape[2])), "dq": np.zeros_like(q)}
    made |= {"dk": np.zeros_like(k), "dv": np.zeros_like(v), "dg": np.zeros_like(log_g)}
    for t in range(n):
        states[t + 1] = np.exp(log_g[t])[..., None] * states[t] + k[t][..., None] * v[t][:, None]
        made["out"][t] = np.einsum("hk,hkv->hv", q[t], states[t + 1])
    grown = np.zeros(states.shape[1:])
    for t in reversed(range(n)):
        grown = grown + q[t][..., None] * dout[t][:, None]
        made["dq"][t] = np.einsum("hkv,hv->hk", states[t + 1], dout[t])
        made["dk"][t] = np.einsum("hkv,hv->hk", grown, v[t])
        made["dv"][t] = np.einsum("hkv,hk->hv", grown, k[t])
        decay = np.exp(log_g[t])
        made["dg"][t] = decay * np.einsum("hkv,hkv->hk", grown, states[t])
        grown = decay[..., None] * grown
    return made
