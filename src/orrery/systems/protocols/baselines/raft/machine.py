"""The state machine: a key-value store that acts once for each numbered operation of a client."""

from __future__ import annotations

import zlib

import msgspec

from orrery.base.codec import decode, encode
from orrery.systems.protocols.problems.replicated_store import Op

Result = int | bool | None


class Session(msgspec.Struct, frozen=True, array_like=True):
    """The last operation of a client that was applied, with its answer."""

    client: int
    number: int
    result: Result = None


class _Content(msgspec.Struct, array_like=True):
    values: dict[str, int | None]
    sessions: list[Session]


class Machine:
    """Registers by key, and sessions by client. It changes only by `apply`."""

    def __init__(self, state: bytes = b"") -> None:
        content = decode(state, _Content) if state else _Content({}, [])
        self.values = content.values
        self.sessions = {session.client: session for session in content.sessions}

    def dump(self) -> bytes:
        """All of the state as bytes; equal states give equal bytes."""
        sessions = [self.sessions[client] for client in sorted(self.sessions)]
        return encode(_Content(self.values, sessions))

    def fingerprint(self) -> int:
        """A number that depends on all of the state, the sessions too.

        It is not made from `dump`, so that whatever a snapshot leaves out is noticed.
        """
        return zlib.crc32(encode((self.values, sorted(self.sessions.items()))))

    def answered(self, client: int, number: int) -> Session | None:
        """The session of a client, when it has come to this operation or beyond."""
        session = self.sessions.get(client)
        return session if session is not None and session.number >= number else None

    def apply(self, client: int, number: int, op: Op) -> Result:
        """Carry out an operation, or repeat the answer when it was carried out before."""
        session = self.answered(client, number)
        if session is not None:
            return session.result
        result = self._act(op)
        self.sessions[client] = Session(client, number, result)
        return result

    def read(self, key: str) -> int | None:
        return self.values.get(key)

    def _act(self, op: Op) -> Result:
        if op.f == "cas":
            if self.values.get(op.key) != op.expected:
                return False
            self.values[op.key] = op.value
            return True
        self.values[op.key] = op.value
        return None
