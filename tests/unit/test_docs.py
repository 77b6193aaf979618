"""The built site: links lead somewhere, nothing comes from elsewhere, every page can be reached."""

from __future__ import annotations

import html.parser
import json
import re
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("markdown", reason="pip install 'orrery[docs]'")

from docs.build import PLACES, ROOT, Page, all_pages, main, write_site
from docs.docstring import take_apart
from docs.frame import POLICY
from docs.highlight import colour_page, colour_python, colour_session, colour_toml
from docs.pieces import badge, inline
from docs.search import index_script

HREF = re.compile(r'(?:href|src)="?([^" >]+)')
VOID = {"meta", "link", "input", "br", "hr", "img", "circle", "path"}
MOST_PAGE_B = 600_000
MOST_SITE_B = 12_000_000


class Tags(html.parser.HTMLParser):
    """Checks that tags are closed in order, and gathers what a valid page must have."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.faults: list[str] = []
        self.ids: Counter[str] = Counter()
        self.levels: list[int] = []
        self.counts: Counter[str] = Counter()
        self.bare: list[str] = []
        self.feed(text)
        self.faults += [f"<{tag}> is never closed" for tag in self.open]
        self.faults += [f"the id {id!r} comes twice" for id, n in self.ids.items() if n > 1]

    def handle_starttag(self, tag, attrs):
        told = dict(attrs)
        self.counts[tag] += 1
        if "id" in told:
            self.ids[told["id"]] += 1
        if re.fullmatch("h[1-6]", tag):
            self.levels.append(int(tag[1]))
        if tag == "img" and not told.get("alt"):
            self.faults.append("a picture without words")
        if tag == "th" and told.get("scope") not in ("col", "row"):
            self.faults.append("a head of a table without its scope")
        if tag in ("p", "ul", "ol", "table", "pre", "h2") and "p" in self.open:
            self.faults.append(f"<{tag}> inside <p>")
        if any(name.startswith("on") or name == "style" for name in told):
            self.faults.append(f"<{tag}> has a script or a style of its own")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.counts[tag] += 1

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> closes something else")
            self.open.clear()


def faults_of(page: str) -> list[str]:
    """What is wrong with the HTML of a page."""
    tags = Tags(page)
    found = list(tags.faults)
    if tags.counts["h1"] != 1 or tags.counts["main"] != 1 or tags.counts["title"] < 1:
        found.append("a page has one h1, one main and a title")
    steps = zip(tags.levels, tags.levels[1:], strict=False)
    found += [f"h{b} follows h{a}" for a, b in steps if b - a > 1]
    return found


def broken_links(site: Path) -> list[str]:
    """Each link inside the site that leads nowhere, as `page -> target`."""
    found = []
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(site.rglob("*.html"))}
    for path, page in texts.items():
        for target in set(HREF.findall(page)):
            if "://" in target:
                continue
            file, _, mark = target.partition("#")
            other = (path.parent / file).resolve() if file else path
            known = texts.get(other)
            there = other.is_file() and (
                not mark or (known is not None and f'id="{mark}"' in known)
            )
            if not there:
                found.append(f"{path.name} -> {target}")
    return found


def unreachable(site: Path) -> set[str]:
    """Pages that no way of links leads to from the first page."""
    pages = {path.resolve() for path in site.rglob("*.html")}
    seen, todo = set(), [(site / "index.html").resolve()]
    while todo:
        path = todo.pop()
        if path in seen or path not in pages:
            continue
        seen.add(path)
        targets = HREF.findall(path.read_text(encoding="utf-8"))
        inside = [target.partition("#")[0] for target in targets if "://" not in target]
        todo += [(path.parent / target).resolve() for target in set(inside)]
    return {path.relative_to(site).as_posix() for path in pages - seen}


@pytest.fixture(scope="module")
def pages():
    return all_pages()


@pytest.fixture(scope="module")
def site(pages, tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs").resolve() / "site"
    write_site(pages, folder)
    return folder


def test_every_link_leads_somewhere(site):
    # LICENSE and the like are files of the checkout, not pages; the README names them by path.
    assert [
        link for link in broken_links(site) if not (ROOT / link.split(" -> ")[1]).is_file()
    ] == []


def test_every_page_can_be_reached(site):
    assert unreachable(site) == set()


def test_every_page_is_valid(site):
    wrong = {
        path.name: faults
        for path in sorted(site.rglob("*.html"))
        if (faults := faults_of(path.read_text(encoding="utf-8")))
    }
    assert wrong == {}


def test_nothing_comes_from_elsewhere(site):
    for path in site.rglob("*.html"):
        page = path.read_text(encoding="utf-8")
        assert f'content="{POLICY}"' in page and "unsafe" not in POLICY
        assert re.findall(r"<script[^>]*>", page) == [
            f'<script src="{"../" * (path.parent.name == "systems")}site.js" defer>'
        ]
        assert "@import" not in page, path.name
        assert not re.search(r'(src|rel="stylesheet" href)="?https?:', page), path.name
    for name in ("site.css", "site.js", "search-index.js"):
        text = (site / name).read_text(encoding="utf-8")
        assert not re.search(r"(url\(|@import|fetch\(|src\s*=\s*[\"']https?:)", text), name


def test_no_page_is_heavy(site):
    sizes = {path.name: path.stat().st_size for path in site.rglob("*") if path.is_file()}
    assert max(sizes.values()) < MOST_PAGE_B, max(sizes, key=sizes.get)
    assert sum(sizes.values()) < MOST_SITE_B


def test_every_page_and_every_system_is_there(site):
    from orrery.lab.discover import entries

    for file, place in PLACES.items():
        assert (ROOT / file).is_file() == (site / place).is_file(), file
    for entry in entries():
        page = (site / "systems" / f"{entry.id}.html").read_text(encoding="utf-8")
        assert inline(entry.stem.job) in page, entry.id
        for line in entry.works_when:
            assert inline(line["text"]) in page, entry.id
        for row, claim in zip(entry.claims, entry.stem.claims, strict=True):
            word = row["verdict"] if claim.testable else "cannot be tested"
            assert inline(row["says"]) in page and badge(word) in page, entry.id


def test_a_system_page_tells_how_where_and_how_far(site):
    page = (site / "systems" / "balanceroute.html").read_text(encoding="utf-8")
    for words in ("How it works", "Differs from the paper", "Works when", "Knobs",
                  "published", "mechanism off", "../cheatsheet.html#dp_decode",
                  "../pictures/when-balanceroute.svg", 'rel="prev"', 'rel="next"',
                  'href="../systems.html#serve"'):  # fmt: skip
        assert words in page, words


def test_every_written_page_has_a_way_on(site):
    places = list(PLACES.values())
    for place in places:
        page = (site / place).read_text(encoding="utf-8")
        assert 'rel="next"' in page or 'rel="prev"' in page, place
        assert f'href="{place}" aria-current=page' in page, place


def test_the_index_of_the_search_has_every_page(site, pages):
    text = (site / "search-index.js").read_text(encoding="utf-8")
    entries = json.loads(text.removeprefix("window.orreryIndex=").rstrip(";\n"))
    assert {place.partition("#")[0] for place, *_ in entries} == {page.path for page in pages}
    assert all(len(entry) == 4 for entry in entries)
    # Every place with a mark is one that the page has.
    for place in [place for place, *_ in entries if "#" in place][::7]:
        file, _, mark = place.partition("#")
        assert f'id="{mark}"' in (site / file).read_text(encoding="utf-8")


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_every_colour_of_a_text_can_be_read():
    sheet = (ROOT / "docs" / "site.css").read_text(encoding="utf-8")
    palettes = re.findall(r":root \{(.*?)\}", sheet, re.DOTALL)
    assert len(palettes) == 2  # light and dark
    for palette in palettes:
        colours = dict(re.findall(r"--(\w+): (#\w{6})", palette))
        for ground in ("paper", "tint"):
            for name in colours.keys() - {"paper", "tint", "line"}:
                high, low = sorted(
                    (luminance(colours[name]), luminance(colours[ground])), reverse=True
                )
                assert (high + 0.05) / (low + 0.05) >= 4.5, (name, ground)


# -- the checks can fail


def test_a_broken_link_is_noticed(tmp_path):
    body = '<a href="index.html">a</a><a href="nowhere.html">b</a><a href="index.html#no">c</a>'
    write_site([Page("index.html", "Here", body), Page("lost.html", "Lost", "")], tmp_path / "s")
    found = broken_links((tmp_path / "s").resolve())
    assert "index.html -> nowhere.html" in found
    assert "index.html -> index.html#no" in found
    assert "index.html -> index.html" not in found
    assert unreachable((tmp_path / "s").resolve()) == {"lost.html"}


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("<h1>a</h1><p>b", "closes something else"),
        ("<h1>a</h1><b><i>c</b></i>", "closes something else"),
        ("<h1>a</h1><p><ul></ul></p>", "inside <p>"),
        ('<h1>a</h1><p id="x"></p><p id="x"></p>', "comes twice"),
        ("<h1>a</h1><h3>b</h3>", "h3 follows h1"),
        ('<h1>a</h1><img src="x">', "without words"),
        ("<h1>a</h1><table><tr><th>x</th></tr></table>", "scope"),
        ('<h1>a</h1><a onclick="x()">b</a>', "script"),
        ("<p>b</p>", "one h1"),
    ],
)
def test_bad_html_is_noticed(body, fault):
    assert any(fault in each for each in faults_of(f"<title>t</title><main>{body}</main>"))
    assert Tags("<p>open").faults == ["<p> is never closed"]


def test_hostile_titles_stay_inside_the_index():
    text = index_script([Page("x.html", "</script><script>alert(1)", "<p>&lt;b&gt;</p>")])
    assert "</script>" not in text and "\\u003c/script>" in text


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
    for paint, text in ((colour_toml, '[a]\nb = "c" # <d>\n'), (colour_session, ">>> 1 < 2\nTrue")):
        bare = re.sub(r"</?i[^>]*>", "", paint(text))
        assert bare.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"') == text


def test_a_docstring_is_taken_apart():
    told = take_apart(
        "What it does.\n\nThe paper. More.\n\n"
        "fast   skip checks, which\n       is quick\nslow   no\n\n"
        "**Differs from the paper.** Only a bit.\n\n>>> 1\n1\n"
    )
    assert told.summary == "What it does." and told.text == ["The paper. More."]
    assert told.knobs == {"fast": "skip checks, which is quick", "slow": "no"}
    assert told.differs == "Only a bit." and told.example.startswith(">>> 1")
    assert take_apart("").summary == ""
    assert take_apart("Uses a  b words in prose.\nAnd more.").knobs == {}


def test_a_site_that_cannot_be_written_is_an_error(tmp_path, capsys, monkeypatch):
    import docs.build

    monkeypatch.setattr(docs.build, "all_pages", lambda: [Page("index.html", "a", "<h1>a</h1>")])
    (tmp_path / "file").write_text("")
    assert main([str(tmp_path / "file" / "site")]) == 1
    assert "cannot be written" in capsys.readouterr().err
    assert main([str(tmp_path / "site")]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "site"]
