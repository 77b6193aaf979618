"""Builds the documentation: `python -m docs.build [FOLDER]` writes an offline site (else to site/).

Written pages come from the Markdown files; the pages of the systems, the cheat sheet and the ledger
are generated from the stems, the code and the ledger, so they cannot drift from them. The result is
plain HTML with one style sheet: no scripts, nothing loaded from elsewhere.
"""

from __future__ import annotations

import html
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from docs.cheatsheet import cheat_sheet
from docs.highlight import colour_page
from docs.pieces import Page, badge, bullets, inline, knob_table, number, table

ROOT = Path(__file__).resolve().parents[1]
STYLE = ROOT / "docs" / "site.css"
LOGO = (
    '<svg viewBox="0 0 40 40" fill="none" stroke="currentColor" aria-hidden="true">'
    '<circle cx="20" cy="20" r="8" stroke-width="1" opacity=".45"/>'
    '<circle cx="20" cy="20" r="13" stroke-width="1" opacity=".45"/>'
    '<circle cx="20" cy="20" r="18" stroke-width="1" opacity=".45"/>'
    '<g stroke="none"><circle cx="20" cy="20" r="4" fill="var(--brass)"/>'
    '<circle cx="26" cy="14.7" r="1.9" fill="currentColor"/>'
    '<circle cx="9.3" cy="27.4" r="2.4" fill="currentColor"/>'
    '<circle cx="33" cy="32.5" r="2" fill="currentColor"/></g></svg>'
)


# The written pages, in reading order: the file, its place on the site, its name in the margin.
BEGIN = [
    ("docs/index.md", "index.html", "Overview"),
    ("docs/first-protocol.md", "first-protocol.html", "Your first protocol"),
    ("docs/first-policy.md", "first-policy.html", "Your first policy"),
    ("docs/reading-a-verdict.md", "reading-a-verdict.html", "Reading a verdict"),
]
LOOK_UP = [
    ("docs/worlds-and-faults.md", "worlds-and-faults.html", "Worlds and faults"),
    ("docs/serving.md", "serving.html", "Serving language models"),
    ("docs/when.md", "when.html", "Where a claim holds"),
    ("docs/sweep.md", "sweep.html", "Sweeping a space"),
    ("docs/feed.md", "feed.html", "Reading paper feeds"),
    ("docs/notebooks.md", "notebooks.html", "Notebooks and packages"),
    ("docs/workloads.md", "workloads.html", "Workloads"),
    ("docs/seeing-a-run.md", "seeing-a-run.html", "Seeing a run"),
    ("docs/engines.md", "engines.html", "Engines"),
    ("", "examples.html", "Examples"),
    ("", "cheatsheet.html", "Cheat sheet"),
    ("", "systems.html", "Systems"),
    ("", "ledger.html", "Ledger"),
]
PROJECT = [
    ("docs/design.md", "design.html", "Why it is so"),
    ("README.md", "readme.html", "Read me"),
    ("CONTRIBUTING.md", "contributing.html", "Contributing"),
    ("SECURITY.md", "security.html", "Security"),
    ("CHANGELOG.md", "changelog.html", "Changes"),
    ("NOTICE", "notice.html", "Notice"),
]
SECTIONS = {"Begin": BEGIN, "Look up": LOOK_UP, "Project": PROJECT}
PLACES = {file: place for pages in SECTIONS.values() for file, place, _ in pages if file}


def main(arguments: Sequence[str] = ()) -> int:
    """Build the site; returns an exit code."""
    target = Path(arguments[0]) if arguments else ROOT / "site"
    try:
        pages = all_pages()
    except ImportError as error:
        print(f"docs: {error.name} is missing; pip install 'orrery[docs]'", file=sys.stderr)
        return 1
    write_site(pages, target)
    print(f"{len(pages)} pages: {target / 'index.html'}")
    return 0


