"""Every snippet of the README and the docs runs, and prints what the page says it prints.

Python blocks are compared to the letter (see `docs.snippets`). The `$ orrery …` lines of ```console
blocks go through the command line and must end well; lines shown below one must be in its output,
in that order, with white space made equal and `…` for what was left out.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
from docs.snippets import Block, blocks_of, namespace, pages, refreshed, run_python


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
    monkeypatch.setenv("COLUMNS", "200")
    rows = [f"2024-05-10 00:00:{i:02}.5+00:00,{300 + 7 * i},{40 + i}" for i in range(60)]
    header = "TIMESTAMP,ContextTokens,GeneratedTokens"  # a trace of the reader's own
    (tmp_path / "mine.csv").write_text("\n".join([header, *rows]) + "\n")
    yield tmp_path
    for name, module in list(sys.modules.items()):
        # A page's own module must not be taken for that of the next page.
        if tmp_path in Path(str(getattr(module, "__file__", None) or "/")).parents:
            del sys.modules[name]


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_every_snippet_runs(path, elsewhere, capsys):
    module = namespace()
    for block in blocks_of(path.read_text(encoding="utf-8")):
        if block.language == "python":
            printed = run_python(block, module, path)
            where = f"{path.name}:{block.line} prints something else; see python -m docs.snippets"
            assert printed == (block.output or ""), where
        elif block.language == "console":
            run_console(block, capsys)


# -- the test itself can fail


PAGE = (
    "```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n\n```console\n$ orrery x\n a  b\n…\nc\n```\n"
)


def test_blocks_are_found_and_joined():
    first, second = blocks_of(PAGE)
    assert (first.language, first.output, first.line) == ("python", "3\n", 2)
    assert commands_of(second.text) == [("orrery x", ["a b", "c"])]


def test_a_text_block_after_prose_is_not_an_output():
    page = PAGE.replace("\n\n```text", "\n\nWords.\n\n```text")
    assert [block.output for block in blocks_of(page)] == [None, None, None]


def test_a_wrong_output_is_noticed_and_refreshed(tmp_path):
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    block = blocks_of(PAGE)[0]
    assert run_python(block, namespace(), path) == "2\n" != block.output
    assert refreshed(path) == PAGE.replace("3\n", "2\n")


def test_a_line_that_is_not_in_the_output_is_named():
    assert missing_line(["a b", "c"], "a b\nx\nc\n") is None
    assert missing_line(["a b", "c"], "c\na b\n") == "c"
    assert missing_line(["took … s"], "took 1.5 s") is None
    assert missing_line(["took … s"], "took long") == "took … s"


def test_an_error_names_the_line_of_the_page():
    block = Block("python", "1 / 0\n", 41)
    with pytest.raises(ZeroDivisionError) as caught:
        run_python(block, namespace(), Path("page.md"))
    assert caught.traceback[-1].lineno == 40
