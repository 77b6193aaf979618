"""`orrery tour`: three protocols at 1,000 nodes under faults, and a picture of one at work.

The same machines, the same crashes and the same seed for each: push gossip spreads values, Chord
finds keys, Raft keeps one log on every machine. They answer different questions, so the table
sets beside one another what all of them have: was it right, and what did it cost.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from orrery.cli.common import (
    OK,
    VIOLATED,
    Json,
    answer,
    leave,
    new_app,
    note_kernel,
    say,
    strong,
    talk,
    unit_value,
)
from orrery.cli.progress import bar
from orrery.cli.table import print_table

if TYPE_CHECKING:
    from orrery.lab.run import Run

app = new_app()


class Stage(NamedTuple):
    """One act of the tour."""

    system: str
    question: str
    part: Any
    problem: Any
    world: Any
    tells: str
    trace: bool = False


@app.command("tour")
def command(
    nodes: Annotated[
        int, typer.Option("--nodes", min=5, max=100_000, help="Machines in the world.")
    ] = 1000,
    seed: Annotated[int, typer.Option("--seed", min=0, max=(1 << 63) - 1, help="Its seed.")] = 7,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The report; by default in ORRERY_HOME.")
    ] = None,
    as_json: Json = False,
) -> None:
    """See it work: gossip, Raft and Chord at 1,000 nodes under faults, in virtual time.

    Nearly one machine in ten crashes and comes back; gossip also loses every tenth message. The
    three answer different questions, so this is one seed of each and no ranking. Each run is
    checked, its digest is a function of the seed, and one HTML report holds them all.

    \b
    Examples:
      orrery tour
      orrery tour --nodes 200 --seed 1
    """
    from orrery.base.errors import UsageError

    if output is not None and not output.parent.is_dir():
        raise UsageError(f"-o {output}: there is no folder {output.parent}")
    note_kernel()
    began = time.perf_counter()
    rows: list[dict[str, Any]] = []
    runs: list[Run] = []
    acts = list(stages(nodes))
    with bar("tour", len(acts)) as advance:
        for stage in acts:
            advance(f"{stage.system}: {stage.question}", 0)
            made, row = play(stage, seed)
            rows.append(row)
            runs.append(made)
            advance(stage.system, 1)
    report, picture = write_up(runs, seed, output)
    document = {
        "seed": seed, "nodes": nodes, "rows": rows, "report": str(report),
        "picture": str(picture), "wall_s": time.perf_counter() - began,
    }  # fmt: skip
    answer(document, as_json, lambda: _show(document))
    leave(VIOLATED if any(row["violations"] for row in rows) else OK)


def stages(nodes: int) -> Iterator[Stage]:
    """What is played: three protocols on `nodes` machines, and a small Raft that can be drawn."""
    from orrery.systems.protocols import (
        Broadcast,
        Chord,
        Lookup,
        PushGossip,
        Raft,
        ReplicatedStore,
    )
    from orrery.world import Crash, Partition, RandomCrashes, World

    hit = max(nodes // 10, 1)
    crashes = RandomCrashes(
        count=hit, between_s=(0.1, 1.2), down_s=(0.2, 0.8), at_most=max((nodes - 1) // 2, 1)
    )
    calm = World.lan(nodes, title=f"{nodes} machines, up to {hit} crashes").with_faults(crashes)
    lossy = calm.with_(
        title=f"{nodes} machines, up to {hit} crashes, 10 % loss", network={"drop": 0.1}
    )
    yield Stage(
        "push-gossip", "do all learn every value?", PushGossip(), Broadcast(values=20), lossy,
        "time_to_99_s",
    )  # fmt: skip
    yield Stage(
        "chord", "is every key found?", Chord(), Lookup(keys=1000, lookups=400), calm, "mean_hops",
    )  # fmt: skip
    # A log on all machines costs two messages for each of them and each write or heartbeat, so few
    # writes are made and the leader is heard of less often than in a group of five.
    patient = Raft(heartbeat_s=0.2, election_s=0.6)
    yield Stage(
        "raft", "is there one history?", patient,
        ReplicatedStore(clients=2, ops=5, think_s=0.3), calm, "latency_p50_s",
    )  # fmt: skip
    faults = (
        Crash(node=1, at_s=0.6, until_s=1.2),
        Partition(groups=((1, 2), (0, 3, 4)), at_s=1.5, until_s=2.0),
    )
    small = World.lan(5, title="5 machines, a crash and a partition").with_faults(*faults)
    yield Stage(
        "raft", "the same on five, drawn", Raft(), ReplicatedStore(clients=3, ops=12), small,
        "latency_p50_s", trace=True,
    )  # fmt: skip


def play(stage: Stage, seed: int) -> tuple[Run, dict[str, Any]]:
    """Run one act, save it, and give its row."""
    from orrery.lab import run
    from orrery.lab.spec import spec_of
    from orrery.lab.store import Store

    began = time.process_time()
    made = run(stage.part, problem=stage.problem, world=stage.world, seed=seed, trace=stage.trace)
    cpu_s = time.process_time() - began
    store = Store()
    spec = spec_of(
        stage.part, problem=stage.problem, world=stage.world, seed=seed, name=stage.system
    )
    id = store.save(made, spec)
    size = stage.world.size
    return made, {
        "system": stage.system, "question": stage.question, "nodes": size, "id": id,
        "world": stage.world.title, "tells": stage.tells, "value": made.metrics[stage.tells],
        "shown": unit_value(stage.tells, made.metrics[stage.tells], made.units),
        "messages_per_node_per_s": made.messages / size / max(made.seconds, 1e-9),
        "violations": len(made.violations), "events": made.events, "seconds": made.seconds,
        "cpu_s": cpu_s, "digest": made.digest, "metrics": made.metrics,
        "folder": str(store.runs / id),
    }  # fmt: skip


def write_up(runs: list[Run], seed: int, output: Path | None) -> tuple[Path, Path]:
    """The report and the space-time picture; gives both paths."""
    from orrery.base.errors import StoreError
    from orrery.lab import draw
    from orrery.lab import report as reports
    from orrery.lab.ledger import home

    path = output if output is not None else home() / "tour" / "report.html"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as failure:
        raise StoreError(f"{path.parent}: cannot be made: {failure.strerror}") from None
    title = f"A tour: gossip, Chord and Raft under faults, seed {seed}"
    report = reports.write(runs, path, title=title, commands=[f"orrery tour --seed {seed}"])
    drawn = next(made for made in reversed(runs) if made.spans)
    picture = draw.write(drawn, path.with_suffix(".svg"))
    return report, picture


def _show(document: dict[str, Any]) -> None:
    from orrery.base.units import show

    rows = document["rows"]
    title = f"{document['nodes']} machines under faults, seed {document['seed']}, virtual time"
    say(strong(title))
    heads = ("system", "question", "nodes", "right", "measure", "messages/node/s", "events",
             "simulated", "CPU")  # fmt: skip
    lines = [
        (
            r["system"], r["question"], r["nodes"],
            "yes" if not r["violations"] else f"{r['violations']} violations",
            f"{r['tells']} {r['shown']}", show(r["messages_per_node_per_s"]), show(r["events"]),
            show(r["seconds"], "s"), show(r["cpu_s"], "s"),
        )
        for r in rows
    ]  # fmt: skip
    right = ("nodes", "messages/node/s", "events", "simulated", "CPU")
    print_table(heads, lines, right=right, keep=("system",))
    say()
    say(f"report:   {document['report']}")
    say(f"picture:  {document['picture']}")
    talk(f"done in {document['wall_s']:.1f} s; the same seed gives the same digests")
    talk("next: orrery compare broadcast · orrery list · orrery run raft --help")
