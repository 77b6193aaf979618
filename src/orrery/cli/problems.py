"""`orrery problems`: the questions that systems answer."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from orrery.cli.common import Json, answer, complete_problem, new_app, say, strong
from orrery.cli.table import print_pairs, print_table

app = new_app()


@app.command("problems")
def command(
    id: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="Show this one in full.",
                       autocompletion=complete_problem),
    ] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """List the problems, or the knobs and metrics of one.

    \b
    Examples:
      orrery problems
      orrery problems broadcast
    """
    from orrery.lab.discover import entries
    from orrery.lab.questions import questions

    built: dict[str, list[str]] = {}
    for entry in entries():
        if entry.built and entry.problem:
            built.setdefault(entry.problem, []).append(entry.id)
    if id is not None:
        document = _one(id, built)
        answer(document, as_json, lambda: _show_one(document))
        return
    rows = [
        {"id": q.id, "room": q.room, "title": q.title, "systems": built.get(q.id, [])}
        for q in questions()
    ]

    def show() -> None:
        lines = [(r["id"], r["room"], ", ".join(r["systems"]), r["title"]) for r in rows]
        print_table(("id", "room", "systems", "title"), lines, keep=("id", "room"))

    answer(rows, as_json, show)


def _one(id: str, built: dict[str, list[str]]) -> dict[str, Any]:
    from orrery.cli.common import preparing
    from orrery.cli.show import knob_rows
    from orrery.lab.questions import problem_class, question

    asked = question(id)
    with preparing():
        cls = problem_class(asked.id)
    metrics = {
        name: {"unit": metric.unit, "better": metric.better, "says": metric.says}
        for name, metric in cls.metrics.items()
    }
    return {
        "id": asked.id, "room": asked.room, "title": asked.title, "doc": asked.doc,
        "port": cls.port.__name__, "module": asked.module, "knobs": knob_rows(cls),
        "metrics": metrics, "systems": built.get(asked.id, []),
    }  # fmt: skip


def _show_one(document: dict[str, Any]) -> None:
    say(strong(f"{document['id']}  ({document['room']})"))
    say(document["doc"].partition("\n>>>")[0].rstrip())
    say()
    port = f"{document['port']}, from {document['module']}"
    print_pairs([("a part inherits from", port), ("systems", ", ".join(document["systems"]))])
    say()
    knobs = [(k["knob"], repr(k["default"]), k["takes"]) for k in document["knobs"]]
    print_table(("knob", "default", "takes"), knobs, keep=("knob",))
    say()
    metrics = [(name, m["unit"], m["better"], m["says"]) for name, m in document["metrics"].items()]
    print_table(("metric", "unit", "better", "says"), metrics, keep=("metric",))
