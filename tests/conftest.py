"""Shared fixtures: both kernels, a fresh run store, one thread for arithmetic."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

from orrery.engines.virtual import kernel as kernels

pytest_plugins = ["tests.ledger_plugin"]

HAS_C = kernels.load().NAME == "c"


@pytest.fixture(params=["python", "c"])
def kernel(request):
    """Each kernel in turn; the C one is skipped, by name, where it was not built."""
    if request.param == "c" and not HAS_C:
        pytest.skip("the C kernel was not built on this machine")
    return request.param


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    """No test writes to the user's run store."""
    monkeypatch.setenv("ORRERY_HOME", str(tmp_path / "orrery-home"))
