"""`orrery serve` as a program, on a tiny model in a GGUF file: loads, answers, ends politely."""

from __future__ import annotations

import json
import signal
import struct
import subprocess
import sys
import urllib.request

import pytest

pytest.importorskip("torch", reason="needs the extra torch")

from tests.unit.real_toys import Reference
from tests.unit.test_real_gguf import a_file, text

from orrery.models.real import GgufFile, Piece, Transformer, load_smollm
from orrery.models.real.loading import load_model
from orrery.models.real.smollm import spec_of
from orrery.models.real.tensors import random_source
from orrery.models.real.tokenizer import byte_letters

SHAPE = {
    "block_count": 2, "embedding_length": 32, "attention.head_count": 4,
    "attention.head_count_kv": 2, "feed_forward_length": 48, "vocab_size": 258,
    "context_length": 128,
}  # fmt: skip
NAMES = {
    "attn_q": "q", "attn_k": "k", "attn_v": "v", "attn_output": "out", "ffn_gate": "gate",
    "ffn_up": "up", "ffn_down": "down", "attn_norm": "norm_1", "ffn_norm": "norm_2",
}  # fmt: skip


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory):
    """A llama-like file with the random weights of seed 3, as converters write it."""
    import torch

    source = random_source(3, "cpu", torch.float64)
    rows = {"q": 32, "k": 16, "v": 16, "out": 32, "gate": 48, "up": 48, "down": 32}
    found = []

    def add(theirs, ours, *shape):
        values = source(ours, shape)
        if ours.endswith((".q", ".k")):
            # Rotated pairs side by side: half a head apart becomes neighbours.
            values = values.view(-1, 2, 4, shape[1]).transpose(1, 2).reshape(shape)
        found.append((f"{theirs}.weight", shape, 0, values.float().numpy().tobytes()))

    add("token_embd", "embedding", 258, 32)
    add("output_norm", "final_norm", 32)
    for layer in range(2):
        for theirs, ours in NAMES.items():
            shape = (32,) if "norm" in ours else (rows[ours], 48 if ours == "down" else 32)
            add(f"blk.{layer}.{theirs}", f"{layer}.{ours}", *shape)
    letters = [byte_letters()[b] for b in range(256)]
    words = {"tokens": [*letters, "<|im_start|>", "<|im_end|>"], "merges": ["h e"]}
    words["tokens"][-3] = "he"
    pairs = [text(f"llama.{k}") + struct.pack("<II", 4, v) for k, v in SHAPE.items()]
    pairs += [text("llama.attention.layer_norm_rms_epsilon") + struct.pack("<If", 6, 1e-5)]
    pairs += [text("tokenizer.ggml.eos_token_id") + struct.pack("<II", 4, 257)]
    pairs += [text("tokenizer.ggml.model") + struct.pack("<I", 8) + text("gpt2")]
    for name, values in words.items():
        body = b"".join(map(text, values))
        pairs += [text(f"tokenizer.ggml.{name}") + struct.pack("<IIQ", 9, 8, len(values)) + body]
    kinds = struct.pack("<IIQ258i", 9, 5, 258, *[1] * 256, 3, 3)
    pairs += [text("tokenizer.ggml.token_type") + kinds]
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return a_file(path, found, metadata=b"".join(pairs), pairs=len(pairs))


def test_a_gguf_file_gives_the_model_that_was_put_in(tiny_gguf):
    spec = spec_of(GgufFile(tiny_gguf))
    model, tokenizer = load_smollm(tiny_gguf, dtype="fp64")
    tokens = [*tokenizer.encode("the cat"), 256, 7]
    got = model.step([Piece(tokens, 0, [0, 1])], model.new_cache(2, 8))[0].numpy()
    assert abs(got - Reference(spec).logits(tokens)[-1]).max() < 1e-5  # the file holds float32


def test_models_by_name(tiny_gguf, monkeypatch):
    model, tokenizer, name = load_model(str(tiny_gguf), device="cpu", dtype="fp64")
    assert (model.max_context, tokenizer.end, name) == (128, 257, "tiny")
    seen = {}
    monkeypatch.setattr(Transformer, "random", lambda spec, **options: seen.update(options) or spec)
    shape, tokenizer, name = load_model("meta-llama/Llama-3.2-1B-Instruct", device="cpu", seed=4)
    assert (shape.name, tokenizer, name) == ("Llama-3.2-1B", None, "Llama-3.2-1B")
    assert (seen["seed"], seen["dtype"]) == (4, "fp32")


PROGRAM = "import sys; from orrery.cli.serve import app; app()"


def run(*words, **options):
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, **options,
    )  # fmt: skip


@pytest.mark.parametrize(
    "how", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_the_command_serves_and_ends(tiny_gguf, how):
    words = ("--model", str(tiny_gguf), "--port", "0", "--set", "step_tokens=32", "--json")
    program = run(*words)
    try:
        lines = [program.stdout.readline()]
        while lines[-1].rstrip() != "}":
            assert lines[-1], program.stderr.read()
            lines.append(program.stdout.readline())
        told = json.loads("".join(lines))
        assert told["model"] == "tiny" and "step_tokens=32" in told["scheduler"]
        ask = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        request = urllib.request.Request(
            f"{told['address']}/chat/completions", json.dumps(ask).encode()
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] <= 4
        program.send_signal(how)
        out, err = program.communicate(timeout=30)
    finally:
        program.kill()
        program.wait()
    assert program.returncode == 0, err
    assert out == "" and "Traceback" not in err
