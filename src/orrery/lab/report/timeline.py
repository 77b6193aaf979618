"""The timeline of a run: the whole of it at a glance, and its telling moments message by message.

However long the run, the first picture has a fixed number of bars, and each of the others shows a
limited number of messages; what repeats itself and what is idle is folded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orrery.base.errors import OrreryError
from orrery.base.units import show
from orrery.lab import html_page as page
from orrery.lab import plots, story
from orrery.lab.draw import space_time
from orrery.lab.plots import MOST_LANES, Lane
from orrery.lab.report.chapter import Picture
from orrery.lab.run import Run
from orrery.lab.scene import Scene, compose
from orrery.lab.spans import Span, life, node_name

MOST_WINDOWS = 3
# Of a window around a moment: messages before it and after it.
BEFORE, AFTER = 30, 110
MOST_DATA = 250
LETTERS = "ABCDEF"


def timeline(
    made: Run, name: str, most: int = MOST_WINDOWS, beside: Sequence[str] = ()
) -> list[str | Picture]:
    """The pictures of a run that has its messages on record; nothing where it has none.

    `beside` are charts that stand beside the first picture.
    """
    if not made.spans and not made.extra.get("work_spans"):
        return []
    lost = list(made.extra.get("lost_spans", ()))
    scenes = _scenes(made, lost, most)
    if not scenes:
        return []
    body: list[str | Picture] = [
        Picture(page.grid([_overview(made, name, scenes), *beside], two=True))
    ]
    for i, (scene, picture) in enumerate(scenes):
        lo, hi = (show(t / 1e9, "s") for t in (scene.axis.lo, scene.axis.hi))
        title = f"{LETTERS[i]} · {lo} to {hi}: who told whom, when"
        figure = page.figure(picture, f"{name}, {title}", _data(scene), wide=True)
        # The first is the most telling one; the others are there for those who ask.
        body.append(Picture(figure if i == 0 else page.fold(title, figure)))
    return body


def _scenes(made: Run, lost: list[Span], most: int) -> list[tuple[Scene, str]]:
    found: list[tuple[Scene, str]] = []
    try:
        first = compose(made, None, None, None, lost)
        found.append((first, space_time(made, lost=lost)))
    except OrreryError:
        return []  # a run with nothing to draw still has its tables
    times = sorted(row[0] for row in made.spans)
    for moment_ns in _moments(made):
        if len(found) == most:
            break
        if any(scene.axis.lo <= moment_ns <= scene.axis.hi for scene, _ in found):
            continue
        lo, hi = _around(times, moment_ns)
        try:
            window = {"from_s": lo / 1e9, "until_s": hi / 1e9}
            scene = compose(made, window["from_s"], window["until_s"], None, lost)
            if scene.arrows:
                found.append((scene, space_time(made, lost=lost, **window)))
        except OrreryError:
            continue
    return found


def _moments(made: Run) -> list[int]:
    """When something went wrong or was done to the run: violations first, then faults."""
    broken = [round(v.time_s * 1e9) for v in made.violations if v.time_s is not None]
    ends = [t for span in life(made) for t in (span.start_ns, span.end_ns)]
    return list(dict.fromkeys([*sorted(broken), *ends]))


def _around(times: Sequence[int], moment_ns: int) -> tuple[int, int]:
    """The stretch of time with so many messages before a moment and after it."""
    from bisect import bisect_left

    at = bisect_left(times, moment_ns)
    lo = times[max(0, at - BEFORE)] if times else 0
    hi = times[min(len(times) - 1, at + AFTER)] if times else moment_ns
    return min(lo, moment_ns), max(hi, moment_ns + 1)


def lanes(made: Run) -> list[Lane]:
    """What was done to a run, in words, with its times; of many faults, each kind is one lane."""
    each = [(_words(span, made), span) for span in life(made)]
    if len(each) <= MOST_LANES:
        return [Lane(words, span.start_ns / 1e9, span.end_ns / 1e9) for words, span in each]
    kinds: dict[str, list[Span]] = {}
    for _, span in each:
        kinds.setdefault(span.name, []).append(span)
    return [
        Lane(f"{name}, {len(spans)} times" if len(spans) > 1 else _words(spans[0], made),
             min(span.start_ns for span in spans) / 1e9, max(span.end_ns for span in spans) / 1e9)
        for name, spans in kinds.items()
    ]  # fmt: skip


def _words(span: Span, made: Run) -> str:
    if span.kind == "fault" and span.node < 0:
        return story.fault_words(span)
    return f"{node_name(span.node, made)}: {span.name}"


def faults_table(made: Run) -> str:
    """What was done to a run as a table; nothing where nothing was."""
    each = life(made)
    if not each:
        return ""
    heads = ("fault", "from", "until")
    lines = [[lane.words, show(lane.start_s, "s"), show(lane.end_s, "s")] for lane in lanes(made)]
    found = page.table(heads, lines, "What was done to the run")
    if len(each) > len(lines):
        every = [[_words(span, made), show(span.start_ns / 1e9, "s"), show(span.end_ns / 1e9, "s")]
                 for span in each]  # fmt: skip
        table = page.table(heads, every, "Each fault with its times")
        found += page.fold(f"Each of them ({len(every)})", table, data=True)
    return found


def _overview(made: Run, name: str, scenes: Sequence[tuple[Scene, str]]) -> str:
    times_s = [row[0] / 1e9 for row in made.spans]
    end_s = max(made.seconds, *times_s, 1e-9) if times_s else max(made.seconds, 1e-9)
    marks = [v.time_s for v in made.violations if v.time_s is not None]
    windows = [
        (LETTERS[i], scene.axis.lo / 1e9, scene.axis.hi / 1e9)
        for i, (scene, _) in enumerate(scenes)
    ]
    drawn = plots.activity_chart(times_s, end_s, title=f"The whole run of {name}",
                                 lanes=lanes(made), marks=marks, windows=windows)  # fmt: skip
    counts = plots.activity(times_s, end_s)
    wide = end_s / plots.BINS
    lines = [[f"{i * wide:.4g}", str(n)] for i, n in enumerate(counts)]
    data = page.table(("from (s)", "messages"), lines, f"Messages in each {show(wide, 's')}")
    signs = ", faults as bars below" if lanes(made) else ""
    signs += ", red crosses where a rule broke" if marks else ""
    caption = f"Messages over time{signs}; the letters are the stretches shown below"
    return page.figure(drawn, caption, data)


def _data(scene: Scene) -> str:
    """What a picture shows, as a table in order of time."""
    run = scene.run
    rows: list[tuple[int, list[str]]] = []
    for span in scene.arrows:
        what = f"reply to {span.name}" if span.kind == "reply" else span.name
        rows.append((span.start_ns, [what, node_name(span.node, run), node_name(span.to, run),
                                     f"{span.end_ns / 1e6:.6g}"]))  # fmt: skip
    for span in scene.lost:
        to = node_name(span.to, run)
        rows.append((span.start_ns, [span.name, node_name(span.node, run), to, "never"]))
    for span in scene.emits:
        said = story.brief(span)
        rows.append((span.start_ns, [f"told: {said}", node_name(span.node, run), "", ""]))
    for span in scene.life:
        who = node_name(span.node, run) if span.node >= 0 else "the network"
        rows.append((span.start_ns, [span.name, who, "", f"{span.end_ns / 1e6:.6g}"]))
    rows.sort(key=lambda row: row[0])
    lines: list[list[Any]] = [[f"{at / 1e6:.6g}", *cells] for at, cells in rows[:MOST_DATA]]
    heads = ("at (ms)", "what", "from or at", "to", "until (ms)")
    return page.table(heads, lines, "What the picture shows, in order of time")
