"""The timeline and the space-time diagram of a stored run: views of any depth, and its export.

A run folder holds what decides a run, not its messages: the run is made again from its seed at the
first look, under limits, and its two indices are kept. Only runs of listed systems are made again:
no request can have other code run.
"""

from __future__ import annotations

import math
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from orrery.base.errors import UsageError
from orrery.lab import folding, playback, replay, spans, tracks
from orrery.lab.stems import packages
from orrery.lab.store import Stored
from orrery.page.http import HttpError, Request, Response
from orrery.page.router import Route

KEPT = 3
LIMITS = playback.Limits(events=3_000_000, seconds=180.0)
MOST_EXPORT_B = 256 << 20
_NUMBER = re.compile(r"^[0-9]{1,10}(?:\.[0-9]{1,12})?(?:e-?[0-9]{1,2})?$")


class Shown:
    """A run made again, with the two indices that its views are answered from."""

    def __init__(self, id: str, played: playback.Played, same: bool) -> None:
        self.id = id
        self.run = played.run
        self.same = same
        self.index = folding.index_of(played.run)
        self._lock = threading.Lock()
        self._tracks: tracks.Tracks | None = None

    @property
    def tracks(self) -> tracks.Tracks:
        """The spans, made at the first look: of a large run only the diagram may be wanted."""
        with self._lock:
            if self._tracks is None:
                self._tracks = tracks.Tracks(self.run)
            return self._tracks


class Shelf:
    """The runs that were looked at last; one that is being made is waited for, not made twice."""

    def __init__(self) -> None:
        self._found: OrderedDict[str, Shown] = OrderedDict()
        self._lock = threading.Lock()
        self._making: dict[str, threading.Lock] = {}

    def get(self, id: str, make: Callable[[], Shown]) -> Shown:
        """The run of an id, made at the first look."""
        with self._lock:
            if id in self._found:
                self._found.move_to_end(id)
                return self._found[id]
            mine = self._making.setdefault(id, threading.Lock())
        with mine:
            with self._lock:
                if id in self._found:
                    return self._found[id]
            made = make()
            with self._lock:
                self._found[id] = made
                self._making.pop(id, None)
                while len(self._found) > KEPT:
                    self._found.popitem(last=False)
            return made


# -- what a request may say


def seconds(request: Request, name: str, default: float | None) -> float | None:
    """A number of seconds from the query; nothing but plain digits is one."""
    text = request.query.get(name)
    if text is None:
        return default
    if not _NUMBER.match(text):
        raise HttpError(400, f"{name}={text[:40]!r}: give a number of seconds such as 0.25")
    value = float(text)
    if not math.isfinite(value) or value > 1e9:
        raise HttpError(400, f"{name}={text[:40]!r}: give at most 1e9 seconds")
    return value


def window(request: Request, places: int, most_lanes: int, lanes: int) -> dict[str, Any]:
    """The stretch of time and of lanes that a view is asked for."""
    lo = request.whole("lo", 0, 0, max(places - 1, 0))
    return {
        "from_s": seconds(request, "from", 0.0), "until_s": seconds(request, "until", None),
        "lo": lo, "hi": request.whole("hi", places, lo + 1, places),
        "lanes": request.whole("lanes", lanes, 1, most_lanes),
    }  # fmt: skip


def numbers(request: Request, name: str, most: int) -> list[int]:
    """A list of node numbers from the query: `3,14`."""
    text = request.query.get(name, "")
    if not text:
        return []
    if not re.fullmatch(r"[0-9]{1,9}(?:,[0-9]{1,9}){0,63}", text):
        raise HttpError(400, f"{name}={text[:40]!r}: give numbers with commas between them")
    found = [int(each) for each in text.split(",")]
    if len(found) > most:
        raise HttpError(400, f"{name}: give at most {most} numbers")
    return found


def refuse_strangers(stored: Stored) -> None:
    """Refuse a stored run whose part or problem is not of orrery or a package of systems."""
    ours = ("orrery", *(name for name, _, _ in packages()))
    for told in (stored.spec.get("part"), stored.spec.get("problem")):
        for name in replay._classes(told):
            module = name.partition(":")[0]
            if not any(module == top or module.startswith(top + ".") for top in ours):
                raise UsageError(
                    f"{module or 'this part'} is no listed system, and a page runs no other code; "
                    f"look at it in the terminal: orrery replay {stored.id[:8]}"
                )


