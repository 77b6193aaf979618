"""The snippets of the pages: found, run, and their shown output kept true.

The ```python blocks of a page run in order in one namespace; a ```text block right after one shows
what it prints. The tests compare the two to the letter. After a change that moves results on
purpose, `python -m docs.snippets` writes what the snippets print now into the pages.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block: its language, text, first line, shown output and where that stands."""

    language: str
    text: str
    line: int
    output: str | None = None
    span: tuple[int, int] = (0, 0)


def pages() -> list[Path]:
    """The README, the guide for contributors and every page of the docs."""
    project = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    return [*project, *sorted((ROOT / "docs").glob("*.md"))]


def blocks_of(page: str) -> list[Block]:
    """The fenced blocks of a page; a `text` block is joined to the `python` block it follows."""
    found: list[Block] = []
    end = -1
    for match in FENCE.finditer(page):
        language, text = match.groups()
        follows = end >= 0 and not page[end : match.start()].strip()
        if language == "text" and follows and found[-1].language == "python":
            found[-1] = found[-1]._replace(output=text, span=match.span(2))
        else:
            found.append(Block(language, text, page.count("\n", 0, match.start()) + 2))
        end = match.end()
    return found


def namespace() -> ModuleType:
    """A module for the snippets of one page; parts find it by name, as rpc annotations need."""
    module = ModuleType("snippets")
    sys.modules["snippets"] = module
    return module


def run_python(block: Block, module: ModuleType, path: Path) -> str:
    """What a block prints; errors carry the page's line numbers."""
    code = compile("\n" * (block.line - 1) + block.text, str(path), "exec")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, module.__dict__)
    return printed.getvalue()


def refreshed(path: Path) -> str:
    """The page with each shown output replaced by what its snippet prints now."""
    page = path.read_text(encoding="utf-8")
    module = namespace()
    pieces: list[str] = []
    done = 0
    for block in blocks_of(page):
        if block.language != "python":
            continue
        printed = run_python(block, module, path)
        if block.output is not None:
            pieces += [page[done : block.span[0]], printed]
            done = block.span[1]
    return "".join([*pieces, page[done:]])


def main() -> None:
    """Refresh every page; the snippets work in a folder of their own."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ORRERY_HOME"] = folder
        os.chdir(folder)
        for path in pages():
            text = refreshed(path)
            if text != path.read_text(encoding="utf-8"):
                path.write_text(text, encoding="utf-8")
                print(f"{path.relative_to(ROOT)} refreshed")
        # Pictures that a page shows are those that its snippets drew.
        for picture in (ROOT / "docs" / "pictures").iterdir():
            drawn = Path(folder) / picture.name
            if drawn.is_file() and drawn.read_bytes() != picture.read_bytes():
                shutil.copyfile(drawn, picture)
                print(f"{picture.relative_to(ROOT)} refreshed")
        os.chdir(ROOT)


if __name__ == "__main__":
    main()
