"""`orrery show`: one system in full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from orrery.cli.common import Json, answer, complete_system, new_app, say, strong
from orrery.cli.table import print_pairs, print_table

if TYPE_CHECKING:
    from orrery.lab.discover import Entry

app = new_app()


@app.command("show")
def command(
    id: Annotated[
        str, typer.Argument(metavar="ID", help="A system's id.", autocompletion=complete_system)
    ],
    as_json: Json = False,
) -> None:
    """Show one system: its paper, its knobs, its claims and the verdicts.

    \b
    Example:
      orrery show push-gossip
    """
    from orrery.lab.discover import find

    entry = find(id, quick=False)
    knobs = _knobs(entry) if entry.built else []
    answer({**entry.shown(), "knobs": knobs}, as_json, lambda: _show(entry, knobs))


def _knobs(entry: Entry) -> list[dict[str, Any]]:
    """Name, default and kind of each knob; empty when the module does not load."""
    from orrery.base.errors import OrreryError
    from orrery.cli.common import talk
    from orrery.lab.discover import load_entry

    try:
        return knob_rows(load_entry(entry))
    except OrreryError as error:
        talk(f"orrery: its knobs are not known: {error}")
        return []


def knob_rows(cls: Any) -> list[dict[str, Any]]:
    """The knobs of a part or problem, for tables and JSON."""
    from orrery.parts.knobs import knob_types, say_type

    types = knob_types(cls)
    return [
        {"knob": name, "default": default, "takes": say_type(types[name]) if name in types else ""}
        for name, default in cls._knob_defaults.items()
    ]


def _show(entry: Entry, knobs: list[dict[str, Any]]) -> None:
    stem = entry.stem
    say(strong(f"{entry.name}  ({entry.id})"))
    paper = ", ".join(str(value) for value in entry.paper.values())
    print_pairs([
        ("paper", paper), ("room", entry.room), ("problem", entry.problem), ("shape", entry.shape),
        ("status", entry.status), ("engines passed", ", ".join(entry.engines)),
        ("job", stem.job), ("module", entry.module),
    ])  # fmt: skip
    if stem.mechanisms:
        say()
        say(strong("How it works"))
        print_pairs([(f"{i}", text) for i, text in enumerate(stem.mechanisms, 1)], indent="  ")
    if knobs:
        say()
        lines = [(row["knob"], repr(row["default"]), row["takes"]) for row in knobs]
        print_table(("knob", "default", "takes"), lines, keep=("knob",))
    if entry.claims:
        say()
        claims = [(c["metric"], c["says"], c["verdict"], c["measured"]) for c in entry.claims]
        print_table(("claim", "says", "verdict", "measured"), claims)
    if entry.works_when:
        say()
        works = [(line["n"], line["state"], line["text"]) for line in entry.works_when]
        print_table(("works when", "state", "text"), works)
