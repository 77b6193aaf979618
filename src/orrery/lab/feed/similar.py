"""How alike two papers are: normalised titles, words that carry weight, and edits between titles.

No list of papers stands behind this. Words count by how rare they are among the texts at hand, so
that "serving" says little in a catalogue of serving systems and "wormhole" says much.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher

_COMMON_TEXT = """a an and are as at be been but by can for from has have how in into is it its more
    of on or our over such than that the their these they this to toward towards under up using via
    was we what when where which while with within without"""
_COMMON = frozenset(_COMMON_TEXT.split())
LEAST_TEXTS = 20
_ROMAN = frozenset("ii iii iv vi vii viii ix".split())
_WORD = re.compile(r"[^\W_]+")


def plain(text: str) -> str:
    """A text for comparing: no case, no accents, no TeX, words set apart by one space.

    >>> plain("  $\\\\mathrm{UFO}^3$: Weaving -- the Galäxy ")
    'ufo 3 weaving the galaxy'
    """
    text = re.sub(r"\\[A-Za-z]+", " ", text)
    apart = unicodedata.normalize("NFKD", text)
    bare = "".join(c for c in apart if not unicodedata.combining(c)).casefold()
    return " ".join(_WORD.findall(bare))


def head_of(title: str) -> str:
    """The name before the first colon of a title, normalised; nothing where there is none.

    >>> head_of("semi-PD: Towards Efficient LLM Serving"), head_of("On Kernels")
    ('semi pd', '')
    """
    name, colon, rest = title.partition(":")
    return plain(name) if colon and rest.strip() and len(name.split()) <= 5 else ""


def words(text: str) -> list[str]:
    """The words that carry meaning, a plural as its singular."""
    return [_singular(word) for word in plain(text).split() if word not in _COMMON]


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def numbers(title: str) -> Counter[str]:
    """The numbers of a title, Roman ones too: parts I and II are two papers, 1.0 and 2.0 too."""
    found = plain(title).split()
    return Counter(word for word in found if word[0].isdigit() or word in _ROMAN)


def title_ratio(one: str, other: str) -> float:
    """How much of two normalised titles stays in place, from 0 to 1 (1: equal, letter by letter).

    >>> title_ratio("fair queueing", "fair queuing") > 0.95
    True
    """
    if one == other:
        return 1.0
    if not one or not other:
        return 0.0
    if 2 * min(len(one), len(other)) < max(len(one), len(other)):
        return 0.0  # one is more than twice as long: nobody would call them alike
    return SequenceMatcher(None, one, other, autojunk=False).ratio()


class Weights:
    """How much each word says: the logarithm of how rare it is among some texts."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.seen: Counter[str] = Counter()
        self.n = 0
        for text in texts:
            self.seen.update(set(words(text)))
            self.n += 1

    def of(self, word: str) -> float:
        """The weight of one word; a word never seen is the rarest.

        Among a handful of texts nobody can tell which words are rare, so there all weigh the same.
        """
        if self.n < LEAST_TEXTS:
            return 1.0
        return math.log((self.n + 1) / (self.seen.get(word, 0) + 0.5))

    def vector(self, text: str, without: str = "") -> dict[str, float]:
        """A text as weights by word, of length 1; repeated words count by their logarithm.

        `without` names words that do not count: a name that two papers share is no evidence that
        they say the same.
        """
        left_out = set(words(without))
        found = {
            word: (1 + math.log(count)) * max(self.of(word), 0.0)
            for word, count in sorted(Counter(words(text)).items())
            if word not in left_out
        }
        size = math.sqrt(sum(value * value for value in found.values()))
        return {word: value / size for word, value in found.items()} if size else {}


def cosine(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """The likeness of two weighted texts, from 0 to 1.

    >>> cosine({"a": 1.0}, {"a": 0.6, "b": 0.8})
    0.6
    """
    if len(other) < len(one):
        one, other = other, one
    return sum(value * other[word] for word, value in one.items() if word in other)