def write_site(pages: Iterable[Page], target: Path) -> None:
    """Write the site beside its old version, then put it in that one's place."""
    fresh = target.with_name(target.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    for page in pages:
        path = fresh / page.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(framed(page), encoding="utf-8")
    shutil.copyfile(STYLE, fresh / "site.css")
    shutil.copytree(ROOT / "docs" / "pictures", fresh / "pictures")
    shutil.rmtree(target, ignore_errors=True)
    fresh.rename(target)


def all_pages() -> list[Page]:
    """Every page of the site."""
    from orrery.lab.discover import scan

    found = scan()
    if found.errors:
        raise found.errors[0]
    written = [
        written_page(file, place)
        for pages in SECTIONS.values()
        for file, place, _ in pages
        if file and (ROOT / file).is_file()
    ]
    systems = [system_page(entry) for entry in found.entries]
    generated = [examples_page(), cheat_sheet(), systems_page(found.entries), ledger_page()]
    return [*written, *generated, *systems]


# -- the frame


def framed(page: Page) -> str:
    """A whole HTML document: the margin and the body."""
    up = "../" * page.path.count("/")
    # The page of a system belongs to the list of systems.
    here = "systems.html" if up else page.path
    parts = []
    for section, pages in SECTIONS.items():
        links = "".join(
            f'<li><a href="{up}{place}"{" aria-current=page" if place == here else ""}>'
            f"{html.escape(name)}</a></li>"
            for file, place, name in pages
            if not file or (ROOT / file).is_file()
        )
        parts.append(f"<h2>{section}</h2><ul>{links}</ul>")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(page.title)} · Orrery</title>"
        f'<link rel="stylesheet" href="{up}site.css"></head><body>'
        f'<nav><a class="brand" href="{up}index.html">{LOGO}Orrery</a>{"".join(parts)}</nav>'
        f"<main>{page.body}<footer>Orrery {_version()}</footer></main></body></html>\n"
    )


def _version() -> str:
    import orrery

    return orrery.__version__


# -- written pages


def written_page(file: str, place: str) -> Page:
    """A page from a Markdown file; links between files become links between pages."""
    import markdown

    text = (ROOT / file).read_text(encoding="utf-8")
    if not file.endswith(".md"):
        text = f"# {Path(file).name.capitalize()}\n\n{text}"
    body = markdown.markdown(
        text, extensions=["tables", "fenced_code", "toc", "sane_lists"], output_format="html"
    )
    body = body.replace("<table>", '<div class="wide"><table>')
    body = colour_page(body.replace("</table>", "</table></div>"))
    body = re.sub(
        r'(href|src)="([^"]+)"', lambda m: f'{m.group(1)}="{_link(file, m.group(2))}"', body
    )
    heading = re.search(r"^# (.+)$", text, re.MULTILINE)
    return Page(place, heading.group(1) if heading else place, body)


def _link(file: str, target: str) -> str:
    path, _, mark = target.partition("#")
    if not path or "://" in path:
        return target
    named = (ROOT / file).parent.joinpath(path).resolve()
    inside = named.relative_to(ROOT).as_posix()
    # What is no page is a picture, which has the same place below the site as below docs/.
    place = PLACES.get(inside, inside.removeprefix("docs/"))
    return place + (f"#{mark}" if mark else "")


# -- examples


def examples_page() -> Page:
    """The example programs, each under what its docstring says."""
    parts = ["<h1>Examples</h1><p>Ten short programs, each run by the tests. "
             "<code>python examples/01_gossip_under_loss.py</code> runs one.</p>"]  # fmt: skip
    for path in sorted((ROOT / "examples").glob("[0-9]*.py")):
        source = path.read_text(encoding="utf-8")
        said, _, code = source.removeprefix('"""').partition('"""')
        number, _, name = path.stem.partition("_")
        parts.append(f'<h2 id="{path.stem}">{number} · {name.replace("_", " ").capitalize()}</h2>')
        parts.append(f"<p>{inline(said)}</p>")
        block = f'<pre><code class="language-python">{html.escape(code.strip())}</code></pre>'
        parts.append(colour_page(block))
    return Page("examples.html", "Examples", "".join(parts))


# -- systems


def system_page(entry: Any) -> Page:
    """One system: its paper, how it works, what was claimed, and what was found."""
    stem = entry.stem
    facts = [f"room {entry.room}", entry.shape, f"answers {entry.problem}" if entry.problem else ""]
    said = " · ".join(html.escape(fact) for fact in facts if fact)
    parts = [
        f"<h1>{html.escape(entry.name)}</h1>",
        f'<p class="meta">{badge(entry.status)} &nbsp; <code>{entry.id}</code> · {said}</p>',
        f'<p class="lead">{inline(stem.job)}</p>',
        "<h2>Paper</h2>",
        _paper(stem),
    ]
    if stem.mechanisms:
        parts += ["<h2>How it works</h2>", bullets(stem.mechanisms, "ol")]
    if stem.rivals:
        parts += ["<h2>Compared with</h2>", bullets(stem.rivals)]
    if entry.claims:
        parts += ["<h2>Claims</h2>", _claims(entry)]
    if entry.works_when:
        rows = [
            (line["n"], inline(line["text"]), badge(line["state"])) for line in entry.works_when
        ]
        parts += ["<h2>Works when</h2>", table(("", "acceptance line", "state"), rows)]
    if entry.built:
        parts += ["<h2>Run it</h2>", _run_it(entry)]
    if stem.notes:
        parts += ["<h2>Notes</h2>", f"<p>{inline(stem.notes)}</p>"]
    return Page(f"systems/{entry.id}.html", entry.name, "".join(parts))


