"""The documentation in a real browser, opened from a disk: search, filters, a phone, no network."""

from __future__ import annotations

import shutil

import pytest
from docs.build import Page, all_pages, write_site
from docs.pieces import heading, table
from docs.systems import filters

pytest.importorskip("markdown", reason="pip install 'orrery[docs]'")
playwright = pytest.importorskip("playwright.sync_api", reason="pip install 'orrery[browser]'")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as p:
        made = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Three pages: enough to search and to filter."""
    rows = [("a", "met"), ("b", "unmet"), ("c", "met")]
    marks = [{"finding": word} for _, word in rows]
    body = "<h1>Ledger</h1>" + filters({"finding": ("met", "unmet")})
    body += table(("system", "finding"), rows, marks=marks)
    pages = [
        Page("index.html", "Overview", "<h1>Overview</h1><p>Begin here.</p>"),
        Page("ledger.html", "Ledger", body),
        Page("systems/kiln.html", "Kiln", f"<h1>Kiln</h1>{heading('Paper')}<p>It bakes.</p>"),
    ]  # fmt: skip
    target = tmp_path_factory.mktemp("docs") / "site"
    write_site(pages, target)
    return target


def opened(browser, path, width=390, dark=False):
    context = browser.new_context(
        viewport={"width": width, "height": 844}, color_scheme="dark" if dark else "light",
        offline=True,
    )  # fmt: skip
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(path.as_uri())
    return page, said


def test_search_and_filters_work_from_a_disk(browser, small):
    page, said = opened(browser, small / "index.html")
    page.keyboard.press("/")
    page.keyboard.type("kiln bak")
    page.wait_for_selector("#found a")
    page.keyboard.press("Enter")
    page.wait_for_url("**/systems/kiln.html")
    page.fill("#q", "nothing of the kind")  # from a folder below, too
    page.wait_for_selector("#found .none")
    page.click("a.menu")
    assert page.locator("nav.margin").is_visible()
    page.goto((small / "ledger.html").as_uri())
    page.select_option("select[name=finding]", "met")
    assert page.locator("tbody tr:visible").count() == 2
    page.fill("input[name=text]", "c")
    assert page.locator("output").inner_text() == "1 of 3"
    assert said == []
    page.context.close()


@pytest.mark.slow
def test_typical_pages_fit_every_screen(browser, tmp_path):
    write_site(all_pages(), tmp_path / "site")
    names = ("index", "first-protocol", "systems", "systems/taper", "cheatsheet", "ledger")
    for name in names:
        for width, dark in ((390, False), (390, True), (1440, False), (1440, True)):
            page, said = opened(browser, tmp_path / "site" / f"{name}.html", width, dark)
            assert said == [], name
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
            assert page.get_by_role("heading", level=1).count() == 1
            page.context.close()
