"""The folders of a run: gone when it ends, found again when everything of it was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from orrery.engines.processes.folders import run_folders, sweep

HOLDS = """
import tempfile, sys, time
tempfile.tempdir = sys.argv[1]
from orrery.engines.processes import folders
folders.arena_folder = lambda: ""
with folders.run_folders() as made:
    print("there", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("orrery.engines.processes.folders.arena_folder", lambda: "")
    return tmp_path


def test_a_run_has_two_folders_and_leaves_none(place):
    with run_folders() as (files, memory):
        assert Path(files).parent == Path(memory).parent == place and files != memory
        (Path(files) / "log").write_text("x")
        assert sweep(str(place), young_s=-1.0) == []  # they have an owner
    assert list(place.iterdir()) == []


def test_the_folders_of_a_killed_run_are_swept_by_the_next(place):
    held = subprocess.Popen([sys.executable, "-c", HOLDS, str(place)], stdout=subprocess.PIPE)
    try:
        assert held.stdout.readline() == b"there\n"
        assert sweep(str(place), young_s=-1.0) == []
    finally:
        held.send_signal(signal.SIGKILL)
        held.wait()
        held.stdout.close()
    left = sorted(path.name for path in place.iterdir())
    assert len(left) == 2
    assert sweep(str(place)) == []  # so young that its owner may be about to lock it
    for path in place.iterdir():
        os.utime(path, (0, 0))
    with run_folders():
        assert not set(left) & {path.name for path in place.iterdir()}


def test_what_is_not_a_run_of_ours_stays(place):
    (place / "orrery-run-file").write_text("x")
    (place / "other").mkdir()
    (place / "orrery-run-link").symlink_to(place / "other")
    assert sweep(str(place), young_s=-1.0) == []
    assert len(list(place.iterdir())) == 3
