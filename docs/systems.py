"""The pages of the systems, generated from their stems, their code and the ledger."""

from __future__ import annotations

import html
import importlib
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from docs.docstring import told_by
from docs.highlight import colour_page
from docs.pieces import (
    Page,
    badge,
    bullets,
    heading,
    inline,
    interval,
    knob_table,
    number,
    table,
)
from docs.structure import ROOT

PICTURES = ROOT / "docs" / "pictures"


def part_of(entry: Any) -> Any:
    """The part class of a built entry, or None (and a line on stderr) where it does not load."""
    from orrery.lab.discover import parts_in
    from orrery.parts import Part, Problem

    try:
        module = importlib.import_module(entry.module)
        if entry.stem.class_:
            return getattr(module, entry.stem.class_)
        own = parts_in(module, Part, Problem)
        return own[0] if len(own) == 1 else None
    except Exception as failure:  # one system that is being written must not stop the others
        print(f"docs: {entry.id} does not load: {failure}", file=sys.stderr)
        return None


def system_pages(entries: Sequence[Any], problems: frozenset[str]) -> list[Page]:
    """One page for each system; ids of other systems in them are links."""
    known = {entry.id for entry in entries}
    return [system_page(entry, known, problems) for entry in entries]


def system_page(entry: Any, known: set[str], problems: frozenset[str]) -> Page:
    """One system: its paper, how it works, what was claimed, and what was found."""
    stem = entry.stem
    part = part_of(entry) if entry.built else None
    told = told_by(part) if part is not None else None
    parts = [f"<h1>{html.escape(entry.name)}</h1>", _facts(entry, problems)]
    parts.append(f'<p class="lead">{inline(stem.job or (told.summary if told else ""))}</p>')
    if stem.title or stem.paper:
        parts += [heading("Paper"), _paper(stem)]
    if entry.claims:
        parts += [heading("Claims: published and found"), _claims(entry)]
        parts.append(_region(entry))
    if stem.mechanisms:
        parts += [heading("How it works"), bullets(stem.mechanisms, "ol")]
    if told is not None:
        if told.text:
            parts.append(heading("In this code" if stem.mechanisms else "How it works"))
            parts += [f"<p>{_stressed(text)}</p>" for text in told.text]
        if told.differs:
            parts += [heading("Differs from the paper"), f"<p>{_stressed(told.differs)}</p>"]
    rivals = [f'<a href="{id}.html">{id}</a>' for id in stem.baselines if id in known]
    if stem.rivals or rivals:
        parts += [heading("Compared with"), bullets(stem.rivals) if stem.rivals else ""]
        parts.append(f"<p>Here: {', '.join(rivals)}.</p>" if rivals else "")
    if entry.works_when:
        parts += [heading("Works when"), _works_when(entry)]
    if entry.built:
        parts += [heading("Run it"), _run_it(entry, part, told)]
    if stem.notes:
        parts += [heading("Notes"), f"<p>{inline(stem.notes)}</p>"]
    trail = (("systems.html", "Systems"), (f"systems.html#{entry.room}", entry.room))
    return Page(f"systems/{entry.id}.html", entry.name, "".join(parts), trail)


def _stressed(text: str) -> str:
    """Text of a docstring, in which *a few words* may be stressed; a product is left alone."""
    return re.sub(r"(?<![\w*)])\*{1,2}([A-Za-z][^*]{0,80}?)\*{1,2}(?![\w*(])", r"<em>\1</em>",
                  inline(text))  # fmt: skip


def _facts(entry: Any, problems: frozenset[str]) -> str:
    found = [badge(entry.status), f"<code>{entry.id}</code>", f"a {entry.shape}"]
    if entry.problem:
        name = f"<code>{html.escape(entry.problem)}</code>"
        there = entry.problem in problems
        link = f'<a href="../cheatsheet.html#{entry.problem}">{name}</a>' if there else name
        found.append(f"answers {link}")
    if entry.engines:
        found.append(f"passes on {', '.join(entry.engines)}")
    return f'<p class="meta">{" · ".join(found)}</p>'


def _paper(stem: Any) -> str:
    arxiv = f' <a href="https://arxiv.org/abs/{stem.arxiv}">{stem.arxiv}</a>' if stem.arxiv else ""
    more = " ".join(inline(value) for value in stem.paper.values())
    title = f"<em>{inline(stem.title)}</em>" if stem.title else ""
    date = f", {html.escape(stem.date)}" if stem.date else ""
    return f"<p>{title}{date}.{arxiv} {more}</p>"


