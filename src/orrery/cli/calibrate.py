"""`orrery calibrate`: this machine, measured, as a world."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orrery.cli.asking import check_number
from orrery.cli.common import Json, answer, new_app, say, talk
from orrery.cli.progress import bar
from orrery.cli.table import print_table

if TYPE_CHECKING:
    from orrery.cli.measure import Figure
    from orrery.world import World

app = new_app()
MIB = 1 << 20


@app.command("calibrate")
def command(
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the world here (a .toml file).")
    ] = None,
    nodes: Annotated[
        int, typer.Option("--nodes", min=1, max=100_000, help="Processes in the world.")
    ] = 4,
    folder: Annotated[
        Path | None, typer.Option("--disk", help="Measure the disk that holds this folder.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer and smaller samples.")] = False,
    as_json: Json = False,
) -> None:
    """Measure this machine and write it down as a world, with error bars.

    Loopback latency and bandwidth, fsync and writing, flop/s and memory bandwidth. What cannot be
    measured here (power, price) keeps the figures of the catalogue's laptop, and says so.

    \b
    Examples:
      orrery calibrate -o here.toml
      orrery run push-gossip --world here.toml
    """
    from orrery.base.errors import UsageError

    check_number("--nodes", nodes, 1, 100_000)
    if output is not None and (output.suffix != ".toml" or not output.parent.is_dir()):
        raise UsageError(f"-o {output}: name a .toml file in a folder that exists")
    place = folder if folder is not None else Path.cwd()
    if not place.is_dir():
        raise UsageError(f"--disk {place}: no such folder")
    figures = measure_all(place, quick)
    world = make_world(figures, nodes, place)
    text = note(figures) + world.to_toml()
    path = _write(output, text) if output is not None else None
    document = {
        "path": str(path) if path else None, "hash": world.hash,
        "measures": {each.name: each._asdict() for each in figures}, "world": world.to_data(),
    }  # fmt: skip

    def show() -> None:
        if path is None:
            say(text.rstrip())
            talk("to keep it: orrery calibrate -o here.toml")
            return
        from orrery.base.units import show as shown

        rows = [
            (f.name, shown(f.value, _unit(f)), f"[{shown(f.lo, _unit(f))}, "
             f"{shown(f.hi, _unit(f))}]", f.how)
            for f in figures
        ]  # fmt: skip
        print_table(("figure", "value", "95 % interval", "how"), rows, keep=("figure", "value"))
        say(f"written: {path}; use it: orrery run push-gossip --world {path}")

    answer(document, as_json, show)


def _unit(figure: Figure) -> str:
    return {"B/s": "Bps", "flop/s": ""}.get(figure.unit, figure.unit)


def measure_all(place: Path, quick: bool) -> list[Figure]:
    """Every figure of this machine, one after the other, so that none disturbs another."""
    from orrery.cli import measure

    rounds, size_B = (4, 8 * MIB) if quick else (10, 64 * MIB)
    found: list[Figure] = []
    with bar("calibrate", 3) as advance:
        found += measure.loopback(rounds, size_B)
        advance("loopback", 1)
        found += measure.disk(place, rounds, size_B)
        advance("disk", 1)
        found += measure.processor(rounds, 256 if quick else 1024, size_B)
        advance("processor", 1)
    return found


def make_world(figures: list[Figure], nodes: int, place: Path) -> World:
    """The world of `nodes` processes on this machine, an equal share of it for each."""
    from orrery.cli.measure import memory_B
    from orrery.world import World, machine

    value = {each.name: each.value for each in figures}
    cores = os.cpu_count() or 1
    share = min(nodes, cores)
    like = machine("laptop")
    told = "; ".join(each.text() for each in figures if each.name in ("core_flops", "memory_Bps"))
    disk = like.disk.replace(
        fsync_s=value["fsync_s"], write_Bps=value["write_Bps"],
        capacity_B=shutil.disk_usage(place).total,
        source="; ".join(e.text() for e in figures if e.name in ("fsync_s", "write_Bps"))[:900]
        + "; latency_s and read_Bps are the catalogue's",
    )  # fmt: skip
    process = like.replace(
        cores=max(cores // share, 1), cpu_flops=value["core_flops"] * max(cores // share, 1),
        memory_B=(memory_B() or like.memory_B) // share, memory_Bps=value["memory_Bps"] / share,
        nic_Bps=value["bandwidth_Bps"], idle_W=like.idle_W / share, active_W=like.active_W / share,
        disk=disk, source=f"measured, shared by {share}: {told}; power is the catalogue's laptop's",
    )  # fmt: skip
    network: dict[str, Any] = {
        "latency_s": value["latency_s"], "bandwidth_Bps": value["bandwidth_Bps"],
        "jitter": round(value["jitter"], 4),
    }  # fmt: skip
    title = f"this machine: {platform.system()} {platform.machine()}, {cores} cores"
    return World.lan(
        nodes, machine="process", machines={"process": process}, title=title, **network
    )


def note(figures: list[Figure]) -> str:
    """The head of the file: every figure with its error bars."""
    lines = ["# This machine as `orrery calibrate` found it; mean [95 % interval] unit."]
    lines += [f"# {each.text()}" for each in figures]
    return "\n".join(lines) + "\n\n"


def _write(path: Path, text: str) -> Path:
    """Write the file whole or not at all."""
    from orrery.base.errors import UsageError

    temp = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            temp.write_text(text, encoding="utf-8")
            os.replace(temp, path)
        finally:
            temp.unlink(missing_ok=True)
    except OSError as failure:
        why = failure.strerror or str(failure)
        raise UsageError(f"-o {path}: cannot be written: {why}") from None
    return path
