"""Which entries are the same paper: repeats, versions of one id, and papers with a new title.

Two entries are one paper when

1. they have one arXiv id (versions do not count); or
2. their normalised titles are equal; or
3. their titles are alike (`NEAR` of the letters in place) and carry the same numbers; or
4. they are retitled: one name before the colon and like abstracts (`ALIKE`, the name itself not
   counted), or other titles and nearly one abstract (`SAME_TEXT`).

Rules 2 to 4 never join entries whose ids differ. The thresholds lie well above what chance gives:
of ten thousand pairs of different papers in three saved feeds half had abstracts alike to 0.04, one
in a hundred to 0.12, one in a thousand to 0.18, and none to 0.25, whatever their names.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from orrery.lab.feed.papers import Paper
from orrery.lab.feed.similar import Weights, cosine, head_of, numbers, plain, title_ratio, words

NEAR = 0.92
ALIKE = 0.2
SAME_TEXT = 0.6
# A word that stands in more entries than this is no sign that two of them are one.
MOST_SHARED = 40
LEAST_ABSTRACT = 20  # words
LEAST_SHARED, LEAST_ALIKE = 0.4, 0.1
_FIGURE = re.compile(r"[0-9][0-9.,]*(?:%|x\b|×)")


class Group(msgspec.Struct, kw_only=True):
    """One paper: its entries in listed order, and why each later one is the same."""

    papers: list[Paper]
    why: list[str]

    @property
    def first(self) -> Paper:
        """The entry that was listed first; the others are its duplicates."""
        return self.papers[0]

    @property
    def arxiv(self) -> str:
        """The id that any of the entries gives."""
        return next((paper.arxiv for paper in self.papers if paper.arxiv), "")

    @property
    def titles(self) -> list[str]:
        """The different titles, in listed order."""
        return list(dict.fromkeys(paper.title for paper in self.papers if paper.title))

    @property
    def retitled(self) -> bool:
        """Whether the entries have titles that differ in more than form."""
        return len({plain(title) for title in self.titles}) > 1

    @property
    def changed_figures(self) -> list[str]:
        """Figures (such as 32% or 1.5x) that stand in one version of the abstract only."""
        told = [set(_FIGURE.findall(p.abstract)) for p in self.papers if p.abstract]
        everywhere = set.intersection(*told) if told else set()
        return sorted(set().union(*told) - everywhere)

    @property
    def text(self) -> str:
        """Titles and the longest abstract, for comparing with other texts."""
        longest = max((paper.abstract for paper in self.papers), key=len)
        return " ".join([*self.titles, longest])


def merge(papers: Sequence[Paper], background: Iterable[str] = ()) -> list[Group]:
    """The papers of a list of entries, in the order of their first entry.

    `background` are further texts that tell how rare a word is; a short feed alone cannot.
    """
    weights = Weights([*background, *(f"{p.title} {p.abstract}" for p in papers)])
    joined = _Union(papers)
    _join_equal(papers, joined)
    vectors = [weights.vector(f"{paper.title} {paper.abstract}") for paper in papers]
    titles = [frozenset(words(paper.title)) for paper in papers]
    for i, j in _near_pairs(papers, vectors, weights):
        shared = len(titles[i] & titles[j]) / max(len(titles[i]), len(titles[j]), 1)
        # A quick look first: the long one is for pairs that have some chance.
        if shared < LEAST_SHARED and cosine(vectors[i], vectors[j]) < LEAST_ALIKE:
            continue
        why = same_paper(papers[i], papers[j], weights)
        if why:
            joined.join(i, j, why)
    return joined.groups()


def same_paper(one: Paper, other: Paper, weights: Weights) -> str:
    """Why two entries are one paper (rules 3 and 4), or nothing."""
    if one.arxiv and other.arxiv:
        return "one arXiv id" if one.arxiv == other.arxiv else ""
    a, b = plain(one.title), plain(other.title)
    if numbers(one.title) == numbers(other.title) and title_ratio(a, b) >= NEAR:
        return "nearly the same title"
    if min(len(words(one.abstract)), len(words(other.abstract))) < LEAST_ABSTRACT:
        return ""
    head = head_of(one.title)
    name = head if head and head == head_of(other.title) else ""
    likeness = cosine(
        weights.vector(one.abstract, without=name), weights.vector(other.abstract, without=name)
    )
    if name and likeness >= ALIKE:
        return f"retitled: the same name, and abstracts alike ({likeness:.2f})"
    if likeness >= SAME_TEXT:
        return f"retitled: nearly the same abstract ({likeness:.2f})"
    return ""


def _join_equal(papers: Sequence[Paper], joined: _Union) -> None:
    """Rules 1 and 2, by look-up."""
    by_id: dict[str, int] = {}
    by_title: dict[str, list[int]] = defaultdict(list)
    for i, paper in enumerate(papers):
        if paper.arxiv and by_id.setdefault(paper.arxiv, i) != i:
            joined.join(by_id[paper.arxiv], i, "one arXiv id")
        name = plain(paper.title)
        if not name:
            continue
        for earlier in by_title[name]:
            if joined.join(earlier, i, "the same title"):
                break
        by_title[name].append(i)


def _near_pairs(
    papers: Sequence[Paper], vectors: Sequence[dict[str, float]], weights: Weights
) -> Iterator[tuple[int, int]]:
    """Pairs that share a rare word of their titles or abstracts; the others cannot be alike."""
    places: dict[str, list[int]] = defaultdict(list)
    for i, (paper, vector) in enumerate(zip(papers, vectors, strict=True)):
        title = sorted(set(words(paper.title)), key=lambda word: (-weights.of(word), word))
        heavy = sorted(vector, key=lambda word: (-vector[word], word))
        for word in dict.fromkeys([*title[:4], *heavy[:8], head_of(paper.title)]):
            if word:
                places[word].append(i)
    pairs = {
        (i, j)
        for found in places.values() if 1 < len(found) <= MOST_SHARED
        for at, i in enumerate(found) for j in found[at + 1 :]
    }  # fmt: skip
    yield from sorted(pairs)


class _Union:
    """Sets of entries that are one paper; the earliest stands for its set."""

    def __init__(self, papers: Sequence[Paper]) -> None:
        self.papers = papers
        self.parent = list(range(len(papers)))
        self.ids = [paper.arxiv for paper in papers]
        self.why = [""] * len(papers)

    def find(self, i: int) -> int:
        while self.parent[i] != i:
            self.parent[i] = self.parent[self.parent[i]]
            i = self.parent[i]
        return i

    def join(self, i: int, j: int, why: str) -> bool:
        """Make two sets one; sets whose ids differ stay apart, and False says so."""
        a, b = sorted((self.find(i), self.find(j)))
        if a == b:
            return True
        if self.ids[a] and self.ids[b] and self.ids[a] != self.ids[b]:
            return False
        self.parent[b] = a
        self.ids[a] = self.ids[a] or self.ids[b]
        self.why[b] = why
        return True

    def groups(self) -> list[Group]:
        members: dict[int, list[int]] = defaultdict(list)
        for i in range(len(self.papers)):
            members[self.find(i)].append(i)
        return [
            Group(
                papers=[self.papers[i] for i in found],
                why=["", *(self.why[i] or "the same title" for i in found[1:])],
            )
            for _, found in sorted(members.items())
        ]  # fmt: skip
