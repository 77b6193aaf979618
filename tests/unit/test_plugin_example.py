"""The package of examples/plugin: found, loaded, run and checked as any system is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from orrery import World, run
from orrery.lab import check, compare, discover, laws
from orrery.lab.ledger import Ledger
from orrery.lab.stems import GROUP, read_stem
from orrery.lab.store import Store
from orrery.systems.protocols import Broadcast

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "plugin"
PROJECT = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The package where Python finds it, with the entry points that its own pyproject names."""
    monkeypatch.setenv("ORRERY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ORRERY_LEDGER", str(tmp_path / "ledger.jsonl"))
    site = tmp_path / "site"
    project = PROJECT["project"]
    for package in PROJECT["tool"]["setuptools"]["packages"]:
        shipped = PROJECT["tool"]["setuptools"]["package-data"][package]
        (site / package).mkdir(parents=True)
        for pattern in ("*.py", *shipped):
            for path in sorted((EXAMPLE / package).glob(pattern)):
                shutil.copy(path, site / package)
    name = project["name"].replace("-", "_")
    info = site / f"{name}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    points = [
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in named.items())
        for group, named in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(points))
    monkeypatch.syspath_prepend(str(site))
    yield site
    for module in [each for each in sys.modules if each.startswith("orrery_pushpull")]:
        del sys.modules[module]


def test_it_is_unknown_until_it_is_installed():
    assert "push-pull" not in [entry.id for entry in discover.entries()]


def test_the_project_file_says_what_discovery_asks_for():
    assert list(PROJECT["project"]["entry-points"]) == [GROUP]
    assert "orrery" in PROJECT["project"]["dependencies"]


def test_it_is_found_without_being_imported(installed):
    found = discover.scan()
    assert found.errors == []
    entry = next(entry for entry in found.entries if entry.id == "push-pull")
    assert entry.status == "working"
    assert entry.module == "orrery_pushpull.push_pull"
    assert entry.path.startswith(str(installed))
    assert "orrery_pushpull" not in sys.modules
    assert "push-pull" in [each.id for each in discover.of_problem("broadcast")]


def test_without_its_entry_point_it_is_not_found(installed):
    next(installed.glob("*.dist-info/entry_points.txt")).write_text("")
    assert "push-pull" not in [entry.id for entry in discover.entries()]


def test_it_runs_and_obeys_every_law(installed):
    part = discover.load("push-pull")
    made = run(part(), problem=Broadcast(), world=World.lan(10, drop=0.1), seed=3)
    assert made.violations == []
    assert made.metrics["coverage"] == 1.0
    assert laws.check(part(), Broadcast()) == []


def test_it_is_compared_and_checked_by_its_id(installed, tmp_path):
    store = Store(tmp_path / "runs")
    found = compare("broadcast", "push-pull,push-gossip", world="lan:8", seeds=2, store=store)
    assert {row.system for row in found.rows} == {"push-pull", "push-gossip"}
    book = Ledger(tmp_path / "book.jsonl")
    verdicts = check("push-pull", record=True, store=store, ledger=book)
    assert [one.verdict for one in verdicts] == ["holds"]
    assert verdicts[0].measured < verdicts[0].off
    assert discover.find("push-pull", book).status == "checked"


def test_its_claim_is_one_that_can_fail(installed, tmp_path):
    from orrery.lab.cells import Runner
    from orrery.lab.checking import judge

    claim = read_stem(installed / "orrery_pushpull" / "push_pull.toml").claims[0]
    claim.ours, claim.most_seeds = {"pull": False}, 3
    part = discover.load("push-pull")
    with Runner(Store(tmp_path / "runs")) as runner:
        found = judge(claim, part, problem="broadcast", runner=runner)
    assert found.verdict in ("not here", "inconclusive", "gain not from the mechanism")


@pytest.mark.slow
def test_pip_installs_it_whole_and_its_own_tests_pass(tmp_path):
    pytest.importorskip("setuptools", minversion="77")
    shutil.copytree(EXAMPLE, tmp_path / "plugin", ignore=shutil.ignore_patterns("__pycache__"))
    site = tmp_path / "site"
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index",
         "--no-build-isolation", "--target", str(site), str(tmp_path / "plugin")],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    env = {
        **os.environ, "PYTHONPATH": f"{site}:{ROOT / 'src'}", "ORRERY_HOME": str(tmp_path / "home"),
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path / "plugin")],
        cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False, env=env,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]
