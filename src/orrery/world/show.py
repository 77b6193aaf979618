"""The HTML by which a notebook shows a thing: small tables that need nothing else.

No scripts, no style sheet, nothing loaded, every text escaped. No colour of text or ground is set,
so what is shown has the colours of the notebook, dark or light. Captions and `scope` tell a screen
reader what a table is about and which name goes with which cell.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence

MOST_CHARACTERS = 400
_CAPTION = "text-align:left;font-weight:600;padding:6px 0 4px;white-space:nowrap"
# Half-clear grey is a fine line on white and on black.
_CELL = (
    "text-align:left;vertical-align:top;padding:3px 14px 3px 4px;"
    "border-bottom:1px solid rgba(128,128,128,.35)"
)


def text(value: object, most: int = MOST_CHARACTERS) -> str:
    """A value as escaped text, cut where it is too long to read.

    >>> text("<b>"), text("abcdef", most=3)
    ('&lt;b&gt;', 'abc…')
    """
    try:
        words = value if isinstance(value, str) else str(value)
    except Exception:  # a cell of a notebook shows what it can, whatever a user's class does
        words = f"<{type(value).__name__}>"
    words = words if len(words) <= most else words[:most] + "…"
    # Control signs and lone surrogates have no place on a page.
    return html.escape("".join(c if c.isprintable() else " " for c in words))


def table(caption: str, heads: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """A table with a name for each column; the first cell of a line names that line.

    >>> 'scope="col"' in table("Moons", ["name", "km"], [["Io", 1821]])
    True
    """
    top = "".join(f'<th scope="col" style="{_CELL}">{text(head)}</th>' for head in heads)
    rows = "".join(_row(line) for line in lines)
    return _frame(caption, f"<thead><tr>{top}</tr></thead><tbody>{rows}</tbody>")


def facts(caption: str, pairs: Mapping[str, object]) -> str:
    """A table of names with one value each; what is empty is left out.

    >>> 'scope="row"' in facts("Io", {"km": 1821})
    True
    """
    rows = "".join(_row(pair) for pair in pairs.items() if pair[1] not in ("", None))
    return _frame(caption, f"<tbody>{rows}</tbody>")


def note(words: str) -> str:
    """A line below a table."""
    return f'<p style="margin:4px 0">{text(words, 4 * MOST_CHARACTERS)}</p>'


def _row(line: Sequence[object]) -> str:
    name = f'<th scope="row" style="{_CELL}">{text(line[0])}</th>'
    cells = "".join(f'<td style="{_CELL}">{text(cell)}</td>' for cell in line[1:])
    return f"<tr>{name}{cells}</tr>"


def _frame(caption: str, inside: str) -> str:
    """Wide tables scroll inside a frame that the keyboard can reach."""
    said = text(caption)
    return (
        f'<div role="region" aria-label="{said}" tabindex="0" style="overflow-x:auto">'
        f'<table><caption style="{_CAPTION}">{said}</caption>{inside}</table></div>'
    )
