"""`orrery worlds`: the named worlds, or one of them as TOML."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orrery.cli.common import Json, answer, complete_world, new_app, say, talk
from orrery.cli.table import print_table

app = new_app()


@app.command("worlds")
def command(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[WORLD]", help="Print this one (a name:arg or a path) as TOML.",
                       autocompletion=complete_world),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the TOML here instead.")
    ] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """List the named worlds, or print one as TOML, ready to be changed.

    \b
    Examples:
      orrery worlds
      orrery worlds h100_pod:8 -o pod.toml
    """
    import inspect

    from orrery.base.errors import UsageError
    from orrery.world import worlds

    if name is None:
        if output is not None:
            raise UsageError("-o needs a world; for example: orrery worlds lan:5 -o lan.toml")
        rows = [
            {"name": each, "takes": str(inspect.signature(make)).partition(" ->")[0],
             "says": worlds.names()[each]}
            for each, make in worlds.MAKERS.items()
        ]  # fmt: skip
        lines = [(row["name"], _plain(row["takes"]), row["says"]) for row in rows]
        answer(rows, as_json, lambda: print_table(("name", "takes", "says"), lines, keep=("name",)))
        return
    world = worlds.find(name)
    path = world.save(output) if output is not None else None
    document = {
        "name": name, "hash": world.hash, "nodes": world.size, "summary": world.summary(),
        "path": str(path) if path else None, "world": world.to_data(),
    }  # fmt: skip

    def show() -> None:
        talk(f"{name}: {world.size} nodes, hash {world.hash}")
        say(str(path) if path else world.to_toml().rstrip())

    answer(document, as_json, show)


def _plain(signature: str) -> str:
    """A signature without its types: `n=5`."""
    words = signature.strip("()").split(", ")
    return ", ".join(f"{w.partition(':')[0]}={w.rpartition('= ')[2]}" for w in words)
