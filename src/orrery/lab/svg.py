"""Pieces of pictures: a palette, axes, text. Everything is plain SVG 1.1 with no outside resource.

Colours are set by classes with a second set for dark screens, since not every viewer knows CSS
variables. The palette is that of Okabe and Ito, which people with any colour vision can tell
apart, in a lighter cut on dark ground.
"""

from __future__ import annotations

import html
import math
import zlib
from collections.abc import Iterable, Sequence

from orrery.base.units import show

LIGHT = ("#0072b2", "#c2410c", "#00795a", "#a3497f", "#8a6a00", "#2f7398", "#5b5b66")
DARK = ("#6cb8ee", "#f59a5b", "#45c79f", "#e0a0c8", "#e6c84d", "#9fd5ea", "#b4b4be")
COLOURS = len(LIGHT)

_RULES = (  # class, property, light, dark
    ("paper", "fill", "#ffffff", "#15171c"),
    ("ink", "fill", "#1c1f26", "#e8eaee"),
    ("inks", "stroke", "#3a3f4a", "#c9ced8"),
    ("soft", "fill", "#565d6b", "#a6adba"),
    ("rail", "stroke", "#b9c0cc", "#474e5b"),
    ("grid", "stroke", "#e6e9ee", "#282c34"),
    ("axis", "stroke", "#7d8594", "#8b93a2"),
    ("bad", "stroke", "#b42318", "#ff8a7a"),
    ("badf", "fill", "#b42318", "#ff8a7a"),
    ("good", "fill", "#00795a", "#45c79f"),
    ("halo", "stroke", "#ffffff", "#15171c"),
    ("shade", "fill", "#f3d9a8", "#6b5320"),
    ("tint", "fill", "#dfe6f0", "#2b3340"),
    ("lie", "fill", "#fbd5cf", "#5a241d"),
    ("down", "fill", "#e3e4e8", "#34363d"),
)


def style() -> str:
    """The style sheet that every picture carries."""
    light, dark = [], []
    for name, prop, bright, dim in _RULES:
        light.append(f".o-{name}{{{prop}:{bright}}}")
        dark.append(f".o-{name}{{{prop}:{dim}}}")
    for i, (bright, dim) in enumerate(zip(LIGHT, DARK, strict=True)):
        light.append(f".o-s{i}{{stroke:{bright}}}.o-f{i}{{fill:{bright}}}")
        dark.append(f".o-s{i}{{stroke:{dim}}}.o-f{i}{{fill:{dim}}}")
    fonts = "system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif"
    text = (
        f".o-t{{font-family:{fonts};font-size:12px}}.o-h{{font-size:16px;font-weight:600}}"
        ".o-e{text-anchor:end}.o-m{text-anchor:middle}.o-b{font-weight:600}"
        ".o-k{paint-order:stroke;stroke-width:4px;stroke-linejoin:round}"
    )
    return (
        f"<style>{text}{''.join(light)}"
        # On paper the light colours stay, whatever the screen has.
        f"@media screen and (prefers-color-scheme:dark){{{''.join(dark)}}}</style>"
    )


def picture(width: float, height: float, title: str, told: str, body: Iterable[str]) -> str:
    """A whole SVG document; `told` says in words what the picture shows."""
    name = escape(title)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" role="img" aria-label="{name}">'
        f"<title>{name}</title><desc>{escape(told)}</desc>{style()}"
        f'<rect class="o-paper" width="{width:g}" height="{height:g}" rx="8"/>'
    )
    return head + "".join(body) + "</svg>\n"


def escape(text: object) -> str:
    """Any text made safe inside SVG and HTML, without the control signs that XML forbids."""
    clean = "".join(c for c in str(text) if c in "\t\n" or c.isprintable() or c == " ")
    return html.escape(clean, quote=True)


def text(x: float, y: float, words: object, *classes: str) -> str:
    """A line of text; classes are short names such as "ink", "e" (end), "m" (middle)."""
    names = " ".join(f"o-{name}" for name in ("t", *classes))
    return f'<text class="{names}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, name: str, more: str = "") -> str:
    """A straight line of a class."""
    at = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line class="o-{name}" {at}{" " + more if more else ""}/>'


def key(words: str) -> str:
    """A short prefix for ids, so that several pictures can stand in one page."""
    return f"o{zlib.crc32(words.encode()):08x}"


def text_width(words: str, size_px: float = 12.0) -> float:
    """About how wide a text is, on the safe side: no font is at hand to measure with."""
    return len(words) * size_px * 0.56


def shorten(words: str, most: int) -> str:
    """A text cut to a length, with a sign that it was."""
    return words if len(words) <= most else words[: max(1, most - 1)] + "…"


def ticks(lo: float, hi: float, about: int = 7) -> list[float]:
    """Round numbers that divide a range into about so many parts.

    >>> ticks(0.0, 1.0, 4)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    if not (math.isfinite(lo) and math.isfinite(hi)) or hi <= lo:
        return [lo] if math.isfinite(lo) else []
    rough = (hi - lo) / max(1, about)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((m * power for m in (1, 2, 2.5, 5) if m * power >= rough * 0.75), 10 * power)
    first = math.ceil(lo / step - 1e-9)
    last = math.floor(hi / step + 1e-9)
    return [round(i * step, 12) if step > 1e-9 else i * step for i in range(first, last + 1)]


def time_unit(span_s: float) -> tuple[float, str]:
    """How many units a second has, and their name, for an axis of that length."""
    for per_s, name in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if span_s * per_s >= 2:
            return per_s, name
    return 1e9, "ns"


def number(value: float) -> str:
    """A number on an axis: no unit, no needless digits."""
    return f"{value:.6g}".replace("e-0", "e-").replace("e+0", "e")


def in_words(value: float, unit: str) -> str:
    """A quantity with its unit, for titles and descriptions."""
    return show(value, unit)


def spread(values: Sequence[float]) -> tuple[float, float]:
    """The smallest and largest finite value; (0, 1) where there is none."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return 0.0, 1.0
    lo, hi = min(finite), max(finite)
    return (lo, hi) if hi > lo else (lo - (abs(lo) or 1.0) * 0.5, hi + (abs(hi) or 1.0) * 0.5)
