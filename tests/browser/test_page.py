"""The page in a real browser: it draws, it starts work, and it keeps its own rules.

Every test fails on a console error, on a violation of the content security policy, and on any
request to another origin. Skipped by name where Playwright or Chromium is not installed.
"""

from __future__ import annotations

import http.server
import re
import threading
from pathlib import Path

import pytest
from tests.unit.page_toys import Page

sync_api = pytest.importorskip("playwright.sync_api", reason="pip install 'orrery[test]'")
CHROMIUM = Path("/usr/bin/chromium")
pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason="there is no /usr/bin/chromium")

SPY = """window.violations = [];
document.addEventListener('securitypolicyviolation', (e) => window.violations.push(
  `${e.effectiveDirective} ${e.blockedURI}`));"""


class Watched:
    """A tab, and everything in it that must not happen."""

    def __init__(self, browser, page, **options):
        self.server = page
        self.origin = page.origin
        self.context = browser.new_context(**options)
        self.context.add_init_script(SPY)
        self.tab = self.context.new_page()
        self.wrong = []
        self.tab.on("console", lambda m: m.type == "error" and self.wrong.append(m.text))
        self.tab.on("pageerror", lambda e: self.wrong.append(str(e)))
        self.tab.on("request", self._asked)

    def _asked(self, request):
        if not request.url.startswith((self.origin + "/", "data:")):
            self.wrong.append(f"asked {request.url}")

    def open(self):
        self.tab.goto(self.server.address.url)
        self.tab.wait_for_selector("h1")
        return self.tab

    def go(self, hash, wait="h1"):
        before = self.tab.evaluate("location.hash")
        if before != hash:
            self.tab.evaluate("document.querySelector('main').replaceChildren()")
            self.tab.evaluate("hash => { location.hash = hash; }", hash)
        self.tab.wait_for_selector(f"main {wait}", timeout=30_000)
        return self.tab

    def check(self):
        """Fail on what went wrong in this tab."""
        assert self.tab.evaluate("window.violations") == []
        assert self.wrong == []


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as play:
        made = play.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def page(own_home, tmp_path):
    with Page(tmp_path / "orrery-home") as made:
        yield made


@pytest.fixture
def tab(browser, page):
    watched = Watched(browser, page, viewport={"width": 1280, "height": 800})
    watched.open()
    yield watched
    watched.check()
    watched.context.close()


def test_the_page_opens_searches_and_shows_a_system(tab):
    main = tab.tab
    assert "token" not in main.url, "the token leaves the address at once"
    assert main.locator("main table tbody tr").count() == 135
    main.keyboard.press("/")
    main.keyboard.type("taper")
    sync_api.expect(main.locator("main table tbody tr")).to_have_count(1)
    main.locator("main a.name", has_text="TAPER").first.click()
    main.wait_for_selector("text=How it works")
    assert main.locator("h1").inner_text() == "TAPER"
    assert main.locator(".claim svg").count() >= 1
    tab.go("#/ledger")
    assert main.locator("main tbody tr").count() > 10
    assert main.locator("main tbody .badge").first.inner_text().strip() != ""


def save_runs(page):
    from tests.unit.test_page_views import make_run

    root = page.app.store.root
    return [make_run(root, seed) for seed in (1, 2)]


@pytest.mark.slow
def test_a_run_is_started_watched_and_opened(tab):
    main = tab.tab
    tab.go("#/systems/push-gossip")
    main.get_by_label("Seed").fill("4")
    main.get_by_label("World").fill("lan:5")
    main.locator("aside summary").first.click()
    main.get_by_label("fanout").fill("2")
    main.get_by_role("button", name="Run", exact=True).click()
    main.wait_for_selector("text=What was found", timeout=60_000)
    main.get_by_role("link", name=re.compile("Open run")).click()
    main.wait_for_selector("text=What was run")
    assert "sound" in main.locator(".meta").inner_text()
    assert "seed 4" in main.locator(".meta").inner_text()
    with main.expect_download() as download:
        main.get_by_text("Download the report").click()
    assert download.value.suggested_filename.endswith(".html")


@pytest.mark.slow
def test_a_comparison_shows_progress_and_can_be_cancelled(tab):
    main = tab.tab
    tab.go("#/start/compare/broadcast", wait="form")
    main.get_by_label("Seeds of each").fill("900")
    main.get_by_label("World").fill("lan:100")
    main.get_by_role("button", name="Compare", exact=True).last.click()
    main.wait_for_selector("main [role=progressbar]")
    main.wait_for_selector("main .line:has-text('of 1800')", timeout=60_000)
    assert main.locator("#live").inner_text().strip() == "1 job"
    main.get_by_role("button", name=re.compile("Cancel")).click()
    main.wait_for_selector("main .badge:has-text('cancelled')")
    main.wait_for_selector("#live", state="hidden")
    assert tab.server.app.jobs._children == {}


@pytest.mark.slow
def test_a_wrong_value_is_said_and_starts_nothing(tab):
    main = tab.tab
    tab.go("#/systems/push-gossip")
    main.locator("aside summary").first.click()
    main.get_by_label("fanout").fill("many")
    # A refused request is written on the console by the browser itself; it is expected here.
    main.get_by_role("button", name="Run", exact=True).click()
    main.wait_for_selector(".note.bad")
    assert "fanout" in main.locator(".note.bad").inner_text()
    assert tab.server.app.jobs.jobs == {}
    assert all("400" in text for text in tab.wrong)
    tab.wrong.clear()


