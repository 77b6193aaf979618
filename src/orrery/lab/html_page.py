"""The HTML of a report: semantic, without scripts, readable on a phone and by a screen reader."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from orrery.lab.html_style import style
from orrery.lab.svg import escape

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
MOST_ROWS = 200
MOST_COLUMNS = 40
# A figure, perhaps with a unit and an interval: "1.5 ms [1.2 ms, 1.8 ms]".
_NUMBER = re.compile(r"^[-+]?(\d[\d .]*(e[-+]?\d+)?|∞)( ?[^\s\d]{1,8})?( \[[^\]]{1,60}\])?$")
_SHORT = 26  # a name of a row that stays on one line where there is room
MOST_LETTERS = 2000  # of one text: more than that nobody reads in a table
TONES = {
    "Fine": "good", "holds": "good",
    "Violated": "bad", "not here": "bad", "gain not from the mechanism": "bad", "Failed": "bad",
    "Open": "open", "inconclusive": "open", "holds in part": "open", "Stopped": "open",
}  # fmt: skip
# The sign says it without colour; the word beside it says it to a screen reader.
SIGNS = {"good": "✓", "bad": "✕", "open": "?", "quiet": "–"}
_LOGO = (
    '<svg viewBox="0 0 40 40" fill="none" stroke="currentColor" aria-hidden="true">'
    '<circle cx="20" cy="20" r="8" opacity=".6"/><circle cx="20" cy="20" r="13" opacity=".6"/>'
    '<circle cx="20" cy="20" r="18" opacity=".6"/><g stroke="none" fill="currentColor">'
    '<circle cx="20" cy="20" r="4" fill="var(--brass)"/><circle cx="26" cy="14.7" r="1.9"/>'
    '<circle cx="9.3" cy="27.4" r="2.4"/><circle cx="33" cy="32.5" r="2"/></g></svg>'
)


class Said(NamedTuple):
    """One verdict of a report: a word (see `TONES`) and a sentence."""

    word: str
    words: str

    @property
    def tone(self) -> str:
        """good, bad, open or quiet."""
        return TONES.get(self.word, "quiet")


def words(value: object) -> str:
    """Text from outside, cut to a length and made safe."""
    text = str(value)
    return escape(text if len(text) <= MOST_LETTERS else text[:MOST_LETTERS] + "… (cut)")


def document(title: str, top: str, body: Iterable[str]) -> str:
    """A whole page; `top` is its header."""
    head = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{words(title)} · Orrery report</title>\n<style>{style()}</style>\n</head>\n"
        '<body>\n<a class="skip" href="#main">To the report</a>\n'
    )
    inside = "\n".join(part for part in body if part)
    return (
        f'{head}{top}\n<main id="main">\n{inside}\n</main>\n'
        "<footer>Made by Orrery. This file is complete in itself and loads nothing.</footer>\n"
        "</body>\n</html>\n"
    )


def header(title: str, lead: str, sections: Sequence[str] = ()) -> str:
    """The title, one line below it, and where on the page to find what."""
    links = "".join(f'<li><a href="#{anchor(name)}">{words(name)}</a></li>' for name in sections)
    nav = f'<nav aria-label="On this page"><ul>{links}</ul></nav>' if len(sections) > 2 else ""
    return (
        f'<header><p class="brand">{_LOGO}Orrery report</p><h1>{words(title)}</h1>'
        f'<p class="lead">{words(lead)}</p>{nav}</header>'
    )


def anchor(title: str) -> str:
    """The id of a heading: its letters and digits."""
    return "s-" + (re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "part")


def section(title: str, body: Sequence[str]) -> str:
    """A part of the page with a heading that names it."""
    name = anchor(title)
    inside = "".join(body)
    return (
        f'<section aria-labelledby="{name}"><h2 id="{name}">{words(title)}</h2>{inside}</section>'
    )


def verdicts(lines: Sequence[Said]) -> str:
    """What a reader wants to know first."""
    rows = "".join(
        f'<li class="{line.tone}"><b>{_signed(line.word)}</b><span>{words(line.words)}</span></li>'
        for line in lines
    )
    if not rows:
        return ""
    return section("Verdicts", [f'<ul class="verdicts">{rows}</ul>'])


def verdict_word(word: str | None) -> str:
    """A verdict inside a table: sign, word and colour."""
    if not word:
        return "–"
    return f'<span class="w-{TONES.get(word, "quiet")}">{_signed(word)}</span>'


def _signed(word: str) -> str:
    sign = "◐" if word == "holds in part" else SIGNS[TONES.get(word, "quiet")]
    return f'<span aria-hidden="true">{sign}</span> {escape(word)}'


def table(
    heads: Sequence[str],
    lines: Sequence[Sequence[str]],
    caption: str,
    *,
    says: Sequence[str] = (),
    row_says: Sequence[str] = (),
    best: Mapping[int, int] | None = None,
    verdict_in: int | None = None,
) -> str:
    """A table whose first column names the row; wide ones scroll inside their frame.

    `says` and `row_says` explain heads and rows in small type; `best` marks, by column, the row
    with the best value; `verdict_in` is a column of verdicts.
    """
    heads, shown = list(heads)[:MOST_COLUMNS], [list(line) for line in lines[:MOST_ROWS]]
    numeric = [i > 0 and _is_numeric(line[i] for line in shown) for i in range(len(heads))]
    top = []
    for i, name in enumerate(heads):
        about = f"<small>{words(says[i])}</small>" if i < len(says) and says[i] else ""
        top.append(f'<th scope="col"{_n(numeric[i])}>{words(name)}{about}</th>')
    rows = []
    for r, line in enumerate(shown):
        short = ' class="s"' if len(line[0]) <= _SHORT else ""
        about = f"<small>{words(row_says[r])}</small>" if r < len(row_says) and row_says[r] else ""
        cells = [f'<th scope="row"{"" if about else short}>{words(line[0])}{about}</th>']
        for i in range(1, len(heads)):
            if i == verdict_in:
                cells.append(f"<td>{verdict_word(line[i])}</td>")
            else:
                won = best is not None and best.get(i) == r
                cells.append(f"<td{_n(numeric[i])}>{_cell(line[i], won)}</td>")
        rows.append(f"<tr>{''.join(cells)}</tr>")
    left_out = len(lines) - len(shown)
    more = note(f"{left_out} more rows are left out here.") if left_out else ""
    return (
        f'<div class="scroll" tabindex="0" role="group" aria-label="{words(caption)}"><table>'
        f"<caption>{words(caption)}</caption><thead><tr>{''.join(top)}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>{more}"
    )


def _cell(text: str, won: bool = False) -> str:
    """A value; its interval, if it has one, stands below it in small type."""
    value, mark, interval = text.partition(" [")
    below = ""
    if mark and interval.endswith("]"):
        text, below = value, f"<small>[{words(interval)}</small>"
    if not won:
        return words(text) + below
    return f'<span class="best">{words(text)}<span class="sr"> (best)</span></span>{below}'


def _n(numeric: bool) -> str:
    return ' class="n"' if numeric else ""


def _is_numeric(cells: Iterable[str]) -> bool:
    found = [cell for cell in cells if cell not in ("–", "")]
    return bool(found) and all(_NUMBER.match(cell) for cell in found)


def facts(pairs: Mapping[str, str], mono: bool = False) -> str:
    """Names with values, as many beside one another as fit."""
    long = any(len(value) > 28 for value in pairs.values())
    names = " ".join(name for name, on in (("wide", long), ("mono", mono)) if on)
    rows = "".join(
        f"<div><dt>{words(name)}</dt><dd>{words(value)}</dd></div>"
        for name, value in list(pairs.items())[:MOST_ROWS]
    )
    return f"<dl{f' class={chr(34)}{names}{chr(34)}' if names else ''}>{rows}</dl>" if rows else ""


def fold(summary: str, body: str, *, data: bool = False) -> str:
    """Something that is there for those who ask; `data` behind a picture is not printed."""
    kind = ' class="data"' if data else ""
    return f"<details{kind}><summary>{words(summary)}</summary>{body}</details>"


def figure(picture: str, caption: str, data: str = "", *, wide: bool = False) -> str:
    """A picture with its caption and its figures as a table; this program drew the picture."""
    kind = "wide" if wide else "chart"
    behind = fold("The same as a table", data, data=True) if data else ""
    scroll = f' tabindex="0" role="group" aria-label="{words(caption)}"' if wide else ""
    return (
        f'<figure class="{kind}"><div class="scroll"{scroll}>{picture}</div>'
        f"<figcaption>{words(caption)}</figcaption>{behind}</figure>"
    )


def grid(figures: Sequence[str], two: bool = False) -> str:
    """Small pictures beside one another where there is room; at most `two`, or three."""
    kind = "grid two" if two else "grid"
    return f'<div class="{kind}">{"".join(figures)}</div>' if figures else ""


def violation(
    who: str, kind: str, where: str, message: str, others: Sequence[str], evidence: str
) -> str:
    """One thing that must not happen and did, with what shows it."""
    more = fold("The others", "<br>".join(words(each) for each in others)) if others else ""
    shown = fold("Evidence", f"<pre>{escape(evidence)}</pre>") if evidence else ""
    at = f'<p class="note">{words(where)}</p>' if where else ""
    return (
        f"<article><h3>{words(who)}: {words(kind)}</h3>{at}<p>{words(message)}</p>"
        f"{more}{shown}</article>"
    )


def code(lines: Sequence[str]) -> str:
    """Commands, one a line."""
    return f"<pre><code>{escape(chr(10).join(lines))}</code></pre>" if lines else ""


def heading(title: str) -> str:
    """A heading inside a section."""
    return f"<h3>{words(title)}</h3>"


def note(text: str) -> str:
    """An aside."""
    return f'<p class="note">{words(text)}</p>'


def paragraph(text: str) -> str:
    """A sentence of the report itself."""
    return f'<p class="why">{words(text)}</p>'
