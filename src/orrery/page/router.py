"""Routes: a method, a pattern of a path, and the function that answers.

A pattern has words and named pieces: `/api/runs/{id}`. `{id}` is the beginning of a content hash,
`{name}` the name of a system, a problem or a world. There is no piece for a path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from orrery.page.http import HttpError, Request

Handler = Callable[[Request, Any], Any]
PIECES = {
    "id": re.compile(r"[0-9a-f]{8,64}"),
    "other": re.compile(r"[0-9a-f]{8,64}"),
    "name": re.compile(r"[a-z0-9][a-z0-9_-]{0,63}"),
    "n": re.compile(r"[0-9]{1,9}"),
}


class Route(NamedTuple):
    """One address: handlers get (request, app) and give data, a Response or an async iterator.

    A plain function is called in a thread, an `async` one on the loop. An async iterator of JSON-
    able values becomes a stream of Server-Sent Events. `query` names what the query may hold.
    """

    method: str
    pattern: str
    handler: Handler
    query: tuple[str, ...] = ()
    open_to_all: bool = False


class Router:
    """Finds the route of a request, or says why there is none."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._compiled: list[tuple[re.Pattern[str], Route]] = []
        seen: set[tuple[str, str]] = set()
        for route in self.routes:
            if route.method not in ("GET", "POST") or (route.method, route.pattern) in seen:
                raise ValueError(f"route {route.method} {route.pattern}: unknown or repeated")
            seen.add((route.method, route.pattern))
            self._compiled.append((_compile(route.pattern), route))

    def find(self, request: Request) -> Route:
        """The route; sets the request's `params`. HEAD is answered as GET."""
        wanted = "GET" if request.method == "HEAD" else request.method
        allowed: list[str] = []
        for shape, route in self._compiled:
            fits = shape.fullmatch(request.path)
            if fits is None:
                continue
            if route.method != wanted:
                allowed.append(route.method)
                continue
            unknown = [key for key in request.query if key not in route.query]
            if unknown:
                raise HttpError(400, f"{request.path} takes no {unknown[0]!r}")
            request.params = fits.groupdict()
            return route
        if allowed:
            raise HttpError(405, f"{request.path} is not for {request.method}",
                            Allow=", ".join(allowed))  # fmt: skip
        raise HttpError(404, "there is nothing at this address")


def _compile(pattern: str) -> re.Pattern[str]:
    shape = ""
    for piece in re.split(r"(\{[a-z]+\})", pattern):
        if piece.startswith("{"):
            name = piece[1:-1]
            if name not in PIECES:
                raise ValueError(f"route {pattern}: no piece {name}; there are {sorted(PIECES)}")
            shape += f"(?P<{name}>{PIECES[name].pattern})"
        else:
            shape += re.escape(piece)
    return re.compile(shape)
