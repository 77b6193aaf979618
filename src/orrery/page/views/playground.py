"""The fault playground: open a listed system, break it by hand, rewind, fork, save as a test.

A playground is named by the hash of what it was opened with. It lives in the server's memory; what
is worth keeping leaves it as a test. Each has a lock, as its branches are executed in threads.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from typing import Any

import msgspec

from orrery.base.errors import OrreryError, UsageError
from orrery.lab import discover, folding, playback, replay, saved_test
from orrery.lab.playground import Playground, in_short
from orrery.page.http import HttpError, Request
from orrery.page.router import Route
from orrery.page.views.timeline import WINDOW, diagram_of, refuse_strangers, seconds
from orrery.world import worlds

KEPT = 6
KEPT_INDICES = 6
LIMITS = playback.Limits(events=1_500_000, seconds=30.0)
SHAPES = ("node", "worker")


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    """What opens a playground: a system by id, or a stored run."""

    system: str = ""
    run: str = ""
    problem: str = ""
    world: str = ""
    seed: int = 0
    knobs: dict[str, bool | int | float | str] = {}
    problem_knobs: dict[str, bool | int | float | str] = {}


class AskedEdit(msgspec.Struct, forbid_unknown_fields=True):
    """An edit of a branch."""

    branch: str
    at_s: float
    action: str
    nodes: list[int]
    value: float | None = None


class AskedBranch(msgspec.Struct, forbid_unknown_fields=True):
    """A fork, the removal of a branch, or of an edit of it."""

    branch: str
    at_s: float = 0.0
    title: str = ""
    place: int = -1


class Room:
    """One playground with its lock and the indices of its branches."""

    def __init__(self, id: str, playground: Playground) -> None:
        self.id = id
        self.playground = playground
        self.lock = threading.RLock()
        self._indices: OrderedDict[str, folding.Index] = OrderedDict()

    def index(self, branch: str) -> folding.Index:
        """The index of a branch's run, by its digest: equal runs share one."""
        run = self.playground.whole(branch).run
        key = f"{run.digest}-{run.world.hash}"
        if key not in self._indices:
            self._indices[key] = folding.index_of(run)
            while len(self._indices) > KEPT_INDICES:
                self._indices.popitem(last=False)
        self._indices.move_to_end(key)
        return self._indices[key]

    def summary(self) -> dict[str, Any]:
        """What is played with, and the tree of branches."""
        play = self.playground
        setting = play.setting
        named = (setting.world if setting else "") or play.world.title
        return {
            "id": self.id, "name": play.name, "title": play.title, "words": in_short(play),
            "seed": play.seed, "world": named or "the problem’s own world",
            "size": play.world.size, "problem": setting.problem if setting else "",
            "part": type(play.part).__name__, "tree": play.tree(),
            "ends_s": {each: self._end(each) for each in play.branches},
        }  # fmt: skip

    def _end(self, branch: str) -> float | None:
        try:
            return self.playground.whole(branch).run.seconds
        except OrreryError:
            return None


class Rooms:
    """The playgrounds that are open; the one not used for longest makes room."""

    def __init__(self) -> None:
        self._rooms: OrderedDict[str, Room] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, id: str, playground: Playground) -> Room:
        """Keep a playground; one of the same id that is already open stays."""
        with self._lock:
            room = self._rooms.get(id) or Room(id, playground)
            self._rooms[id] = room
            self._rooms.move_to_end(id)
            while len(self._rooms) > KEPT:
                self._rooms.popitem(last=False)
            return room

    def get(self, id: str) -> Room:
        """The playground of an id, or a refusal that says how to open it."""
        with self._lock:
            room = self._rooms.get(id)
            if room is None:
                raise HttpError(404, "this playground is not open; open its system again")
            self._rooms.move_to_end(id)
            return room


def _rooms(app: Any) -> Rooms:
    found: Rooms = app.table("playgrounds", Rooms)
    return found


def _room(request: Request, app: Any) -> Room:
    return _rooms(app).get(request.params["id"])


def _branch(request: Request, name: str = "branch") -> str:
    text = request.query.get(name, "main")
    if not text.isascii() or not text.isalnum() or len(text) > 16:
        raise HttpError(400, f"{name}={text[:40]!r}: give the id of a branch")
    return text


# -- opening


def choices(request: Request, app: Any) -> dict[str, Any]:
    """The systems that can be played with, and the named worlds."""
    found = [
        {"id": e.id, "name": e.name, "room": e.room, "problem": e.problem, "origin": e.origin,
         "title": e.title}
        for e in discover.entries()
        if e.built and e.shape in SHAPES
    ]  # fmt: skip
    return {"systems": found, "worlds": [{"name": n, "says": s} for n, s in worlds.names().items()]}


def open_one(request: Request, app: Any) -> dict[str, Any]:
    """Open a playground of a listed system, or of a stored run of one."""
    asked: Asked = request.json(Asked)
    data = msgspec.json.encode(asked, order="deterministic")
    id = hashlib.sha256(data).hexdigest()[:20]
    rooms = _rooms(app)
    try:
        room = rooms.get(id)
    except HttpError:
        play = _of_run(asked, app) if asked.run else _of_system(asked)
        play.whole("main")  # what cannot be run is refused before it has a room
        room = rooms.put(id, play)
    with room.lock:
        return room.summary()


def _of_system(asked: Asked) -> Playground:
    if not asked.system:
        raise UsageError("system: name one, for example raft; `orrery list` shows them")
    return Playground.open(
        asked.system, problem=asked.problem, world=asked.world, seed=asked.seed,
        knobs=asked.knobs, problem_knobs=asked.problem_knobs, limits=LIMITS,
    )  # fmt: skip


