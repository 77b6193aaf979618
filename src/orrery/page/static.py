"""The files of the page: read once, served by exact name from a table.

A URL is never joined to a folder, so there is no path to walk out of.
"""

from __future__ import annotations

import functools
import hashlib
from importlib import resources
from typing import NamedTuple

KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


class File(NamedTuple):
    """One file: its bytes, its type, and the hash by which a browser knows it again."""

    data: bytes
    kind: str
    etag: str


@functools.lru_cache(maxsize=1)
def files() -> dict[str, File]:
    """Every file by its name."""
    found: dict[str, File] = {}
    for item in resources.files("orrery.page").joinpath("static").iterdir():
        name = item.name
        suffix = name[name.rfind(".") :] if "." in name else ""
        if suffix in KINDS:
            data = item.read_bytes()
            etag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
            found[name] = File(data, KINDS[suffix], etag)
    return found
