"""Linear attention in chunks against torch's autograd: cuts, decays, empty runs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from orrery.base.errors import PartError
from orrery.models import linear_attention as lin
from orrery.models.attention import deviation

torch = pytest.importorskip("torch", reason="needs the extra torch")

NAMES = ("out", "dq", "dk", "dv", "dg")


def random_inputs(seed, strength):
    rng = np.random.default_rng(seed)
    n, heads, dk, dv = (int(x) for x in rng.integers((1, 1, 1, 1), (60, 4, 8, 8)))
    q, k = (rng.standard_normal((n, heads, dk)).astype(np.float32) for _ in range(2))
    v, dout = (rng.standard_normal((n, heads, dv)).astype(np.float32) for _ in range(2))
    g = -(strength * rng.exponential(size=k.shape)).astype(np.float32)
    return q, k, v, g, dout


def by_torch(q, k, v, g, dout):
    leaves = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (q, k, v, g)]
    state, rows = torch.zeros(*k.shape[1:], v.shape[2], dtype=torch.float64), []
    for t in range(len(q)):
        added = leaves[1][t][..., None] * leaves[2][t][:, None]
        state = torch.exp(leaves[3][t])[..., None] * state + added
        rows.append(torch.einsum("hk,hkv->hv", leaves[0][t], state))
    out = torch.stack(rows)
    out.backward(torch.tensor(dout, dtype=torch.float64))
    return dict(zip(NAMES, [out.detach().numpy(), *(x.grad.numpy() for x in leaves)], strict=True))


def by_chunks(inputs, cuts, chunk):
    """The sequence cut into runs that exchange one state each way."""
    q, k, v, g, dout = inputs
    ends = np.cumsum([0, *cuts])
    runs = [slice(a, b) for a, b in itertools.pairwise(ends)]
    shape = (*k.shape[1:], v.shape[2])
    chunks = [lin.chunk_states(k[r], v[r], g[r], chunk) for r in runs]
    grown = [lin.chunk_gradients(q[r], dout[r], g[r], c.log_decay, chunk)
             for r, c in zip(runs, chunks, strict=True)]  # fmt: skip
    entering, leaving = [np.zeros(shape, np.float32)], [np.zeros(shape, np.float32)]
    for step in (lin.fold(c) for c in chunks):
        entering.append(np.exp(step.log_decay)[..., None] * entering[-1] + step.added)
    for step in (lin.fold(c, reverse=True) for c in reversed(grown)):
        leaving.append(np.exp(step.log_decay)[..., None] * leaving[-1] + step.added)
    made = []
    for i, r in enumerate(runs):
        before = lin.carry(chunks[i], entering[i])
        after = lin.carry(grown[i], leaving[len(runs) - 1 - i], reverse=True)
        out = lin.inside(q[r], k[r], v[r], g[r], chunk) + lin.across(q[r], g[r], before, chunk)
        inner = lin.inside_backward(q[r], k[r], v[r], g[r], dout[r], chunk)
        grads = lin.across_backward(inner, q[r], k[r], v[r], g[r], dout[r], before, after,
                                    chunks[i], chunk)  # fmt: skip
        made.append((out, *grads))
    return {name: np.concatenate([run[i] for run in made]) for i, name in enumerate(NAMES)}


@pytest.mark.parametrize("strength", [0.0, 0.1, 3.0, 1e4, np.inf])
def test_chunks_and_the_reference_equal_torch(strength):
    for seed in range(6):
        inputs = list(random_inputs(seed, strength if np.isfinite(strength) else 1.0))
        if not np.isfinite(strength):
            inputs[3] = np.where(inputs[3] < -1.0, -np.inf, inputs[3]).astype(np.float32)
        truth, n = by_torch(*inputs), len(inputs[0])
        plain = lin.reference(*inputs)
        middle = n // 3
        for cuts, chunk in (([n], 7), ([middle, 0, n - middle], 4), ([0, n, 0], 1)):
            made = by_chunks(inputs, cuts, chunk)
            for name in NAMES:
                assert deviation(plain[name], truth[name]) < 1e-10, (seed, name)
                assert deviation(made[name], truth[name]) < 2e-5, (seed, name, cuts)


def test_a_state_that_is_lost_would_be_seen():
    inputs = random_inputs(1, 0.1)
    q, k, v, g, _ = inputs
    truth = lin.reference(*inputs)["out"]
    chunks = lin.chunk_states(k, v, g, 4)
    inner = lin.inside(q, k, v, g, 4)
    right = lin.carry(chunks, np.zeros_like(chunks.added[0]))
    assert deviation(inner + lin.across(q, g, right, 4), truth) < 1e-5
    assert deviation(inner + lin.across(q, g, 0 * right, 4), truth) > 1e-2
    assert deviation(inner + lin.across(q, 0 * g, right, 4), truth) > 1e-2


def test_what_float32_alone_would_blur_stays_right():
    # The log decays before two rows are huge, the one between them is small.
    g = np.zeros((3, 1, 1), np.float32)
    g[1], g[2] = -9e3, -1e-3
    ones = np.ones((3, 1, 1), np.float32)
    out = lin.inside(ones, ones, ones, g, 3)
    assert out[2, 0, 0] == pytest.approx(1 + np.exp(-1e-3), abs=1e-6)


def test_bad_shapes_and_growth_are_named():
    q, k, v, g, _ = random_inputs(2, 0.1)
    lin.check_shapes(q, k, v, g)
    lin.check_shapes(q[:0], k[:0], v[:0], g[:0])
    for wrong in ((q[:1], k[:0], v, g), (q, k, v[:0], g), (q, k, v, g[:, :, :0])):
        with pytest.raises(PartError, match="linear attention of"):
            lin.check_shapes(*wrong)
    for bad in (0.5, np.nan):
        with pytest.raises(PartError, match="zero or below"):
            lin.check_shapes(q, k, v, g * 0 + np.float32(bad))
