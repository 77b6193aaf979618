"""How a report looks and sounds: contrast, headings, pictures with words, and its size."""

from __future__ import annotations

import html.parser
import itertools
import re

import pytest

from orrery import World, run
from orrery.base.errors import UsageError
from orrery.lab import html_style, plots, svg
from orrery.lab import report as reports
from orrery.lab.html_page import TONES, table, verdict_word
from orrery.lab.plots import Gain, Lane, activity_chart, dots_chart, gain_chart
from orrery.lab.report import report
from orrery.systems.protocols import Broadcast, PushGossip
from orrery.world import Crash


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """The contrast of two colours as WCAG counts it."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_counted_as_wcag_does():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)  # just too little


def test_every_text_can_be_read_on_its_ground():
    for ground, texts in html_style.TEXTS.items():
        for text, i in itertools.product(texts, (0, 1)):
            one, other = html_style.COLOURS[text][i], html_style.COLOURS[ground][i]
            assert contrast(one, other) >= 4.5, (text, ground, one, other)
    used = set(re.findall(r"color:var\(--(\w+)\)", html_style.style()))
    checked = {text for texts in html_style.TEXTS.values() for text in texts}
    assert used <= checked | {"line"}, "a colour of texts that no ground is named for"


def test_every_text_of_a_picture_can_be_read():
    rules = {name: (light, dark) for name, _, light, dark in svg._RULES}
    colours = [rules[name] for name in ("ink", "soft", "badf", "good")]
    colours += list(zip(svg.LIGHT, svg.DARK, strict=True))
    for light, dark in colours:
        assert contrast(light, rules["paper"][0]) >= 4.5, light
        assert contrast(dark, rules["paper"][1]) >= 4.5, dark
    for name in ("axis", "bad"):  # lines that mean something need 3
        assert contrast(rules[name][0], rules["paper"][0]) >= 3
        assert contrast(rules[name][1], rules["paper"][1]) >= 3


class Outline(html.parser.HTMLParser):
    """Headings in order, landmarks, and what stands in each picture and table."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.levels: list[int] = []
        self.marks: list[str] = []
        self.pictures: list[set[str]] = []
        self.figures: list[list[str]] = []
        self.inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        told = dict(attrs)
        if re.fullmatch(r"h[1-6]", tag):
            self.levels.append(int(tag[1]))
        if tag in ("header", "nav", "main", "footer"):
            self.marks.append(tag)
        if tag == "svg":
            known = {"hidden"} if told.get("aria-hidden") else set()
            known |= {"img"} if told.get("role") == "img" else set()
            known |= {"label"} if told.get("aria-label") else set()
            self.pictures.append(known)
        if self.pictures and "svg" in self.inside and tag in ("title", "desc"):
            self.pictures[-1].add(tag)
        if tag == "figure":
            self.figures.append([])
        if "figure" in self.inside and tag in ("svg", "figcaption", "table", "details"):
            self.figures[-1].append(tag)
        if tag not in ("meta", "br"):
            self.inside.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass  # shapes of a picture

    def handle_endtag(self, tag):
        while self.inside and self.inside.pop() != tag:
            pass


def sound(text: str) -> Outline:
    """The outline of a page after what every page must keep."""
    page = Outline(text)
    assert page.levels[0] == 1 and page.levels.count(1) == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(page.levels)), page.levels
    assert {"header", "main", "footer"} <= set(page.marks)
    for known in page.pictures:
        assert known == {"hidden"} or {"img", "label", "title", "desc"} <= known
    for figure in page.figures:  # behind each picture its figures as a table
        assert {"svg", "figcaption", "table", "details"} <= set(figure)
    return page


@pytest.fixture(scope="module")
def crashed():
    world = World.lan(6, drop=0.05).with_faults(
        *(Crash(node=n, at_s=0.02 * n, until_s=0.3 + 0.02 * n) for n in range(3)),
        *(Crash(node=4, at_s=0.5 + i / 10, until_s=0.55 + i / 10) for i in range(12)),
    )
    return run(PushGossip(), problem=Broadcast(values=3, settle_s=1.5), world=world, seed=3,
               trace=True)  # fmt: skip


