"""Writes what the acceptance tests found into the ledger: `pytest --record-ledger`.

A test carries the line it proves: `@pytest.mark.works_when("raft", 3)`. A line is *met* when every
test of it, slow ones too, ran and passed; *unmet* when one failed; and stays as it was when some of
its tests were left out. A line that cannot be met on this machine says so on its marker:
`works_when("x", 4, impossible_here="no accelerator")`. A test that runs a system on an engine says
so with `record_property("engine", (id, engine))`.
"""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

outcomes = defaultdict(dict)  # (id, n) -> {node id: passed}
wanted = {}  # (id, n) -> how many tests that line has
impossible = {}  # (id, n) -> reason
engines = {}  # (id, engine) -> passed


def pytest_addoption(parser):
    parser.addoption(
        "--record-ledger",
        action="store_true",
        help="write the states of the acceptance lines whose tests all ran into the ledger",
    )


@pytest.hookimpl(tryfirst=True)  # before `-m` leaves any of them out
def pytest_collection_modifyitems(items):
    marked = [
        (item, (mark.args[0], mark.args[1], mark.kwargs.get("impossible_here", "")))
        for item in items
        for mark in item.iter_markers("works_when")
    ]
    total = Counter(line[:2] for _, line in marked)
    for item, line in marked:
        # Properties travel with the report, also from a worker process to the one that writes.
        item.user_properties.append(("works_when", (*line, total[line[:2]])))


def pytest_runtest_logreport(report):
    for name, value in report.user_properties:
        if name == "engine" and report.when == "call":
            engines[tuple(value)] = report.passed
        if name != "works_when":
            continue
        id, n, reason, total = value
        line = (id, n)
        wanted[line] = total
        if reason:
            impossible[line] = reason
        good = not report.failed and not report.skipped
        outcomes[line][report.nodeid] = outcomes[line].get(report.nodeid, True) and good


def pytest_sessionfinish(session):
    config = session.config
    if hasattr(config, "workerinput") or not config.getoption("--record-ledger"):
        return
    from orrery.lab.discover import find
    from orrery.lab.ledger import Ledger

    ledger = Ledger.default()
    for (id, n), tests in sorted(outcomes.items()):
        line = next((w for w in find(id).stem.works_when if w.n == n), None)
        if line is None:
            raise pytest.UsageError(f"{id} has no works_when line {n}; see its stem")
        if (id, n) in impossible:
            state, reason = "impossible-here", impossible[id, n]
        elif not all(tests.values()):
            state, reason = "unmet", ", ".join(sorted(t for t, ok in tests.items() if not ok))
        elif len(tests) >= wanted[id, n]:
            state, reason = "met", ""
        else:
            continue
        first = sorted(tests)[0]
        ledger.record_works_when(id, n, line.text, state, reason=reason, test=first)
    for (id, engine), passed in sorted(engines.items()):
        ledger.record_engine(id, engine, passed)
