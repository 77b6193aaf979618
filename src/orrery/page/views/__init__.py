"""The views: each module answers for one part of the page through its `ROUTES`."""

from __future__ import annotations

import importlib

from orrery.page.router import Route

VIEWS = (
    "shell",
    "catalogue",
    "systems",
    "jobs",
    "runs",
    "timeline",
    "playground",
)


def all_routes() -> list[Route]:
    """The routes of every view, in order."""
    found: list[Route] = []
    for name in VIEWS:
        found += importlib.import_module(f"orrery.page.views.{name}").ROUTES
    return found
