"""Large traces and histories that are causal by construction, to try the checker on.

Replicas take writes of their sessions at once and now and then append what another replica's log
has and theirs has not, in its order; so each log keeps causality, and each its own order of what is
concurrent.
"""

from __future__ import annotations

from orrery.base.errors import SpecError
from orrery.base.rand import Stream
from orrery.systems.protocols.light_cone_consistency.traces import Look, Trace, Write
from orrery.systems.protocols.problems.history_cases import Case, Plain, case_of


def causal_trace(events: int, *, replicas: int = 4, sessions: int = 12, keys: int = 50,
                 seed: int = 0) -> Trace:  # fmt: skip
    """A trace of so many writes and looks, the same for the same arguments. O(events x replicas).

    >>> trace = causal_trace(100, seed=1)
    >>> len(trace.writes) + len(trace.looks)
    100
    """
    return _play(events, replicas, sessions, keys, seed)[0]


def causal_case(operations: int, *, replicas: int = 4, sessions: int = 12, keys: int = 50,
                seed: int = 0) -> Case:  # fmt: skip
    """The same as a client history, which knows nothing of logs and views."""
    return case_of(_play(operations, replicas, sessions, keys, seed)[1])


def _play(
    events: int, replicas: int, sessions: int, keys: int, seed: int
) -> tuple[Trace, list[Plain]]:
    for name, count in (("events", events), ("replicas", replicas), ("sessions", sessions),
                        ("keys", keys)):  # fmt: skip
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise SpecError(name, f"{count!r} is no count", "give a whole number >= 1")
    rng = Stream(seed, "light-cone", "play")
    logs: list[list[int]] = [[] for _ in range(replicas)]
    has: list[set[int]] = [set() for _ in range(replicas)]
    read_to = [[0] * replicas for _ in range(replicas)]
    shown: list[dict[int, int]] = [{} for _ in range(replicas)]
    since: list[list[int]] = [[] for _ in range(sessions)]
    own = [0] * sessions
    writes: list[Write] = []
    looks: list[Look] = []
    ops: list[Plain] = []
    for _ in range(events):
        session, key = rng.below(sessions), rng.below(keys)
        at = session % replicas
        if rng.random() < 0.5:
            w = len(writes)
            writes.append(Write(session, f"k{key}", tuple(since[session])))
            since[session], own[session] = [], own[session] + 1
            logs[at].append(w)
            has[at].add(w)
            shown[at][key] = w
            ops.append((session, "write", f"k{key}", w + 1))
        else:
            got = shown[at].get(key, -1)
            looks.append(Look(session, at, len(logs[at]), own[session], f"k{key}", got))
            if got >= 0:
                since[session].append(got)
            ops.append((session, "read", f"k{key}", got + 1 if got >= 0 else None))
        if rng.random() < 0.2 and replicas > 1:
            at, other = rng.below(replicas), rng.below(replicas)
            for w in logs[other][read_to[at][other] :]:
                if w not in has[at]:
                    logs[at].append(w)
                    has[at].add(w)
                    shown[at][int(writes[w].key[1:])] = w
            read_to[at][other] = len(logs[other])
    return Trace(tuple(writes), tuple(map(tuple, logs)), tuple(looks)), ops
