"""Tasks, small models, optimisers: gradients against PyTorch, stacked replicas, known optima."""

from __future__ import annotations

import numpy as np
import pytest

from orrery.base.errors import KnobError, PartError, UsageError
from orrery.models.learn import Digits, Language, Layout, Logistic, Quadratic, language, make, text

SMALL = language.Shape(vocabulary=11, width=12, layers=2, heads=3, context=9)


def tokens(shape, replicas, rows, length, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, shape.vocabulary, (replicas, rows, length + 1))


def torch_loss(shape, flat, rows, keep=None):
    """The same model in PyTorch's own words, for one replica."""
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    weights, begin = {}, 0
    leaf = torch.tensor(flat, requires_grad=True)
    for name, size in language.layout_of(shape).shapes.items():
        count = int(np.prod(size))
        weights[name] = leaf[begin : begin + count].reshape(size)
        begin += count
    rows = torch.tensor(rows)
    read, asked = rows[:, :-1], rows[:, 1:]

    def norm(x, gain):
        return gain * x / torch.sqrt((x * x).mean(-1, keepdim=True) + language.EPS)

    x = weights["tokens"][read] + weights["places"][: read.shape[1]]
    for layer in range(shape.layers):
        qkv = norm(x, weights[f"{layer}.norm"]) @ weights[f"{layer}.qkv"]
        q, k, v = (
            part.reshape(*read.shape, shape.heads, -1).transpose(1, 2) for part in qkv.chunk(3, -1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + mixed.transpose(1, 2).reshape(x.shape) @ weights[f"{layer}.out"]
        wide = torch.relu(norm(x, weights[f"{layer}.norm2"]) @ weights[f"{layer}.up"])
        if keep is not None:
            wide = wide * torch.tensor(keep[layer]).reshape(wide.shape)
        x = x + wide @ weights[f"{layer}.down"]
    logits = norm(x, weights["norm"]) @ weights["head"]
    loss = functional.cross_entropy(logits.reshape(-1, shape.vocabulary), asked.reshape(-1))
    loss.backward()
    return float(loss.detach()), leaf.grad.numpy()


@pytest.mark.parametrize("length", [1, 4, 9])
@pytest.mark.parametrize("dropout", [False, True])
def test_the_gradient_of_the_language_model_is_that_of_pytorch(length, dropout):
    rng = np.random.default_rng(3)
    flat = language.start_weights(SMALL, rng).astype(np.float64)
    rows = tokens(SMALL, 1, 5, length)
    keep = None
    if dropout:
        keep = (rng.random((2, 1, 5 * length, 48)) > 0.3) / 0.7
    loss, grad = language.gradients(SMALL, flat[None], rows, keep)
    expected, slope = torch_loss(SMALL, flat, rows[0], None if keep is None else keep[:, 0])
    assert loss[0] == pytest.approx(expected, rel=1e-10)
    np.testing.assert_allclose(grad[0], slope, rtol=1e-7, atol=1e-10)


def test_replicas_in_a_stack_get_the_bits_they_would_get_alone():
    flat = np.stack([language.start_weights(SMALL, np.random.default_rng(n)) for n in range(5)])
    rows = tokens(SMALL, 5, 3, 9)
    losses, grads = language.gradients(SMALL, flat, rows)
    for n in range(5):
        loss, grad = language.gradients(SMALL, flat[n : n + 1], rows[n : n + 1])
        assert loss[0] == losses[n] and np.array_equal(grad[0], grads[n])


@pytest.mark.parametrize("task", [Language(), Language(dropout=0.2), Digits()], ids=str)
def test_shares_in_a_stack_get_the_bits_they_would_get_alone(task):
    if isinstance(task, Digits):
        pytest.importorskip("sklearn")
    weights = [task.start_weights() * np.float32(1 + n / 10) for n in range(4)]
    alone = [task.share(n, 4, None).grad(weights[n]) for n in range(4)]
    shares = [task.share(n, 4, None) for n in range(4)]
    stacked = type(shares[0]).grad.__together__(list(zip(shares, weights, strict=True)))
    assert all(np.array_equal(a, b) for a, b in zip(alone, stacked, strict=True))
    # The next step reads the next batch.
    assert not np.array_equal(shares[0].grad(weights[0]), alone[0])


def test_digits_slope_by_differences():
    pytest.importorskip("sklearn")
    from orrery.models.learn.tasks import digit_losses, digits

    x, y, _, _ = digits()
    weights = Digits(hidden=6).start_weights().astype(np.float64)[None]
    x, y = x[None, :20].astype(np.float64), y[None, :20]
    _, grad = digit_losses(weights, x, y, 6)
    for place in range(0, weights.size, 41):
        step = np.zeros_like(weights)
        step[0, place] = 1e-6
        up, down = (digit_losses(weights + s * step, x, y, 6)[0][0] for s in (1, -1))
        assert grad[0, place] == pytest.approx((up - down) / 2e-6, rel=1e-4, abs=1e-7)


def test_a_language_model_comes_near_the_entropy_of_its_text():
    task = Language(batch=16)
    weights, share, inner = task.start_weights(), task.share(0, 1, None), make("adamw", 3e-3)
    first = task.judge(weights)
    for _ in range(150):
        weights = inner.step(weights, share.grad(weights))
    reached = task.judge(weights)
    assert task.best() < reached < first - 0.8 * (first - task.best()) + 0.25


def test_the_entropy_is_that_of_the_text():
    # The chances of a known text, counted, give the entropy that the formula says.
    table = text.chances(8, 3)
    long = text.generated(8, 400_000, 3)
    seen = -np.log(table[long[:-2], long[1:-1], long[2:]])
    assert seen.mean() == pytest.approx(text.entropy(8, 3), rel=0.01)
    assert np.array_equal(long, text.generated(8, 400_000, 3))
    assert not np.array_equal(long, text.generated(8, 400_000, 3, 1))


def test_the_optimum_of_the_logistic_task_has_no_slope():
    task = Logistic(skew=0.5)
    best = task.optimum(3)
    slopes = [task.share(rank, 3, None).slope(best, slice(None)) for rank in range(3)]
    assert np.abs(np.mean(slopes, axis=0)).max() < 1e-10
    assert np.abs(slopes[0]).max() > 1e-3  # but each rank alone would go on


def test_the_quadratic_has_its_lowest_point_in_the_middle_of_the_centres():
    task = Quadratic(condition=50.0)
    shares = [task.share(rank, 4, None) for rank in range(4)]
    assert np.abs(np.mean([s.grad(shares[0].middle) for s in shares], axis=0)).max() < 1e-12
    assert shares[0].loss(shares[0].middle) == 0.0


@pytest.mark.parametrize("name", ["sgd", "momentum", "adamw"])
def test_optimisers_step_as_pytorch_does(name):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    weights = rng.standard_normal(7)
    leaf = torch.tensor(weights.copy(), requires_grad=True)
    peer = {
        "sgd": lambda: torch.optim.SGD([leaf], lr=0.1),
        "momentum": lambda: torch.optim.SGD([leaf], lr=0.1, momentum=0.9),
        "adamw": lambda: torch.optim.AdamW([leaf], lr=0.1),
    }[name]()
    ours = make(name, 0.1)
    for _ in range(6):
        slope = rng.standard_normal(7)
        leaf.grad = torch.tensor(slope)
        peer.step()
        weights = ours.step(weights, slope)
    np.testing.assert_allclose(weights, leaf.detach().numpy(), rtol=1e-12)
    again = make(name, 0.1)
    again.load(ours.state())
    assert np.array_equal(again.step(weights, slope), ours.step(weights, slope))


def test_layers_cover_the_weights_once_and_in_order():
    where = language.layers_of(SMALL)
    assert list(where) == ["embed", "0", "1", "head"]
    ends = [0, *(piece.stop for piece in where.values())]
    assert [piece.start for piece in where.values()] == ends[:-1]
    assert (
        ends[-1]
        == language.layout_of(SMALL).size
        == language.start_weights(SMALL, np.random.default_rng(0)).size
    )


def test_bad_input_is_named(tmp_path):
    with pytest.raises(PartError, match="heads divide the width"):
        language.layout_of(language.Shape(8, 10, 1, 3, 4))
    with pytest.raises(PartError, match="rows of 10 tokens"):
        language.losses(
            SMALL, np.zeros((1, language.layout_of(SMALL).size)), tokens(SMALL, 1, 1, 10)
        )
    with pytest.raises(PartError, match="weights of 3 numbers"):
        Layout({"a": (2, 2)}).views(np.zeros(3))
    with pytest.raises(PartError, match="no such one"):
        make("adam", 0.1)
    with pytest.raises(KnobError):
        Language(width=0)
    with pytest.raises(KnobError):
        Quadratic(noise=float("nan"))
    with pytest.raises(UsageError, match="no such file"):
        Language(path=str(tmp_path / "none.txt")).text()
    (tmp_path / "short.txt").write_text("too short")
    with pytest.raises(UsageError, match="too few"):
        Language(path=str(tmp_path / "short.txt")).text()


def test_a_file_can_be_learned(tmp_path):
    (tmp_path / "book.txt").write_text("the cat sat on the mat; " * 200)
    task = Language(path=str(tmp_path / "book.txt"))
    assert task.text().max() < task.symbols and task.held_out().shape[1] == 17
    assert np.isfinite(task.judge(task.start_weights())) and np.isnan(task.best())
