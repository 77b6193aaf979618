"""One system, one problem, and the worlds: what the forms and the pages of systems show."""

from __future__ import annotations

import contextlib
import inspect
import re
import typing
from typing import Any, Literal

from orrery.base.errors import OrreryError
from orrery.lab import discover
from orrery.lab.ledger import home
from orrery.page.data import blocks_of, runs_of, terms_of, unit_of
from orrery.page.guard import INERT_POLICY
from orrery.page.http import HttpError, Request, Response
from orrery.page.library import library, run_index
from orrery.page.router import Route
from orrery.page.views.catalogue import claim_rows, row_of

LAST_RUNS = 8
MOST_MAPS = 6
MOST_MAP_B = 4 << 20
DEFAULT_MOST = 200


def system(request: Request, app: Any) -> dict[str, Any]:
    """All that is known of one system."""
    shelf = library(app)
    quick = shelf.entry(request.params["name"])
    # The worlds of its claims are built here, to see that the verdicts still count.
    entry = discover.find(quick.id, quick=False)
    stem = entry.stem
    doc, knobs, trouble = _code_of(entry, shelf)
    return {
        **row_of(entry), "claims": claim_rows(entry), "arxiv": stem.arxiv,
        "paper": {k: str(v) for k, v in stem.paper.items()}, "date_note": stem.date_note,
        "job": runs_of(stem.job), "mechanisms": [runs_of(text) for text in stem.mechanisms],
        "rivals": [runs_of(text) for text in stem.rivals],
        "baselines": [_named(id, shelf) for id in stem.baselines],
        "notes": runs_of(stem.notes), "how": stem.how, "libraries": stem.libraries,
        "works_when": [{**line, "text": runs_of(line["text"])} for line in entry.works_when],
        "doc": doc, "knobs": knobs, "trouble": trouble, "module": entry.module,
        "peers": [e.id for e in shelf.entries().values()
                  if e.problem and e.problem == entry.problem and e.built],
        "maps": [key for key, _ in maps_of(entry.id)], "runs": last_runs(entry.id, app),
    }  # fmt: skip


def _named(id: str, shelf: Any) -> dict[str, Any]:
    entry = shelf.entries().get(id)
    return {"id": id if entry is not None else "", "name": entry.name if entry else id}


def _code_of(entry: Any, shelf: Any) -> tuple[list[Any], list[dict[str, Any]], str]:
    """What the class says of itself: its docstring, its knobs; and why not, if it does not load."""
    if not entry.built:
        return [], [], ""
    try:
        cls = shelf.part(entry.id)
    except OrreryError as error:
        return [], [], str(error)
    doc = inspect.getdoc(cls) or ""
    blocks = [block for block in blocks_of(doc) if block["kind"] not in ("code", "terms")]
    return blocks, knob_rows(cls, terms_of(doc)), ""


def knob_rows(cls: Any, terms: dict[str, Any]) -> list[dict[str, Any]]:
    """Each knob: its default, what it takes, its unit, its choices and what is said of it."""
    from orrery.parts.knobs import Part, knob_types, say_type

    types = knob_types(cls)
    rows = []
    for name, default in cls._knob_defaults.items():
        kind = types.get(name)
        choices = list(typing.get_args(kind)) if typing.get_origin(kind) is Literal else []
        plain = typing.get_origin(kind) or kind
        part = isinstance(plain, type) and issubclass(plain, Part)
        takes = "one of them" if choices else say_type(kind) if kind is not None else ""
        rows.append({
            "name": name, "default": _told(default), "takes": takes, "unit": unit_of(name),
            "choices": ["true", "false"] if kind is bool else choices, "part": part,
            "says": terms.get(name, []),
        })  # fmt: skip
    return rows


def _told(default: Any) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    text = default if isinstance(default, str) else repr(default)
    return text if len(text) <= DEFAULT_MOST else text[: DEFAULT_MOST - 1] + "…"


def last_runs(id: str, app: Any) -> list[dict[str, Any]]:
    """The newest runs of a system, verified."""
    from orrery.page.views.runs import shown_row

    shelf = library(app)
    found: list[dict[str, Any]] = []
    for light in run_index(app).rows():
        if len(found) == LAST_RUNS:
            break
        if light.cls and shelf.system_of(light.cls) == id:
            found.append(shown_row(light, app))
    return found


# -- the region where a claim holds


def maps_of(id: str) -> list[tuple[str, Any]]:
    """(key, path) of the pictures that `orrery when` has drawn for a system, newest first."""
    shape = re.compile(re.escape(id) + r"-([0-9a-f]{24})\.svg")
    found = []
    with contextlib.suppress(OSError):
        for path in (home() / "when").iterdir():
            fits = shape.fullmatch(path.name)
            if fits and path.is_file():
                found.append((path.stat().st_mtime_ns, fits.group(1), path))
    return [(key, path) for _, key, path in sorted(found, reverse=True)[:MOST_MAPS]]


def map_picture(request: Request, app: Any) -> Response:
    """One map, by the system's name and the key of its question."""
    entry = library(app).entry(request.params["name"])
    for key, path in maps_of(entry.id):
        if key == request.params["id"] and path.stat().st_size <= MOST_MAP_B:
            return Response(body=path.read_bytes(), content_type="image/svg+xml",
                            policy=INERT_POLICY)  # fmt: skip
    raise HttpError(404, "there is no such map; draw one with `orrery when`")


# -- problems and worlds


def problems(request: Request, app: Any) -> list[dict[str, Any]]:
    """Every problem and the built systems that answer it."""
    from orrery.lab.questions import questions

    answering: dict[str, list[str]] = {}
    for entry in library(app).entries().values():
        if entry.built and entry.problem:
            answering.setdefault(entry.problem, []).append(entry.id)
    return [
        {"id": q.id, "room": q.room, "title": q.title, "systems": answering.get(q.id, [])}
        for q in questions()
    ]


def one_problem(request: Request, app: Any) -> dict[str, Any]:
    """One problem: its text, knobs and metrics."""
    from orrery.lab.questions import problem_class, questions

    found = [q for q in questions() if q.id == request.params["name"]]
    if not found:
        raise HttpError(404, f"there is no problem {request.params['name']!r}")
    cls = problem_class(found[0].id)
    metrics = [
        {"name": name, "unit": metric.unit, "better": metric.better, "says": metric.says}
        for name, metric in cls.metrics.items()
    ]
    systems = [e.id for e in library(app).entries().values() if e.problem == found[0].id]
    return {
        "id": found[0].id, "room": found[0].room, "title": found[0].title,
        "doc": blocks_of(found[0].doc), "metrics": metrics, "systems": systems,
        "knobs": knob_rows(cls, terms_of(found[0].doc)),
    }  # fmt: skip


def all_worlds(request: Request, app: Any) -> list[dict[str, Any]]:
    """The named worlds and what each takes."""
    from orrery.world import worlds

    return [
        {"name": name, "says": says, "takes": [
            {"name": each.name, "default": each.default}
            for each in inspect.signature(worlds.MAKERS[name]).parameters.values()]}
        for name, says in worlds.names().items()
    ]  # fmt: skip


ROUTES = (
    Route("GET", "/api/systems/{name}", system),
    Route("GET", "/api/systems/{name}/maps/{id}", map_picture),
    Route("GET", "/api/problems", problems),
    Route("GET", "/api/problems/{name}", one_problem),
    Route("GET", "/api/worlds", all_worlds),
)
