"""Builds the documentation: `python -m docs.build [FOLDER]` writes an offline site (else to site/).

Written pages come from the Markdown files; the pages of the systems, the cheat sheet and the ledger
are generated from the stems, the code and the ledger, so they cannot drift from them. The result is
plain HTML with one style sheet and one script, which searches and filters and is not needed for
reading; nothing is loaded from elsewhere.
"""

from __future__ import annotations

import html
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from docs.cheatsheet import cheat_sheet
from docs.frame import Way, framed
from docs.highlight import colour_page
from docs.ledger import ledger_page
from docs.pieces import Page, heading, inline
from docs.search import index_script
from docs.structure import PLACES, ROOT, SECTIONS
from docs.systems import system_pages, systems_page

FILES = ("site.css", "site.js")
__all__ = ["PLACES", "ROOT", "Page", "all_pages", "main", "write_site"]


def main(arguments: Sequence[str] = ()) -> int:
    """Build the site; returns an exit code."""
    target = Path(arguments[0]) if arguments else ROOT / "site"
    try:
        pages = all_pages()
    except ImportError as error:
        print(f"docs: {error.name} is missing; pip install 'orrery[docs]'", file=sys.stderr)
        return 1
    try:
        write_site(pages, target)
    except OSError as failure:
        why = f"{failure.strerror or failure}; check the folder"
        print(f"docs: {target}: cannot be written: {why}", file=sys.stderr)
        return 1
    print(f"{len(pages)} pages: {target / 'index.html'}")
    return 0


def write_site(pages: Sequence[Page], target: Path) -> None:
    """Write the site beside its old version, then put it in that one's place."""
    fresh = target.with_name(target.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        for page, before, after in _in_order(pages):
            path = fresh / page.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(framed(page, before, after), encoding="utf-8")
        for name in FILES:
            shutil.copyfile(ROOT / "docs" / name, fresh / name)
        (fresh / "search-index.js").write_text(index_script(pages), encoding="utf-8")
        shutil.copytree(ROOT / "docs" / "pictures", fresh / "pictures")
        shutil.rmtree(target, ignore_errors=True)
        fresh.rename(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _in_order(pages: Sequence[Page]) -> list[tuple[Page, Way | None, Way | None]]:
    """Each page with its neighbours; those of a system are the systems before and after it."""
    systems = [page for page in pages if page.path.startswith("systems/")]
    found: list[tuple[Page, Way | None, Way | None]] = [
        (page, None, None) for page in pages if not page.path.startswith("systems/")
    ]
    for i, page in enumerate(systems):
        before = Way(systems[i - 1].path, systems[i - 1].title) if i else None
        after = Way(systems[i + 1].path, systems[i + 1].title) if i + 1 < len(systems) else None
        found.append((page, before, after))
    return found


def all_pages() -> list[Page]:
    """Every page of the site."""
    from orrery.lab.discover import scan
    from orrery.lab.questions import questions

    found = scan()
    if found.errors:
        raise found.errors[0]
    asked = questions()
    written = [
        written_page(file, place) for pages in SECTIONS.values() for file, place, _ in pages if file
    ]
    systems = system_pages(found.entries, frozenset(one.id for one in asked))
    generated = [
        examples_page(), cheat_sheet(found.entries, asked), systems_page(found.entries),
        ledger_page(found.entries),
    ]  # fmt: skip
    return [*written, *generated, *systems]


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
    body = re.sub(r'<h1 id="[^"]*">', "<h1>", body)
    body = body.replace("<table>", '<div class="wide" tabindex="0"><table>')
    body = body.replace("<th>", '<th scope="col">').replace("<th style", '<th scope="col" style')
    body = colour_page(body.replace("</table>", "</table></div>"))
    body = re.sub(r' style="text-align: (left|right|center);"', r' class="\1"', body)
    body = re.sub(
        r'(href|src)="([^"]+)"', lambda m: f'{m.group(1)}="{_link(file, m.group(2))}"', body
    )
    first = re.search(r"^# (.+)$", text, re.MULTILINE)
    return Page(place, first.group(1) if first else place, body)


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
    parts = ["<h1>Examples</h1><p>Short programs, each run by the tests. "
             "<code>python examples/01_gossip_under_loss.py</code> runs one.</p>"]  # fmt: skip
    for path in sorted((ROOT / "examples").glob("[0-9]*.py")):
        source = path.read_text(encoding="utf-8")
        said, _, code = source.removeprefix('"""').partition('"""')
        number, _, name = path.stem.partition("_")
        words = f"{number} · {name.replace('_', ' ').capitalize()}"
        parts.append(heading(html.escape(words), id=path.stem))
        parts.append(f"<p>{inline(said)}</p>")
        block = f'<pre><code class="language-python">{html.escape(code.strip())}</code></pre>'
        parts.append(colour_page(block))
    return Page("examples.html", "Examples", "".join(parts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
