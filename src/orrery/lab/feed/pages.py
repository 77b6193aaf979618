"""Saved HTML pages: their visible text, and the papers of a Hugging Face page by its markup.

Scripts, styles and everything else that is not shown is dropped; nothing is run or fetched.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser

from orrery.lab.feed.papers import Paper, address, one_line, split_id

UNSEEN = frozenset({"script", "style", "noscript", "template", "svg", "head", "iframe", "object"})
BLOCKS = frozenset(
    """address article aside blockquote body br dd div dl dt figure footer form h1 h2
    h3 h4 h5 h6 header hr html li main nav ol p pre section table td th tr ul""".split()
)
PARAGRAPHS = frozenset("article dd dl dt h1 h2 h3 h4 h5 h6 p section ul ol".split())
# A tag begins with a letter; of declarations only the type of the document is known.
_NO_TAG = re.compile(r"<(?![A-Za-z]|/[A-Za-z]|!doctype)", re.IGNORECASE)
HEADINGS = frozenset({"h1", "h2", "h3", "h4"})
MOST_TEXT = 40_000  # characters; longer ones are cut, and the reader says so
PAPER_LINK = re.compile(r"^(?:https?://(?:www\.)?huggingface\.co)?/papers/([0-9]{4}\.[0-9]{4,5})$")


def looks_like_html(text: str) -> bool:
    """Whether a text is a web page with its tags."""
    start = text[:65536].lower()
    return any(mark in start for mark in ("<!doctype html", "<html", "<body", "<article", "<dl>"))


class _Page(HTMLParser):
    """Walks a page: gathers the visible text, and (id, title, date, abstract) of paper links."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.unseen: list[str] = []
        self.pieces: list[str] = []
        self.papers: list[Paper] = []
        self.heading = 0
        self.paragraph = 0
        self.link = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag in UNSEEN:
            self.unseen.append(tag)
            return
        if tag in BLOCKS:
            self.pieces.append("\n\n" if tag in PARAGRAPHS else "\n")
        if tag in HEADINGS:
            self.heading += 1
        elif tag == "p":
            self.paragraph = 1
        elif tag == "a" and self.heading and not self.unseen:
            found = PAPER_LINK.match(given.get("href", "").partition("?")[0].partition("#")[0])
            self.link = found[1] if found else ""
            if self.link:
                self.papers.append(
                    Paper(title="", arxiv=self.link, url=address(self.link))
                )  # fmt: skip
        elif tag == "time" and self.papers and not self.papers[-1].date:
            self.papers[-1].date = _day(given.get("datetime", ""))
        elif tag == "article":
            self.link, self.heading, self.paragraph = "", 0, 0

    def handle_endtag(self, tag: str) -> None:
        if self.unseen:
            # An unclosed script swallows the rest, as in a browser; a stray end changes nothing.
            if tag == self.unseen[-1]:
                self.unseen.pop()
            return
        if tag in BLOCKS:
            self.pieces.append("\n\n" if tag in PARAGRAPHS else "\n")
        if tag in HEADINGS:
            self.heading, self.link = max(0, self.heading - 1), ""
        elif tag == "a":
            self.link = ""
        elif tag == "p":
            self.paragraph = 0

    def handle_data(self, data: str) -> None:
        if self.unseen:
            return
        self.pieces.append(data if "\n" not in data else re.sub(r"\s+", " ", data))
        paper = self.papers[-1] if self.papers else None
        if paper is not None and self.link and len(paper.title) < MOST_TEXT:
            paper.title += data
        elif paper is not None and self.paragraph and len(paper.abstract) < MOST_TEXT:
            paper.abstract += data


def _day(text: str) -> str:
    return text[:10] if re.match(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text) else ""


def tamed(data: str) -> str:
    """A page without comments and without signs that open no tag.

    The parser of the standard library takes quadratic time over comments and tags that never end,
    so these are taken out first, each in one pass.

    >>> tamed("a<!-- b -->c <3 <!-- d")
    'ac &lt;3 '
    """
    kept, at = [], 0
    while True:
        start = data.find("<!--", at)
        kept.append(data[at:start] if start >= 0 else data[at:])
        end = data.find("-->", start + 4) if start >= 0 else -1
        if start < 0 or end < 0:
            break  # a comment that never ends takes the rest with it, as in a browser
        at = end + 3
    text = _NO_TAG.sub("&lt;", "".join(kept))
    last = text.rfind(">") + 1
    return text[:last] + text[last:].replace("<", "&lt;")


def read_page(data: str) -> tuple[str, list[Paper]]:
    """The visible text of a page, and the papers that its headings link to."""
    page = _Page()
    page.feed(tamed(data))
    page.close()
    seen: dict[tuple[str, str], Paper] = {}
    for paper in page.papers:
        paper.title, paper.abstract = one_line(paper.title), one_line(paper.abstract)
        paper.arxiv, paper.version = split_id(paper.arxiv)
        # A card may link its picture and its heading: the one with words counts.
        if paper.title and (paper.arxiv, paper.title) not in seen:
            seen[(paper.arxiv, paper.title)] = paper
    lines = [line.strip() for line in "".join(page.pieces).splitlines()]
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"
    return text, list(seen.values())
