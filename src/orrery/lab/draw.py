"""The space-time picture of a run: one line for each node, one arrow for each message.

Time goes to the right. A reader needs no code to follow it: every colour and sign is in the legend,
every arrow says in its tooltip what it is, and crashes, pauses and partitions are drawn where they
happened. A long run is shown around its most telling moment and says so; ask for another stretch
with `from_s`, `until_s` and `nodes`. Charts are in `orrery.lab.charts`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orrery.base.errors import UsageError
from orrery.base.units import show
from orrery.lab import svg, timeline
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
    rest_label,
)
from orrery.lab.spans import Span, node_name, plain

if TYPE_CHECKING:
    from orrery.lab.run import Run

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
    name = title or _name(run)
    body = [svg.text(20, 30, name, "h", "ink"), svg.text(20, 50, _subtitle(scene), "soft")]
    ids = svg.key(name + run.digest + str(scene.axis.lo))
    body += _legend(scene, ids)
    body += _defs(scene, ids)
    body += _behind(scene)
    body += _rails(scene)
    body.append(f'<g clip-path="url(#{ids}-c)">')
    body += [_compute(scene, span) for span in scene.computes]
    body += [_arrow(scene, span, ids) for span in scene.arrows]
    body += [_lost(scene, span) for span in scene.lost]
    body += _emits(scene)
    body.append("</g>")
    body += _marks(scene)
    body += _axis(scene)
    return svg.picture(WIDTH, scene.bottom + 62, name, _in_words(scene), body)


def write(run: Run, path: str | Path, **options: Any) -> Path:
    """Draw a run into an .svg file, whole or not at all."""
    from orrery.lab.spans import _whole

    target = Path(path)
    if target.suffix.lower() != ".svg":
        raise UsageError(f"{target}: a picture is SVG; end the name in .svg")
    drawn = space_time(run, **options).encode()
    return _whole(target, lambda file: file.write(drawn))


# -- words


def _name(run: Run) -> str:
    part = run.part if not isinstance(run.part, dict) else ", ".join(map(repr, run.part.values()))
    on = f" on {type(run.problem).__name__}" if run.problem is not None else ""
    return svg.shorten(f"{part!r}{on}", 90)


def _subtitle(scene: Scene) -> str:
    run, axis = scene.run, scene.axis
    whole = axis.lo == 0 and axis.hi >= round(run.seconds * 1e9) - 1
    at = f"{show(axis.lo / 1e9, 's')} to {show(axis.hi / 1e9, 's')}"
    when = f"the whole run, {show(run.seconds, 's')}" if whole else (
        f"{at} of {show(run.seconds, 's')}")  # fmt: skip
    size = run.world.size if run.world is not None else len(scene.rows)
    alone = sum(node < size for node in scene.rows)
    who = f"{alone} of {size} nodes" if alone < size else f"{size} nodes"
    parts = [f"seed {run.seed}", when, who, f"{len(scene.arrows)} messages"]
    if scene.lost:
        parts.append(f"{len(scene.lost)} lost")
    if scene.left_out:
        parts.append(f"{scene.left_out} more not drawn")
    return " · ".join(parts)


def _in_words(scene: Scene) -> str:
    """The description for those who cannot see the picture."""
    kinds = Counter(span.name for span in scene.arrows)
    told = [f"Space-time diagram, time to the right, {_subtitle(scene)}."]
    told.append("Messages: " + ", ".join(f"{n} {name}" for name, n in kinds.most_common(8)) + ".")
    for span in scene.life[:12]:
        until = show(span.end_ns / 1e9, "s")
        who = node_name(span.node, scene.run) if span.node >= 0 else "The network"
        told.append(f"{who}: {span.name} from {show(span.start_ns / 1e9, 's')} to {until}.")
    return " ".join(told)


# -- pieces of the picture


def _legend(scene: Scene, ids: str) -> list[str]:
    body: list[str] = []
    x, y = 20.0, 78.0

    def entry(sign: str, words: str) -> None:
        nonlocal x
        wide = 34 + svg.text_width(words)
        if x + wide < WIDTH - 20:
            body.append(f'<g transform="translate({x:.1f} {y:.1f})">{sign}</g>')
            body.append(svg.text(x + 26, y + 4, words, "ink"))
            x += wide + 10

    for name, i in list(scene.colours.items())[: svg.COLOURS - 1]:
        entry(f'<line class="o-s{i}" x2="18" stroke-width="2.4" '
              f'marker-end="url(#{ids}-{i})"/>', svg.shorten(name, 22))  # fmt: skip
    if len(scene.colours) >= svg.COLOURS:
        entry(f'<line class="o-s{svg.COLOURS - 1}" x2="18" stroke-width="2.4"/>', "other messages")
    if any(span.kind == "reply" for span in scene.arrows):
        entry('<line class="o-axis" x2="20" stroke-width="2" stroke-dasharray="5 3"/>', "its reply")
    if scene.computes:
        entry('<rect class="o-f5" opacity="0.6" y="-5" width="20" height="10" rx="2"/>', "computes")
    if scene.lost:
        entry('<line class="o-axis" x2="11" stroke-width="1.6"/>'
              f'<g transform="translate(13 0)">{_cross(4)}</g>', "lost on the way")  # fmt: skip
    if scene.emits:
        entry(f'<g transform="translate(10 0)">{_diamond()}</g>', "reported by the node")
    stops = {span.kind for span in scene.life}
    if "down" in stops:
        entry(f'<g transform="translate(10 0)">{_cross(6)}</g>', "crash")
        entry(f'<g transform="translate(10 0)">{_back()}</g>', "up again")
    if "paused" in stops:
        entry('<rect class="o-tint" y="-5" width="20" height="10" rx="2"/>', "stands still")
    if scene.axis.folds:
        entry('<rect class="o-tint" x="6" y="-8" width="8" height="16" opacity="0.55"/>',
              "idle time, folded")  # fmt: skip
    return body


def _cross(r: float) -> str:
    return f'<path class="o-bad" d="M{-r} {-r}L{r} {r}M{r} {-r}L{-r} {r}" stroke-width="2.6"/>'


def _diamond() -> str:
    return '<path class="o-ink o-halo" d="M0 -4.5L4.5 0L0 4.5L-4.5 0Z" stroke-width="1.2"/>'


def _back() -> str:
    return '<path class="o-good o-halo" d="M-5 -6L6 0L-5 6Z" stroke-width="1"/>'


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
    body += [
        f'<rect class="o-tint" opacity="0.5" x="{stretch.x0 + 6:.1f}" y="{scene.top:.1f}" '
        f'width="{max(stretch.x1 - stretch.x0 - 12, 2):.1f}" height="{high:.1f}" rx="3"/>'
        for stretch in axis.stretches
        if stretch.folded
    ]
    edge0, edge1 = axis.stretches[0].x0, axis.stretches[-1].x1
    labels_end = -1.0
    for span in scene.life:
        if span.kind != "fault" or span.node >= 0:
            continue
        x0 = max(edge0, axis.x(span.start_ns))
        x1 = min(edge1, axis.x(span.end_ns))
        words = _fault_words(span)
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


def _fault_words(span: Span) -> str:
    values = plain(span.values) or {}
    if span.name == "Partition":
        groups = values.get("groups") or [values.get("node")]
        sides = " | ".join("{" + ", ".join(map(str, g if isinstance(g, list) else [g])) + "}"
                           for g in groups)  # fmt: skip
        return f"partition {sides} | rest" + (" (one way)" if values.get("one_way") else "")
    told = ", ".join(f"{k} {v}" for k, v in values.items() if k not in ("node", "domain") and v)
    return f"{span.name.lower()} {told}".strip()


def _rails(scene: Scene) -> list[str]:
    axis = scene.axis
    x0, x1 = axis.stretches[0].x0, axis.stretches[-1].x1
    down: dict[int, list[Span]] = {}
    for span in scene.life:
        if span.kind == "down":
            down.setdefault(span.node, []).append(span)
    body: list[str] = []
    for node in scene.rows:
        y = scene.y(node)
        body.append(svg.text(x0 - 14, y + 4, node_name(node, scene.run), "ink", "e"))
        at = x0
        for span in down.get(node, ()):
            a, b = max(x0, axis.x(span.start_ns)), min(x1, axis.x(span.end_ns))
            body.append(svg.line(at, y, a, y, "rail", 'stroke-width="1.6"'))
            body.append(svg.line(a, y, b, y, "bad", 'stroke-dasharray="1.5 6" opacity="0.7"'))
            at = b
        body.append(svg.line(at, y, max(at, x1), y, "rail", 'stroke-width="1.6"'))
    if scene.rest:
        y = scene.y(REST)
        body.append(svg.text(x0 - 14, y + 4, rest_label(scene.rest), "soft", "e"))
        body.append(f'<rect class="o-tint" x="{x0:.1f}" y="{y - 5:.1f}" width="{x1 - x0:.1f}" '
                    'height="10" rx="5"/>')  # fmt: skip
    return body


def _compute(scene: Scene, span: Span) -> str:
    """A computation: a bar on the node's line."""
    x0, x1, y = scene.axis.x(span.start_ns), scene.axis.x(span.end_ns), scene.y(span.node)
    told = f"{node_name(span.node, scene.run)}: {span.name}, {_times(span)}"
    return (
        f'<rect class="o-f5" opacity="0.6" x="{x0:.1f}" y="{y - 5:.1f}" '
        f'width="{max(x1 - x0, 1.5):.1f}" height="10" rx="2">'
        f"<title>{svg.escape(told)}</title></rect>"
    )


