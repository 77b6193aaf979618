"""The frame of every page: the margin, the search box, what is on the page, and where to go on."""

from __future__ import annotations

import html
import re
from typing import NamedTuple

from docs.pieces import Page
from docs.structure import ORDER, SECTIONS

# Also `file:`, as not every browser takes a folder on a disk for 'self'.
POLICY = (
    "default-src 'none'; style-src 'self' file:; script-src 'self' file:; "
    "img-src 'self' file: data:"
)
LOGO = (
    '<svg viewBox="0 0 40 40" fill="none" stroke="currentColor" aria-hidden="true">'
    '<circle cx="20" cy="20" r="8" stroke-width="1" opacity=".45"/>'
    '<circle cx="20" cy="20" r="13" stroke-width="1" opacity=".45"/>'
    '<circle cx="20" cy="20" r="18" stroke-width="1" opacity=".45"/>'
    '<g stroke="none"><circle cx="20" cy="20" r="4" class="sun"/>'
    '<circle cx="26" cy="14.7" r="1.9" fill="currentColor"/>'
    '<circle cx="9.3" cy="27.4" r="2.4" fill="currentColor"/>'
    '<circle cx="33" cy="32.5" r="2" fill="currentColor"/></g></svg>'
)
HEADING = re.compile(r'<h([23]) id="([^"]+)">(.*?)</h\1>', re.DOTALL)
LEAST_CONTENTS = 3  # headings that make a list of them worth while


class Way(NamedTuple):
    """A link to the page before or after."""

    place: str
    name: str


def framed(page: Page, before: Way | None = None, after: Way | None = None) -> str:
    """A whole HTML document."""
    up = "../" * page.path.count("/")
    # The page of a system belongs to the list of systems.
    here = "systems.html" if up else page.path
    if before is None and after is None and not up:
        before, after = neighbours(page.path)
    body, contents = with_anchors(page.body)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{html.escape(page.title)} · Orrery</title>"
        f'<link rel="stylesheet" href="{up}site.css"><script src="{up}site.js" defer></script>'
        f'</head><body data-up="{up}"><a class="skip" href="#main">To the text</a>'
        f'<header class="top"><a class="brand" href="{up}index.html">{LOGO}Orrery</a>'
        '<div class="search" role="search"><label class="sr" for="q">Search the documentation'
        '</label><input id="q" type="search" placeholder="Search" autocomplete="off" '
        'aria-controls="found" disabled><ol id="found" hidden aria-label="Found"></ol></div>'
        '<a class="menu" href="#menu">Menu</a></header>'
        f"{margin(here, up)}"
        f'<main id="main">{trail(page, up)}{body}{ways(before, after, up)}'
        f"<footer>Orrery {version()} · generated from the code and the data files</footer></main>"
        f"{contents}</body></html>\n"
    )


def margin(here: str, up: str) -> str:
    """The list of all written pages, with the one that is open marked."""
    parts = []
    for section, pages in SECTIONS.items():
        links = "".join(
            f'<li><a href="{up}{place}"{" aria-current=page" if place == here else ""}>'
            f"{html.escape(name)}</a></li>"
            for _, place, name in pages
        )
        parts.append(f'<p class="group">{section}</p><ul>{links}</ul>')
    close = '<a class="close" href="#main">Close</a>'
    return f'<nav id="menu" class="margin" aria-label="Pages">{close}{"".join(parts)}</nav>'


def trail(page: Page, up: str) -> str:
    """Where a page of a system stands."""
    if not page.trail:
        return ""
    links = "".join(
        f'<li><a href="{up}{place}">{html.escape(name)}</a></li>' for place, name in page.trail
    )
    return f'<nav class="trail" aria-label="Where you are"><ol>{links}</ol></nav>'


def with_anchors(body: str) -> tuple[str, str]:
    """The body with a link on each heading, and the list of them for the right margin."""
    found = HEADING.findall(body)

    def linked(match: re.Match[str]) -> str:
        level, id, words = match.groups()
        plain = re.sub(r"<[^>]+>", "", words)
        link = f'<a class="anchor" href="#{id}" aria-label="Link to: {plain}">#</a>'
        return f'<h{level} id="{id}">{words} {link}</h{level}>'

    body = HEADING.sub(linked, body)
    tops = [(id, re.sub(r"</?a\b[^>]*>", "", words)) for level, id, words in found if level == "2"]
    if len(tops) < LEAST_CONTENTS:
        return body, ""
    links = "".join(f'<li><a href="#{id}">{words}</a></li>' for id, words in tops)
    return body, (
        '<nav class="contents" aria-label="On this page"><p class="group">On this page</p>'
        f"<ul>{links}</ul></nav>"
    )


def neighbours(path: str) -> tuple[Way | None, Way | None]:
    """The pages before and after a written page, in reading order."""
    places = [place for place, _ in ORDER]
    if path not in places:
        return None, None
    at = places.index(path)
    before = Way(*ORDER[at - 1]) if at else None
    return before, Way(*ORDER[at + 1]) if at + 1 < len(ORDER) else None


def ways(before: Way | None, after: Way | None, up: str) -> str:
    """Links to the page before and the page after."""
    if before is None and after is None:
        return ""
    parts = []
    for way, rel, sign in ((before, "prev", "← {}"), (after, "next", "{} →")):
        if way is not None:
            words = sign.format(html.escape(way.name))
            parts.append(f'<a rel="{rel}" class="{rel}" href="{up}{way.place}">{words}</a>')
    return f'<nav class="ways" aria-label="Before and after">{"".join(parts)}</nav>'


def version() -> str:
    """The version of the package that the site is about."""
    import orrery

    return orrery.__version__
