"""Mixtures of experts: gradients against PyTorch and by differences, stacks, upcycling."""

from __future__ import annotations

import numpy as np
import pytest

from orrery.base.errors import KnobError, PartError, UsageError
from orrery.models.learn import Experts, Language, language, make, mixture

SIZES = {"vocabulary": 11, "width": 12, "layers": 2, "heads": 3, "context": 7}
SMALL = mixture.Shape(**SIZES, experts=5, top=2, hidden=10)
ALL = tuple(range(5))


def rows_of(replicas, rows, length, seed=0):
    return np.random.default_rng(seed).integers(0, 11, (replicas, rows, length + 1))


def start(shape, seed=3, kind=np.float64):
    rng = np.random.default_rng(seed)
    return language.filled(mixture.layout_of(shape), shape, rng).astype(kind)


def torch_slope(shape, flat, rows, balance):
    """The same model in PyTorch's own words: every expert reads every token, masks do the rest."""
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    leaf = torch.tensor(flat, requires_grad=True)
    w = {
        name: leaf[where].reshape(mixture.layout_of(shape).shapes[name])
        for name, where in mixture.layout_of(shape).slices.items()
    }
    rows = torch.tensor(rows)
    read, asked = rows[:, :-1], rows[:, 1:]

    def norm(x, gain):
        return gain * x / torch.sqrt((x * x).mean(-1, keepdim=True) + language.EPS)

    x, extra = w["tokens"][read] + w["places"][: read.shape[1]], 0.0
    for n in range(shape.layers):
        qkv = norm(x, w[f"{n}.norm"]) @ w[f"{n}.qkv"]
        q, k, v = (
            part.reshape(*read.shape, shape.heads, -1).transpose(1, 2) for part in qkv.chunk(3, -1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + mixed.transpose(1, 2).reshape(x.shape) @ w[f"{n}.out"]
        y = norm(x, w[f"{n}.norm2"])
        shares = torch.softmax(y @ w[f"{n}.router"], -1)
        gates, chosen = torch.topk(shares, shape.top)
        mask = torch.zeros_like(shares).scatter(-1, chosen, 1.0)
        if shape.normal:
            gates = gates / gates.sum(-1, keepdim=True)
        weight = torch.zeros_like(shares).scatter(-1, chosen, gates)
        for e in range(shape.experts):
            said = torch.relu(y @ w[f"{n}.{e}.up"]) @ w[f"{n}.{e}.down"]
            x = x + weight[..., e : e + 1] * said
        load = mask.mean((0, 1)) / shape.top
        extra = extra + shape.experts * (load * shares.mean((0, 1))).sum() / shape.layers
    logits = norm(x, w["norm"]) @ w["head"]
    loss = functional.cross_entropy(logits.reshape(-1, shape.vocabulary), asked.reshape(-1))
    (loss + balance * extra).backward()
    return float(loss.detach()), leaf.grad.numpy()


@pytest.mark.parametrize("normal", [False, True])
@pytest.mark.parametrize(("experts", "top"), [(5, 2), (5, 1), (3, 3), (1, 1)])
def test_the_gradient_is_that_of_pytorch(experts, top, normal):
    shape = SMALL._replace(experts=experts, top=top, normal=normal)
    flat, rows = start(shape), rows_of(1, 6, 7)
    loss, (slope,) = mixture.gradients(shape, flat[None], rows, 0.5, [range(experts)])
    expected, wanted = torch_slope(shape, flat, rows[0], 0.5)
    assert loss[0] == pytest.approx(expected, rel=1e-10)
    np.testing.assert_allclose(mixture.whole(shape, slope), wanted, rtol=1e-7, atol=1e-10)


def test_the_gradient_by_differences():
    flat, rows = start(SMALL), rows_of(1, 6, 7)
    _, (slope,) = mixture.gradients(SMALL, flat[None], rows, 0.5, [ALL])
    slope = mixture.whole(SMALL, slope)

    def paid(weights):
        passed = mixture.Pass(SMALL, weights[None], rows, 0.5)
        return float(passed.losses()[0] + passed.penalties()[0])

    for at in range(0, flat.size, 37):
        step = np.zeros_like(flat)
        step[at] = 1e-6
        seen = (paid(flat + step) - paid(flat - step)) / 2e-6
        assert slope[at] == pytest.approx(seen, rel=1e-4, abs=1e-8)


def test_frozen_experts_have_no_gradient_and_change_no_other():
    flat, rows = start(SMALL), rows_of(1, 6, 7)
    _, (every,) = mixture.gradients(SMALL, flat[None], rows, 0.01, [ALL])
    _, (some,) = mixture.gradients(SMALL, flat[None], rows, 0.01, [(1, 4)])
    shared, *pieces = mixture.pieces_of(SMALL)
    whole = mixture.whole(SMALL, every)
    kept = [mixture.pack(whole, where) for where in (shared, pieces[1], pieces[4])]
    assert np.array_equal(some, np.concatenate(kept))
    assert some.size == shared_size(SMALL) + 2 * 2 * 2 * 12 * 10


def shared_size(shape):
    return mixture.shared_layout(shape).size


def test_replicas_in_a_stack_get_the_bits_they_would_get_alone():
    own = [(0, 1), (2,), ALL, ()]
    flat = np.stack([start(SMALL, n, np.float32) for n in range(4)])
    rows = rows_of(4, 3, 7)
    losses, slopes = mixture.gradients(SMALL, flat, rows, 0.01, own)
    for n in range(4):
        loss, (slope,) = mixture.gradients(SMALL, flat[n : n + 1], rows[n : n + 1], 0.01, [own[n]])
        assert loss[0] == losses[n] and np.array_equal(slope, slopes[n])
        assert slope.dtype == np.float32


def test_shares_in_a_stack_get_the_bits_they_would_get_alone():
    task = Experts()
    weights = [task.start_weights() * np.float32(1 + n / 10) for n in range(3)]

    def shares():
        made = [task.share(n, 3, None) for n in range(3)]
        made[1].own = (2, 3)
        return made

    alone = [share.grad(w) for share, w in zip(shares(), weights, strict=True)]
    taken = shares()
    stacked = type(taken[0]).grad.__together__(list(zip(taken, weights, strict=True)))
    assert all(np.array_equal(a, b) for a, b in zip(alone, stacked, strict=True))
    assert alone[0].size == weights[0].size > alone[1].size


def test_pieces_cover_the_weights_once():
    seen = np.zeros(mixture.layout_of(SMALL).size, int)
    for where in mixture.pieces_of(SMALL):
        for part in where:
            seen[part] += 1
    assert (seen == 1).all()
    flat = np.arange(seen.size, dtype=np.float64)
    again = np.zeros_like(flat)
    for where in mixture.pieces_of(SMALL):
        mixture.place(again, where, mixture.pack(flat, where))
    assert np.array_equal(again, flat)


def test_one_expert_that_all_tokens_read_is_the_dense_model():
    shape = mixture.Shape(**SIZES, experts=1, top=1, hidden=48)
    dense = language.start_weights(language.Shape(**SIZES), np.random.default_rng(1))
    flat = mixture.upcycled(shape, dense, start(shape, kind=np.float32))
    rows = rows_of(1, 5, 7)
    plain, slope = language.gradients(language.Shape(**SIZES), dense[None], rows)
    loss, (found,) = mixture.gradients(shape, flat[None], rows, 0.0, [(0,)])
    assert loss[0] == pytest.approx(plain[0], rel=1e-6)
    views = mixture.layout_of(shape).views(mixture.whole(shape, found))
    dense_views = language.layout_of(language.Shape(**SIZES)).views(slope[0])
    np.testing.assert_allclose(views["1.0.up"], dense_views["1.up"], atol=1e-6)


def test_experts_that_begin_as_copies_say_what_the_dense_model_says():
    task = Experts(hidden=128, normal=True, dense_steps=30)
    dense = task.dense()
    weights, share, inner = dense.start_weights(), dense.share(0, 1, None), make("adamw", 3e-3)
    for _ in range(30):
        weights = inner.step(weights, share.grad(weights))
    assert task.judge(task.start_weights()) == pytest.approx(dense.judge(weights), rel=1e-5)
    # Without the copies, or with shares that do not add up to one, it says something else.
    assert abs(Experts(hidden=128).judge(Experts(hidden=128).start_weights()) - 3.0) < 0.5
    uneven = task.with_knobs(normal=False).judge(task.start_weights())
    assert uneven != pytest.approx(dense.judge(weights), rel=1e-3)


def test_a_checkpoint_can_be_read(tmp_path):
    path = tmp_path / "dense.npy"
    dense = Language().start_weights()
    np.save(path, dense)
    task = Experts(hidden=128, dense_path=str(path))
    first = mixture.layout_of(task.sizes()).views(task.start_weights())
    plain = language.layout_of(task.shape()).views(dense)
    for expert in range(4):
        assert np.array_equal(first[f"1.{expert}.down"], plain["1.down"])
    assert np.array_equal(first["head"], plain["head"])


def test_the_penalty_evens_the_loads():
    def uneven(balance):
        task = Experts(experts=8, top=1, balance=balance)
        weights, share, inner = task.start_weights(), task.share(0, 1, None), make("adamw", 3e-3)
        for _ in range(60):
            weights = inner.step(weights, share.grad(weights))
        return task.loads(weights).std()

    assert uneven(0.1) < 0.7 * uneven(0.0)


def test_a_frozen_expert_costs_two_operations_less():
    few, every = (mixture.flops_of(SMALL, 2, 7, n) for n in (0, 5))
    assert every - few == 2 * 7 * 2 * 2 * (2 * 2 * 12 * 10)
    # With the hidden width of the default, a token costs what it costs the dense model.
    task = Experts(experts=1)
    sizes = task.with_knobs(top=1).sizes()
    plain = language.flops_of(task.shape(), 4, 16)
    router = 6.0 * 4 * 16 * 2 * 32
    assert mixture.flops_of(sizes, 4, 16, 1) == pytest.approx(plain + router)


@pytest.mark.parametrize(
    ("knobs", "error"),
    [
        ({"top": 5}, KnobError), ({"experts": 0}, KnobError), ({"balance": -1.0}, KnobError),
        ({"balance": float("nan")}, KnobError), ({"dropout": 0.1}, KnobError),
        ({"dense_steps": 1}, KnobError), ({"gates": 2}, KnobError), ({"heads": 3}, PartError),
        ({"dense_path": "/none.npy"}, UsageError), ({"top": "two"}, KnobError),
    ],
    ids=str,
)  # fmt: skip
def test_bad_input_is_named(knobs, error):
    with pytest.raises(error):
        Experts(**knobs).start_weights()


@pytest.mark.parametrize("content", [b"", b"no array", b"\x93NUMPY\x01\x00v\x00{'descr'"])
def test_a_file_that_holds_no_weights_is_named(tmp_path, content):
    path = tmp_path / "dense.npy"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="no array in it"):
        Experts(hidden=128, dense_path=str(path)).start_weights()
    np.save(path, np.array([1.0, np.nan]))
    with pytest.raises(UsageError, match="finite"):
        Experts(hidden=128, dense_path=str(path)).start_weights()
    np.save(path, np.zeros(3))
    with pytest.raises(PartError, match="dense checkpoint"):
        Experts(hidden=128, dense_path=str(path)).start_weights()