def _arrow(scene: Scene, span: Span, ids: str) -> str:
    axis = scene.axis
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
    at = (f'x1="{axis.x(span.start_ns):.1f}" y1="{scene.y(span.node):.1f}" '
          f'x2="{axis.x(span.end_ns):.1f}" y2="{scene.y(span.to):.1f}"')  # fmt: skip
    return (
        f'<line class="o-s{i}" {at} stroke-width="{wide}" opacity="{0.3 if faint else 0.9}"{dash} '
        f'marker-end="url(#{ids}-{i})"><title>{svg.escape(told)}</title></line>'
    )


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
        + f'<g transform="translate({x:.1f} {y:.1f})">{_cross(3)}</g></g>'
    )


def _emits(scene: Scene) -> list[str]:
    body: list[str] = []
    ends: dict[int, float] = {}
    few = len(scene.emits) <= 60
    for span in scene.emits:
        x, y = scene.axis.x(span.start_ns), scene.y(span.node)
        values = plain(span.values) or {}
        words = ", ".join(f"{k} {v}" for k, v in values.items())
        at = f"{node_name(span.node, scene.run)} at {span.start_ns / 1e6:.6g} ms"
        body.append(f'<g transform="translate({x:.1f} {y:.1f})"><title>{svg.escape(at)}: '
                    f"{svg.escape(svg.shorten(words, 200))}</title>{_diamond()}</g>")  # fmt: skip
        label = svg.shorten(words, 22)
        if few and ends.get(span.node, -1.0) < x < WIDTH - 28 - svg.text_width(label, 11):
            body.append(f'<text class="o-t o-soft o-k o-halo" style="font-size:11px" '
                        f'x="{x + 3:.1f}" y="{y - 7:.1f}">{svg.escape(label)}</text>')  # fmt: skip
            ends[span.node] = x + svg.text_width(label, 11) + 6
    return body


