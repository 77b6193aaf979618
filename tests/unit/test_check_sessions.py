"""Session guarantees hold on correct histories, inferred and by known versions."""

from __future__ import annotations

import pytest

from orrery.base.errors import SpecError
from orrery.check import History
from orrery.check.generate import linearizable_history
from orrery.check.graphs import components, path
from orrery.check.sessions import session_guarantees


@pytest.mark.parametrize("seed", range(5))
def test_linearizable_histories_keep_all_guarantees(seed):
    h = linearizable_history(1500, clients=6, keys=3, failed=0.05, seed=seed)
    assert session_guarantees(h) == []


def test_known_versions():
    h = History()
    h.ok(h.invoke("a", "write", "x", 1))
    h.ok(h.invoke("b", "write", "x", 2))
    h.ok(h.invoke("a", "read", "x"), 2)
    h.ok(h.invoke("b", "read", "x"), 2)
    assert session_guarantees(h, {"x": [1, 2]}) == []
    # The other order of versions makes the read of "a" older than its own write.
    assert [v.kind for v in session_guarantees(h, {"x": [2, 1]})] == ["forgot_own_write"]


def test_values_must_be_unique():
    h = History()
    h.ok(h.invoke("a", "write", "x", 1))
    h.ok(h.invoke("b", "write", "x", 1))
    with pytest.raises(SpecError, match="already a version"):
        session_guarantees(h)
    h = History()
    h.ok(h.invoke("a", "cas", "x", (1, 2)))
    with pytest.raises(SpecError, match="session guarantees know"):
        session_guarantees(h)


def test_graph_helpers():
    graph = {0: [1], 1: [2], 2: [0, 3], 3: [4], 4: []}
    part = components(graph)
    assert part[0] == part[1] == part[2] and len(set(part.values())) == 3
    assert path(graph, 0, 4) == [0, 1, 2, 3, 4] and path(graph, 4, 0) is None
    assert path({None: [1], 1: []}, None, 1) == [None, 1] and path(graph, 3, 3) == [3]
