"""HTTP/1.1 as small and as strict as a page for one person needs it.

What is not plainly right is refused: there is no chunked body, no folded header, no bare line
feed, no encoded path. Two readers of one request can then never disagree on what it says, which
is what smuggling lives from. Every refusal is a 4xx answer that closes the connection.
"""

from __future__ import annotations

import asyncio
import re
import urllib.parse
from collections.abc import Mapping
from typing import Any

import msgspec

MOST_HEAD_B = 16_384
MOST_LINE_B = 8_192
MOST_FIELDS = 64
MOST_BODY_B = 65_536
MOST_QUERY_B = 2_048
HEAD_S = 10.0
BODY_S = 10.0
METHODS = ("GET", "HEAD", "POST")

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
_METHOD = re.compile(rb"[A-Z]{1,16}")
# No percent signs: no route needs them, and each is a way to say a path in other words.
_PATH = re.compile(r"/[A-Za-z0-9_.-]*(?:/[A-Za-z0-9_.-]+)*")
_KEY = re.compile(r"[a-z][a-z0-9_]{0,31}")
_LENGTH = re.compile(rb"[0-9]{1,9}")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_ENCODED = re.compile(r"(?:[^%]|%[0-9A-Fa-f]{2})*")

REASONS = {
    200: "OK", 202: "Accepted", 204: "No Content", 304: "Not Modified", 400: "Bad Request",
    401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed",
    408: "Request Timeout", 409: "Conflict", 411: "Length Required", 413: "Content Too Large",
    414: "URI Too Long", 415: "Unsupported Media Type", 417: "Expectation Failed",
    421: "Misdirected Request", 422: "Unprocessable Content", 429: "Too Many Requests",
    431: "Request Header Fields Too Large", 500: "Internal Server Error",
}  # fmt: skip


class HttpError(Exception):
    """A request that is refused: the status, and a sentence for who sent it."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class Request(msgspec.Struct, kw_only=True):
    """One request, read and bounded; `params` are the named pieces of its path."""

    method: str
    path: str
    query: dict[str, str] = {}
    headers: dict[str, str] = {}
    body: bytes = b""
    params: dict[str, str] = {}

    def json(self, kind: Any = Any) -> Any:
        """The body as JSON of a type; what does not fit is a 400 that names the field."""
        if not self.body:
            raise HttpError(400, "the body is empty; send a JSON object")
        try:
            return msgspec.json.decode(self.body, type=kind)
        except RecursionError:
            raise HttpError(400, "the body is nested too deeply") from None
        except (msgspec.MsgspecError, UnicodeError, ValueError) as failure:
            raise HttpError(400, f"the body does not fit: {failure}") from None

    def whole(self, name: str, default: int, least: int, most: int) -> int:
        """A whole number of the query within bounds."""
        text = self.query.get(name)
        if text is None:
            return default
        if not re.fullmatch(r"[0-9]{1,12}", text) or not least <= int(text) <= most:
            raise HttpError(400, f"{name}={text[:40]!r}: give a whole number, {least} to {most}")
        return int(text)


class Response(msgspec.Struct, kw_only=True):
    """An answer with bytes; JSON answers are made by `as_json`."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: dict[str, str] = {}
    policy: str = ""  # a Content-Security-Policy in place of the page's own


def as_json(value: Any, status: int = 200, **headers: str) -> Response:
    """Any data as a JSON answer; NaN and infinity become null."""
    from orrery.base.plain import encode_json

    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Response(status=status, body=encode_json(value), headers=named)


def problem(error: HttpError) -> Response:
    """A refusal as an answer."""
    body = {"error": {"status": error.status, "message": error.message}}
    return as_json(body, error.status, **error.headers)


