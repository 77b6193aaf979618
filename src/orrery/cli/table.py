"""Tables on a terminal, without a heavy import: aligned columns that never exceed the width.

A table that is too wide first loses the ends of its texts, and when that is not enough it becomes
one block a row. Where stdout is not a terminal nothing is cut, so that pipes get all of it.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Sequence

from orrery.cli.common import say, strong

GAP = "  "
LEAST_TEXT = 12


def width() -> int | None:
    """The columns that may be used; None where nothing need be cut."""
    try:
        if not sys.stdout.isatty():
            return None
    except (AttributeError, ValueError):
        return None
    return max(shutil.get_terminal_size((100, 24)).columns, 20)


def cells_wide(text: str) -> int:
    """How many columns a text takes; wide letters take two, marks that combine none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def cut(text: str, most: int) -> str:
    """A text in at most so many columns, with … where something was left out.

    >>> cut("gossip", 4)
    'gos…'
    """
    if cells_wide(text) <= most:
        return text
    while text and cells_wide(text) > most - 1:
        text = text[:-1]
    return text + "…"


def clean(value: object) -> str:
    """A cell's text: one line, no control characters (a stored text must not steer a terminal)."""
    text = "–" if value is None or value == "" else str(value)
    return "".join(c if c.isprintable() else " " for c in text)


def print_table(
    heads: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    right: Sequence[str] = (),
    keep: Sequence[str] = (),
    room: int | None = None,
) -> None:
    """Print rows under heads. `right` columns are set flush right; `keep` ones are never cut."""
    lines = table_lines(heads, rows, right=right, keep=keep, room=room or width())
    for i, line in enumerate(lines):
        say(strong(line) if i == 0 and rows else line)


def table_lines(
    heads: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    right: Sequence[str] = (),
    keep: Sequence[str] = (),
    room: int | None = None,
) -> list[str]:
    """The lines of a table, the first being its heads."""
    texts = [[clean(cell) for cell in row] for row in rows]
    wide = [
        max([cells_wide(head), *(cells_wide(row[i]) for row in texts)])
        for i, head in enumerate(heads)
    ]
    if room is not None and not _fit(wide, heads, texts, {*right, *keep}, room):
        return _blocks(heads, texts, room)
    lines = []
    for row in [list(heads), *texts]:
        made = []
        for head, text, most in zip(heads, row, wide, strict=True):
            text = cut(text, most)
            pad = " " * (most - cells_wide(text))
            made.append(pad + text if head in right else text + pad)
        lines.append(GAP.join(made).rstrip())
    return lines


def _fit(
    wide: list[int], heads: Sequence[str], texts: list[list[str]], fixed: set[str], room: int
) -> bool:
    """Narrow the widest texts until the table fits; False when it cannot."""
    while sum(wide) + len(GAP) * (len(wide) - 1) > room:
        able = [i for i, head in enumerate(heads) if head not in fixed and wide[i] > LEAST_TEXT]
        if not able:
            return False
        i = max(able, key=lambda each: wide[each])
        wide[i] -= 1
    return True


def _blocks(heads: Sequence[str], texts: list[list[str]], room: int) -> list[str]:
    """One block a row: the first cell, then a line for each other one."""
    lines = [cut(" · ".join(heads), room)]
    label = max((cells_wide(head) for head in heads[1:]), default=0)
    for row in texts:
        lines.append(cut(row[0], room))
        for head, text in zip(heads[1:], row[1:], strict=True):
            lines.append(cut(f"  {head.ljust(label)}  {text}", room))
    return lines


def print_pairs(pairs: Sequence[tuple[str, object]], indent: str = "") -> None:
    """Print labels and values, the values aligned and wrapped."""
    shown = [(label, clean(value)) for label, value in pairs if value not in (None, "", [], {})]
    label_wide = max((cells_wide(label) for label, _ in shown), default=0)
    room = width()
    for label, text in shown:
        start = indent + label + " " * (label_wide - cells_wide(label)) + GAP
        if room is None or len(start) + cells_wide(text) <= room:
            say(start + text)
            continue
        rest = " " * len(start)
        space = max(room, len(start) + LEAST_TEXT)
        for line in textwrap.wrap(text, space, initial_indent=start, subsequent_indent=rest):
            say(line)
