"""The space-time picture of a run: one line for each node, one arrow for each message.

Time goes to the right. A reader needs no code to follow it: every colour and sign is in the legend,
every arrow says in its tooltip what it is, and crashes, pauses and partitions are drawn where they
happened. A long run is shown around its most telling moment and says so; ask for another stretch
with `from_s`, `until_s` and `nodes`. Charts are in `orrery.lab.charts`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orrery.base.errors import UsageError
from orrery.base.units import show
from orrery.lab import signs, story, svg, timeline
from orrery.lab.charts import bar_chart, line_chart
from orrery.lab.scene import (
    FOLD_TO,
    HARD_ARROWS,
    MOST_ARROWS,
    MOST_ROWS,
    REST,
    WIDTH,
    Scene,
    arrows_of,
    compose,
    is_band,
    rest_label,
)
from orrery.lab.spans import Span, node_name, plain

if TYPE_CHECKING:
    from orrery.lab.run import Run

Box = tuple[float, float, float, float]
MOST_NAMES = 3  # so often the name of one kind of message stands on its arrows

__all__ = [
    "FOLD_TO", "HARD_ARROWS", "MOST_ARROWS", "MOST_ROWS", "bar_chart", "line_chart", "space_time",
    "write",
]  # fmt: skip


def space_time(
    run: Run,
    *,
    from_s: float | None = None,
    until_s: float | None = None,
    nodes: Sequence[int] | None = None,
    title: str | None = None,
    lost: Iterable[Span] = (),
) -> str:
    """The picture as an SVG document; needs `run(…, trace=True)`."""
    if not arrows_of(run):
        raise UsageError("the run has no messages on record; make it with run(…, trace=True)")
    scene = compose(run, from_s, until_s, nodes, list(lost))
    name = title or story.headline(run)
    ids = svg.key(name + run.digest + str(scene.axis.lo))
    legend, lines = signs.legend(scene, ids, WIDTH)
    scene.top += (lines - 1) * signs.LINE_PX
    body = [svg.text(20, 30, name, "h", "ink"), svg.text(20, 50, story.subtitle(scene), "soft")]
    body += legend
    body += _defs(scene, ids)
    body += _behind(scene)
    body += _rails(scene)
    body += _folded_words(scene)
    body.append(f'<g clip-path="url(#{ids}-c)">')
    body += [_compute(scene, span) for span in scene.computes]
    body += [_arrow(scene, span, ids) for span in scene.arrows]
    body += [_lost(scene, span) for span in scene.lost]
    taken: list[Box] = []
    body += _emits(scene, taken)
    body += _names(scene, taken)
    body.append("</g>")
    body += _marks(scene)
    body += _axis(scene)
    return svg.picture(WIDTH, scene.bottom + 70, name, story.in_words(scene), body)


def write(run: Run, path: str | Path, **options: Any) -> Path:
    """Draw a run into an .svg file, whole or not at all."""
    from orrery.lab.spans import _whole

    target = Path(path)
    if target.suffix.lower() != ".svg":
        raise UsageError(f"{target}: a picture is SVG; end the name in .svg")
    drawn = space_time(run, **options).encode()
    return _whole(target, lambda file: file.write(drawn))


# -- pieces of the picture


def _defs(scene: Scene, ids: str) -> list[str]:
    axis = scene.axis
    x0, x1 = axis.stretches[0].x0, axis.stretches[-1].x1
    used = sorted({min(i, svg.COLOURS - 1) for i in scene.colours.values()})
    heads = "".join(
        f'<marker id="{ids}-{i}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" '
        f'markerHeight="8" markerUnits="userSpaceOnUse" orient="auto">'
        f'<path class="o-f{i}" d="M0 1.2L10 5L0 8.8Z"/></marker>'
        for i in used
    )
    clip = (
        f'<clipPath id="{ids}-c"><rect x="{x0 - 6:.1f}" y="{scene.top - 4:.1f}" '
        f'width="{x1 - x0 + 12:.1f}" height="{scene.bottom - scene.top + 8:.1f}"/></clipPath>'
    )
    return [f"<defs>{heads}{clip}</defs>"]


def _behind(scene: Scene) -> list[str]:
    """Folds, and faults of the whole network, as bands behind everything."""
    body: list[str] = []
    axis, high = scene.axis, scene.bottom - scene.top
    for stretch in axis.stretches:
        if stretch.folded:
            a, b = stretch.x0 + 6, stretch.x1 - 6
            body.append(f'<rect class="o-tint" opacity="0.5" x="{a:.1f}" y="{scene.top:.1f}" '
                        f'width="{max(b - a, 2):.1f}" height="{high:.1f}" rx="3"/>')  # fmt: skip
    edge0, edge1 = axis.stretches[0].x0, axis.stretches[-1].x1
    labels_end = -1.0
    for span in scene.life:
        if not is_band(span):
            continue
        x0 = max(edge0, axis.x(span.start_ns))
        x1 = min(edge1, axis.x(span.end_ns))
        words = story.fault_words(span)
        about = f"{words}, {show(span.start_ns / 1e9, 's')} to {show(span.end_ns / 1e9, 's')}"
        # Only a partition cuts through the picture; what lasts for long would drown it.
        deep = high + 6 if span.name == "Partition" else 5
        body.append(f'<rect class="o-shade" opacity="0.45" x="{x0:.1f}" y="{scene.top - 6:.1f}" '
                    f'width="{max(x1 - x0, 2):.1f}" height="{deep:.1f}">'
                    f"<title>{svg.escape(about)}</title></rect>")  # fmt: skip
        words = svg.shorten(words, max(12, int((edge1 - edge0) / 14)))
        wide = svg.text_width(words)
        at = min(x0 + 3, edge1 - wide)
        if at > labels_end:
            body.append(svg.text(at, scene.top - 10, words, "soft"))
            labels_end = at + wide + 12
    return body


def _folded_words(scene: Scene) -> list[str]:
    """In a fold that hides repeated traffic: how often it is repeated."""
    body: list[str] = []
    for stretch in scene.axis.stretches:
        if not stretch.folded:
            continue
        again = sum(n for start, end, n in scene.repeats
                    if stretch.start_ns <= start and end <= stretch.end_ns)  # fmt: skip
        if again:
            x, y = (stretch.x0 + stretch.x1) / 2 + 4, (scene.top + scene.bottom) / 2
            words = "the same once more" if again == 1 else f"the same {again} more times"
            body.append(f'<text class="o-t o-ink o-m o-k o-halo" transform="translate({x:.1f} '
                        f'{y:.1f}) rotate(-90)">{svg.escape(words)}</text>')  # fmt: skip
    return body


def _rails(scene: Scene) -> list[str]:
    """The lines of the nodes with their names; what befalls a node is a band behind its line."""
    axis = scene.axis
    x0, x1 = axis.stretches[0].x0, axis.stretches[-1].x1
    body = [_band(scene, span, x0, x1) for span in scene.life if span.node in scene.rows]
    told = {span.node for span in scene.life if span.name == "Byzantine"}
    for node in scene.liars:  # several liars at once are one fault, and so no span of a node
        if node not in told:
            lies = Span("fault", "Byzantine", axis.lo, axis.hi, node)
            body.append(_band(scene, lies, x0, x1))
    down: dict[int, list[Span]] = {}
    for span in scene.life:
        if span.kind == "down":
            down.setdefault(span.node, []).append(span)
    for node in scene.rows:
        y = scene.y(node)
        lies = node in scene.liars
        name = story.row_name(node, scene.liars, scene.run)
        body.append(svg.text(x0 - 14, y + 4, name, *(("badf", "b") if lies else ("ink",)), "e"))
        at = x0
        rail = ("bad", 'stroke-width="1.8"') if lies else ("rail", 'stroke-width="1.6"')
        for span in down.get(node, ()):
            a, b = max(x0, axis.x(span.start_ns)), min(x1, axis.x(span.end_ns))
            body.append(svg.line(at, y, a, y, *rail))
            body.append(svg.line(a, y, b, y, "bad", 'stroke-dasharray="1.5 6" opacity="0.7"'))
            at = b
        body.append(svg.line(at, y, max(at, x1), y, *rail))
    if scene.rest:
        y = scene.y(REST)
        body.append(svg.text(x0 - 14, y + 4, rest_label(scene.rest), "soft", "e"))
        body.append(f'<rect class="o-tint" x="{x0:.1f}" y="{y - 5:.1f}" width="{x1 - x0:.1f}" '
                    'height="10" rx="5"/>')  # fmt: skip
    return body


TONES = {"down": "down", "paused": "tint"}


def _band(scene: Scene, span: Span, x0: float, x1: float) -> str:
    """A stretch of a node's life in which it is down, stands still, lies or is ill."""
    a, b = max(scene.axis.x(span.start_ns), x0), min(scene.axis.x(span.end_ns), x1)
    tone = "lie" if span.name == "Byzantine" else TONES.get(span.kind, "shade")
    told = f"{node_name(span.node, scene.run)}: {span.name} {story.times(span)}"
    if span.name == "Byzantine":
        told += f", {', '.join(scene.liars.get(span.node, ()))}"
    y, high = scene.y(span.node), min(26.0, scene.row_px * 0.6)
    box = f'x="{a:.1f}" y="{y - high / 2:.1f}" width="{max(b - a, 2):.1f}" height="{high:.1f}"'
    words = ""
    if span.kind == "down" and b - a > 60:
        words = svg.text((a + b) / 2, y - 5, "down", "soft", "m")
    title = f"<title>{svg.escape(told)}</title>"
    return f'<g>{title}<rect class="o-{tone}" {box} rx="4"/>{words}</g>'


