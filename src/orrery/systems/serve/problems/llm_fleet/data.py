"""The data files of the problem, each with its digest, so that a saved run names what it used.

A run is known by the source of the modules that it uses; the digests here make the data part of it.
"""

from __future__ import annotations

import hashlib
from importlib import resources

from orrery.base.errors import SpecError

# First digits of the SHA-256; after a change of a file the error below says the new ones.
DIGESTS = {"gpu_prices.toml": "524e684df706387d", "rates.json": "2b65fe6b0841c840"}


def digest(data: bytes) -> str:
    """The digest of a file's bytes, the same for both kinds of line ends."""
    return hashlib.sha256(data.replace(b"\r\n", b"\n")).hexdigest()[:16]


def read_data(name: str) -> bytes:
    """The bytes of a data file, refused where they are not those that this code was written for."""
    place = resources.files("orrery.systems.serve.problems.llm_fleet").joinpath(name)
    data = place.read_bytes()
    if digest(data) != DIGESTS[name]:
        fix = f'where that was meant, set DIGESTS["{name}"] = "{digest(data)}" in data.py'
        raise SpecError(name, "is not the file that data.py names", fix)
    return data


__all__ = ["DIGESTS", "digest", "read_data"]
