"""The catalogue and the ledger of claims, as data."""

from __future__ import annotations

from typing import Any

from orrery.lab.claims import VERDICTS, Claim
from orrery.lab.discover import Entry
from orrery.page.data import runs_of
from orrery.page.http import Request
from orrery.page.library import library
from orrery.page.router import Route


def catalogue(request: Request, app: Any) -> dict[str, Any]:
    """Every system in a row, with the words by which it is searched."""
    rows = [row_of(entry) for entry in library(app).entries().values()]
    return {"systems": rows, "verdicts": list(VERDICTS)}


def row_of(entry: Entry) -> dict[str, Any]:
    """A system as the catalogue shows it."""
    stem = entry.stem
    verdicts: dict[str, int] = {}
    for row in entry.claims:
        if row["verdict"]:
            verdicts[row["verdict"]] = verdicts.get(row["verdict"], 0) + 1
    met = sum(line["state"] == "met" for line in entry.works_when)
    return {
        "id": entry.id, "name": entry.name, "title": entry.title, "room": entry.room,
        "origin": entry.origin, "shape": entry.shape, "problem": entry.problem,
        "status": entry.status, "engines": entry.engines, "built": entry.built,
        "job": stem.job, "date": stem.date, "claims": len(entry.claims), "verdicts": verdicts,
        "works_when": len(entry.works_when), "met": met,
    }  # fmt: skip


def ledger(request: Request, app: Any) -> dict[str, Any]:
    """Every claim: what was published, and what was found."""
    rows = [
        {"id": entry.id, "name": entry.name, "room": entry.room, "status": entry.status, **row}
        for entry in library(app).entries().values()
        for row in claim_rows(entry)
    ]
    return {"claims": rows, "verdicts": list(VERDICTS)}


def claim_rows(entry: Entry) -> list[dict[str, Any]]:
    """The claims of a system, each with its published figure and its finding."""
    pairs = zip(entry.claims, entry.stem.claims, strict=True)
    return [_claim_row(n, row, claim) for n, (row, claim) in enumerate(pairs)]


def _claim_row(n: int, row: dict[str, Any], claim: Claim) -> dict[str, Any]:
    figure = claim.figure()
    return {
        **row, "n": n, "form": claim.form, "better": claim.better, "setting": claim.setting,
        "says_lo": figure[0] if figure else None, "says_hi": figure[1] if figure else None,
        "testable": claim.testable, "untestable": runs_of(claim.untestable),
        "kind": row["kind"] or "published", "world": claim.world, "rival": claim.rival,
    }  # fmt: skip


ROUTES = (
    Route("GET", "/api/catalogue", catalogue),
    Route("GET", "/api/ledger", ledger),
)
