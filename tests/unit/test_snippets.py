"""Every snippet of the README and the docs runs, and prints what the page says it prints.

Python blocks are compared to the letter (see `docs.snippets`). The `$ orrery …` lines of ```console
blocks go through the command line and must end well; lines shown below one must be in its output,
in that order, with white space made equal and `…` for what was left out. `choose` looks for flips
in the slow run only: that is most of its work, and `test_choose.py` tests it. Blocks that are not
run are read: ```toml is TOML, ```py is Python, and every `orrery …` line in ```sh and ```text names
a command and options that exist.
"""

from __future__ import annotations

import ast
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest
from docs.snippets import Block, blocks_of, namespace, pages, refreshed, run_python

SERVERS = ("page", "serve")


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


def run_console(block: Block, capsys: pytest.CaptureFixture[str], quick: bool = True) -> None:
    from orrery.cli.app import run_command

    for command, shown in commands_of(block.text):
        words = shlex.split(command)
        assert words[0] == "orrery", f"only orrery commands can be tested here: {command}"
        if words[1] in SERVERS:
            assert unknown_words(command) == []  # it would serve for ever
            continue
        if quick and words[1] == "choose" and "--no-flips" not in words:
            words.append("--no-flips")
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


def run_page(path: Path, capsys: pytest.CaptureFixture[str], quick: bool) -> None:
    """Run every snippet of a page, in order."""
    module = namespace()
    for block in blocks_of(path.read_text(encoding="utf-8")):
        if block.language == "python":
            printed = run_python(block, module, path)
            where = f"{path.name}:{block.line} prints something else; see python -m docs.snippets"
            assert printed == (block.output or ""), where
        elif block.language == "console":
            run_console(block, capsys, quick)


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_every_snippet_runs(path, elsewhere, capsys):
    run_page(path, capsys, quick=True)


def choosing(path: Path) -> bool:
    return "$ orrery choose" in path.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("path", [*filter(choosing, pages())], ids=lambda path: path.name)
def test_every_snippet_runs_as_written(path, elsewhere, capsys):
    run_page(path, capsys, quick=False)


# -- blocks that are read and not run


def problems_of(block: Block) -> list[str]:
    """What is wrong with a block that is not run: its syntax, or a command that is not there."""
    try:
        if block.language == "toml":
            tomllib.loads(block.text)
        elif block.language == "py":
            ast.parse(block.text)
    except (tomllib.TOMLDecodeError, SyntaxError) as failure:
        return [str(failure)]
    if block.language not in ("sh", "text"):
        return []
    joined = block.text.replace("\\\n", " ")
    lines = [line.removeprefix("$ ") for line in joined.splitlines()]
    return [wrong for line in lines if line.startswith("orrery ") for wrong in unknown_words(line)]


def unknown_words(line: str) -> list[str]:
    """The command or the options of a line that Orrery does not have."""
    import typer.main

    from orrery.cli.app import app

    words = shlex.split(line, comments=True)[1:]
    command = typer.main.get_command(app)
    while words and hasattr(command, "get_command"):
        found = command.get_command(None, words[0])
        if found is None:
            return [f"{line}: there is no command {words[0]!r}"]
        command, words = found, words[1:]
    known = {opt for param in command.params for opt in (*param.opts, *param.secondary_opts)}
    known |= {"-h", "--help"}
    given = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
    return [f"{line}: there is no option {word}" for word in given if word not in known]


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_what_is_not_run_can_be_read(path):
    for block in blocks_of(path.read_text(encoding="utf-8")):
        assert problems_of(block) == [], f"{path.name}:{block.line}"


def test_what_cannot_be_read_is_named():
    assert problems_of(Block("toml", "a = \n", 1))
    assert problems_of(Block("py", "def f(:\n", 1))
    assert "--wat" in problems_of(Block("sh", "orrery list --wat\n", 1))[0]
    assert "lst" in problems_of(Block("text", "$ orrery lst --json\n", 1))[0]
    assert problems_of(Block("sh", "orrery list --room=serve --json  # all\n", 1)) == []
    assert problems_of(Block("sh", "orrery run \\\n  chord --wat\n", 1))


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
