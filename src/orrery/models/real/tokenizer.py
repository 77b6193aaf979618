"""Byte-level byte-pair encoding, as GPT-2 made it, from the vocabulary and merges of a file."""

from __future__ import annotations

import codecs
import functools
import itertools
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

from orrery.base.errors import CodecError, UsageError

CONTROL = 3  # the kind of tokens that stand for no text, such as the end of a turn


@functools.cache
def byte_letters() -> dict[int, str]:
    """The printable letter that stands for each byte in a vocabulary (GPT-2's table)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {byte: chr(byte) for byte in plain}
    spare = (byte for byte in range(256) if byte not in table)
    table.update({byte: chr(256 + place) for place, byte in enumerate(spare)})
    return table


@functools.cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """(one numeral, one word): GPT-2's pattern, written without the classes that `re` lacks."""
    # Python's \d knows only decimal digits; Unicode has other numerals too, such as ² or Ⅷ.
    others = [c for c in map(chr, range(0x110000)) if unicodedata.category(c) in ("Nl", "No")]
    numerals = r"\d" + "".join(others)
    letter = rf"[^\W_{numerals}]"
    word = (
        rf"'s|'t|'re|'ve|'m|'ll|'d| ?{letter}+| ?[{numerals}]+"
        rf"| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+"
    )
    return re.compile(rf"([{numerals}])"), re.compile(word)


class Tokenizer:
    """Text to tokens and back: `encode`, `decode`, and `stream` for tokens as they come."""

    def __init__(
        self, tokens: Sequence[str], merges: Sequence[str], kinds: Sequence[int], *,
        end: int, single_digits: bool = True,
    ) -> None:  # fmt: skip
        if len(kinds) != len(tokens) or not 0 <= end < len(tokens):
            raise CodecError(
                f"a vocabulary of {len(tokens)} tokens with {len(kinds)} kinds and end {end}"
            )
        self.tokens, self.end, self.single_digits = list(tokens), end, single_digits
        self.ids = {text: number for number, text in enumerate(tokens)}
        self.control = {t: i for i, t in enumerate(tokens) if kinds[i] == CONTROL}
        self._control_ids = frozenset(self.control.values())
        self._ranks = {tuple(pair.split(" ", 1)): rank for rank, pair in enumerate(merges)}
        self._to_letter = byte_letters()
        self._to_byte = {letter: byte for byte, letter in self._to_letter.items()}
        longest_first = sorted(self.control, key=len, reverse=True)
        marks = "|".join(map(re.escape, longest_first)) or r"(?!)"
        self._control_mark = re.compile(f"({marks})")
        self._words: dict[str, tuple[int, ...]] = {}

    @classmethod
    def from_gguf(cls, file: Any) -> Tokenizer:
        """The tokenizer in a GGUF file's metadata."""
        model = file.need("tokenizer.ggml.model")
        if model != "gpt2":
            raise UsageError(
                f"{file.path}: tokenizer {model!r}; only gpt2 (byte-level BPE) is read"
            )
        names = ("tokens", "merges", "token_type")
        tokens, merges, kinds = (file.need(f"tokenizer.ggml.{name}") for name in names)
        end = int(file.need("tokenizer.ggml.eos_token_id"))
        single = file.metadata.get("tokenizer.ggml.pre") == "smollm"
        return cls(tokens, merges, kinds, end=end, single_digits=single)

    # -- text to tokens

    def encode(self, text: str, *, control: bool = False) -> list[int]:
        """The tokens of a text; with `control`, marks such as <|im_end|> become their tokens."""
        if not control:
            return self._plain(text)
        found: list[int] = []
        for place, piece in enumerate(self._control_mark.split(text)):
            if place % 2:
                found.append(self.control[piece])
            elif piece:
                found += self._plain(piece)
        return found

    def _plain(self, text: str) -> list[int]:
        numeral, word = _patterns()
        found: list[int] = []
        for piece in numeral.split(text) if self.single_digits else [text]:
            for match in word.findall(piece):
                found += self._word(match)
        return found

    def _word(self, word: str) -> tuple[int, ...]:
        known = self._words.get(word)
        if known is not None:
            return known
        letters = self._to_letter
        parts = [letters[byte] for byte in word.encode("utf-8", "replace")]
        ranks, beyond = self._ranks, len(self._ranks)
        while len(parts) > 1:
            pairs = itertools.pairwise(parts)
            rank, at = min((ranks.get(pair, beyond), i) for i, pair in enumerate(pairs))
            if rank == beyond:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        # Every byte has a token of its own in such vocabularies, so nothing can be unknown.
        found = tuple(self.ids[part] for part in parts)
        if len(self._words) < 50_000:
            self._words[word] = found
        return found

    # -- tokens to text

    def bytes_of(self, token: int) -> bytes:
        """The bytes that a token stands for; none for control tokens."""
        if token in self._control_ids:
            return b""
        return bytes(self._to_byte[letter] for letter in self.tokens[token])

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens; bytes that are no UTF-8 become the replacement character."""
        return b"".join(map(self.bytes_of, tokens)).decode("utf-8", "replace")

    def stream(self) -> Decoder:
        """A decoder that is fed one token at a time."""
        return Decoder(self)

    # -- conversations

    def chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """A conversation of (role, text) in ChatML, up to where the assistant speaks.

        Marks inside a text stay text: nobody can end his turn from within it.
        """
        try:
            begin, end = self.control["<|im_start|>"], self.control["<|im_end|>"]
        except KeyError:
            raise UsageError("this model has no chat marks; ask for a completion") from None
        found: list[int] = []
        for role, text in messages:
            found += [begin, *self._plain(f"{role}\n{text}"), end, *self._plain("\n")]
        return [*found, begin, *self._plain("assistant\n")]


class Decoder:
    """Text from tokens as they come: a letter appears when its last byte is there."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """The text that this token completes."""
        return self._decoder.decode(self._tokenizer.bytes_of(token))

    def finish(self) -> str:
        """What is left: a replacement character for a letter that was cut off."""
        return self._decoder.decode(b"", True)