def _compute(scene: Scene, span: Span) -> str:
    """A computation: a bar on the node's line."""
    x0, x1, y = scene.axis.x(span.start_ns), scene.axis.x(span.end_ns), scene.y(span.node)
    told = f"{node_name(span.node, scene.run)}: {span.name}, {story.times(span)}"
    return (
        f'<rect class="o-f5" opacity="0.6" x="{x0:.1f}" y="{y - 5:.1f}" '
        f'width="{max(x1 - x0, 1.5):.1f}" height="10" rx="2">'
        f"<title>{svg.escape(told)}</title></rect>"
    )


def _arrow(scene: Scene, span: Span, ids: str) -> str:
    i = min(scene.colours[span.name], svg.COLOURS - 1)
    faint = span.node not in scene.rows or span.to not in scene.rows
    dash = ' stroke-dasharray="5 3"' if span.kind == "reply" else ""
    wide = 3.2 if span.kind == "transfer" else 1.4
    what = "reply to " if span.kind == "reply" else ""
    run = scene.run
    told = (
        f"{what}{span.name}: {node_name(span.node, run)} to {node_name(span.to, run)}, sent "
        f"{span.start_ns / 1e6:.6g} ms, arrived {span.end_ns / 1e6:.6g} ms, {span.size_B} B"
    )
    x1, y1, x2, y2 = _ways(scene, span)
    at = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    shadow = ""
    if span.seq in scene.bent:
        shadow = signs.lie(x1, y1, x2, y2)
        told += "; the liar has altered it"
    return shadow + (
        f'<line class="o-s{i}" {at} stroke-width="{wide}" opacity="{0.3 if faint else 0.9}"{dash} '
        f'marker-end="url(#{ids}-{i})"><title>{svg.escape(told)}</title></line>'
    )


