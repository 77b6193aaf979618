"""The playground in a real browser: crash a leader by clicking, rewind, fork, save a test."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import threading

import pytest

from orrery import run
from orrery.lab.discover import ask_problem, load
from orrery.lab.spec import spec_of
from orrery.lab.store import Store
from orrery.page.server import Server
from orrery.world import Crash

playwright = pytest.importorskip("playwright.sync_api", reason="pip install 'orrery[browser]'")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")


class Served:
    """A page on a thread of its own."""

    def __init__(self, store):
        self.loop = asyncio.new_event_loop()
        self.server = Server(0, store=store)
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.ready = threading.Event()
        self.thread.start()
        assert self.ready.wait(20)

    def _serve(self):
        asyncio.set_event_loop(self.loop)

        async def begin():
            self.address = await self.server.start()
            self.ready.set()

        self.loop.run_until_complete(begin())
        self.loop.run_forever()

    def close(self):
        asyncio.run_coroutine_threadsafe(self.server.close(), self.loop).result(20)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(20)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("home"))
    made = Served(store)
    made.store = store
    yield made
    made.close()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as p:
        made = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def tab(browser, served):
    """A tab with an open session; what goes wrong in it fails the test."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000}, accept_downloads=True)
    page = context.new_page()
    wrong = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    ours = (f"http://{served.address.host}:{served.address.port}/", "blob:", "data:")
    page.on("request", lambda one: None if one.url.startswith(ours) else wrong.append(one.url))
    page.goto(served.address.url)
    page.wait_for_selector("#nav a")
    yield page
    context.close()
    assert not wrong, wrong


def opened(tab, served, query):
    address = f"http://{served.address.host}:{served.address.port}/#/playground?{query}"
    tab.goto(address)
    tab.wait_for_selector(".transport")
    tab.wait_for_function("() => document.querySelector('.clock b')?.textContent.includes('s')")


def leader(tab):
    """The node that says of itself that it leads, or None."""
    tab.wait_for_timeout(150)
    found = tab.locator(".node.rare").filter(has_text="leader")
    return int(found.get_attribute("data-node")) if found.count() == 1 else None


def to_time(tab, share):
    """Click into the strip of time at a share of the run."""
    box = tab.locator(".strip").bounding_box()
    tab.mouse.click(box["x"] + 8 + share * (box["width"] - 16), box["y"] + box["height"] / 2)
    tab.wait_for_timeout(250)


def test_crash_the_leader_by_clicking_and_see_another(tab, served, tmp_path):
    opened(tab, served, "system=raft&seed=7")
    tab.wait_for_selector(".node.rare")
    old = leader(tab)
    assert old is not None
    tab.click(f"[data-node='{old}']")
    tab.click(".menu >> text=Crash")
    tab.wait_for_selector(f".node.down[data-node='{old}']")
    assert tab.locator(".edits li").count() == 1
    to_time(tab, 0.5)
    tab.wait_for_selector(".node.rare >> text=leader")
    new = leader(tab)
    assert new is not None and new != old

    tab.click("[aria-label='Rewind to the beginning']")
    tab.wait_for_selector(f".node:not(.down)[data-node='{old}']")
    assert tab.locator(".edits li").count() == 1  # nothing is dropped by going back

    to_time(tab, 0.1)
    tab.click(".fork")
    tab.wait_for_selector("[data-branch='b1'][aria-current]")
    assert tab.locator(".edits li").count() == 0
    tab.click("[data-branch='main']")
    tab.wait_for_selector("[data-branch='main'][aria-current]")

    tab.click(".save")
    tab.wait_for_selector("dialog .source")
    with tab.expect_download() as waiting:
        tab.click("dialog a[download]")
    path = tmp_path / waiting.value.suggested_filename
    waiting.value.save_as(path)
    assert re.fullmatch(rf"test_raft_crash_{old}\.py", path.name)
    assert passes(path, tmp_path)


def passes(path, folder):
    call = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, path]
    return subprocess.run(call, cwd=folder, capture_output=True, check=False).returncode == 0


