"""How fast are the protocols of the room, beside the same jobs written with SimPy?

For PBFT (31 replicas), Chord and Kademlia (4096 nodes at rest) and a proof-of-work chain: messages
simulated per CPU-second, set-up included, ours and SimPy's in the same run, and the outcome of each
so that one sees that the jobs are the same (our Kademlia also pings the oldest of a full bucket,
our PBFT also tells its status and makes checkpoints). Kademlia stands beside the `kademlia`
package too, as far as that reaches. Then what the verifiers do in a CPU-second: states of the
enumeration, and of TACO's symbolic procedures the checks of the solver, one or more for each
symbolic state.
`python -m bench.protocols --scale 0.1` is quick.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from bench._protocols_kademlia import measure as measure_package
from bench._protocols_simpy import JOBS
from orrery import World, run
from orrery.systems.protocols import (
    Blockchain,
    Chord,
    ExplicitState,
    Kademlia,
    Lookup,
    Pbft,
    ProofOfWork,
    Taco,
    TotalOrder,
)
from orrery.systems.protocols.problems.lookup import ring_of
from orrery.systems.protocols.taco import UnsupportedProperty, library

NEVER_S = 1e8  # no upkeep within the run: the job is the lookups
BITS = 48
AUTOMATA = ("strb", "naive_voting", "frb", "aba")


def ours(part: Any, problem: Any, n: int, shown: tuple[str, ...]) -> dict[str, Any]:
    """One run of ours: messages per CPU-second and what came out."""
    began = time.process_time()
    made = run(part, problem=problem, world=World.lan(n), seed=1)
    cpu_s = time.process_time() - began
    return {
        "messages": made.messages, "cpu_s": cpu_s, "per_cpu_s": made.messages / cpu_s,
        "violations": len(made.violations), **{name: made.metrics[name] for name in shown},
    }  # fmt: skip


def peer(name: str, *settings: Any) -> dict[str, Any]:
    """The same job by SimPy; named as skipped where it is not installed."""
    try:
        import simpy
    except ImportError:
        return {"skipped": 'SimPy is not installed; pip install "orrery[bench]"'}
    began = time.process_time()
    messages, outcome = JOBS[name](simpy, *settings)
    cpu_s = time.process_time() - began
    return {"messages": messages, "cpu_s": cpu_s, "per_cpu_s": messages / cpu_s, **outcome}


def beside(mine: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Both, and how many times as fast ours is."""
    ratio = mine["per_cpu_s"] / other["per_cpu_s"] if "per_cpu_s" in other else None
    return {"orrery": mine, "simpy": other, "ratio": ratio}


def pbft(scale: float) -> dict[str, Any]:
    """31 replicas order the requests of four clients."""
    requests = max(2, round(25 * scale))
    mine = ours(Pbft(), TotalOrder(clients=4, requests=requests), 31, ("requests_per_s",))
    return beside(mine, peer("pbft", 31, 4, requests))


def hash_table(name: str, scale: float) -> dict[str, Any]:
    """Lookups in a network of 4096 nodes at rest."""
    n = max(64, round(4096 * min(1.0, scale)))
    lookups = max(50, round({"chord": 6000, "kademlia": 1000}[name] * scale))
    part = Chord(stabilise_s=NEVER_S, fix_s=NEVER_S) if name == "chord" else Kademlia(
        upkeep_s=NEVER_S)  # fmt: skip
    problem = Lookup(keys=lookups, lookups=lookups, final=0, join_s=0.0, spread_s=1.0)
    mine = ours(part, problem, n, ("mean_hops", "success_rate"))
    places, _ = ring_of(n, BITS)
    found = beside(mine, peer(name, places, BITS, lookups))
    return {"nodes": n, "lookups": lookups, **found}


def chain(scale: float) -> dict[str, Any]:
    """Sixteen miners."""
    blocks = max(20, round(600 * scale))
    part = ProofOfWork(interval_s=0.05, announce_s=NEVER_S)
    mine = ours(part, Blockchain(blocks=blocks), 16, ("growth", "stale_rate"))
    return {"miners": 16, "blocks": blocks, **beside(mine, peer("proof_of_work", 16, blocks, 0.05))}


def verifiers(most_n: int) -> dict[str, Any]:
    """What each way of checking a threshold automaton does in a CPU-second."""
    parts = {"explicit": ExplicitState(most_n=most_n), "smt": Taco(method="smt"),
             "zcs": Taco(method="zcs"), "acs": Taco(method="acs")}  # fmt: skip
    found: dict[str, Any] = {}
    for way, part in parts.items():
        began, work, answers = time.process_time(), 0, 0
        for name in AUTOMATA:
            automaton = library.automaton(name)
            for asked in library.expected(name):
                try:
                    work += part(automaton, asked).work
                    answers += 1
                except UnsupportedProperty:
                    continue
        cpu_s = time.process_time() - began
        unit = "states" if way == "explicit" else "solver checks"
        found[way] = {"unit": unit, "work": work, "answers": answers, "cpu_s": cpu_s,
                      "per_cpu_s": work / cpu_s, "answers_per_cpu_s": answers / cpu_s}  # fmt: skip
    return found


def main() -> None:
    """Ask everything and print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="of the workloads")
    scale = parser.parse_args().scale
    if not 0 < scale <= 10:
        raise SystemExit(f"--scale {scale}: give a number above 0, at most 10")
    sizes = tuple(n for n in (256, 1024, 4096) if n <= 4096 * scale) or (64,)
    questions: dict[str, Callable[[], Any]] = {
        "pbft_31": lambda: pbft(scale),
        "chord": lambda: hash_table("chord", scale),
        "kademlia": lambda: hash_table("kademlia", scale),
        "kademlia_package": lambda: measure_package(max(20, round(100 * scale)), sizes, 40 * scale),
        "proof_of_work": lambda: chain(scale),
        "verifiers": lambda: verifiers(most_n=5 if scale >= 1 else 4),
    }
    # What loads at its first use is loaded before anything is timed.
    run(Pbft(), problem=TotalOrder(clients=1, requests=1), world=World.lan(4))
    answer: dict[str, Any] = {}
    for name, ask in questions.items():
        print(f"{name} …", file=sys.stderr, flush=True)
        answer[name] = ask()
    print(json.dumps(answer, indent=1))


if __name__ == "__main__":
    main()
