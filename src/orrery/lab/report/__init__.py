"""`report`: what was run and found, as one offline HTML file that a person can read and pass on.

It takes runs (made or stored), comparisons, choices, verdicts, maps and sweeps, and the documents
that the commands print with `--json`. Only what differs stands in the tables; what is the same for
all is in a fold-out. The file holds its pictures, with the figures of each as a table behind it,
uses no script and loads nothing: a content security policy says so. Everything that came from
outside is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from orrery.base.errors import UsageError
from orrery.base.units import show
from orrery.lab import html_page as page
from orrery.lab.claims import Verdicts
from orrery.lab.compare import Comparison
from orrery.lab.items import Item, item_of
from orrery.lab.report.chapter import Chapter, Picture
from orrery.lab.report.documents import (
    Checked,
    Chosen,
    Compared,
    Document,
    Mapped,
    Ran,
    Swept,
    documents_of,
    read_documents,
)
from orrery.lab.report.findings import checked_chapter, chosen_chapter, compared_chapter
from orrery.lab.report.runs import runs_chapter
from orrery.lab.report.searches import mapped_chapter, swept_chapter
from orrery.lab.run import Run
from orrery.lab.spans import _whole, plain
from orrery.lab.store import Store, Stored

MOST_B = 2_000_000
MOST_FINDINGS = 60
MOST_VIOLATIONS = 20
MOST_ALIKE = 25
MOST_EVIDENCE = 6000
MOST_COMMANDS = 60


def write(items: Any, path: str | Path, **options: Any) -> Path:
    """Write the report of one or more runs, run ids or findings; gives the path."""
    target = Path(path)
    if target.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"{target}: a report is HTML; end the name in .html")
    text = report(items, **options).encode()
    return _whole(target, lambda file: file.write(text))


def report(
    items: Any,
    *,
    title: str | None = None,
    store: Store | None = None,
    pictures: bool = True,
    commands: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> str:
    """The report as HTML text, below 2 MB; pictures are left out one by one if it grows larger."""
    chapters = _chapters(_listed(items), store, pictures)
    if not chapters:
        raise UsageError("report: no run is named; give run ids, runs or findings")
    if commands:
        chapters[0].commands = [*commands, *chapters[0].commands]
    total = sum(chapter.pictures for chapter in chapters)
    total = total if pictures else 0
    for keep in range(total, -1, -1):
        text = _assemble(title or _title(chapters), chapters, keep, total - keep, notes)
        if len(text.encode()) < MOST_B:
            return text
    raise UsageError("report: over 2 MB even without pictures; give fewer runs")


# -- what is reported


def _listed(items: Any) -> list[Any]:
    if isinstance(items, str | dict | Verdicts) or not isinstance(items, Iterable):
        return [items]
    return list(items)


def _chapters(given: Sequence[Any], store: Store | None, pictures: bool) -> list[Chapter]:
    """One chapter for all runs, which comes first, and one for each finding."""
    runs: list[Item] = []
    found: list[Chapter] = []
    for each in given:
        if isinstance(each, dict):
            for document in documents_of(each, "report"):
                _enter(document, runs, found, store)
        elif isinstance(each, Document):
            _enter(each, runs, found, store)
        elif isinstance(each, str | Run | Stored):
            runs.append(item_of(each, store))
        else:
            found += _finding(each, store)
    if len(found) > MOST_FINDINGS:
        raise UsageError(f"report: {len(found)} findings are too many; give {MOST_FINDINGS}")
    return [runs_chapter(runs, store, pictures), *found] if runs else found


def _enter(
    document: Document, runs: list[Item], found: list[Chapter], store: Store | None
) -> None:  # fmt: skip
    if isinstance(document, Ran):
        runs.append(item_of(Path(document.folder).name, store))
    else:
        found.append(chapter_of(document, store))


def chapter_of(document: Document, store: Store | None = None) -> Chapter:
    """The chapter of a document; that of a run is made from its folder instead."""
    if isinstance(document, Compared):
        return compared_chapter(document, store)
    if isinstance(document, Chosen):
        return chosen_chapter(document)
    if isinstance(document, Checked):
        return checked_chapter(document)
    if isinstance(document, Mapped):
        return mapped_chapter(document)
    if isinstance(document, Swept):
        return swept_chapter(document, store)
    raise UsageError("report: a run is reported from its folder; give its id")


def _finding(one: Any, store: Store | None) -> list[Chapter]:
    """The chapters of an object that another function of the lab gave."""
    if isinstance(one, Comparison):
        return [_comparison(one, store)]
    if isinstance(one, Verdicts):
        document = one.to_json()
        for row, verdict in zip(document["claims"], one, strict=True):
            row["note"] = verdict.note
        return [checked_chapter(msgspec.convert(document, Checked))]
    # Imported only when such a thing is at hand: a report of a run needs neither.
    kind = type(one).__name__
    if kind == "Choice" and hasattr(one, "comparison"):
        ranking = chosen_chapter(msgspec.convert(one.to_json(), Chosen), one.comparison.units)
        compared = _comparison(one.comparison, store)
        ranking.sections += compared.sections
        ranking.commands += compared.commands
        ranking.broken, ranking.environment = compared.broken, compared.environment
        return [ranking]
    if kind == "Map" and hasattr(one, "svg"):
        return [mapped_chapter(msgspec.convert(_plain(one.to_json()), Mapped), one.svg())]
    if kind == "Sweep" and hasattr(one, "trials"):
        return [swept_chapter(msgspec.convert(_plain(one.to_json()), Swept), store)]
    raise UsageError(f"report: {one!r} is no run; give runs, run ids or findings")


def _plain(document: Any) -> Any:
    return msgspec.to_builtins(document, enc_hook=repr, str_keys=True)


def _comparison(one: Comparison, store: Store | None) -> Chapter:
    document = msgspec.convert(one.to_json(), Compared)
    return compared_chapter(document, store, one.units, one.world_hash)


def _title(chapters: Sequence[Chapter]) -> str:
    first = chapters[0].title
    return first if len(chapters) == 1 else f"{first}, and {len(chapters) - 1} more"


# -- the page


def _assemble(
    title: str, chapters: Sequence[Chapter], keep: int, left_out: int, notes: Sequence[str]
) -> str:
    """The page with so many of its pictures."""
    sections: list[tuple[str, list[str]]] = []
    taken: set[str] = set()
    for chapter in chapters:
        for name, body in chapter.sections:
            parts = []
            for part in body:
                if isinstance(part, Picture):
                    parts += [part.html] if keep > 0 else []
                    keep -= 1
                else:
                    parts.append(part)
            full = name if len(chapters) == 1 else f"{chapter.title}: {name.lower()}"
            sections.append((_unique(full, taken), parts))
    broken = [pair for chapter in chapters for pair in chapter.broken]
    ends = [("Violations", _violations(broken))] if broken else []
    ends += [("How to reproduce", _reproduce(chapters)), ("Environment", _environment(chapters))]
    sections += [(_unique(name, taken), body) for name, body in ends]
    said = [said for chapter in chapters for said in chapter.verdicts]
    names = [*(["Verdicts"] if said else []), *(name for name, body in sections if any(body))]
    body = [page.paragraph(text) for text in notes]
    body.append(page.verdicts(said))
    if left_out:
        body.append(page.note(f"{left_out} pictures were left out to keep this file below 2 MB."))
    body += [page.section(name, parts) for name, parts in sections if any(parts)]
    lead = " — ".join(chapter.lead for chapter in chapters[:3])
    return page.document(title, page.header(title, lead, names), body)


def _unique(name: str, taken: set[str]) -> str:
    """A heading whose anchor no other has."""
    found, n = name, 1
    while page.anchor(found) in taken or found == "Verdicts":
        n += 1
        found = f"{name} {n}"
    taken.add(page.anchor(found))
    return found


def _violations(rows: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for who, violation in rows:
        groups.setdefault((who, str(violation.get("kind"))), []).append(violation)
    body = []
    for (who, kind), alike in list(groups.items())[:MOST_VIOLATIONS]:
        first = alike[0]
        where = [f"{len(alike)} times, the first"] if len(alike) > 1 else []
        if first.get("seed") is not None:
            where.append(f"with seed {first['seed']}")
        if isinstance(first.get("time_s"), int | float):
            where.append(f"at {show(float(first['time_s']), 's')}")
        if first.get("node") is not None:
            where.append(f"node {first['node']}")
        others = [f"seed {v.get('seed')}: {v.get('message', '')}" for v in alike[1:MOST_ALIKE]]
        if len(alike) > MOST_ALIKE:
            others.append(f"… and {len(alike) - MOST_ALIKE} more")
        body.append(page.violation(
            who, kind, " · ".join(where), str(first.get("message", "")), others,
            _evidence(first.get("evidence"))))  # fmt: skip
    if len(groups) > MOST_VIOLATIONS:
        body.append(page.note(f"{len(groups) - MOST_VIOLATIONS} more kinds are not shown."))
    return body


def _evidence(data: Any) -> str:
    if data is None:
        return ""
    text = msgspec.json.format(msgspec.json.encode(plain(data)), indent=2).decode()
    return text if len(text) <= MOST_EVIDENCE else text[:MOST_EVIDENCE] + "\n… (cut)"


def _reproduce(chapters: Sequence[Chapter]) -> list[str]:
    lines = [line for chapter in chapters for line in chapter.commands]
    body = [page.code(list(dict.fromkeys(lines))[:MOST_COMMANDS])]
    digests = {name: text for chapter in chapters for name, text in chapter.digests.items()}
    if digests:
        body.append("<p>The same code, world and seed give the same digest:</p>")
        body.append(page.facts(digests, mono=True))
    worlds = {name: text for chapter in chapters for name, text in chapter.worlds.items()}
    for name, text in list(worlds.items())[:4]:
        body.append(page.fold(f"The world {name} (save it as world.toml)", page.code([text])))
    return body


def _environment(chapters: Sequence[Chapter]) -> list[str]:
    import platform

    import orrery

    told = [each for chapter in chapters for each in chapter.environment]
    merged: dict[str, list[str]] = {}
    if not any(each.get("python") for each in told):
        # Nothing says where it was made: what is known is who wrote this file.
        merged = {"orrery": [orrery.__version__], "python": [platform.python_version()]}
    for each in told:
        for name, value in each.items():
            text = str(value)[:16].replace("T", " ") if name == "date" else str(value)
            if value is not None and text not in merged.get(name, []):
                merged.setdefault(name, []).append(text)
    return [page.facts({name: _several(sorted(values)) for name, values in merged.items()})]


def _several(values: Sequence[str]) -> str:
    """Few values, or the first and the last of many."""
    return "; ".join(values) if len(values) <= 3 else f"{values[0]} to {values[-1]}"


__all__ = ["MOST_B", "chapter_of", "read_documents", "report", "write"]
