"""Data as the page sends it: JSON without NaN, and texts as small safe trees.

A text of a data file or a docstring becomes paragraphs, lists and code here, as data; the page
builds elements from it, so that nothing written by a stranger is ever read as HTML.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

Block = dict[str, Any]
_BULLET = re.compile(r"^\s*(?:[-*]|\d+[.)])\s+")
_TERM = re.compile(r"^`{0,2}([A-Za-z_][A-Za-z0-9_]*)`{0,2}(?: {2,}|: +)(\S.*)$")
_RUN = re.compile(r"(`{1,2}[^`]+`{1,2}|\*\*[^*]+\*\*)")


def runs_of(text: str) -> list[list[str]]:
    """A line of text as runs: ["t", words], ["c", code] for back-quotes, ["b", words] for stars.

    >>> runs_of("set `fanout` to **3**")
    [['t', 'set '], ['c', 'fanout'], ['t', ' to '], ['b', '3']]
    """
    runs = []
    for piece in _RUN.split(" ".join(text.split())):
        if len(piece) > 2 and piece[0] == piece[-1] == "`":
            runs.append(["c", piece.strip("`")])
        elif len(piece) > 4 and piece.startswith("**") and piece.endswith("**"):
            runs.append(["b", piece[2:-2]])
        elif piece:
            runs.append(["t", piece])
    return runs


def blocks_of(text: str) -> list[Block]:
    """A docstring as blocks: paragraphs, lists, terms, and code (doctests, what is indented)."""
    blocks: list[Block] = []
    for chunk in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        lines = [line.rstrip() for line in chunk.splitlines() if line.strip()]
        if not lines:
            continue
        if lines[0].lstrip().startswith(">>>") or all(line.startswith("    ") for line in lines):
            shift = min(len(line) - len(line.lstrip()) for line in lines)
            blocks.append({"kind": "code", "text": "\n".join(line[shift:] for line in lines)})
        elif _BULLET.match(lines[0]):
            blocks.append({"kind": "list", "items": [runs_of(item) for item in _items(lines)]})
        elif all(_TERM.match(line) or line.startswith("  ") for line in lines):
            blocks.append({"kind": "terms", "items": [
                [name, runs_of(said)] for name, said in _terms(lines)]})  # fmt: skip
        else:
            blocks.append({"kind": "text", "runs": runs_of(" ".join(lines))})
    return blocks


def terms_of(text: str) -> dict[str, list[list[str]]]:
    """What a docstring says of each knob, where it lists them as `name  what it does`."""
    return {
        name: said
        for block in blocks_of(text)
        if block["kind"] == "terms"
        for name, said in block["items"]
    }


def _items(lines: list[str]) -> list[str]:
    items: list[str] = []
    for line in lines:
        if _BULLET.match(line) or not items:
            items.append(_BULLET.sub("", line))
        else:
            items[-1] += " " + line.strip()
    return items


def _terms(lines: list[str]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for line in lines:
        fits = _TERM.match(line)
        if fits:
            found.append((fits.group(1), fits.group(2)))
        elif found:
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}")
    return found


# Units come last in names here, so a name tells its unit.
_UNITS = {
    "per_s": "1/s", "Bps": "B/s", "FLOPps": "FLOP/s", "s": "s", "ms": "ms", "B": "B", "GB": "GB",
    "MB": "MB", "KB": "KB", "W": "W", "J": "J", "usd": "USD", "km": "km", "tokens": "tokens",
    "steps": "steps", "bits": "bits", "h": "h",
}  # fmt: skip


def unit_of(name: str) -> str:
    """The unit in which a knob is given, from the end of its name.

    >>> unit_of("period_s"), unit_of("rate_per_s"), unit_of("fanout")
    ('s', '1/s', '')
    """
    return next((unit for end, unit in _UNITS.items() if name.endswith(f"_{end}")), "")