def _paper(stem: Any) -> str:
    arxiv = f' <a href="https://arxiv.org/abs/{stem.arxiv}">{stem.arxiv}</a>' if stem.arxiv else ""
    more = " ".join(inline(value) for value in stem.paper.values())
    return f"<p><em>{inline(stem.title)}</em>, {html.escape(stem.date)}.{arxiv} {more}</p>"


def _claims(entry: Any) -> str:
    rows = []
    for row, claim in zip(entry.claims, entry.stem.claims, strict=True):
        found = number(row["measured"])
        if row["lo"] is not None and row["hi"] is not None:
            found += f" [{number(row['lo'])}, {number(row['hi'])}]"
        kind = f' <span class="quiet">{row["kind"]}</span>' if row["kind"] else ""
        verdict = badge(row["verdict"]) if claim.testable else badge("cannot be tested")
        note = f"<br><small>{inline(claim.untestable)}</small>" if claim.untestable else ""
        rows.append((inline(row["metric"]), inline(row["says"]), inline(row["against"] or ""),
                     found + kind, number(row["off"]), verdict + note))  # fmt: skip
    return table(("metric", "claimed", "against", "found here", "mechanism off", "verdict"), rows)


def _run_it(entry: Any) -> str:
    from orrery.lab.discover import load

    part = load(entry.id)
    command = f"orrery run {entry.id}"
    return f"<pre class=console><code>$ <b>{command}</b></code></pre>{knob_table(part)}"


def systems_page(entries: Sequence[Any]) -> Page:
    """Every system by room, counted from the data."""
    status = Counter(entry.status for entry in entries)
    verdicts = Counter(row["verdict"] for entry in entries for row in entry.claims)
    claims = sum(verdicts.values())
    counts = [
        (len(entries), "systems"), (status["working"] + status["checked"], "built"),
        (status["checked"], "checked"), (claims, "claims"), (claims - verdicts[None], "judged"),
    ]  # fmt: skip
    parts = ["<h1>Systems</h1>", '<div class="count">']
    parts += [f"<div><b>{count}</b><span>{word}</span></div>" for count, word in counts]
    parts.append("</div><p>A system is <em>planned</em> while only its paper is described, "
                 "<em>working</em> when there is code, and <em>checked</em> when every claim and "
                 "every acceptance line has been judged.</p>")  # fmt: skip
    for room in sorted({entry.room for entry in entries}):
        rows = [
            (f'<a href="systems/{e.id}.html">{html.escape(e.name)}</a>', badge(e.status),
             e.shape, inline(e.stem.job))
            for e in entries if e.room == room
        ]  # fmt: skip
        parts.append(f'<h2 id="{room}">{room}</h2>')
        parts.append(table(("system", "status", "shape", "what it is for"), rows))
    return Page("systems.html", "Systems", "".join(parts))


def ledger_page() -> Page:
    """The newest finding on each subject, as the ledger has it."""
    from orrery.lab.ledger import Ledger

    records = list(Ledger.default().newest().values())
    intro = (
        "<h1>Ledger</h1><p>What was measured, newest finding on each subject, written only by the "
        "runs that measured it. A claim or a world that was changed afterwards no longer has the "
        "verdict that stands here; the pages of the systems take that into account.</p>"
    )
    if not records:
        return Page("ledger.html", "Ledger", intro + "<p>Nothing has been recorded yet.</p>")
    rows = []
    for record in sorted(records, key=lambda r: (r["id"], r["kind"], str(r.get("metric", "")))):
        word = record.get("verdict") or record.get("state")
        about = record.get("metric") or record.get("engine") or f"line {record.get('n')}"
        found = number(record.get("measured"))
        if record.get("lo") is not None and record.get("hi") is not None:
            found += f" [{number(record['lo'])}, {number(record['hi'])}]"
        rows.append((f'<a href="systems/{record["id"]}.html">{record["id"]}</a>', record["kind"],
                     inline(about), badge(word), found, record.get("date", ""),
                     f"<small>{inline(record.get('machine', ''))}</small>"))  # fmt: skip
    heads = ("system", "kind", "about", "finding", "measured", "date", "machine")
    return Page("ledger.html", "Ledger", intro + table(heads, rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