@pytest.mark.slow
def test_drag_from_node_to_node_cuts_their_link_and_compare_tells(tab, served):
    opened(tab, served, "system=raft&seed=7")
    tab.wait_for_selector(".node.rare")
    one, other = leader(tab), (leader(tab) + 1) % 5
    tab.click(".fork")
    tab.wait_for_selector("[data-branch='b1'][aria-current]")
    tab.wait_for_timeout(400)
    a, b = (tab.locator(f"[data-node='{n}'] .body").bounding_box() for n in (one, other))
    tab.mouse.move(a["x"] + a["width"] / 2, a["y"] + a["height"] / 2)
    tab.mouse.down()
    tab.mouse.move(b["x"] + b["width"] / 2, b["y"] + b["height"] / 2, steps=6)
    tab.mouse.up()
    tab.wait_for_selector(".link.cut")
    assert "is cut" in tab.locator(".edits li").inner_text()
    tab.click(".compare")
    tab.wait_for_selector("dialog .differences")
    assert "Alike until" in tab.locator("dialog .lead").inner_text()
    assert tab.locator("dialog canvas").count() == 2


@pytest.mark.slow
def test_the_keyboard_alone_is_enough(tab, served):
    opened(tab, served, "system=raft&seed=7")
    tab.wait_for_selector(".node")
    tab.locator("[data-node='2']").focus()
    tab.keyboard.press("Enter")
    tab.wait_for_selector(".menu:not([hidden])")
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("Enter")
    tab.wait_for_selector(".node.paused[data-node='2']")
    before = tab.locator(".clock b").inner_text()
    tab.keyboard.press(".")
    tab.wait_for_function("t => document.querySelector('.clock b').textContent !== t", arg=before)
    tab.locator(".strip").focus()
    tab.keyboard.press("Home")
    tab.wait_for_function(
        "() => document.querySelector('.clock b').textContent.startsWith('0.00000')"
    )


@pytest.mark.slow
def test_playing_moves_time_and_stops_at_the_end(tab, served):
    opened(tab, served, "system=two-phase-commit&seed=1")
    tab.select_option(".transport select", "0.006")
    tab.click("[aria-label='Rewind to the beginning']")
    tab.click(".play")
    tab.wait_for_timeout(700)
    tab.click(".play")
    moved = float(tab.locator(".clock b").inner_text().split()[0])
    assert moved > 0


@pytest.mark.slow
@pytest.mark.parametrize("query", [
    "system=pbft&seed=3", "system=push-gossip&seed=5&world=lan:64", "system=ring&seed=1",
    "system=two-phase-commit&seed=1",
])  # fmt: skip
def test_other_systems_can_be_broken_too(tab, served, query):
    opened(tab, served, query)
    tab.wait_for_selector(".ring .node, .field-of-nodes")
    if tab.locator(".field-of-nodes").count():
        tab.click(".field-of-nodes", position={"x": 60, "y": 30})
    else:
        tab.click("[data-node='1']")
    tab.click(".menu >> text=Crash")
    tab.wait_for_selector(".edits li")


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 820, 1400])
def test_nothing_sticks_out_at_any_width(browser, served, width):
    context = browser.new_context(viewport={"width": width, "height": 900})
    page = context.new_page()
    page.goto(served.address.url)
    page.wait_for_selector("#nav a")
    for view in ("playground", "playground?system=raft&seed=7"):
        page.goto(f"http://{served.address.host}:{served.address.port}/#/{view}")
        page.wait_for_selector(".preset" if view == "playground" else ".node")
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    context.close()


@pytest.mark.slow
def test_the_timeline_zooms_finds_and_exports(tab, served):
    problem = ask_problem("replicated_store", {"clients": 2, "ops": 8})
    world = problem.world().with_faults(Crash(node=1, at_s=0.3, until_s=0.6))
    part = load("raft")()
    spec = spec_of(part, problem=problem, world=world, seed=5, name="raft")
    id = served.store.save(run(part, problem=problem, world=world, seed=5), spec)
    tab.goto(f"http://{served.address.host}:{served.address.port}/#/timeline/{id}")
    tab.wait_for_selector("canvas.spans")
    tab.wait_for_function("() => / spans/.test(document.querySelector('.saying')?.textContent)")
    whole = tab.locator(".saying").first.inner_text()
    box = tab.locator("canvas.spans").bounding_box()
    tab.mouse.move(box["x"] + 500, box["y"] + 60)
    for _ in range(6):
        tab.mouse.wheel(0, -240)
        tab.wait_for_timeout(60)
    tab.wait_for_function("t => document.querySelector('.saying').textContent !== t", arg=whole)
    tab.fill("input[type=search]", "append")
    tab.wait_for_function("() => /found/.test(document.querySelector('.hits').textContent)")
    tab.click("text=Space-time")
    tab.wait_for_selector("canvas.diagram")
    with tab.expect_download() as waiting:
        tab.click("text=Perfetto file")
    assert waiting.value.suggested_filename.endswith(".json")
