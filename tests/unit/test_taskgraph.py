"""Task graphs: replay against the critical path, networkx and a plain replay; folding."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest

from orrery.base.rand import Stream
from orrery.inputs.aicb import AicbWorkload
from orrery.models.taskgraph import (
    Builder,
    Costs,
    GraphError,
    TransformerJob,
    critical_path,
    faults,
    from_aicb,
    gpipe,
    interleaved,
    one_f_one_b,
    replay,
    transformer_step,
)
from orrery.models.taskgraph.graph import OPS
from orrery.models.taskgraph.unroll import hops, unroll
from orrery.systems.ops.chakra.part import random_graph
from orrery.systems.ops.chakra.plain import plain_replay
from orrery.world import World, worlds


def star(size):
    return World.star(size, latency_s=1e-3, bandwidth_Bps=1e6, jitter=0.0, model="flows")


def networkx_end(graph, world):
    """The longest path by networkx, on a graph made task by task from the definition."""
    costs = Costs(world)
    dag, job_of, counts, last, sends = nx.DiGraph(), {}, {}, {}, {}
    for task in range(len(graph)):
        rank, group = int(graph.rank[task]), int(graph.group[task])
        number = counts[rank, group] = counts.get((rank, group), -1) + 1
        job_of[task] = ("call", group, number) if group >= 0 else ("task", task)
        key = (rank, int(graph.peer[task]), int(graph.tag[task]))
        if graph.kind[task] == 2:
            sends.setdefault(key, []).append(task)
    for task in range(len(graph)):
        me, kind, size = job_of[task], int(graph.kind[task]), float(graph.size_B[task])
        seconds = float(graph.duration_s[task])
        if math.isnan(seconds) and kind == 2:
            load = costs.message(int(graph.rank[task]), int(graph.peer[task]), size)
            seconds = load.alone_s(costs.capacity_Bps)
        elif math.isnan(seconds):
            members = graph.groups[int(graph.group[task])]
            seconds = costs.collective(OPS[graph.op[task]], members, size).alone_s(
                costs.capacity_Bps)  # fmt: skip
        dag.add_node(me, seconds=seconds)
        before = {job_of[dep] for dep in graph.deps_of(task)}
        lane = (int(graph.rank[task]), int(graph.stream[task]))
        if lane[1] >= 0:
            before |= {job_of[last[lane]]} if lane in last else set()
            last[lane] = task
        if kind == 3:
            key = (int(graph.peer[task]), int(graph.rank[task]), int(graph.tag[task]))
            before.add(job_of[sends[key].pop(0)])
        dag.add_edges_from((each, me) for each in before if each != me)
    end = {}
    for me in nx.topological_sort(dag):
        start = max((end[each] for each in dag.predecessors(me)), default=0.0)
        end[me] = start + dag.nodes[me]["seconds"]
    return max(end.values(), default=0.0)


@pytest.mark.parametrize("seed", range(12))
def test_replay_alone_equals_the_critical_path_and_networkx_exactly(seed):
    size = 2 + seed % 4
    graph, world = random_graph(Stream(seed, "graphs", "random"), size, 25), star(size)
    alone = replay(graph, world, contention=False).seconds
    assert alone == critical_path(graph, world).seconds
    assert alone == networkx_end(graph, world)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("most", [0, 16])
def test_shared_links_equal_the_plain_replay(seed, most):
    size = 2 + seed % 4
    graph, world = random_graph(Stream(seed, "graphs", "shared"), size, 14), star(size)
    fast = replay(graph, world, unroll=most).seconds
    assert fast == pytest.approx(plain_replay(unroll(graph, most).graph, world), rel=1e-9)
    assert fast >= replay(graph, world, contention=False, unroll=most).seconds - 1e-12


def test_two_messages_share_a_link_fairly():
    make = Builder(3)
    long, short = make.send(0, 2, 1e9), make.send(1, 2, 0.5e9)
    make.recv(2, 0, 1e9)
    make.recv(2, 1, 0.5e9)
    times = replay(make.graph(), World.lan(3, jitter=0.0, latency_s=0.0005))
    # Half each until the short one is through, then all for the long one; then the latency.
    assert times.end_s[short] == pytest.approx(0.8005) and times.shared == 1
    assert times.end_s[long] == pytest.approx(1.2005)


def test_a_collective_on_its_own_has_its_closed_form():
    n, size, world = 4, 1e9, World.lan(4, jitter=0.0)
    latency_s, rate = world.network.latency_s, world.network.bandwidth_Bps
    for op, steps, share in (("all_reduce", 2 * (n - 1), 2 * (n - 1) / n),
                             ("all_gather", n - 1, (n - 1) / n), ("all_to_all", 1, (n - 1) / n),
                             ("barrier", 2, 0.0), ("broadcast", 1, n - 1)):  # fmt: skip
        make = Builder(n)
        group = make.group(range(n))
        for rank in range(n):
            make.collective(rank, op, group, size if op != "barrier" else 0)
        seconds = replay(make.graph(), world).seconds
        assert seconds == pytest.approx(steps * latency_s + share * size / rate), op
        assert replay(make.graph(), world, unroll=8).seconds == pytest.approx(seconds, rel=1e-6), op


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_unrolled_collectives_send_what_the_real_ones_send(op, count):
    from orrery.parts.collectives import Ring, part_items

    if op == "reduce_scatter_block":
        pytest.skip("the schema's other name for reduce_scatter")
    size = 1003
    sent = np.zeros(count)
    for hop in hops(op, count, size, root=1 % count):
        sent[hop.source] += hop.size_B
    blocks = [-(-size // count)] * count if "gather" in op else part_items(size, count)
    told = [Ring().sent_B(op, rank, blocks, 1, 1 % count) for rank in range(count)]
    assert sent.tolist() == told


def test_islands_use_all_their_rails():
    world = worlds.h100_pod(2, rank_per_gpu=True)
    make = Builder(16)
    group = make.group(range(16))
    for rank in range(16):
        make.collective(rank, "all_reduce", group, 1e9)
    graph = make.graph()
    many, one = (replay(graph, Costs(world, multi_rail=rails)).seconds for rails in (True, False))
    alpha_s = 30 * world.network.latency_s
    assert (one - alpha_s) / (many - alpha_s) == pytest.approx(8.0)


def test_recorded_collectives_let_each_member_end_for_itself():
    make = Builder(2)
    group = make.group(range(2))
    for rank, (work, took) in enumerate(((1.0, 0.5), (3.0, 0.25))):
        after = make.compute(rank, work)
        make.collective(rank, "all_reduce", group, 8, duration_s=took, after=[after])
    assert replay(make.graph()).end_s.tolist() == [1.0, 3.5, 3.0, 3.25]
    make = Builder(2)
    group = make.group(range(2))
    for rank, work in enumerate((1.0, 3.0)):
        after = make.compute(rank, work)
        make.collective(rank, "broadcast", group, 8, duration_s=0.5, after=[after])
    # The root waits for nobody, the other for the root.
    assert replay(make.graph()).end_s.tolist() == [1.0, 1.5, 3.0, 3.5]


# -- schedules


def order_is_legal(steps, micro_batches, chunks):
    forward = [s for s in steps if s.direction == "F"]
    backward = [s for s in steps if s.direction == "B"]
    wanted = {(m, c) for m in range(micro_batches) for c in range(chunks)}
    assert {(s.micro_batch, s.chunk) for s in forward} == wanted
    assert {(s.micro_batch, s.chunk) for s in backward} == wanted and len(steps) == 2 * len(wanted)
    for s in backward:
        assert steps.index(s) > steps.index(s._replace(direction="F"))


@pytest.mark.parametrize("stages, micro_batches", [(1, 1), (2, 3), (4, 8), (8, 4)])
def test_schedules_run_every_pass_once(stages, micro_batches):
    for stage in range(stages):
        for make in (gpipe, one_f_one_b):
            order_is_legal(make(stage, stages, micro_batches), micro_batches, 1)
        if micro_batches % stages == 0:
            order_is_legal(interleaved(stage, stages, micro_batches, 2), micro_batches, 2)


def test_1f1b_never_holds_more_than_its_share_of_activations():
    for stage in range(4):
        held = most = 0
        for step in one_f_one_b(stage, 4, 16):
            held += 1 if step.direction == "F" else -1
            most = max(most, held)
        assert most == 4 - stage
    held = [1 if s.direction == "F" else -1 for s in gpipe(0, 4, 16)]
    assert max(np.cumsum(held)) == 16


@pytest.mark.parametrize("chunks", [1, 2])
def test_the_bubble_is_that_of_the_paper(chunks):
    p, m, layers = 4, 8, 8
    job = TransformerJob(layers=layers, hidden=1024, vocabulary=1, sequence=1, pp=p, dtype_B=1,
                         micro_batches=m, chunks=chunks, layer_s=1.0,
                         schedule="interleaved" if chunks > 1 else "1f1b")  # fmt: skip
    world = World.lan(p, latency_s=0.0, jitter=0.0, bandwidth_Bps=1e15)
    work = m * 3 * layers / p
    assert replay(transformer_step(job), world).seconds == pytest.approx(
        work * (1 + (p - 1) / (chunks * m)), rel=1e-3)  # fmt: skip


# -- folding


def small_workload():
    rows = [("grads", (0, 0, 900), (0, 0, 4_000_000), ("", "", "all_reduce"), ("", "", "dp"))]
    for _ in range(4):  # micro-batches
        rows.append(("embedding_layer", (5000, 0, 0), (64_000, 0, 0), ("all_reduce", "", ""),
                     ("tp", "", "")))  # fmt: skip
        for _ in range(4):
            rows.append(("attention", (9000, 8000, 7000), (96_000, 96_000, 0),
                         ("all_gather", "reduce_scatter", ""), ("tp", "tp", "")))  # fmt: skip
            rows.append(("moe", (20_000, 20_000, 0), (256_000, 256_000, 0),
                         ("all_to_all", "all_to_all", ""), ("ep", "ep", "")))  # fmt: skip
    names, compute, sizes, ops, groups = zip(*rows, strict=True)
    return AicbWorkload("HYBRID", 2, 2, 4, 2, 4, 64, 128_000, list(names), np.array(compute),
                        np.array(sizes), list(ops), list(groups))  # fmt: skip


def one_slow(world, node):
    (group,) = world.groups
    machine = world.machines[group.machine]
    slow = machine.replace(nic_Bps=machine.nic_Bps / 2)
    parts = (group.replace(count=node), group.replace(count=1, machine="slow"),
             group.replace(count=group.count - node - 1))  # fmt: skip
    return world.replace(groups=parts, machines={**world.machines, "slow": slow})


@pytest.mark.parametrize("schedule", ["interleaved", "1f1b", "gpipe", "flat"])
def test_folded_ranks_behave_as_all_of_them(schedule):
    even = worlds.h100_pod(8, rank_per_gpu=True)
    for world in (even, one_slow(even, 13)):
        folded = from_aicb(small_workload(), world, schedule=schedule)
        whole = from_aicb(small_workload(), world, schedule=schedule, fold=False)
        assert faults(folded) == faults(whole) == []
        assert folded.ranks < whole.ranks == 64 and folded.weight.sum() == 64
        for contention in (False, True):
            one, all_ = (replay(g, world, contention=contention) for g in (folded, whole))
            assert one.seconds == pytest.approx(all_.seconds, rel=1e-12)
            ends = all_.rank_ends(whole)[folded.node]
            assert one.rank_ends(folded) == pytest.approx(ends, rel=1e-9)


def test_a_slow_nic_breaks_the_symmetry_and_costs_what_the_critical_path_says():
    even = worlds.h100_pod(8, rank_per_gpu=True)
    slow = one_slow(even, 13)
    graphs = [from_aicb(small_workload(), world) for world in (even, slow)]
    assert graphs[0].ranks == 4 < graphs[1].ranks
    ends = [replay(g, w, contention=False).seconds
            for g, w in zip(graphs, (even, slow), strict=True)]  # fmt: skip
    paths = [critical_path(g, w).seconds for g, w in zip(graphs, (even, slow), strict=True)]
    assert ends[1] - ends[0] == paths[1] - paths[0] > 0


# -- refusals


def test_bad_graphs_are_refused_by_field():
    make = Builder(2)
    group = make.group([0, 1])
    for wrong, names in (
        (lambda: Builder(0), "ranks"), (lambda: make.group([0, 0]), "group"),
        (lambda: make.group([5]), "group"), (lambda: make.group([]), "group"),
        (lambda: make.collective(0, "all_sing", group, 1), "all_sing"),
        (lambda: make.collective(0, "all_reduce", 7, 1), "group"),
    ):  # fmt: skip
        with pytest.raises(GraphError, match=names):
            wrong()
    for bad in (
        lambda m: m.compute(3, 1.0), lambda m: m.compute(0, -1.0), lambda m: m.send(0, 0, 1.0),
        lambda m: m.compute(0, math.inf), lambda m: m.send(0, 1, math.nan),
        lambda m: m.compute(0, 1.0, after=[9]),
    ):  # fmt: skip
        make = Builder(2)
        bad(make)
        with pytest.raises(GraphError):
            make.graph()


def test_a_graph_without_a_world_needs_durations():
    make = Builder(2)
    make.send(0, 1, 10.0)
    make.recv(1, 0, 10.0)
    with pytest.raises(GraphError, match="no duration"):
        replay(make.graph())
    with pytest.raises(GraphError, match="larger world"):
        replay(make.graph(), World.lan(1))


def test_a_cycle_through_ranks_is_named_and_does_not_hang():
    make = Builder(2)
    make.recv(0, 1, 1.0)
    make.send(0, 1, 1.0, after=[0])
    make.recv(1, 0, 1.0)
    make.send(1, 0, 1.0, after=[2])
    for run in (replay, critical_path):
        with pytest.raises(GraphError, match="waits for itself"):
            run(make.graph(), World.lan(2))


@pytest.mark.parametrize("field, value", [
    ("layers", 0), ("layers", 3), ("tp", 7), ("ep", 2), ("micro_batches", -1), ("hidden", 2.5),
    ("layer_s", math.nan),
])  # fmt: skip
def test_bad_jobs_are_refused_by_field(field, value):
    with pytest.raises(GraphError, match="job"):
        transformer_step(TransformerJob(**{"pp": 2, "hidden": 64, "layers": 4, field: value}))


def test_a_folded_graph_wants_symmetric_links():
    graph = from_aicb(small_workload())
    with pytest.raises(GraphError, match="folded"):
        replay(graph, World.ring(64))
    with pytest.raises(GraphError, match="larger world"):
        from_aicb(small_workload(), World.lan(8))


def test_rooflines_time_work_without_a_duration():
    world = worlds.h100_pod(1, rank_per_gpu=True)
    make = Builder(1)
    make.compute(0, flops=989.4e12, bytes=1.0)
    make.memory(0, 3.35e12)
    times = replay(make.graph(), world)
    took = times.end_s - times.start_s
    assert took[0] == pytest.approx(1.0)
    assert took[1] == pytest.approx(
        3.35e12 / world.machine_of(0).accelerators[0].memory_Bps)  # fmt: skip