@pytest.mark.slow
def test_runs_stand_side_by_side(browser, page):
    save_runs(page)
    tab = Watched(browser, page)
    main = tab.open()
    tab.go("#/runs", wait="tbody tr")
    for box in main.locator("main tbody input[type=checkbox]").all():
        box.check()
    main.get_by_role("button", name=re.compile("Side by side: 2")).click()
    main.wait_for_selector("text=What was different")
    text = main.locator("main").inner_text()
    assert "seed" in text and "The same for all" in text
    tab.check()
    tab.context.close()


VIEWS = ["#/catalogue", "#/ledger", "#/systems/taper", "#/systems/push-gossip",
    "#/start/choose/broadcast",
         "#/jobs", "#/runs"]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 768, 1440])
def test_no_view_is_wider_than_its_window(browser, page, width):
    ids = save_runs(page)
    tab = Watched(browser, page, viewport={"width": width, "height": 844}, color_scheme="dark")
    main = tab.open()
    for hash in [*VIEWS, f"#/run/{ids[0]}", f"#/side/{','.join(ids)}"]:
        tab.go(hash)
        main.wait_for_timeout(150)
        over = main.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert over <= 0, f"{hash} is {over} px too wide at {width}"
    tab.check()
    tab.context.close()


# Everything that can be used and has no name for who cannot see it.
NAMELESS = """() => [...document.querySelectorAll('main input, main select, main button, main a')]
  .filter((e) => !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length
    || e.querySelector('img[alt]'))).map((e) => e.outerHTML)"""


@pytest.mark.slow
def test_the_page_can_be_used_by_keyboard_and_by_ear(tab):
    main = tab.tab
    main.keyboard.press("Tab")
    assert main.evaluate("document.activeElement.textContent") == "Skip to the content"
    main.keyboard.press("Enter")
    assert main.evaluate("document.activeElement.id") == "main"
    for role in ("banner", "navigation", "main", "search"):
        assert main.get_by_role(role).count() >= 1, role
    for hash in VIEWS:
        tab.go(hash)
        nameless = main.evaluate(NAMELESS)
        assert nameless == [], hash
        assert main.locator("main h1").count() == 1, hash
        ids = main.evaluate("[...document.querySelectorAll('[id]')].map((e) => e.id)")
        assert len(ids) == len(set(ids)), hash


@pytest.mark.slow
def test_without_the_token_there_is_only_a_lock(browser, page):
    tab = Watched(browser, page)
    main = tab.tab
    main.goto(page.origin + "/")
    main.wait_for_selector("text=The page is locked")
    assert main.locator("table").count() == 0
    main.get_by_label("Address or token").fill(page.address.url)
    main.get_by_role("button", name="Open").click()
    main.wait_for_selector("main table")
    assert all("401" in text for text in tab.wrong)
    tab.context.close()


@pytest.mark.slow
def test_text_from_a_run_is_never_read_as_html(browser, page):
    from orrery import World, run
    from orrery.base.violation import Violation
    from orrery.lab.discover import load
    from orrery.lab.questions import problem_class
    from orrery.lab.spec import spec_of

    bad = '<img src=x onerror="document.title=1"><script>document.title=2</script>'
    part, problem, world = load("push-gossip")(), problem_class("broadcast")(values=2), World.lan(3)
    made = run(part, problem=problem, world=world, seed=1)
    made.metrics[bad] = 1.0
    made.violations.append(Violation(kind=bad, message=bad))
    id = page.app.store.save(made, spec_of(part, problem=problem, world=world, seed=1, name=bad))
    tab = Watched(browser, page)
    main = tab.open()
    for hash in ("#/runs", f"#/run/{id}", "#/systems/push-gossip"):
        tab.go(hash)
        main.wait_for_timeout(200)
        assert main.locator("main img[src=x], main script").count() == 0, hash
        assert main.evaluate("document.title") not in ("1", "2")
    tab.go(f"#/run/{id}")
    assert bad in main.locator("main").inner_text()
    tab.check()
    tab.context.close()


FOREIGN = """<!doctype html><title>evil</title><form id=f method=post enctype="text/plain"
 action="{origin}/api/jobs"><input name='{{"kind":"check","system":"raft","x":"' value='"}}'></form>
<iframe name=t></iframe><img src="{origin}/api/catalogue"><script>
const body = '{{"kind":"check","system":"raft"}}';
const tries = [];
const attempt = (options) => fetch('{origin}/api/jobs', {{credentials: 'include', ...options}})
  .then((r) => tries.push(r.type + r.status), (e) => tries.push('refused'));
window.done = Promise.all([
  attempt({{method: 'POST', mode: 'no-cors', body}}),
  attempt({{method: 'POST', headers: {{'Content-Type': 'application/json'}}, body}}),
  attempt({{}}),
]).then(() => {{
  const form = document.getElementById('f');
  form.target = 't';
  form.submit();
  return tries;
}});
</script>"""


@pytest.mark.slow
def test_a_foreign_page_of_the_same_browser_gets_nothing(browser, page):
    """Another port of the same machine is the same site: the cookie alone would not stop it."""

    class Evil(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = FOREIGN.format(origin=page.origin).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Evil)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    tab = Watched(browser, page)
    tab.open()
    answers = []
    other = tab.context.new_page()
    other.on("response", lambda r: r.url.startswith(page.origin) and answers.append(r.status))
    other.goto(f"http://127.0.0.1:{server.server_port}/")
    tries = other.evaluate("window.done")
    other.wait_for_timeout(500)
    assert "refused" in tries and not any(t.startswith("basic2") for t in tries)
    assert all(status >= 400 for status in answers)
    assert page.app.jobs.jobs == {}
    server.shutdown()
    server.server_close()
    tab.check()
    tab.context.close()
