"""Small pieces of HTML that the generated pages are made of."""

from __future__ import annotations

import html
import re
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple


class Page(NamedTuple):
    """One page of the site: its place, its title, its body, and where it stands."""

    path: str
    title: str
    body: str
    trail: tuple[tuple[str, str], ...] = ()


def inline(text: object) -> str:
    """Text of a data file: escaped, with `code` in back-quotes."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(" ".join(str(text).split())))


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[object]],
    fit: bool = False,
    caption: str = "",
    marks: Sequence[Mapping[str, str]] = (),
) -> str:
    """A table whose cells are HTML already; with `fit` no wider than they need.

    `marks` are attributes of the rows, by which a script may filter them.
    """
    top = "".join(f'<th scope="col">{head}</th>' for head in heads)
    body = []
    for i, row in enumerate(rows):
        told = marks[i] if i < len(marks) else {}
        mark = "".join(f' data-{name}="{html.escape(value)}"' for name, value in told.items())
        body.append(f"<tr{mark}>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>")
    style = ' class="fit"' if fit else ""
    says = f"<caption>{caption}</caption>" if caption else ""
    inside = f"{says}<thead><tr>{top}</tr></thead><tbody>{''.join(body)}</tbody>"
    return f'<div class="wide" tabindex="0"><table{style}>{inside}</table></div>'


# The sign says it without colour.
TONES = {
    "good": ("✓", ("holds", "checked", "met", "passed")),
    "bad": ("✕", ("not here", "unmet", "gain not from the mechanism", "failed")),
    "open": ("◐", ("holds in part", "inconclusive", "working", "impossible-here")),
}
SIGNS = {"inconclusive": "?", "impossible-here": "–"}


def badge(word: str | None) -> str:
    """A status, a state or a verdict as a coloured word with a sign."""
    tone = next((tone for tone, (_, words) in TONES.items() if word in words), "quiet")
    mark = SIGNS.get(word or "", TONES[tone][0] if tone in TONES else "")
    sign = f'<span aria-hidden="true">{mark} </span>' if mark else ""
    return f'<span class="badge {tone}">{sign}{html.escape(word or "not yet")}</span>'


def bullets(items: Iterable[object], tag: str = "ul") -> str:
    """A list of texts."""
    return f"<{tag}>" + "".join(f"<li>{inline(item)}</li>" for item in items) + f"</{tag}>"


def heading(words: str, level: int = 2, id: str = "") -> str:
    """A heading that can be linked to."""
    name = id or re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")
    return f'<h{level} id="{html.escape(name)}">{words}</h{level}>'


def number(value: Any) -> str:
    """A figure with four digits; nothing for none."""
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def interval(row: Mapping[str, Any]) -> str:
    """What was measured, with its ends where they are known."""
    found = number(row.get("measured"))
    if row.get("lo") is not None and row.get("hi") is not None:
        found += f' <span class="quiet">[{number(row["lo"])}, {number(row["hi"])}]</span>'
    return found


def knob_table(cls: Any, meanings: Mapping[str, str] | None = None) -> str:
    """The knobs of a part or problem: default, what each takes, and what its docstring says."""
    from orrery.cli.show import knob_rows
    from orrery.parts.knobs import knob_types

    rows, types = knob_rows(cls), knob_types(cls)
    if not rows:
        return "<p>It has no knobs.</p>"
    meanings = meanings or {}
    heads = ["knob", "default", "takes"]
    told = any(row["knob"] in meanings for row in rows)
    lines = []
    for row in rows:
        line = [f"<code>{row['knob']}</code>", f"<code>{html.escape(repr(row['default']))}</code>",
                _takes(str(row["takes"]), types.get(row["knob"]))]  # fmt: skip
        lines.append([*line, inline(meanings.get(row["knob"], ""))] if told else line)
    return table([*heads, "meaning"] if told else heads, lines, fit=True)


def _takes(said: str, kind: Any) -> str:
    """What a knob takes, in words; of a choice its values."""
    if typing.get_origin(kind) is typing.Literal:
        return " or ".join(f"<code>{html.escape(str(each))}</code>" for each in kind.__args__)
    return html.escape(said)
