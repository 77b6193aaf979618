"""Jobs: asked for, listed, watched, cancelled; and the report that one has written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from orrery.page.asks import Ask, words_of
from orrery.page.http import HttpError, Request, Response, as_json
from orrery.page.library import library
from orrery.page.router import Route


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a POST that says all it has to say in its address."""


async def start(request: Request, app: Any) -> Response:
    """Check what is asked, and put it into the queue."""
    ask = request.json(Ask)
    # Checking loads the module of the system, which may take a moment.
    asked = await asyncio.to_thread(words_of, ask, library(app))
    about = {k: v for k, v in msgspec.to_builtins(ask).items() if v not in ("", None, {}, [])}
    job = app.jobs.submit(asked.kind, asked.title, asked.words, about, report=asked.report)
    return as_json(job.row(), 202)


async def listed(request: Request, app: Any) -> list[dict[str, Any]]:
    """Every job of this page, newest first."""
    rows: list[dict[str, Any]] = app.jobs.rows()
    return rows


async def one(request: Request, app: Any) -> Any:
    """One job with its result."""
    return msgspec.to_builtins(app.jobs.get(request.params["id"]))


async def events(request: Request, app: Any) -> AsyncIterator[dict[str, Any]]:
    """The jobs as they change."""
    async for event in app.jobs.watch():
        yield event


async def cancel(request: Request, app: Any) -> dict[str, Any]:
    """End a job."""
    request.json(Nothing)
    job = await app.jobs.cancel(request.params["id"])
    row: dict[str, Any] = job.row()
    return row


def report(request: Request, app: Any) -> Response:
    """The report of a comparison, as a file to keep."""
    job = app.jobs.get(request.params["id"])
    if not job.report:
        raise HttpError(404, "this job has written no report")
    return attachment(app.jobs.report_path(job.id).read_bytes(), f"{job.kind}-{job.id[:8]}.html")


def attachment(data: bytes, name: str) -> Response:
    """An HTML file that a browser saves rather than shows; if it is shown, it can do nothing."""
    from orrery.page.guard import INERT_POLICY

    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(body=data, content_type="text/html; charset=utf-8", headers=headers,
                    policy=INERT_POLICY)  # fmt: skip


ROUTES = (
    Route("GET", "/api/jobs", listed),
    Route("POST", "/api/jobs", start),
    Route("GET", "/api/jobs/events", events),
    Route("GET", "/api/jobs/{id}", one),
    Route("POST", "/api/jobs/{id}/cancel", cancel),
    Route("GET", "/api/jobs/{id}/report", report),
)
