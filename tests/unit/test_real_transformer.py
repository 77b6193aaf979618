"""The transformer of the real replica: every shape equals the obvious one, however it is cut."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra torch")

from tests.unit.real_toys import SHAPES, Reference, model_of, tiny

from orrery.base.errors import SpecError, UsageError
from orrery.base.rand import Stream
from orrery.models.real import Piece, Transformer
from orrery.models.real.attend import alike
from orrery.models.real.tensors import random_source
from orrery.models.specs import spec


@pytest.mark.parametrize("name", SHAPES)
def test_a_prompt_in_one_piece_equals_the_reference(name):
    model, tokens = model_of(name), [5, 80, 3, 3, 41, 96, 0, 17, 22, 9, 60]
    cache = model.new_cache(8, 4)
    got = model.step([Piece(tokens, 0, [6, 1, 3])], cache)[0].numpy()
    want = Reference(model.spec).logits(tokens)[-1]
    assert np.abs(got - want).max() < 1e-10


@pytest.mark.parametrize("name", SHAPES)
def test_any_cutting_and_mixing_equals_the_reference(name):
    """Three sequences with scattered blocks advance by random chunks in one ragged batch."""
    model, rng = model_of(name), Stream(11, name, "cuts")
    reference = Reference(model.spec)
    texts = [[rng.randrange(97) for _ in range(n)] for n in (19, 7, 26)]
    numbers = list(range(24))
    rng.shuffle(numbers)
    tables = [numbers[8 * i : 8 * i + 8] for i in range(3)]
    wanted = [reference.logits(text) for text in texts]
    cache, done = model.new_cache(24, 4), [0, 0, 0]
    while any(done[i] < len(texts[i]) for i in range(3)):
        pieces, who = [], []
        for i in rng.sample(range(3), 3):
            left = len(texts[i]) - done[i]
            if left and rng.random() < 0.8:
                new = rng.choice((1, rng.randint(1, left)))
                pieces.append(Piece(texts[i][done[i] : done[i] + new], done[i], tables[i]))
                who.append(i)
                done[i] += new
        got = model.step(pieces, cache).numpy()
        for row, i in zip(got, who, strict=True):
            assert np.abs(row - wanted[i][done[i] - 1]).max() < 1e-10


def test_a_wrong_block_is_noticed():
    """The comparison can fail: a decode that reads another's block gives other logits."""
    model, tokens = model_of(), [5, 80, 3, 3, 41]
    cache = model.new_cache(8, 4)
    model.step([Piece(tokens, 0, [0, 1]), Piece([9, 9, 9, 9], 0, [2])], cache)
    right = model.step([Piece([7], 5, [0, 1])], cache)
    wrong = model.step([Piece([7], 5, [2, 1])], cache)
    assert (right - wrong).abs().max() > 1e-3


def test_the_same_seed_gives_the_same_weights_and_another_does_not():
    a, b, c = model_of(seed=1), model_of(seed=1), model_of(seed=2)
    assert (a.layers[1].qkv == b.layers[1].qkv).all()
    assert (a.layers[1].qkv != c.layers[1].qkv).any()


@pytest.mark.parametrize("name", SHAPES)
def test_it_has_as_many_parameters_as_its_shape_says(name):
    model = model_of(name)
    assert model.bytes == 8 * model.spec.params


def test_only_sampled_pieces_give_logits_and_no_pieces_give_none():
    model = model_of()
    cache = model.new_cache(8, 4)
    pieces = [Piece([1, 2], 0, [0], sample=False), Piece([3], 0, [1])]
    assert model.step(pieces, cache).shape == (1, 97)
    assert model.step([], cache).shape == (0, 97)
    assert model.greedy([Piece([1], 0, [0], sample=False)], cache) == []


@pytest.mark.parametrize(
    ("piece", "words"),
    [
        (Piece([], 0, [0]), "0 tokens"),
        (Piece([1], -1, [0]), "at -1"),
        (Piece([1] * 5, 0, [0]), "1 blocks of 4 for 5"),
        (Piece([97], 0, [0]), "vocabulary"),
        (Piece([-1], 0, [0]), "vocabulary"),
        (Piece([1], 192, [0] * 60), "the context is 192"),
    ],
)
def test_pieces_that_make_no_sense_are_refused(piece, words):
    model = model_of()
    with pytest.raises(UsageError, match=words):
        model.step([piece], model.new_cache(4, 4))


def test_what_is_not_computed_is_named():
    with pytest.raises(SpecError, match="sinks"):
        Transformer.random(tiny(sinks=True))
    with pytest.raises(SpecError, match="norms"):
        Transformer.random(tiny(norms=1))
    with pytest.raises(UsageError, match="fp33"):
        Transformer.random(tiny(), dtype="fp33")
    with pytest.raises(UsageError, match="tpu"):
        Transformer.random(tiny(), device="tpu")


def test_a_tensor_of_the_wrong_shape_is_named():
    import torch

    with pytest.raises(SpecError, match=r"embedding.*\(97, 32\)"):
        Transformer(tiny(), lambda name, shape: torch.zeros(3), device="cpu")


def test_lower_precision_stays_near():
    import torch

    exact, source = model_of(), random_source(3, "cpu", torch.float64)
    for dtype, near in (("fp32", 1e-4), ("bf16", 0.25)):
        rounded = Transformer(tiny(), source, dtype=dtype, device="cpu")
        piece = [Piece([4, 8, 15, 16, 23, 42], 0, [0, 1])]
        a = exact.step(piece, exact.new_cache(2, 4))
        b = rounded.step(piece, rounded.new_cache(2, 4)).double()
        assert 0 < (a - b).abs().max() < near


def test_decodes_of_like_lengths_go_together():
    lengths = [3, 100, 101, 5, 4, 99, 40]
    groups = alike([(n, row, ()) for row, n in enumerate(lengths)])
    assert sorted(d[0] for group in groups for d in group) == sorted(lengths)
    for group in groups:
        padded = len(group) * max(d[0] for d in group)
        assert padded <= 1.15 * sum(d[0] for d in group)


def test_the_shape_of_the_catalogue_is_that_of_the_package():
    assert spec("SmolLM2-135M").params == 134_515_008
