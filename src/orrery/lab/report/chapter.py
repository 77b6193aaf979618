"""Chapters: what each thing that is reported adds to the page."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import msgspec

from orrery.base.errors import OrreryError
from orrery.lab.html_page import Said
from orrery.lab.store import Store

MOST_READ = 40  # stored runs whose environment is looked at


class Picture(msgspec.Struct):
    """A picture that may be left out when the file grows too large."""

    html: str


class Chapter(msgspec.Struct, kw_only=True):
    """One thing that is reported: what it says first, its sections, and how to make it again."""

    title: str
    lead: str
    verdicts: list[Said] = []
    sections: list[tuple[str, list[str | Picture]]] = []
    broken: list[tuple[str, dict[str, Any]]] = []
    commands: list[str] = []
    digests: dict[str, str] = {}
    worlds: dict[str, str] = {}
    environment: list[dict[str, Any]] = []

    @property
    def pictures(self) -> int:
        """How many pictures could be left out."""
        return sum(isinstance(part, Picture) for _, body in self.sections for part in body)


def environments(runs: Iterable[str], store: Store | None) -> list[dict[str, Any]]:
    """Where stored runs were made; those that are gone are passed over."""
    found: list[dict[str, Any]] = []
    for id in list(runs)[:MOST_READ]:
        with contextlib.suppress(OrreryError):
            where = (store or Store()).load(id).environment
            if where not in found:
                found.append(where)
    return found
