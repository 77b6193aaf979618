"""The hash of the world that a claim is judged in, known without building it each time.

A verdict counts only in the world that it was found in, yet `orrery list` may not take the time to
import worlds and problems. So hashes are kept in the cache with the sizes and times of the files
they rest on. `orrery show`, `check` and the tests work out what is missing; the list asks
only for what is known.
"""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from orrery.base.errors import OrreryError
from orrery.lab.cache import read_cache, write_cache
from orrery.lab.ledger import home

if TYPE_CHECKING:
    from orrery.lab.claims import Claim
    from orrery.world import World


def claim_world(claim: Claim, problem: Any) -> World:
    """The world of a claim: the named one or the problem's own, with the claim's changes."""
    from orrery.lab.compare import world_of

    world = world_of(claim.world or None, problem)
    return world.with_(changes=claim.world_set) if claim.world_set else world


def world_hash(claim: Claim, problem: str = "") -> str | None:
    """The hash of a claim's world as it would be built now; None where it cannot be built."""
    key = _key(claim, problem)
    book = _load_cache(str(home()))
    if key in book:
        return book[key] or None
    found = _build(claim, problem)
    book[key] = found or ""
    write_cache("worlds.json", msgspec.json.encode(book))
    return found


def known_hash(claim: Claim, problem: str = "") -> str | None:
    """The hash of a claim's world if it was worked out before; "" if it could not be built."""
    return _load_cache(str(home())).get(_key(claim, problem))


def _build(claim: Claim, problem: str) -> str | None:
    from orrery.lab.questions import ask_problem

    try:
        asked = ask_problem(claim.problem or problem, claim.problem_knobs)
        return claim_world(claim, asked).hash
    except OrreryError:
        return None


def _key(claim: Claim, problem: str) -> str:
    """A text that changes whenever the world could have."""
    told = [claim.world, claim.world_set, claim.problem or problem, claim.problem_knobs]
    path = Path(claim.world) if claim.world.endswith((".toml", ".json")) else None
    stamp = [_world_stamp(), _problem_stamp(), _stat(path) if path is not None else ""]
    text = json.dumps([told, stamp], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


@functools.lru_cache(maxsize=1)
def _world_stamp() -> str:
    root = Path(__file__).resolve().parents[1]
    files = sorted((root / "world").glob("*.*")) + sorted((root / "base").glob("*.py"))
    return " ".join(_stat(path) for path in files)


@functools.lru_cache(maxsize=1)
def _problem_stamp() -> str:
    from orrery.lab.stems import packages

    files = [p for _, folder, _ in packages() for p in sorted(folder.rglob("problems/**/*.py"))]
    return " ".join(_stat(path) for path in files)


def _stat(path: Path) -> str:
    try:
        found = path.stat()
    except OSError:
        return f"{path.name}:gone"
    return f"{path.name}:{found.st_size}:{found.st_mtime_ns}"


@functools.lru_cache(maxsize=4)
def _load_cache(_home: str) -> dict[str, str]:
    try:
        return msgspec.json.decode(read_cache("worlds.json"), type=dict[str, str])
    except msgspec.MsgspecError:
        return {}
