"""The HTML of a report: semantic, without scripts, readable on a phone and by a screen reader."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from orrery.lab.svg import escape

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_WORDS = {"good": "Fine", "bad": "Violated", "open": "Open"}
_SIGNS = {"good": "✓", "bad": "✕", "open": "?"}

_STYLE = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1c1f26;--soft:#565d6b;--line:#dfe3ea;
--tint:#f4f6f9;--good:#00693e;--goodbg:#e5f4ec;--bad:#a61b11;--badbg:#fdebe9;--open:#7a5400;
--openbg:#fdf3dc;--link:#0062a3}
@media (prefers-color-scheme:dark){:root{--paper:#15171c;--ink:#e8eaee;--soft:#a6adba;
--line:#2e333d;--tint:#1d2027;--good:#5fd6a5;--goodbg:#12291f;--bad:#ff9a8c;--badbg:#33191a;
--open:#f0c766;--openbg:#2d2512;--link:#7cc0f5}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);line-height:1.55;
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;
overflow-wrap:anywhere}
main,header,footer{max-width:1180px;margin:0 auto;padding:0 20px}
header{padding-top:36px}
h1{font-size:1.75rem;line-height:1.2;margin:0 0 6px;letter-spacing:-.01em}
h2{font-size:1.2rem;margin:44px 0 12px}
.lead{color:var(--soft);margin:0 0 20px}
.verdicts{list-style:none;margin:0;padding:0;display:grid;gap:8px}
.verdicts li{padding:10px 14px;border-radius:8px;border-left-width:4px;
border-left-style:solid;display:flex;gap:10px}
.verdicts b{white-space:nowrap}
.good{background:var(--goodbg);border-color:var(--good)}.good b{color:var(--good)}
.bad{background:var(--badbg);border-color:var(--bad)}.bad b{color:var(--bad)}
.open{background:var(--openbg);border-color:var(--open)}.open b{color:var(--open)}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:8px;margin:12px 0}
.scroll:focus-visible,summary:focus-visible{outline:2px solid var(--link);outline-offset:2px}
table{border-collapse:collapse;width:100%;font-size:.92rem;font-variant-numeric:tabular-nums}
caption{text-align:left;padding:10px 14px;color:var(--soft);font-size:.88rem}
th,td{padding:9px 14px;text-align:left;border-top:1px solid var(--line);vertical-align:top;
overflow-wrap:normal}
thead th{background:var(--tint);font-weight:600;white-space:nowrap}
thead small{display:block;font-weight:400;color:var(--soft);white-space:normal;min-width:9em}
td.n{text-align:right;white-space:nowrap}thead th.n{text-align:right}
tbody th{font-weight:600;white-space:nowrap}
dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(170px,1fr));gap:14px 20px;
margin:12px 0;padding:12px 14px;border:1px solid var(--line);border-radius:8px}
dl.wide{grid-template-columns:1fr}
dt{color:var(--soft);font-size:.82rem}dd{margin:0}
code,pre,.mono dd{font-family:ui-monospace,SFMono-Regular,Menlo,"DejaVu Sans Mono",monospace;
font-size:.86rem}
pre{background:var(--tint);border:1px solid var(--line);border-radius:8px;padding:12px 14px;
overflow-x:auto;margin:12px 0;overflow-wrap:normal}
figure{margin:16px 0}
figure .scroll{background:var(--paper)}
figure svg{display:block;width:100%;height:auto;max-width:100%}
figure.wide svg{min-width:860px}
figure.chart svg{min-width:560px}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,520px),1fr));gap:0 20px}
td small{display:block;color:var(--soft)}
figcaption{color:var(--soft);font-size:.88rem}
details{margin:12px 0}summary{cursor:pointer;color:var(--link)}
article{border:1px solid var(--line);border-left:4px solid var(--bad);border-radius:8px;
padding:10px 14px;margin:12px 0}
article h3{font-size:1rem;margin:0}article p{margin:4px 0}
.note,footer{color:var(--soft);font-size:.88rem}
footer{padding:36px 20px 48px}
@media (max-width:600px){h1{font-size:1.4rem}main,header,footer{padding-left:14px;
padding-right:14px}th,td{padding:8px 10px}dl{grid-template-columns:1fr 1fr}
dl.wide{grid-template-columns:1fr}}
@media print{.scroll{overflow:visible}details>*{display:block}}
"""


