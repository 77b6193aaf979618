"""From a saved file to its entries: what kind of feed it is shows in its content, not its name."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

from orrery.base.errors import CodecError, OrreryError, UsageError
from orrery.lab.feed import atom, listings, pages
from orrery.lab.feed.papers import Feed, Paper, unmangled

MOST_B = 32 << 20
MOST_FILES = 1000
MOST_PAPERS = 20_000
MOST_TITLE = 1000
MOST_ABSTRACT = 20_000

Reading = tuple[list[Paper], list[str]]
# (kind, how many entries a text seems to hold, the reader); the largest count wins.
TEXTS: tuple[tuple[str, Callable[[str], int], Callable[[str, str], Reading]], ...] = (
    ("atom text", atom.count_stripped, atom.read_stripped),
    ("arXiv listing", listings.count_listed, lambda text, _: listings.read_listed(text)),
    ("dated listing", listings.count_dated, lambda text, _: listings.read_dated(text)),
    ("daily papers", listings.count_daily, lambda text, _: listings.read_daily(text)),
)


def read_feeds(paths: Iterable[str | Path]) -> list[Feed]:
    """Every file's entries. One message names every file that cannot be read, and why."""
    given = [Path(path) for path in paths]
    if not given:
        raise UsageError("feed: no file is named; give saved feeds, for example papers.xml")
    if len(given) > MOST_FILES:
        raise UsageError(f"feed: {len(given)} files are too many; give at most {MOST_FILES}")
    feeds: list[Feed] = []
    failures: list[OrreryError] = []
    for path in given:
        try:
            feeds.append(read_file(path))
        except OrreryError as error:
            failures.append(error)
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise UsageError("; ".join(str(error) for error in failures))
    total = sum(len(feed.papers) for feed in feeds)
    if total > MOST_PAPERS:
        raise UsageError(f"feed: {total} entries are too many; give at most {MOST_PAPERS}")
    return feeds


def read_file(path: str | Path) -> Feed:
    """The entries of one saved feed or page; a file without any is an error that says so."""
    path = Path(path)
    return read_data(_bytes_of(path), path.name)


def read_data(data: bytes, source: str) -> Feed:
    """The entries of a feed or page that is already in memory."""
    if not data.strip(b"\0 \t\r\n\xef\xbb\xbf\xff\xfe"):
        raise CodecError(f"{source}: is empty; save the feed again")
    if len(data) > MOST_B:
        raise CodecError(f"{source}: {len(data)} bytes; a feed has at most {MOST_B}")
    if atom.looks_like_xml(data):
        papers, notes = atom.read_xml(data, source)
        return _finish(Feed(source=source, kind="atom", papers=papers, notes=notes))
    text, notes = decode(data, source)
    found: list[Paper] = []
    if pages.looks_like_html(text):
        text, found = pages.read_page(text)
    counts = [(count(text), -i) for i, (_, count, _) in enumerate(TEXTS)]
    best, order = max(counts)
    if len(found) >= max(best, 1):
        return _finish(Feed(source=source, kind="papers page", papers=found, notes=notes))
    if not best:
        fix = "give an Atom feed, a Hugging Face papers page or a listing page"
        raise CodecError(f"{source}: no paper was found in it; {fix}")
    kind, _, read = TEXTS[-order]
    papers, more = read(text, source)
    return _finish(Feed(source=source, kind=kind, papers=papers, notes=notes + more))


def _finish(feed: Feed) -> Feed:
    if not feed.papers:
        raise CodecError(f"{feed.source}: a feed without entries; widen the query and save again")
    for place, paper in enumerate(feed.papers, 1):
        paper.source, paper.place = feed.source, place
        if len(paper.title) > MOST_TITLE or len(paper.abstract) > MOST_ABSTRACT:
            feed.notes.append(f"entry {place} is longer than a paper's title and abstract; cut")
            paper.title, paper.abstract = paper.title[:MOST_TITLE], paper.abstract[:MOST_ABSTRACT]
    return feed


def decode(data: bytes, source: str) -> tuple[str, list[str]]:
    """The text of a file, with a note where some of it is not what it should be."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        text = data.decode("utf-16", "replace")
    else:
        text = data.decode("utf-8-sig", "replace")
    notes: list[str] = []
    lost = text.count("\ufffd")
    if b"\0" in data[:65536] and not data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise CodecError(f"{source}: is not text; save the page as text, HTML or XML")
    if lost:
        # Older pages are in the encoding of Windows; it gives every byte a sign.
        text = data.decode("cp1252", "replace") if not _mostly_utf8(data) else text
        notes.append(f"{lost} places are not UTF-8; the signs there may be wrong")
    mended = unmangled(text)
    if mended != text:
        notes.append("some letters had been decoded with the wrong code page and were put right")
    return mended.replace("\r\n", "\n").replace("\r", "\n"), notes


def _mostly_utf8(data: bytes) -> bool:
    """Whether there are more right multi-byte signs than wrong ones."""
    text = data.decode("utf-8", "replace")
    wrong = text.count("\ufffd")
    return sum(not c.isascii() for c in text) - wrong > wrong


def _bytes_of(path: Path) -> bytes:
    try:
        found = os.stat(path)
        if stat.S_ISDIR(found.st_mode):
            raise UsageError(f"{path}: is a folder; name the files in it")
        if not stat.S_ISREG(found.st_mode):
            raise UsageError(f"{path}: is not a regular file; save the feed to one")
        if found.st_size > MOST_B:
            raise UsageError(f"{path}: {found.st_size} bytes; a feed has at most {MOST_B}")
        with path.open("rb") as file:
            return file.read(MOST_B + 1)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except (OSError, ValueError) as failure:
        why = getattr(failure, "strerror", None) or str(failure)
        raise UsageError(f"{str(path)[:200]!r}: cannot be read: {why}") from None
