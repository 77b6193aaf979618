"""The built site: every link leads somewhere, nothing is loaded from elsewhere, nothing is lost."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("markdown", reason="pip install 'orrery[docs]'")

from docs.build import PLACES, ROOT, Page, all_pages, write_site
from docs.highlight import colour_page, colour_python
from docs.pieces import inline

HREF = re.compile(r'(?:href|src)="?([^" >]+)')


def broken_links(site: Path) -> list[str]:
    """Each link inside the site that leads nowhere, as `page -> target`."""
    found = []
    for path in sorted(site.rglob("*.html")):
        page = path.read_text(encoding="utf-8")
        for target in HREF.findall(page):
            if "://" in target:
                continue
            file, _, mark = target.partition("#")
            other = (path.parent / file).resolve() if file else path
            there = other.is_file() and (not mark or f'id="{mark}"' in other.read_text("utf-8"))
            if not there:
                found.append(f"{path.name} -> {target}")
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs") / "site"
    write_site(all_pages(), folder)
    return folder


def test_every_link_leads_somewhere(site):
    # LICENSE and the like are files of the checkout, not pages; the README names them by path.
    assert [
        link for link in broken_links(site) if not (ROOT / link.split(" -> ")[1]).is_file()
    ] == []


def test_nothing_comes_from_elsewhere(site):
    for path in site.rglob("*.html"):
        page = path.read_text(encoding="utf-8")
        assert "<script" not in page and "@import" not in page, path.name
        assert not re.search(r'(src|rel="stylesheet" href)="?https?:', page), path.name


def test_every_page_and_every_system_is_there(site):
    from orrery.lab.discover import entries

    for file, place in PLACES.items():
        assert (ROOT / file).is_file() == (site / place).is_file(), file
    for entry in entries():
        page = (site / "systems" / f"{entry.id}.html").read_text(encoding="utf-8")
        assert inline(entry.stem.job) in page, entry.id


def test_a_broken_link_is_noticed(tmp_path):
    body = '<a href="index.html">a</a><a href="nowhere.html">b</a><a href="index.html#no">c</a>'
    write_site([Page("index.html", "Here", body)], tmp_path / "site")
    found = broken_links(tmp_path / "site")
    assert "index.html -> nowhere.html" in found
    assert "index.html -> index.html#no" in found
    assert "index.html -> index.html" not in found


def test_code_keeps_every_character():
    source = (
        "@rpc\nasync def f(self, a: int) -> str:  # <why>\n    return f'{a}' + \"&\" + self.id\n"
    )
    plain = re.sub(r"</?i[^>]*>", "", colour_python(source))
    assert plain == source.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace(
        '"', "&quot;"
    ).replace("'", "&#x27;")
    assert colour_python("x = '''open") == "x = &#x27;&#x27;&#x27;open"  # does not tokenize
    block = '<pre><code class="language-text">a &lt; b</code></pre>'
    assert colour_page(block) == '<pre class="text"><code>a &lt; b</code></pre>'
