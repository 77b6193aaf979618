"""What is asked of every request before a handler sees it, and what every answer says.

A web page that a stranger wrote can make the user's browser call the loopback. So each request
must name us as its host (a name that was bound anew to 127.0.0.1 does not), must not come from
another origin, and, for anything but the empty shell of the page, must carry the token. What
changes something is a POST of JSON from our own origin, which no foreign form can send.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping

from orrery.page.http import HttpError, Request

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
# For pictures and reports that bring their own style sheet: no script, no origin, nothing loaded.
INERT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
# The header that carries the key of a session.
KEY = "x-orrery-key"
# A browser says where a request comes from; "none" is the user typing an address.
FETCH_SITES = ("same-origin", "none")


class Guard:
    """The checks of one server: its hosts, its origins and its token."""

    def __init__(self, port: int, token: str | None = None) -> None:
        self.port = port
        self.token = token or secrets.token_urlsafe(32)
        self.session = secrets.token_urlsafe(32)
        self.key = secrets.token_urlsafe(32)
        self.hosts = frozenset({f"127.0.0.1:{port}", f"localhost:{port}"})
        self.origins = frozenset(f"http://{host}" for host in self.hosts)
        # Cookies do not know ports: two pages on one machine must not take each other's.
        self.cookie = f"orrery-{port}"

    # -- requests

    def check(self, request: Request, *, open_to_all: bool) -> None:
        """Refuse what must not reach a handler; `open_to_all` is the shell and the session."""
        self.check_host(request)
        self.check_origin(request)
        if request.method == "POST":
            self.check_post(request)
        if not open_to_all:
            self.check_token(request)

    def check_host(self, request: Request) -> None:
        """The Host must be ours, so that a foreign name for 127.0.0.1 is of no use."""
        if request.headers.get("host", "").lower() not in self.hosts:
            raise HttpError(421, "the Host is not this page's; use the address that was printed")

    def check_origin(self, request: Request) -> None:
        """Nothing may come from another origin; a POST must say that it does not."""
        origin = request.headers.get("origin")
        host = request.headers.get("host", "").lower()
        if origin is None and request.method == "POST":
            raise HttpError(403, "a POST without an Origin is refused")
        if origin is not None and (origin not in self.origins or origin != f"http://{host}"):
            raise HttpError(403, "the Origin is not this page's")
        site = request.headers.get("sec-fetch-site")
        if site is not None and site not in FETCH_SITES:
            raise HttpError(403, "a request from another site is refused")
        if request.method == "POST" and site == "none":
            raise HttpError(403, "a POST comes from the page, not from the address bar")

    def check_post(self, request: Request) -> None:
        """A body is JSON: foreign forms can send three other types, and not this one."""
        kind = request.headers.get("content-type", "").lower().replace(" ", "")
        if kind not in ("application/json", "application/json;charset=utf-8"):
            raise HttpError(415, "send Content-Type: application/json")
        if "content-encoding" in request.headers:
            raise HttpError(415, "send the body without an encoding")

    def check_token(self, request: Request) -> None:
        """The session's cookie, with its key for a POST; or the token as a bearer (for scripts)."""
        given = request.headers.get("authorization")
        if given is not None:
            kind, _, word = given.partition(" ")
            if kind != "Bearer" or not same(word, self.token):
                raise HttpError(401, "the token is not this page's")
            return
        if not same(self._cookie_of(request.headers), self.session):
            raise HttpError(401, "open the address that `orrery page` printed; it has the token")
        if request.method == "POST":
            self.check_key(request)

    def check_key(self, request: Request) -> None:
        """What starts something takes the key too, which only the page has.

        A browser sends a cookie to every port of a host, so that a stranger's server on another
        one could learn it. The key is kept by the page itself, whose storage does know ports.
        """
        if not same(request.headers.get(KEY, ""), self.key):
            raise HttpError(
                401, "the key of the session is missing; open the printed address again"
            )

    def _cookie_of(self, headers: Mapping[str, str]) -> str:
        """The value of our cookie; those of other servers of this machine may stand beside it."""
        pairs = (pair.strip().partition("=") for pair in headers.get("cookie", "").split(";"))
        found = [value for name, _, value in pairs if name == self.cookie]
        return found[0] if len(found) == 1 else ""

    # -- answers

    def open_session(self, token: str) -> str:
        """The Set-Cookie that the token is exchanged for."""
        if not same(token, self.token):
            raise HttpError(401, "the token is not this page's; see what `orrery page` printed")
        return f"{self.cookie}={self.session}; Path=/; HttpOnly; SameSite=Strict"

    def headers(self, policy: str = "") -> dict[str, str]:
        """The headers that every answer carries."""
        return {
            "Content-Security-Policy": policy or POLICY,
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cache-Control": "no-store",
        }


def same(given: str, right: str) -> bool:
    """Whether two secrets are equal, in a time that tells nothing of where they differ."""
    return hmac.compare_digest(given.encode(), right.encode())
