"""Runs: the list, one, some side by side, and the report of one."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

from orrery.base.errors import StoreError
from orrery.lab.questions import snake
from orrery.lab.store import Stored
from orrery.page.http import HttpError, Request, Response
from orrery.page.jobs import end_child, start_child
from orrery.page.library import Light, library, run_index
from orrery.page.router import Route
from orrery.page.views.jobs import attachment

MOST_PAGE = 200
MOST_SIDE = 6
MOST_VIOLATIONS = 100
MOST_TEXT = 2_000
HEAD_METRICS = 4
REPORT_S = 120.0


def runs(request: Request, app: Any) -> dict[str, Any]:
    """A page of the runs, newest first, of those that fit what was typed."""
    wanted = request.query.get("q", "").lower().split()[:8]
    offset = request.whole("offset", 0, 0, 10_000_000)
    limit = request.whole("limit", 50, 1, MOST_PAGE)
    shelf = library(app)
    fits = []
    every = run_index(app).rows()
    for light in every:
        system = shelf.system_of(light.cls) if light.cls else ""
        text = f"{light.id} {light.part} {system} {light.problem} {light.engine} seed={light.seed}"
        if all(word in text.lower() for word in wanted):
            fits.append(light)
    shown = [shown_row(light, app) for light in fits[offset : offset + limit]]
    return {"all": len(every), "total": len(fits), "offset": offset, "runs": shown}


def shown_row(light: Light, app: Any) -> dict[str, Any]:
    """A row of the list; the folder is verified here, and a damaged one says so."""
    system = library(app).system_of(light.cls) if light.cls else ""
    row: dict[str, Any] = {
        "id": light.id, "system": system, "part": light.part, "problem": light.problem,
        "seed": light.seed, "engine": light.engine, "made": _date(light.made_ns),
    }  # fmt: skip
    try:
        stored = app.store.load(light.id)
    except StoreError as error:
        return {**row, "damaged": str(error)}
    metrics = list(stored.metrics.items())[:HEAD_METRICS]
    return {
        **row, "kind": stored.kind, "violations": len(stored.violations),
        "partial": stored.partial, "seconds": stored.seconds, "metrics_count": len(stored.metrics),
        "metrics": [_metric(stored, name, value) for name, value in metrics],
    }  # fmt: skip


def _metric(stored: Stored, name: str, value: float) -> dict[str, Any]:
    unit, better, says = stored.units.get(name, ("", "", ""))
    return {"name": name, "value": value, "unit": unit, "better": better, "says": says}


def _date(made_ns: int) -> str:
    return datetime.fromtimestamp(made_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M")


def _told_date(stored: Stored) -> str:
    """When a run was made, as people write it."""
    text = str(stored.environment.get("date", ""))
    return text[:16].replace("T", " ") + " UTC" if text.endswith("+00:00") else text


def one(request: Request, app: Any) -> dict[str, Any]:
    """One run in full."""
    return _full(app.store.load(request.params["id"]), app)


def _full(stored: Stored, app: Any) -> dict[str, Any]:
    spec = stored.spec
    part, problem = spec.get("part") or {}, spec.get("problem") or {}
    shelf = library(app)
    system = shelf.system_of(str(part.get("class", "")))
    own = _own_knobs(part)
    return {
        **stored.row(), "folder": None, "system": system, "kind": stored.kind,
        "problem": snake(stored.row()["problem"] or ""), "date": _told_date(stored),
        "name": shelf.entries()[system].name if system else stored.row()["part"],
        "metrics": [_metric(stored, name, value) for name, value in stored.metrics.items()],
        "violations": [_violation(each) for each in stored.violations[:MOST_VIOLATIONS]],
        "violations_count": len(stored.violations), "environment": stored.environment,
        "digest": stored.digest, "seconds": stored.seconds, "events": stored.events,
        "messages": stored.messages, "bytes": stored.bytes, "ended": stored.ended,
        "knobs": own, "problem_knobs": _own_knobs(problem), "until_s": spec.get("until_s"),
        "class": str(part.get("class", "")), "world": spec.get("world"),
        "command": f"orrery replay {stored.id[:8]}",
    }  # fmt: skip


def _own_knobs(part: dict[str, Any]) -> dict[str, str]:
    if "roles" in part:
        return {f"{role}.{name}": text for role, each in part["roles"].items()
                for name, text in _own_knobs(each).items()}  # fmt: skip
    return {name: _text(value) for name, value in (part.get("knobs") or {}).items()}


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 1] + "…"


def _violation(each: dict[str, Any]) -> dict[str, Any]:
    return {
        "kind": str(each.get("kind", "")), "message": _text(str(each.get("message", ""))),
        "time_s": each.get("time_s"), "node": each.get("node"),
    }  # fmt: skip


# -- side by side


def side(request: Request, app: Any) -> dict[str, Any]:
    """Two to six runs: only the rows in which they differ; the others are counted and named."""
    text = request.query.get("runs", "")
    ids = [id for id in text.split(",") if id]
    if not 2 <= len(ids) <= MOST_SIDE or len(set(ids)) != len(ids):
        raise HttpError(400, f"runs: name 2 to {MOST_SIDE} different runs")
    if any(not 8 <= len(id) <= 64 or set(id) - set("0123456789abcdef") for id in ids):
        raise HttpError(400, "runs: an id is hexadecimal, such as 3fa0c1…")
    full = [_full(app.store.load(id), app) for id in ids]
    facts = [_facts(each) for each in full]
    metrics = [{m["name"]: m for m in each["metrics"]} for each in full]
    differ, same = _compare(facts)
    names = list(dict.fromkeys(name for each in metrics for name in each))
    rows, alike = [], []
    for name in names:
        values = [each[name]["value"] if name in each else None for each in metrics]
        known = next(each[name] for each in metrics if name in each)
        row = {**known, "values": values, "best": _best(values, known["better"])}
        (alike if all(v == values[0] for v in values) else rows).append(row)
    head = ("id", "system", "name", "part", "problem", "seed", "engine", "kind", "date")
    return {
        "runs": [{name: each[name] for name in head} for each in full],
        "facts": differ, "same_facts": same, "metrics": rows, "same_metrics": alike,
    }  # fmt: skip


def _facts(run: dict[str, Any]) -> dict[str, str]:
    """What a run was: each setting by a readable name."""
    facts = {
        "system": run["name"], "problem": run["problem"] or "", "seed": str(run["seed"]),
        "engine": run["engine"], "world": str(run["world"]), "ended": run["ended"],
        "until": str(run["until_s"] or ""), "violations": str(run["violations_count"]),
        "orrery": str(run["environment"].get("version", "")),
    }  # fmt: skip
    facts |= {f"knob {name}": text for name, text in run["knobs"].items()}
    return facts | {f"problem {name}": text for name, text in run["problem_knobs"].items()}


def _compare(facts: list[dict[str, str]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    names = list(dict.fromkeys(name for each in facts for name in each))
    differ, same = [], []
    for name in names:
        values = [each.get(name) for each in facts]
        equal = all(value == values[0] for value in values)
        if equal and values[0]:
            same.append({"name": name, "value": values[0]})
        elif not equal:
            differ.append({"name": name, "values": values})
    return differ, same


def _best(values: list[float | None], better: str) -> list[int]:
    """Which of the values are the best, where the metric says what better is."""
    known = [value for value in values if value is not None and value == value]
    if better not in ("higher", "lower") or len(known) < 2:
        return []
    top = max(known) if better == "higher" else min(known)
    return [i for i, value in enumerate(values) if value == top]


# -- the report


async def report(request: Request, app: Any) -> Response:
    """The offline report of one run, made by the command line in a child."""
    stored = await asyncio.to_thread(app.store.load, request.params["id"])
    busy: asyncio.Semaphore = app.table("reports", lambda: asyncio.Semaphore(1))
    path = app.jobs.folder() / f"run-{stored.id}.html"
    async with busy:
        child = await start_child(["report", stored.id, "-o", str(path), "--json"],
                                  app.jobs.folder() / "empty")  # fmt: skip
        try:
            async with asyncio.timeout(REPORT_S):
                assert child.stdout is not None and child.stderr is not None
                # Not `communicate`, which closes stdin: the child would take that for our end.
                out, _ = await asyncio.gather(child.stdout.read(), child.stderr.read())
                await child.wait()
        except TimeoutError:
            raise HttpError(409, "the report took too long; try: orrery report") from None
        finally:
            await asyncio.shield(end_child(child))
    if child.returncode != 0 or not path.is_file():
        raise HttpError(409, _why(out))
    data = await asyncio.to_thread(path.read_bytes)
    path.unlink(missing_ok=True)
    return attachment(data, f"run-{stored.id[:8]}.html")


def _why(out: bytes) -> str:
    try:
        return str(json.loads(out)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "the report could not be written; try: orrery report"


ROUTES = (
    Route("GET", "/api/runs", runs, query=("q", "offset", "limit")),
    Route("GET", "/api/side", side, query=("runs",)),
    Route("GET", "/api/runs/{id}", one),
    Route("GET", "/api/runs/{id}/report", report),
)
