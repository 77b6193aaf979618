"""Attention in pieces against torch: random shapes, masks, documents, grouped queries, bf16."""

from __future__ import annotations

import numpy as np
import pytest

from orrery.base.errors import PartError
from orrery.models import attention as at
from orrery.models import shards
from orrery.models.attention import Block

torch = pytest.importorskip("torch", reason="needs the extra torch")


def random_batch(seed):
    """A batch of random shape: (lengths, causal, q, k, v, dout, ranks)."""
    rng = np.random.default_rng(seed)
    lengths = [int(n) for n in rng.integers(0, 40, rng.integers(1, 4))]
    lengths[0] += 1
    groups, share, dim = (int(rng.integers(1, 4)) for _ in range(3))
    dim = 4 * dim
    shape = (sum(lengths), groups * share, dim)
    q, dout = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    k, v = (rng.standard_normal((sum(lengths), groups, dim)).astype(np.float32) for _ in range(2))
    return lengths, bool(rng.integers(2)), q, k, v, dout, int(rng.integers(1, 6))


def torch_attention(q, k, v, dout, lengths, causal):
    """The same by torch's own attention and autograd, in float64."""
    leaves = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (q, k, v)]
    document = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    seen = document[:, None] == document[None, :]
    if causal:
        seen = seen & torch.ones(len(q), len(q), dtype=torch.bool).tril()
    grouped = [x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in leaves[1:]]
    parts = [x.transpose(0, 1)[None] for x in (leaves[0], *grouped)]
    out = torch.nn.functional.scaled_dot_product_attention(*parts, attn_mask=seen)
    out = out[0].transpose(0, 1)
    out.backward(torch.tensor(dout, dtype=torch.float64))
    made = {"out": out.detach().numpy()}
    return made | {f"d{n}": x.grad.numpy() for n, x in zip("qkv", leaves, strict=True)}


def spread(lengths, causal, q, k, v, dout, size, layout):
    """The batch computed shard by shard and put together again."""
    first = np.concatenate([[0], np.cumsum(lengths)]).astype(int)
    parts = layout(lengths, size)
    at.check_layout(parts, lengths, size)
    here = [
        np.concatenate([np.zeros(0, int), *(first[b.document] + np.arange(b.start, b.stop)
                                            for b in blocks)])
        for blocks in parts
    ]  # fmt: skip
    made = {n: np.zeros_like(x) for n, x in (("out", q), ("dq", q), ("dk", k), ("dv", v))}
    for mine, queries in zip(here, parts, strict=True):
        seen = [at.mask(queries, keys, causal) for keys in parts]
        whole = None
        for theirs, visible in zip(here, seen, strict=True):
            part = at.attend(q[mine], k[theirs], v[theirs], visible)
            whole = part if whole is None else at.merge(whole, part)
        made["out"][mine] = whole.out
        delta = at.row_sums(dout[mine], whole.out)
        for theirs, visible in zip(here, seen, strict=True):
            dq, dk, dv = at.attend_backward(
                q[mine], k[theirs], v[theirs], dout[mine], whole.lse, delta, visible
            )
            made["dq"][mine] += dq
            made["dk"][theirs] += dk
            made["dv"][theirs] += dv
    return made


@pytest.mark.parametrize("layout", [at.contiguous, at.zigzag])
def test_shards_and_the_reference_equal_torch_forwards_and_backwards(layout):
    for seed in range(25):
        lengths, causal, q, k, v, dout, size = random_batch(seed)
        truth = torch_attention(q, k, v, dout, lengths, causal)
        plain = at.reference(q, k, v, dout, lengths, causal)
        made = spread(lengths, causal, q, k, v, dout, size, layout)
        for name in truth:
            assert at.deviation(plain[name], truth[name]) < 1e-10, (seed, name)
            assert at.deviation(made[name], truth[name]) < 1e-5, (seed, name)


def test_a_wrong_scale_or_a_lost_key_would_be_seen():
    lengths, causal, q, k, v, dout, _ = random_batch(3)
    truth = at.reference(q, k, v, dout, lengths, causal)["out"]
    seen = at.mask([Block(d, 0, n) for d, n in enumerate(lengths) if n],
                   [Block(d, 0, n) for d, n in enumerate(lengths) if n], causal)  # fmt: skip
    right = at.attend(q, k, v, seen).out
    assert at.deviation(right, truth) < 1e-5
    assert at.deviation(at.attend(q, k, v, seen, scale=0.9).out, truth) > 1e-3
    visible = np.ones((len(q), len(q)), bool) if seen is None else seen.copy()
    visible[:, 0] = False
    assert at.deviation(at.attend(q, k, v, visible).out, truth) > 1e-3
    assert at.deviation(right[:-1], truth) == np.inf
    assert at.deviation(np.full_like(right, np.nan), truth) == np.inf


