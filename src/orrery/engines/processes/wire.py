"""What goes over a socket: the challenge that opens a connection, frames, and message heads.

Opening: the one who accepts says a random challenge; the one who connects answers with its own
challenge and a keyed digest (HMAC) of both; the one who accepts proves itself likewise. The secret
is drawn for each run and handed to the processes through inherited memory or a pipe, never through
arguments, the environment or a file. After that come frames: length, checksum, payload. Nothing is
ever unpickled, and every length is checked before anything is kept.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from orrery.base.codec import MAX_FRAME_B
from orrery.base.errors import CodecError, OrreryError

MAGIC = b"ORRY"
VERSION = 1
NONCE_B = 32
MAC_B = 32
LANE_MESSAGES, LANE_BULK, LANE_CONTROL = 1, 2, 3
LANES = (LANE_MESSAGES, LANE_BULK, LANE_CONTROL)
TELL, ASK, REPLY, REFUSED, ARRIVED = range(5)

HELLO = struct.Struct(f"<4sB{NONCE_B}s")
OPEN = struct.Struct(f"<4sBBI{NONCE_B}s{MAC_B}s")
FRAME = struct.Struct("<II")
HEAD = struct.Struct("<BIIQB")


class WireError(OrreryError):
    """What came over a socket is not ours: the connection is closed and counted."""


def hello(nonce: bytes) -> bytes:
    """What the accepting side says first."""
    return HELLO.pack(MAGIC, VERSION, nonce)


def read_hello(data: bytes) -> bytes:
    """The challenge in a hello."""
    magic, version, nonce = HELLO.unpack(data)
    if magic != MAGIC or version != VERSION:
        raise WireError("the other side does not speak this protocol; both must be one version")
    return bytes(nonce)


def _mac(secret: bytes, who: bytes, lane: int, group: int, ours: bytes, theirs: bytes) -> bytes:
    text = who + struct.pack("<BI", lane, group) + ours + theirs
    return hmac.new(secret, text, hashlib.sha256).digest()


def opening(secret: bytes, lane: int, group: int, theirs: bytes, ours: bytes) -> bytes:
    """The answer of the connecting side: who it is, its challenge, its proof."""
    mac = _mac(secret, b"open", lane, group, theirs, ours)
    return OPEN.pack(MAGIC, VERSION, lane, group, ours, mac)


def check_opening(secret: bytes, data: bytes, ours: bytes) -> tuple[int, int, bytes]:
    """Verify an opening: (lane, group, proof to send back)."""
    magic, version, lane, group, theirs, mac = OPEN.unpack(data)
    if magic != MAGIC or version != VERSION or lane not in LANES:
        raise WireError("the other side does not speak this protocol; both must be one version")
    if not hmac.compare_digest(mac, _mac(secret, b"open", lane, group, ours, theirs)):
        raise WireError("the other side does not know the secret of this run")
    return lane, group, welcome(secret, lane, group, ours, theirs)


def welcome(secret: bytes, lane: int, group: int, nonce_in: bytes, nonce_out: bytes) -> bytes:
    """The proof of the accepting side."""
    return _mac(secret, b"accept", lane, group, nonce_in, nonce_out)


def frame(payload: bytes, most_B: int = MAX_FRAME_B, what: str = "a message") -> bytes:
    """A payload with its length and checksum; a payload over the cap is refused by name."""
    if len(payload) > most_B:
        raise CodecError(
            f"{what} has {len(payload)} bytes, more than the cap of {most_B}; send arrays with "
            "transfer(peer, array), or raise ProcessEngine(max_frame_B=…)"
        )
    return FRAME.pack(len(payload), zlib.crc32(payload)) + payload


class FrameReader:
    """Cuts a stream of bytes into payloads; a failed checksum is counted and skipped."""

    def __init__(self, most_B: int = MAX_FRAME_B) -> None:
        self._most_B = most_B
        self._buffer = bytearray()
        self.corrupt = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The payloads that are complete now; a length over the cap raises `WireError`."""
        buffer = self._buffer
        buffer += data
        at = 0
        try:
            while len(buffer) - at >= FRAME.size:
                length, crc = FRAME.unpack_from(buffer, at)
                if length > self._most_B:
                    raise WireError(f"a frame of {length} bytes is over the cap of {self._most_B}")
                end = at + FRAME.size + length
                if len(buffer) < end:
                    break
                payload = bytes(memoryview(buffer)[at + FRAME.size : end])
                at = end
                if zlib.crc32(payload) != crc:
                    self.corrupt += 1
                else:
                    yield payload
        finally:
            del buffer[:at]


class Message(NamedTuple):
    """A message as it travels: what kind, from and to which node, for which ask, which method."""

    kind: int
    src: int
    dst: int
    call: int
    method: str
    body: bytes


def pack_message(message: Message) -> bytes:
    """The payload of a message."""
    name = message.method.encode()
    if len(name) > 255:
        raise CodecError(f"the rpc name {message.method[:40]!r}… is over 255 bytes; shorten it")
    head = HEAD.pack(message.kind, message.src, message.dst, message.call, len(name))
    return head + name + message.body


def unpack_message(payload: bytes) -> Message:
    """A message from a payload; anything else raises `WireError`."""
    if len(payload) < HEAD.size:
        raise WireError("a message is shorter than its head")
    kind, src, dst, call, name_len = HEAD.unpack_from(payload)
    end = HEAD.size + name_len
    if kind > ARRIVED or len(payload) < end:
        raise WireError("a message has an unknown kind or a cut name")
    try:
        name = payload[HEAD.size : end].decode()
    except UnicodeDecodeError:
        raise WireError("the method of a message is not text") from None
    return Message(kind, src, dst, call, name, payload[end:])


def flip_bit(framed: bytes, place: int) -> bytes:
    """One bit of a frame's payload flipped below its checksum (the fault `Corrupt`)."""
    bits = 8 * (len(framed) - FRAME.size)
    if bits <= 0:
        return framed
    changed = bytearray(framed)
    at = 8 * FRAME.size + place % bits
    changed[at // 8] ^= 1 << (at % 8)
    return bytes(changed)
