"""The doctests of the library: each example in a docstring is true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import orrery


def modules() -> list[str]:
    """Every module of the package that needs nothing beyond the core dependencies."""
    found = pkgutil.walk_packages(orrery.__path__, "orrery.")
    # `__main__` would start the program; the compiled kernels have no docstrings to test.
    return sorted(info.name for info in found if not info.name.rpartition(".")[2].startswith("_"))


@pytest.mark.parametrize("name", modules())
def test_doctests_of(name):
    module = importlib.import_module(name)
    failed, tried = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert failed == 0, f"{failed} of {tried} examples in {name} are wrong"


def test_there_are_doctests_to_run():
    tests = [
        test
        for name in ("orrery.parts.knobs", "orrery.base.units", "orrery.world.world")
        for test in doctest.DocTestFinder().find(importlib.import_module(name))
        if test.examples
    ]
    assert len(tests) >= 3


def test_a_wrong_example_is_noticed():
    wrong = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, None)
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(wrong, out=lambda text: None)
    assert runner.failures == 1
