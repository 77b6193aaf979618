"""The signs of a space-time picture and the legend that explains each one that is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orrery.lab import story, svg

if TYPE_CHECKING:
    from orrery.lab.scene import Scene

LINE_PX = 22.0  # from one line of the legend to the next


def cross(r: float) -> str:
    """A crash, or the end of a message that is lost."""
    return f'<path class="o-bad" d="M{-r} {-r}L{r} {r}M{r} {-r}L{-r} {r}" stroke-width="2.6"/>'


def diamond() -> str:
    """Something that a node reports."""
    return '<path class="o-ink o-halo" d="M0 -4.5L4.5 0L0 4.5L-4.5 0Z" stroke-width="1.2"/>'


def star() -> str:
    """A decision."""
    points = "M0 -8L2.2 -2.8L7.8 -2.5L3.5 1.1L4.9 6.6L0 3.5L-4.9 6.6L-3.5 1.1L-7.8 -2.5L-2.2 -2.8Z"
    return f'<path class="o-good o-halo" d="{points}" stroke-width="1"/>'


def back() -> str:
    """A node is up again."""
    return '<path class="o-good o-halo" d="M-5 -6L6 0L-5 6Z" stroke-width="1"/>'


def lie(x1: float, y1: float, x2: float, y2: float) -> str:
    """The red shadow under a message that a liar has altered."""
    return svg.line(x1, y1, x2, y2, "bad", 'stroke-width="7" opacity="0.32" stroke-linecap="round"')


def legend(scene: Scene, ids: str, width: float) -> tuple[list[str], int]:
    """Every sign that the picture uses, with its words; also how many lines that takes."""
    body: list[str] = []
    x, y, lines = 20.0, 78.0, 1
    for sign, words in _entries(scene, ids):
        wide = 34 + svg.text_width(words)
        if x > 20.0 and x + wide > width - 20:
            x, y, lines = 20.0, y + LINE_PX, lines + 1
        body.append(f'<g transform="translate({x:.1f} {y:.1f})">{sign}</g>')
        body.append(svg.text(x + 26, y + 4, words, "ink"))
        x += wide + 10
    return body, lines


def _entries(scene: Scene, ids: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for name, i in list(scene.colours.items())[: svg.COLOURS - 1]:
        arrow = f'<line class="o-s{i}" x2="18" stroke-width="2.4" marker-end="url(#{ids}-{i})"/>'
        found.append((arrow, svg.shorten(name, 22)))
    if len(scene.colours) >= svg.COLOURS:
        other = f'<line class="o-s{svg.COLOURS - 1}" x2="18" stroke-width="2.4"/>'
        found.append((other, "other messages"))
    if any(span.kind == "reply" for span in scene.arrows):
        dashes = '<line class="o-axis" x2="20" stroke-width="2" stroke-dasharray="5 3"/>'
        found.append((dashes, "its reply"))
    if scene.liars:
        band = '<rect class="o-lie" y="-6" width="20" height="12" rx="3"/>'
        ways = ", ".join(dict.fromkeys(s for each in scene.liars.values() for s in each))
        found.append((band, svg.shorten(f"lies: {ways}", 44)))
    if scene.bent:
        found.append((lie(0, 0, 18, 0) + svg.line(0, 0, 18, 0, "axis", 'stroke-width="1.6"'),
                      "altered by the liar"))  # fmt: skip
    found += _marks(scene)
    return found


def _marks(scene: Scene) -> list[tuple[str, str]]:
    """The signs that stand on the lines of nodes, and the bands."""
    found: list[tuple[str, str]] = []
    if scene.computes:
        bar = '<rect class="o-f5" opacity="0.6" y="-5" width="20" height="10" rx="2"/>'
        found.append((bar, "computes"))
    if scene.lost:
        gone = f'<g transform="translate(13 0)">{cross(4)}</g>'
        found.append(
            (f'<line class="o-axis" x2="11" stroke-width="1.6"/>{gone}', "lost on the way")
        )
    decided = [span for span in scene.emits if story.is_decision(span)]
    if decided:
        names = dict.fromkeys(n for s in decided for n in s.values or () if n in story.DECISIONS)
        found.append((f'<g transform="translate(10 0)">{star()}</g>',
                      f"decision ({', '.join(names)})"))  # fmt: skip
    if len(decided) < len(scene.emits):
        found.append((f'<g transform="translate(10 0)">{diamond()}</g>', "reported by the node"))
    stops = {span.kind for span in scene.life}
    if "down" in stops:
        found.append((f'<g transform="translate(10 0)">{cross(6)}</g>', "crash"))
        found.append(('<rect class="o-down" y="-6" width="20" height="12" rx="3"/>', "down"))
        found.append((f'<g transform="translate(10 0)">{back()}</g>', "up again"))
    if "paused" in stops:
        still = '<rect class="o-tint" y="-5" width="20" height="10" rx="2"/>'
        found.append((still, "stands still"))
    if scene.axis.folds:
        fold = '<rect class="o-tint" x="6" y="-8" width="8" height="16" opacity="0.55"/>'
        words = "idle time or repeated traffic, folded" if scene.folded else "idle time, folded"
        found.append((fold, words))
    return found