def test_a_page_has_landmarks_headings_in_order_and_words_for_pictures(crashed):
    page = sound(report(crashed))
    assert "nav" in page.marks and len(page.figures) >= 3


def test_the_timeline_shows_the_whole_and_folds_the_rest(crashed):
    text = report(crashed)
    assert "The whole run of PushGossip" in text and "Crash, 15 times" in text
    assert "Each of them (15)" in text and "A · " in text
    assert re.search(r"<summary>B · [^<]*who told whom", text)


def test_a_picture_without_words_would_be_noticed():
    with pytest.raises(AssertionError):
        sound("<header><h1>a</h1></header><main><svg><path/></svg></main><footer></footer>")
    with pytest.raises(AssertionError):
        sound("<header><h1>a</h1><h3>b</h3></header><main></main><footer></footer>")


def test_no_meaning_by_colour_alone():
    for word in TONES:
        shown = verdict_word(word)
        assert word in shown and 'aria-hidden="true"' in shown
    best = table(("a", "b"), [["x", "1"], ["y", "2"]], "c", best={1: 1})
    assert best.count("(best)") == 1


def test_dark_colours_are_for_screens_only(crashed):
    text = report(crashed)
    assert "@media screen and (prefers-color-scheme:dark)" in text
    assert "@media (prefers-color-scheme" not in text


def test_a_long_run_stays_small():
    """Many messages, many faults, many reports: the page does not grow with them."""
    world = World.lan(60).with_faults(Crash(node=1, at_s=0.2, until_s=0.4))
    made = run(PushGossip(period_s=0.02), problem=Broadcast(values=30, settle_s=4.0), world=world,
               seed=1, trace=True)  # fmt: skip
    assert made.events > 40_000
    assert len(report(made).encode()) < 500_000


def test_long_texts_and_many_rows_are_cut(monkeypatch):
    from orrery.lab.claims import Claim, Verdict, Verdicts

    many = Verdicts("x", [
        Verdict(claim=Claim(metric="m" * 50_000, says="s" * 50_000), verdict="holds", measured=1.5)
        for _ in range(60)
    ])  # fmt: skip
    text = report(many)
    assert len(text.encode()) < reports.MOST_B and "… (cut)" in text


# -- the plots


def test_plots_refuse_what_cannot_be_drawn():
    with pytest.raises(UsageError):
        gain_chart([Gain("a", None, None, None, None, None)], title="t")
    with pytest.raises(UsageError):
        activity_chart([], 0.0, title="t")
    with pytest.raises(UsageError):
        dots_chart({("dot", "a"): [(float("nan"), 1.0)]}, title="t", x_label="x", y_label="y")
    many = [(float(i), 1.0) for i in range(plots.MOST_DOTS + 1)]
    with pytest.raises(UsageError):
        dots_chart({("dot", "a"): many}, title="t", x_label="x", y_label="y")


def test_activity_counts_every_time_once():
    counts = plots.activity([0.0, 0.5, 0.999, 1.0], 1.0)
    assert sum(counts) == 4 and counts[0] == 1 and counts[-1] == 2
    drawn = activity_chart([0.1], 1.0, title="t", lanes=[Lane(f"f{i}", 0, 1) for i in range(20)])
    assert "and 12 more faults" in drawn


def test_a_gain_is_drawn_beside_what_was_published():
    drawn = gain_chart([Gain("speed", (1.5, 2.0), 1.2, 1.1, 1.3, 1.0)], title="Gains")
    assert "speed published 1.5 to 2, found 1.2, mechanism off 1" in drawn
    published, off, found = (float(x) for x in re.findall(r"translate\(([\d.]+) 114", drawn))
    assert off < found < published
