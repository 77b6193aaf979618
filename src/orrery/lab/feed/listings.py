"""Listing pages as text: Hugging Face's daily papers, dated category pages, arXiv's listings."""

from __future__ import annotations

import re
from collections import deque

from orrery.lab.feed.papers import Paper, address, iso_date, month_of, one_line, split_id

_CATEGORY = r"[a-z][a-z-]{1,11}(?:\.[A-Za-z-]{2,8})?"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"


# -- dated category pages: "cs.DC 2026-05-14 …", then headline, title, one sentence, abstract

DATED = re.compile(
    rf"^[ \t]*({_CATEGORY})[ \t]+([0-9]{{4}})-([0-9]{{2}})-([0-9]{{2}})"
    r"(?:[ \t]+\S.{0,60})?[ \t]*$",
    re.MULTILINE,
)
_FURNITURE = re.compile(
    r"^(?:figure from the paper.*|full image|[0-9]{1,6}|browse all of .*)$", re.IGNORECASE
)
_ABSTRACT = re.compile(r"^(?:abstract\b.{0,30}expand|abstract)$", re.IGNORECASE)


def count_dated(text: str) -> int:
    """How many entries of a dated category page a text seems to hold."""
    return len(DATED.findall(text))


def read_dated(text: str) -> tuple[list[Paper], list[str]]:
    """The entries of a dated category page."""
    marks = list(DATED.finditer(text))
    papers, notes = [], []
    for place, mark in enumerate(marks, 1):
        end = marks[place].start() if place < len(marks) else len(text)
        lines = [line.strip() for line in text[mark.end() : end].splitlines() if line.strip()]
        cut = next((i for i, line in enumerate(lines) if _ABSTRACT.match(line)), len(lines))
        top = [line for line in lines[:cut] if not _FURNITURE.match(line)]
        below = [line for line in lines[cut + 1 :] if not _FURNITURE.match(line)]
        paper = Paper(
            title="", date=iso_date(int(mark[2]), int(mark[3]), int(mark[4])),
            abstract=one_line(" ".join(below)),
        )  # fmt: skip
        paper.arxiv, paper.version = _linked_id(lines)
        paper.url = address(paper.arxiv, paper.version)
        _name(paper, top)
        if not paper.title:
            notes.append(f"entry {place} ({mark[0].strip()}) has no title")
        elif len(top) < 3:
            paper.note = "its listing lacks a headline or a sentence, so the title may be either"
        papers.append(paper)
    return papers, notes


def _name(paper: Paper, top: list[str]) -> None:
    """Set title and headline: a page gives headline, title and a sentence; else title first."""
    if len(top) >= 3:
        paper.headline, paper.title = one_line(top[0]), one_line(top[1])
    elif top:
        # With two lines the title is the one that reads like one: a sentence ends in a full stop.
        sentence = len(top) == 2 and top[1].endswith(".")
        paper.title = one_line(top[0] if sentence or len(top) == 1 else top[1])
        paper.headline = "" if sentence or len(top) == 1 else one_line(top[0])


def _linked_id(lines: list[str]) -> tuple[str, int]:
    """An id that the entry gives as an address or as `arXiv:…` on a line of its own."""
    for line in lines:
        found = re.fullmatch(r"(?:https?://arxiv\.org/abs/|arXiv:)(\S+)", line)
        if found:
            return split_id(found[1])
    return "", 0


# -- Hugging Face's daily papers

_HF_DATE = re.compile(rf"^({_MONTH}) ([0-9]{{1,2}})(?:, ([0-9]{{4}}))?(?: [0-9]{{1,5}})?$")
_AUTHORS = re.compile(r"^(?:[•*-] ?)?[0-9]{1,5} authors?$")
_MOST_TITLE = 300


def count_daily(text: str) -> int:
    """How many entries of a daily-papers page a text seems to hold."""
    if "Daily Papers" not in text and not re.search(r"^\W*[0-9]+ authors?$", text, re.MULTILINE):
        return 0
    return len(read_daily(text)[0])


def _blocks(text: str) -> list[list[str]]:
    """Groups of lines between blank ones."""
    found: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.strip():
            found[-1].append(line.strip())
        elif found[-1]:
            found.append([])
    return [block for block in found if block]


def _is_meta(block: list[str]) -> bool:
    """Authors or an organisation, a dot, a date; or any part of that."""
    if any(_AUTHORS.match(line) for line in block) or block[0] == "·":
        return True
    return "·" in block[:3] and bool(_HF_DATE.match(block[-1]))


def read_daily(text: str) -> tuple[list[Paper], list[str]]:
    """The entries of a Hugging Face papers page as its text: title, abstract, authors and date."""
    papers: list[Paper] = []
    notes: list[str] = []
    undated: list[Paper] = []
    for block in _after_header(_blocks(text)):
        if _is_meta(block):
            if papers:
                _set_date(papers[-1], block[-1], undated)
            continue
        joined = one_line(" ".join(block))
        if papers and _belongs_to_abstract(joined, papers[-1]):
            papers[-1].abstract = (papers[-1].abstract + " " + joined).strip()
        elif len(joined) <= _MOST_TITLE:
            papers.append(Paper(title=joined))
        else:
            notes.append(f"a text without a title before it: {joined[:60]}…")
    waiting = {id(paper) for paper in undated}
    sure = [bool(p.abstract or p.date or id(p) in waiting) for p in papers]
    kept = [paper for paper, is_one in zip(papers, sure, strict=True) if is_one]
    dropped = [paper.title for paper, is_one in zip(papers, sure, strict=True) if not is_one]
    if dropped:
        notes.append(f"lines that are no papers: {'; '.join(each[:60] for each in dropped[:9])}")
    _infer_year(kept, undated, notes)
    return kept, notes


