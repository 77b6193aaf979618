"""Small pieces of HTML that the generated pages are made of."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple


class Page(NamedTuple):
    """One page of the site: its place, its title, its body."""

    path: str
    title: str
    body: str


def inline(text: object) -> str:
    """Text of a data file: escaped, with `code` in back-quotes."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(" ".join(str(text).split())))


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], fit: bool = False) -> str:
    """A table whose cells are HTML already; with `fit` no wider than they need."""
    top = "".join(f"<th>{head}</th>" for head in heads)
    body = "".join("<tr>" + "".join(f"<td>{c}</td>" for c in row) + "</tr>" for row in rows)
    style = ' class="fit"' if fit else ""
    inside = f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="wide"><table{style}>{inside}</table></div>'


def badge(word: str | None) -> str:
    """A status, a state or a verdict as a coloured word."""
    tones = {
        "good": ("holds", "checked", "met", "passed"),
        "bad": ("not here", "unmet", "gain not from the mechanism", "failed"),
        "open": ("holds in part", "inconclusive", "working", "impossible-here"),
    }
    tone = next((tone for tone, words in tones.items() if word in words), "quiet")
    return f'<span class="badge {tone}">{html.escape(word or "not yet")}</span>'


def bullets(items: Iterable[object], tag: str = "ul") -> str:
    return f"<{tag}>" + "".join(f"<li>{inline(item)}</li>" for item in items) + f"</{tag}>"


def number(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def knob_table(cls: Any) -> str:
    """The knobs of a part or problem with their defaults."""
    knobs: Mapping[str, Any] = cls().knobs()
    if not knobs:
        return "<p>It has no knobs.</p>"
    rows = [(f"<code>{k}</code>", f"<code>{html.escape(repr(v))}</code>") for k, v in knobs.items()]
    return table(("knob", "default"), rows, fit=True)
