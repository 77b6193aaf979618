"""Chakra: traces that round-trip, replays that are exact, generators, clones, feeders, faults."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orrery import run
from orrery.base.errors import KnobError, UsageError
from orrery.base.rand import Stream
from orrery.inputs.aicb import read_aicb
from orrery.inputs.chakra import EtNode, Metadata, TraceError, columns_of
from orrery.lab import execution_traces
from orrery.models.taskgraph import (
    Builder,
    GraphError,
    TransformerJob,
    critical_path,
    faults,
    from_aicb,
    from_traces,
    read_traces,
    replay,
    to_traces,
    transformer_step,
    write_traces,
)
from orrery.models.taskgraph.graph import COMPUTE, SEND
from orrery.models.taskgraph.tiling import Program, Tile, tile
from orrery.models.taskgraph.transformer import collective_bytes, rank_of
from orrery.systems.collectives import AllReduce, Ring
from orrery.systems.ops.chakra import (
    Chakra,
    Feeder,
    analysis,
    describe,
    from_spans,
    recorded,
    statistical_clone,
    times_of,
)
from orrery.systems.ops.problems.trace_replay import TraceReplay, rescaled
from orrery.world import Crash, World, worlds

JOB = TransformerJob(layers=8, hidden=256, sequence=128, vocabulary=1000, dp=2, tp=2, pp=2,
                     micro_batches=4, layer_s=0.001)  # fmt: skip


def recorded_run(problem, world=None):
    """(graph as it ran, its times) of a run of the problem's job on the virtual engine."""
    made = run(Chakra(), problem=problem, world=world)
    assert not made.violations
    graph = problem.graph()
    times = times_of(graph, made.records)
    return recorded(graph, times), times


# -- 3: traces of virtual runs


@pytest.mark.works_when("chakra", 3)
@pytest.mark.parametrize("seed", range(2))
def test_recorded_durations_give_the_recorded_end_exactly(tmp_path, seed):
    graph, times = recorded_run(TraceReplay(data_seed=seed))
    write_traces(tmp_path, graph, times)
    again = from_traces(read_traces(tmp_path))
    assert faults(again) == []
    made = replay(again)
    assert round(made.seconds * 1e9) == round(times.seconds * 1e9)
    assert np.abs(made.end_s - times.end_s).max() < 1e-9
    # A duration that is off by a microsecond on the path is seen.
    task = critical_path(again).tasks[0]
    longer = again.duration_s.copy()
    longer[task] += 1e-6
    assert round(replay(again.with_durations(longer)).seconds * 1e9) != round(times.seconds * 1e9)


@pytest.mark.works_when("chakra", 3)
def test_any_run_of_orrery_becomes_traces_that_end_when_it_did(tmp_path):
    made = run(Ring(), problem=AllReduce(items=1000), world=World.lan(4), trace=True)
    paths = execution_traces.write(made, tmp_path / "ring.et")
    assert [path.name for path in paths] == [f"ring.{rank}.et" for rank in range(5)]
    again = replay(from_traces(read_traces(tmp_path)))
    assert round(again.seconds * 1e9) == round(made.seconds * 1e9)


@pytest.mark.works_when("chakra", 3)
@pytest.mark.parametrize("seed", range(3))
def test_twice_the_bandwidth_changes_it_as_the_critical_path_does(seed):
    job = dict(TraceReplay().job) | {"tp": 1, "pp": 4, "dp": 1}
    problem = TraceReplay(job=job, data_seed=seed)
    graph, _ = recorded_run(problem)
    bare = graph.without_communication_times()
    ends, paths = [], []
    for factor in (1.0, 2.0):
        world = rescaled(problem.world(), factor)
        times = replay(bare, world)
        assert times.shared == 0  # nothing is contended here
        ends.append(times.seconds)
        paths.append(critical_path(bare, world).seconds)
    assert ends == paths and ends[0] > ends[1]


