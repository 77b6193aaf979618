"""The check of determinism: it agrees with itself, and it must notice what does not."""

from __future__ import annotations

import pytest

from orrery import World
from orrery.base.errors import StoreError, UsageError
from orrery.lab import determinism
from orrery.lab.determinism import Case, Shot, Variant, divergence, shoot, verify_determinism
from orrery.world import Crash

TRIALS = "orrery.lab.trials:"


def chatter(**fields):
    return Case(name="chatter", part=TRIALS + "Chatter", world=World.lan(4).to_toml(), **fields)


def test_small_parts_agree_in_every_way():
    found = verify_determinism(2, cases=determinism._small_parts())
    assert found["mismatches"] == 0
    assert found["first_divergence"] is None
    assert found["failed"] == {}
    # Two seeds, three cases; plain twice and wire once, each kernel.
    assert found["runs"] == 2 * 3 * (2 * len(found["kernels"]) + 1)


def test_fresh_processes_with_other_hash_seeds_agree():
    found = verify_determinism(1, fresh=True, cases=[chatter()])
    assert found["mismatches"] == 0
    assert found["runs"] == 2 * len(found["kernels"]) + 1 + 2 * len(determinism.HASH_SEEDS)


@pytest.mark.slow
def test_every_built_system_is_in_the_suite_or_named_as_broken():
    from orrery.lab.discover import entries

    broken: dict[str, str] = {}
    names = {case.name for case in determinism.suite(broken)}
    built = {entry.id for entry in entries() if entry.built and entry.problem}
    assert built <= names | set(broken)
    assert {"chatter", "hauler"} <= names


def test_a_broken_system_is_a_failure_and_not_a_smaller_suite(monkeypatch):
    def refuse(id, problem):
        raise StoreError("gone")

    monkeypatch.setattr(determinism, "_case_of", refuse)
    monkeypatch.setattr(determinism, "_small_parts", lambda: [chatter()])
    found = verify_determinism(1)
    assert "gone" in found["failed"].values()
    assert found["cases"] == ["chatter"]


def test_a_part_that_fails_is_told_with_its_error(tmp_path):
    path = tmp_path / "failing_part.py"
    path.write_text("from orrery import Node\n\n\nclass Failing(Node):\n"
                    "    async def main(self):\n        raise ValueError('no')\n")  # fmt: skip
    case = Case(name="failing", part=f"{path}:Failing", world=World.lan(2).to_toml())
    found = verify_determinism(1, cases=[case])
    assert found["mismatches"] == 0
    assert "ValueError: no" in found["failed"]["failing"]


def test_kernels_that_differ_are_caught_and_the_event_is_named(monkeypatch):
    if len(determinism.known_kernels()) < 2:
        pytest.skip("no C kernel here")
    from orrery.engines.virtual import kernel_py

    send = kernel_py.Kernel.send

    def late(self, src, dst, slot, args, call, extra_ns, is_reply):
        # The fifth message is a nanosecond late on this kernel only.
        extra_ns += 1 if self.messages == 4 else 0
        send(self, src, dst, slot, args, call, extra_ns, is_reply)

    monkeypatch.setattr(kernel_py.Kernel, "send", late)
    monkeypatch.setattr(kernel_py.Kernel, "_refresh", lambda self: setattr(self, "plain", None))
    found = verify_determinism(1, cases=[chatter()])
    assert found["mismatches"] > 0
    first = found["first_divergence"]
    assert first["between"] == ["c kernel", "python kernel"]
    # The fifth message, and nothing before it, arrives at another time.
    rows = shoot(chatter(), 0, Variant("c"), trace=True).rows
    assert first["event"] < 10
    assert first["here"]["seq"] == rows[first["event"]][2]
    assert first["there"] != first["here"]
    assert first["there"]["time_s"] >= first["here"]["time_s"]


def test_the_fingerprint_covers_what_nodes_report():
    a = shoot(chatter(), 0, Variant("python"))
    b = shoot(chatter(knobs={"rounds": 11}), 0, Variant("python"))
    assert a.print != b.print
    assert a.print == shoot(chatter(), 0, Variant("python"), trace=True).print


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rows": [[0, 5, 1, 0, 1, "m", 9, False]]}, {"event": 0}),
        ({"rows": []}, {"event": 0, "there": None}),
        ({"sums": [2]}, {"event": 0}),
        ({"records": [["0.1", 0, {"x": 2}]]}, {"report": 0}),
        ({"error": "PartError: no"}, {"there": {"error": "PartError: no"}}),
        ({"print": "y"}, {"event": None}),
    ],
)
def test_divergence_names_the_first_difference(change, said):
    base = {"print": "x", "rows": [[0, 4, 1, 0, 1, "m", 9, False]], "sums": [1],
            "records": [["0.1", 0, {"x": 1}]]}  # fmt: skip
    found = divergence(Shot(**base), Shot(**{**base, **change}))
    assert {key: found[key] for key in said} == said


def test_a_thousand_seeds_take_the_cases_in_turn():
    cases = [msg for i in range(20) for msg in [Case(name=str(i), part="x", world="")]]
    first = determinism.turn(cases, 0)
    assert first == cases
    seen = {case.name for seed in range(10, 20) for case in determinism.turn(cases, seed)}
    assert seen == {case.name for case in cases}
    assert all(len(determinism.turn(cases, seed)) == determinism.PER_SEED for seed in (10, 999))


@pytest.mark.parametrize("seeds", [0, -1, 1.5, True, "3", 10**9])
def test_bad_numbers_of_seeds_are_named(seeds):
    with pytest.raises(UsageError, match="seeds="):
        verify_determinism(seeds)


def test_an_empty_list_of_cases_is_refused():
    with pytest.raises(UsageError, match="no case"):
        verify_determinism(1, cases=[])


def test_progress_counts_to_the_end():
    steps = []
    verify_determinism(
        2, cases=[chatter()], progress=lambda done, total: steps.append((done, total))
    )
    assert steps == [(1, 2), (2, 2)]


def test_faults_are_those_that_the_part_declares():
    world = determinism.under_faults(World.lan(5), ("crash", "restart", "drop"))
    assert world.network.drop == 0.05
    assert [fault.kind for fault in world.faults] == ["RandomCrashes"]
    assert determinism.under_faults(World.lan(5), ()) == World.lan(5)


@pytest.mark.slow
def test_all_systems_agree_over_many_seeds_in_fresh_processes():
    found = verify_determinism(60, fresh=True)
    assert found["first_divergence"] is None
    assert found["mismatches"] == 0


def test_a_crash_in_the_world_reaches_the_case():
    world = World.lan(3).with_faults(Crash(node=1, at_s=0.01))
    case = Case(name="c", part=TRIALS + "Chatter", world=world.to_toml())
    assert shoot(case, 0, Variant("python")).print != shoot(
        Case(name="c", part=TRIALS + "Chatter", world=World.lan(3).to_toml()), 0, Variant("python")
    ).print  # fmt: skip
