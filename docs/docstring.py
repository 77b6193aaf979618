"""What a docstring says, taken apart: summary, text, knobs, and how it differs from the paper."""

from __future__ import annotations

import inspect
import re
from typing import Any, NamedTuple

KNOB = re.compile(r"^([a-z_]\w*)\s{2,}(\S.*)$")
DIFFERS = re.compile(r"\*{0,2}Differs from ")
LABEL = re.compile(r"^\*{0,2}Differs from the papers?\*{0,2}\s*[:.]\*{0,2}\s*")


class Told(NamedTuple):
    """A docstring in pieces."""

    summary: str
    text: list[str]
    knobs: dict[str, str]
    differs: str
    example: str


def told_by(thing: Any) -> Told:
    """The pieces of the docstring of a class, without that of its parents."""
    doc = inspect.cleandoc(thing.__doc__) if getattr(thing, "__doc__", None) else ""
    return take_apart(doc)


def take_apart(doc: str) -> Told:
    """The pieces of a docstring.

    >>> told = take_apart("Sums.\\n\\nfast  skip checks\\n\\nSlow. Differs from the paper: a bit.")
    >>> told.summary, told.knobs, told.text, told.differs
    ('Sums.', {'fast': 'skip checks'}, ['Slow.'], 'A bit.')
    """
    text: list[str] = []
    knobs: dict[str, str] = {}
    differs = example = ""
    for block in re.split(r"\n\s*\n", doc.strip()):
        lines = block.splitlines()
        if block.lstrip().startswith(">>>"):
            example += block + "\n"
        elif (found := _knobs(lines)) is not None:
            knobs |= found
        else:
            cut = DIFFERS.search(block)
            before = block[: cut.start()] if cut else block
            if before.strip():
                text.append(" ".join(before.split()))
            if cut:
                differs = LABEL.sub("", " ".join(block[cut.start() :].split()))
    summary = text.pop(0) if text else ""
    return Told(summary, text, knobs, differs[:1].upper() + differs[1:], example)


def _knobs(lines: list[str]) -> dict[str, str] | None:
    """A list of `name  text`, with what goes on over more lines; None where it is none."""
    found: dict[str, str] = {}
    name = ""
    for line in lines:
        match = KNOB.match(line)
        if match:
            name = match.group(1)
            found[name] = match.group(2)
        elif name and line.startswith("    "):
            found[name] += " " + line.strip()
        else:
            return None
    return found or None