def _marks(scene: Scene) -> list[str]:
    """Crashes, returns and pauses, over the arrows."""
    body: list[str] = []
    axis = scene.axis
    x0, x1 = axis.stretches[0].x0, axis.stretches[-1].x1
    for span in scene.life:
        if span.node not in scene.rows:
            continue
        y, a, b = scene.y(span.node), axis.x(span.start_ns), axis.x(span.end_ns)
        who = node_name(span.node, scene.run)
        told = f"{who}: {span.name} {_times(span)}"
        name = f"<title>{svg.escape(told)}</title>"
        if span.kind != "down":
            a, b = max(a, x0), min(b, x1)
            tone = "tint" if span.kind == "paused" else "shade"
            place = f'x="{a:.1f}" y="{y - 6:.1f}" width="{max(b - a, 2):.1f}" height="12"'
            body.append(f'<g>{name}<rect class="o-{tone}" opacity="0.75" {place} rx="3"/></g>')
            continue
        if axis.lo <= span.start_ns <= axis.hi:
            body.append(f'<g transform="translate({a:.1f} {y:.1f})">{name}{_cross(6)}</g>')
        if span.end_ns <= axis.hi and span.end_ns < round(scene.run.seconds * 1e9):
            body.append(f'<g transform="translate({b:.1f} {y:.1f})">{name}{_back()}</g>')
    return body


def _times(span: Span) -> str:
    return f"{show(span.start_ns / 1e9, 's')} to {show(span.end_ns / 1e9, 's')}"


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
    return body
