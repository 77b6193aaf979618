"""Every example runs to its end and prints something worth seeing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*.py"))

# What each must say, so that an example that quietly does nothing is noticed.
SAYS = {
    "01": "the last run again has the same digest: True",
    "02": "processes: total 200",
    "03": "violations 0",
    "04": "100%",
    "05": "time in doubt",
    "06": "replayed, the balances written are [1, 1]",
    "07": "all know after",
    "08": "ring, formula",
    "09": "to tokyo",
    "10": "M/M/1",
}
# The full size of this one is for people with a moment to spare.
ARGUMENTS = {"07": ["50000"]}


def test_there_are_ten_and_each_is_known():
    assert [path.name[:2] for path in EXAMPLES] == list(SAYS)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path, tmp_path):
    number = path.name[:2]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(path), *ARGUMENTS.get(number, [])],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert SAYS[number] in done.stdout, done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert 20 <= len(lines) <= 72
    assert lines[0].startswith('"""') and lines[0].endswith('"""')
