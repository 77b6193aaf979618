"""PyTorch's recordings as traces: a real gloo training, and profiles written by hand."""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from orrery.inputs.chakra import TraceError, check_order, columns_of
from orrery.models.taskgraph import faults, from_traces, replay, to_traces
from orrery.models.taskgraph.graph import COLLECTIVE, OPS
from orrery.systems.ops.chakra import from_profile
from orrery.systems.ops.chakra.torch_profile import step_times
from orrery.systems.ops.chakra.torch_trace import read_execution_trace
from orrery.world import World

SCRIPT = Path(__file__).with_name("torch_job.py")


def event(name, cat, start, length, tid=1, **args):
    return {"ph": "X", "name": name, "cat": cat, "pid": 1, "tid": tid, "ts": start, "dur": length,
            "args": args}  # fmt: skip


def profile(tmp_path, rank, events):
    path = tmp_path / f"prof.{rank}.json"
    told = {"world_size": 2, "pg_config": [{"pg_name": "0", "ranks": [0, 1]}]}
    path.write_text(json.dumps({"traceEvents": events, "distributedInfo": told}))
    return path


def gloo_step(shift, wait):
    """work 100 us, an all-reduce of 1 kB that takes 50 us after `wait`, 10 us of the host, work."""
    begin = shift + 110
    end = begin + wait + 50
    return [
        event("step 0", "user_annotation", shift, end + 60 - shift),
        event("aten::mm", "cpu_op", shift, 100), event("aten::inner", "cpu_op", shift + 10, 50),
        event("c10d::allreduce_", "cpu_op", shift + 100, 10),
        event("gloo:all_reduce", "user_annotation", begin, wait + 50, tid=2,
              **{"Input Dims": [[256]], "Input type": ["float"]}),
        event("aten::add", "cpu_op", end + 10, 50),
    ]  # fmt: skip


def test_host_work_collectives_and_gaps_are_taken_apart(tmp_path):
    paths = {0: profile(tmp_path, 0, gloo_step(5000, 30)),
             1: profile(tmp_path, 1, gloo_step(9030, 0))}  # fmt: skip
    graph = from_profile(paths)
    assert faults(graph) == []
    names = [graph.names[graph.name[t]] for t in range(len(graph)) if graph.rank[t] == 0]
    assert names == ["aten::mm", "c10d::allreduce_", "gloo:all_reduce", "host", "aten::add",
                     "end of step 0"]  # fmt: skip
    calls = graph.kind == COLLECTIVE
    assert graph.size_B[calls].tolist() == [1024.0, 1024.0]
    # Rank 0 came 30 us early; its wait is not taken for transfer.
    assert graph.duration_s[calls] == pytest.approx([50e-6, 50e-6])
    assert replay(graph).seconds == pytest.approx(220e-6)
    assert graph.groups == ((0, 1),)
    assert faults(from_traces(to_traces(graph))) == []


def test_kernels_wait_for_their_launch_and_a_sync_for_them(tmp_path):
    host = [
        event("aten::mm", "cpu_op", 0, 20),
        event("cudaLaunchKernel", "cuda_runtime", 5, 5, correlation=7),
        event("aten::item", "cpu_op", 30, 200),
        event("cudaStreamSynchronize", "cuda_runtime", 40, 180, correlation=8),
        event("gemm", "kernel", 15, 200, tid="stream 7", correlation=7),
    ]
    graph = from_profile({0: profile(tmp_path, 0, host)})
    names = [graph.names[n] for n in graph.name]
    launch, kernel, sync = (names.index(name) for name in ("aten::mm", "gemm", "aten::item"))
    assert graph.deps_of(kernel) == [launch] and kernel in graph.deps_of(sync)


@pytest.mark.parametrize("text, names", [
    ("{", "not JSON"), ("[]", "no table"), ("{}", "no traceEvents"),
    ('{"traceEvents": []}', "no operation of the host"),
])  # fmt: skip
def test_bad_profiles_are_refused(tmp_path, text, names):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=names):
        from_profile({0: path})
    with pytest.raises(TraceError, match="no profiles"):
        from_profile({})
    with pytest.raises(TraceError):
        read_execution_trace(path)


# -- a real one


def start(what, out):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen([sys.executable, str(SCRIPT), what, str(rank), "2", str(out), str(port)],
                         env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for rank in range(2)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=240)[1][-400:] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], said


@pytest.mark.slow
@pytest.mark.works_when("chakra", 2)
def test_a_real_gloo_training_is_captured_and_replayed(tmp_path):
    pytest.importorskip("torch", reason='torch is not installed; pip install "orrery[torch]"')
    start("train", tmp_path)
    start("probe", tmp_path)  # another run on the same machine calibrates the world
    size_B, took_s = np.array(json.loads((tmp_path / "probe.json").read_text())).T
    per_B_s, fixed_s = np.polyfit(size_B, took_s, 1, w=1 / took_s)
    # An all-reduce of two ranks by a ring takes two latencies and its bytes once.
    world = World.lan(2, jitter=0.0, latency_s=max(fixed_s / 2, 0.0), bandwidth_Bps=1 / per_B_s)
    graph = from_profile({rank: tmp_path / f"prof.{rank}.json" for rank in range(2)})
    assert faults(graph) == []  # every collective is matched on all ranks
    calls = [[(OPS[graph.op[t]], graph.size_B[t]) for t in
              np.flatnonzero((graph.kind == COLLECTIVE) & (graph.rank == rank))]
             for rank in range(2)]  # fmt: skip
    assert calls[0] == calls[1] and len(calls[0]) == 12 * 8
    bare = graph.without_communication_times()
    told = statistics.median(step_times(bare, replay(bare, world).end_s))
    steps = [json.loads((tmp_path / f"steps.{rank}.json").read_text()) for rank in range(2)]
    real = statistics.median(max(both) for both in zip(*steps, strict=True))
    print(f"step {real:.4f} s, replayed {told:.4f} s, off by {told / real - 1:+.1%}")
    assert told == pytest.approx(real, rel=0.15)
    # Without its compute the replay is nowhere near.
    idle = bare.with_durations(np.where(bare.kind == 0, 0.0, np.nan))
    assert statistics.median(step_times(idle, replay(idle, world).end_s)) < 0.85 * real
    metadata, nodes = read_execution_trace(tmp_path / "et.0.json", tmp_path / "prof.0.json")
    columns = columns_of(metadata, nodes)
    check_order(columns)
    assert (columns.type == 7).sum() == 12 * 8
    assert (columns.number("duration_ns") > 0).mean() > 0.5
