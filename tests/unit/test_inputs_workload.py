"""Workload: what it refuses, what its changed copies keep, and its file."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orrery.base.errors import PlatformLacks
from orrery.inputs import Poisson, Workload, WorkloadError, chain_blocks, hit_ratio, lru_hit_ratio
from orrery.inputs.describe import dispersion, gap_cv, rank_correlation, shared_blocks


def small(**changes) -> Workload:
    columns = {
        "arrival_s": [0, 1, 2, 3],
        "input_tokens": [40, 50, 60, 70],
        "output_tokens": [1, 2, 3, 4],
        "block_ids": [0, 1, 2, 0, 1, 5],
        "block_starts": [0, 3, 3, 6, 6],
        "session": [0, 0, 1, -1],
        "kind": [0, 1, 1, 0],
        "kinds": ("chat", "code"),
        "parent": [-1, 0, -1, 2],
        "delay_s": [0, 0.5, 0, 0.25],
        "parent_ids": [1, 2],
        "parent_starts": [0, 0, 0, 0, 2],
    }
    return Workload(**{**columns, **changes})


REFUSED = [
    ({"arrival_s": []}, "arrival_s", "empty"),
    ({"arrival_s": [0, float("nan"), 2, 3]}, "arrival_s[1]", "nan"),
    ({"arrival_s": [0, 1, float("inf"), 3]}, "arrival_s[2]", "inf"),
    ({"arrival_s": [-1, 1, 2, 3]}, "arrival_s[0]", "-1"),
    ({"arrival_s": [0, 2, 1, 3]}, "arrival_s[2]", "ascending"),
    ({"arrival_s": [[0, 1], [2, 3]]}, "arrival_s", "dimensions"),
    ({"arrival_s": ["a", "b", "c", "d"]}, "arrival_s", "plain numbers"),
    ({"arrival_s": [0, 1, 2, [3]]}, "arrival_s", "list of numbers"),
    ({"input_tokens": [1, 2, 3]}, "input_tokens", "3 values for 4 requests"),
    ({"input_tokens": [0, 2, 3, 4]}, "input_tokens[0]", ">= 1"),
    ({"input_tokens": [1, 2.5, 3, 4]}, "input_tokens[1]", "whole"),
    ({"input_tokens": [1, 2**31, 3, 4]}, "input_tokens[1]", "whole"),
    ({"output_tokens": [1, -2, 3, 4]}, "output_tokens[1]", ">= 1"),
    ({"output_tokens": [True, True, True, True]}, "output_tokens", "plain numbers"),
    ({"block_ids": [0, 1]}, "block_starts", "over 2 ids"),
    ({"block_starts": [0, 3, 2, 6, 6]}, "block_starts", "falls"),
    ({"block_starts": [0, 3, 6]}, "block_starts", "give 5"),
    ({"block_tokens": 0}, "block_tokens", "0"),
    ({"block_tokens": 32}, "block_ids", "at most"),
    ({"block_ids": [0, 1, 2, 1, 0, 5]}, "block_ids[3]", "chain_blocks"),
    ({"session": [0, 0, -2, 0]}, "session[2]", ">= -1"),
    ({"kind": [0, 1, 2, 0]}, "kind[2]", "index into kinds"),
    ({"kinds": ("a", "a")}, "kinds", "different"),
    ({"kinds": "chat"}, "kinds", "names"),
    ({"kinds": ()}, "kinds", "names"),
    ({"parent": [-1, 1, -1, 2]}, "parent[1]", "before its child"),
    ({"parent": [-1, 3, -1, 2]}, "parent[1]", "before its child"),
    ({"parent_ids": [1, 3]}, "parent_ids[1]", "before its child"),
    ({"parent": [-1, 0, -1, 0]}, "parent[3]", "not among"),
    ({"parent": [-1, 0, -1, -1]}, "parent[3]", "parent_ids has entries"),
    ({"delay_s": [0, -0.5, 0, 0]}, "delay_s[1]", ">= 0"),
    ({"delay_s": [0, float("nan"), 0, 0]}, "delay_s[1]", "finite"),
    ({"source": 7}, "source", "text"),
]


@pytest.mark.parametrize(("changes", "path", "says"), REFUSED, ids=lambda x: str(x)[:40])
def test_a_column_that_is_off_is_named_with_the_fix(changes, path, says):
    with pytest.raises(WorkloadError) as caught:
        small(**changes)
    assert caught.value.path == f"workload.{path}"
    assert says in str(caught.value)
    assert caught.value.fix


def test_columns_are_read_only_and_not_those_of_the_caller():
    times = np.array([0.0, 1.0])
    work = Workload(arrival_s=times, input_tokens=[1, 2], output_tokens=[1, 2])
    times[0] = 9
    assert work.arrival_s[0] == 0
    for name, column in work.columns().items():
        assert not column.flags.writeable, name
    with pytest.raises(AttributeError):
        work.arrival_s = times
    assert work.session.tolist() == [-1, -1] and work.parent.tolist() == [-1, -1]
    assert work.block_starts.tolist() == [0, 0, 0]


def test_the_hash_names_the_requests_and_nothing_else():
    work = small()
    assert work == small(source="elsewhere") and work.hash == small().hash
    assert hash(work) == hash(small())
    for changes in (
        {"output_tokens": [1, 2, 3, 5]},
        {"kinds": ("chat", "x")},
        {"block_tokens": 17},
    ):
        assert work != small(**changes), changes
    assert work.hash == "edbe09bf5b165bc5"  # the same on every machine and in every version


def test_taking_requests_keeps_their_blocks_and_their_parents():
    part = small().take([0, 2, 3])
    assert part.blocks(1).tolist() == [0, 1, 5]
    assert part.parents(2) == (1,) and part.parent[2] == 1 and part.delay_s[2] == 0.25
    assert small().parents(3) == (1, 2)
    alone = small().take(np.array([False, False, False, True]))
    assert alone.parents(0) == () and alone.delay_s[0] == 0
    assert small().head(2) == small().take([0, 1])
    late = small().between(1, 3)
    assert late.arrival_s.tolist() == [0, 1] and late.parent.tolist() == [-1, -1]
    assert small().of_kind("code").input_tokens.tolist() == [50, 60]


def test_a_parent_that_is_left_out_leaves_the_other_one():
    part = small().take([0, 1, 3])
    assert part.parents(2) == (1,) and part.parent[2] == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda w: w.head(0),
        lambda w: w.between(10, 20),
        lambda w: w.between(2, 1),
        lambda w: w.take([7]),
        lambda w: w.take([]),
        lambda w: w.take([0.5]),
        lambda w: w.take([True, False]),
        lambda w: w.scaled(0),
        lambda w: w.scaled(float("nan")),
        lambda w: w.at_rate(-1),
        lambda w: w.head(1).at_rate(3),
        lambda w: w.of_kind("chatt"),
        lambda w: w.replace(arrivals=[1]),
        lambda w: w.shuffled(),
        lambda w: w.reblocked(24),
        lambda w: w.reblocked(0),
        lambda w: w.merged(w.replace(block_tokens=20)),
        lambda w: w.save("x.csv"),
    ],
)
def test_a_wrong_call_is_refused_by_name(call):
    with pytest.raises(WorkloadError):
        call(small())


def test_rates_and_times_change_and_the_requests_stay():
    work = small()
    assert work.scaled(2).seconds == 1.5 and work.at_rate(4).rate_per_s == pytest.approx(4)
    other = work.with_arrivals(Poisson(rate_per_s=3), seed=5)
    assert other.input_tokens.tolist() == work.input_tokens.tolist()
    assert other == work.with_arrivals(Poisson(rate_per_s=3), seed=5)
    free = work.replace(parent=[-1] * 4, parent_ids=[], parent_starts=[0] * 5)
    mixed = free.shuffled(3)
    assert mixed.arrival_s.tolist() == work.arrival_s.tolist()
    assert sorted(mixed.input_tokens) == sorted(work.input_tokens)
    assert mixed == free.shuffled(3) and mixed.hash != free.shuffled(4).hash


def test_merged_workloads_keep_apart_what_is_apart():
    work, other = small(), small(kinds=("code", "chat")).scaled(0.9)
    both = work.merged(other)
    assert len(both) == 8 and set(both.kinds) == {"chat", "code"}
    assert hit_ratio(both) == hit_ratio(work)
    assert hit_ratio(work.merged(work, share_blocks=True)) > hit_ratio(work)
    assert len(np.unique(both.session[both.session >= 0])) == 4
    for i in range(len(both)):
        for j in both.parents(i):
            assert j < i
    assert sorted(both.kind_of(i) for i in range(8)) == ["chat"] * 4 + ["code"] * 4


def test_blocks_of_another_size_are_the_same_prompts():
    work = small()
    fine = work.reblocked(8)
    assert fine.blocks(0).tolist() == [0, 1, 2, 3, 4]  # 40 tokens: the third block is half full
    assert fine.blocks(2).tolist() == [0, 1, 2, 3, 10, 11]
    coarse = work.reblocked(32)
    assert coarse.block_ids.tolist() == [1, 1]
    assert shared_blocks(coarse).tolist() == [0, 0, 1, 0]


def test_hit_ratios_count_a_prefix_only():
    work = small()
    assert hit_ratio(work) == pytest.approx(2 / 6)
    assert lru_hit_ratio(work, 100) == pytest.approx(2 / 6)
    assert lru_hit_ratio(work, 2) == pytest.approx(2 / 6)  # the heads outlive their tails
    assert lru_hit_ratio(work, 1) == pytest.approx(1 / 6)
    assert lru_hit_ratio(work, 0) == 0


def test_unchained_ids_can_be_chained():
    ids = chain_blocks(np.array([7, 7, 8, 7]), np.array([0, 2, 4]))
    assert ids.tolist() == [0, 1, 2, 3]


def test_figures_of_the_summary():
    found = small().summary()
    assert found["requests"] == 4 and found["rate_per_s"] == 1 and found["gap_cv"] == 0
    assert found["input_tokens"]["mean"] == 55 and found["sessions"] == 2
    assert found["kinds"] == {"chat": 2, "code": 2} and found["waiting_for_others"] == 2
    assert gap_cv(np.array([0.0, 1, 4])) == pytest.approx(0.5)
    assert dispersion(np.array([0.0, 0.1, 0.2, 1.5, 2.0]), 1.0) == pytest.approx(0.5)
    assert rank_correlation(np.array([1, 2, 3]), np.array([9, 4, 1])) == -1
    assert rank_correlation(np.array([1, 1, 1]), np.array([9, 4, 1])) == 0


def test_tables_need_a_library_and_say_which(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(PlatformLacks, match="pip install pandas"):
        small().to_pandas()
    fake = types.SimpleNamespace(DataFrame=dict)
    monkeypatch.setitem(sys.modules, "polars", fake)
    table = small().to_polars()
    assert table["kind"] == ["chat", "code", "code", "chat"]
    assert table["blocks"].tolist() == [3, 0, 3, 0]
    assert {len(column) for column in table.values()} == {4}


# -- the file


def test_what_is_saved_is_what_is_loaded(tmp_path):
    work = small(source="here", answer_ids=[9], answer_starts=[0, 1, 1, 1, 1])
    path = work.save(tmp_path / "w.npz")
    again = Workload.load(path)
    assert again == work and again.source == "here"
    other = work.save(tmp_path / "v.npz")
    assert other.read_bytes() == path.read_bytes()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["v.npz", "w.npz"]


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path):
    with pytest.raises(WorkloadError):
        small().save(tmp_path / "missing" / "w.npz")
    assert not list(tmp_path.iterdir())


def test_files_of_others_are_refused(tmp_path):
    path = tmp_path / "x.npz"
    with pytest.raises(WorkloadError, match="not there"):
        Workload.load(path)
    np.savez(path, a=np.zeros(3))
    with pytest.raises(WorkloadError, match="no workload file"):
        Workload.load(path)
    head = np.frombuffer(b'{"schema": 99}', np.uint8)
    np.savez(path, orrery_workload=head)
    with pytest.raises(WorkloadError, match="schema 99"):
        Workload.load(path)
    head = np.frombuffer(b'{"schema": 1, "block_tokens": 16, "kinds": ["a"]}', np.uint8)
    np.savez(path, orrery_workload=head, arrival_s=np.zeros(1))
    with pytest.raises(WorkloadError, match="lacks"):
        Workload.load(path)
    objects = np.array([{}], dtype=object)
    np.savez(path, orrery_workload=head, arrival_s=objects)
    with pytest.raises(WorkloadError, match="damaged"):
        Workload.load(path)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_damaged_file_is_refused_and_never_half_read(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("w")
    whole = small().save(folder / "w.npz").read_bytes()
    torn = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for _ in range(data.draw(st.integers(1, 4))):
        if torn:
            torn[data.draw(st.integers(0, len(torn) - 1))] = data.draw(st.integers(0, 255))
    path = folder / "torn.npz"
    path.write_bytes(bytes(torn))
    try:
        read = Workload.load(path)
    except WorkloadError:
        return
    assert read == small()