def document(title: str, body: Iterable[str]) -> str:
    """A whole page."""
    head = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
    )
    parts = [part for part in body if part]
    return (
        f"{head}{parts[0]}\n<main>\n" + "\n".join(parts[1:]) + "\n</main>\n"
        "<footer>Made by Orrery. This file is complete in itself and loads nothing.</footer>\n"
        "</body>\n</html>\n"
    )


def header(title: str, lead: str) -> str:
    """The title and one line below it."""
    return f'<header><h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p></header>'


def section(title: str, body: Sequence[str]) -> str:
    """A part of the page with a heading that names it."""
    name = re.sub(r"[^a-z]+", "-", title.lower()).strip("-")
    return (
        f'<section aria-labelledby="{name}"><h2 id="{name}">{escape(title)}</h2>'
        + "".join(body)
        + "</section>"
    )


def verdicts(lines: Sequence[tuple[str, str]]) -> str:
    """What a reader wants to know first; the sign and the word say it without colour too."""
    rows = "".join(
        f'<li class="{kind}"><b><span aria-hidden="true">{_SIGNS[kind]}</span> {_WORDS[kind]}</b>'
        f"<span>{escape(words)}</span></li>"
        for kind, words in lines
    )
    return f'<ul class="verdicts" aria-label="Verdicts">{rows}</ul>' if rows else ""


def table(
    heads: Sequence[str], lines: Sequence[Sequence[str]], says: Sequence[str], caption: str
) -> str:
    """A table whose first column names the row; wide ones scroll inside their frame."""
    numeric = [_is_numeric(line[i] for line in lines) for i in range(len(heads))]
    top = []
    for i, name in enumerate(heads):
        about = f"<small>{escape(says[i])}</small>" if i < len(says) and says[i] else ""
        top.append(f'<th scope="col"{_n(numeric[i])}>{escape(name)}{about}</th>')
    rows = []
    for line in lines:
        cells = [f'<th scope="row">{escape(line[0])}</th>']
        cells += [f"<td{_n(numeric[i])}>{_cell(line[i])}</td>" for i in range(1, len(line))]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{''.join(top)}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _cell(text: str) -> str:
    """A value; its interval, if it has one, stands below it in small type."""
    value, mark, interval = text.partition(" [")
    if not (mark and interval.endswith("]")):
        return escape(text)
    return f"{escape(value)}<small>[{escape(interval)}</small>"


def _n(numeric: bool) -> str:
    return ' class="n"' if numeric else ""


def _is_numeric(cells: Iterable[str]) -> bool:
    found = [cell for cell in cells if cell not in ("–", "")]
    return bool(found) and all(re.match(r"^[-+]?(\d|∞)", cell) for cell in found)


def facts(pairs: Mapping[str, str], mono: bool = False) -> str:
    """Names with values, as many beside one another as fit."""
    long = any(len(value) > 28 for value in pairs.values())
    names = " ".join(name for name, on in (("wide", long), ("mono", mono)) if on)
    rows = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in pairs.items()
    )
    return f"<dl{f' class={chr(34)}{names}{chr(34)}' if names else ''}>{rows}</dl>"


def fold(summary: str, body: str) -> str:
    """Something that is there for those who ask."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def figure(picture: str, caption: str, wide: bool = False) -> str:
    """A picture with its caption; the picture is SVG that this program drew."""
    kind = "wide" if wide else "chart"
    return (
        f'<figure class="{kind}"><div class="scroll" tabindex="0" role="region" '
        f'aria-label="{escape(caption)}">{picture}</div>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def grid(figures: Sequence[str]) -> str:
    """Small pictures beside one another where there is room."""
    return f'<div class="grid">{"".join(figures)}</div>' if figures else ""


def violation(
    who: str, kind: str, where: str, message: str, others: Sequence[str], evidence: str
) -> str:
    """One thing that must not happen and did, with what shows it."""
    more = fold("The others", "<br>".join(escape(each) for each in others)) if others else ""
    shown = fold("Evidence", f"<pre>{escape(evidence)}</pre>") if evidence else ""
    at = f'<p class="note">{escape(where)}</p>' if where else ""
    return (
        f"<article><h3>{escape(who)}: {escape(kind)}</h3>{at}<p>{escape(message)}</p>"
        f"{more}{shown}</article>"
    )


def code(lines: Sequence[str]) -> str:
    """Commands, one a line."""
    return f"<pre><code>{escape(chr(10).join(lines))}</code></pre>" if lines else ""


def note(words: str) -> str:
    """An aside."""
    return f'<p class="note">{escape(words)}</p>'