def test_large_scores_neither_overflow_nor_vanish():
    q = np.full((3, 1, 4), 200.0, np.float32)
    whole = at.attend(q, q, np.arange(12, dtype=np.float32).reshape(3, 1, 4))
    assert np.isfinite(whole.out).all()
    assert np.isfinite(at.merge(whole, whole).out).all()


def test_tiles_do_not_change_the_result(monkeypatch):
    lengths, causal, q, k, v, dout, _ = random_batch(5)
    blocks = [Block(d, 0, n) for d, n in enumerate(lengths) if n]
    seen = at.mask(blocks, blocks, causal)
    whole = at.attend(q, k, v, seen)
    delta = at.row_sums(dout, whole.out)
    grads = at.attend_backward(q, k, v, dout, whole.lse, delta, seen)
    monkeypatch.setattr(at, "TILE_SCORES", 7)
    assert np.allclose(at.attend(q, k, v, seen).out, whole.out, atol=1e-6)
    tiled = at.attend_backward(q, k, v, dout, whole.lse, delta, seen)
    for a, b in zip(tiled, grads, strict=True):
        assert np.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("many", [0, 10**9], ids=["arrays", "loops"])
def test_visible_pairs_are_those_of_the_mask(many, monkeypatch):
    monkeypatch.setattr(shards, "MANY_PAIRS", many)
    rng = np.random.default_rng(1)
    for _ in range(300):

        def some():
            ends = np.sort(rng.integers(0, 30, (3, 2)), axis=1)
            return [Block(int(rng.integers(2)), int(a), int(b)) for a, b in ends if a < b]

        queries, keys, causal = some(), some(), bool(rng.integers(2))
        (dq, pq), (dk, pk) = at.places(queries), at.places(keys)
        seen = dq[:, None] == dk[None, :]
        if causal:
            seen &= pq[:, None] >= pk[None, :]
        assert at.visible_pairs(queries, keys, causal) == seen.sum()
        made = at.mask(queries, keys, causal)
        assert seen.all() if made is None else (made == seen).all()


@pytest.mark.parametrize("layout", [at.contiguous, at.zigzag])
def test_layouts_are_partitions_of_nearly_equal_size(layout):
    rng = np.random.default_rng(4)
    for _ in range(60):
        size = int(rng.integers(1, 9))
        lengths = [int(x) for x in rng.integers(0, 50, rng.integers(1, 6))]
        made = layout(lengths, size)
        at.check_layout(made, lengths, size)
        counts = [at.rows(blocks) for blocks in made]
        assert max(counts) - min(counts) <= (1 if layout is at.contiguous else 2 * len(lengths))


def test_halves_have_every_row_once():
    blocks = at.zigzag([13, 4], 3)[1]
    first, second = at.halves(blocks)
    assert at.rows(first) - at.rows(second) in (0, 1)
    both = np.concatenate([at.places(first)[1], at.places(second)[1]])
    assert (both == at.places(blocks)[1]).all()


def test_bf16_is_that_of_torch():
    rng = np.random.default_rng(2)
    values = rng.standard_normal(10_000).astype(np.float32) * 10.0 ** rng.integers(-20, 20, 10_000)
    values = np.concatenate([values, [np.inf, -np.inf, 0.0, -0.0]]).astype(np.float32)
    there = at.from_wire(at.to_wire(values, "bf16"))
    assert (there == torch.from_numpy(values).to(torch.bfloat16).float().numpy()).all()
    assert np.isnan(at.from_wire(at.to_wire(np.float32([np.nan]), "bf16"))).all()


@pytest.mark.parametrize(
    ("layout", "says"),
    [
        ([[Block(0, 0, 5)]], "1 shards for 2 ranks"),
        ([[Block(0, 0, 5)], [Block(0, 4, 9)]], "row 4 of document 0 is at rank 1 and at another"),
        ([[Block(0, 0, 5)], [Block(0, 6, 9)]], "row 5 of document 0 has no rank"),
        ([[Block(0, 0, 5)], []], "row 5 of document 0 has no rank"),
        ([[Block(0, 0, 9)], [Block(1, 0, 1)]], "rank 1 has Block"),
        ([[Block(0, 0, 9)], [Block(0, 9, 10)]], "rank 1 has Block"),
        ([[Block(0, 0, 9)], [Block(0, 3, 3)]], "rank 1 has Block"),
    ],
)
def test_bad_layouts_are_named(layout, says):
    with pytest.raises(PartError, match=says):
        at.check_layout(layout, [9], 2)


def test_bad_shapes_are_named():
    q = np.zeros((4, 4, 8), np.float32)
    for k, v in ((q[:, :3], q[:, :3]), (q[..., :4], q), (q[:2], q), (q[0], q[0])):
        with pytest.raises(PartError, match="attention of"):
            at.attend(q, k, v)
