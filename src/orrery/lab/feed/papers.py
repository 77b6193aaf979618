"""A paper as a feed lists it, and the small things that every reader needs: ids, dates, texts."""

from __future__ import annotations

import re
from datetime import date

import msgspec

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
# The first month in which arXiv gave five digits after the dot.
FIVE_DIGITS_FROM = 1501
# `[0-9]` throughout: `\d` would also take digits of other scripts, which no id has.
ARXIV_ID = re.compile(
    r"(?P<new>[0-9]{4}\.[0-9]{4,5})(?![0-9])(?:v(?P<v>[1-9][0-9]?))?(?![0-9])"
    r"|(?P<old>[a-z-]{2,12}(?:\.[A-Z]{2})?/[0-9]{7})(?:v(?P<w>[1-9][0-9]?))?"
)


class Paper(msgspec.Struct, kw_only=True):
    """One listed entry: what the feed says of a paper, and where it says so."""

    title: str
    arxiv: str = ""
    version: int = 0
    date: str = ""
    published: str = ""
    url: str = ""
    abstract: str = ""
    headline: str = ""
    source: str = ""
    place: int = 0
    note: str = ""

    @property
    def where(self) -> str:
        """File and place, for messages."""
        return f"{self.source}, entry {self.place}"


class Feed(msgspec.Struct, kw_only=True):
    """What one file held: the entries in their order, and what the reader has to say about it."""

    source: str
    kind: str
    papers: list[Paper]
    notes: list[str] = []


def split_id(text: str) -> tuple[str, int]:
    """An arXiv id and its version (0: none given) from an id or an address; ("", 0) if none.

    >>> split_id("http://arxiv.org/abs/2606.03498v2"), split_id("math.GT/0309136")
    (('2606.03498', 2), ('math.GT/0309136', 0))
    """
    found = ARXIV_ID.search(text)
    if found is None:
        return "", 0
    id = found["new"] or found["old"]
    month = int(found["new"][2:4]) if found["new"] else 1
    return (id, int(found["v"] or found["w"] or 0)) if 1 <= month <= 12 else ("", 0)


def address(arxiv: str, version: int = 0) -> str:
    """The page of a paper."""
    return f"https://arxiv.org/abs/{arxiv}{f'v{version}' if version else ''}" if arxiv else ""


def one_line(text: str) -> str:
    """A text with every run of white space made one space, and no control characters."""
    clean = "".join(c if c.isprintable() or c.isspace() else " " for c in text)
    return " ".join(clean.split())


def iso_date(year: int, month: int, day: int) -> str:
    """A date as text; nothing where there is no such day.

    >>> iso_date(2026, 2, 30), iso_date(2026, 2, 3)
    ('', '2026-02-03')
    """
    try:
        return date(year, month, day).isoformat()
    except ValueError:
        return ""


def month_of(word: str) -> int:
    """The number of a month from its name or its first three letters; 0 if it is none."""
    head = word[:3].lower()
    return MONTHS.index(head) + 1 if head in MONTHS else 0


def unmangled(text: str) -> str:
    """Text whose UTF-8 was once read as a Windows code page, put right where that is certain.

    >>> unmangled("1–4Γ— faster"), unmangled("Γ is a letter")
    ('1–4× faster', 'Γ is a letter')
    """
    return _RUN.sub(_mend, text) if not text.isascii() else text


# UTF-8 read wrongly gives runs of two or more such letters; a lone Greek letter is left alone.
_RUN = re.compile(r"[^\x00-\x7f]{2,}")
_PAGES = ("cp1252", "cp1253", "latin-1")


def _mend(found: re.Match[str]) -> str:
    run = found[0]
    for start in range(2):  # the sign before the run may be a right one, such as a dash
        for page in _PAGES:
            try:
                return run[:start] + run[start:].encode(page).decode("utf-8")
            except UnicodeError:
                continue
    return run
