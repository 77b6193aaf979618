"""`orrery calibrate`: this machine, measured, as a world."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orrery.cli.asking import check_number
from orrery.cli.common import Json, answer, new_app, say, talk
from orrery.cli.progress import bar
from orrery.cli.table import print_table

if TYPE_CHECKING:
    from orrery.lab.calibrate import Figure
    from orrery.world import World

app = new_app()


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

    Three processes speak over the loopback: what messages, arrays, writes and syncs cost the
    processors, latency, fsync, flop/s and memory bandwidth. What cannot be measured here (power,
    price) keeps the figures of the catalogue's laptop, and says so.

    \b
    Examples:
      orrery calibrate -o here.toml
      orrery run push-gossip --world here.toml
    """
    from orrery.base.errors import UsageError

    check_number("--nodes", nodes, 1, 100_000)
    if output is not None and (output.suffix != ".toml" or not output.parent.is_dir()):
        raise UsageError(f"-o {output}: name a .toml file in a folder that exists")
    if folder is not None and not folder.is_dir():
        raise UsageError(f"--disk {folder}: no such folder")
    world, figures, costs = measure_all(nodes, folder, quick)
    text = note([*figures, *costs]) + world.to_toml()
    path = _write(output, text) if output is not None else None
    document = {
        "path": str(path) if path else None, "hash": world.hash,
        "measures": {each.name: each._asdict() for each in figures},
        "costs": {each.name: each._asdict() for each in costs}, "world": world.to_data(),
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


def measure_all(
    nodes: int, folder: Path | None, quick: bool
) -> tuple[World, list[Figure], list[Figure]]:
    """(the world of `nodes` processes here, its figures, what each operation costs)."""
    from orrery.lab.calibrate import FULL, QUICK, at_size, cost_figures, figures, measure, solve
    from orrery.lab.probe import STEPS, usable_cores

    effort = QUICK if quick else FULL
    with bar("calibrate", len(STEPS) * (effort.repeats + 1)) as advance:
        samples = measure(effort, folder, lambda what: advance(what, 1))
    world = at_size(solve(samples, usable_cores(), folder), nodes)
    return world, figures(samples, world), cost_figures(samples)


def note(figures: list[Figure]) -> str:
    """The head of the file: every figure with its error bars."""
    lines = ["# This machine as `orrery calibrate` found it; median ± half of the 95 % interval."]
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
