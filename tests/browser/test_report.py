"""A report in a real browser: it loads nothing, fits a phone, and can be read in the dark."""

from __future__ import annotations

import shutil

import pytest

from orrery import World, run
from orrery.lab.compare import compare
from orrery.lab.report import write
from orrery.lab.store import Store
from orrery.systems.protocols import Broadcast, Flood, PushGossip
from orrery.world import Crash

playwright = pytest.importorskip("playwright.sync_api", reason="pip install 'orrery[browser]'")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
# Texts whose contrast is too small, as the browser computed their colours.
FAINT = """() => {
  const rgb = c => c.match(/[\\d.]+/g).map(Number);
  const lum = c => { const [r, g, b] = c.map(v => { v /= 255;
    return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4 });
    return .2126 * r + .7152 * g + .0722 * b };
  const ground = e => { for (; e; e = e.parentElement) {
    const c = rgb(getComputedStyle(e).backgroundColor);
    if (c.length < 4 || c[3] > 0) return c.slice(0, 3) } return [255, 255, 255] };
  const bad = [];
  for (const e of document.querySelectorAll('body *:not(svg):not(svg *)')) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) continue;
    const box = e.getBoundingClientRect();
    if (!box.width || e.closest('.sr, .skip')) continue;
    const a = lum(rgb(getComputedStyle(e).color).slice(0, 3)), b = lum(ground(e));
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) bad.push([e.tagName, e.textContent.slice(0, 30), ratio]);
  } return bad }"""


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as p:
        made = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    world = World.lan(6).with_faults(Crash(node=2, at_s=0.05, until_s=0.2))
    problem = Broadcast(values=3, settle_s=0.3)
    made = run(PushGossip(), problem=problem, world=world, seed=3, trace=True)
    parts = {"gossip": PushGossip(), "flood": Flood(), "few": PushGossip(fanout=1)}
    found = compare(problem, parts, world=world, seeds=2, store=Store(folder / "home"))
    return [write(made, folder / "run.html"), write(found, folder / "compare.html")]


def opened(browser, path, width, dark=False):
    """The page in a browser that has no network, with what it asked for and complained of."""
    context = browser.new_context(
        viewport={"width": width, "height": 844}, color_scheme="dark" if dark else "light",
        offline=True,
    )  # fmt: skip
    page = context.new_page()
    asked, said = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(path.as_uri())
    return page, asked, said


def test_it_fits_a_phone_and_loads_nothing(browser, pages):
    page, asked, said = opened(browser, pages[0], 390)
    assert asked == [pages[0].as_uri()] and said == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate(FAINT) == []
    page.context.close()


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1440])
def test_every_width_light_and_dark(browser, pages, width, dark):
    for path in pages:
        page, asked, said = opened(browser, path, width, dark)
        assert asked == [path.as_uri()] and said == []
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(FAINT) == []
        # The smallest letters of a chart are still letters.
        sizes = page.evaluate("""() => [...document.querySelectorAll('figure.chart svg')].map(s =>
            12 * s.getBoundingClientRect().width / s.viewBox.baseVal.width)""")
        assert min(sizes) >= 8.5
        page.context.close()


@pytest.mark.slow
def test_it_reads_as_a_page_to_a_screen_reader(browser, pages):
    page, *_ = opened(browser, pages[1], 1440)
    for role, name in (("heading", "Comparison"), ("navigation", "On this page"), ("main", None)):
        found = page.get_by_role(role, name=name) if name else page.get_by_role(role)
        assert found.count() >= 1, role
    assert page.get_by_role("img").count() == page.locator("svg:not([aria-hidden])").count() > 0
    assert page.get_by_role("columnheader", name="system").count() >= 1
    assert page.get_by_role("rowheader", name="flood").count() >= 1
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "To the report"
    page.context.close()


@pytest.mark.slow
def test_paper_is_white_and_opens_what_is_folded(browser, pages):
    page, *_ = opened(browser, pages[1], 794, dark=True)
    page.emulate_media(media="print")
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(255, 255, 255)"
    assert page.evaluate(FAINT) == []
    assert page.locator("details:not(.data) dl").first.is_visible()
    assert not page.locator("details.data table").first.is_visible()
    page.context.close()


@pytest.mark.slow
def test_the_browser_runs_no_script_of_a_hostile_name(browser, tmp_path):
    from orrery.lab.claims import Claim, Verdict, Verdicts

    evil = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
    verdict = Verdict(claim=Claim(metric=evil, says=evil), verdict="holds", measured=1.5, note=evil)
    path = write(Verdicts(evil, [verdict]), tmp_path / "evil.html", title=evil)
    page, asked, _ = opened(browser, path, 1440)
    assert page.title() != "taken" and len(asked) == 1
    assert page.locator("img, script").count() == 0
    page.context.close()
