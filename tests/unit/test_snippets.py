"""Every snippet of the README and the docs runs, and prints what the page says it prints.

The ```python blocks of a file run in order in one namespace. A ```text block right after one is
what it must have printed, to the letter. The `$ orrery …` lines of ```console blocks go through the
command line and must end well; lines shown below one must be in its output, in that order, with
white space made equal and `…` for what was left out.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block: its language, its text, the line it begins on, and its expected output."""

    language: str
    text: str
    line: int
    output: str | None


def blocks_of(page: str) -> list[Block]:
    """The fenced blocks of a page; a `text` block is joined to the `python` block it follows."""
    found: list[Block] = []
    end = -1
    for match in FENCE.finditer(page):
        language, text = match.groups()
        follows = not page[end : match.start()].strip() if end >= 0 else False
        if language == "text" and follows and found and found[-1].language == "python":
            found[-1] = found[-1]._replace(output=text)
        else:
            line = page.count("\n", 0, match.start()) + 2
            found.append(Block(language, text, line, None))
        end = match.end()
    return found


def run_python(block: Block, names: dict, path: Path) -> str:
    """What a block prints; errors carry the page's line numbers."""
    code = compile("\n" * (block.line - 1) + block.text, str(path), "exec")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, names)
    return printed.getvalue()


def commands_of(text: str) -> list[tuple[str, list[str]]]:
    """Each `$ …` line with the lines shown below it."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line.strip() and line.strip() != "…":
            found[-1][1].append(" ".join(line.split()))
    return found


def missing_line(shown: list[str], output: str) -> str | None:
    """The first shown line that the output lacks, in order; None when all are there."""
    have = iter(" ".join(line.split()) for line in output.splitlines())
    for line in shown:
        pattern = re.compile(".*".join(re.escape(part) for part in line.split("…")))
        if not any(pattern.fullmatch(each) for each in have):
            return line
    return None


def run_console(block: Block, capsys: pytest.CaptureFixture[str]) -> None:
    from orrery.cli.app import run_command

    for command, shown in commands_of(block.text):
        words = shlex.split(command)
        assert words[0] == "orrery", f"only orrery commands can be tested here: {command}"
        capsys.readouterr()
        code = run_command(words[1:])
        printed = capsys.readouterr()
        assert code == 0, f"{command}: exit {code}: {printed.err}"
        missing = missing_line(shown, printed.out)
        assert missing is None, f"{command}: the output lacks {missing!r}:\n{printed.out}"


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """An empty folder to work in, from which modules can be imported, as for a user."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        # A page's own module must not be taken for that of the next page.
        if getattr(sys.modules[name], "__file__", None) and not name.startswith("orrery"):
            source = Path(str(sys.modules[name].__file__))
            if tmp_path in source.parents:
                del sys.modules[name]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_snippet_runs(path, elsewhere, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    names = {"__name__": "snippets"}
    module = type(sys)("snippets")
    module.__dict__.update(names)
    monkeypatch.setitem(sys.modules, "snippets", module)
    for block in blocks_of(path.read_text(encoding="utf-8")):
        if block.language == "python":
            printed = run_python(block, module.__dict__, path)
            if block.output is not None:
                assert printed == block.output, f"{path.name}:{block.line} prints otherwise"
            else:
                assert not printed, f"{path.name}:{block.line} prints what the page does not show"
        elif block.language == "console":
            run_console(block, capsys)


# -- the test itself can fail


PAGE = "```python\nprint(1 + 1)\n```\n\n```text\n2\n```\n\n```console\n$ orrery x\n a  b\n…\nc\n```\n"


def test_blocks_are_found_and_joined():
    first, second = blocks_of(PAGE)
    assert (first.language, first.output, first.line) == ("python", "2\n", 2)
    assert commands_of(second.text) == [("orrery x", ["a b", "c"])]


def test_a_text_block_after_prose_is_not_an_output():
    page = PAGE.replace("\n\n```text", "\n\nWords.\n\n```text")
    assert [block.output for block in blocks_of(page)] == [None, None, None]


def test_a_wrong_output_is_noticed():
    assert missing_line(["a b", "c"], "a b\nx\nc\n") is None
    assert missing_line(["a b", "c"], "c\na b\n") == "c"
    assert missing_line(["took … s"], "took 1.5 s") is None
    assert missing_line(["took … s"], "took long") == "took … s"


def test_an_error_names_the_line_of_the_page():
    block = Block("python", "1 / 0\n", 41, None)
    with pytest.raises(ZeroDivisionError) as caught:
        run_python(block, {}, Path("page.md"))
    assert caught.traceback[-1].lineno == 40