@pytest.mark.works_when("chakra", 3)
@pytest.mark.parametrize("kind", ["lan", "star", "ring"])
def test_contended_links_equal_a_fresh_run(kind):
    problem = TraceReplay(data_seed=3)
    slow = getattr(World, kind)(8, jitter=0.0, latency_s=1e-5, bandwidth_Bps=2.5e8)
    graph, _ = recorded_run(problem, slow)  # the trace is of slow links
    fast = rescaled(slow, 2.0)
    _, fresh = recorded_run(problem, fast)
    bare = graph.without_communication_times()
    told = replay(bare, fast, unroll=16)
    assert told.shared > 0
    assert told.seconds == pytest.approx(fresh.seconds, rel=0.02)
    # Without sharing links, or with the recorded times, the answer is another one.
    alone = replay(bare, fast, unroll=16, contention=False).seconds
    assert abs(replay(graph).seconds - fresh.seconds) > 0.02 * fresh.seconds
    assert abs(alone - fresh.seconds) > abs(told.seconds - fresh.seconds)


# -- 4: generation


def test_collective_bytes_of_one_layer_are_counted_by_hand():
    job = TransformerJob(layers=1, hidden=8, sequence=4, vocabulary=10, dp=2, tp=2)
    told = collective_bytes(job)
    # Four all-reduces of 4 x 8 activations of 2 bytes, in each of two replicas.
    assert told["tp"] == 4 * 2 * (4 * 8 * 2)
    # 12 h^2 / 2 + 7 h / 2 + 6 h, two embeddings of 10 x 8 / 2, positions, the last norm; 4 bytes.
    parameters = 12 * 64 // 2 + 7 * 8 // 2 + 6 * 8 + 2 * (10 * 8 // 2) + 4 * 8 + 2 * 8
    assert told["dp"] == 2 * parameters * 4


@pytest.mark.works_when("chakra", 4)
@pytest.mark.parametrize("job", [
    JOB, TransformerJob(layers=4, hidden=64, sequence=16, dp=4, tp=1, pp=1),
    TransformerJob(layers=8, hidden=64, sequence=16, dp=1, tp=4, pp=4, micro_batches=8, chunks=2,
                   schedule="interleaved"),
    TransformerJob(layers=4, hidden=64, sequence=16, dp=8, tp=2, ep=4, experts=8,
                   micro_batches=2),
    TransformerJob(layers=6, hidden=96, sequence=8, dp=2, tp=3, pp=3, micro_batches=5,
                   schedule="gpipe"),
])  # fmt: skip
def test_generated_bytes_equal_the_closed_formulas(job):
    graph = transformer_step(job)
    assert faults(graph) == []
    told = collective_bytes(job)
    found = graph.total_bytes()
    assert found.get("all_reduce", 0.0) == told["tp"] + told["dp"]
    assert found.get("all_to_all", 0.0) == told["ep"]
    assert found.get("send", 0.0) == told["pp"]


@pytest.mark.works_when("chakra", 4)
def test_a_generated_trace_obeys_1f1b_also_when_it_runs():
    times = replay(transformer_step(JOB), World.lan(8, jitter=0.0))
    graph = transformer_step(JOB)
    for stage in range(JOB.pp):
        rank = rank_of(JOB, stage, 0, 0)
        work = [t for t in np.flatnonzero((graph.rank == rank) & (graph.kind == COMPUTE)).tolist()
                if "layer 0" in graph.names[graph.name[t]]
                and "attention" in graph.names[graph.name[t]]]  # fmt: skip
        work.sort(key=lambda t: times.start_s[t])
        seen = "".join(graph.names[graph.name[t]].split()[1][0] for t in work)
        warm = JOB.pp - 1 - stage
        assert seen == "F" * warm + "FB" * (JOB.micro_batches - warm) + "B" * warm


@pytest.mark.works_when("chakra", 4)
@pytest.mark.parametrize("seed", range(3))
def test_statistical_clones_match_quantiles_and_step_time(seed):
    graph, times = recorded_run(TraceReplay(spread=0.6, data_seed=seed))
    statistics = describe(graph)
    clone = statistical_clone(statistics, seed)
    assert not any("layer" in name for name in clone.names)  # names stay at home
    assert (clone.duration_s != graph.duration_s).mean() > 0.5
    for kind in np.unique(graph.kind):
        for level in (0.1, 0.25, 0.5, 0.75, 0.9):
            mine, theirs = (np.quantile(g.duration_s[graph.kind == kind], level)
                            for g in (clone, graph))  # fmt: skip
            assert mine == pytest.approx(theirs, rel=0.05, abs=1e-9), (kind, level)
    step_s = replay(clone).seconds
    assert step_s == pytest.approx(times.seconds, rel=0.15)
    # Durations that are drawn from one type for all would not do.
    mixed = Stream(seed, "mixed", "").numpy().permutation(graph.duration_s)
    assert abs(replay(graph.with_durations(mixed)).seconds / times.seconds - 1) > 0.15


