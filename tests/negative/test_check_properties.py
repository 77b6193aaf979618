"""Planted violations: every kind that a checker claims to find, it must find."""

from __future__ import annotations

from orrery.check import agreement, atomic_commit, broadcast, conservation, crdt, overlay


def kinds(found) -> list[str]:
    assert all(v.message and v.evidence for v in found)
    return [violation.kind for violation in found]


def test_consensus():
    proposals = {1: "a", 2: "b", 3: "a"}
    check = agreement.consensus
    assert kinds(check(proposals, {1: ["a"], 2: ["b"], 3: ["a"]})) == ["disagreement"]
    assert kinds(check(proposals, {1: ["z"], 2: ["z"], 3: ["z"]})) == ["invalid_decision"] * 3
    assert kinds(check(proposals, {1: ["a", "a"], 2: ["a"], 3: ["a"]})) == ["decided_twice"]
    assert kinds(check(proposals, {1: ["a"], 3: ["a"]})) == ["no_decision"]
    # A node that crashed after deciding otherwise breaks uniform agreement.
    crashed = {1: ["a"], 2: ["b"], 3: ["a"]}
    assert kinds(check(proposals, crashed, correct=[1, 3])) == ["disagreement"]
    # All correct nodes propose "a"; the liar's "b" must not win.
    lied = {1: ["b"], 3: ["b"]}
    found = check(proposals, lied, correct=[1, 3], rule="unanimous", uniform=False)
    assert kinds(found) == ["invalid_decision"] * 2


def test_logs_and_leaders():
    found = agreement.prefix_consistent({1: "abc", 2: "ax"})
    assert kinds(found) == ["log_fork"] and found[0].evidence["index"] == 1
    safety = agreement.state_machine_safety
    assert kinds(safety({1: [(1, "x")], 2: [(1, "y")]})) == ["unsafe_apply"]
    assert kinds(safety({1: [(1, "x"), (3, "z")]})) == ["gap"]
    assert kinds(safety({1: [(1, "x"), (1, "x")]})) == ["applied_again"]
    assert kinds(safety({1: [(2, "x")]}, first_index=1)) == ["gap"]
    leaders = [(1, "a"), (2, "a"), (2, "b"), (2, "b")]
    assert kinds(agreement.one_leader_per_term(leaders)) == ["two_leaders"]


def test_broadcast():
    sent = [("broadcast", "m1"), ("broadcast", "m2")]
    own = [("deliver", "m1"), ("deliver", "m2")]
    assert kinds(broadcast.validity({1: sent})) == ["not_delivered"] * 2
    assert kinds(broadcast.agreement({1: sent + own, 2: own[:1]})) == ["missed"]
    crashed = {1: sent + own, 2: [], 3: []}
    assert broadcast.agreement(crashed, correct=[2, 3]) == []
    assert kinds(broadcast.agreement(crashed, correct=[2, 3], uniform=True)) == ["missed"] * 4
    assert kinds(broadcast.integrity({1: [("deliver", "?")]})) == ["created"]
    assert kinds(broadcast.integrity({1: sent, 2: own[:1] * 2})) == ["duplicated"]
    assert kinds(broadcast.fifo_order({1: sent + own, 2: own[::-1]})) == ["fifo"]
    assert kinds(broadcast.fifo_order({1: sent + own, 2: own[1:]})) == ["fifo"]


def test_causal_order():
    logs = {
        1: [("broadcast", "question"), ("deliver", "question")],
        2: [("deliver", "question"), ("broadcast", "answer"), ("deliver", "answer")],
        3: [("deliver", "answer"), ("deliver", "question")],
    }
    assert broadcast.fifo_order(logs) == []
    found = broadcast.causal_order(logs)
    assert kinds(found) == ["causal"] and found[0].evidence["missing"] == "question"
    # The cause is two steps away, and the node never delivers it at all.
    far = {
        1: [("broadcast", "a")],
        2: [("deliver", "a"), ("broadcast", "b")],
        3: [("deliver", "b"), ("broadcast", "c")],
        4: [("deliver", "c")],
    }
    assert kinds(broadcast.causal_order(far, correct=[4])) == ["causal"]
    ring = {1: [("deliver", "b"), ("broadcast", "a")], 2: [("deliver", "a"), ("broadcast", "b")]}
    assert kinds(broadcast.causal_order(ring)) == ["acausal"]


def test_total_order():
    def logs(*orders):
        return {n: [("deliver", m) for m in order] for n, order in enumerate(orders)}

    assert kinds(broadcast.total_order(logs("ab", "ba"))) == ["order"]
    found = broadcast.total_order(logs("ab", "bc", "ca", "xyz"))
    assert kinds(found) == ["order"] and len(found[0].evidence) == 3
    assert kinds(broadcast.total_order(logs("abc", "ac"), gapless=True)) == ["log_fork"]


