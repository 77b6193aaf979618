"""arXiv's Atom feeds: as XML, and as the bare text that is left when a browser drops the tags."""

from __future__ import annotations

import re
from typing import Any
from xml.parsers import expat

from orrery.base.errors import CodecError
from orrery.lab.feed.papers import FIVE_DIGITS_FROM, Paper, address, one_line, split_id

ATOM = "http://www.w3.org/2005/Atom"
MOST_DEPTH = 64
STAMP = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
ANCHOR = re.compile(
    r"https?://arxiv\.org/abs/(?P<id>[0-9]{4}\.[0-9]{4,5}|[a-z-]{2,12}(?:\.[A-Z]{2})?/[0-9]{7})"
    r"(?:v(?P<v>[0-9]{1,3}))?"
)
MOST_TITLE = 500


# -- XML


def looks_like_xml(data: bytes) -> bool:
    """Whether a file begins as XML does (an HTML page begins otherwise)."""
    start = data[:4096].lstrip(b"\xef\xbb\xbf\xff\xfe\x00 \t\r\n").replace(b"\0", b"").lower()
    return start.startswith((b"<?xml", b"<feed", b"<atom:feed")) and b"<html" not in start


class _Reader:
    """Collects the entries of a feed while the parser walks through it."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.path: list[str] = []
        self.text: list[str] = []
        self.entry: dict[str, Any] | None = None
        self.entries: list[dict[str, Any]] = []

    def refuse(self, *_: Any) -> None:
        """A document type or an entity: no feed has one, and bombs are made of them."""
        fix = "save the feed again; arXiv's feeds declare none"
        raise CodecError(f"{self.source}: the XML declares a document type or entities; {fix}")

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if not self.path and name != f"{ATOM} feed":
            shown = name.rpartition(" ")[2][:40]
            raise CodecError(f"{self.source}: XML of <{shown}>, not an Atom feed; "
                             "save the feed of export.arxiv.org/api/query")  # fmt: skip
        self.path.append(name)
        if len(self.path) > MOST_DEPTH:
            raise CodecError(f"{self.source}: elements nest deeper than {MOST_DEPTH}")
        self.text = []
        if name == f"{ATOM} entry" and len(self.path) == 2:
            self.entry = {}
        is_link = name == f"{ATOM} link" and attributes.get("rel", "alternate") == "alternate"
        if is_link and self.entry is not None:
            self.entry.setdefault("link", attributes.get("href", ""))

    def end(self, name: str) -> None:
        inside = len(self.path) == 3 and name.startswith(f"{ATOM} ")
        if self.entry is not None and inside:
            self.entry.setdefault(name.rpartition(" ")[2], "".join(self.text))
        if name == f"{ATOM} entry" and len(self.path) == 2 and self.entry is not None:
            self.entries.append(self.entry)
            self.entry = None
        self.path.pop()
        self.text = []

    def characters(self, data: str) -> None:
        if self.entry is not None and len(self.path) == 3:
            self.text.append(data)


def read_xml(data: bytes, source: str) -> tuple[list[Paper], list[str]]:
    """The entries of an Atom feed; a document type, an entity or broken XML is refused by name."""
    reader = _Reader(source)
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = reader.refuse
    parser.EntityDeclHandler = reader.refuse
    parser.ExternalEntityRefHandler = reader.refuse  # type: ignore[assignment]
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.characters
    try:
        parser.Parse(data, True)
    except expat.ExpatError as failure:
        why = expat.errors.messages.get(failure.code, str(failure))
        raise CodecError(f"{source}: line {failure.lineno}: broken XML: {why}; "
                         "save the feed again, whole") from None  # fmt: skip
    except (LookupError, ValueError) as failure:  # an encoding that nobody knows
        raise CodecError(f"{source}: the XML cannot be read: {failure}") from None
    notes: list[str] = []
    return [_paper(each, i, notes) for i, each in enumerate(reader.entries, 1)], notes


def _paper(entry: dict[str, Any], place: int, notes: list[str]) -> Paper:
    id, version = split_id(entry.get("id", "") or entry.get("link", ""))
    title = one_line(entry.get("title", ""))
    url = one_line(entry.get("link", ""))
    if not title:
        notes.append(f"entry {place} ({id or 'no id'}) has no title")
    return Paper(
        title=title, arxiv=id, version=version, date=entry.get("updated", "").strip()[:10],
        published=entry.get("published", "").strip()[:10], abstract=one_line(
            entry.get("summary", "")), url=address(id, version) or _web(url),
    )  # fmt: skip


def _web(url: str) -> str:
    """An address that a page may link to; anything but http is dropped."""
    return url if url.lower().startswith(("http://", "https://")) else ""


# -- the same without its tags


def count_stripped(text: str) -> int:
    """How many entries of a feed without tags a text seems to hold."""
    return len(_entries(text)) if "arxiv.org/abs/" in text else 0


def _entries(text: str) -> list[tuple[int, int]]:
    """(from, to) of each entry.

    An address begins an entry when the one before it is complete (two times: updated, published)
    and a time follows before the next address. Other addresses stand inside abstracts or comments.
    """
    starts: list[int] = []
    stamps_since = 2
    marks = list(ANCHOR.finditer(text))
    for mark, after in zip(marks, [*marks[1:], None], strict=True):
        until = after.start() if after is not None else len(text)
        here = len(STAMP.findall(text[mark.end() - 3 : until]))
        if stamps_since >= 2 and here:
            starts.append(mark.start())
            stamps_since = 0
        stamps_since += here
    return list(zip(starts, [*starts[1:], len(text)], strict=True)) if starts else []


def read_stripped(text: str, source: str) -> tuple[list[Paper], list[str]]:
    """The entries of a feed whose tags are gone, so that one field runs into the next."""
    notes: list[str] = []
    papers = []
    for place, (start, end) in enumerate(_entries(text), 1):
        papers.append(_stripped(text[start:end], place, notes))
    addresses = len(ANCHOR.findall(text)) - len(papers)
    if addresses:
        notes.append(f"{addresses} further addresses stand inside texts and are no entries")
    return papers, notes


def _stripped(block: str, place: int, notes: list[str]) -> Paper:
    mark = ANCHOR.match(block)
    assert mark is not None
    id, digits, at = _exact_id(mark)
    body = block[at:]
    stamps = list(STAMP.finditer(body))
    same = len(stamps) > 1 and stamps[0][0] == stamps[1][0]
    if digits:
        version, used = _version(digits, body, same)
        body, stamps = body[used:], list(STAMP.finditer(body[used:]))
    else:
        version = 0
    if stamps and not body[: stamps[0].start()].strip():
        title, abstract = _older_order(body, stamps)
    else:
        title = body[: stamps[0].start()]
        end = stamps[1].start() if len(stamps) > 1 else len(body)
        abstract = body[stamps[0].end() : end]
        if len(stamps) < 2:
            notes.append(f"entry {place} ({id}) breaks off; its end is missing")
    title = one_line(title)
    if not title or len(title) > MOST_TITLE:
        notes.append(f"entry {place} ({id}) has no title that can be told apart")
        title = title[:MOST_TITLE]
    return Paper(
        title=title, arxiv=id, version=version, date=stamps[0][1],
        published=stamps[1][1] if len(stamps) > 1 else "", abstract=one_line(abstract),
        url=address(id, version),
    )  # fmt: skip


def _exact_id(mark: re.Match[str]) -> tuple[str, str, int]:
    """The id, the digits after its v, and where the body begins (at those digits, if any)."""
    id = mark["id"]
    if "/" not in id:
        size = 5 if int(id[:4]) >= FIVE_DIGITS_FROM else 4
        if len(id) > 5 + size:  # a digit of the title has run into an old, shorter id
            return id[: 5 + size], "", mark.start("id") + 5 + size
    if mark["v"] is None:
        return id, "", mark.end("id")
    return id, mark["v"], mark.start("v")


def _version(digits: str, body: str, never_updated: bool) -> tuple[int, int]:
    """(version, how many digits it takes), as a title or a year may begin with digits too."""
    if STAMP.match(body, 1) or never_updated:
        return int(digits[0]), 1
    if len(digits) > 1 and STAMP.match(body, 2):
        return int(digits[:2]), 2
    # A paper that was updated has version 2 or more. "v23D scenes" is version 2 of "3D scenes".
    sizes = [n for n in range(1, len(digits) + 1) if 2 <= int(digits[:n]) <= 60]
    if not sizes:
        return int(digits[0]), 1
    named = re.match(r"[A-Z][^a-z]", body[sizes[-1] :])
    size = sizes[0] if named or len(digits) > 2 else sizes[-1]
    return int(digits[:size]), size


def _older_order(body: str, stamps: list[re.Match[str]]) -> tuple[str, str]:
    """Title and abstract of a feed that gives both times first; line breaks set them apart."""
    rest = body[stamps[min(1, len(stamps) - 1)].end() :]
    lines = rest.lstrip("\r\n \t").splitlines()
    title = lines[0] if lines else ""
    used = 1
    # arXiv indents the second line of a wrapped title by two spaces, and fields by four or more.
    while used < len(lines) and re.match(r" {1,3}\S", lines[used]):
        title += " " + lines[used]
        used += 1
    paragraph: list[str] = []
    for line in lines[used:]:
        if not line.strip() and paragraph:
            break
        paragraph.append(line)
    return title, " ".join(paragraph)
