"""The shell of the page: its files, and the exchange of the token for a session."""

from __future__ import annotations

from typing import Any

import msgspec

from orrery.page.guard import INERT_POLICY
from orrery.page.http import HttpError, Request, Response, as_json
from orrery.page.router import Route
from orrery.page.static import File, files


class Token(msgspec.Struct, forbid_unknown_fields=True):
    """What is sent to open a session."""

    token: str


def _serve(file: File, request: Request) -> Response:
    headers = {"ETag": file.etag, "Cache-Control": "no-cache"}
    policy = INERT_POLICY if file.kind == "image/svg+xml" else ""
    if request.headers.get("if-none-match") == file.etag:
        return Response(status=304, content_type=file.kind, headers=headers, policy=policy)
    return Response(body=file.data, content_type=file.kind, headers=headers, policy=policy)


async def index(request: Request, app: Any) -> Response:
    """The one HTML file."""
    return _serve(files()["index.html"], request)


def _static(name: str) -> Route:
    async def handler(request: Request, app: Any) -> Response:
        return _serve(files()[name], request)

    return Route("GET", f"/static/{name}", handler, open_to_all=True)


async def favicon(request: Request, app: Any) -> Response:
    """The mark of the tab."""
    return _serve(files()["mark.svg"], request)


async def session(request: Request, app: Any) -> Response:
    """Exchange the token for the cookie and the key of a session."""
    asked = request.json(Token)
    if len(asked.token) > 200:
        raise HttpError(400, "the token is too long")
    cookie = app.guard.open_session(asked.token)
    response = as_json({"key": app.guard.key})
    response.headers["Set-Cookie"] = cookie
    return response


async def about(request: Request, app: Any) -> dict[str, Any]:
    """Who answers: the page asks this to see whether its session is open."""
    import orrery

    return {"name": "orrery", "version": orrery.__version__}


# One route for each file, made from the table: there is no route with a file's name in it.
ROUTES = (
    Route("GET", "/", index, open_to_all=True),
    Route("GET", "/favicon.ico", favicon, open_to_all=True),
    Route("POST", "/api/session", session, open_to_all=True),
    Route("GET", "/api/about", about),
    *(_static(name) for name in sorted(files()) if not name.endswith(".html")),
)