def test_atomic_commit():
    def judge(votes, decisions, **more):
        tx = atomic_commit.Transaction(votes=votes, decisions=decisions, **more)
        return kinds(atomic_commit.atomic_commit(tx, "t"))

    yes = {1: True, 2: True}
    split = {1: ["commit"], 2: ["abort"]}
    assert judge(yes, split, failed=True) == ["split_decision"]
    both = {1: ["commit", "abort"], 2: ["commit"]}
    assert judge(yes, both, failed=True) == ["reversed", "split_decision"]
    commits = {1: ["commit"], 2: ["commit"]}
    assert judge({1: True, 2: False}, commits) == ["commit_without_yes"]
    assert judge({1: True, 2: None}, commits, failed=True) == ["commit_without_yes"]
    assert judge(yes, {1: ["abort"], 2: ["abort"]}) == ["needless_abort"]
    assert judge(yes, {1: ["commit"]}, failed=True) == ["undecided"]


def test_conservation():
    once = conservation.exactly_once
    assert kinds(once([1, 2], [1])) == ["lost"]
    assert kinds(once([1], [1, 1])) == ["answered_twice"]
    assert kinds(once([1], [], [1, 1])) == ["failed_twice"]
    assert kinds(once([1], [1], [1])) == ["answered_and_failed"]
    assert kinds(once([], [1])) == ["from_nowhere"]
    assert kinds(once([1, 1], [1])) == ["asked_twice"]
    totals = conservation.totals_preserved
    assert kinds(totals([{"a": 5}, {"a": 4}])) == ["total_changed"]
    assert kinds(totals([{"a": float("nan")}], total=1.0)) == ["total_changed"]
    assert kinds(totals([{"a": -1, "b": 6}], floor=0)) == ["below_floor"]
    assert kinds(conservation.same_items([1, 2], [1, 1])) == ["appeared", "lost"]
    held = [("acquire", "r", 1), ("acquire", "r", 2), ("release", "r", 1), ("release", "r", 2)]
    assert kinds(conservation.resources(held)) == ["shared"]
    assert kinds(conservation.resources(held[:1])) == ["leaked"]
    assert kinds(conservation.resources([("release", "r", 1)])) == ["not_held"]
    assert kinds(conservation.resources([held[0], ("release", "r", 2)], all_returned=False)) == [
        "not_held"
    ]


def test_replicated_data_types():
    seen = [("a", [1, 2], "x"), ("b", [2, 1], "y")]
    assert kinds(crdt.strong_eventual(seen)) == ["diverged"]
    assert kinds(crdt.converged({"a": 1, "b": 2})) == ["not_converged"]
    assert kinds(crdt.monotone([{1, 2}, {1}])) == ["shrank"]
    assert kinds(crdt.merge_laws(lambda a, b: a, [1, 2])) == ["not_commutative"]
    assert "not_idempotent" in kinds(crdt.merge_laws(lambda a, b: a + b, [1, 2]))
    assert "not_associative" in kinds(crdt.merge_laws(lambda a, b: (a + b) / 2, [0.0, 1.0, 4.0]))
    below = crdt.merge_laws(min, [1, 2], at_most=lambda a, b: a <= b)
    assert kinds(below) == ["not_upper_bound"]

    def careless(a: set, b: set) -> set:
        a |= b
        return a

    assert kinds(crdt.merge_laws(careless, [{1}, {2}])) == ["merge_mutates"]


def test_overlays():
    nodes = [5, 20, 200]
    assert kinds(overlay.lookups([(5, 6, 200)], nodes)) == ["wrong_owner"]
    assert kinds(overlay.lookups([(5, 7, 20)], nodes, owner="xor")) == ["wrong_owner"]
    assert kinds(overlay.lookups([(5, 6, None)], nodes)) == ["no_owner"]
    assert kinds(overlay.ring({5: 20, 20: 200}, nodes)) == ["no_successor"]
    assert kinds(overlay.ring({5: 6, 20: 200, 200: 5}, nodes)) == ["dead_successor"]
    found = overlay.ring({5: 200, 20: 200, 200: 5}, nodes)
    assert kinds(found) == ["wrong_successor"] and "skips 1 " in found[0].message
    # Two rings, each closed in itself.
    loops = overlay.ring({1: 3, 3: 1, 2: 4, 4: 2}, [1, 2, 3, 4])
    assert kinds(loops) == ["wrong_successor"] * 4
    ring = {5: 20, 20: 200, 200: 5}
    assert kinds(overlay.ring(ring, nodes, {5: 200, 20: 5})) == ["wrong_predecessor"]
    assert kinds(overlay.reachable({5: [20], 20: [5]}, nodes)) == ["unreachable"] * 2
    one_way = overlay.reachable({5: [20, 200], 20: [5]}, nodes)
    assert kinds(one_way) == ["unreachable"] and one_way[0].evidence == (200, 5)
    assert kinds(overlay.reachable({5: [20]}, nodes, root=5)) == ["unreachable"]