def _claims(entry: Any) -> str:
    rows = []
    for row, claim in zip(entry.claims, entry.stem.claims, strict=True):
        kind = f'<br><span class="quiet">{row["kind"]}, {row["date"]}</span>' if row["kind"] else ""
        verdict = badge(row["verdict"]) if claim.testable else badge("cannot be tested")
        note = f"<br><small>{inline(claim.untestable)}</small>" if claim.untestable else ""
        against = f"<br><small>against {inline(row['against'])}</small>" if row["against"] else ""
        rows.append((inline(row["metric"]), inline(row["says"]) + against, interval(row) + kind,
                     number(row["off"]), verdict + note))  # fmt: skip
    heads = ("metric", "published", "found here", "mechanism off", "verdict")
    again = f"<code>orrery check {entry.id}</code> puts them to the test again." if (
        entry.built) else "They are put to the test once the system is built."  # fmt: skip
    return table(heads, rows) + f'<p class="quiet">{again}</p>'


def _region(entry: Any) -> str:
    """The map of where a claim holds, if one was drawn; its command stands in a file beside it."""
    drawn = PICTURES / f"when-{entry.id}.svg"
    if not drawn.is_file():
        return ""
    command = drawn.with_suffix(".txt")
    said = command.read_text(encoding="utf-8").strip() if command.is_file() else ""
    alt = f"Map of where a claim of {html.escape(entry.name)} holds"
    line = f"<pre class=console><code>$ <b>{html.escape(said)}</b></code></pre>" if said else ""
    return f'{heading("Where it holds")}<img src="../pictures/{drawn.name}" alt="{alt}">{line}'


def _works_when(entry: Any) -> str:
    rows = []
    for line in entry.works_when:
        more = f"<br><small>{inline(line['reason'])}</small>" if line["reason"] else ""
        test = str(line["test"] or "").partition("[")[0]
        proof = f"<br><small><code>{html.escape(test)}</code></small>" if test else ""
        rows.append((line["n"], inline(line["text"]) + proof, badge(line["state"]) + more))
    return table(("", "acceptance line", "state"), rows)


def _run_it(entry: Any, part: Any, told: Any) -> str:
    command = f"orrery run {entry.id}"
    parts = [f"<pre class=console><code>$ <b>{command}</b></code></pre>"]
    if part is None:
        parts.append("<p>Its code does not load here.</p>")
        return "".join(parts)
    if told.example:
        code = html.escape(told.example.strip())
        parts.append(colour_page(f'<pre><code class="language-pycon">{code}</code></pre>'))
    parts += [heading("Knobs", 3), knob_table(part, told.knobs)]
    source = Path(entry.module.replace(".", "/"))
    parts.append(f'<p class="quiet">Source: <code>src/{source}</code></p>')
    return "".join(parts)


def systems_page(entries: Sequence[Any]) -> Page:
    """Every system by room, counted from the data."""
    status = Counter(entry.status for entry in entries)
    verdicts = Counter(row["verdict"] for entry in entries for row in entry.claims)
    claims = sum(verdicts.values())
    origin = Counter(entry.origin for entry in entries)
    counts = [
        (origin["catalogue"], "published systems"), (origin["classic"], "classics"),
        (status["working"] + status["checked"], "built"), (status["checked"], "checked"),
        (claims, "claims"), (claims - verdicts[None], "judged"),
    ]  # fmt: skip
    parts = ["<h1>Systems</h1>", '<div class="count">']
    parts += [f"<div><b>{count}</b><span>{word}</span></div>" for count, word in counts]
    parts.append("</div><p>A system is <em>planned</em> while only its paper is described, "
                 "<em>working</em> when there is code, and <em>checked</em> when every claim and "
                 "every acceptance line has been judged.</p>")  # fmt: skip
    parts.append(filters({
        "status": ("checked", "working", "planned"),
        "origin": ("catalogue", "classic"),
        "shape": tuple(sorted({entry.shape for entry in entries})),
    }))  # fmt: skip
    for room in sorted({entry.room for entry in entries}):
        here = [entry for entry in entries if entry.room == room]
        rows = [
            (f'<a href="systems/{e.id}.html">{html.escape(e.name)}</a>', badge(e.status),
             e.shape, inline(e.stem.job))
            for e in here
        ]  # fmt: skip
        marks = [{"status": e.status, "origin": e.origin, "shape": e.shape} for e in here]
        parts.append(heading(room, id=room))
        parts.append(table(("system", "status", "shape", "what it is for"), rows, marks=marks))
    return Page("systems.html", "Systems", "".join(parts))


def filters(choices: dict[str, tuple[str, ...]]) -> str:
    """Boxes by which a script shows fewer rows; without one all rows stay."""
    parts = ['<form class="filters" data-filters hidden aria-label="Show fewer rows">']
    for name, values in choices.items():
        options = "".join(f"<option>{html.escape(value)}</option>" for value in values)
        parts.append(f'<label>{name} <select name="{name}"><option value="">all</option>'
                     f"{options}</select></label>")  # fmt: skip
    parts.append('<label>text <input type="search" name="text"></label>')
    return "".join(parts) + '<output aria-live="polite"></output></form>'
