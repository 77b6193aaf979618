"""Shared fixtures: both kernels, a fresh run store, one thread for arithmetic."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

from orrery.engines.virtual import kernel as kernels

pytest_plugins = ["tests.ledger_plugin"]

# Read by workers too, which inherit it: parsing all stems again in every test takes minutes.
SHARED_CACHE = "ORRERY_CACHE"

HAS_C = kernels.load().NAME == "c"


def pytest_configure(config):
    if SHARED_CACHE not in os.environ:
        folder = tempfile.mkdtemp(prefix="orrery-test-cache-")
        os.environ[SHARED_CACHE] = folder
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        config.add_cleanup(lambda: os.environ.pop(SHARED_CACHE, None))


def pytest_collection_finish(session):
    # Hundreds of thousands of objects that stay to the end need not be looked through again.
    gc.collect()
    gc.freeze()


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
