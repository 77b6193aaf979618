"""`orrery when`: the region of two parameters in which a claim holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orrery.cli.common import (
    INCONCLUSIVE,
    OK,
    Json,
    answer,
    complete_built,
    complete_world,
    leave,
    new_app,
    note_kernel,
    preparing,
    say,
    strong,
    talk,
)
from orrery.cli.progress import bar

if TYPE_CHECKING:
    from orrery.lab.when import Map

app = new_app()
Range = Annotated[
    str | None, typer.Option("--x", metavar="PARAM=A:B", help="The first parameter and its ends.")
]
Range2 = Annotated[
    str | None, typer.Option("--y", metavar="PARAM=A:B", help="The second parameter and its ends.")
]


@app.command("when")
def command(
    id: Annotated[str, typer.Argument(help="The system.", autocompletion=complete_built)],
    axes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PARAM=A..B]…", help="The two axes, in place of --x and --y."),
    ] = None,
    x: Range = None,
    y: Range2 = None,
    claim: Annotated[
        str | None,
        typer.Option("--claim", metavar="N|METRIC", help="Which claim, numbered from 0."),
    ] = None,
    world: Annotated[
        str | None,
        typer.Option("--world", metavar="FILE.toml|NAME:ARG", autocompletion=complete_world,
                     help="Another world than the claim's."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PARAM=VALUE", help="Fix a parameter everywhere."),
    ] = None,
    points: Annotated[int, typer.Option("--points", help="The most points to judge.")] = 60,
    grid: Annotated[int, typer.Option("--grid", help="Points along a side to begin with.")] = 5,
    depth: Annotated[int, typer.Option("--depth", help="How often a cell may be halved.")] = 3,
    seeds: Annotated[
        int | None, typer.Option("--seeds", help="The most seeds a point; else the claim's own.")
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, max=1024, help="Processes to use.")] = 1,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="The picture (SVG); else in ORRERY_HOME.")
    ] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Map the region of two parameters in which a claim holds, with the break-even line.

    A parameter is a knob of the problem or of the part, or a path into the world
    (network.latency_s); problem., ours., rival., both. or world. before it says which. Behind the
    ends, :log or :lin sets the scale. Points that were found are kept: after a kill the same
    command goes on. Exit code 2: no point could be decided.

    \b
    Examples:
      orrery when taper --x rate_per_s=0.5:4 --y branchy=0.1:1 --points 40
      orrery when taper --claim 1 rate_per_s=0.5..8:log problem.ttft_s=0.5..4 --seeds 3 -o map.svg
    """
    from orrery.base.errors import UsageError
    from orrery.cli.asking import split_settings
    from orrery.lab.discover import find, load
    from orrery.lab.when import parse_axis, when

    given = [each for each in (x, y) if each is not None] + list(axes or [])
    if len(given) != 2:
        raise UsageError(f"orrery when needs two axes, not {len(given)}: "
                         "--x PARAM=low:high --y PARAM=low:high")  # fmt: skip
    asked = [parse_axis(each) for each in given]
    fixed = {name: _value(text) for name, text in split_settings(settings or []).items()}
    target = _target(out)
    note_kernel()
    with preparing():
        load(find(id).id)
    with bar(f"when {id}") as advance:
        found = when(
            id, asked[0], asked[1], claim=claim, fixed=fixed, world=world, points=points,
            grid=grid, depth=depth, seeds=seeds, jobs=jobs, progress=lambda what: advance(what, 1),
        )  # fmt: skip
    document = found.to_json() | {"picture": str(_draw(found, target))}
    answer(document, as_json, lambda: _show(found, document))
    leave(OK if found.decided else INCONCLUSIVE)


def _value(text: str) -> Any:
    """A fixed value: JSON where it reads as JSON, else text."""
    import json

    try:
        return json.loads(text)
    except ValueError:
        return text


def _target(out: Path | None) -> Path | None:
    from orrery.base.errors import UsageError

    if out is not None and out.suffix.lower() != ".svg":
        raise UsageError(f"-o {out}: the picture is SVG; end the name in .svg")
    return out


def _draw(found: Map, target: Path | None) -> Path:
    from orrery.lab.ledger import home
    from orrery.lab.spans import _whole

    path = target if target is not None else home() / "when" / f"{found.id}-{found.key}.svg"
    data = found.svg().encode()
    return _whole(path, lambda file: file.write(data))


def _show(found: Map, document: dict[str, Any]) -> None:
    from orrery.lab.when.draw import characters

    say(strong(found.sentence()))
    for line in characters(found):
        say(line)
    survey = found.survey
    finest, coarsest = survey.finest()
    say(f"{len(survey.values)} points; cells from {finest:.1%} to {coarsest:.1%} of an axis")
    if not survey.complete:
        say(
            "the budget is used up before the line is as fine as --depth allows; give more --points"
        )
    say(f"picture: {document['picture']}")
    notes = {point.note for point in found.points if point.note}
    for note in sorted(notes)[:3]:
        talk(f"note: {note}")
