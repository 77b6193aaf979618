"""Correct runs pass: agreement, broadcast, commitment, conservation, data types, overlays."""

from __future__ import annotations

import pytest

from orrery.base.errors import SpecError
from orrery.base.rand import Stream
from orrery.check import agreement, atomic_commit, broadcast, conservation, crdt, overlay


def test_consensus():
    proposals = {1: "a", 2: "b", 3: "a"}
    assert agreement.consensus(proposals, {1: ["a"], 2: ["a"], 3: ["a"]}) == []
    # Node 3 crashed before deciding, which is allowed when it is not called correct.
    assert agreement.consensus(proposals, {1: ["b"], 2: ["b"]}, correct={1, 2}) == []
    # A liar's decision means nothing when agreement is not uniform.
    lied = {1: ["b"], 2: ["b"], 3: ["z", "y"]}
    assert agreement.consensus(proposals, lied, correct=[1, 2], uniform=False) == []
    assert agreement.validity(proposals, {1: ["q"]}, rule="unanimous") == []
    with pytest.raises(SpecError, match="rule"):
        agreement.validity(proposals, {}, rule="strict")


def test_logs_and_leaders():
    assert agreement.prefix_consistent({}) == []
    assert agreement.prefix_consistent({1: "abc", 2: "ab", 3: ""}) == []
    assert agreement.state_machine_safety({1: [(1, "x"), (2, "y")], 2: [(2, "y")]}) == []
    assert agreement.one_leader_per_term([(1, "a"), (1, "a"), (2, "b")]) == []


def random_run(seed: int, nodes: int = 5, messages: int = 40) -> dict:
    """A causal broadcast by construction: a message is delivered once its whole past is."""
    rng = Stream(seed, "test", "broadcast")
    logs: dict = {n: [] for n in range(nodes)}
    got: dict = {n: set() for n in range(nodes)}
    past: dict = {}
    left = messages
    while left or any(len(g) < len(past) for g in got.values()):
        n = rng.below(nodes)
        if left and rng.random() < 0.3:
            message = (n, left)
            left -= 1
            past[message] = frozenset(got[n])
            logs[n] += [("broadcast", message), ("deliver", message)]
            got[n].add(message)
        else:
            due = sorted(m for m in past if m not in got[n] and past[m] <= got[n])
            if due:
                message = rng.choice(due)
                logs[n].append(("deliver", message))
                got[n].add(message)
    return logs


@pytest.mark.parametrize("seed", range(10))
def test_causal_broadcasts_pass_and_swapped_causes_do_not(seed):
    logs = random_run(seed)
    for check in (broadcast.validity, broadcast.agreement, broadcast.integrity,
                  broadcast.fifo_order, broadcast.causal_order):  # fmt: skip
        assert check(logs) == [], check.__name__
    # Against the definition: swapping two neighbours is wrong exactly when one caused the other.
    past: dict = {}
    for log in logs.values():
        seen: set = set()
        for what, message in log:
            if what == "broadcast":
                past[message] = frozenset(seen)
            seen.add(message)
    closed = {m: frozenset(past[m]).union(*(past[p] for p in past[m])) for m in past}
    swaps = 0
    for node, log in logs.items():
        for i in range(len(log) - 1):
            (w1, a), (w2, b) = log[i : i + 2]
            if w1 == w2 == "deliver":
                bad = {**logs, node: [*log[:i], (w2, b), (w1, a), *log[i + 2 :]]}
                assert bool(broadcast.causal_order(bad)) == (a in closed[b])
                swaps += 1
    assert swaps > 20


def test_total_order():
    def logs(*orders):
        sends = {0: [("broadcast", m) for m in "abc"]}
        return sends | {n: [("deliver", m) for m in order] for n, order in enumerate(orders, 1)}

    assert broadcast.total_order(logs("abc", "abc", "ac")) == []
    assert broadcast.total_order(logs("abc", "ab", "a"), gapless=True) == []
    with pytest.raises(SpecError, match="broadcast twice"):
        broadcast.integrity({1: [("broadcast", "m")], 2: [("broadcast", "m")]})
    with pytest.raises(SpecError, match="use"):
        broadcast.integrity({1: [("send", "m")]})