def head_of(response: Response, extra: Mapping[str, str], *, length: int | None) -> bytes:
    """The status line and the headers; without a length the answer ends with the connection."""
    reason = REASONS.get(response.status, "Unknown")
    fields = {"Content-Type": response.content_type, **extra, **response.headers}
    if length is not None and response.status not in (204, 304):
        fields["Content-Length"] = str(length)
    lines = [f"HTTP/1.1 {response.status} {reason}"]
    for name, value in fields.items():
        if "\r" in value or "\n" in value:
            raise ValueError(f"header {name} has a line break")
        lines.append(f"{name}: {value}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


# -- reading


async def read_request(
    reader: asyncio.StreamReader, idle_s: float, head_s: float = HEAD_S, body_s: float = BODY_S
) -> Request | None:
    """The next request of a connection; None when it was closed, or stayed silent, in between."""
    try:
        first = await asyncio.wait_for(reader.read(1), idle_s)
    except TimeoutError:
        return None
    if not first:
        return None
    try:
        # One limit for the whole head: a client that sends a byte a second does not get another.
        head = await asyncio.wait_for(_head(reader, first), head_s)
    except TimeoutError:
        raise HttpError(408, "the head of the request took too long") from None
    if head is None:
        return None
    request, length = parse_head(head)
    if length:
        try:
            request.body = await asyncio.wait_for(reader.readexactly(length), body_s)
        except TimeoutError:
            raise HttpError(408, "the body took too long") from None
        except asyncio.IncompleteReadError:
            return None
    return request


async def _head(reader: asyncio.StreamReader, first: bytes) -> bytes | None:
    """The bytes up to the blank line, line by line, so that a bare LF is seen at once."""
    head = first
    start = 0
    while True:
        try:
            head += await reader.readuntil(b"\n")
        except asyncio.LimitOverrunError:
            raise HttpError(431, f"the head is over {MOST_HEAD_B} bytes") from None
        except asyncio.IncompleteReadError:
            return None
        if len(head) > MOST_HEAD_B:
            raise HttpError(431, f"the head is over {MOST_HEAD_B} bytes")
        line = head[start:]
        if not line.endswith(b"\r\n"):
            raise HttpError(400, "a line ends without CR LF")
        if line == b"\r\n":
            return head
        start = len(head)


def parse_head(head: bytes) -> tuple[Request, int]:
    """The request of a head (up to its blank line) and the length of its body."""
    if len(head) > MOST_HEAD_B:
        raise HttpError(431, f"the head is over {MOST_HEAD_B} bytes")
    lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    if any(b"\n" in line or b"\r" in line or b"\0" in line for line in lines):
        raise HttpError(400, "a line holds a stray CR, LF or NUL; lines end with CR LF")
    method, path, query = _request_line(lines[0])
    headers = _fields(lines[1:])
    return Request(method=method, path=path, query=query, headers=headers), _length(method, headers)


def _request_line(line: bytes) -> tuple[str, str, dict[str, str]]:
    if len(line) > MOST_LINE_B:
        raise HttpError(414, f"the request line is over {MOST_LINE_B} bytes")
    words = line.split(b" ")
    if len(words) != 3 or not _METHOD.fullmatch(words[0]):
        raise HttpError(400, "the request line is not METHOD /path HTTP/1.1")
    if words[2] != b"HTTP/1.1":
        raise HttpError(400, "only HTTP/1.1 is spoken here")
    method = words[0].decode()
    if method not in METHODS:
        raise HttpError(405, f"{method} is not used here", Allow=", ".join(METHODS))
    try:
        target = words[1].decode("ascii")
    except UnicodeDecodeError:
        raise HttpError(400, "the address is not ASCII") from None
    path, mark, rest = target.partition("?")
    if not _PATH.fullmatch(path) or any(set(piece) == {"."} for piece in path.split("/") if piece):
        raise HttpError(400, "the path is not one of this page's")
    return method, path, _query(rest) if mark else {}


def _query(text: str) -> dict[str, str]:
    if len(text) > MOST_QUERY_B:
        raise HttpError(414, f"the query is over {MOST_QUERY_B} bytes")
    found: dict[str, str] = {}
    for pair in text.split("&") if text else ():
        key, _, value = pair.partition("=")
        if not _KEY.fullmatch(key) or key in found:
            raise HttpError(400, f"the query has {key[:40]!r} twice, or it is no name")
        if not _ENCODED.fullmatch(value):
            raise HttpError(400, f"{key}: a percent sign without two hexadecimal digits")
        try:
            plain = urllib.parse.unquote_to_bytes(value.replace("+", " ")).decode("utf-8")
        except UnicodeDecodeError:
            raise HttpError(400, f"{key}: is not UTF-8") from None
        if any(ord(letter) < 32 or ord(letter) == 127 for letter in plain):
            raise HttpError(400, f"{key}: holds a control character")
        found[key] = plain
    return found


def _fields(lines: list[bytes]) -> dict[str, str]:
    if len(lines) > MOST_FIELDS:
        raise HttpError(431, f"over {MOST_FIELDS} header fields")
    found: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        # A space before the colon, or a folded line, is read differently by different readers.
        if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise HttpError(400, "a header field is not Name: value")
        key = name.decode().lower()
        if key in found:
            raise HttpError(400, f"the header {key} comes twice")
        found[key] = value.strip(b" \t").decode("latin-1")
    return found


def _length(method: str, headers: Mapping[str, str]) -> int:
    """How many bytes of body follow; whoever is not plain about it is refused."""
    if "transfer-encoding" in headers:
        raise HttpError(400, "Transfer-Encoding is not read here; send Content-Length")
    if "upgrade" in headers:
        raise HttpError(400, "there is nothing to upgrade to")
    if "expect" in headers:
        raise HttpError(417, "Expect is not answered here")
    text = headers.get("content-length")
    if text is None:
        if method == "POST":
            raise HttpError(411, "a POST needs Content-Length")
        return 0
    if not _LENGTH.fullmatch(text.encode("latin-1")):
        raise HttpError(400, "Content-Length is not a number of bytes")
    length = int(text)
    if method != "POST" and length:
        raise HttpError(400, f"a {method} has no body")
    if length > MOST_BODY_B:
        raise HttpError(413, f"the body is over {MOST_BODY_B} bytes")
    return length
