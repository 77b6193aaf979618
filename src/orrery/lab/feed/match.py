"""Which system of the catalogue a paper is: by id, by title, or by name and content together.

A paper is matched when (the first that applies)

1. its arXiv id is that of a stem (versions do not count);
2. one of its titles is a stem's, normalised;
3. one of its titles is nearly a stem's (`merge.NEAR`), with the same numbers;
4. it has the name of a stem before its colon, and its text is like the stem's (`merge.ALIKE`, the
   name itself not counted): a paper with a new title.

Two stems that fit equally well, a stem's name on other content, a stem's title under another id:
these are *ambiguous*, are listed with their candidates, and are not matched. A paper that is
merely about the same things as a system is not that system, so likeness alone never matches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from orrery.lab.feed.merge import ALIKE, NEAR, Group
from orrery.lab.feed.papers import split_id
from orrery.lab.feed.similar import Weights, cosine, head_of, numbers, plain, title_ratio, words

if TYPE_CHECKING:
    from orrery.lab.discover import Entry

MARGIN = 0.05
MOST_CANDIDATES = 3


class Match(msgspec.Struct, kw_only=True):
    """The system of a paper, how that was found, and other candidates where it is not certain."""

    system: str | None = None
    how: str = ""
    score: float = 0.0
    candidates: list[dict[str, Any]] = []

    @property
    def ambiguous(self) -> bool:
        """Whether there are candidates and none was chosen."""
        return self.system is None and bool(self.candidates)


def stem_text(entry: Entry) -> str:
    """What a stem says of its system, in one text."""
    stem = entry.stem
    return " ".join([stem.title, stem.name, stem.job, *stem.mechanisms])


class Matcher:
    """Looks papers up among the entries of the catalogue."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.entries = sorted(entries, key=lambda e: (e.origin != "catalogue", e.id))
        self.weights = Weights(stem_text(entry) for entry in self.entries)
        self.by_id: dict[str, list[Entry]] = defaultdict(list)
        self.by_title: dict[str, list[Entry]] = defaultdict(list)
        self.by_name: dict[str, list[Entry]] = defaultdict(list)
        self.by_word: dict[str, list[Entry]] = defaultdict(list)
        for entry in self.entries:
            id, _ = split_id(entry.stem.arxiv)
            if id:
                self.by_id[id].append(entry)
            if plain(entry.title):
                self.by_title[plain(entry.title)].append(entry)
            for name in dict.fromkeys((head_of(entry.title), plain(entry.name), plain(entry.id))):
                if name:
                    self.by_name[name].append(entry)
            for word in sorted(set(words(entry.title))):
                self.by_word[word].append(entry)

    def match(self, group: Group) -> Match:
        """The system of one paper."""
        found = self.by_id.get(group.arxiv, [])
        if len(found) == 1:
            return Match(system=found[0].id, how="arXiv id", score=1.0)
        if found:
            return _ambiguous(found, "several systems have this arXiv id")
        exact = _unique(e for t in group.titles for e in self.by_title.get(plain(t), []))
        if exact:
            return self._titled(exact, group, "title", 1.0)
        near = self._near(group)
        if near:
            best = near[0][0]
            close = [entry for score, entry in near if score >= best - 0.01]
            return self._titled(close, group, "nearly its title", best)
        return self._named(group)

    def _titled(self, found: Sequence[Entry], group: Group, how: str, score: float) -> Match:
        """A match by title, unless ids forbid it or several fit."""
        free = [entry for entry in found if not _other_id(entry, group)]
        if not free:
            return _ambiguous(found, "its title, but another arXiv id")
        # A classic may share its paper with others; a published system has it for itself.
        own = [entry for entry in free if entry.origin == "catalogue"] or free
        if len(own) > 1:
            return _ambiguous(own, "several systems have this title")
        return Match(system=own[0].id, how=how, score=round(score, 3))

    def _near(self, group: Group) -> list[tuple[float, Entry]]:
        """Entries with nearly one of the titles, the best first."""
        found: list[tuple[float, Entry]] = []
        for title in group.titles:
            name, figures = plain(title), numbers(title)
            rare = sorted(set(words(title)), key=lambda word: (-self.weights.of(word), word))
            maybe = _unique(e for word in rare[:6] for e in self.by_word.get(word, []))
            for entry in maybe:
                score = title_ratio(name, plain(entry.title))
                if score >= NEAR and numbers(entry.title) == figures:
                    found.append((score, entry))
        return sorted(found, key=lambda pair: (-pair[0], pair[1].id))

    def _named(self, group: Group) -> Match:
        """By name and content: a paper that has changed its title since."""
        scored: list[tuple[float, Entry]] = []
        for title in group.titles:
            name = head_of(title)
            same = self.by_name.get(name, []) if name else []
            scored += [(self._likeness(group, entry, name), entry) for entry in same]
        scored.sort(key=lambda pair: (-pair[0], pair[1].id))
        if not scored:
            return Match()
        best, entry = scored[0]
        others = [score for score, each in scored if each.id != entry.id]
        clear = not others or best - max(others) >= MARGIN
        if best >= ALIKE and clear and not _other_id(entry, group):
            return Match(system=entry.id, how="its name and content", score=round(best, 3))
        unique = list({each.id: (score, each) for score, each in reversed(scored)}.values())
        return _ambiguous([each for _, each in unique], "its name, but not surely its content",
                          {each.id: score for score, each in unique})  # fmt: skip

    def _likeness(self, group: Group, entry: Entry, name: str) -> float:
        mine = self.weights.vector(group.text, without=name)
        return cosine(mine, self.weights.vector(stem_text(entry), without=name))


def _unique(entries: Iterable[Entry]) -> list[Entry]:
    return list({entry.id: entry for entry in entries}.values())


def _other_id(entry: Entry, group: Group) -> bool:
    """Whether paper and stem both have an id, and not the same one."""
    id, _ = split_id(entry.stem.arxiv)
    return bool(id and group.arxiv and id != group.arxiv)


def _ambiguous(found: Sequence[Entry], why: str, scores: dict[str, float] | None = None) -> Match:
    scores = scores or {}
    return Match(candidates=[
        {"system": entry.id, "why": why, "score": round(scores.get(entry.id, 1.0), 3)}
        for entry in found[:MOST_CANDIDATES]
    ])  # fmt: skip