def _after_header(blocks: list[list[str]]) -> list[list[str]]:
    """The blocks after the page's own heading (and after its date, which looks like a paper's)."""
    for i, block in enumerate(blocks):
        if block[0].startswith("Daily Papers"):
            rest = blocks[i + 1 :]
            while rest and (rest[0][0].startswith("by") or _HF_DATE.match(rest[0][0])):
                rest = rest[1:]
            return rest
    return blocks


def _belongs_to_abstract(joined: str, paper: Paper) -> bool:
    if paper.date or not paper.abstract:
        # The first text after a title is its abstract unless it is as short as a title and open.
        return not paper.date and (len(joined) > _MOST_TITLE or joined.endswith((".", ":", "$")))
    return len(joined) > _MOST_TITLE or joined.endswith(".")


def _set_date(paper: Paper, line: str, undated: list[Paper]) -> None:
    found = _HF_DATE.match(line)
    if not found:
        return
    month, day = month_of(found[1]), int(found[2])
    if found[3]:
        paper.date = iso_date(int(found[3]), month, day)
    else:
        paper.note = f"{month:02}-{day:02}"
        undated.append(paper)


def _infer_year(papers: list[Paper], undated: list[Paper], notes: list[str]) -> None:
    """The page leaves out the year where it is the year in which it was saved.

    That year is later than every year that the page does name, so the next one is the earliest.
    """
    named = [int(paper.date[:4]) for paper in papers if paper.date]
    for paper in undated:
        month, day = (int(word) for word in paper.note.split("-"))
        if named:
            paper.date = iso_date(max(named) + 1, month, day)
            paper.note = "the page gives day and month; the year is inferred"
        else:
            paper.note = f"the page gives no year: {month:02}-{day:02}"
    if undated and named:
        notes.append(f"{len(undated)} dates without a year are taken for {max(named) + 1}")


# -- arXiv's listings

LISTED = re.compile(r"^[ \t]*\[([0-9]{1,5})\][ \t]*arXiv:[ \t]*(\S+)", re.MULTILINE)
_DAY = re.compile(
    rf"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*, ([0-9]{{1,2}}) ({_MONTH}) ([0-9]{{4}})"
)
_FIELD = re.compile(r"^(?:Authors|Comments|Subjects|Journal-ref|DOI|MSC-class|ACM-class|"
                    r"Report-no)\s*:", re.IGNORECASE)  # fmt: skip


def count_listed(text: str) -> int:
    """How many entries of an arXiv listing a text seems to hold."""
    return len(LISTED.findall(text))


def read_listed(text: str) -> tuple[list[Paper], list[str]]:
    """The entries of an arXiv listing (`/list/cs.DC/new`, `/recent`) as its text."""
    marks = list(LISTED.finditer(text))
    days, day = deque(_DAY.finditer(text)), None
    papers, notes = [], []
    for place, mark in enumerate(marks, 1):
        end = marks[place].start() if place < len(marks) else len(text)
        id, version = split_id(mark[2])
        lines = [line.strip() for line in text[mark.end() : end].splitlines()]
        title, rest = _listed_title(lines)
        while days and days[0].start() < mark.start():
            day = days.popleft()
        papers.append(Paper(
            title=title, arxiv=id, version=version, url=address(id, version),
            date=iso_date(int(day[3]), month_of(day[2]), int(day[1])) if day else "",
            abstract=_listed_abstract(rest),
        ))  # fmt: skip
        if not title:
            notes.append(f"entry {place} ({id or mark[2]}) has no title")
    return papers, notes


def _listed_title(lines: list[str]) -> tuple[str, list[str]]:
    """The line that begins with Title:, or the first one after it if that is empty."""
    for i, line in enumerate(lines):
        if line.lower().startswith("title:"):
            title = one_line(line[6:])
            rest = lines[i + 1 :]
            while not title and rest:
                title, rest = one_line(rest[0]), rest[1:]
            return title, rest
    return "", lines


def _listed_abstract(lines: list[str]) -> str:
    """What follows the line of subjects; a listing of recent papers has none."""
    at = next((i for i, line in enumerate(lines) if line.lower().startswith("subjects:")), None)
    if at is None:
        return ""
    below = [line for line in lines[at + 1 :] if line and not _FIELD.match(line)]
    kept: list[str] = []
    for line in below:
        if kept and not kept[-1].endswith((".", " ")) and len(line) < 40 and _DAY.search(line):
            break
        kept.append(line)
    joined = one_line(" ".join(kept))
    return joined if len(joined) > 80 else ""