def _shown(request: Request, app: Any) -> Shown:
    id = request.params["id"]
    stored = app.store.load(id)
    shelf: Shelf = app.table("timelines", Shelf)

    def make() -> Shown:
        if stored.spec.get("engine") != "virtual":
            raise UsageError(f"run {stored.id[:8]} was made on {stored.spec.get('engine')}, and "
                             "real time comes only once: it has no timeline")  # fmt: skip
        refuse_strangers(stored)
        part, problem, world = replay.rebuild(stored)
        played = playback.play(
            part, problem=problem, world=world, seed=int(stored.spec["seed"]),
            until_s=stored.spec.get("until_s"), limits=LIMITS,
        )  # fmt: skip
        return Shown(stored.id, played, played.run.digest == stored.digest)

    return shelf.get(stored.id, make)


# -- handlers


def about(request: Request, app: Any) -> dict[str, Any]:
    """What the run is."""
    shown = _shown(request, app)
    run = shown.run
    return {
        "id": shown.id, "part": repr(run.part)[:300], "problem": repr(run.problem)[:300],
        "seed": run.seed, "seconds": run.seconds, "messages": run.messages, "events": run.events,
        "nodes": run.world.size, "same": shown.same, "digest": run.digest,
        "violations": [{"kind": v.kind, "message": v.message[:400], "time_s": v.time_s,
                        "node": v.node} for v in run.violations[:20]],
        "end_s": shown.index.end_ns / 1e9,
    }  # fmt: skip


def totals(request: Request, app: Any) -> dict[str, Any]:
    """How much time went where, by name."""
    found = _shown(request, app).tracks
    return {"totals": found.totals(), "spans": len(found)}


def view(request: Request, app: Any) -> dict[str, Any]:
    """The spans of a stretch of time and lanes."""
    found = _shown(request, app).tracks
    asked = window(request, found.places, folding.MOST_LANES, 24)
    return found.view(find=request.query.get("find", ""), **asked)


def search(request: Request, app: Any) -> dict[str, Any]:
    """Where spans of a name are."""
    return _shown(request, app).tracks.search(request.query.get("find", ""))


def diagram(request: Request, app: Any) -> dict[str, Any]:
    """The folded space-time diagram of a stretch of time and lanes."""
    found = _shown(request, app).index
    return diagram_of(found, request)


def diagram_of(found: folding.Index, request: Request) -> dict[str, Any]:
    """The view of an index that a request asks for."""
    asked = window(request, found.nodes, folding.MOST_LANES, folding.LANES)
    bins = request.whole("bins", folding.BINS, 1, folding.MOST_BINS)
    pin = numbers(request, "pin", folding.MOST_PINNED)
    return found.view(bins=bins, pin=pin, **asked)


def export(request: Request, app: Any) -> Response:
    """The run as a Chrome trace file, which ui.perfetto.dev and chrome://tracing open."""
    shown = _shown(request, app)
    body = bytearray()
    for piece in spans.perfetto(shown.run):
        body += piece
        if len(body) > MOST_EXPORT_B:
            raise UsageError("the trace has more than 256 MiB; write it in the terminal: "
                             "orrery run … --spans-out run.json")  # fmt: skip
    name = f"orrery-{shown.id[:8]}.json"
    return Response(
        body=bytes(body),
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


WINDOW = ("from", "until", "lo", "hi", "lanes")
ROUTES = (
    Route("GET", "/api/timeline/{id}", about),
    Route("GET", "/api/timeline/{id}/totals", totals),
    Route("GET", "/api/timeline/{id}/view", view, query=(*WINDOW, "find")),
    Route("GET", "/api/timeline/{id}/search", search, query=("find",)),
    Route("GET", "/api/timeline/{id}/diagram", diagram, query=(*WINDOW, "bins", "pin")),
    Route("GET", "/api/timeline/{id}/trace.json", export),
)