def _ways(scene: Scene, span: Span) -> Box:
    """Where an arrow begins and ends."""
    axis = scene.axis
    return (
        axis.x(span.start_ns), scene.y(span.node), axis.x(span.end_ns), scene.y(span.to)
    )  # fmt: skip


def _names(scene: Scene, taken: list[Box]) -> list[str]:
    """The name of each kind of message on its first arrow in each of the first stretches."""
    body: list[str] = []
    if len(scene.rows) > 10:
        return body  # where lines stand close, names would cover them
    named: dict[str, list[int]] = {}  # in which stretches each kind has its name
    for span in scene.arrows:
        x1, y1, x2, y2 = _ways(scene, span)
        stretch = next(i for i, s in enumerate(scene.axis.stretches) if x1 <= s.x1 + 0.5)
        known = named.setdefault(span.name, [])
        if stretch in known or len(known) == MOST_NAMES or span.kind == "reply":
            continue
        words = svg.shorten(span.name, 18)
        wide = svg.text_width(words, 11)
        for share in (0.5, 0.36, 0.64, 0.24, 0.76):
            x, y = x1 + (x2 - x1) * share - wide / 2, y1 + (y2 - y1) * share + 4
            if _is_free((x, y - 10, x + wide, y + 3), taken):
                known.append(stretch)
                i = min(scene.colours[span.name], svg.COLOURS - 1)
                body.append(f'<text class="o-t o-f{i} o-k o-halo o-b" style="font-size:11px" '
                            f'x="{x:.1f}" y="{y:.1f}">{svg.escape(words)}</text>')  # fmt: skip
                break
    return body


def _is_free(box: Box, taken: list[Box]) -> bool:
    """Whether a text fits here beside all others; if so, the place is taken from now on."""
    a0, b0, a1, b1 = box
    if any(a0 < x1 and x0 < a1 and b0 < y1 and y0 < b1 for x0, y0, x1, y1 in taken):
        return False
    taken.append(box)
    return True


