"""A replay written the slow and obvious way, to hold the fast one against.

Every step looks at everything: which tasks are ready, which communications run, what each link
leaves each of them. Quadratic; for small graphs.
"""

from __future__ import annotations

import math

from orrery.models.taskgraph.graph import COLLECTIVE, FREE, OPS, RECV, SEND, TaskGraph
from orrery.models.taskgraph.network import Costs, Load
from orrery.world import World

TINY = 1e-15


def plain_replay(graph: TaskGraph, world: World | None, contention: bool = True) -> float:
    """The seconds that a graph takes; an ordinary (not folded) graph, whose traces agree."""
    costs = None if world is None else Costs(world)
    jobs = _jobs(graph)
    state = dict.fromkeys(jobs, "waits")
    done_s: dict[tuple[int, ...], float] = {}
    running: dict[tuple[int, ...], list[float]] = {}  # job -> [share left, latency left]
    until: dict[tuple[int, ...], float] = {}
    now = 0.0
    while len(done_s) < len(jobs):
        for key, (tasks, waits) in jobs.items():
            if state[key] == "waits" and all(each in done_s for each in waits):
                state[key] = "runs"
                seconds = _known(graph, costs, tasks)
                if seconds is None:
                    running[key] = [1.0, _load(graph, costs, tasks).alpha_s]
                else:
                    until[key] = now + seconds
        rates = _rates(graph, costs, running, jobs, contention)
        ends = dict(until.items())
        for key, (left, alpha_s) in running.items():
            ends[key] = now + (left / rates[key] if left > 0 else alpha_s)
        now_next = min(ends.values())
        for key, share in list(running.items()):
            if share[0] > 0:
                share[0] -= rates[key] * (now_next - now)
                if ends[key] <= now_next + TINY:
                    share[0] = 0.0
                    if share[1] > 0:
                        ends[key] = math.inf  # the last byte is on its way
            else:
                share[1] -= now_next - now
        now = now_next
        for key, end in ends.items():
            if end <= now + TINY:
                done_s[key] = now
                running.pop(key, None)
                until.pop(key, None)
    return now


Jobs = dict[tuple[int, ...], tuple[tuple[int, ...], set[tuple[int, ...]]]]


def _jobs(graph: TaskGraph) -> Jobs:
    """What happens as one thing: (its tasks, what it waits for), by its tasks."""
    called: dict[tuple[int, int, int], list[int]] = {}
    counts: dict[tuple[int, int], int] = {}
    for task in range(len(graph)):
        if graph.kind[task] == COLLECTIVE:
            place = (int(graph.group[task]), int(graph.rank[task]))
            number = counts.get(place, 0)
            counts[place] = number + 1
            called.setdefault((place[0], number, 0), []).append(task)
    of: dict[int, tuple[int, ...]] = {}
    for tasks in called.values():
        for task in tasks:
            of[task] = tuple(tasks)
    for task in range(len(graph)):
        of.setdefault(task, (task,))
    jobs: Jobs = {key: (key, set()) for key in of.values()}
    last: dict[tuple[int, int], int] = {}
    sent: dict[tuple[int, int, int], list[int]] = {}
    for task in range(len(graph)):
        if graph.kind[task] == SEND:
            key = (int(graph.rank[task]), int(graph.peer[task]), int(graph.tag[task]))
            sent.setdefault(key, []).append(task)
    for task in range(len(graph)):
        waits = jobs[of[task]][1]
        waits |= {of[dep] for dep in graph.deps_of(task)}
        if graph.kind[task] == RECV:
            key = (int(graph.peer[task]), int(graph.rank[task]), int(graph.tag[task]))
            waits.add(of[sent[key].pop(0)])
        if graph.stream[task] != FREE:
            lane = (int(graph.rank[task]), int(graph.stream[task]))
            if lane in last:
                waits.add(of[last[lane]])
            last[lane] = task
        waits.discard(of[task])
    return jobs


def _known(graph: TaskGraph, costs: Costs | None, tasks: tuple[int, ...]) -> float | None:
    task = tasks[0]
    if graph.kind[task] == RECV:
        return 0.0
    seconds = float(graph.duration_s[task])
    if not math.isnan(seconds):
        return seconds
    if graph.kind[task] < SEND:
        assert costs is not None
        return float(costs.work_s(graph)[task])
    return None


def _load(graph: TaskGraph, costs: Costs | None, tasks: tuple[int, ...]) -> Load:
    assert costs is not None
    task = tasks[0]
    size_B = float(graph.size_B[task])
    if graph.kind[task] == SEND:
        return costs.message(int(graph.rank[task]), int(graph.peer[task]), size_B)
    members = graph.groups[int(graph.group[task])]
    return costs.collective(OPS[graph.op[task]], members, size_B, int(graph.tag[task]))


def _rates(
    graph: TaskGraph, costs: Costs | None, running: dict[tuple[int, ...], list[float]],
    jobs: Jobs, contention: bool,
) -> dict[tuple[int, ...], float]:  # fmt: skip
    """The share of each communication that is done in a second: fill until a link is full."""
    loads = {key: _load(graph, costs, jobs[key][0]) for key, (left, _) in running.items() if left}
    rates: dict[tuple[int, ...], float] = dict.fromkeys(running, math.inf)
    if costs is None or not loads:
        return rates
    capacity = costs.capacity_Bps
    if not contention:
        for key, load in loads.items():
            alone_s = load.alone_s(capacity) - load.alpha_s
            rates[key] = 1 / alone_s if alone_s > 0 else math.inf
        return rates
    open_ = {key: load for key, load in loads.items() if len(load.links)}
    left = {int(link): float(capacity[link]) for load in open_.values() for link in load.links}
    while open_:
        use = dict.fromkeys(left, 0.0)
        for load in open_.values():
            for link, size in zip(load.links, load.bytes, strict=True):
                use[int(link)] += size / load.bytes.max()
        tight = min((link for link in use if use[link] > 0), key=lambda k: left[k] / use[k])
        level = left[tight] / use[tight]
        for key in [key for key, load in open_.items() if tight in load.links]:
            load = open_.pop(key)
            rates[key] = level / load.bytes.max()
            for link, size in zip(load.links, load.bytes, strict=True):
                left[int(link)] -= level * size / load.bytes.max()
    return rates