# -- 5: faults before replay, and the feeder


def traces_of(job=JOB):
    return to_traces(transformer_step(job), replay(transformer_step(job), World.lan(job.ranks)))


@pytest.mark.works_when("chakra", 5)
def test_a_dropped_rank_file_is_reported_as_such(tmp_path):
    graph = transformer_step(JOB)
    write_traces(tmp_path, graph, replay(graph, World.lan(8)))
    (tmp_path / "trace.3.et").unlink()
    broken = from_traces(read_traces(tmp_path))
    found = faults(broken)
    assert [(v.kind, v.node) for v in found] == [("missing_rank", 3)]
    with pytest.raises(GraphError, match="missing_rank"):
        replay(broken)
    with pytest.raises(KnobError, match="rank 3 has no trace"):
        run(Chakra(), problem=TraceReplay(traces=str(tmp_path)), world=World.lan(8))


@pytest.mark.works_when("chakra", 5)
@pytest.mark.parametrize("change, told", [
    ("size", "size"), ("op", "kind"), ("drop", "calls"), ("group", "calls"),
])  # fmt: skip
def test_a_mismatched_group_is_reported_as_such(change, told):
    graph = transformer_step(JOB)
    call = int(np.flatnonzero((graph.kind == 4) & (graph.rank == 1))[2])
    columns = {name: getattr(graph, name).copy() for name in ("size_B", "op", "kind", "group")}
    if change == "size":
        columns["size_B"][call] += 1
    elif change == "op":
        columns["op"][call] = 2
    elif change == "drop":
        columns["kind"][call], columns["op"][call], columns["group"][call] = 0, -1, -1
    else:
        columns["group"][call] = [g for g, m in enumerate(graph.groups) if 1 in m][1]
    broken = msgspec.structs.replace(graph, **columns)
    found = faults(broken)
    assert {v.kind for v in found} == {"mismatched_group"} and told in found[0].message
    with pytest.raises(GraphError, match="mismatched_group"):
        replay(broken, World.lan(8))


@pytest.mark.works_when("chakra", 5)
def test_a_send_without_a_receive_is_reported_as_such():
    for drop, kind in ((3, "send_without_receive"), (2, "receive_without_send")):
        graph = transformer_step(JOB)
        task = int(np.flatnonzero(graph.kind == drop)[0])
        columns = {"kind": graph.kind.copy(), "peer": graph.peer.copy()}
        columns["kind"][task], columns["peer"][task] = 0, -1
        found = faults(msgspec.structs.replace(graph, **columns))
        assert [v.kind for v in found] == [kind]
    make = Builder(2)
    make.send(0, 1, 10.0)
    make.recv(1, 0, 11.0)
    assert [v.kind for v in faults(make.graph())] == ["mismatched_message"]


@st.composite
def dags(draw):
    size = draw(st.integers(1, 25))
    order = draw(st.permutations(range(size)))
    nodes = []
    for place, id in enumerate(order):
        before = draw(st.lists(st.sampled_from(order[:place]), max_size=4)) if place else []
        cut = draw(st.integers(0, len(before)))
        nodes.append(EtNode(id=id * 3, ctrl_deps=[3 * b for b in before[:cut]],
                            data_deps=[3 * b for b in before[cut:]]))  # fmt: skip
    return draw(st.permutations(nodes))


@pytest.mark.works_when("chakra", 5)
@settings(max_examples=60, deadline=None)
@given(dags(), st.randoms(use_true_random=False))
def test_the_feeder_never_issues_a_node_before_its_dependencies(nodes, random):
    feeder = Feeder(columns_of(Metadata(), nodes))
    waits = {node.id: {*node.ctrl_deps, *node.data_deps} for node in nodes}
    running, done = [], set()
    while feeder.left:
        while (id := feeder.take()) is not None:
            assert waits[id] <= done
            running.append(id)
        assert running, "the feeder is stuck"
        id = running.pop(random.randrange(len(running)))
        done.add(id)
        feeder.finish(id)
    assert done == set(waits)


def test_the_feeder_refuses_a_cycle_and_a_node_that_was_not_taken():
    with pytest.raises(TraceError, match="waits for itself"):
        Feeder(columns_of(Metadata(), [EtNode(id=1, data_deps=[2]), EtNode(id=2, data_deps=[1])]))
    with pytest.raises(TraceError, match="node 9 was not taken"):
        Feeder(columns_of(Metadata(), [EtNode(id=9)])).finish(9)