def _of_run(asked: Asked, app: Any) -> Playground:
    """A stored run as a playground; it is what it was, so nothing else may be asked with it."""
    if asked.system or asked.problem or asked.world or asked.knobs or asked.problem_knobs:
        raise UsageError("run: a stored run has its own system, problem and world; name only it")
    if not 8 <= len(asked.run) <= 64 or not all(c in "0123456789abcdef" for c in asked.run):
        raise UsageError("run: give the id of a stored run, 8 to 64 hex digits")
    stored = app.store.load(asked.run)
    if stored.spec.get("engine") != "virtual":
        raise UsageError(f"run {stored.id[:8]} was not made in virtual time, and real time comes "
                         "only once: run its system on the virtual engine")  # fmt: skip
    refuse_strangers(stored)
    part, problem, world = replay.rebuild(stored)
    return Playground(
        part, problem=problem, world=world, seed=int(stored.spec["seed"]),
        until_s=stored.spec.get("until_s"), limits=LIMITS,
        name=str(stored.spec["part"].get("name") or type(part).__name__),
        setting=saved_test.setting_of(part, problem, world),
    )  # fmt: skip


def summary(request: Request, app: Any) -> dict[str, Any]:
    """What is open, and its branches."""
    room = _room(request, app)
    with room.lock:
        return room.summary()


# -- looking


def at(request: Request, app: Any) -> dict[str, Any]:
    """The scene at a time of a branch."""
    room = _room(request, app)
    with room.lock:
        return room.playground.at(seconds(request, "at", 0.0) or 0.0, _branch(request))


def step(request: Request, app: Any) -> dict[str, Any]:
    """The next (or last) thing that happens, to one node if so asked."""
    room = _room(request, app)
    size = room.playground.world.size
    node = request.whole("node", 0, 0, size) if "node" in request.query else None
    back = request.whole("back", 0, 0, 1) == 1
    with room.lock:
        found = room.playground.next_event(
            seconds(request, "at", 0.0) or 0.0, node, _branch(request), back
        )
    return {"next": found}


def story(request: Request, app: Any) -> dict[str, Any]:
    """What happened to one node until a time."""
    room = _room(request, app)
    node = request.whole("node", 0, 0, room.playground.world.size)
    with room.lock:
        return room.playground.story(node, seconds(request, "at", 0.0) or 0.0, _branch(request))


def diagram(request: Request, app: Any) -> dict[str, Any]:
    """The folded space-time diagram of a branch."""
    room, branch = _room(request, app), _branch(request)
    with room.lock:
        found = room.index(branch)
    return diagram_of(found, request)


def compare(request: Request, app: Any) -> dict[str, Any]:
    """Two branches side by side."""
    room = _room(request, app)
    with room.lock:
        return room.playground.difference(_branch(request, "a"), _branch(request, "b"))


def test(request: Request, app: Any) -> dict[str, Any]:
    """The source of a test that replays a branch."""
    room, branch = _room(request, app), _branch(request)
    with room.lock:
        source = room.playground.save_test(branch)
    name = saved_test.file_name(source)
    return {"file": name, "source": source, "command": f"pytest {name}"}


# -- changing


def edit(request: Request, app: Any) -> dict[str, Any]:
    """Add an edit to a branch."""
    room, asked = _room(request, app), request.json(AskedEdit)
    with room.lock:
        made = room.playground.edit(
            asked.action, asked.nodes, at_s=asked.at_s, value=asked.value, branch=asked.branch
        )
        return {**room.summary(), "words": made.words()}


def take_out(request: Request, app: Any) -> dict[str, Any]:
    """Take an edit of a branch out again."""
    room, asked = _room(request, app), request.json(AskedBranch)
    with room.lock:
        gone = room.playground.take_out(asked.place, asked.branch)
        return {**room.summary(), "words": gone.words()}


def fork(request: Request, app: Any) -> dict[str, Any]:
    """Another future from a time of a branch."""
    room, asked = _room(request, app), request.json(AskedBranch)
    with room.lock:
        made = room.playground.fork(asked.at_s, asked.branch, asked.title)
        return {**room.summary(), "branch": made.id}


def remove(request: Request, app: Any) -> dict[str, Any]:
    """Forget a branch."""
    room, asked = _room(request, app), request.json(AskedBranch)
    with room.lock:
        room.playground.remove(asked.branch)
        return room.summary()


ROUTES = (
    Route("GET", "/api/playground/choices", choices),
    Route("POST", "/api/playground", open_one),
    Route("GET", "/api/playground/{id}", summary),
    Route("GET", "/api/playground/{id}/at", at, query=("branch", "at")),
    Route("GET", "/api/playground/{id}/step", step, query=("branch", "at", "node", "back")),
    Route("GET", "/api/playground/{id}/story", story, query=("branch", "at", "node")),
    Route(
        "GET",
        "/api/playground/{id}/diagram",
        diagram,
        query=(*WINDOW, "bins", "pin", "branch"),
    ),
    Route("GET", "/api/playground/{id}/compare", compare, query=("a", "b")),
    Route("GET", "/api/playground/{id}/test", test, query=("branch",)),
    Route("POST", "/api/playground/{id}/edit", edit),
    Route("POST", "/api/playground/{id}/undo", take_out),
    Route("POST", "/api/playground/{id}/fork", fork),
    Route("POST", "/api/playground/{id}/remove", remove),
)