def test_atomic_commit():
    tx = atomic_commit.Transaction
    yes = {1: True, 2: True}
    good = tx(votes=yes, decisions={1: ["commit"], 2: ["commit"]})
    no = tx(votes={1: True, 2: False}, decisions={1: ["abort"], 2: ["abort"]})
    crashed = tx(votes={1: True, 2: None}, decisions={1: ["abort"]}, failed=True, healed=False)
    timid = tx(votes=yes, decisions={1: ["abort"], 2: ["abort"]}, failed=True)
    assert atomic_commit.atomic_commits({"a": good, "b": no, "c": crashed, "d": timid}) == []
    with pytest.raises(SpecError, match="participant"):
        atomic_commit.atomic_commit(tx(votes={}, decisions={}))
    with pytest.raises(SpecError, match="maybe"):
        atomic_commit.atomic_commit(tx(votes=yes, decisions={1: ["maybe"]}))


def test_conservation():
    assert conservation.exactly_once([1, 2, 3, 4], [3, 1], [2], still_open=[4]) == []
    assert conservation.totals_preserved([{"a": 5, "b": 5}, {"a": 2, "b": 8}], floor=0) == []
    assert conservation.totals_preserved([{"a": 0.1, "b": 0.2}], total=0.3, tolerance=1e-9) == []
    assert conservation.same_items([1, 1, 2], [2, 1, 1]) == []
    events = [("acquire", "gpu", 1), ("release", "gpu", 1), ("acquire", "gpu", 2)]
    assert conservation.resources(events, all_returned=False) == []
    two = [("acquire", "r", 1), ("acquire", "r", 2), ("release", "r", 1), ("release", "r", 2)]
    assert conservation.resources(two, capacity={"r": 2}) == []
    with pytest.raises(SpecError, match="tolerance"):
        conservation.totals_preserved([], tolerance=-1)
    with pytest.raises(SpecError, match=r"events\[0\]"):
        conservation.resources([("take", "r", 1)])


def test_replicated_data_types():
    samples = [frozenset(), frozenset({1}), frozenset({2, 3})]
    assert crdt.merge_laws(frozenset.union, samples, at_most=frozenset.issubset) == []
    assert crdt.merge_laws(max, [3, 1, 2]) == []
    seen = [("a", [1, 2], {1, 2}), ("b", [2, 1], {1, 2}), ("a", [1], {1})]
    assert crdt.strong_eventual(seen) == []
    assert crdt.converged({"a": 3, "b": 3}) == [] and crdt.converged({}) == []
    assert crdt.monotone([{1}, {1}, {1, 2}]) == []


def test_overlays():
    nodes = [5, 20, 200]
    assert overlay.lookups([(5, 6, 20), (5, 201, 5), (20, 20, 20)], nodes) == []
    assert overlay.lookups([(5, 7, 5), (5, 255, 200)], nodes, owner="xor") == []
    assert overlay.lookups([(5, 7, 200)], nodes, owner=lambda key, live: max(live)) == []
    assert overlay.ring({5: 20, 20: 200, 200: 5}, nodes, {5: 200, 20: 5, 200: 20}) == []
    assert overlay.ring({7: 7}, [7]) == [] and overlay.ring({}, []) == []
    edges = {5: [20], 20: [200, 99], 200: [5]}
    assert overlay.reachable(edges, nodes) == [] and overlay.reachable({}, []) == []
    assert overlay.reachable({5: [20, 200]}, nodes, root=5) == []
    with pytest.raises(SpecError, match="owner"):
        overlay.lookups([], nodes, owner="hash")
    with pytest.raises(SpecError, match="live node"):
        overlay.lookups([], [])
    with pytest.raises(SpecError, match="root"):
        overlay.reachable({}, nodes, root=6)