# -- 6: size


def many(ranks, tasks, tp=8):
    """Ranks with so many tasks each: compute, tensor-parallel calls, now and then gradients."""
    program, last, step = Program(), [], 0
    while len(program) < tasks - 1:
        step += 1
        last = [program.compute(1e-4 * (1 + step % 7), after=last)]
        if step % 4 == 0 and len(program) < tasks - 1:
            last = [program.collective("all_reduce", 0, 1e6, after=last)]
        if step % 40 == 0 and len(program) < tasks - 1:
            program.collective("all_reduce", 1, 1e8, after=last, stream=2)
    program.collective("all_reduce", 1, 1e8, after=last, stream=2)
    rank = np.arange(ranks)
    grid = rank.reshape(-1, tp)
    groups = [tuple(row) for row in [*grid.tolist(), *grid.T.tolist()]]
    table = np.stack([rank // tp, len(grid) + rank % tp], axis=1)
    none = np.empty((ranks, 0), np.int64)
    return tile([Tile(program, rank, table, none)], ranks=ranks, groups=tuple(groups))


@pytest.mark.works_when("chakra", 6)
def test_64_ranks_of_2000_nodes_replay_the_same_twice():
    graph = many(64, 2000)
    assert len(graph) == 128_000
    world = World.lan(64, latency_s=5e-6, jitter=0.0, bandwidth_Bps=50e9)
    one, two = (replay(graph, world) for _ in range(2))
    assert one.seconds == two.seconds and (one.end_s == two.end_s).all()
    assert one.shared > 0  # gradients overlap with tensor-parallel calls
    assert one.seconds >= critical_path(graph, world).seconds


@pytest.mark.slow
@pytest.mark.works_when("chakra", 6)
def test_1024_ranks_of_10000_nodes_replay_in_six_gigabytes():
    import resource

    graph = many(1024, 10_000)
    assert len(graph) == 10_240_000
    world = worlds.h100_pod(128, rank_per_gpu=True)
    one = replay(graph, world)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 6_000_000
    two = replay(graph, world)
    assert one.seconds == two.seconds and (one.end_s == two.end_s).all()


def simai():
    folder = os.environ.get("ORRERY_DATA", "")
    path = Path(folder) / "training" / "simai_9216gpu_workload.txt"
    if not folder or not path.is_file():
        pytest.skip("ORRERY_DATA has no training/simai_9216gpu_workload.txt")
    return read_aicb(path), worlds.h100_pod(1152, rank_per_gpu=True)


def test_the_9216_gpu_step_takes_what_its_critical_path_says():
    workload, world = simai()
    graph = from_aicb(workload, world)
    assert graph.weight.sum() == 9216 and graph.ranks == 12
    alone = replay(graph, world, contention=False).seconds
    assert alone == critical_path(graph, world).seconds
    # The compute of one stage, all micro-batches, is a lower bound; serial stages an upper one.
    work_s = workload.compute_ns.sum() / 1e9
    assert work_s < alone < 12 * work_s


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["interleaved", "1f1b", "flat"])
def test_the_9216_gpu_step_with_a_slow_nic_changes_as_the_critical_path_says(schedule):
    workload, even = simai()
    (group,) = even.groups
    machine = even.machines[group.machine]
    slow = even.replace(
        groups=(group.replace(count=1000), group.replace(count=1, machine="slow"),
                group.replace(count=8215)),
        machines={**even.machines, "slow": machine.replace(nic_Bps=machine.nic_Bps / 2)},
    )  # fmt: skip
    ends, paths = [], []
    for world in (even, slow):
        graph = from_aicb(workload, world, schedule=schedule)
        assert graph.weight.sum() == 9216
        ends.append(replay(graph, world, contention=False).seconds)
        paths.append(critical_path(graph, world).seconds)
    assert ends == paths and ends[1] > ends[0]


# -- analysis, spans, the part


def test_analysis_adds_up_and_finds_the_straggler():
    make = Builder(4)
    group = make.group(range(4), "dp 0")
    for rank in range(4):
        last = make.compute(rank, 1.0 + (rank == 2))
        other = make.compute(rank, 0.5, after=[last])
        call = make.collective(rank, "all_reduce", group, 1e9, after=[last], duration_s=1.0)
        make.compute(rank, 0.25, after=[call, other])
    graph = make.graph()
    found = analysis(graph, replay(graph))
    assert found.seconds == 3.25 and found.stragglers == [2]
    assert found.group_bytes == {"dp all_reduce": 1e9}
    assert next(graph.rank[task] for task in found.path) == 2
    assert found.path_by_kind_s == {"compute": 2.25, "collective": 1.0}
    assert found.compute_s.tolist() == [1.75, 1.75, 2.75, 1.75]
    # Where the others come early, half a second of work is done before the call can begin.
    assert found.overlapped_s.tolist() == [0.0, 0.0, 0.5, 0.0]
    assert found.exposed_s.tolist() == [1.0, 1.0, 0.5, 1.0]
    assert found.waited_s.tolist() == [1.0, 1.0, 0.0, 1.0] and found.caused_s[2] == 1.0


def test_spans_without_anything_to_replay_are_refused():
    with pytest.raises(GraphError, match="no message"):
        from_spans([])
    made = run(Ring(), problem=AllReduce(items=10), world=World.lan(2), trace=True)
    with pytest.raises(UsageError, match=r"\.et"):
        execution_traces.write(made, "run.trace")


def test_the_replay_from_traces_runs_on_the_virtual_engine(tmp_path):
    graph = transformer_step(JOB)
    write_traces(tmp_path, graph, replay(graph, World.lan(8, jitter=0.0)))
    problem = TraceReplay(traces=str(tmp_path), spread=0.0)
    made = run(Chakra(), problem=problem, world=World.lan(8, jitter=0.0, latency_s=2e-5))
    assert not made.violations and made.metrics["error"] < 0.001


def test_a_run_that_breaks_the_order_is_noticed():
    from orrery.systems.ops.problems.trace_replay import run_faults

    graph, times = recorded_run(TraceReplay())
    assert run_faults(graph, times) == []
    early = times.start_s.copy()
    task = int(np.flatnonzero(np.diff(graph.dep_starts) > 0)[5])
    early[task] = 0.0
    assert [v.kind for v in run_faults(graph, msgspec.structs.replace(times, start_s=early))] == [
        "issued_too_early"]  # fmt: skip
    late = times.end_s.copy()
    late[task] = np.nan
    assert [v.kind for v in run_faults(graph, msgspec.structs.replace(times, end_s=late))] == [
        "task_never_ran"]  # fmt: skip


def test_a_part_that_predicts_nonsense_is_a_violation():
    class Liar(Chakra):
        """Predicts what is no number."""

        def __call__(self, recording, world):
            return float("nan")

    assert [v.kind for v in run(Liar(), problem=TraceReplay()).violations] == ["no_prediction"]


@pytest.mark.parametrize("job", [{"layers": 0}, {"layers": "x"}, {"colour": 3}])
def test_bad_jobs_are_knob_errors(job):
    with pytest.raises((KnobError, GraphError)):
        run(Chakra(), problem=TraceReplay(job=job))


def test_a_world_of_another_size_is_refused():
    with pytest.raises(KnobError, match="8 ranks"):
        run(Chakra(), problem=TraceReplay(), world=World.lan(5))


# -- real mode


@pytest.mark.slow
def test_on_processes_the_same_collectives_run_and_nothing_is_violated():
    problem = TraceReplay(patience_s=20.0)
    real = run(Chakra(), problem=problem, engine="processes")
    virtual = run(Chakra(), problem=problem)
    assert not real.violations and real.decisions == virtual.decisions
    assert real.metrics["actual_s"] > 0


@pytest.mark.slow
def test_a_killed_rank_is_told_by_the_others_and_the_replay_ends():
    job = dict(TraceReplay().job) | {"layer_s": 0.05}
    problem = TraceReplay(job=job, patience_s=2.0)
    world = problem.world().with_faults(Crash(node=5, at_s=0.5))
    for engine in ("virtual", "processes"):
        made = run(Chakra(), problem=problem, world=world, engine=engine, until_s=60.0)
        assert made.ended == "driven"
        assert {v.kind for v in made.violations} == {"rank_lost"}


def test_messages_of_a_graph_are_sent_for_real_in_virtual_time():
    problem = TraceReplay()
    made = run(Chakra(), problem=problem)
    graph = problem.graph()
    moved = graph.size_B[graph.kind == SEND].sum()
    assert made.extra["transfer_bytes"] > moved > 0
