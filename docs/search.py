"""The index of the search: one script that sets one list, read only when somebody searches.

An entry is a page, or one section of a written page: its place, its title, what it belongs to, and
its words. The search itself is in `site.js`.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Iterator

from docs.pieces import Page

SECTION = re.compile(r'<h([23]) id="([^"]+)">(.*?)</h\1>', re.DOTALL)
SKIPPED = re.compile(r"<(pre|table|svg|form)\b.*?</\1>", re.DOTALL)
MOST_WORDS = 900  # letters of one entry
MOST_SYSTEM = 500


def index_script(pages: Iterable[Page]) -> str:
    """The script that holds the index."""
    entries = [entry for page in pages for entry in _entries(page)]
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":"))
    # Whatever a title holds, it stays inside the script.
    return "window.orreryIndex=" + text.replace("<", "\\u003c") + ";\n"


def _entries(page: Page) -> Iterator[list[str]]:
    """[place, title, of, words] of a page and of its sections."""
    if page.path.startswith("systems/"):
        id = page.path.removeprefix("systems/").removesuffix(".html")
        yield [page.path, page.title, f"system {id}", _words(page.body, MOST_SYSTEM)]
        return
    cuts = list(SECTION.finditer(page.body))
    first = cuts[0].start() if cuts else len(page.body)
    yield [page.path, page.title, "", _words(page.body[:first], MOST_WORDS)]
    for i, cut in enumerate(cuts):
        end = cuts[i + 1].start() if i + 1 < len(cuts) else len(page.body)
        title = _words(cut.group(3), 200)
        words = _words(page.body[cut.end() : end], MOST_WORDS)
        yield [f"{page.path}#{cut.group(2)}", title, page.title, words]


def _words(body: str, most: int) -> str:
    plain = html.unescape(re.sub(r"<[^>]+>", " ", SKIPPED.sub(" ", body)))
    return " ".join(plain.split())[:most]
