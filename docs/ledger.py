"""The page of the ledger: what was measured, newest finding on each subject."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from docs.pieces import Page, badge, heading, inline, interval, table
from docs.systems import filters

INTRO = (
    "<h1>Ledger</h1><p>What was measured, newest finding on each subject, written only by the runs "
    "that measured it. A claim or a world that was changed afterwards no longer has the verdict "
    "that stands here; the pages of the systems take that into account. "
    '<a href="reading-a-verdict.html">Reading a verdict</a> tells what the words mean.</p>'
)
KINDS = {
    "verdict": "Verdicts on claims",
    "works_when": "Acceptance lines",
    "engine": "Engines passed",
}


def ledger_page(entries: Sequence[Any]) -> Page:
    """Findings by kind, with filters."""
    from orrery.lab.ledger import Ledger

    records = list(Ledger.default().newest().values())
    if not records:
        return Page("ledger.html", "Ledger", INTRO + "<p>Nothing has been recorded yet.</p>")
    rooms = {entry.id: entry.room for entry in entries}
    words = sorted({_word(record) for record in records})
    parts = [INTRO, _counts(records)]
    machines = {str(record.get("machine", "")) for record in records}
    if len(machines) == 1:
        parts.append(f'<p class="quiet">All on: {inline(machines.pop())}.</p>')
    used = tuple(sorted({rooms.get(record["id"], "elsewhere") for record in records}))
    parts.append(filters({"room": used, "finding": tuple(words)}))
    for kind, title in KINDS.items():
        own = [record for record in records if record["kind"] == kind]
        if own:
            parts += [heading(f"{title}"), _table(kind, own, rooms, alike=not machines)]
    return Page("ledger.html", "Ledger", "".join(parts))


def _word(record: dict[str, Any]) -> str:
    return str(record.get("verdict") or record.get("state") or "")


def _counts(records: Sequence[dict[str, Any]]) -> str:
    found = Counter(_word(record) for record in records if record["kind"] == "verdict")
    cells = "".join(f"<div><b>{n}</b><span>{word}</span></div>" for word, n in found.most_common())
    return f'<div class="count">{cells}</div>'


def _table(
    kind: str, records: Sequence[dict[str, Any]], rooms: dict[str, str], *, alike: bool
) -> str:
    rows, marks = [], []
    for record in sorted(records, key=lambda r: (r["id"], _about(r))):
        id = record["id"]
        # A finding about a system that has since been renamed has no page.
        name = f'<a href="systems/{id}.html">{id}</a>' if id in rooms else f"{id}"
        row = [name, inline(_about(record)), badge(_word(record))]
        if kind == "verdict":
            row += [interval(record), inline(record.get("value_kind", ""))]
        if kind == "works_when":
            row.append(f"<small>{inline(record.get('reason') or '')}</small>")
        row.append(f'<span class="date">{inline(record.get("date", ""))}</span>')
        # Only what differs: one machine is named once, above.
        rows.append(row if alike else [*row, f"<small>{inline(record.get('machine', ''))}</small>"])
        marks.append({"room": rooms.get(id, "elsewhere"), "finding": _word(record)})
    more = {"verdict": ("measured", "kind"), "works_when": ("reason",), "engine": ()}[kind]
    heads = ("system", "about", "finding", *more, "date", *(() if alike else ("machine",)))
    return table(heads, rows, marks=marks)


def _about(record: dict[str, Any]) -> str:
    if record["kind"] == "works_when":
        return f"line {record.get('n')}"
    return str(record.get("metric") or record.get("engine") or "")