def _lost(scene: Scene, span: Span) -> str:
    """A message that never arrived: it sets out with the usual slope and ends in a cross."""
    axis = scene.axis
    latency = timeline.usual_latency_ns([(s.start_ns, s.end_ns) for s in scene.arrows[:500]])
    x0, y0 = axis.x(span.start_ns), scene.y(span.node)
    x1, y1 = axis.x(span.start_ns + latency), scene.y(span.to)
    x, y = x0 + (x1 - x0) * 0.45, y0 + (y1 - y0) * 0.45
    i = min(scene.colours.get(span.name, svg.COLOURS - 1), svg.COLOURS - 1)
    run = scene.run
    told = (f"{span.name}: {node_name(span.node, run)} to {node_name(span.to, run)}, sent "
            f"{span.start_ns / 1e6:.6g} ms, never arrived")  # fmt: skip
    return (
        f"<g><title>{svg.escape(told)}</title>"
        + svg.line(x0, y0, x, y, f"s{i}", 'stroke-width="1.3" opacity="0.75"')
        + f'<g transform="translate({x:.1f} {y:.1f})">{signs.cross(3)}</g></g>'
    )


def _emits(scene: Scene, taken: list[Box]) -> list[str]:
    """What nodes reported: a star for a decision, a diamond for anything else."""
    body: list[str] = []
    few = len(scene.emits) <= 80
    for span in scene.emits:
        x, y = scene.axis.x(span.start_ns), scene.y(span.node)
        decided = story.is_decision(span)
        values = plain(span.values) or {}
        words = ", ".join(f"{k} {v}" for k, v in values.items())
        at = f"{node_name(span.node, scene.run)} at {span.start_ns / 1e6:.6g} ms"
        body.append(f'<g transform="translate({x:.1f} {y:.1f})"><title>{svg.escape(at)}: '
                    f"{svg.escape(svg.shorten(words, 200))}</title>"
                    f"{signs.star() if decided else signs.diamond()}</g>")  # fmt: skip
        label = svg.shorten(story.brief(span), 22)
        wide = svg.text_width(label, 11)
        box = (x + 3, y - 20, x + 3 + wide, y - 7)
        if few and x < WIDTH - 28 - wide and _is_free(box, taken):
            tone = "good o-b" if decided else "soft"
            body.append(f'<text class="o-t o-{tone} o-k o-halo" style="font-size:11px" '
                        f'x="{x + 3:.1f}" y="{y - 9:.1f}">{svg.escape(label)}</text>')  # fmt: skip
    return body


def _marks(scene: Scene) -> list[str]:
    """Crashes and returns, over the arrows."""
    body: list[str] = []
    axis = scene.axis
    for span in scene.life:
        if span.node not in scene.rows or span.kind != "down":
            continue
        y, a, b = scene.y(span.node), axis.x(span.start_ns), axis.x(span.end_ns)
        told = f"{node_name(span.node, scene.run)}: {span.name} {story.times(span)}"
        name = f"<title>{svg.escape(told)}</title>"
        if axis.lo <= span.start_ns <= axis.hi:
            body.append(f'<g transform="translate({a:.1f} {y:.1f})">{name}{signs.cross(6)}</g>')
        if span.end_ns <= axis.hi and span.end_ns < round(scene.run.seconds * 1e9):
            body.append(f'<g transform="translate({b:.1f} {y:.1f})">{name}{signs.back()}</g>')
    return body


def _axis(scene: Scene) -> list[str]:
    axis, y = scene.axis, scene.bottom + 6
    per_s, unit = svg.time_unit((axis.hi - axis.lo) / 1e9)
    body: list[str] = []
    last = -1e9
    for stretch in axis.stretches:
        if stretch.folded:
            wide = stretch.x1 - stretch.x0
            words = show((stretch.end_ns - stretch.start_ns) / 1e9, "s")
            if svg.text_width(words, 11) <= wide + 8:
                body.append(f'<text class="o-t o-soft o-m" style="font-size:11px" '
                            f'x="{(stretch.x0 + stretch.x1) / 2:.1f}" y="{y + 34:.1f}">'
                            f"{svg.escape(words)}</text>")  # fmt: skip
            continue
        body.append(svg.line(stretch.x0, y, stretch.x1, y, "axis"))
        lo, hi = stretch.start_ns / 1e9 * per_s, stretch.end_ns / 1e9 * per_s
        many = max(1, int((stretch.x1 - stretch.x0) / 110))
        ticks = svg.ticks(lo, hi, many)
        if not ticks and stretch.x0 - last > 60:
            ticks = [float(f"{lo:.4g}")]  # every burst says when it was
        for tick in ticks:
            x = max(stretch.x0, axis.x(tick / per_s * 1e9))
            words = svg.number(tick)
            body.append(svg.line(x, y, x, y + 5, "axis"))
            if x - last >= svg.text_width(words) + 10:
                body.append(svg.text(x, y + 19, words, "soft", "m"))
                last = x
    body.append(svg.text(20, y + 36, f"time ({unit})", "soft"))
    how = "an arrow is a message, from the line of its sender to where and when it arrives"
    body.append(svg.text(WIDTH - 28, y + 50, how, "soft", "e"))
    return body
