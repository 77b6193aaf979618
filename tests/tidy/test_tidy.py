"""The house rules that no linter knows: sizes, stems, words, dead files."""

from __future__ import annotations

import ast
import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "orrery"
PY = sorted(p for p in SRC.rglob("*.py"))
STEMS = sorted(p for p in (SRC / "systems").rglob("*.toml"))


@pytest.mark.parametrize("path", PY, ids=lambda p: str(p.relative_to(SRC)))
def test_a_file_can_be_read_in_one_sitting(path):
    text = path.read_text()
    assert text.count("\n") <= 600, "split it by what it is about"
    tree = ast.parse(text)
    if text.strip():
        assert ast.get_docstring(tree), "the first line of a file says what it is for"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = node.end_lineno - node.lineno + 1
            assert length <= 70, f"{node.name} has {length} lines; name its parts"


def test_no_line_is_wider_than_a_page():
    for path in PY + STEMS:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert len(line) <= 100, f"{path.relative_to(ROOT)}:{number}"


def test_nothing_is_left_unfinished():
    unfinished = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")
    for path in PY:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert not unfinished.search(line), f"{path.relative_to(ROOT)}:{number}: {line.strip()}"


def test_every_stem_is_named_after_its_id():
    seen = {}
    for path in STEMS:
        data = tomllib.loads(path.read_text())
        assert data["id"].replace("-", "_") == path.stem, path
        assert data["id"] not in seen, f"{path} and {seen[data['id']]} have one id"
        seen[data["id"]] = path
        room = path.relative_to(SRC / "systems").parts[0]
        assert data["room"] == room, path


def test_all_135_published_systems_have_their_stem():
    published = [p for p in STEMS if tomllib.loads(p.read_text())["origin"] == "catalogue"]
    assert len(published) == 135


def test_every_built_stem_has_its_test():
    for path in STEMS:
        if not (path.with_suffix(".py").exists() or path.with_suffix("").is_dir()):
            continue
        data = tomllib.loads(path.read_text())
        folder = ROOT / "tests" / "systems" / data["room"]
        if data["origin"] == "catalogue":
            assert (folder / f"test_{path.stem}.py").exists(), f"{path.stem} has no test of its own"
        else:  # classics may share a file with others of their problem
            named = data.get("class", path.stem)
            tests = [p.read_text() for p in folder.glob("test_*.py")]
            assert any(re.search(rf"\b{named}\b", text) for text in tests), f"{named} is untested"


def test_systems_touch_only_what_they_may():
    banned = {"time", "random", "threading", "socket", "asyncio", "subprocess", "multiprocessing"}
    for path in (SRC / "systems").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            for name in names:
                assert name.split(".")[0] not in banned, f"{path}: imports {name}"


def test_public_names_have_docstrings():
    for path in PY:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                assert ast.get_docstring(node), f"{path.relative_to(ROOT)}: class {node.name}"


def test_versions_agree():
    import orrery

    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert orrery.__version__ == declared


def test_benchmarks_and_examples_import_what_exists():
    """Nobody runs them with the tests, so a name that has moved would be missed there."""
    for path in sorted([*(ROOT / "bench").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                not isinstance(node, ast.ImportFrom)
                or (node.module or "").split(".")[0] != "orrery"
            ):
                continue
            home = importlib.import_module(node.module)
            for alias in node.names:
                there = hasattr(home, alias.name)
                if not there and hasattr(home, "__path__"):
                    there = importlib.util.find_spec(f"{node.module}.{alias.name}") is not None
                where = f"{path.relative_to(ROOT)}:{node.lineno}"
                assert there, f"{where}: {node.module} has no {alias.name}"
